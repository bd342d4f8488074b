"""Stories: users' tests of their own jobs, with their app and handlers, everything real but the time.

    async with story(app, at="2026-03-01T08:00Z") as tale:
        await tale.advance("1h")
        assert tale.fired("check_api") == 6

The app runs as always (planner, workers, retries, timeouts), on a store in memory, on one node, in virtual time: an
hour takes milliseconds.  While the story lasts, all waits of its event loop are virtual, also `asyncio.sleep` in a
handler.  Time does not advance while something real is at work (a handler in a thread, a request on a socket).
"""

from __future__ import annotations

import asyncio
import copy
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from inspect import isawaitable, iscoroutinefunction
from random import Random
from types import TracebackType
from typing import Any, TypeVar

import msgspec

from pollux.app import Operations, Pollux
from pollux.app.declarations import NewestReleases
from pollux.app.operations import OperationContext
from pollux.errors import InvalidInput, PolluxError
from pollux.model import Answer, Cause, Dead, Isolate, Job, Run, RunState
from pollux.plan import Why
from pollux.registry import Context, Handler, Registry, job_id_of
from pollux.runtime import RuntimeOptions
from pollux.runtime.renewer import Renewer
from pollux.simulate import VirtualClock, VirtualTime
from pollux.simulate.engine import InstantStore, at_once
from pollux.store.contract import Audit, JobAnswer, RunAnswer, RunFilter, Settlement
from pollux.testing.faults import FaultyStore
from pollux.units import DAY_MS, MOMENT_MAX_MS, duration_ms, moment_ms

AT = "2026-01-01T00:00:00Z"
WAIT_MAX_MS = DAY_MS  # what may pass while a test waits for something else than `advance`
CATCH_UP_MS = 250  # what is due when `advance` ends has this long to be planned and begun
KEPT_MS = MOMENT_MAX_MS
KEPT_RUNS = 1_000_000
T = TypeVar("T")
Call = Callable[..., Any]


def story(app: Pollux, *, at: str | datetime = AT, seats: int | None = None, seed: int = 1) -> Story:
    """Begin a story of this app at that moment; `async with` in async tests, `with` in plain ones."""
    if not isinstance(app, Pollux):
        raise InvalidInput(f"a story is about a Pollux, not of {type(app).__name__}", cure="pass your app")
    return Story(app, now_ms=moment_ms(at), seats=seats, seed=seed)


class Story:
    """Context manager of a story, for async and plain tests."""

    def __init__(self, app: Pollux, *, now_ms: int, seats: int | None, seed: int) -> None:
        self._app, self._now_ms, self._seats, self._seed = app, now_ms, seats, seed
        self._tale: StoryApp | None = None
        self._runner: asyncio.Runner | None = None

    async def __aenter__(self) -> StoryApp:
        if self._tale is not None:
            raise PolluxError("this story is over; call `story(app)` again for another")
        is_fresh = self._runner is not None  # the loop is ours
        tale = StoryApp(self._app, now_ms=self._now_ms, seats=self._seats, seed=self._seed, is_fresh=is_fresh)
        try:
            await tale.start()
        except BaseException:
            await tale.end()
            raise
        self._tale = tale
        return tale

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._tale is not None:
            await self._tale.end()

    def __enter__(self) -> BlockingStoryApp:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            raise PolluxError("an event loop runs here already: write `async with story(app) as tale:`")
        self._runner = asyncio.Runner(loop_factory=asyncio.SelectorEventLoop)
        try:
            return BlockingStoryApp(self._runner.run(self.__aenter__()), self._runner)
        except BaseException:
            self._runner.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._runner is not None
        try:
            self._runner.run(self.__aexit__(kind, error, traceback))
        finally:
            self._runner.close()


