"""Event loop lag: how late a timer on the loop rings, and which handler held the loop when it was late.

What holds the loop (a handler that computes, a call that blocks) makes everything else in this process late: claims,
planning, answers to people.  The timer rings twice a second.  The sampler lives on another loop, in the renewer's
thread: it looks at the stack of the loop's thread only while the timer is late, and tells the log and the store of a
loop that is held for long while it still is, because the beat of the loop itself waits, too.
"""

from __future__ import annotations

import asyncio
import math
import sys
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from types import FrameType
from typing import NamedTuple

from pollux.clock import Clock
from pollux.events import Events
from pollux.model import NodeLoad
from pollux.outcome.fault import is_own_code, place_words
from pollux.registry import Handler
from pollux.runtime.attempt import Attempt
from pollux.runtime.loop import Loop, Rest, bounded
from pollux.runtime.pool import Pool
from pollux.runtime.stats import Lateness

EVERY_S = 0.5
RECENT = 120  # so many of the latest are remembered one by one: a minute
LATE_MS = 250  # what rings later was held by something
ON_TIME_REST_MS = 400  # of the sampler: a loop that is held for a second is looked at more than once
LATE_REST_MS = 100
TELL_MS, TELL_AGAIN_MS = 2_000, 10_000  # a loop that is held so long is told of, and again
BEAT_MS_MAX = 5_000
SAMPLES_MAX = 1_000


class LoopHold(NamedTuple):
    """One time that the loop was held: how long, and by what as far as it was seen."""

    ms: int = 0
    by: str = ""


class LoopLag:
    """The timer.  It belongs to the event loop; `late_now_ms`, `worst` and `saw` may be called from any thread."""

    def __init__(self) -> None:
        self.late = Lateness()
        self.thread_id = 0  # of the loop, once it was started
        self.on_held: Callable[[LoopHold], None] | None = None
        self.is_said = False  # of the hold that lasts: it was said while it did
        self._recent = [LoopHold()] * RECENT
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
    def now(self) -> LoopHold:
        """What holds it."""
        return LoopHold(int(self.late_now_ms()), _most_seen(self._samples))

    @property
    def worst(self) -> LoopHold:
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
        hold = LoopHold(late_ms, _most_seen(samples))
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
        say: Callable[[LoopHold], None],
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


NAMED_MAX = 5  # handlers that are named
_LOOPS = ("asyncio.base_events", "asyncio.runners")  # below these frames nothing is run by the loop
_AWAIT, _INVOKE = Attempt._await.__code__, Handler.invoke.__code__  # noqa: SLF001  the frames of our own code


def holder_of(thread_id: int, running: Collection[Attempt], *, is_frozen: bool) -> str:
    """What the thread of the event loop executes, in words; nothing if it waits for events.

    `is_frozen`: all threads stood still.  Then a handler in another thread may have kept the interpreter.
    """
    frames = sys._current_frames()  # noqa: SLF001  the one way to see another thread
    stack = [] if thread_id not in frames else list(_of_loop(frames[thread_id]))
    attempt = next((_local(frame, "self") for frame in stack if frame.f_code is _AWAIT), None)
    place = _place(stack)
    if isinstance(attempt, Attempt):
        return f"{handler_words(attempt)}{_at(place)}"
    if place or not is_frozen:
        return place
    others = [words for attempt in running if (words := where(attempt))]
    return f"the whole process stood still; at work in threads: {', '.join(others)}" if others else ""


def load_of(worst: LoopHold, pool: Pool, running: Sequence[Attempt]) -> NodeLoad:
    """What holds a node up: its loop, handlers that do not stop, and who has the seats if all are taken."""
    stuck = [where(attempt) for attempt in running if attempt.is_stuck]
    seated = Counter(attempt.handler.name for attempt in running if pool.busy >= pool.seats)
    return NodeLoad(
        held_ms=worst.ms if worst.ms > LATE_MS else 0,
        held_by=worst.by if worst.ms > LATE_MS else "",
        stuck=len(stuck),
        stuck_at=tuple(dict.fromkeys(stuck))[:NAMED_MAX],
        seated=tuple(f"{name} ({many})" for name, many in seated.most_common(NAMED_MAX)),
    )


def where(attempt: Attempt) -> str:
    """The handler of an attempt and the line at which it is; only the handler if that cannot be seen."""
    if attempt.work is not None:
        stack = _suspended(attempt.work.get_coro())
    else:
        stack = next((found for found in map(_walk, _threads()) if _belongs(found, attempt)), [])
    return f"{handler_words(attempt)}{_at(_place(stack))}"


def handler_words(attempt: Attempt) -> str:
    name, job_id = attempt.handler.name, attempt.run.job_id
    return f"handler {name}" if name == job_id else f"handler {name} (job {job_id})"


def _threads() -> list[FrameType]:
    return list(sys._current_frames().values())  # noqa: SLF001  the one way to see another thread


def _belongs(stack: list[FrameType], attempt: Attempt) -> bool:
    return any(frame.f_code is _INVOKE and _local(frame, "ctx") is attempt.ctx for frame in stack)


def _suspended(awaited: object) -> list[FrameType]:
    """The frames of a coroutine that waits, innermost first."""
    found: list[FrameType] = []
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is not None:
            found.insert(0, frame)
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
    return found


def _walk(frame: FrameType | None) -> list[FrameType]:
    """The frames of a stack, innermost first."""
    found = []
    while frame is not None:
        found.append(frame)
        frame = frame.f_back
    return found


def _of_loop(innermost: FrameType) -> Iterator[FrameType]:
    """The frames of what the loop calls: those of whoever started the loop hold nothing."""
    for frame in _walk(innermost):
        if _module(frame) in _LOOPS:
            return
        yield frame


def _place(stack: list[FrameType]) -> str:
    """The innermost line of the user's own code, else of a library that it uses: "shop.py:31 in fetch"."""
    own = (frame for frame in stack if is_own_code(frame.f_code.co_filename, _package(frame)))
    used = (frame for frame in stack if _is_library(frame))
    frame = next(own, None) or next(used, None)
    return place_words(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name) if frame is not None else ""


def _is_library(frame: FrameType) -> bool:
    """Neither ours nor Python's?"""
    package = _package(frame)
    is_pythons = package in sys.stdlib_module_names or frame.f_code.co_filename.startswith("<frozen")
    return package != "pollux" and not is_pythons


def _package(frame: FrameType) -> str:
    return _module(frame).partition(".")[0]


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _local(frame: FrameType, name: str) -> object:
    return frame.f_locals.get(name)


def _at(place: str) -> str:
    return f", {place}" if place else ""
