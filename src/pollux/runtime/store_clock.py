"""What time is it in the store?  Its clock, carried on by our monotonic one between two answers.

Every answer that bears the store's time gives a lower bound of the offset, for the time it names had passed before we
heard of it, and an upper bound, for it had not yet come when we asked.  We take the best lower bound at once and give
it up slowly, so that one slow answer (or a handler that blocked our loop) neither makes us late nor seems a leap.

Several questions are under way at a time, and their answers may be heard in another order than the store gave them.
After a leap an answer to a question that was sent before is not believed: it may tell the time before the leap.
"""

from __future__ import annotations

from pollux.clock import Clock
from pollux.events import ClockJumped, Events

JUMP_MS = 1_000


class StoreClock:
    def __init__(self, clock: Clock, events: Events) -> None:
        self.clock, self.events = clock, events
        self.jumps = 0
        self._offset: float | None = None
        self._leapt_at = float("-inf")  # when we heard of the last leap, in monotonic time

    def now_ms(self) -> int:
        """The store's time; before its first answer, our own."""
        if self._offset is None:
            return self.clock.now_ms()
        return int(self.clock.mono_ms() + self._offset)

    def learn(
        self, now_ms: int, *, asked: float | None = None, heard: float | None = None, sent: float | None = None
    ) -> None:
        """The store said `now_ms`.  We asked and heard at those monotonic times (both: now, if not given).

        Where the question waited in the store, and was answered at once in the end, `sent` is when it went there.
        """
        heard = self.clock.mono_ms() if heard is None else heard
        sent = asked if sent is None else sent
        if sent is not None and sent < self._leapt_at:
            return
        seen = now_ms - heard
        if self._offset is None:
            self._offset = seen
            return
        drift = seen - self._offset
        slack = 0.0 if asked is None else heard - asked
        if drift > JUMP_MS or drift + slack < -JUMP_MS:
            self.jumps += 1
            self._offset, self._leapt_at = seen, heard
            self.events.emit(ClockJumped(int(drift)))
        else:
            self._offset = seen if drift > 0 else self._offset + max(drift, -JUMP_MS) * 0.1
