"""Shipped for users: stories in virtual time, clocks that stand still, faults on order, the suite for stores.

`pollux.testing.conformance` needs pytest and is therefore not imported here.
"""

from pollux.clock import FakeClock
from pollux.testing.faults import FaultyStore, HastyWaits, NoWaits
from pollux.testing.story import BlockingTale, Story, Tale, story

__all__ = ["BlockingTale", "FakeClock", "FaultyStore", "HastyWaits", "NoWaits", "Story", "Tale", "story"]
