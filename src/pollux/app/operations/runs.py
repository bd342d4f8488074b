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
from typing import TYPE_CHECKING, Any, TypeVar, cast

from msgspec import Struct
from msgspec.structs import replace

from pollux.app.operations.audit import as_words, filter_words
from pollux.app.operations.context import OperationGroup
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
    Audit,
    Joins,
    Pruning,
    RunAnswer,
    RunFilter,
    RunPage,
    RunsAlike,
    Store,
)
from pollux.store.decoding import readable_part
from pollux.units import counted, duration_ms, moment_ms

if TYPE_CHECKING:
    from pollux.app.operations.contract import Operations

_PARTS = {"payload": "params", "key": "key", "priority": "priority"}  # of a run: what people call them

_OPTIONS = ("params", "id", "key", "at", "delay", "priority", "connection")


class RunAccepted(Struct, frozen=True):
    """The answer to a request for a run."""

    run: Run  # as it is now
    is_new: bool = True  # False: a run of this id existed
    kept: tuple[str, ...] = ()  # fields of the existing run that differ from the request

    def in_words(self, *, revive: str) -> str:
        """A message for the caller; `revive` is how a dead run is revived through their interface."""
        if self.is_new:
            return "the run is accepted"
        words = f"run {self.run.id} exists already and is {self.run.state.value}"
        if self.kept:
            words += f"; its {' and '.join(self.kept)} were kept, and what was sent now was dropped"
        return f"{words}; to run it again: {revive}" if self.run.state is RunState.DEAD else words


@contextmanager
def named_if_unanswered(run: Run) -> Iterator[None]:
    """Add the id of the run to a timeout of the store: with it the caller can look, and repeat the request."""
    try:
        yield
    except StoreTimeout as error:
        what = f"run {run.id} of job {run.job_id} may have been accepted"
        cure = f"`pollux runs show {run.id}` shows it, and the same id asks for the same run"
        raise StoreTimeout(f"{what}: {error}; {cure}") from error


def there_already(wanted: Run, there: Run) -> RunAccepted:
    """The answer for a run whose id exists; `Conflict` if that one is of another job."""
    if there.job_id != wanted.job_id:
        raise Conflict(
            f"run {wanted.id} is one of job {there.job_id!r}, not of {wanted.job_id!r}", cure="use another id"
        )
    kept = [word for name, word in _PARTS.items() if (getattr(wanted, name) or None) != (getattr(there, name) or None)]
    return RunAccepted(there, is_new=False, kept=tuple(kept))


def _logged(accepted: RunAccepted) -> Run:
    """The run, for a caller who gets nothing else; a request that differs from an existing run is logged."""
    if accepted.kept:
        warn_existing_run(accepted.run.id, accepted.in_words(revive=f"await app.revive([{accepted.run.id!r}])"))
    return accepted.run


async def overlapped(store: Store, job: Job, run_id: str, *, anyway: str) -> Conflict:
    """The refusal of a run because another, `run_id`, was live; `anyway` is how the caller's interface overrides it.

    The other may have ended since: its state is read after the refusal.  One that cannot be read counts as live.
    """
    [run], spoilt = await readable_part(store.get_runs([run_id]))
    state = "unreadable" if spoilt else "removed" if run is None else str(run.state)
    found = {"run_id": run_id, "run_state": state}
    if not spoilt and (run is None or run.state not in LIVE):
        return Conflict(f"job {job.id!r} had a live run, {run_id}, which has just ended", found=found, cure="ask again")
    cure = f"wait for it, cancel it, or run the job anyway: {anyway}"
    return Conflict(f"job {job.id!r} has a live run, {run_id} ({state})", found=found, cure=cure)


ANYWAY = "`anyway=True`"  # as in Python; other interfaces replace it
FORGOTTEN = "those that ended are forgotten after a while: `pollux config` has history.age (7d unless set otherwise)"
SLICE = 1_000  # payloads that are checked in one iteration of the loop
Payload = tuple[dict[str, Any] | None, bytes | None]  # decoded, and as it is stored
T = TypeVar("T")


