"""What can be asked for?  The verbs of the Python API, the CLI and everything later, over one store."""

from __future__ import annotations

import getpass
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import datetime
from random import Random
from typing import Any, Self, cast

from pollux.app.answers import (
    RunAccepted,
    named_if_unanswered,
    overlapped,
    refuse_unknown,
    said,
    say_unknown_handlers,
    there_already,
)
from pollux.app.audit_lines import as_words, change_words, filter_words
from pollux.app.audit_log import AuditVerbs
from pollux.app.batched_writes import batches_like, write_in_turn
from pollux.app.declarations import NewestReleases
from pollux.app.drain import DrainVerbs
from pollux.app.lookup import FORGOTTEN, LookupVerbs
from pollux.app.overview import ahead_of, live_by_job, live_runs
from pollux.app.ownership import refuse_backed
from pollux.app.payloads import bodies_for, payloads_for
from pollux.app.start_notes import app_words, named_start
from pollux.app.tokens import TokenVerbs
from pollux.app.versions import VersionVerbs
from pollux.clock import Clock
from pollux.errors import Conflict, InvalidInput, NotFound, PolluxError, StoreFull, Unreadable, read_at
from pollux.ids import check_id, check_key, new_id
from pollux.job_builder import check_job, check_stop
from pollux.model import (
    STOP,
    Cause,
    Job,
    Node,
    Note,
    NotePut,
    Overlap,
    Run,
    RunState,
    by_term,
    run_of,
    stop_key,
)
from pollux.model.params import priority_of
from pollux.observe.trace_ids import link_runs
from pollux.plan import Why, beside_unreadable, why_job, why_run, why_unreadable, why_unreadable_run, why_unwritten
from pollux.registry import Registry, job_id_of
from pollux.store.contract import (
    BATCH_MAX,
    Answer,
    JobAnswer,
    JobPut,
    Joins,
    Pruning,
    RunAnswer,
    RunFilter,
    RunsAlike,
    Store,
)
from pollux.store.decoding import as_far, due_as_far, stops_as_far
from pollux.units import counted, duration_ms, format_ms, moment_ms

REVIVE_PAGE = 500
ANYWAY = "`anyway=True`"  # how Python says it; whoever asks in another way hears of that one


