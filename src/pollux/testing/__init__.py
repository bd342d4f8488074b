"""Shipped for users: clocks that stand still, faults on order, and the suite that every store must pass.

`pollux.testing.conformance` needs pytest and is therefore not imported here.
"""

from pollux.clock import FakeClock
from pollux.testing.faults import FaultyStore, HastyWaits, NoWaits

__all__ = ["FakeClock", "FaultyStore", "HastyWaits", "NoWaits"]
