"""Smaller scripts of a broken world: faults, operations and jobs are left out as long as the same promise breaks.

The chunks that are left out are halves at first, then quarters, down to single items (delta debugging).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from pollux.testing.world.script import Script
from pollux.testing.world.world import WorldResult, run_world

RUNS_MAX = 200
PARTS = ("operations", "faults", "jobs")


class ScriptShrinker:
    """The smallest script found within so many runs."""

    def __init__(
        self, result: WorldResult, *, run: Callable[[Script], WorldResult] = run_world, runs_max: int = RUNS_MAX
    ) -> None:
        self.result, self._run, self._left = result, run, runs_max
        self._kind = result.broken[0].kind

    def shrink(self) -> WorldResult:
        """Leave out what can be left out, until nothing more can."""
        before = -1
        while self._left > 0 and before != (before := self._size()):
            for part in PARTS:
                self._shrink_part(part)
        return self.result

    def _size(self) -> int:
        return sum(len(getattr(self.result.script, part)) for part in PARTS)

    def _shrink_part(self, part: str) -> None:
        size = len(getattr(self.result.script, part))
        while size >= 1 and self._left > 0:
            at = 0
            while at < len(items := getattr(self.result.script, part)) and self._left > 0:
                if not self._try(part, items[:at] + items[at + size :]):
                    at += size
            size //= 2

    def _try(self, part: str, items: Sequence[Any]) -> bool:
        """Whether the same promise breaks with these items alone; then they are kept."""
        changes: dict[str, Any] = {part: tuple(items)}
        script = self.result.script
        if part == "jobs":
            there = {job.id for job in items}
            changes["operations"] = tuple(each for each in script.operations if each.job in there)
        self._left -= 1
        found = self._run(replace(script, **changes))
        if self._kind not in found.kinds:
            return False
        self.result = found
        return True


def story_of(result: WorldResult, *, lines_max: int = 60) -> str:
    """What happened in a world, in words."""
    script = result.script
    jobs = ", ".join(f"{job.id} ({_schedule(job.schedule)}, {job.overlap})" for job in script.jobs[:12])
    head = [
        f"seed {script.seed}, profile {script.profile}: {script.nodes} nodes, {len(script.jobs)} jobs",
        f"{len(script.faults)} faults, {len(script.operations)} operations",
        f"lease {script.lease_ms} ms, leader's ttl {script.leader_ttl_ms} ms",
        f"jobs: {jobs}",
    ]
    first = min((each.us for each in result.broken), default=0) / 1e6
    notable = [line for line in result.notable if float(line.split(" s ")[0]) <= first]
    left_out = len(notable) - lines_max
    if left_out > 0:
        notable = [f"  ({left_out} earlier lines are left out)", *notable[-lines_max:]]
    broken = [f"{each.us / 1e6:9.3f} s  BROKEN {each.kind}: {each.words}" for each in result.broken[:10]]
    return "\n".join([*head, *notable, *broken])


def _schedule(schedule: object) -> str:
    return type(schedule).__name__.lower() if schedule is not None else "when asked"
