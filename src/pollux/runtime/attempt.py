"""One attempt of a run, under a lease and a deadline: bind, start, call, judge, settle.

    begin ─▶ bind the params ─▶ call ─▶ ended ─▶ judge ─▶ settler            (the seat is free when the handler ends)
                   │              │
                   │              ├─ timeout ──▶ asked to stop ─▶ still running after 2 s ─▶ settled as a timeout
                   │              ├─ cancel ───▶ asked to stop ─▶ still running after 10 s ▶ settled as cancelled
                   │              ├─ drain ────▶ asked to stop ─▶ still running after 2 s ─▶ handed back
                   └─ invalid     └─ lease lost ▶ asked to stop ─▶ never settled: another node may run it

A handler that outlives its settlement keeps its seat until it ends.

A job may ask for a child process (`isolation.py`), and a run that lost its lease twice is tried in one.  A child that
is asked to stop and does not is killed, so it outlives the settlement of its run by a moment at most.

A handler that blocks cannot be interrupted: its timeout settles the run at once and sets `ctx.cancelled`.  After a
request to stop, a handler that returns None has stopped; one that returns a value has finished, except for a
cancelled plain function: its run is cancelled, whatever it returns.

A seat (`Pool`) is taken when a run begins and free when its handler has ended, even if the run was settled before.  One
scan of all running attempts (`TimeoutWatch`) finds what is overdue, instead of a timer for each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextvars import Context as Variables
from enum import Enum
from linecache import getline
from random import Random
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from pollux.clock import Clock, StoreClock
from pollux.errors import Postponed
from pollux.events import Events, HandlerStuck, LeaseWasLost, RunStarted
from pollux.model import ERROR_CHARS_MAX, TIMEOUT_MS, Back, Cancelled, Dead, Fault, Job, Outcome, Run, Verdict
from pollux.outcome import (
    CRASHES_MAX,
    classify,
    decide,
    describe,
    one_line,
    place_of,
    retry_after_s,
    trace_lines,
    traceback_of,
)
from pollux.registry import Context, Handler, Registry, outcome_of
from pollux.runtime.handler_threads import HandlerThreads, guarded
from pollux.runtime.isolation import (
    CHILD_MEMORY,
    Crashed,
    IdleChildren,
    RelayedError,
    call_in_child,
    check_place,
    is_suspect,
    isolates,
)
from pollux.runtime.loop import Loop, Rest
from pollux.runtime.options import check_seats
from pollux.runtime.stats import Lateness
from pollux.secrets import Secrets, hide
from pollux.store.contract import Settlement

if TYPE_CHECKING:
    from pollux.runtime.settler import Settler

STOP_MS = 2_000  # how long a handler may take to stop after a timeout
CANCEL_MS = 10_000  # how long it may take to stop after a cancel request
KILL_SECONDS = 1.0  # the part of these that is reserved for killing a child
POSTPONED_MS = 100  # least delay of a run that could not begin: no tight loop of claims
NEVER = float("inf")


class Seat(Struct, eq=False, gc=False):  # gc: a value holds no cycle, and there are many
    number: int


class Pool:
    """Bounded seats: `try_seat` refuses when none is free, `leave` frees one and calls `on_free`."""

    def __init__(self, seats: int) -> None:
        self._seats = check_seats(seats)
        self._taken: dict[int, Seat] = {}
        self._numbers: list[int] = list(range(seats, 0, -1))  # a heap is not needed: any free number will do
        self._highest = seats
        self.is_draining = False
        self.on_free: Callable[[], None] | None = None
        self.on_empty: Callable[[], None] | None = None

    @property
    def seats(self) -> int:
        return self._seats

    @property
    def busy(self) -> int:
        return len(self._taken)

    @property
    def free(self) -> int:
        """How many runs may be claimed now."""
        return 0 if self.is_draining else max(0, self._seats - len(self._taken))

    def try_seat(self) -> Seat | None:
        if self.is_draining or len(self._taken) >= self._seats:
            return None
        number = self._numbers.pop() if self._numbers else self._one_more()
        seat = self._taken[number] = Seat(number)
        return seat

    def leave(self, seat: Seat) -> None:
        """Free the seat of an ended handler.  Calling twice is harmless."""
        if self._taken.get(seat.number) is not seat:
            return
        del self._taken[seat.number]
        self._numbers.append(seat.number)
        if self.on_free is not None:
            self.on_free()
        if not self._taken and self.on_empty is not None:
            self.on_empty()

    def resize(self, seats: int) -> None:
        """Change the number of seats: new ones are free at once, surplus ones go when their handlers end."""
        self._seats = check_seats(seats)
        if self.on_free is not None:
            self.on_free()

    def drain(self) -> None:
        """Refuse new runs; seated ones go on."""
        self.is_draining = True

    def _one_more(self) -> int:
        self._highest += 1
        return self._highest


class StopReason(Enum):
    """Why a handler was asked to stop."""

    TIMEOUT = "timeout"
    CANCEL = "cancel"
    DRAIN = "drain"
    LOST = "lost"


class Tracing(Protocol):
    """The tracing of runs, as far as attempts need it."""

    def traceparent(self, run_id: str, fence: int) -> str:
        """Return the attempt as a W3C `traceparent`, for calls that the handler makes."""
        ...

    def enter(self, traceparent: str) -> None:
        """Make it the current span in this context, for libraries that trace by themselves."""
        ...


class WorkerState:
    """State shared by all attempts of a node."""

    def __init__(
        self,
        registry: Registry,
        pool: Pool,
        *,
        clock: Clock,
        events: Events,
        dice: Random,
        secrets: Secrets | None = None,
    ) -> None:
        self.registry, self.pool = registry, pool
        self.secrets = secrets or Secrets()
        self.clock, self.events, self.dice = clock, events, dice
        self.time = StoreClock(clock, events)
        self.threads = HandlerThreads()
        self.child_memory, self.crashes_max, self.isolates = CHILD_MEMORY, CRASHES_MAX, True
        self.tracing: Tracing | None = None  # None: runs have no traces
        self.suspects: set[Attempt] = set()  # running in children now, because workers died with them
        self.idle_children = IdleChildren()
        self.settler: Settler
        self.timeouts: TimeoutWatch
        self.leases: dict[str, Attempt] = {}  # by run: claimed, the settle not yet answered
        self.running: set[Attempt] = set()  # handler code has not ended
        self.late = Lateness()  # from due (or visible) to the handler's start
        self.stuck = 0  # handlers that outlive their settlement, now
        self.stuck_ever = 0
        self.on_stuck: Callable[[], None] | None = None  # called when `stuck` changes
        self.leases_lost = 0


class Attempt:
    """One attempt of a run, owned by the event loop; the Renewer owns `trust_until`, `renew_at` and `sent_progress`."""

    __slots__ = (
        "check_at",
        "ctx",
        "handler",
        "is_begun",
        "is_isolated",
        "is_settled",
        "is_stuck",
        "job",
        "reason",
        "renew_at",
        "run",
        "seat",
        "sent_progress",
        "started_ms",
        "stop_reason",
        "timeout_ms",
        "token",
        "trust_until",
        "work",
        "worker",
    )

    def __init__(
        self, worker: WorkerState, run: Run, job: Job, trust_until: float = NEVER, renew_at: float = NEVER
    ) -> None:
        self.worker, self.run, self.job, self.token = worker, run, job, run.token
        self.trust_until, self.renew_at = trust_until, renew_at
        self.stop_reason: StopReason | None = None
        self.reason = ""
        self.sent_progress = ""  # the latest progress that the store has
        self.is_begun = self.is_settled = self.is_stuck = self.is_isolated = False
        self.check_at = NEVER
        self.started_ms = 0
        self.ctx: Context | None = None
        self.work: asyncio.Task[None] | None = None
        self.seat: Seat | None = None
        before = worker.leases.get(run.id)
        if before is not None:
            before.lose("this node claimed the run a second time")
        worker.leases[run.id] = self

    def drop_lease(self) -> bool:
        """Drop the lease; false if it was dropped before."""
        if self.worker.leases.get(self.run.id) is not self:
            return False
        del self.worker.leases[self.run.id]
        return True

    @property
    def new_progress(self) -> str:
        """Progress that the store does not have yet; callable from any thread."""
        latest = "" if self.ctx is None else self.ctx.last_progress
        return latest if latest != self.sent_progress else ""

    def begin(self, handler: Handler, seat: Seat, now_ms: int, mono_ms: float) -> None:
        """Bind the params and start the handler; in every case the run is settled and the seat freed in the end.

        `now_ms` is the same for all runs of a claim: they begin together.
        """
        worker, run, job = self.worker, self.run, self.job
        self.handler, self.seat = handler, seat
        self.timeout_ms = timeout_of(job, handler)
        self.started_ms = now_ms
        late_ms = now_ms - max(run.due_ms, run.visible_ms)
        worker.late.add(late_ms)
        if worker.events.wants(RunStarted):
            delivery = run.id, run.job_id, run.fence
            worker.events.emit(RunStarted(*delivery, max(0, late_ms), run.attempt + 1, now_ms - late_ms, now_ms))
        worker.running.add(self)
        self.is_isolated = worker.isolates and isolates(handler, job, run)
        if self.is_isolated and is_suspect(handler, job, run):
            worker.suspects.add(self)
        try:
            if self.is_isolated:
                check_place(handler, is_whole=True)
            params = worker.secrets.params_of(job)
            kwargs = handler.bind({**params, **run.payload} if run.payload else params)
            deadline_ms, store_now = now_ms + self.timeout_ms, worker.time.now_ms
            self.ctx = Context(run, job, handler, worker.clock, deadline_ms, worker.registry, now_ms=store_now)
            if worker.tracing is not None:
                self.ctx.traceparent = worker.tracing.traceparent(run.id, run.fence)
        except Exception as error:  # noqa: BLE001  params come from outside
            self._ended(None, error, fault=Fault.PERMANENT)
            return
        self.check_at = mono_ms + self.timeout_ms
        worker.timeouts.expect(min(self.check_at, self.trust_until))
        self._call(handler, self.ctx, kwargs)

    def _call(self, handler: Handler, ctx: Context, kwargs: Mapping[str, Any]) -> None:
        if handler.is_async or self.is_isolated:
            self.work = asyncio.get_running_loop().create_task(self._await(handler, ctx, kwargs))
        else:
            try:
                self.worker.threads.submit(self._traced(ctx, lambda: handler.invoke(ctx, kwargs)), self._ended)
            except Exception as error:  # noqa: BLE001  no thread could be started: this attempt has failed, its seat is free
                self._ended(None, error)

    async def _await(self, handler: Handler, ctx: Context, kwargs: Mapping[str, Any]) -> None:
        self.is_begun = True
        if self.worker.tracing is not None:
            self.worker.tracing.enter(ctx.traceparent)
        try:
            call = self._in_child(handler, ctx, kwargs) if self.is_isolated else guarded(handler.invoke(ctx, kwargs))
            value = await call
        except asyncio.CancelledError as error:
            self._ended(None, error)
            raise
        except BaseException as error:  # noqa: BLE001  `sys.exit()` in a handler ends the attempt, not the node
            self._ended(None, error)
        else:
            self._ended(value, None)

    def _traced(self, ctx: Context, call: Callable[[], Any]) -> Callable[[], Any]:
        """Wrap the call for a thread so that it runs in the attempt's span, in a context of its own."""
        tracing = self.worker.tracing
        if tracing is None:
            return call

        def entered() -> Any:
            tracing.enter(ctx.traceparent)
            return call()

        return lambda: Variables().run(entered)

    async def _in_child(self, handler: Handler, ctx: Context, kwargs: Mapping[str, Any]) -> Any:
        def stop_seconds() -> float:
            return (CANCEL_MS if self.stop_reason is StopReason.CANCEL else STOP_MS) / 1000 - KILL_SECONDS

        idle = self.worker.idle_children if self in self.worker.suspects else None
        memory = self.worker.child_memory
        return await call_in_child(
            handler, ctx, kwargs, memory=memory, stop_seconds=stop_seconds, permit=self._permit_seconds, idle=idle
        )

    def _permit_seconds(self) -> float | None:
        """Return for how many seconds a child may begin the handler; None: not (asked to stop, lease not trusted)."""
        left_ms = self.trust_until - self.worker.clock.mono_ms()
        if left_ms <= 0:
            self.lose("it could not be renewed before its handler began")
        return None if self.stop_reason is not None else left_ms / 1000

    def _ended(self, value: Any, error: BaseException | None, *, fault: Fault | None = None) -> None:
        """Settle the run if `give_up` has not, and free the seat; called when handler code has ended."""
        worker = self.worker
        worker.running.discard(self)
        worker.suspects.discard(self)
        if self.is_stuck:
            worker.stuck -= 1
            self.is_stuck = False
            if worker.on_stuck is not None:
                worker.on_stuck()
        if not self.is_settled:
            self.is_settled = True
            worker.settler.put(self, self._judged(value, error, fault))
        if self.seat is not None:
            worker.pool.leave(self.seat)

    def _judged(self, value: Any, error: BaseException | None, fault: Fault | None) -> Settlement:
        try:
            return self._judge(value, error, fault)
        except Exception as broken:  # noqa: BLE001  a run that cannot be judged must not stay leased for ever
            reason = f"its end could not be judged: {describe(broken, hide)}"
            outcome = Outcome(self.started_ms, self.worker.time.now_ms(), Fault.PERMANENT, reason)
            return Settlement(self.run.id, self.token, Dead(reason), outcome)

    def _judge(self, value: Any, error: BaseException | None, fault: Fault | None) -> Settlement:
        if self.stop_reason is not None and self._has_stopped(value, error):
            return self._stopped(self.stop_reason)
        ended_ms = self.worker.time.now_ms()
        if isinstance(error, Postponed):
            again_ms = ended_ms + max(POSTPONED_MS, int(error.after_s * 1000))
            return Settlement(self.run.id, self.token, Back(again_ms), progress=one_line(hide(error.reason)))
        if error is None:
            try:
                outcome = outcome_of(value, job=self.job, started_ms=self.started_ms, ended_ms=ended_ms)
            except Exception as unfit:  # noqa: BLE001  a result is the handler's own: anything may be in it
                error, fault = unfit, Fault.PERMANENT
        if error is not None:
            outcome = self._failure(error, fault or _fault_of(error), ended_ms)
        return self._decided(outcome)

    def _has_stopped(self, value: Any, error: BaseException | None) -> bool:
        """Whether it ended because it was asked to.  After a timeout an error of its own is more precise than ours.

        A plain function cannot be interrupted, so after a cancel request it stops by returning, whatever it returns.
        An async one that catches its cancellation and returns a value has finished.
        """
        if self.stop_reason is StopReason.CANCEL and not self.handler.is_async:
            return True
        if value is not None:
            return False
        return self.stop_reason is not StopReason.TIMEOUT or error is None or isinstance(error, asyncio.CancelledError)

    def _decided(self, outcome: Outcome) -> Settlement:
        worker, run = self.worker, self.run
        verdict = decide(
            outcome, run, self.job, now_ms=outcome.ended_ms, roll=worker.dice.random(), crashes_max=worker.crashes_max
        )
        if outcome.fault is None and self.ctx is not None and self.ctx.follow_ups:
            return Settlement(run.id, self.token, verdict, outcome, tuple(self.ctx.follow_ups))
        return Settlement(run.id, self.token, verdict, outcome)

    def _failure(self, error: BaseException, fault: Fault, ended_ms: int) -> Outcome:
        error_text, place, traceback = _error_texts(error, self.handler.package)
        if isinstance(error, Crashed) and self.run.crashes:
            error_text += f", {self.run.crashes + 1} times"
        if place:
            error_text = f"{error_text[: ERROR_CHARS_MAX - len(place) - 3]} ({place})"
        return Outcome(
            started_ms=self.started_ms,
            ended_ms=ended_ms,
            fault=fault,
            error=error_text,
            retry_after_ms=None if (seconds := retry_after_s(error)) is None else int(seconds * 1000),
            crashed=isinstance(error, Crashed),
            traceback=traceback,
        )

    def _stopped(self, why: StopReason) -> Settlement:
        """Return the settlement of a run whose handler stopped on request, or did not stop in time."""
        match why:
            case StopReason.TIMEOUT:
                late = TimeoutError(self.reason)
                return self._decided(self._failure(late, Fault.TRANSIENT, self.worker.time.now_ms()))
            case StopReason.CANCEL:
                ran = Outcome(self.started_ms, self.worker.time.now_ms()) if self.started_ms else None
                return Settlement(self.run.id, self.token, Cancelled(self.reason), ran)
            case StopReason.DRAIN | StopReason.LOST:
                return Settlement(self.run.id, self.token, Back())

    # requests to stop

    def hand_back(self, verdict: Verdict) -> None:
        """Settle a run of which no handler code ran: back, held or cancelled."""
        self.is_settled = True
        self.worker.settler.put(self, Settlement(self.run.id, self.token, verdict))

    def cancel(self, reason: str) -> None:
        """Ask the handler to stop because its run was cancelled."""
        if self.stop_reason is None and not self.is_settled:
            self._ask_to_stop(StopReason.CANCEL, reason, CANCEL_MS)

    def drain(self) -> None:
        """Ask the handler to stop because the node drains; the run goes back uncharged."""
        if self.stop_reason is None and not self.is_settled:
            self._ask_to_stop(StopReason.DRAIN, "the node is shutting down", STOP_MS)

    def lose(self, why: str) -> None:
        """Stop without a settlement: the lease is lost.  The store answers a settle that is already under way."""
        if not self.drop_lease() or self.is_settled:
            return
        self.is_settled = True
        self.worker.leases_lost += 1
        self.worker.events.emit(self.lost(why))
        self._ask_to_stop(StopReason.LOST, f"the lease was lost: {why}", STOP_MS)

    def lost(self, why: str) -> LeaseWasLost:
        run, lost_ms = self.run, self.worker.time.now_ms()
        return LeaseWasLost(run.id, run.job_id, why, run.fence, run.attempt + 1, self.started_ms, lost_ms)

    def _ask_to_stop(self, why: StopReason, reason: str, stop_ms: int) -> None:
        self.stop_reason, self.reason = why, reason
        if self.ctx is not None:
            self.ctx.cancel(reason)
        self.check_at = self.worker.clock.mono_ms() + stop_ms
        self.worker.timeouts.expect(self.check_at)
        if self.work is not None:
            self.work.cancel()
            if not self.is_begun:  # a task cancelled before its first step never calls `_ended`
                self._ended(None, asyncio.CancelledError())

    # deadlines

    def overdue(self) -> None:
        """Act on `check_at`: ask to stop at the timeout, give up when the time to stop is over."""
        if self.stop_reason is None:
            self._ask_to_stop(StopReason.TIMEOUT, f"it ran longer than {self.timeout_ms} ms", STOP_MS)
            if self.work is not None:
                return
        self.check_at = NEVER
        self.give_up()

    def give_up(self) -> None:
        """Settle the run by the reason of the request, without waiting for its handler any longer."""
        assert self.stop_reason is not None
        if not self.is_settled:
            self.is_settled = True
            self.worker.settler.put(self, self._stopped(self.stop_reason))
        if self.is_isolated and self.work is not None:
            self.work.cancel()  # a second time: the child is killed at once
        if not self.is_stuck and self in self.worker.running:
            self.is_stuck = True
            self.worker.stuck += 1
            self.worker.stuck_ever += 1
            self.worker.events.emit(HandlerStuck(self.run.id, self.run.job_id, self.worker.stuck))
            if self.worker.on_stuck is not None:
                self.worker.on_stuck()


