"""Event loop of a world: virtual time, and processes that freeze and die.

    a step is ready? ─ yes ─▶ run it, if its process is alive and not frozen; time does not move
          │ no
    time advances to the next timer

There is no selector, no thread and no real clock below it.  Steps run in the order in which they became ready, timers
of the same microsecond in the order in which they were set: the same program gives the same order on every run.

Each task, callback and timer belongs to the process in whose context it was made.  The steps of a frozen process wait,
in order, until it goes on (as after SIGSTOP and SIGCONT); those of a dead one never run, not even its clean-up (as
after SIGKILL).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from enum import Enum
from heapq import heapify, heappop, heappush
from typing import Any, NoReturn

from pollux.clock import SystemClock
from pollux.errors import PolluxError

SECOND_US = 1_000_000
STEPS_AT_ONCE_MAX = 100_000  # steps without time moving; beyond that a world runs away
CANCELLED_MAX = 1_000  # cancelled timers that stay in the heap, if they are not most of it


class RunawayWorld(PolluxError):
    """Endless steps without virtual time moving, or nothing left that could happen."""


class ProcessState(Enum):
    RUNNING = "running"
    FROZEN = "frozen"
    DEAD = "dead"


class VirtualProcess:
    """An operating system process of the world: the unit that freezes and dies."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.state = ProcessState.RUNNING
        self.dies_in: int | None = None  # steps until it dies
        self.on_death: Callable[[], None] | None = None
        self.context: Context = copy_context()
        self.context.run(_PROCESS.set, self)
        self._parked: list[asyncio.Handle] = []

    @property
    def is_running(self) -> bool:
        return self.state is ProcessState.RUNNING

    def freeze(self) -> None:
        if self.state is ProcessState.RUNNING:
            self.state = ProcessState.FROZEN

    def thaw(self, loop: WorldLoop) -> None:
        """Go on where it was frozen."""
        if self.state is ProcessState.FROZEN:
            self.state = ProcessState.RUNNING
            parked, self._parked = self._parked, []
            loop.make_ready(parked)

    def die(self) -> None:
        if self.state is not ProcessState.DEAD:
            self.state, self.dies_in = ProcessState.DEAD, None
            self._parked.clear()
            if self.on_death is not None:
                self.on_death()

    def may_step(self, step: asyncio.Handle) -> bool:
        """Whether a step runs now; otherwise it is parked, or dropped."""
        if self.state is ProcessState.RUNNING:
            if self.dies_in is None:
                return True
            self.dies_in -= 1
            if self.dies_in >= 0:
                return True
            self.die()
        elif self.state is ProcessState.FROZEN:
            self._parked.append(step)
        return False


_PROCESS: ContextVar[VirtualProcess | None] = ContextVar("pollux_virtual_process", default=None)


def current_process() -> VirtualProcess | None:
    """The process whose step runs now; None: the world itself."""
    return _PROCESS.get()


class _Step(asyncio.Handle):
    __slots__ = ("process",)
    process: VirtualProcess | None

    def _run(self) -> None:
        process = self.process
        if process is None or process.may_step(self):
            super()._run()


class _Timer(asyncio.TimerHandle):
    __slots__ = ("process",)
    process: VirtualProcess | None

    def _run(self) -> None:
        process = self.process
        if process is None or process.may_step(self):
            super()._run()


