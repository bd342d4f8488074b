"""Checks of a store on a server: its address, its round trip, and what goes on in it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from pollux.cli.doctor.finding import DoctorFinding, fail, ok, warn
from pollux.errors import PolluxError
from pollux.model import ASIDE, START, STOP, Node, RunState, all_aside, by_term, starts_in
from pollux.model.leader_notes import clock_notes
from pollux.store.sqlite.inspect import DUE_MAX, JOBS_MAX, DatabaseReport
from pollux.units import format_ms

OFFSET_MS_MAX = 1_000  # between our clock and the server's
TRIP_MS_MAX = 20.0


def look_at_server(url: str, found: list[Node], *, now_ms: int, lag_ms: int) -> Iterator[DoctorFinding]:
    """All that a server tells of itself; then, if the store is there, what goes on in it, and on which nodes."""
    try:
        findings, is_there = _judged(url)
    except PolluxError as error:
        yield _refused("server", error)
        return
    yield from findings
    if not is_there:
        return
    from pollux.cli.doctor.deployment import judge

    try:
        inside = asyncio.run(_inside(url, now_ms))
        found += inside.nodes
        yield from judge(inside, now_ms, lag_ms=lag_ms)
    except PolluxError as error:
        yield _refused("store", error)


def of_offset(offset_ms: int) -> DoctorFinding:
    """Time is the server's: only what is shown, and when a job is enqueued for, goes by our clock."""
    if abs(offset_ms) > OFFSET_MS_MAX:
        seen = f"the server's clock is {format_ms(abs(offset_ms))} {'ahead of' if offset_ms > 0 else 'behind'} ours"
        return warn(
            "server clock", seen, "look at NTP on both: `at` and `delay` go by our clock, leases by the server's"
        )
    return ok("server clock", f"{abs(offset_ms)} ms {'ahead of' if offset_ms > 0 else 'behind'} ours")


def of_distance(trip_ms: float) -> DoctorFinding:
    seen = f"a question is answered in {trip_ms:.1f} ms (the median)"
    if trip_ms > TRIP_MS_MAX:
        return warn("distance", seen, "run the nodes nearer to the server: every claim and settle waits so long")
    return ok("distance", seen)


def _judged(url: str) -> tuple[list[DoctorFinding], bool]:
    if url.startswith("postgres"):
        from pollux.cli.doctor import postgres as judging_postgres
        from pollux.store.postgres.inspect import look_at_server as look_at_postgres

        database = asyncio.run(look_at_postgres(url))
        return [*judging_postgres.judge(database)], database.is_current
    from pollux.cli.doctor import redis as judging_redis
    from pollux.store.redis.inspect import look_at_server as look_at_redis

    server = asyncio.run(look_at_redis(url))
    return [*judging_redis.judge(server)], server.format is not None


async def _inside(url: str, now_ms: int) -> DatabaseReport:
    from pollux.secrets import hide
    from pollux.store.contract import RunFilter
    from pollux.store.decoding import as_far, due_as_far, stops_as_far
    from pollux.store.move_marks import marks_of, of_all_versions, seal_words
    from pollux.store.urls import open_store

    store = open_store(url)
    await store.open()
    try:
        nodes, versions = await store.nodes(), await store.versions()
        ready, _ = await as_far(store.list_runs(RunFilter(states=(RunState.READY,)), limit=1))
        handles = await of_all_versions(store)
        dues = [await due_as_far(each, before_ms=now_ms, limit=DUE_MAX) for each in handles]
        lines = [line for each in handles for line in await each.lines()]
        (stops, _), (aside, _) = await stops_as_far(store.notes(STOP)), await as_far(store.notes(ASIDE))
        jobs, _ = await as_far(store.list_jobs(limit=JOBS_MAX))
        return DatabaseReport(
            is_ours=True,
            version=1,
            newest=1,
            counts=await store.counts(all_versions=True),
            nodes=tuple(by_term(nodes, versions)),
            versions=tuple(versions),
            waiting=sum(line.ready for line in lines),
            due=tuple(job for jobs in dues for job in jobs),
            oldest_ready_ms=ready.runs[0].visible_ms if ready.runs else None,
            seal=seal_words(await marks_of(store), hide(url)),
            stops=tuple(stops),
            jobs=jobs.jobs,
            aside=all_aside(aside),
            starts=starts_in((await as_far(store.notes(START)))[0]),
            clocks=clock_notes(aside),
        )
    finally:
        await store.close()


def _refused(about: str, error: PolluxError) -> DoctorFinding:
    what, found, cure = str(error).rpartition("; ")
    return fail(about, what if found else str(error), cure if found else "see that it runs, and the store's URL")