def timeout_of(job: Job, handler: Handler) -> int:
    """Return the job's timeout; if it has the default, its handler's."""
    if job.timeout_ms == TIMEOUT_MS and handler.timeout_ms is not None:
        return handler.timeout_ms
    return job.timeout_ms


def _fault_of(error: BaseException) -> Fault:
    return error.fault if isinstance(error, RelayedError) else classify(error)


def _error_texts(error: BaseException, own: str) -> tuple[str, str, str]:
    """Return text, place in the user's code and traceback of an error; those of a child come from the child."""
    if isinstance(error, RelayedError):
        return one_line(hide(error.text)), one_line(error.place), trace_lines(error.traceback.splitlines(), hide)
    return describe(error, hide), place_of(error, own), traceback_of(error, hide, line_of=getline, own=own)


def by_run(attempt: Attempt) -> str:
    """Sort key: sets have no order, and where each attempt draws a random number, the draws must be repeatable."""
    return attempt.run.id


class TimeoutWatch(Loop):
    """Stop handlers at their timeout, and when their lease can no longer be trusted."""

    def __init__(self, running: set[Attempt], *, clock: Clock, events: Events) -> None:
        super().__init__("timeouts", clock=clock, events=events)
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
            if attempt.check_at <= now:
                attempt.overdue()
            soonest = min(soonest, attempt.check_at, NEVER if attempt.is_settled else attempt.trust_until)
        self._next = soonest
        return Rest.UNTIL_WOKEN if soonest == NEVER else Rest(max(1.0, soonest - now))
