"""Event loop lag: how late a timer on the loop fires, and which handler blocked the loop when it was late.

A blocked loop (a handler that computes, a call that blocks) makes everything else in this process late: claims, plans,
API answers.  The timer fires twice a second.  The sampler runs on another loop, in the renewer's thread: it walks the
stack of the loop's thread only while the timer is late.  It logs a long block, and writes the beat, while the block
lasts, because the beat of the blocked loop waits, too.  Nothing is recorded while handlers run: the frames of
`Attempt._await` and `Handler.invoke` show which run a stack belongs to.
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
from pollux.runtime.attempt import Attempt, Pool
from pollux.runtime.loop import Loop, Rest, bounded
from pollux.runtime.stats import Lateness

EVERY_S = 0.5
RECENT = 120  # the latest lags that are kept one by one: a minute
LATE_MS = 250  # a later timer means that something blocked the loop
ON_TIME_REST_MS = 400  # of the sampler: a block of a second is sampled more than once
LATE_REST_MS = 100
REPORT_MS, REPORT_AGAIN_MS = 2_000, 10_000  # a block of this length is reported, and again at this interval
BEAT_MS_MAX = 5_000
SAMPLES_MAX = 1_000


class LoopBlock(NamedTuple):
    """One block of the loop: its length, and the place most often sampled."""

    ms: int = 0
    by: str = ""


class LoopLag:
    """The timer.  Owned by the event loop; `late_now_ms`, `worst` and `saw` may be called from any thread."""

    def __init__(self) -> None:
        self.late = Lateness()
        self.thread_id = 0  # of the loop, once it was started
        self.on_blocked: Callable[[LoopBlock], None] | None = None
        self.is_reported = False  # the current block has been reported
        self._recent = [LoopBlock()] * RECENT
        self._samples: list[str] = []  # places sampled since the loop was last on time
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
    def now(self) -> LoopBlock:
        """The current block."""
        return LoopBlock(int(self.late_now_ms()), _most_seen(self._samples))

    @property
    def worst(self) -> LoopBlock:
        """The longest of the latest blocks, the current one included."""
        return max(*self._recent, self.now, key=lambda block: block.ms)

    def late_now_ms(self) -> float:
        """Return how late the timer is now."""
        return max(0.0, time.monotonic() - self._due) * 1_000

    def saw(self, by: str) -> None:
        """Add a sample, taken while the timer was late."""
        if by and len(self._samples) < SAMPLES_MAX:
            self._samples.append(by)

    def _expect(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due = time.monotonic() + EVERY_S
        self._timer = loop.call_later(EVERY_S, self._fire, loop)

    def _fire(self, loop: asyncio.AbstractEventLoop) -> None:
        late_ms = int(self.late_now_ms())
        samples, self._samples = self._samples, []
        block = LoopBlock(late_ms, _most_seen(samples))
        self._recent[self.late.count % RECENT] = block
        self.late.add(late_ms)
        self._expect(loop)
        if late_ms > LATE_MS and self.on_blocked is not None:
            self.on_blocked(block)
        self.is_reported = False


def _most_seen(samples: list[str]) -> str:
    return Counter(samples).most_common(1)[0][0] if samples else ""


class LoopSampler(Loop):
    """Sampler of the blocked event loop; it runs on another loop, in another thread."""

    def __init__(
        self,
        lag: LoopLag,
        look: Callable[[bool], str],
        beat: Callable[[], Awaitable[None]],
        report: Callable[[LoopBlock], None],
        *,
        clock: Clock,
        events: Events,
    ) -> None:
        super().__init__("sampler", clock=clock, events=events)
        self.lag, self.look, self.beat, self.report = lag, look, beat, report
        self.looks = 0
        self._rest_ms = float(ON_TIME_REST_MS)
        self._rested_at = time.monotonic()
        self._block_reported_at: float | None = None

    async def turn(self) -> Rest:
        now, late_ms = time.monotonic(), self.lag.late_now_ms()
        is_frozen = (now - self._rested_at) * 1_000 > self._rest_ms + LATE_MS  # this thread was late itself
        if late_ms > LATE_MS:
            self.looks += 1
            self.lag.saw(self.look(is_frozen))
            await self._report(now, late_ms)
        else:
            self._block_reported_at = None
        self._rest_ms = LATE_REST_MS if late_ms > LATE_MS else ON_TIME_REST_MS
        self._rested_at = time.monotonic()
        return Rest(self._rest_ms)

    async def _report(self, now: float, late_ms: float) -> None:
        is_recent = self._block_reported_at is not None and (now - self._block_reported_at) * 1_000 < REPORT_AGAIN_MS
        if late_ms > REPORT_MS and not is_recent:
            self._block_reported_at = now
            if not self.lag.is_reported:
                self.lag.is_reported = True
                self.report(self.lag.now)
            await bounded(_awaited(self.beat()), BEAT_MS_MAX, what="beat")


async def _awaited(call: Awaitable[None]) -> None:
    await call


NAMED_MAX = 5  # handlers that are named
_LOOPS = ("asyncio.base_events", "asyncio.runners")  # the loop calls nothing below these frames
_AWAIT, _INVOKE = Attempt._await.__code__, Handler.invoke.__code__  # noqa: SLF001  the frames of our own code


def blocker_of(thread_id: int, running: Collection[Attempt], *, is_frozen: bool) -> str:
    """Describe what the thread of the event loop executes; empty if it waits for events.

    `is_frozen`: all threads were late.  Then a handler in another thread may have blocked the GIL.
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
    return f"the whole process was frozen; running in threads: {', '.join(others)}" if others else ""


def load_of(worst: LoopBlock, pool: Pool, running: Sequence[Attempt]) -> NodeLoad:
    """Return what slows a node down: its loop, handlers that do not stop, and the handlers that fill all seats."""
    stuck = [where(attempt) for attempt in running if attempt.is_stuck]
    seated = Counter(attempt.handler.name for attempt in running if pool.busy >= pool.seats)
    return NodeLoad(
        blocked_ms=worst.ms if worst.ms > LATE_MS else 0,
        blocked_by=worst.by if worst.ms > LATE_MS else "",
        stuck=len(stuck),
        stuck_at=tuple(dict.fromkeys(stuck))[:NAMED_MAX],
        seated=tuple(f"{name} ({many})" for name, many in seated.most_common(NAMED_MAX)),
    )


def where(attempt: Attempt) -> str:
    """Describe the handler of an attempt and its current line; only the handler if the line cannot be found."""
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
    """Return the frames of a suspended coroutine, innermost first."""
    found: list[FrameType] = []
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is not None:
            found.insert(0, frame)
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
    return found


def _walk(frame: FrameType | None) -> list[FrameType]:
    """Return the frames of a stack, innermost first."""
    found = []
    while frame is not None:
        found.append(frame)
        frame = frame.f_back
    return found


def _of_loop(innermost: FrameType) -> Iterator[FrameType]:
    """Yield the frames that the loop calls, without those that started the loop."""
    for frame in _walk(innermost):
        if _module(frame) in _LOOPS:
            return
        yield frame


def _place(stack: list[FrameType]) -> str:
    """Return the innermost line of the user's own code, else of a library that it uses: "shop.py:31 in fetch"."""
    own = (frame for frame in stack if is_own_code(frame.f_code.co_filename, _package(frame)))
    used = (frame for frame in stack if _is_library(frame))
    frame = next(own, None) or next(used, None)
    return place_words(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name) if frame is not None else ""


def _is_library(frame: FrameType) -> bool:
    """Whether the frame is neither Pollux's nor Python's."""
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
