"""Verbs of records: prune, the audit log, dump and load."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from msgspec.structs import replace

from pollux.model import LIVE, AuditLine, Job, Note, NotePut, Run, chained
from pollux.store.backend import Page
from pollux.store.contract import Pruning
from pollux.store.dump_format import Record, TermRecord, Tombstone, dump_place, entries_of
from pollux.store.memory.history import DEAD_LETTER, FAILED, PLAIN, UNCHANGED
from pollux.store.memory.jobs import remember
from pollux.store.memory.nodes import drop_version
from pollux.store.memory.notes import set_note
from pollux.store.memory.rows import StoredJobFields, memory_of
from pollux.store.memory.state import LEASED, READY, DeletedJob, HeldTerm, VersionState

UNCHANGED_ONLY = frozenset({UNCHANGED})
ALL_BUT_DEAD = frozenset({PLAIN, UNCHANGED, FAILED})
DEAD_ONLY = frozenset({DEAD_LETTER})


def prune(state: VersionState, what: Pruning, now_ms: int) -> int:
    if what.version is not None:
        return drop_version(state, what.version, now_ms)
    history = state.history
    gone = sum(_drop(state, run_id) for run_id in what.ids[: what.limit])
    if what.unchanged_before_ms is not None:
        old = history.older_than(what.unchanged_before_ms, UNCHANGED_ONLY, limit=what.limit - gone)
        gone += sum(_drop(state, run_id) for run_id in old)
    if what.finished_before_ms is not None:
        old = history.older_than(what.finished_before_ms, ALL_BUT_DEAD, limit=what.limit - gone)
        gone += sum(_drop(state, run_id) for run_id in old)
    if what.keep_per_job is not None and gone < what.limit:
        gone += sum(_drop(state, run_id) for run_id in history.beyond(what.keep_per_job, limit=what.limit - gone))
    if what.once_before_ms is not None:
        gone += _drop_spent(state, what.once_before_ms, what.limit - gone)
    if what.dead_before_ms is not None:
        old = history.older_than(what.dead_before_ms, DEAD_ONLY, limit=what.limit - gone)
        gone += sum(_drop(state, run_id) for run_id in old)
    if what.dead_max is not None and history.dead > what.dead_max:
        old = history.oldest(DEAD_ONLY, limit=min(what.limit - gone, history.dead - what.dead_max))
        gone += sum(_drop(state, run_id) for run_id in old)
    if what.log_max is not None:
        beyond = max(0, min(what.limit - gone, len(state.log) - max(1, what.log_max)))
        del state.log[:beyond]
        gone += beyond
    return gone


def _drop(state: VersionState, run_id: str) -> int:
    if run_id not in state.history:
        return 0
    state.forget(run_id)
    return 1


def _drop_spent(state: VersionState, before_ms: int, limit: int) -> int:
    """Remove ended once-jobs that have no live run and no dead letter.  A tombstone prevents a second firing."""
    spent = [
        job_id
        for job_id in state.spent
        if _ended_before(state.jobs[job_id], before_ms)
        and job_id not in state.job_runs
        and not state.history.has_dead_letters(job_id)
        and not state.history.has_since(job_id, before_ms)
    ][: max(0, limit)]
    for job_id in spent:
        row = state.drop_job(job_id)
        remember(state, job_id, DeletedJob(row.revision, row.last_due_ms))
    return len(spent)


def _ended_before(row: StoredJobFields, before_ms: int) -> bool:
    """Whether a once-job ended before: at the end of its last run, or at its due time if no end was learnt."""
    ended_ms = memory_of(row).last_end_ms
    ended_ms = row.last_due_ms if ended_ms is None else ended_ms
    return row.is_once and row.is_spent and ended_ms is not None and ended_ms < before_ms


def log(state: VersionState, lines: Sequence[AuditLine]) -> None:
    for line in lines:
        before = state.log[-1].chain if state.log else ""
        numbered = replace(line, seq=state.log[-1].seq + 1 if state.log else 1, chain="")
        state.log.append(replace(numbered, chain=chained(numbered, before=before)))


def read_log(state: VersionState, after: int, limit: int, newest: bool) -> Page:  # noqa: FBT001  called by position
    if newest:
        end = _log_place(state, after - 1) if after else len(state.log)
        lines = tuple(state.log[max(0, end - limit) : end])
        return Page(lines, lines[0].seq if end > limit else None)
    start = _log_place(state, after)
    lines = tuple(state.log[start : start + limit])
    return Page(lines, lines[-1].seq if start + limit < len(state.log) else None)


def dump(state: VersionState, after: str | None, limit: int) -> Page:
    """Cursors are `<kind> <place>` of the last record of a page."""
    records = _records(state, *dump_place(after, _KINDS))
    page = list(islice(records, limit + 1))
    next_page = page[limit - 1][0] if len(page) > limit else None
    return Page([(_kind(place), record) for place, record in page[:limit]], next_page)


def _kind(place: str) -> str:
    kind = place.split(" ", 1)[0]
    return "run" if kind == "live" else kind


_KINDS = ("term", "job", "live", "run", "note", "log", "tomb")  # live runs are dumped as runs; jobs precede their runs


def _records(state: VersionState, kind: str, place: str) -> Iterator[tuple[str, Any]]:
    start = _KINDS.index(kind) if kind else 0
    for number, each in enumerate(_KINDS[start:]):
        yield from _of_kind(state, each, place if number == 0 else "")


def _of_kind(state: VersionState, kind: str, place: str) -> Iterator[tuple[str, Any]]:
    rows: Iterable[tuple[object, object]]
    match kind:
        case "term":
            terms = sorted(state.house.states.items())
            rows = (
                (version, TermRecord(each.leadership.number, version))
                for version, each in terms
                if version > int(place or 0) and each.leadership.number
            )
        case "job":
            rows = ((job_id, state.job(job_id)) for job_id in _after(state.sorted_ids(), place))
        case "live":
            rows = ((run_id, state.live[run_id]) for run_id in _after(sorted(state.live), place))
        case "run":
            rows = state.history.oldest_first(after=int(place or 0))
        case "note":
            rows = ((key, state.notes[key]) for key in _after(sorted(state.notes), place))
        case "log":
            rows = ((line.seq, line) for line in state.log[_log_place(state, int(place or 0)) :])
        case _:
            rows = (
                (gone.place, Tombstone(job_id, gone.revision, gone.last_due_ms))
                for job_id, gone in state.gone.items()
                if gone.place > int(place or 0)
            )
    for at, value in rows:
        yield f"{kind} {at}", value


def _log_place(state: VersionState, after: int) -> int:
    return bisect_right(state.log, after, key=lambda line: line.seq)


def _after(keys: Sequence[str], place: str) -> Iterable[str]:
    return islice(keys, bisect_right(keys, place) if place else 0, None)


def load(state: VersionState, records: Sequence[Record]) -> int:
    new = [loaded for loaded in (_load(state, record) for record in records) if loaded is not None]
    for version, entry in entries_of(new):
        if version is None:
            state.tell_all(entry)
        else:
            state.of(version).tell(entry)
    return len(new)


def _load(state: VersionState, value: Record) -> Record | None:
    """The record as stored; None if it existed already."""
    match value:
        case Run():
            return _load_run(state, value)
        case Job():
            is_new = _load_job(state, value)
        case Note():
            is_new = _load_note(state, value)
        case AuditLine():
            is_new = _load_line(state, value)
        case TermRecord():
            is_new = _load_term(state, value)
        case Tombstone():
            is_new = _load_tomb(state, value)
    return value if is_new else None


def _load_job(state: VersionState, job: Job) -> bool:
    if job.id in state.jobs:
        return False
    state.gone.pop(job.id, None)
    state.of(job.scheduler_version).add_job(job)
    return True


def _load_run(state: VersionState, run: Run) -> Run | None:
    if state.knows(run.id):
        return None
    if run.state not in LIVE:
        state.history.add(run)
        return run
    if run.key is not None and run.key in state.keys:
        return None
    if run.state is LEASED:
        run = replace(run, state=READY, token="", owner="", lease_until_ms=0)
    return state.admit(run, now_ms=0)  # the next read of its job finds out whether it is visible


def _load_note(state: VersionState, note: Note) -> bool:
    if note.key in state.notes:
        return False
    set_note(state, NotePut(note.key, note.value, expires_ms=note.expires_ms), note.revision)
    return True


def _load_line(state: VersionState, line: AuditLine) -> bool:
    if state.log and line.seq <= state.log[-1].seq:
        return False
    state.log.append(line)
    return True


def _load_term(state: VersionState, term: TermRecord) -> bool:
    home = state.of(term.scheduler_version)
    if term.number <= home.leadership.number:
        return False
    home.leadership = HeldTerm(number=term.number)
    return True


def _load_tomb(state: VersionState, tomb: Tombstone) -> bool:
    if tomb.id in state.jobs or tomb.id in state.gone:
        return False
    remember(state, tomb.id, DeletedJob(tomb.revision, tomb.last_due_ms))
    return True
