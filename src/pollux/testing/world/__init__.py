"""Deterministic worlds: the whole engine on one virtual event loop, under faults drawn from a seed.

    result = run_world(draw_script(seed=7, profile="kills"))
    assert result.is_sound, story_of(result)

The same seed gives the same trace on every run.
"""

from pollux.testing.world.script import Operation, Script, ScriptedJob, WorldFault, draw_script
from pollux.testing.world.shrink import ScriptShrinker, story_of
from pollux.testing.world.world import World, WorldResult, run_world

__all__ = [
    "Operation",
    "Script",
    "ScriptShrinker",
    "ScriptedJob",
    "World",
    "WorldFault",
    "WorldResult",
    "draw_script",
    "run_world",
    "story_of",
]
