"""Test tools for users: stories in virtual time, fake clocks, injected faults, the conformance suite for stores.

`pollux.testing.conformance` needs pytest and is therefore not imported here.
"""

from pollux.clock import FakeClock
from pollux.testing.faults import FaultyStore, HastyWaits, NoWaits
from pollux.testing.story import BlockingStoryApp, Story, StoryApp, story

__all__ = ["BlockingStoryApp", "FakeClock", "FaultyStore", "HastyWaits", "NoWaits", "Story", "StoryApp", "story"]
