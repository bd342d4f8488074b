"""Operations on runs: enqueue, run now, cancel, find and list them.

Many runs are written in batches, one after another: the next batch is made while the last one is being written, after
a refused batch nothing more is written, and at most two batches are in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from itertools import islice
from random import Random
from typing import Any, TypeVar, cast

from msgspec import Struct
from msgspec.structs import replace

from pollux.app.operations.audit import as_words, filter_words
from pollux.app.operations.context import OperationContext, OperationGroup
from pollux.app.operations.jobs import JobLookup, find_job
from pollux.clock import Clock
from pollux.errors import (
    Conflict,
    Illegible,
    InvalidInput,
    NotFound,
    PolluxError,
    StoreFull,
    StoreTimeout,
    Unreadable,
    did_you_mean,
    placed,
    read_at,
)
from pollux.ids import check_id, check_key, new_id, new_ids
from pollux.model import LIVE, Cause, Job, Overlap, Run, RunState, run_of
from pollux.model.job import priority_of
from pollux.observe.logs import warn_existing_run
from pollux.observe.traces import link_runs
from pollux.registry import Registry, job_id_of
from pollux.secrets import payload_and_json
from pollux.store.contract import (
    BATCH_MAX,
    PAGE_MAX,
    Answer,
    Joins,
    Pruning,
    RunAnswer,
    RunFilter,
    RunPage,
    RunsAlike,
    Store,
)
from pollux.store.decoding import as_far
from pollux.units import counted, duration_ms, moment_ms

_PARTS = {"payload": "params", "key": "key", "priority": "priority"}  # of a run: what people call them

_OPTIONS = ("params", "id", "key", "at", "delay", "priority", "connection")


class RunAccepted(Struct, frozen=True):
    """The answer to whoever asks for a run."""

    run: Run  # as it is now
    is_new: bool = True  # False: a run of this id was there already
    kept: tuple[str, ...] = ()  # of that run: what it keeps although something else was asked for

    def in_words(self, *, revive: str) -> str:
        """What became of what was asked for; `revive` is how a dead run is let run again where it was asked."""
        if self.is_new:
            return "the run is accepted"
        words = f"run {self.run.id} exists already and is {self.run.state.value}"
        if self.kept:
            words += f"; its {' and '.join(self.kept)} were kept, and what was sent now was dropped"
        return f"{words}; to run it again: {revive}" if self.run.state is RunState.DEAD else words


def refuse_unknown(names: Iterable[str]) -> None:
    """Arguments of the function are easily given as arguments of `enqueue`."""
    for name in names:
        hint = did_you_mean(name, _OPTIONS)
        cure = f'the arguments of the function are params: enqueue(job, {{"{name}": ...}})'
        known = f"it takes {', '.join(_OPTIONS)}"
        raise InvalidInput(f"enqueue() has no option {name!r}{hint}", cure=known if hint else cure)


def said(accepted: RunAccepted) -> Run:
    """The run, for a caller who gets nothing else: what it asked for and did not get is logged."""
    if accepted.kept:
        warn_existing_run(accepted.run.id, accepted.in_words(revive=f"await app.revive([{accepted.run.id!r}])"))
    return accepted.run


@contextmanager
def named_if_unanswered(run: Run) -> Iterator[None]:
    """If no answer comes in time, whoever asked for the run is told by which id to look for it and to ask again."""
    try:
        yield
    except StoreTimeout as error:
        what = f"run {run.id} of job {run.job_id} may have been accepted"
        cure = f"`pollux runs show {run.id}` tells, and the same id asks for the same run"
        raise StoreTimeout(f"{what}: {error}; {cure}") from error


def there_already(asked: Run, there: Run) -> RunAccepted:
    """A run of that id is there; what of it differs from what was asked for?  It must be one of the same job."""
    if there.job_id != asked.job_id:
        raise Conflict(f"run {asked.id} is one of job {there.job_id!r}, not of {asked.job_id!r}", cure="use another id")
    kept = [word for name, word in _PARTS.items() if (getattr(asked, name) or None) != (getattr(there, name) or None)]
    return RunAccepted(there, is_new=False, kept=tuple(kept))


async def overlapped(store: Store, job: Job, run_id: str, *, anyway: str) -> Conflict:
    """The refusal of a run because another, `run_id`, was live; `anyway` is how a caller runs the job all the same.

    The other may have ended since: its state is read after the refusal.  One that cannot be read counts as live.
    """
    [run], spoilt = await as_far(store.get_runs([run_id]))
    state = "unreadable" if spoilt else "removed" if run is None else str(run.state)
    found = {"run_id": run_id, "run_state": state}
    if not spoilt and (run is None or run.state not in LIVE):
        return Conflict(f"job {job.id!r} had a live run, {run_id}, which has just ended", found=found, cure="ask again")
    cure = f"wait for it, cancel it, or run the job anyway: {anyway}"
    return Conflict(f"job {job.id!r} has a live run, {run_id} ({state})", found=found, cure=cure)


ANYWAY = "`anyway=True`"  # how Python asks for it; other interfaces have words of their own
FORGOTTEN = "those that ended are forgotten after a while: `pollux config` has history.age (7d unless set otherwise)"
SLICE = 1_000  # payloads that are checked before other tasks get the loop
Payload = tuple[dict[str, Any] | None, bytes | None]  # as it is, and as it is stored
T = TypeVar("T")


class RunRequest(Struct, frozen=True):
    """One run that is asked for."""

    job_id: str
    params: Mapping[str, Any] | None = None
    id: str | None = None
    key: str | None = None
    at: str | None = None
    delay: str | float | None = None
    priority: int | str | None = None


class RunOperations(OperationGroup):
    """Enqueue, cancel and find runs."""

    def __init__(self, context: OperationContext) -> None:
        super().__init__(context)
        self._jobs = JobLookup(context)

    async def enqueue(
        self,
        /,
        job: object,
        params: Mapping[str, Any] | None = None,
        *,
        id: str | None = None,
        key: str | None = None,
        at: str | datetime | None = None,
        delay: str | float | None = None,
        priority: int | str | None = None,
        connection: Any = None,
        **unknown: Any,
    ) -> Run:
        """Accept one run of a job, now, `at` a moment or after a `delay`; it survives a crash once this returns.

        With a `connection` (PostgreSQL: one of asyncpg, inside a transaction) it is part of the caller's own
        transaction: there if and when that commits.

        The same `id` again is the same run, and the answer is that run as it is now.  A `key` allows one live run: a
        second one raises `Conflict`.

        One for later lets the job's schedule go on until its time has come.
        """
        refuse_unknown(unknown)
        if connection is None:
            return said(await self.accept(job, params, id=id, key=key, at=at, delay=delay, priority=priority))
        known, joined = await self._jobs.known(job), self._joined()
        run = self._wanted(known, params, at, delay, priority, id=id, key=key, now_ms=await self._store.now())
        await self._jobs.ensure_written(known)
        [answer] = await joined.enqueue_in(connection, [run], ready_max=self._context.ready_max)
        self._refuse(answer, known)
        link_runs([run.id], self._context.trace_namespace)
        if answer.answer is Answer.ALREADY:
            [there] = await joined.get_runs_in(connection, [run.id])
            return said(there_already(run, there or run))
        return run

    async def accept(
        self,
        job: object,
        params: Mapping[str, Any] | None = None,
        *,
        id: str | None = None,
        key: str | None = None,
        at: str | datetime | None = None,
        delay: str | float | None = None,
        priority: int | str | None = None,
    ) -> RunAccepted:
        """As `enqueue`, and says whether the run is new, or was there already and kept what it had."""
        known = await self._jobs.known(job)
        run = self._wanted(known, params, at, delay, priority, id=id, key=key, now_ms=await self._store.now())
        with named_if_unanswered(run):
            [answer] = await self._jobs.offered(
                known, lambda: self._store.enqueue([run], ready_max=self._context.ready_max)
            )
        self._refuse(answer, known)
        link_runs([run.id], self._context.trace_namespace)
        if answer.answer is Answer.ALREADY:
            [there] = await self._store.get_runs([run.id])
            return there_already(run, there or run)
        await self._audit.record_enqueued([known.id], [run.id], run.payload)
        return RunAccepted(run)

    async def enqueue_many(
        self,
        job: object,
        params: Iterable[Mapping[str, Any] | None],
        *,
        at: str | datetime | None = None,
        delay: str | float | None = None,
        priority: int | str | None = None,
        connection: Any = None,
    ) -> list[str]:
        """Accept a run for each of the params, in batches; answers their ids in order.

        None is accepted if one of the params cannot be.  A batch that the store refuses ends it: those before stay.
        With a `connection` they are part of the caller's own transaction, as with `enqueue`.
        """
        joined = None if connection is None else self._joined()
        known = await self._jobs.known(job)
        now_ms = await self._store.now()
        due_ms = self._due(at, delay, now_ms)
        rank = None if priority is None else priority_of(priority)
        bodies = await bodies_for(self._registry, known, params)
        ids: list[str] = []

        if joined is not None:
            await self._jobs.ensure_written(known)

        async def write(runs: RunsAlike) -> None:
            if joined is None:
                answers = await self._jobs.offered(
                    known, lambda: self._store.enqueue(runs, ready_max=self._context.ready_max)
                )
            else:
                answers = await joined.enqueue_in(connection, runs, ready_max=self._context.ready_max)
            told = [answer.answer for answer in answers]
            if told.count(Answer.OK) == len(told):
                ids.extend(runs.ids)
                return
            ids.extend([each.id for each in answers if each.answer in (Answer.OK, Answer.ALREADY)])
            for answer in answers:
                self._refuse(answer, known)

        one = self._run(known, None, due_ms, now_ms=now_ms, priority=rank)
        try:
            await write_in_turn(batches_like(one, bodies, now_ms, self._clock, self._dice), write)
        finally:  # what was accepted before a refusal stays, and is told
            link_runs(ids, self._context.trace_namespace)
            if joined is None:  # else it may yet be undone
                await self._audit.record_enqueued([known.id], ids)
        return ids

    async def enqueue_each(self, asks: Sequence[RunRequest]) -> list[RunAccepted | PolluxError]:
        """Accept runs of jobs that are there, in batches: each run as it was accepted, or why it was not."""
        ids = list(dict.fromkeys(ask.job_id for ask in asks))
        jobs: dict[str, Job] = {}
        unreadable: dict[str, Unreadable] = {}
        for start in range(0, len(ids), PAGE_MAX):
            found, unread = await as_far(self._store.get_jobs(ids[start : start + PAGE_MAX]))
            jobs |= {job.id: job for job in found if job is not None}
            unreadable |= {job.name: job for job in unread}
        now_ms = await self._store.now()
        made = [self._asked(ask, jobs, unreadable, now_ms) for ask in asks]
        runs = [run for run in made if isinstance(run, Run)]
        told: list[RunAnswer] = []
        for start in range(0, len(runs), BATCH_MAX):
            told += await self._store.enqueue(runs[start : start + BATCH_MAX], ready_max=self._context.ready_max)
        there = await self._there([answer.id for answer in told if answer.answer is Answer.ALREADY])
        left = iter(told)
        answers = [
            run if isinstance(run, PolluxError) else self._accepted(run, next(left), jobs, there) for run in made
        ]
        await self._record_accepted(answers)
        return answers

    async def run_now(
        self, job: object, params: Mapping[str, Any] | None = None, *, anyway: bool = False, id: str | None = None
    ) -> Run:
        """Run a job now, whatever its schedule or pauses say; `Conflict` if one is live and they may not overlap.

        However many ask at once, one of them gets its run.  The same `id` again is the same run.
        """
        known = await self._jobs.to_run(job)
        unless_live = known.overlap is not Overlap.ALLOW and not anyway
        payload = self._payload(known, params)
        now_ms = await self._store.now()
        run = self._run(known, payload, now_ms, now_ms=now_ms, id=id, cause=Cause.FORCED)
        audit = self._audit.on_record("run", known.id, run.id)
        with named_if_unanswered(run):
            [answer] = await self._store.enqueue(
                [run], ready_max=self._context.ready_max, unless_live=unless_live, audit=audit
            )
        if answer.answer is Answer.OVERLAPPED:
            raise await overlapped(self._store, known, answer.detail, anyway=ANYWAY)
        self._refuse(answer, known)
        link_runs([run.id], self._context.trace_namespace)
        if answer.answer is Answer.ALREADY:
            [there] = await self._store.get_runs([run.id])
            return said(there_already(run, there or run))
        return run

    async def cancel(self, ref: object, *, reason: str = "") -> list[RunAnswer]:
        """Cancel a run by its id, or all live runs of a job: queued ones at once, running ones by request.

        The request reaches a handler of this process at once, one elsewhere when its lease is next renewed.
        """
        name = job_id_of(ref)
        why = as_words(reason) or f"cancelled by {self._actor}"
        audit = self._audit.runs_on_record("cancel", name, reason=reason)
        [run], spoilt = await as_far(self._store.get_runs([name]))
        if run is not None or spoilt:
            answers = await self._store.cancel(run_ids=[name], reason=why, audit=audit)
        else:
            await find_job(self._store, name)
            answers = await self._store.cancel(job_id=name, reason=why, audit=audit)
        self._look_at_requests()
        return answers

    async def cancel_runs(self, run_ids: Sequence[str], *, reason: str = "") -> list[RunAnswer]:
        """Cancel these runs, in batches; what is over already is answered so."""
        why = as_words(reason) or f"cancelled by {self._actor}"
        answers: list[RunAnswer] = []
        for start in range(0, len(run_ids), BATCH_MAX):
            batch = run_ids[start : start + BATCH_MAX]
            subject = batch[0] if len(batch) == 1 else counted(len(batch), "run")
            audit = self._audit.runs_on_record("cancel", subject, batch, reason)
            answers += await self._store.cancel(run_ids=batch, reason=why, audit=audit)
        self._look_at_requests()
        return answers

    async def get_run(self, run_id: str) -> Run:
        found = await self.find_run(run_id)
        if isinstance(found, Unreadable):
            raise Illegible("run", [found], [None])
        return found

    async def find_run(self, run_id: str) -> Run | Unreadable:
        """The run as it is now, or why it cannot be read here; `NotFound` if there is none."""
        [found], unreadable = await as_far(self._store.get_runs([run_id]))
        if found is not None:
            return found
        if not unreadable:
            raise NotFound("run", run_id, cure=f"`pollux runs` lists them; {FORGOTTEN}")
        return unreadable[0]

    async def list_runs(self, where: RunFilter | None = None, *, after: str | None = None, limit: int = 100) -> RunPage:
        """A page of runs, and beside it those that cannot be read."""
        page, unreadable = await as_far(self._store.list_runs(where, after=after, limit=limit))
        return replace(page, unreadable=unreadable) if unreadable else page

    # inside

    def _look_at_requests(self) -> None:
        """Handlers of this process hear of a cancellation now, not with the next renewal of their leases."""
        if self._context.node is not None and self._context.node.crew is not None:
            self._context.node.crew.renew_now()

    def _joined(self) -> Joins:
        if not self._store.capabilities.joins:
            raise InvalidInput(
                f"a {self._store.capabilities.name} store cannot be part of your transaction",
                where="connection",
                cure="use a PostgreSQL store, or leave it out",
            )
        return cast("Joins", self._store)

    def _asked(
        self, ask: RunRequest, jobs: Mapping[str, Job], unreadable: Mapping[str, Unreadable], now_ms: int
    ) -> Run | PolluxError:
        job = jobs.get(ask.job_id)
        if ask.job_id in unreadable:
            return Illegible("job", [unreadable[ask.job_id]], None)
        if job is None:
            return NotFound("job", ask.job_id, cure="add it first")
        try:
            return self._wanted(job, ask.params, ask.at, ask.delay, ask.priority, id=ask.id, key=ask.key, now_ms=now_ms)
        except InvalidInput as error:
            return error

    async def _there(self, ids: Sequence[str]) -> dict[str, Run]:
        found: dict[str, Run] = {}
        for start in range(0, len(ids), PAGE_MAX):
            runs = await self._store.get_runs(ids[start : start + PAGE_MAX])
            found |= {run.id: run for run in runs if run is not None}
        return found

    def _accepted(
        self, run: Run, answer: RunAnswer, jobs: Mapping[str, Job], there: Mapping[str, Run]
    ) -> RunAccepted | PolluxError:
        try:
            self._refuse(answer, jobs[run.job_id])
            return RunAccepted(run) if answer.answer is Answer.OK else there_already(run, there.get(run.id, run))
        except PolluxError as error:
            return error

    async def _record_accepted(self, answers: Sequence[RunAccepted | PolluxError]) -> None:
        new = [each.run for each in answers if isinstance(each, RunAccepted) and each.is_new]
        jobs, params = dict.fromkeys(run.job_id for run in new), new[0].payload if len(new) == 1 else None
        await self._audit.record_enqueued(jobs, [run.id for run in new], params)

    def _wanted(
        self,
        job: Job,
        params: Mapping[str, Any] | None,
        at: str | datetime | None,
        delay: str | float | None,
        priority: int | str | None,
        *,
        id: str | None,
        key: str | None,
        now_ms: int,
    ) -> Run:
        """The run that somebody asks for; `now_ms` is the store's time."""
        rank, due_ms = None if priority is None else priority_of(priority), self._due(at, delay, now_ms)
        return self._run(job, self._payload(job, params), due_ms, now_ms=now_ms, id=id, key=key, priority=rank)

    def _run(
        self,
        job: Job,
        payload: dict[str, Any] | None,
        due_ms: int,
        *,
        now_ms: int,
        id: str | None = None,
        key: str | None = None,
        priority: int | None = None,
        cause: Cause = Cause.ENQUEUED,
    ) -> Run:
        """An id that was given is of other characters than those of firings, so it can never take a firing's place."""
        run_id = new_id(now_ms, self._dice) if id is None else check_id(id, what="run id")
        return run_of(job, due_ms, cause, payload, id=run_id, key=check_key(key), priority=priority)

    def _payload(self, job: Job, params: Mapping[str, Any] | None) -> dict[str, Any] | None:
        return payloads_for(self._registry, job, [params])[0][0]

    def _due(self, at: str | datetime | None, delay: str | float | None, now_ms: int) -> int:
        if at is not None and delay is not None:
            raise InvalidInput("`at` and `delay` were both given", where="delay", cure="give one of them")
        if at is not None:
            return read_at("at", moment_ms, at)
        return now_ms + (0 if delay is None else read_at("delay", duration_ms, delay))

    def _refuse(self, answer: RunAnswer, job: Job) -> None:
        match answer.answer:
            case Answer.CONFLICT:
                raise Conflict(f"run {answer.id}: its key is taken by the live run {answer.detail}")
            case Answer.STALE:
                self._registry.forget([job.id])
                raise NotFound("job", job.id, cure="start the app that declares it, or add it")
            case Answer.FULL:
                raise StoreFull(
                    f"run {answer.id} was refused: {self._context.ready_max} runs wait; add seats or workers"
                )
            case Answer.BUSY:
                raise PolluxError(f"run {answer.id} was refused: the store is busy; try again")