class RunRequest(Struct, frozen=True):
    """A run to enqueue."""

    job_id: str
    params: Mapping[str, Any] | None = None
    id: str | None = None
    key: str | None = None
    at: str | datetime | None = None
    delay: str | float | None = None
    priority: int | str | None = None


class RunOperations(OperationGroup):
    """Enqueue, cancel and find runs."""

    def __init__(self, operations: Operations) -> None:
        super().__init__(operations)
        self._jobs = JobLookup(operations)

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
        for name in unknown:  # arguments of the handler, given as those of `enqueue`
            hint = did_you_mean(name, _OPTIONS)
            cure = f'the arguments of the function are params: enqueue(job, {{"{name}": ...}})'
            known = f"it takes {', '.join(_OPTIONS)}"
            raise InvalidInput(f"enqueue() has no option {name!r}{hint}", cure=known if hint else cure)
        accepted = await self.accept(
            job, params, id=id, key=key, at=at, delay=delay, priority=priority, connection=connection
        )
        return _logged(accepted)

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
        connection: Any = None,
    ) -> RunAccepted:
        """As `enqueue`; the answer shows whether the run is new or existed, with which differences."""
        if connection is not None:
            self._joins()
        known = await self._jobs.known(job)
        wanted = RunRequest(known.id, params, id, key, at, delay, priority)
        run = self._wanted(known, wanted, now_ms=await self._store.now())
        if connection is not None:
            await self._jobs.ensure_written(known)
            [answer] = await self._offer(known, [run], connection)
        else:
            with named_if_unanswered(run):
                [answer] = await self._offer(known, [run])
        accepted = await self._outcome(run, answer, known, connection)
        if accepted.is_new and connection is None:
            await self._audit.record_enqueued([known.id], [run.id], run.payload)
        return accepted

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
        if connection is not None:
            self._joins()
        known = await self._jobs.known(job)
        now_ms = await self._store.now()
        due_ms = self._due(at, delay, now_ms)
        rank = None if priority is None else priority_of(priority)
        bodies = await bodies_for(self._registry, known, params)
        ids: list[str] = []
        if connection is not None:
            await self._jobs.ensure_written(known)

        async def write(runs: RunsAlike) -> None:
            answers = await self._offer(known, runs, connection)
            found = [answer.answer for answer in answers]
            if found.count(Answer.OK) == len(found):
                ids.extend(runs.ids)
                return
            ids.extend([each.id for each in answers if each.answer in (Answer.OK, Answer.ALREADY)])
            for answer in answers:
                self._refuse(answer, known)

        one = self._run(known, None, due_ms, now_ms=now_ms, priority=rank)
        try:
            await write_in_turn(batches_like(one, bodies, now_ms, self._clock, self._dice), write)
        finally:  # batches that were accepted before a refusal stay
            link_runs(ids, self._context.trace_namespace)
            if connection is None:  # else the transaction may yet be rolled back
                await self._audit.record_enqueued([known.id], ids)
        return ids

    async def enqueue_each(self, requests: Sequence[RunRequest]) -> list[RunAccepted | PolluxError]:
        """Accept runs of stored jobs, in batches; answers for each the accepted run or the refusal."""
        ids = list(dict.fromkeys(each.job_id for each in requests))
        jobs: dict[str, Job] = {}
        unreadable: dict[str, Unreadable] = {}
        for start in range(0, len(ids), PAGE_MAX):
            found, unread = await readable_part(self._store.get_jobs(ids[start : start + PAGE_MAX]))
            jobs |= {job.id: job for job in found if job is not None}
            unreadable |= {job.name: job for job in unread}
        now_ms = await self._store.now()
        made = [self._requested(each, jobs, unreadable, now_ms) for each in requests]
        runs = [run for run in made if isinstance(run, Run)]
        stored: list[RunAnswer] = []
        try:
            for start in range(0, len(runs), BATCH_MAX):
                stored += await self._store.enqueue(runs[start : start + BATCH_MAX], ready_max=self._context.ready_max)
        finally:  # batches that were accepted before an error stay
            new = [run for run, answer in zip(runs, stored, strict=False) if answer.answer is Answer.OK]
            subjects, payload = dict.fromkeys(run.job_id for run in new), new[0].payload if len(new) == 1 else None
            await self._audit.record_enqueued(subjects, [run.id for run in new], payload)
        there: dict[str, Run] = {}
        existing = [answer.id for answer in stored if answer.answer is Answer.ALREADY]
        for start in range(0, len(existing), PAGE_MAX):
            there |= {run.id: run for run in await self._store.get_runs(existing[start : start + PAGE_MAX]) if run}
        left = iter(stored)
        return [run if isinstance(run, PolluxError) else self._accepted(run, next(left), jobs, there) for run in made]

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
        return _logged(await self._outcome(run, answer, known))

    async def cancel(self, ref: object, *, reason: str = "") -> list[RunAnswer]:
        """Cancel a run by its id, or all live runs of a job: queued ones at once, running ones by request.

        The request reaches a handler of this process at once, one elsewhere when its lease is next renewed.
        """
        name = job_id_of(ref)
        why = as_words(reason) or f"cancelled by {self._actor}"
        audit = self._audit.runs_on_record("cancel", name, reason=reason)
        [run], spoilt = await readable_part(self._store.get_runs([name]))
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
        [found], unreadable = await readable_part(self._store.get_runs([run_id]))
        if found is not None:
            return found
        if not unreadable:
            raise NotFound("run", run_id, cure=f"`pollux runs` lists them; {FORGOTTEN}")
        return unreadable[0]

    async def list_runs(self, where: RunFilter | None = None, *, after: str | None = None, limit: int = 100) -> RunPage:
        """A page of runs, and beside it those that cannot be read."""
        page, unreadable = await readable_part(self._store.list_runs(where, after=after, limit=limit))
        return replace(page, unreadable=unreadable) if unreadable else page

    # inside

    def _look_at_requests(self) -> None:
        """Renew the leases of this process now, which delivers cancel requests to its handlers."""
        if self._context.node is not None and self._context.node.runtime is not None:
            self._context.node.runtime.renew_now()

    def _joins(self) -> Joins:
        """The store, if it can write inside the caller's transaction."""
        if not self._store.capabilities.joins:
            raise InvalidInput(
                f"a {self._store.capabilities.name} store cannot be part of your transaction",
                where="connection",
                cure="use a PostgreSQL store, or leave it out",
            )
        return cast("Joins", self._store)

    async def _offer(self, job: Job, runs: Sequence[Run] | RunsAlike, connection: Any = None) -> list[RunAnswer]:
        ready_max = self._context.ready_max
        if connection is not None:
            return await self._joins().enqueue_in(connection, runs, ready_max=ready_max)
        return await self._jobs.offered(job, lambda: self._store.enqueue(runs, ready_max=ready_max))

    async def _outcome(self, run: Run, answer: RunAnswer, job: Job, connection: Any = None) -> RunAccepted:
        """The accepted run, or the existing one of its id; raises if it was refused."""
        self._refuse(answer, job)
        link_runs([run.id], self._context.trace_namespace)
        if answer.answer is not Answer.ALREADY:
            return RunAccepted(run)
        joined = connection is not None
        [there] = await (self._joins().get_runs_in(connection, [run.id]) if joined else self._store.get_runs([run.id]))
        return there_already(run, there or run)

    def _requested(
        self, wanted: RunRequest, jobs: Mapping[str, Job], unreadable: Mapping[str, Unreadable], now_ms: int
    ) -> Run | PolluxError:
        job = jobs.get(wanted.job_id)
        if wanted.job_id in unreadable:
            return Illegible("job", [unreadable[wanted.job_id]], None)
        if job is None:
            return NotFound("job", wanted.job_id, cure="add it first")
        try:
            return self._wanted(job, wanted, now_ms=now_ms)
        except InvalidInput as error:
            return error

    def _accepted(
        self, run: Run, answer: RunAnswer, jobs: Mapping[str, Job], there: Mapping[str, Run]
    ) -> RunAccepted | PolluxError:
        try:
            self._refuse(answer, jobs[run.job_id])
            return RunAccepted(run) if answer.answer is Answer.OK else there_already(run, there.get(run.id, run))
        except PolluxError as error:
            return error

    def _wanted(self, job: Job, wanted: RunRequest, *, now_ms: int) -> Run:
        """The run of a request; `now_ms` is the store's time."""
        rank = None if wanted.priority is None else priority_of(wanted.priority)
        due_ms = self._due(wanted.at, wanted.delay, now_ms)
        payload = self._payload(job, wanted.params)
        return self._run(job, payload, due_ms, now_ms=now_ms, id=wanted.id, key=wanted.key, priority=rank)

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
        """A caller's id has no characters of the ids of firings, so it can never take the place of one."""
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
    """The encoded payloads of many runs."""
    left, bodies = iter(many), list[bytes | None]()
    while some := list(islice(left, SLICE)):
        bodies += [body for _, body in payloads_for(registry, job, some)]
        await asyncio.sleep(0)
    return bodies