class StoryApp:
    """Controls and queries of a story.  Jobs are named by id or by their function."""

    def __init__(self, app: Pollux, *, now_ms: int, seats: int | None, seed: int, is_fresh: bool) -> None:
        self.app = app
        self._time = VirtualTime(asyncio.get_running_loop(), is_fresh=is_fresh)
        self._time.is_busy_elsewhere = self._is_busy_elsewhere
        self.clock = VirtualClock(self._time, now_ms)
        self.store = StoryStore(self.clock)  # faults are injected here: `tale.store.fail("settle")`
        self._cast = StoryHandlers(app._registry)
        self._target_us = self._time.us
        dice = Random(seed)  # noqa: S311  ids and jitter, not secrets
        usual = app.options if seats is None else msgspec.structs.replace(app.options, seats=seats)
        releases = NewestReleases(self.clock)
        context = OperationContext(
            self.store.store, self._cast, self.clock, dice, "story", releases, ready_max=usual.ready_max
        )
        self._operations = Operations(context)
        self._stack = ExitStack()
        options = _options(usual)
        home = app.relocated(self.store, clock=self.clock, dice=dice, registry=self._cast, options=options)
        self._stack.enter_context(home)
        self._time.install()
        self._stack.callback(self._time.restore)

    @property
    def now(self) -> datetime:
        return datetime.fromtimestamp(self.clock.now_ms() / 1000, UTC)

    async def advance(self, span: str | float) -> None:
        """Let this much time pass; everything that becomes due on the way happens, in its order."""
        self._time.limit_us = None
        self._target_us += duration_ms(span) * 1_000
        if self._target_us > self._time.us:
            await asyncio.sleep((self._target_us - self._time.us) / 1_000_000)
        self._target_us = max(self._target_us, self._time.us)
        await self._settle()

    def jump(self, span: str) -> None:
        """Set the wall clock forwards ("1h") or back ("-1h"), as a bad time server does; no time passes."""
        back = span.startswith("-")
        self.clock.jump(-duration_ms(span[1:]) if back else duration_ms(span))

    async def _settle(self) -> None:
        """Let everything happen that can happen now; what became due a moment ago may need a moment more."""
        for _ in range(CATCH_UP_MS):
            await self._time.quiet()
            if not self._is_behind():
                break
            await asyncio.sleep(0.001)
        self._time.limit_us = self._time.us + WAIT_MAX_MS * 1_000

    def _is_behind(self) -> bool:
        runtime = self.app.runtime
        if runtime is None or runtime.leader.term is None:
            return False
        now_ms = self.clock.now_ms()
        if at_once(self.store.store.feed(limit=1)).items:
            return True
        if at_once(self.store.store.due(before_ms=now_ms + 1, limit=1)):
            return True
        ready = at_once(self.store.store.list_runs(RunFilter(states=(RunState.READY,)), limit=1_000)).runs
        return runtime.pool.free > 0 and any(run.visible_ms <= now_ms for run in ready)

    def _is_busy_elsewhere(self) -> bool:
        runtime = self.app.runtime
        return runtime is not None and runtime.worker.threads.under_way > self._time.sleeping

    async def start(self) -> None:
        """Start the node; the story itself begins with it."""
        await self.app.start()
        runtime = self.app.runtime
        if runtime is not None and isinstance(runtime.renewer, Renewer):
            runtime.renewer.rest_max_ms = runtime.options.lease_ms / 6  # once a second is for real clocks
        await self._settle()

    async def stop(self) -> None:
        """Stop the node in good order: handlers may finish within the grace, the rest is handed back."""
        self._time.limit_us = None
        await self.app.drain()
        await self._settle()

    async def crash(self) -> None:
        """End the node as by a power cut: its leases and its term expire by themselves."""
        runtime, self.app.runtime = self.app.runtime, None
        if runtime is None:
            raise PolluxError("the node does not run; start it with `await tale.start()`")
        runtime.vanish()
        self.app._stop_logs()
        await self._settle()

    async def restart(self) -> None:
        """Crash, and start again at once."""
        await self.crash()
        await self.start()

    async def sleep_through(self, span: str | float) -> None:
        """Downtime: the node is stopped for so long, and then starts again."""
        await self.stop()
        await self.advance(span)
        await self.start()

    async def end(self) -> None:
        """Stop everything and restore the app's own store and clock."""
        self._time.limit_us = None
        try:
            await self.app.close()
        finally:
            self._stack.close()

    # handlers

    def fail(self, job: object, error: BaseException, *, times: int = 1) -> None:
        """Make the next attempts of this job raise the error; its handler is not called."""
        self._cast.faults[self._job(job).id].extend([error] * times)

    def stand_in(self, job: object, function: Call) -> None:
        """Call this function in place of the job's handler from now on, in the same way."""
        known = self._job(job)
        handler = self._cast.get(known.handler)
        if handler is not None and not handler.is_async and iscoroutinefunction(function):
            what = f"the handler of job {known.id!r} is a plain function, and its stand-in is async"
            raise InvalidInput(what, cure="write the stand-in with `def`")
        self._cast.stand_ins[known.id] = Handler(known.handler, function)

    # operations

    async def enqueue(self, job: object, params: Mapping[str, Any] | None = None, **options: Any) -> Run:
        """As `app.enqueue`; a run that is due now has begun when this returns."""
        return await self._done(self.app.enqueue(job, params, **options))

    async def run_now(self, job: object, params: Mapping[str, Any] | None = None, **options: Any) -> Run:
        return await self._done(self.app.run_now(job, params, **options))

    async def pause(self, job: object = None, **options: Any) -> str:
        return await self._done(self.app.pause(job, **options))

    async def resume(self, job: object = None, **options: Any) -> bool:
        return await self._done(self.app.resume(job, **options))

    async def cancel(self, ref: object, *, reason: str = "") -> list[RunAnswer]:
        return await self._done(self.app.cancel(ref, reason=reason))

    async def revive(self, job: object = None) -> list[RunAnswer]:
        """Let the dead letters of a job, or all, run again."""
        return await self._done(self.app.operations.dead_letters.revive(job=job))

    async def _done(self, verb: Coroutine[Any, Any, T]) -> T:
        answer = await verb
        await self._settle()
        return answer

    # results

    def runs(self, job: object) -> list[Run]:
        """All runs of a job, the oldest first: those that ended and those that are live."""
        job_id = self._job(job).id
        runs = self._runs(RunFilter(job_id=job_id))
        known = {run.id for run in runs}
        buried = [run for run in self.store.buried.get(job_id, {}).values() if run.id not in known]
        return sorted([*buried, *runs], key=lambda run: run.due_ms) if buried else runs

    def fired(self, job: object) -> int:
        """How often the job's own schedule fired."""
        return sum(run.cause is Cause.SCHEDULE for run in self.runs(job))

    def skipped(self, job: object) -> dict[str, int]:
        """Due times that were not fired, by reason: late, overlap, paused, ..."""
        return dict(self._job(job).memory.skips)

    def outcomes(self, job: object) -> list[str]:
        """How its runs ended: done, failed (the next firing is the retry), dead or cancelled."""
        return ["failed" if run.failed and run.state is RunState.DONE else run.state.value for run in self._ended(job)]

    def results(self, job: object) -> list[Any]:
        """What its successful runs returned."""
        return [run.result for run in self._ended(job) if run.state is RunState.DONE and not run.failed]

    def errors(self, job: object) -> list[str]:
        """The last error of each run that had one."""
        return [run.error for run in self.runs(job) if run.error]

    @property
    def dead(self) -> list[Run]:
        """The dead letters."""
        return self._runs(RunFilter(states=(RunState.DEAD,)))

    def next_due(self, job: object) -> datetime | None:
        due_ms = self._job(job).next_due_ms
        return None if due_ms is None else datetime.fromtimestamp(due_ms / 1000, UTC)

    def why(self, ref: object) -> Why:
        """Why a job or a run does not run: `tale.why("report").reason`."""
        return at_once(self._operations.status.why(ref))

    def _job(self, job: object) -> Job:
        return at_once(self._operations.jobs.get_job(job_id_of(job)))

    def _ended(self, job: object) -> list[Run]:
        return [run for run in self.runs(job) if run.is_finished]

    def _runs(self, where: RunFilter) -> list[Run]:
        """Return the runs, oldest first, by due time and then by order of arrival."""
        runs: list[Run] = []
        after: str | None = None
        while True:
            page = at_once(self.store.store.list_runs(where, after=after, limit=1_000))
            runs += page.runs
            after = page.next
            if after is None:
                runs.reverse()
                return sorted(runs, key=lambda run: run.due_ms)


