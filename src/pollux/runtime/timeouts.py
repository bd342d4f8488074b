"""Timeout loop: one scan of all running attempts instead of a timer for each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux.clock import Clock
from pollux.events import Events
from pollux.runtime.loop import Loop, Rest

if TYPE_CHECKING:
    from pollux.runtime.attempt import Attempt

NEVER = float("inf")


def by_run(attempt: Attempt) -> str:
    """Sort key: sets have no order, and where each attempt draws a random number, the draws must be repeatable."""
    return attempt.run.id


class TimeoutWatch(Loop):
    """Stop handlers at their timeout, and when their lease can no longer be trusted."""

    def __init__(self, running: set[Attempt], *, clock: Clock, events: Events) -> None:
        super().__init__("watchman", clock=clock, events=events)
        self.running = running
        self._next = NEVER

    def expect(self, at: float) -> None:
        """Scan at that time, or earlier."""
        if at < self._next:
            self._next = at
            self.nudge()

    async def turn(self) -> Rest:
        now, soonest = self.clock.mono_ms(), NEVER
        for attempt in sorted(self.running, key=by_run):
            if attempt.trust_until <= now and not attempt.is_settled:
                attempt.lose("it could not be renewed in time")
            if attempt.look_at <= now:
                attempt.overdue()
            soonest = min(soonest, attempt.look_at, NEVER if attempt.is_settled else attempt.trust_until)
        self._next = soonest
        return Rest.UNTIL_WOKEN if soonest == NEVER else Rest(max(1.0, soonest - now))