async def bodies_for(registry: Registry, job: Job, many: Iterable[Mapping[str, Any] | None]) -> list[bytes | None]:
    """Of many runs, as they are stored."""
    left, bodies = iter(many), list[bytes | None]()
    while some := list(islice(left, SLICE)):
        bodies += [body for _, body in payloads_for(registry, job, some)]
        await asyncio.sleep(0)
    return bodies


def payloads_for(registry: Registry, job: Job, many: Iterable[Mapping[str, Any] | None]) -> list[Payload]:
    try:
        payloads: list[Payload] = [payload_and_json(params) if params else (None, None) for params in many]
        if (handler := registry.get(job.handler)) is not None:
            for payload, _ in payloads:
                handler.check({**job.params, **payload} if payload and job.params else payload or job.params)
    except InvalidInput as error:
        raise placed(error, "params") from error
    return payloads


def batches_like(one: Run, bodies: list[bytes | None], now_ms: int, clock: Clock, dice: Random) -> Iterator[RunsAlike]:
    """The same run for each of the payloads, with an id of its own; `now_ms` is the store's time."""
    begun_ms = clock.mono_ms()
    for start in range(0, len(bodies), BATCH_MAX):
        some = bodies[start : start + BATCH_MAX]
        made_ms = now_ms + int(clock.mono_ms() - begun_ms)
        yield RunsAlike(one, new_ids(made_ms, dice, len(some)), some)


