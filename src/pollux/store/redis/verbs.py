"""Verbs of the contract over the functions of the server, but for those that are called for every turn or run.

Each takes a `RedisCalls`: what a call of a verb sends along with each function.  A function works on a bounded number
of items; a verb that may mean more calls it again until all is done.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from msgspec.structs import replace

from pollux.model import AT_THE_GATE, AuditLine, Counts, Job, Node, NotePut, QueueDepth, Term, Version
from pollux.store.backend import Page
from pollux.store.contract import Answer, Audit, JobAnswer, JobPut, Pruning, Renewal, Renewed, RunAnswer
from pollux.store.dump_format import Record
from pollux.store.redis import codec, listing
from pollux.store.redis.calls import RedisCalls
from pollux.store.redis.errors import DeleteUnfinished

PIECE = 250  # items that one function works on where there may be any number of them
LINES_MAX = 50  # audit lines that one function hashes: some milliseconds
T = TypeVar("T")


# jobs


async def put_jobs(calls: RedisCalls, puts: Sequence[JobPut]) -> list[JobAnswer]:
    items = [codec.job_put(put.job, put.revision) for put in puts]
    found = await _finished_before(partial(calls, "put_jobs", puts=items), calls, [put.job.id for put in puts])
    return [codec.job_answer(put, row, calls.version) for put, row in zip(puts, found, strict=True)]


async def delete_jobs(calls: RedisCalls, ids: Sequence[str], reason: str) -> list[Answer]:
    answers, left = await calls("delete_jobs", ids=ids, reason=reason, limit=PIECE)
    if left:
        await finish(calls.rest(), left)
    return _answers(answers)


async def move_jobs(calls: RedisCalls, ids: Sequence[str], to: int) -> list[Answer]:
    answers, left = await calls("move_jobs", ids=ids, to=to, after=False, limit=PIECE)
    rest = calls.rest()
    while left:
        job_id, after = left.pop()
        left += (await rest("move_jobs", ids=[job_id], to=to, after=after, limit=PIECE))[1]
    return _answers(answers)


async def finish(calls: RedisCalls, ids: Sequence[str] = (), limit: int | None = None) -> int:
    """Do what deletes and moves have left of these jobs, or of all: how many runs were looked at, up to `limit`."""
    looked, is_more = 0, True
    while is_more and (limit is None or looked < limit):
        piece = PIECE if limit is None else min(PIECE, limit - looked)
        count, is_more, move = await calls("finish", ids=ids, limit=piece)
        looked += count
        if move:
            job_id, after, to = move
            await calls("move_jobs", ids=[job_id], after=after, to=to, limit=piece)
            looked += piece
    return looked


async def _finished_before(add: Callable[[], Awaitable[T]], calls: RedisCalls, ids: Sequence[str]) -> T:
    """Add jobs in whose place a delete was cut off: what it left ends first."""
    while True:
        try:
            return await add()
        except DeleteUnfinished:
            await finish(calls.rest(), ids)


async def get_jobs(calls: RedisCalls, ids: Sequence[str]) -> dict[str, Any]:
    rows = codec.job_rows(await calls.raw("get_jobs", ids=ids))
    return {row[0]: codec.stored_job(row) for row in rows if row}


async def due(calls: RedisCalls, after: tuple[int, str] | None, before_ms: int, limit: int) -> list[Any]:
    found = await calls.raw("due", after=after or False, before=before_ms, limit=limit)
    return [codec.stored_job(row) for row in codec.job_rows(found)]


# runs


async def renew(calls: RedisCalls, renewals: Sequence[Renewal], lease_ms: int) -> list[Renewed]:
    answers = await calls("renew", items=codec.renewal_rows(renewals), lease_ms=lease_ms)
    return [Renewed(Answer(answer), cancel) for answer, cancel in answers]


async def cancel(calls: RedisCalls, run_ids: Sequence[str], job_id: str | None, reason: str) -> list[RunAnswer]:
    """A part at a time; the first one that does anything has the lines."""
    asked = {"ids": run_ids, "job": job_id or False, "reason": reason, "limit": PIECE, "after": False, "upto": False}
    found: list[Any] = []
    while True:
        part, after, upto, does_any = await calls("cancel", **asked)
        found += part
        if after is False:
            return codec.cancel_answers(found, len(run_ids))
        if does_any:
            calls = calls.silent()
        asked |= {"ids": [], "after": after, "upto": upto}


async def revive(calls: RedisCalls, run_ids: Sequence[str]) -> list[RunAnswer]:
    found = await calls("revive", ids=run_ids, at_the_gate=AT_THE_GATE)
    return run_answers(run_ids, found)


def run_answers(run_ids: Sequence[str], found: Sequence[codec.Row]) -> list[RunAnswer]:
    return [RunAnswer(Answer(answer), run_id, detail) for run_id, (answer, detail) in zip(run_ids, found, strict=True)]


async def get_runs(calls: RedisCalls, ids: Sequence[str]) -> dict[str, codec.RunParts]:
    found = codec.run_parts(await calls.raw("get_runs", ids=ids))
    return {run_id: row for run_id, row in zip(ids, found, strict=True) if row[1]}


async def counts(calls: RedisCalls, all_versions: bool) -> Counts:  # noqa: FBT001  called by position
    return Counts(*await calls("counts", all_versions=all_versions))


async def lines(calls: RedisCalls, before: str | None) -> tuple[QueueDepth, ...]:
    found = await calls("lines", before=before or "")
    return tuple([QueueDepth(ready, None if first_ms is False else first_ms) for ready, first_ms in found])


# notes, nodes and terms


async def put_notes(calls: RedisCalls, puts: Sequence[NotePut]) -> list[Answer]:
    return _answers(await calls("put_notes", puts=codec.note_rows(puts)))


async def notes(calls: RedisCalls, prefix: str) -> list[tuple[str, codec.Row]]:
    return [(row[0], row) async for row in listing.note_rows(calls, prefix, expired=False)]


async def beat(calls: RedisCalls, node: Node, ttl_ms: int) -> None:
    await calls("beat", ttl_ms=ttl_ms, **codec.node_of(node))


async def nodes(calls: RedisCalls) -> list[Node]:
    return codec.nodes_from(await calls("nodes"))


async def elect(calls: RedisCalls, node_id: str, ttl_ms: int, seen: int) -> Term:
    """`seen`: the highest number that this process was answered; a store that lost it never gives it away again."""
    return Term(*await calls("elect", node=node_id, ttl_ms=ttl_ms, seen=seen))


async def resign(calls: RedisCalls, node_id: str, term: int) -> None:
    await calls("resign", node=node_id, term=term)


async def versions(calls: RedisCalls) -> list[Version]:
    return [Version(number, Counts(*counts), term, leader) for number, counts, term, leader in await calls("versions")]


async def wake(calls: RedisCalls) -> None:
    await calls("wake")


# records


async def log(calls: RedisCalls, added: Sequence[AuditLine]) -> None:
    for first in range(0, len(added), LINES_MAX):
        some = tuple(added[first : first + LINES_MAX])
        await replace(calls, audit=Audit(some, each=True))("log")


async def read_log(calls: RedisCalls, after: int, limit: int, newest: bool) -> Page:  # noqa: FBT001  called by position
    found = await calls("read_log", after=after, limit=limit + 1, newest=newest)
    added = [listing.decode_line(line) for line in found[:limit]]
    following = added[-1].seq if len(found) > limit else None
    return Page(added[::-1] if newest else added, following)


async def dump(calls: RedisCalls, after: str | None, limit: int) -> Page:
    if after is None and await calls("unfinished"):
        await finish(calls)  # what is noted of it goes into no dump, and nothing ends it where that is loaded
    return await listing.dump(calls, after, limit)


async def load(calls: RedisCalls, records: Sequence[Record]) -> int:
    ids = [value.id for value in records if isinstance(value, Job)]
    items, new = [codec.record_row(value) for value in records], 0
    for first in range(0, len(items), PIECE):
        add = partial(calls, "load", items=items[first : first + PIECE])
        new += sum(await _finished_before(add, calls, ids))
    return new


async def prune(calls: RedisCalls, what: Pruning) -> int:
    if what.version is not None:
        return int(await calls("drop_version", version=what.version))
    if calls.audit is not None:
        return int(await calls("prune", **codec.pruning_of(what, what.limit)))
    gone = 0
    while gone < what.limit:
        piece = min(PIECE, what.limit - gone)
        went = int(await calls("prune", **codec.pruning_of(what, piece)))
        gone += went
        if went < piece:
            break
    return gone + await finish(calls.rest(), limit=what.limit - gone)


def _answers(found: Sequence[str]) -> list[Answer]:
    return [Answer(each) for each in found]


VERBS: dict[str, Callable[..., Awaitable[Any]]] = {
    verb.__name__: verb
    for verb in (
        *(put_jobs, delete_jobs, move_jobs, get_jobs, listing.list_jobs, due),
        *(renew, cancel, revive, get_runs, listing.list_runs, counts, lines, put_notes, notes),
        *(beat, nodes, elect, resign, versions, wake, log, read_log, dump, load),
    )
}