def payloads_for(registry: Registry, job: Job, many: Iterable[Mapping[str, Any] | None]) -> list[Payload]:
    """Checked payloads, each also encoded as it is stored."""
    try:
        payloads: list[Payload] = [payload_and_json(params) if params else (None, None) for params in many]
        if (handler := registry.get(job.handler)) is not None:
            for payload, _ in payloads:
                handler.check({**job.params, **payload} if payload and job.params else payload or job.params)
    except InvalidInput as error:
        raise placed(error, "params") from error
    return payloads


def batches_like(one: Run, bodies: list[bytes | None], now_ms: int, clock: Clock, dice: Random) -> Iterator[RunsAlike]:
    """Batches of copies of the run, one for each payload, with ids of their own; `now_ms` is the store's time."""
    begun_ms = clock.mono_ms()
    for start in range(0, len(bodies), BATCH_MAX):
        some = bodies[start : start + BATCH_MAX]
        made_ms = now_ms + int(clock.mono_ms() - begun_ms)
        yield RunsAlike(one, new_ids(made_ms, dice, len(some)), some)


async def write_in_turn(batches: Iterator[T], write: Callable[[T], Coroutine[Any, Any, None]]) -> None:
    """Write batch by batch, preparing the next one meanwhile; the first error ends it and is raised."""
    writing: asyncio.Task[None] | None = None
    try:
        for batch in batches:
            if writing is not None:
                await writing
            writing = asyncio.create_task(write(batch))
            await asyncio.sleep(0)  # the write begins before the next batch is made
        if writing is not None:
            await writing
    finally:
        if writing is not None and not writing.done():  # this call was cancelled
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)