async def write_in_turn(batches: Iterator[T], write: Callable[[T], Coroutine[Any, Any, None]]) -> None:
    """The first write that fails ends it, and its error is the answer."""
    writing: asyncio.Task[None] | None = None
    try:
        for batch in batches:
            if writing is not None:
                await writing
            writing = asyncio.create_task(write(batch))
            await asyncio.sleep(0)  # it is sent before the next one is made
        if writing is not None:
            await writing
    finally:
        if writing is not None and not writing.done():  # we were cut off meanwhile
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)


REVIVE_PAGE = 500


class DeadLetterOperations(OperationGroup):
    """Revive and drop runs that are dead."""

    async def revive(self, run_ids: Sequence[str] | None = None, *, job: object = None) -> list[RunAnswer]:
        """Let dead letters run again: these, those of a job, or (neither given) all."""
        return await self._revive_each(self._dead(run_ids, job), self._chosen_by(run_ids, job))

    async def drop(self, run_ids: Sequence[str] | None = None, *, job: object = None) -> int:
        """Forget dead letters for good: these, those of a job, or all."""
        return await self._drop_each(self._dead(run_ids, job), self._chosen_by(run_ids, job))

    async def revive_where(self, where: RunFilter) -> list[RunAnswer]:
        """Let all dead letters run again that the filter means."""
        return await self._revive_each(self._dead_where(where), filter_words(where))

    async def drop_where(self, where: RunFilter) -> int:
        """Forget all dead letters for good that the filter means."""
        return await self._drop_each(self._dead_where(where), filter_words(where))

    async def _dead(self, run_ids: Sequence[str] | None, job: object) -> AsyncIterator[list[str]]:
        """Batches of ids of dead letters: those given, those of a job, or all."""
        if run_ids is not None:
            for start in range(0, len(run_ids), REVIVE_PAGE):
                yield list(run_ids[start : start + REVIVE_PAGE])
            return
        async for ids in self._dead_where(_dead_of(job)):
            yield ids

    async def _dead_where(self, where: RunFilter) -> AsyncIterator[list[str]]:
        after: str | None = None
        while True:
            page = await self._store.list_runs(where, after=after, limit=REVIVE_PAGE)
            if page.runs:
                yield [run.id for run in page.runs]
            after = page.next
            if after is None:
                return

    async def _revive_each(self, dead: AsyncIterator[list[str]], by: str) -> list[RunAnswer]:
        answers: list[RunAnswer] = []
        async for ids in dead:
            audit = self._audit.runs_on_record("revive", "dead letters", ids, by)
            answers += await self._store.revive(ids, audit=audit)
        return answers

    async def _drop_each(self, dead: AsyncIterator[list[str]], by: str) -> int:
        dropped = 0
        async for ids in dead:
            named = Pruning(ids=tuple(ids), limit=len(ids))
            dropped += await self._store.prune(named, audit=self._audit.runs_on_record("drop", "dead letters", ids, by))
        return dropped

    def _chosen_by(self, run_ids: Sequence[str] | None, job: object) -> str:
        return "" if run_ids is not None else filter_words(_dead_of(job))


def _dead_of(job: object) -> RunFilter:
    return RunFilter(states=(RunState.DEAD,), job_id=None if job is None else job_id_of(job))
