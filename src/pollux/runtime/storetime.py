"""What time is it in the store?  Its clock, carried on by our monotonic one between two answers.

Every answer that bears the store's time gives a lower bound of the offset: the time it names had passed before we
heard of it.  We take the best bound at once and give it up slowly, so that one slow answer does not make us late.
"""

from __future__ import annotations

from pollux.clock import Clock
from pollux.events import ClockJumped, Events

JUMP_MS = 1_000


class StoreTime:
    def __init__(self, clock: Clock, events: Events) -> None:
        self.clock, self.events = clock, events
        self.jumps = 0
        self._offset: float | None = None

    def now_ms(self) -> int:
        """The store's time; before its first answer, our own."""
        if self._offset is None:
            return self.clock.now_ms()
        return int(self.clock.mono_ms() + self._offset)

    def learn(self, now_ms: int, *, latest: float | None = None) -> None:
        """The store said `now_ms`; `latest` is the monotonic time when we heard it (now, if not given)."""
        seen = now_ms - (self.clock.mono_ms() if latest is None else latest)
        if self._offset is None:
            self._offset = seen
            return
        drift = seen - self._offset
        if abs(drift) > JUMP_MS:
            self.jumps += 1
            self._offset = seen
            self.events.emit(ClockJumped(int(drift)))
        else:
            self._offset = seen if drift > 0 else self._offset + drift * 0.1
