"""Shared verbs by name, and what goes along with any of them: the seal, the audit log, the decoding of a dump."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar, cast

from pollux.model import Job, Note, Run
from pollux.store.backend import MovedAway, Page
from pollux.store.contract import Audit
from pollux.store.decoding import decode_or_raise
from pollux.store.relational import jobs, nodes, notes, records, runs
from pollux.store.relational.rows import Row
from pollux.store.relational.transaction import Transaction

T = TypeVar("T")
Verb = Callable[..., Coroutine[Any, Any, T]]

SHARED_VERBS: dict[str, Verb[Any]] = {
    verb.__name__: verb
    for verb in (
        *(jobs.put_jobs, jobs.delete_jobs, jobs.move_jobs, jobs.get_jobs, jobs.list_jobs, jobs.due),
        *(runs.cancel, runs.revive, runs.get_runs, runs.list_runs, notes.put_notes, notes.notes),
        *(nodes.beat, nodes.nodes, nodes.elect, nodes.resign, nodes.versions),
        *(records.log, records.read_log, records.dump, records.load),
    )
}


class DecodesRows(Protocol):
    def job(self, row: Row) -> Job: ...

    def run(self, row: Row) -> Run: ...

    def note(self, row: Row) -> Note: ...


async def whole(tx: Transaction, verb: Verb[T], args: Sequence[Any], audit: Audit | None, *, unless_moved: bool) -> T:
    """Run a verb; it is refused if the store was moved, and the lines of its audit are written with it."""
    if unless_moved and await notes.is_sealed(tx):
        raise MovedAway
    answer = await verb(tx, *args)
    if audit is not None:
        await records.log(tx, audit.of(cast("Any", answer)))
    return answer


def decoded_dump(page: Page, backend: DecodesRows) -> Page:
    """A page of a dump with records for its rows."""
    read: dict[str, Callable[[Row], Any]] = {"job": backend.job, "run": backend.run, "note": backend.note}
    records = [
        (kind, decode_or_raise(read[kind], row, f"{kind} {row[0]!r}") if kind in read else row)
        for kind, row in page.rows
    ]
    return Page(records, page.next)