class BlockingStoryApp:
    """The story for plain tests: what is awaited in an async test is a plain call here."""

    def __init__(self, tale: StoryApp, runner: asyncio.Runner) -> None:
        self._tale, self._runner = tale, runner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._tale, name)
        if not iscoroutinefunction(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            return self._runner.run(found(*args, **kwargs))

        return call


class StoryStore(FaultyStore):
    """A memory store with injected faults.

    It sends no run to a child process, where time is real, and keeps dead letters that a later one of their recurring
    job replaced.
    """

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(InstantStore(clock))
        self.buried: defaultdict[str, dict[str, Run]] = defaultdict(dict)

    async def put_jobs(self, puts: Any, *, audit: Audit | None = None, now_ms: int | None = None) -> list[JobAnswer]:
        replace = msgspec.structs.replace
        here = [replace(put, job=replace(put.job, isolate=Isolate.NEVER)) for put in puts]
        return await super().put_jobs(here, audit=audit, now_ms=now_ms)

    async def settle(self, settlements: Sequence[Settlement], *, now_ms: int | None = None) -> list[Answer]:
        answers = await super().settle(settlements, now_ms=now_ms)
        dead = [settlement.run_id for settlement in settlements if isinstance(settlement.verdict, Dead)]
        for run in await self.store.get_runs(dead) if dead else ():
            if run is not None and run.state is RunState.DEAD:
                self.buried[run.job_id][run.id] = run
        return answers


class StoryHandlers(Registry):
    """The app's handlers, each of which can fail on request or be replaced by a stand-in."""

    def __init__(self, real: Registry) -> None:
        super().__init__()
        self._real = real
        self._handlers, self._jobs = real._handlers, real._jobs
        self._understudies: dict[str, tuple[Handler, Handler]] = {}
        self.faults: defaultdict[str, deque[BaseException]] = defaultdict(deque)
        self.stand_ins: dict[str, Handler] = {}

    def get(self, name: str) -> Handler | None:
        real = self._real.get(name)
        if real is None:
            return None
        known = self._understudies.get(name)
        if known is None or known[0] is not real:
            known = self._understudies[name] = (real, self._understudy(real))
        return known[1]

    def _understudy(self, real: Handler) -> Handler:
        understudy = copy.copy(real)

        def invoke(ctx: Context, kwargs: Mapping[str, Any]) -> Any:
            faults = self.faults.get(ctx.job.id)
            if faults:
                raise faults.popleft()
            stand_in = self.stand_ins.get(ctx.job.id)
            if stand_in is None:
                return real.invoke(ctx, kwargs)
            return _awaited(stand_in.invoke(ctx, kwargs)) if real.is_async else stand_in.invoke(ctx, kwargs)

        understudy.invoke = invoke  # type: ignore[method-assign]
        return understudy


async def _awaited(value: Any) -> Any:
    return await value if isawaitable(value) else value


def _options(usual: RuntimeOptions) -> RuntimeOptions:
    """Return options that keep all history, do not linger, and renew leases on the one loop there is."""
    return msgspec.structs.replace(
        usual,
        renews_apart=False,
        isolates=False,
        min_poll_ms=0,
        turn_rest_ms=0,
        keep_per_job=KEPT_RUNS,
        keep_ms=KEPT_MS,
        unchanged_ms=KEPT_MS,
    )