class Verbs(LookupVerbs, VersionVerbs, TokenVerbs, AuditVerbs, DrainVerbs):
    """Everything that can be asked of a store full of jobs and runs, in the caller's words."""

    trace_namespace = ""  # of the runs' traces, for the link that a caller's own span gets

    def __init__(
        self,
        store: Store,
        registry: Registry,
        *,
        clock: Clock,
        dice: Random,
        actor: str,
        ready_max: int,
        is_named: bool = False,
    ) -> None:
        self._store, self._registry, self._releases = store, registry, NewestReleases(clock)
        self._clock, self._dice, self._actor, self._ready_max = clock, dice, actor, ready_max
        self._is_named = is_named  # else the actor is but whoever started the program

    def acting_as(self, actor: str) -> Self:
        """The same, on behalf of somebody else: what is changed through it stands in the audit log under that name."""
        other = object.__new__(type(self))  # as `copy` does, in a tenth of its time: every request asks for one
        other.__dict__.update(self.__dict__, _actor=actor, _is_named=True)
        return other

    # runs

    async def enqueue(
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
        known, joined = await self._job(job), self._joined()
        run = self._wanted(known, params, at, delay, priority, id=id, key=key, now_ms=await self._store.now())
        await self._see_to(known)
        [answer] = await joined.enqueue_in(connection, [run], ready_max=self._ready_max)
        self._refuse(answer, known)
        link_runs([run.id], self.trace_namespace)
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
        known = await self._job(job)
        run = self._wanted(known, params, at, delay, priority, id=id, key=key, now_ms=await self._store.now())
        with named_if_unanswered(run):
            [answer] = await self._offered(known, lambda: self._store.enqueue([run], ready_max=self._ready_max))
        self._refuse(answer, known)
        link_runs([run.id], self.trace_namespace)
        if answer.answer is Answer.ALREADY:
            [there] = await self._store.get_runs([run.id])
            return there_already(run, there or run)
        await self._record_enqueued([known.id], [run.id], run.payload)
        return RunAccepted(run)

    def _joined(self) -> Joins:
        if not self._store.capabilities.joins:
            raise InvalidInput(
                f"a {self._store.capabilities.name} store cannot be part of your transaction",
                where="connection",
                cure="use a PostgreSQL store, or leave it out",
            )
        return cast("Joins", self._store)

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
        known = await self._job(job)
        now_ms = await self._store.now()
        due_ms = self._due(at, delay, now_ms)
        rank = None if priority is None else priority_of(priority)
        bodies = await bodies_for(self._registry, known, params)
        ids: list[str] = []

        if joined is not None:
            await self._see_to(known)

        async def write(runs: RunsAlike) -> None:
            if joined is None:
                answers = await self._offered(known, lambda: self._store.enqueue(runs, ready_max=self._ready_max))
            else:
                answers = await joined.enqueue_in(connection, runs, ready_max=self._ready_max)
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
            link_runs(ids, self.trace_namespace)
            if joined is None:  # else it may yet be undone
                await self._record_enqueued([known.id], ids)
        return ids

    async def run_now(
        self, job: object, params: Mapping[str, Any] | None = None, *, anyway: bool = False, id: str | None = None
    ) -> Run:
        """Run a job now, whatever its schedule or pauses say; `Conflict` if one is live and they may not overlap.

        However many ask at once, one of them gets its run.  The same `id` again is the same run.
        """
        known = await self._job_to_run(job)
        unless_live = known.overlap is not Overlap.ALLOW and not anyway
        payload = self._payload(known, params)
        now_ms = await self._store.now()
        run = self._run(known, payload, now_ms, now_ms=now_ms, id=id, cause=Cause.FORCED)
        audit = self._on_record("run", known.id, run.id)
        with named_if_unanswered(run):
            [answer] = await self._store.enqueue([run], ready_max=self._ready_max, unless_live=unless_live, audit=audit)
        if answer.answer is Answer.OVERLAPPED:
            raise await overlapped(self._store, known, answer.detail, anyway=ANYWAY)
        self._refuse(answer, known)
        link_runs([run.id], self.trace_namespace)
        if answer.answer is Answer.ALREADY:
            [there] = await self._store.get_runs([run.id])
            return said(there_already(run, there or run))
        return run

    async def cancel(self, ref: object, *, reason: str = "") -> list[RunAnswer]:
        """Cancel a run by its id, or all live runs of a job: queued ones at once, running ones by request."""
        name = job_id_of(ref)
        why = as_words(reason) or f"cancelled by {self._actor}"
        audit = self._runs_on_record("cancel", name, reason)
        [run], spoilt = await as_far(self._store.get_runs([name]))
        if run is not None or spoilt:
            return await self._store.cancel(run_ids=[name], reason=why, audit=audit)
        await self.find_job(name)
        return await self._store.cancel(job_id=name, reason=why, audit=audit)

    async def cancel_runs(self, run_ids: Sequence[str], *, reason: str = "") -> list[RunAnswer]:
        """Cancel these runs, in batches; what is over already is answered so."""
        why = as_words(reason) or f"cancelled by {self._actor}"
        answers: list[RunAnswer] = []
        for start in range(0, len(run_ids), BATCH_MAX):
            batch = run_ids[start : start + BATCH_MAX]
            subject = batch[0] if len(batch) == 1 else counted(len(batch), "run")
            audit = self._runs_on_record("cancel", subject, reason)
            answers += await self._store.cancel(run_ids=batch, reason=why, audit=audit)
        return answers

    async def revive(self, run_ids: Sequence[str] | None = None, *, job: object = None) -> list[RunAnswer]:
        """Let dead letters run again: these, those of a job, or (neither given) all."""
        return await self._revive_each(self._dead(run_ids, job), self._chosen_by(run_ids, job))

    async def drop(self, run_ids: Sequence[str] | None = None, *, job: object = None) -> int:
        """Forget dead letters for good: these, those of a job, or all."""
        return await self._drop_each(self._dead(run_ids, job), self._chosen_by(run_ids, job))

    # jobs

    async def put_jobs(self, jobs: Sequence[Job]) -> list[JobAnswer]:
        """Add or change jobs; raises `Conflict` with everything that stands against it, the others are written."""
        checked = [self._adopted(check_job(job)) for job in jobs]
        answers = await self._put_on_record(self._store, [JobPut(job) for job in checked])
        await say_unknown_handlers(self._store, self._registry, checked)
        refused = [answer for answer in answers if answer.answer not in (Answer.OK, Answer.ALREADY)]
        if refused:
            raise Conflict("; ".join(f"job {answer.id!r}: {answer.detail}" for answer in refused[:20]))
        return answers

    async def delete_jobs(self, ids: Sequence[str], *, reason: str = "") -> None:
        """Take jobs away; waiting runs are cancelled, running ones may end.

        Raises `Conflict`, and takes none away, if a living node declares one of them: it would come back.
        """
        there = {job.id: job for job in await refuse_backed(self._store, ids)}
        for start in range(0, len(ids), BATCH_MAX):
            batch = list(ids[start : start + BATCH_MAX])
            was = change_words(there.get(batch[0]), None) if len(batch) == 1 else ""
            audit = self._jobs_on_record("delete", batch, was)
            why = as_words(reason) or f"deleted by {self._actor}"
            answers = await self._store.delete_jobs(batch, reason=why, audit=audit)
            missing = [job_id for job_id, answer in zip(batch, answers, strict=True) if answer is not Answer.OK]
            if missing:
                raise NotFound("job", missing[0], cure="`pollux jobs` lists them")

    # stops

    async def pause(
        self,
        job: object = None,
        *,
        group: str | None = None,
        target: str | None = None,
        everything: bool = False,
        reason: str = "",
        duration: str | float | None = None,
    ) -> str:
        """Stop a job, a group, a target or everything, for a `duration` or until resumed; answers the stop's name."""
        key = await self._stop_key(job, group, target, everything)
        now_ms = await self._store.now()
        expires_ms = None if duration is None else now_ms + read_at("duration", duration_ms, duration)
        value = {"reason": as_words(reason), "by": self._actor, "at_ms": now_ms}
        lasts = "" if expires_ms is None else f"for {format_ms(expires_ms - now_ms)}"
        audit = self._on_record("pause", key.removeprefix(STOP), "; ".join(filter(None, (reason, lasts))))
        await self._store.put_notes([NotePut(key, value, expires_ms=expires_ms)], audit=audit)
        return key

    async def resume(
        self,
        job: object = None,
        *,
        group: str | None = None,
        target: str | None = None,
        everything: bool = False,
    ) -> bool:
        """Take the same pause away; false if there was none."""
        key = await self._stop_key(job, group, target, everything)
        audit = self._on_record("resume", key.removeprefix(STOP))
        return await self._store.put_notes([NotePut(key)], audit=audit) == [Answer.OK]

    async def stops(self) -> list[Note]:
        """All that is paused; one that nobody here can read stands, too."""
        return (await stops_as_far(self._store.notes(STOP)))[0]

    # answers

    async def why(self, ref: object) -> Why:
        """Why does it run, or not?  For a run or a job, in words, with the expected start and the cure."""
        name = job_id_of(ref)
        now_ms = await self._store.now()
        stops, nodes = await self.stops(), await self.nodes()
        [run], spoilt = await as_far(self._store.get_runs([name]))
        if spoilt:
            return why_unreadable_run(spoilt[0])
        if run is not None:
            [owner], unreadable = await as_far(self._store.get_jobs([run.job_id]))
            if unreadable and run.state in {RunState.HELD, RunState.READY}:
                return why_unreadable(unreadable[0], run)
            ahead = await ahead_of(self._store, run)
            why = why_run(run, owner, stops=stops, nodes=nodes, ahead=ahead, now_ms=now_ms)
            return await named_start(self._store, why, owner, run)
        try:
            job = await self.find_job(name)
        except NotFound:
            if (declared := self._registry.unwritten(name)) is not None:
                return why_unwritten(declared, app_words(self._registry, declared))
            cure = f"`pollux jobs` and `pollux runs` list them; if it was a run: {FORGOTTEN}"
            raise NotFound("job or run", name, cure=cure) from None
        if isinstance(job, Unreadable):
            return why_unreadable(job)
        live = await live_runs(self, job_id=job.id)
        run = live_by_job(live.runs, now_ms).get(job.id)
        ahead = await ahead_of(self._store, run)
        failed = await self._last_failed(job)
        why = why_job(job, stops=stops, now_ms=now_ms, live=run, nodes=nodes, ahead=ahead, failed=failed)
        return beside_unreadable(await named_start(self._store, why, job), live.unreadable)

    async def nodes(self) -> list[Node]:
        """Those that live; who leads is told by the term that stands, not by what a node believed in its last beat."""
        return by_term(await self._store.nodes(), await self._store.versions())

    async def overdue(self, *, limit: int = 1) -> list[Job]:
        """Jobs whose due has passed and was not fired yet, the most overdue first; of those that can be read."""
        now_ms, found = await self._store.now(), list[Job]()
        for version in await self._store.versions():
            found += await due_as_far(self._store.of_version(version.number), before_ms=now_ms, limit=limit)
        return sorted(found, key=lambda job: (job.next_due_ms or 0, job.id))[:limit]

    # inside

    def _adopted(self, job: Job) -> Job:
        try:
            return self._registry.adopt(job)
        except InvalidInput as error:
            raise error.at(f"job {job.id!r}: params") from error

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
                raise StoreFull(f"run {answer.id} was refused: {self._ready_max} runs wait; add seats or workers")
            case Answer.BUSY:
                raise PolluxError(f"run {answer.id} was refused: the store is busy; try again")

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
            answers += await self._store.revive(ids, audit=self._runs_on_record("revive", "dead letters", by))
        return answers

    async def _drop_each(self, dead: AsyncIterator[list[str]], by: str) -> int:
        dropped = 0
        async for ids in dead:
            named = Pruning(ids=tuple(ids), limit=len(ids))
            dropped += await self._store.prune(named, audit=self._drops_on_record(ids, by))
        return dropped

    def _chosen_by(self, run_ids: Sequence[str] | None, job: object) -> str:
        return "" if run_ids is not None else filter_words(_dead_of(job))

    async def _stop_key(self, job: object, group: str | None, target: str | None, everything: object) -> str:
        given = [job is not None, group is not None, target is not None, bool(everything)]
        if sum(given) != 1:
            raise InvalidInput(
                "say what to stop: exactly one of a job, a group, a target, or everything",
                cure="pause('home'), pause(group='edge'), pause(target='db'), pause(everything=True)",
            )
        check_stop(group=group, target=target)
        if job is not None:
            await self.find_job(job)
            return stop_key("job", job_id_of(job))
        if group is not None:
            return stop_key("group", group)
        return stop_key("all") if target is None else stop_key("target", target)


def _dead_of(job: object) -> RunFilter:
    return RunFilter(states=(RunState.DEAD,), job_id=None if job is None else job_id_of(job))


def default_actor(kind: str) -> str:
    """`cli:ann`, `app:ann`: who is at the keyboard, as far as the machine knows."""
    try:
        return f"{kind}:{getpass.getuser()}"
    except (KeyError, OSError):
        return kind
