"""The handle on a Redis store: it checks what comes in, sends each verb to its script, and waits.

One handle is one client with a few connections, and two more for waiting; a twin is another one.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from functools import partial
from typing import Any

from pollux.model import (
    AT_THE_GATE,
    AuditLine,
    Job,
    Node,
    Note,
    NotePut,
    Plan,
    QueueDepth,
    Run,
    Term,
    Version,
    check_version,
)
from pollux.store.contract import (
    BATCH_MAX,
    FEED_MAX,
    LOSSES_MAX,
    PAGE_MAX,
    READY_MAX,
    Advanced,
    Answer,
    Audit,
    Capabilities,
    Claimed,
    Counts,
    DumpPage,
    Feed,
    JobAnswer,
    JobFilter,
    JobPage,
    JobPut,
    LogPage,
    Pruning,
    Renewal,
    Renewed,
    RunAnswer,
    RunFilter,
    RunPage,
    Settlement,
)
from pollux.store.dump_format import read_record
from pollux.store.job_cache import JobReading
from pollux.store.limits import (
    check_batch,
    check_first,
    check_page,
    check_plan,
    check_pruning,
    check_settlements,
    checked_job,
    checked_notes,
)
from pollux.store.redis import codec, fast_path, listing, script_calls
from pollux.store.redis.connection import RedisConnections
from pollux.store.redis.handle import PIECE, Looked, RedisHandle
from pollux.store.redis.server import problems_of
from pollux.store.redis.server_clock import RedisClock
from pollux.store.redis.wakeup import place_of
from pollux.store.server_clock import ServerClock


class RedisStore(RedisHandle):
    capabilities = Capabilities(name="redis", durable=False)
    _server_clock: ServerClock | None = None

    @property
    def scheduler_version(self) -> int:
        return self._version

    async def open(self) -> None:
        if self._link is not None:
            return
        link = RedisConnections(self._address, self._deadline_ms)
        try:
            now_ms = await link.open()
        except BaseException:
            await link.close()
            raise
        link.on_new_home = self._door.at_new_home
        self._door.time = RedisClock(self._clock, now_ms)
        self._door.log_turn = asyncio.Lock()
        self._door.link, self._door.pid = link, os.getpid()

    async def close(self) -> None:
        if self._link is None:
            return
        link, self._door.link = self._link, None
        if os.getpid() == self._door.pid:
            for handle in list(self._door.handles):
                await handle.hush()
            await link.close()

    def twin(self) -> RedisStore:
        options: Any = {"clock": self._clock, "deadline_ms": self._deadline_ms}
        return RedisStore(self._url, **options, scheduler_version=self._version)

    def of_version(self, number: int) -> RedisStore:
        known = self._door.versions.get(number)
        if isinstance(known, RedisStore):
            return known
        other = RedisStore(self._url, clock=self._clock, deadline_ms=self._deadline_ms, scheduler_version=number)
        other._door = self._door
        self._door.handles.add(other)
        self._door.versions[number] = other
        return other

    # jobs

    async def put_jobs(
        self, puts: Sequence[JobPut], *, audit: Audit[list[JobAnswer]] | None = None, now_ms: int | None = None
    ) -> list[JobAnswer]:
        check_batch(puts, "jobs")
        items = [codec.job_put(checked_job(put.job), put.revision) for put in puts]
        hoped = [("ok", self._revision_before(put) + 1, "", "") for put in puts]

        def read(found: list[codec.Row]) -> list[JobAnswer]:
            return [script_calls.job_answer(put, row, self._version) for put, row in zip(puts, found, strict=True)]

        said = [f"ok {row[1]}  " for row in hoped]
        put_all = partial(self._recorded, audit, "put_jobs", read, (hoped, said), now_ms, puts=items)
        return await self._finished_before(put_all, [put.job.id for put in puts], now_ms)

    async def delete_jobs(
        self,
        ids: Sequence[str],
        *,
        reason: str = "",
        audit: Audit[list[Answer]] | None = None,
        now_ms: int | None = None,
    ) -> list[Answer]:
        check_batch(ids, "jobs")
        asked = {"ids": ids, "reason": reason, "limit": PIECE}
        said = ["ok"] * len(ids)
        answers: list[Answer]
        answers, left = await self._recorded(
            _of_first(audit), "delete_jobs", _behind_answers, ((said, ()), said), now_ms, **asked
        )
        if left:
            await self._finish(left, now_ms)
        return answers

    async def get_jobs(self, ids: Sequence[str]) -> list[Job | None]:
        check_batch(ids, "jobs")
        found, reading = await self._job_rows("get_jobs", ids=ids), JobReading(self._jobs)
        return reading.answer([reading.job(codec.job_given(row)) if row else None for row in found])

    async def list_jobs(self, where: JobFilter | None = None, *, after: str | None = None, limit: int = 100) -> JobPage:
        return await listing.list_jobs(self._open(), self._jobs, where or JobFilter(), after, check_page(limit))

    async def move_jobs(
        self, ids: Sequence[str], to: int, *, audit: Audit[list[Answer]] | None = None, now_ms: int | None = None
    ) -> list[Answer]:
        check_batch(ids, "jobs")
        asked, said = {"to": check_version(to), "limit": PIECE}, ["ok"] * len(ids)
        answers: list[Answer]
        answers, left = await self._recorded(
            _of_first(audit), "move_jobs", _behind_answers, ((said, []), said), now_ms, ids=ids, after=False, **asked
        )
        while left:
            job_id, after = left.pop()
            left += (await self._run("move_jobs", now_ms, ids=[job_id], after=after, **asked))[1]
        return answers

    async def due(self, *, after: tuple[int, str] | None = None, before_ms: int, limit: int) -> list[Job]:
        found = await self._job_rows("due", after=after or False, before=before_ms, limit=limit)
        reading = JobReading(self._jobs)
        return reading.answer(reading.jobs([codec.job_given(row) for row in found]))

    # plan

    async def feed(self, *, limit: int, wait_ms: int = 0, now_ms: int | None = None) -> Feed:

        async def look(waited_ms: float) -> Looked[Feed]:
            known = self._entries
            at_ms = None if now_ms is None else now_ms + int(waited_ms)
            exact = [entry_id for entry_id in known if entry_id < script_calls.COUNTED_MAX]
            found = await self._open().run_raw("feed", limit=limit, known=exact, now=at_ms, v=self._version)
            if self._entries is not known:  # forgotten meanwhile: at another server the same ids may be other entries
                return await look(waited_ms)
            items = script_calls.feed_items(found[2], known)
            self._entries = {item.id: item for item in items}
            return Feed(items, int(found[0])), bool(items), None, place_of(found[1].decode())

        return await self._wait(look, wait_ms)

    async def advance(self, term: int, plan: Plan, *, now_ms: int | None = None) -> Advanced:
        check_plan(plan)
        said = await self._run("advance", now_ms, **script_calls.plan_of(term, plan))
        answer, at_ms, firings, updates, ready, seats, waiting = said
        made = tuple([Answer(each) for each in firings])
        learnt = tuple([Answer(each) for each in updates])
        return Advanced(Answer(answer), at_ms, made, learnt, ready, seats, tuple(waiting))

    # runs

    async def enqueue(
        self,
        runs: Sequence[Run],
        *,
        notes: Sequence[NotePut] = (),
        ready_max: int = READY_MAX,
        unless_live: bool = False,
        audit: Audit[list[RunAnswer]] | None = None,
        now_ms: int | None = None,
    ) -> list[RunAnswer]:
        check_batch(runs, "runs")
        asked = None if notes or unless_live or audit is not None else fast_path.enqueue_of(runs, self._version)
        if asked and await self._open().try_plain("enqueue_plain", **asked, ready_max=ready_max, now=now_ms):
            return [RunAnswer(Answer.OK, run_id) for run_id in asked["ids"]]
        made = [codec.checked_row(run) for run in runs]
        written = codec.note_rows(checked_notes(notes))
        ids = [row[0] for row in made]

        def read(found: Any) -> list[RunAnswer]:
            return _run_answers(ids, [["ok", ""]] * len(ids) if found is True else found)

        guess = True, ["ok "] * len(ids)
        asked = {"rows": made, "notes": written, "ready_max": ready_max, "unless_live": unless_live}
        return await self._recorded(audit, "enqueue", read, guess, now_ms, **asked)

    async def claim(
        self,
        *,
        node: str,
        token: str,
        limit: int,
        lease_ms: int,
        first: int = 1,
        losses_max: int = LOSSES_MAX,
        feed_max: int = FEED_MAX,
        wait_ms: int = 0,
        now_ms: int | None = None,
    ) -> Claimed:
        check_first(first)
        asking = {"node": node, "token": token, "limit": min(limit, BATCH_MAX), "lease_ms": lease_ms, "first": first}
        asking |= {"losses_max": losses_max, "feed_max": feed_max}

        async def look(waited_ms: float) -> Looked[Claimed]:
            claimed, place = await self._take(asking, None if now_ms is None else now_ms + int(waited_ms))
            left_ms = None if claimed.look_again_ms is None else claimed.look_again_ms - claimed.now_ms
            return claimed, bool(claimed.runs) or claimed.answer is not Answer.OK, left_ms, place

        offers = self._offer_of(asking) if wait_ms > 0 and now_ms is None else None
        return await self._wait(look, wait_ms, node=node, offers=offers, accept=self._gift)

    async def renew(self, renewals: Sequence[Renewal], *, lease_ms: int, now_ms: int | None = None) -> list[Renewed]:
        check_batch(renewals, "renewals")
        for renewal in renewals:
            self._leases.forget(renewal.run_id)
        answers = await self._run("renew", now_ms, items=script_calls.renewal_rows(renewals), lease_ms=lease_ms)
        return [Renewed(Answer(answer), cancel) for answer, cancel in answers]

    async def settle(self, settlements: Sequence[Settlement], *, now_ms: int | None = None) -> list[Answer]:
        check_settlements(settlements)
        await asyncio.sleep(0)  # a claim of the same moment goes first: the server is at it while we write this down
        asked = self._leases.settle_of(settlements)
        if asked is not None and await self._open().try_plain("settle_plain", **asked):
            return [Answer.OK] * len(settlements)
        items = [codec.settlement_row(settlement) for settlement in settlements]
        answers = await self._run("settle", now_ms, items=items, at_the_gate=AT_THE_GATE)
        return [Answer.OK] * len(items) if answers is True else [Answer(each) for each in answers]

    async def cancel(
        self,
        *,
        run_ids: Sequence[str] = (),
        job_id: str | None = None,
        reason: str = "",
        audit: Audit[list[RunAnswer]] | None = None,
        now_ms: int | None = None,
    ) -> list[RunAnswer]:
        check_batch(run_ids, "runs")
        return await self._cancel(script_calls.cancel_of(run_ids, job_id, reason, PIECE), audit, now_ms)

    async def revive(
        self, run_ids: Sequence[str], *, audit: Audit[list[RunAnswer]] | None = None, now_ms: int | None = None
    ) -> list[RunAnswer]:
        check_batch(run_ids, "runs")
        read, guess = partial(_run_answers, run_ids), ([("ok", "")] * len(run_ids), ["ok "] * len(run_ids))
        return await self._recorded(audit, "revive", read, guess, now_ms, ids=run_ids, at_the_gate=AT_THE_GATE)

    async def list_runs(self, where: RunFilter | None = None, *, after: str | None = None, limit: int = 100) -> RunPage:
        return await listing.list_runs(self._open(), where or RunFilter(), after, check_page(limit))

    async def get_runs(self, ids: Sequence[str]) -> list[Run | None]:
        check_batch(ids, "runs")
        reading = codec.RunReading()
        return reading.answer(reading.runs(await self._open().run_raw("get_runs", ids=ids)))

    async def now(self) -> int:
        if self._server_clock is None:
            self._server_clock = ServerClock(self._clock, self._server_now)
        return await self._server_clock.now_ms()

    async def _server_now(self) -> int:
        return await self._open().time_ms()

    async def counts(self, *, all_versions: bool = False) -> Counts:
        return Counts(*await self._run("counts", all_versions=all_versions))

    async def lines(self, *, before: str | None = None, now_ms: int | None = None) -> tuple[QueueDepth, ...]:
        found = await self._run("lines", now_ms, before=before or "")
        return tuple([QueueDepth(ready, None if first_ms is False else first_ms) for ready, first_ms in found])

    async def problems(self) -> tuple[str, ...]:
        return problems_of(await self._open().info(), self._address)

    async def prune(self, what: Pruning, *, audit: Audit[int] | None = None) -> int:
        check_pruning(what, is_told=audit is not None)
        if audit is not None:
            guess = len(what.ids), [str(len(what.ids))]
            return await self._recorded(audit, "prune", int, guess, **script_calls.pruning_of(what, what.limit))
        gone = 0
        while gone < what.limit:
            piece = min(PIECE, what.limit - gone)
            went = int(await self._run("prune", **script_calls.pruning_of(what, piece)))
            gone += went
            if went < piece:
                break
        return gone + await self._finish(limit=what.limit - gone)

    # notes

    async def put_notes(
        self, puts: Sequence[NotePut], *, audit: Audit[list[Answer]] | None = None, now_ms: int | None = None
    ) -> list[Answer]:
        written, said = codec.note_rows(checked_notes(puts)), ["ok"] * len(puts)
        return await self._recorded(audit, "put_notes", _answers, (said, said), now_ms, puts=written)

    async def notes(self, prefix: str = "", *, now_ms: int | None = None) -> list[Note]:
        found, reading = listing.note_rows(self._open(), prefix, expired=False, now_ms=now_ms), codec.note_reading()
        return reading.answer([note async for row in found if (note := reading(row, row[0])) is not None])

    # nodes and terms

    async def beat(self, node: Node, *, ttl_ms: int, now_ms: int | None = None) -> None:
        check_version(node.scheduler_version)
        await self._run("beat", now_ms, ttl_ms=ttl_ms, **script_calls.node_of(node))

    async def nodes(self, *, now_ms: int | None = None) -> list[Node]:
        return script_calls.nodes_from(await self._run("nodes", now_ms))

    async def leave(self, node_id: str) -> None:
        await self._run("leave", id=node_id)

    async def elect(self, node_id: str, *, ttl_ms: int, now_ms: int | None = None) -> Term:
        term = Term(*await self._run("elect", now_ms, node=node_id, ttl_ms=ttl_ms, seen=self._term_seen))
        self._term_seen = max(self._term_seen, term.number)
        return term

    async def resign(self, node_id: str, *, term: int, now_ms: int | None = None) -> None:
        await self._run("resign", now_ms, node=node_id, term=term)

    # versions

    async def versions(self, *, now_ms: int | None = None) -> list[Version]:
        found = await self._run("versions", now_ms)
        return [Version(number, Counts(*counts), term, leader) for number, counts, term, leader in found]

    async def drop_version(
        self, number: int, *, audit: Audit[Answer] | None = None, now_ms: int | None = None
    ) -> Answer:
        asked = {"number": check_version(number)}
        return await self._recorded(audit, "drop_version", Answer, ("ok", ["ok"]), now_ms, **asked)

    # wake-ups

    async def wake(self) -> None:
        await self._run("wake")

    # records

    async def log(self, lines: Sequence[AuditLine]) -> None:
        check_batch(lines, "lines")
        await self._recorded(lambda _: lines, "log", bool, (True, ()))

    async def read_log(self, *, after: int = 0, limit: int = 100, newest: bool = False) -> LogPage:
        limit = check_page(limit)
        found = await self._run("read_log", after=after, limit=limit + 1, newest=newest)
        lines = [listing.decode_line(line) for line in found[:limit]]
        following = lines[-1].seq if len(found) > limit else None
        return LogPage(tuple(reversed(lines)) if newest else tuple(lines), following)

    async def dump(self, *, after: str | None = None, limit: int = PAGE_MAX) -> DumpPage:
        limit = check_page(limit)
        if after is None and await self._run("unfinished"):
            await self._finish()  # what is noted of it goes into no dump, and where that is loaded nobody would end it
        return await listing.dump(self._open(), self._jobs, after, limit)

    async def load(self, records: Sequence[tuple[str, Any]]) -> int:
        check_batch(records, "records")
        read = [read_record(kind, data) for kind, data in records]
        jobs = [value.id for value in read if isinstance(value, Job)]
        items, new = [script_calls.record_row(value) for value in read], 0
        for first in range(0, len(items), PIECE):
            load = partial(self._run, "load", items=items[first : first + PIECE])
            new += sum(await self._finished_before(load, jobs))
        return new


def _of_first(audit: Audit[list[Answer]] | None) -> Audit[tuple[Any, ...]] | None:
    return None if audit is None else lambda found: audit(found[0])


def _answers(found: Sequence[str]) -> list[Answer]:
    return [Answer(each) for each in found]


def _behind_answers(found: codec.Row) -> tuple[Any, ...]:
    """The answers, and what else was said."""
    return _answers(found[0]), *found[1:]


def _run_answers(run_ids: Sequence[str], found: Sequence[codec.Row]) -> list[RunAnswer]:
    return [RunAnswer(Answer(answer), run_id, detail) for run_id, (answer, detail) in zip(run_ids, found, strict=True)]
