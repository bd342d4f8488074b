"""Event loops in virtual time: time is a number that advances to the next timer when everything is idle.

    something is ready? ─ yes ─▶ run it; time does not move
            │ no
    threads at work, or sockets just busy? ─ yes ─▶ wait for them, for real; time does not move
            │ no
    a caller waits for quiet? ─ yes ─▶ wake it; time does not move
            │ no
    time advances to the next timer

So everything that waits by the loop (`asyncio.sleep`, `asyncio.timeout`, every loop of the engine) waits in virtual
time, in the order in which it would have happened, and costs no real time.  Time is kept in whole microseconds: a wait
for 30 ms ends exactly 30 ms later, on every machine.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import selectors
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from pollux.clock import SystemClock
from pollux.errors import InvalidInput, PolluxError

SECOND_US = 1_000_000
POLL_EVERY = 64  # rounds of a busy loop between two polls of its sockets
IO_QUIET_SECONDS = 0.05  # sockets count as busy until nothing has happened on them for so long
THREAD_SECONDS_MAX = 5.0  # a thread that works longer is not waited for: time goes on without it


class VirtualTime:
    """Control of the time of one event loop, from `install` to `restore`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, is_fresh: bool = False) -> None:
        """`is_fresh`: nothing was scheduled on the loop yet, so that time can begin at zero: the same on every run."""
        inner = getattr(loop, "_selector", None)
        if inner is None or not hasattr(inner, "select"):
            raise InvalidInput(
                f"time cannot be virtual on {type(loop).__module__}.{type(loop).__name__}",
                cure="use asyncio's own event loop in tests, or the form without async: `with story(app) as tale:`",
            )
        self.loop: Any = loop
        self.jumps = 0
        self.sleeps: dict[_TimedWait, None] = {}  # of threads that sleep by this clock
        self.limit_us: int | None = None  # advancing past it means that something waits in vain
        self.is_busy_elsewhere: Callable[[], bool] = _never  # whether threads or child processes do real work
        self._us = 0 if is_fresh else math.ceil(loop.time()) * SECOND_US
        self._quiet: asyncio.Future[None] | None = None
        self._turns = 0  # timers so far
        self._calls = 0  # calls of `run_in_executor` that are under way
        self._selector = _VirtualSelector(inner, self)
        self._run_in_executor, self._call_at = loop.run_in_executor, loop.call_at

    def install(self) -> None:
        """Take over the loop's time."""
        self.loop.time = self.time
        self.loop._selector = self._selector  # noqa: SLF001  the one seam that asyncio's loops have
        self.loop.run_in_executor = self._count_call
        self.loop.call_at = self._call_at_whole

    def restore(self) -> None:
        """Return to the machine's time, carried on from here: it never goes back."""
        offset = self.time() - time.monotonic()
        self.loop.time = lambda: time.monotonic() + offset
        self.loop._selector = self._selector.inner  # noqa: SLF001
        self.loop.run_in_executor, self.loop.call_at = self._run_in_executor, self._call_at

    @property
    def us(self) -> int:
        return self._us

    @property
    def sleeping(self) -> int:
        """Return how many threads sleep by this clock; one whose flag is set is about to wake."""
        return sum(not sleep.flag.is_set() for sleep in self.sleeps) if self.sleeps else 0

    def time(self) -> float:
        return self._us / SECOND_US

    async def quiet(self) -> None:
        """Return when there is nothing left to do at this instant."""
        self._quiet = self.loop.create_future()
        try:
            await self._quiet
        finally:
            self._quiet = None

    def notify_quiet(self) -> bool:
        """Wake those that wait for quiet, when all are idle; false if there are none."""
        if self._quiet is None or self._quiet.done():
            return False
        self._quiet.set_result(None)
        return True

    def pass_idle(self, seconds: float) -> None:
        """Let so much time pass, when everything is idle."""
        us = max(self._us + 1, round((self._us / SECOND_US + seconds) * SECOND_US))
        if self.limit_us is not None and us > self.limit_us:
            self.limit_us = None  # raised once; clean-up may wait
            raise PolluxError(
                "a coroutine waits in virtual time for something that will never come; "
                "let long times pass with `advance`"
            )
        self._us = us
        self.jumps += 1

    @property
    def must_wait(self) -> bool:
        """Whether real work goes on that time must wait for."""
        return self._calls > 0 or self.is_busy_elsewhere()

    def _count_call(self, executor: Any, call: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._run_in_executor(executor, call, *args)
        self._calls += 1
        future.add_done_callback(self._called)
        return future

    def _call_at_whole(self, when: float, call: Callable[..., Any], *args: Any, context: Any = None) -> Any:
        """Round timers to whole microseconds: those due at the same time are equal to the last bit, and run by turn.

        A timer for the future is never rounded to the present: a callback that sets it again until its moment has come
        would otherwise run for ever at one instant.
        """
        self._turns += 1
        us = round(when * SECOND_US)
        if us <= self._us and when > self.time():
            us = self._us + 1
        timer = _OrderedTimer(us / SECOND_US, call, args, self.loop, context)
        timer.seq = self._turns
        heapq.heappush(self.loop._scheduled, timer)  # noqa: SLF001  as asyncio's own `call_at` does
        timer._scheduled = True  # type: ignore[attr-defined]  # noqa: SLF001
        return timer

    def _called(self, _: asyncio.Future[Any]) -> None:
        self._calls -= 1


class _OrderedTimer(asyncio.TimerHandle):
    """A timer with a sequence number: asyncio's heap has no order among timers of the same time."""

    __slots__ = ("seq",)
    seq: int

    def __lt__(self, other: object) -> bool:
        assert isinstance(other, asyncio.TimerHandle)
        return (self.when(), self.seq) < (other.when(), getattr(other, "seq", 0))


class VirtualClock(SystemClock):
    """The clock on a virtual loop.  The wall clock can be set; monotonic time cannot."""

    def __init__(self, time: VirtualTime, now_ms: int) -> None:
        self._time = time
        self._offset_us = now_ms * 1_000 - time.us

    def now_ms(self) -> int:
        return (self._time.us + self._offset_us) // 1_000

    def mono_ms(self) -> float:
        return self._time.us / 1_000

    def jump(self, ms: int) -> None:
        """Move the wall clock alone, forwards or backwards, as a bad time server does."""
        self._offset_us += ms * 1_000

    def wait_in_thread(self, flag: threading.Event, seconds: float) -> None:
        """Sleep in a thread by this clock: time passes meanwhile, and wakes it."""
        sleep = _TimedWait(self._time, flag)
        self._time.loop.call_soon_threadsafe(sleep.begin, seconds)
        flag.wait()
        if sleep.is_over:
            flag.clear()  # set by us; a request to stop is also stored elsewhere
        self._time.loop.call_soon_threadsafe(sleep.end)


class _TimedWait:
    """The sleep of one thread; it belongs to the loop."""

    def __init__(self, time: VirtualTime, flag: threading.Event) -> None:
        self._time, self.flag = time, flag
        self._alarm: asyncio.TimerHandle | None = None
        self.is_over = False

    def begin(self, seconds: float) -> None:
        self._time.sleeps[self] = None
        self._alarm = self._time.loop.call_later(seconds, self._expire)

    def _expire(self) -> None:
        self.is_over = True
        self.flag.set()
        self.end()

    def end(self) -> None:
        """Forget the sleep: the thread is awake."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
            del self._time.sleeps[self]


class _VirtualSelector(selectors.BaseSelector):
    """A selector that lets virtual time pass where the loop would sleep."""

    def __init__(self, inner: Any, time: VirtualTime) -> None:
        self.inner, self._time = inner, time
        self._rounds = 0
        self._active_at: float | None = None  # when something last happened on the sockets, by the machine's clock
        self._waits_since: float | None = None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout <= 0:
            self._rounds += 1
            return self._look(0) if self._rounds % POLL_EVERY == 0 else []
        if found := self._look(0):
            return found
        if (wait_s := self._real_wait_s()) > 0:
            return self._look(wait_s)
        if self._time.notify_quiet():
            return []
        if timeout is None:
            return self._look(None)  # no timer at all: only the outside can go on
        self._time.pass_idle(timeout)
        return []

    def _look(self, timeout: float | None) -> list[tuple[selectors.SelectorKey, int]]:
        found: list[tuple[selectors.SelectorKey, int]] = self.inner.select(timeout)
        if found:
            self._waits_since = None
            if self._active_at is not None:
                self._active_at = time.monotonic()
        return found

    def _real_wait_s(self) -> float:
        """Return for how long to wait for real events before time passes."""
        if self._active_at is None and not self._time.must_wait:
            self._waits_since = None
            return 0.0
        now, left = time.monotonic(), 0.0
        if self._time.must_wait:
            self._waits_since = self._waits_since or now
            left = self._waits_since + THREAD_SECONDS_MAX - now
        if self._active_at is not None:
            left = max(left, self._active_at + IO_QUIET_SECONDS - now)
            if left <= 0:
                self._active_at = None  # quiet, until a socket is opened, closed or used
        return min(left, IO_QUIET_SECONDS)

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        self._active_at = time.monotonic()
        key: selectors.SelectorKey = self.inner.register(fileobj, events, data)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        key: selectors.SelectorKey = self.inner.unregister(fileobj)
        return key

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        self._active_at = time.monotonic()
        key: selectors.SelectorKey = self.inner.modify(fileobj, events, data)
        return key

    def close(self) -> None:
        self.inner.close()

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        found: Mapping[Any, selectors.SelectorKey] = self.inner.get_map()
        return found

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        key: selectors.SelectorKey = self.inner.get_key(fileobj)
        return key


def _never() -> bool:
    return False