class WorldLoop(asyncio.BaseEventLoop):
    """See the module's text.  `us` is the time since the world began, in microseconds."""

    def __init__(self) -> None:
        super().__init__()
        self.us = 0
        self.steps = 0
        self.errors: list[str] = []  # of tasks that nothing awaits
        self._timers: list[tuple[int, int, asyncio.TimerHandle]] = []
        self._turns = self._cancelled_timers = self._steps_now = 0
        self.set_exception_handler(_keep_error)

    def time(self) -> float:
        return self.us / SECOND_US

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        context = context or copy_context()
        step = _Step(callback, args, self, context)
        step.process = context.get(_PROCESS)
        self._ready.append(step)  # type: ignore[attr-defined]
        return step

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        us = round(when * SECOND_US)
        if us <= self.us and when > self.time():
            us = self.us + 1  # a timer for the future never fires now: a callback that sets it again would never end
        return self.call_at_us(us, callback, *args, context=context)

    def call_at_us(
        self, us: int, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        context = context or copy_context()
        timer = _Timer(us / SECOND_US, callback, args, self, context)
        timer.process = context.get(_PROCESS)
        timer._scheduled = True  # type: ignore[attr-defined]
        self._turns += 1
        heappush(self._timers, (max(us, self.us), self._turns, timer))
        return timer

    def make_ready(self, steps: list[asyncio.Handle]) -> None:
        self._ready.extend(steps)  # type: ignore[attr-defined]

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> NoReturn:  # type: ignore[override]
        name = getattr(func, "__qualname__", repr(func))
        raise PolluxError(
            f"{name} asks for a thread, and a world has none; write it as a coroutine, or wait by asyncio"
        )

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        self._cancelled_timers += 1
        if self._cancelled_timers > max(CANCELLED_MAX, len(self._timers) // 2):
            self._timers = [each for each in self._timers if not each[2].cancelled()]
            heapify(self._timers)
            self._cancelled_timers = 0

    def _run_once(self) -> None:
        ready: Any = self._ready  # type: ignore[attr-defined]
        if not ready:
            self._advance()
        self._steps_now += len(ready)
        if self._steps_now > STEPS_AT_ONCE_MAX:
            raise RunawayWorld(f"{self._steps_now:,} steps at one instant: {_names(ready)}")
        for _ in range(len(ready)):
            step = ready.popleft()
            if not step._cancelled:
                self.steps += 1
                step._run()

    def _advance(self) -> None:
        """Let time pass until the next timer, and make ready all that are due then."""
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heappop(timers)
            self._cancelled_timers -= 1
        if not timers:
            raise RunawayWorld("nothing is left that could happen: every task waits for something that never comes")
        self.us, self._steps_now = timers[0][0], 0
        ready: Any = self._ready  # type: ignore[attr-defined]
        while timers and timers[0][0] <= self.us:
            timer = heappop(timers)[2]
            timer._scheduled = False  # type: ignore[attr-defined]
            if timer.cancelled():
                self._cancelled_timers -= 1
            else:
                ready.append(timer)

    def close(self) -> None:
        self._timers.clear()
        super().close()

    def _process_events(self, event_list: Any) -> None:
        """There is no selector."""

    def _write_to_self(self) -> None:
        """There is no thread that could sleep."""


def _keep_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Errors of tasks that nothing awaits.  Tasks of dead processes are never finished, which is no error."""
    assert isinstance(loop, WorldLoop)
    error = context.get("exception")
    if error is not None:
        loop.errors.append(f"{context.get('message', '')}: {type(error).__name__}: {error}")


def _names(ready: Any) -> str:
    """The callbacks at hand, each once."""
    found = dict.fromkeys(_name(step) for step in list(ready)[:50])
    return ", ".join(list(found)[:5])


def _name(step: Any) -> str:
    owner = getattr(step._callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return owner.get_name()
    return str(getattr(step._callback, "__qualname__", type(step._callback).__name__))


class ProcessClock(SystemClock):
    """The clock of one machine: its wall clock can be wrong, can drift and can be set; monotonic time cannot."""

    def __init__(self, loop: WorldLoop, now_ms: int, *, skew_ms: int = 0, drift_ppm: int = 0) -> None:
        self._loop, self._from_ms = loop, now_ms
        self.skew_ms, self.drift_ppm = skew_ms, drift_ppm

    def now_ms(self) -> int:
        us = self._loop.us
        return self._from_ms + self.skew_ms + (us + us * self.drift_ppm // SECOND_US) // 1_000

    def mono_ms(self) -> float:
        return self._loop.us / 1_000

    def jump(self, ms: int) -> None:
        """Move the wall clock alone, as a bad time server does."""
        self.skew_ms += ms

    def set_right(self) -> None:
        """Set it to the true time, as a good time server does at last."""
        self.skew_ms = self.drift_ppm = 0
