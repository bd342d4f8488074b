"""Pages of runs, jobs and raw records, read in parts and filtered here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any

import msgspec

from pollux.model import FINISHED, LIVE, AuditLine, Job, Run, RunState
from pollux.store.contract import DumpPage, JobFilter, JobPage, RunFilter, RunPage
from pollux.store.dump_format import TermRecord, Tombstone, dump_place
from pollux.store.filters import job_fits, run_filter, run_place
from pollux.store.job_cache import JobCache, JobReading
from pollux.store.redis import codec
from pollux.store.redis.connection import RedisConnections
from pollux.store.redis.script_calls import job_rows

PART = 200  # rows that one call to the server reads, unless the page is bigger
DIGITS = 29  # of a finished run's place
PLACE_ZERO = 10**14  # times before 1970 have places, too
KINDS = ("term", "job", "live", "run", "note", "log", "tomb")  # live runs go as runs; jobs stand before their runs

_decode_places = msgspec.msgpack.Decoder(list[str]).decode
decode_line = msgspec.json.Decoder(AuditLine).decode


async def list_jobs(
    link: RedisConnections, cache: JobCache, where: JobFilter, after: str | None, limit: int
) -> JobPage:
    """What cannot be read behind the last job of a page belongs to the next one, and is told there."""
    found, reading, told = list[Job](), JobReading(cache), 0
    async for row in _job_rows(link, after, limit):
        job = reading.job(codec.job_given(row))
        if job is None or not job_fits(job, where):
            continue
        if len(found) == limit:
            return reading.answer(JobPage(tuple(found), found[-1].id), first=told)
        found.append(job)
        told = reading.count
    return reading.answer(JobPage(tuple(found), None))


async def _job_rows(link: RedisConnections, after: str | None, limit: int) -> AsyncIterator[codec.Row]:
    part = max(PART, limit + 1)
    while True:
        page = job_rows(await link.run_raw("list_jobs", after=False if after is None else after, limit=part))
        for row in page:
            if len(row) > 1:
                yield row
        if len(page) < part:
            return
        after = page[-1][0]


async def list_runs(link: RedisConnections, where: RunFilter, after: str | None, limit: int) -> RunPage:
    """As with jobs: a page tells of what lies before its end."""
    fits, reading, told = run_filter(where), codec.RunReading(), 0
    found, last = list[Run](), ""
    async for cursor, run in _runs(link, where, after, limit, reading):
        if not fits(run):
            continue
        if len(found) == limit:
            return reading.answer(RunPage(tuple(found), last), first=told)
        found.append(run)
        last, told = cursor, reading.count
    return reading.answer(RunPage(tuple(found), None))


async def _runs(
    link: RedisConnections, where: RunFilter, after: str | None, limit: int, reading: codec.RunReading
) -> AsyncIterator[tuple[str, Run]]:
    """Live ones from a place on, then finished ones from theirs, as far as the filter can mean them."""
    live_after, below = run_place(after)
    states = frozenset(where.states) or LIVE | FINISHED
    part = max(PART, limit + 1)
    if below is None and states & LIVE:
        is_held = states & LIVE == {RunState.HELD} and where.job_id is None and where.scheduler_version is not None
        held_in = where.scheduler_version if is_held else None
        async for run in live_runs(link, live_after, where.job_id, part, held_in=held_in, reading=reading):
            yield f"live:{run.due_ms}:{run.id}", run
    if states & FINISHED:
        place = None if below is None else str(below).zfill(DIGITS)
        async for number, run in past_runs(link, "newest", place, where.job_id, part, reading):
            yield f"past:{number}", run


async def live_runs(
    link: RedisConnections,
    after: tuple[int, str] | None,
    job_id: str | None,
    part: int,
    *,
    held_in: int | None = None,
    reading: codec.RunReading | None = None,
) -> AsyncIterator[Run]:
    """By (due, id); those that are held in a version have a list of their own."""
    while True:
        asked: dict[str, Any] = {"kind": "live", "after": after or False, "job": _or_false(job_id), "limit": part}
        asked |= {"is_held": held_in is not None, "v": held_in}
        places, runs = await _page(link, asked, reading)
        for place, run in zip(places, runs, strict=True):
            after = (int(place[:15]) - PLACE_ZERO, place[15:])
            if run is not None:
                yield run
        if len(places) < part:
            return


async def past_runs(
    link: RedisConnections,
    order: str,
    after: str | None,
    job_id: str | None,
    part: int,
    reading: codec.RunReading | None = None,
) -> AsyncIterator[tuple[str, Run]]:
    """Finished runs with their places, `newest` or `oldest` first."""
    while True:
        asked = {"kind": order, "after": _or_false(after), "job": _or_false(job_id), "limit": part}
        places, runs = await _page(link, asked, reading)
        for place, run in zip(places, runs, strict=True):
            after = place
            if run is not None:
                yield place, run
        if len(places) < part:
            return


async def _page(
    link: RedisConnections, asked: dict[str, Any], reading: codec.RunReading | None
) -> tuple[list[str], Iterable[Run | None]]:
    """Places, and the runs that stand there, read as they are taken."""
    found = await link.run_raw("list_runs", **asked)
    return _decode_places(found[0]), codec.runs(found, first=1) if reading is None else reading.each(found, first=1)


def _or_false(text: str | None) -> str | bool:
    return False if text is None else text


# raw records


async def dump(link: RedisConnections, cache: JobCache, after: str | None, limit: int) -> DumpPage:
    """A cursor is `<kind> <place>` of the last record of its page."""
    kind, place = dump_place(after, KINDS)
    page: list[tuple[str, Any]] = []
    for number, each in enumerate(KINDS[KINDS.index(kind) if kind else 0 :]):
        async for at, value in _records(link, cache, each, place if number == 0 else "", limit + 1):
            page.append((f"{each} {at}", msgspec.to_builtins(value)))
            if len(page) > limit:
                records = tuple((_kind(where), data) for where, data in page[:limit])
                return DumpPage(records, page[limit - 1][0])
    return DumpPage(tuple((_kind(where), data) for where, data in page), None)


def _kind(place: str) -> str:
    kind = place.split(" ", 1)[0]
    return "run" if kind == "live" else kind


def _records(
    link: RedisConnections, cache: JobCache, kind: str, place: str, part: int
) -> AsyncIterator[tuple[object, Any]]:
    match kind:
        case "term":
            return _terms(link, int(place or 0))
        case "job":
            return _jobs(link, cache, place, part)
        case "live":
            return _live(link, place, part)
        case "run":
            return past_runs(link, "oldest", place.zfill(DIGITS) if place else None, None, part)
        case "note":
            return _notes(link, place)
        case "log":
            return _lines(link, int(place or 0), part)
        case _:
            return _tombs(link, int(place or 0), part)


async def _terms(link: RedisConnections, after: int) -> AsyncIterator[tuple[object, Any]]:
    for number, version in await link.run("get_term", after=after):
        yield version, TermRecord(number, version)


async def _tombs(link: RedisConnections, after: int, part: int) -> AsyncIterator[tuple[object, Any]]:
    while True:
        page = await link.run("get_tombs", after=after, limit=part)
        for place, job_id, revision, last_due_ms in page:
            yield place, Tombstone(job_id, revision, None if last_due_ms is False else last_due_ms)
        if len(page) < part:
            return
        after = page[-1][0]


async def _jobs(link: RedisConnections, cache: JobCache, place: str, part: int) -> AsyncIterator[tuple[object, Any]]:
    async for row in _job_rows(link, place or None, part):
        yield row[0], codec.legible_job(cache, row)


async def _live(link: RedisConnections, place: str, part: int) -> AsyncIterator[tuple[object, Any]]:
    due_ms, _, run_id = place.partition(":")
    async for run in live_runs(link, (int(due_ms), run_id) if place else None, None, part):
        yield f"{run.due_ms}:{run.id}", run


async def _notes(link: RedisConnections, place: str) -> AsyncIterator[tuple[object, Any]]:
    async for row in note_rows(link, "", place or None, expired=True):
        yield row[0], codec.legible_note(row)


async def note_rows(
    link: RedisConnections, prefix: str, after: str | None = None, *, expired: bool, now_ms: int | None = None
) -> AsyncIterator[codec.Row]:
    place: str | bool = _or_false(after)
    while True:
        options = {"prefix": prefix, "after": place, "limit": PART, "expired": expired, "now": now_ms}
        place, page = await link.run("notes", **options)
        for row in page:
            yield row
        if place is False:
            return


async def _lines(link: RedisConnections, after: int, part: int) -> AsyncIterator[tuple[object, Any]]:
    while True:
        page = await link.run("read_log", after=after, limit=part, newest=False)
        for line in page:
            read = decode_line(line)
            after = read.seq
            yield read.seq, read
        if len(page) < part:
            return