REVIVE_PAGE = 500


class DeadLetterOperations(OperationGroup):
    """Revive and drop dead letters: by id, of a job, all that match a filter, or (none of these) all."""

    async def revive(
        self, run_ids: Sequence[str] | None = None, *, job: object = None, where: RunFilter | None = None
    ) -> list[RunAnswer]:
        """Make dead letters ready again."""
        answers: list[RunAnswer] = []
        async for ids, audit in self._batches("revive", run_ids, job, where):
            answers += await self._store.revive(ids, audit=audit)
        return answers

    async def drop(
        self, run_ids: Sequence[str] | None = None, *, job: object = None, where: RunFilter | None = None
    ) -> int:
        """Delete dead letters."""
        dropped = 0
        async for ids, audit in self._batches("drop", run_ids, job, where):
            dropped += await self._store.prune(Pruning(ids=tuple(ids), limit=len(ids)), audit=audit)
        return dropped

    async def _batches(
        self, action: str, run_ids: Sequence[str] | None, job: object, where: RunFilter | None
    ) -> AsyncIterator[tuple[list[str], Audit]]:
        """Ids, at most a page, each with its audit line."""
        if run_ids is not None:
            for start in range(0, len(run_ids), REVIVE_PAGE):
                ids = list(run_ids[start : start + REVIVE_PAGE])
                yield ids, self._audit.runs_on_record(action, "dead letters", ids)
            return
        where = where or RunFilter(job_id=None if job is None else job_id_of(job))
        where = replace(where, states=(RunState.DEAD,))
        after: str | None = None
        while True:
            page = await self._store.list_runs(where, after=after, limit=REVIVE_PAGE)
            ids = [run.id for run in page.runs]
            if ids:
                yield ids, self._audit.runs_on_record(action, "dead letters", ids, filter_words(where))
            after = page.next
            if after is None:
                return
