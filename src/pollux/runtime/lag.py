"""Event loop lag: how late a timer on the loop rings, and which handler held the loop when it was late.

What holds the loop (a handler that computes, a call that blocks) makes everything else in this process late: claims,
planning, answers to people.  The timer rings twice a second.  The sampler lives on another loop, in the renewer's
thread: it looks at the stack of the loop's thread only while the timer is late, and tells the log and the store of a
loop that is held for long while it still is, because the beat of the loop itself waits, too.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from pollux.clock import Clock
from pollux.events import Events
from pollux.runtime.lateness import Lateness
from pollux.runtime.loop import Loop, Rest, bounded

EVERY_S = 0.5
RECENT = 120  # so many of the latest are remembered one by one: a minute
LATE_MS = 250  # what rings later was held by something
ON_TIME_REST_MS = 400  # of the sampler: a loop that is held for a second is looked at more than once
LATE_REST_MS = 100
TELL_MS, TELL_AGAIN_MS = 2_000, 10_000  # a loop that is held so long is told of, and again
BEAT_MS_MAX = 5_000
SAMPLES_MAX = 1_000


class Hold(NamedTuple):
    """One time that the loop was held: how long, and by what as far as it was seen."""

    ms: int = 0
    by: str = ""


class LoopLag:
    """The timer.  It belongs to the event loop; `late_now_ms`, `worst` and `saw` may be called from any thread."""

    def __init__(self) -> None:
        self.late = Lateness()
        self.thread_id = 0  # of the loop, once it was started
        self.on_held: Callable[[Hold], None] | None = None
        self.is_said = False  # of the hold that lasts: it was said while it did
        self._recent = [Hold()] * RECENT
        self._samples: list[str] = []  # what the sampler saw since the loop was last on time
        self._timer: asyncio.TimerHandle | None = None
        self._due = math.inf

    def start(self) -> None:
        self.thread_id = threading.get_ident()
        self._expect(asyncio.get_running_loop())

    def stop(self) -> None:
        self._due = math.inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def now(self) -> Hold:
        """What holds it."""
        return Hold(int(self.late_now_ms()), _most_seen(self._samples))

    @property
    def worst(self) -> Hold:
        """The longest that the loop was held of late; the one that holds it now counts."""
        return max(*self._recent, self.now, key=lambda hold: hold.ms)

    def late_now_ms(self) -> float:
        """How long the timer has been waited for beyond its time."""
        return max(0.0, time.monotonic() - self._due) * 1_000

    def saw(self, by: str) -> None:
        """The sampler looked while the timer was late."""
        if by and len(self._samples) < SAMPLES_MAX:
            self._samples.append(by)

    def _expect(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due = time.monotonic() + EVERY_S
        self._timer = loop.call_later(EVERY_S, self._ring, loop)

    def _ring(self, loop: asyncio.AbstractEventLoop) -> None:
        late_ms = int(self.late_now_ms())
        samples, self._samples = self._samples, []
        hold = Hold(late_ms, _most_seen(samples))
        self._recent[self.late.count % RECENT] = hold
        self.late.add(late_ms)
        self._expect(loop)
        if late_ms > LATE_MS and self.on_held is not None:
            self.on_held(hold)
        self.is_said = False


def _most_seen(samples: list[str]) -> str:
    return Counter(samples).most_common(1)[0][0] if samples else ""


class LoopSampler(Loop):
    """Looks at what holds the event loop, while it is held; it runs on another loop, in another thread."""

    def __init__(
        self,
        lag: LoopLag,
        look: Callable[[bool], str],
        tell: Callable[[], Awaitable[None]],
        say: Callable[[Hold], None],
        *,
        clock: Clock,
        events: Events,
    ) -> None:
        super().__init__("sampler", clock=clock, events=events)
        self.lag, self.look, self.tell, self.say = lag, look, tell, say
        self.looks = 0
        self._rest_ms = float(ON_TIME_REST_MS)
        self._rested_at = time.monotonic()
        self._told_at: float | None = None

    async def turn(self) -> Rest:
        now, late_ms = time.monotonic(), self.lag.late_now_ms()
        is_frozen = (now - self._rested_at) * 1_000 > self._rest_ms + LATE_MS  # this thread was late itself
        if late_ms > LATE_MS:
            self.looks += 1
            self.lag.saw(self.look(is_frozen))
            await self._tell(now, late_ms)
        else:
            self._told_at = None
        self._rest_ms = LATE_REST_MS if late_ms > LATE_MS else ON_TIME_REST_MS
        self._rested_at = time.monotonic()
        return Rest(self._rest_ms)

    async def _tell(self, now: float, late_ms: float) -> None:
        is_told = self._told_at is not None and (now - self._told_at) * 1_000 < TELL_AGAIN_MS
        if late_ms > TELL_MS and not is_told:
            self._told_at = now
            if not self.lag.is_said:
                self.lag.is_said = True
                self.say(self.lag.now)
            await bounded(_awaited(self.tell()), BEAT_MS_MAX, what="beat")


async def _awaited(call: Awaitable[None]) -> None:
    await call
