"""The store's clock, extrapolated by the local monotonic clock between two answers.

Every answer that carries the store's time gives a lower bound of the offset (that time had passed when the answer
arrived) and an upper bound (it had not come when the question was sent).  A better lower bound is taken at once and
given up slowly, so that one slow answer (or a handler that blocked the loop) neither makes us late nor looks like a
jump.

Several questions are under way at a time, and their answers may arrive in another order than the store gave them.
After a jump an answer to a question that was sent before it is ignored: its time may be from before the jump.
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
        self._leapt_at = float("-inf")  # when the last jump was seen, in monotonic time

    def now_ms(self) -> int:
        """Return the store's time; before its first answer, the local clock's."""
        if self._offset is None:
            return self.clock.now_ms()
        return int(self.clock.mono_ms() + self._offset)

    def learn(
        self, now_ms: int, *, asked: float | None = None, heard: float | None = None, sent: float | None = None
    ) -> None:
        """Take the time `now_ms` from an answer.  `asked` and `heard` are monotonic times (None: now).

        Where the question waited before it was sent to the store, `sent` is when it went there.
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
