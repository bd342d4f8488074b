"""Pages of runs, jobs and raw records, read in parts and filtered here.

A row that cannot be decoded is in the page, where it fits into the order, and does not count: the handle reports it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec

from pollux.model import FINISHED, LIVE, AuditLine, Job, Run, RunState
from pollux.store.backend import Page
from pollux.store.contract import JobFilter, RunFilter
from pollux.store.decoding import UNREADABLE, decode_or_raise
from pollux.store.dump_format import TermRecord, Tombstone, dump_place
from pollux.store.filters import job_fits, run_filter, run_place
from pollux.store.redis import codec
from pollux.store.redis.calls import RedisCalls

PART = 200  # rows that one call to the server reads, unless the page is bigger
DIGITS = 29  # of a finished run's place
PLACE_ZERO = 10**14  # times before 1970 have places, too
KINDS = ("term", "job", "live", "run", "note", "log", "tomb")  # live runs go as runs; jobs stand before their runs

ListedRun = tuple[str, Run | Exception]  # id, and the run or why it cannot be decoded

_decode_places = msgspec.msgpack.Decoder(list[str]).decode
decode_line = msgspec.json.Decoder(AuditLine).decode


async def list_jobs(calls: RedisCalls, where: JobFilter, after: str | None, limit: int) -> Page:
    rows, count, end = list[Any](), 0, 0  # up to the last job that fits there are `end` rows
    async for row in _job_rows(calls, after, limit):
        stored = codec.stored_job(row)
        job = _job(calls, stored)
        if job is not None and not job_fits(job, where):
            continue
        if job is not None and count == limit:
            return Page(rows[:end], rows[end - 1][0])
        rows.append(stored)
        if job is not None:
            count, end = count + 1, len(rows)
    return Page(rows, None)


def _job(calls: RedisCalls, stored: tuple[Any, ...]) -> Job | None:
    try:
        return calls.jobs.job(stored)
    except UNREADABLE:
        return None


async def _job_rows(calls: RedisCalls, after: str | None, limit: int) -> AsyncIterator[codec.Row]:
    part = max(PART, limit + 1)
    while True:
        page = codec.job_rows(await calls.raw("list_jobs", after=after or False, limit=part))
        for row in page:
            if len(row) > 1:
                yield row
        if len(page) < part:
            return
        after = page[-1][0]


async def list_runs(calls: RedisCalls, where: RunFilter, after: str | None, limit: int) -> Page:
    fits, rows, count, end, last = run_filter(where), list[ListedRun](), 0, 0, ""
    async for cursor, row in _runs(calls, where, after, limit):
        run = row[1]
        if isinstance(run, Exception):
            rows.append(row)
        elif fits(run):
            if count == limit:
                return Page(rows[:end], last)
            rows.append(row)
            count, end, last = count + 1, len(rows), cursor
    return Page(rows, None)


async def _runs(
    calls: RedisCalls, where: RunFilter, after: str | None, limit: int
) -> AsyncIterator[tuple[str, ListedRun]]:
    """Live ones from a place on, then finished ones from theirs, as far as the filter can mean them."""
    live_after, below = run_place(after)
    states = frozenset(where.states) or LIVE | FINISHED
    part = max(PART, limit + 1)
    if below is None and states & LIVE:
        is_held = states & LIVE == {RunState.HELD} and where.job_id is None and where.scheduler_version is not None
        held_in = where.scheduler_version if is_held else None
        async for (due_ms, run_id), row in _live_rows(calls, live_after, where.job_id, part, held_in):
            yield f"live:{due_ms}:{run_id}", _run_row(row)
    if states & FINISHED:
        place = None if below is None else str(below).zfill(DIGITS)
        async for number, row in _finished_rows(calls, "newest", place, where.job_id, part):
            yield f"past:{number}", _run_row(row)


def _run_row(row: codec.RunParts) -> ListedRun:
    run_id = row[0].decode(errors="replace")
    try:
        return run_id, codec.run(row)
    except UNREADABLE as error:
        return run_id, error


async def _live_rows(
    calls: RedisCalls, after: tuple[int, str] | None, job_id: str | None, part: int, held_in: int | None = None
) -> AsyncIterator[tuple[tuple[int, str], codec.RunParts]]:
    """By (due, id); those that are held in a version have a list of their own."""
    asked: dict[str, Any] = {"kind": "live", "job": job_id or False, "limit": part, "is_held": held_in is not None}
    if held_in is not None:
        calls = msgspec.structs.replace(calls, version=held_in)
    while True:
        places, rows = await _page(calls, asked | {"after": after or False})
        for place, row in zip(places, rows, strict=True):
            after = (int(place[:15]) - PLACE_ZERO, place[15:])
            if row[1]:
                yield after, row
        if len(places) < part:
            return


async def _finished_rows(
    calls: RedisCalls, order: str, after: str | None, job_id: str | None, part: int
) -> AsyncIterator[tuple[str, codec.RunParts]]:
    """Finished runs with their places, `newest` or `oldest` first."""
    while True:
        asked = {"kind": order, "after": after or False, "job": job_id or False, "limit": part}
        places, rows = await _page(calls, asked)
        for place, row in zip(places, rows, strict=True):
            after = place
            if row[1]:
                yield place, row
        if len(places) < part:
            return


async def _page(calls: RedisCalls, asked: dict[str, Any]) -> tuple[list[str], list[codec.RunParts]]:
    found = await calls.raw("list_runs", **asked)
    return _decode_places(found[0]), codec.run_parts(found, first=1)


# raw records


async def dump(calls: RedisCalls, after: str | None, limit: int) -> Page:
    """A cursor is `<kind> <place>` of the last record of its page."""
    kind, place = dump_place(after, KINDS)
    page: list[tuple[str, Any]] = []
    for number, each in enumerate(KINDS[KINDS.index(kind) if kind else 0 :]):
        async for at, value in _records(calls, each, place if number == 0 else "", limit + 1):
            page.append((f"{each} {at}", value))
            if len(page) > limit:
                return Page([(_kind(where), record) for where, record in page[:limit]], page[limit - 1][0])
    return Page([(_kind(where), record) for where, record in page], None)


def _kind(place: str) -> str:
    kind = place.split(" ", 1)[0]
    return "run" if kind == "live" else kind


def _records(calls: RedisCalls, kind: str, place: str, part: int) -> AsyncIterator[tuple[object, Any]]:
    match kind:
        case "term":
            return _terms(calls, int(place or 0))
        case "job":
            return _jobs(calls, place, part)
        case "live":
            return _live(calls, place, part)
        case "run":
            return _finished(calls, place, part)
        case "note":
            return _notes(calls, place)
        case "log":
            return _lines(calls, int(place or 0), part)
        case _:
            return _tombs(calls, int(place or 0), part)


async def _terms(calls: RedisCalls, after: int) -> AsyncIterator[tuple[object, Any]]:
    for number, version in await calls("get_term", after=after):
        yield version, TermRecord(number, version)


async def _tombs(calls: RedisCalls, after: int, part: int) -> AsyncIterator[tuple[object, Any]]:
    while True:
        page = await calls("get_tombs", after=after, limit=part)
        for place, job_id, revision, last_due_ms in page:
            yield place, Tombstone(job_id, revision, None if last_due_ms is False else last_due_ms)
        if len(page) < part:
            return
        after = page[-1][0]


async def _jobs(calls: RedisCalls, place: str, part: int) -> AsyncIterator[tuple[object, Any]]:
    async for row in _job_rows(calls, place or None, part):
        yield row[0], decode_or_raise(calls.jobs.job, codec.stored_job(row), f"job {row[0]!r}")


async def _live(calls: RedisCalls, place: str, part: int) -> AsyncIterator[tuple[object, Any]]:
    due_ms, _, run_id = place.partition(":")
    async for at, row in _live_rows(calls, (int(due_ms), run_id) if place else None, None, part):
        yield f"{at[0]}:{at[1]}", _legible_run(row)


async def _finished(calls: RedisCalls, place: str, part: int) -> AsyncIterator[tuple[object, Any]]:
    async for at, row in _finished_rows(calls, "oldest", place.zfill(DIGITS) if place else None, None, part):
        yield at, _legible_run(row)


def _legible_run(row: codec.RunParts) -> Run:
    return decode_or_raise(codec.run, row, f"run {row[0].decode(errors='replace')!r}")


async def _notes(calls: RedisCalls, place: str) -> AsyncIterator[tuple[object, Any]]:
    async for row in note_rows(calls, "", place or None, expired=True):
        yield row[0], decode_or_raise(codec.note, row, f"note {row[0]!r}")


async def note_rows(
    calls: RedisCalls, prefix: str, after: str | None = None, *, expired: bool
) -> AsyncIterator[codec.Row]:
    place: str | bool = after or False
    while True:
        place, page = await calls("notes", prefix=prefix, after=place, limit=PART, expired=expired)
        for row in page:
            yield row
        if place is False:
            return


async def _lines(calls: RedisCalls, after: int, part: int) -> AsyncIterator[tuple[object, Any]]:
    while True:
        page = await calls("read_log", after=after, limit=part, newest=False)
        for line in page:
            read = decode_line(line)
            after = read.seq
            yield read.seq, read
        if len(page) < part:
            return
