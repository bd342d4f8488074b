"""Checks of the deployment by its database: schema, clocks, leader, queue, dead letters; and of a server's distance."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import asdict, replace

from pollux.cli.doctor.finding import OK, DoctorFinding, fail, of_health, ok, warn
from pollux.errors import PolluxError, StoreRefused
from pollux.model import (
    HANDLER_CURE,
    LEADER_NOTES,
    SCHEDULER_VERSION,
    START,
    STOP,
    Node,
    RunState,
    blocked_leader,
    by_term,
    drained_of,
    handler_conflicts,
    leadership,
    queue_words,
    serve_words,
    starts_in,
    stop_key,
    unreadable_notes,
    with_start,
)
from pollux.model.leader_notes import JOBS, SCHEDULES, SCHEDULES_CURE, clock_notes, unusable_schedules
from pollux.secrets import hide
from pollux.store.contract import FEED_MAX, RunFilter
from pollux.store.decoding import readable_due, readable_part, readable_stops
from pollux.store.move_marks import marks_of, of_all_versions, seal_words
from pollux.store.sqlite.inspect import DUE_MAX, JOBS_MAX, DatabaseReport, files_of, look_inside
from pollux.store.urls import open_store
from pollux.units import MINUTE_MS, counted, format_ms

AHEAD_MS_MAX = 5_000  # so far may the store's time lie ahead of ours
WAIT_MS_MAX = MINUTE_MS  # a ready run or a due job that waits longer is worth a look
DUE_NOW_MS = 1_000  # what is due for less is about to fire
FEED_WARN = FEED_MAX // 10
NAMED_MAX = 5
OFFSET_MS_MAX = 1_000  # between our clock and the server's
TRIP_MS_MAX = 20.0


def look_at_inside(path: Path, found: list[Node], *, now_ms: int, lag_ms: int) -> Iterator[DoctorFinding]:
    """The nodes that live on it are added to those that were `found`."""
    if "" not in files_of(path):
        return
    try:
        inside = look_inside(path, now_ms=now_ms)
    except StoreRefused as error:
        what, _, cure = str(error).rpartition("; ")
        yield fail("schema", what or str(error), cure)
        return
    if inside is None:
        seen = "the log lost its shared memory (-shm), so the inside cannot be seen without touching it"
        yield warn("schema", seen, "start a node, or run any other command: it creates that anew")
        return
    yield of_schema(path, inside)
    if inside.counts is None:
        return
    yield of_time(inside, now_ms)
    found += inside.nodes
    yield from judge(inside, now_ms, lag_ms=lag_ms)


def judge(inside: DatabaseReport, now_ms: int, *, lag_ms: int) -> Iterator[DoctorFinding]:
    """What goes on in a store, of whatever kind; a cure that starts a node names the command."""
    for finding in _judged(inside, now_ms, lag_ms):
        version = next((each.number for each in inside.versions if each.counts.jobs), SCHEDULER_VERSION)
        cure = with_start(finding.cure, inside.starts, version=version) if finding.level != OK else finding.cure
        yield replace(finding, cure=cure)


def broken(inside: DatabaseReport, about: str, seen: str, cure: str) -> DoctorFinding:
    """What `pollux health` calls unhealthy has failed, too.

    Where no node lives at all it is a warning: whether one can be started is what doctor is asked for.
    """
    return fail(about, seen, cure) if inside.nodes else warn(about, seen, cure)


def _judged(inside: DatabaseReport, now_ms: int, lag_ms: int) -> Iterator[DoctorFinding]:
    if inside.seal:
        what, _, cure = inside.seal.partition("; ")
        yield fail("seal", what, cure)
        return
    yield from of_leaders(inside, now_ms)
    yield from of_sources(inside)
    yield of_workers(inside)
    yield from of_loads(inside, lag_ms)
    yield of_ready(inside, now_ms)
    yield of_dues(inside, now_ms)
    yield of_dead(inside)
    yield of_feed(inside)
    yield of_records(inside)
    if words := unusable_schedules(inside.aside):
        yield warn("schedules", words, SCHEDULES_CURE)


def of_schema(path: Path, inside: DatabaseReport) -> DoctorFinding:
    if not inside.is_ours:
        return fail("schema", f"{path} belongs to another program", "name another file")
    if inside.version > inside.newest:
        seen = f"it was written by a newer Pollux (schema {inside.version}, this one knows {inside.newest})"
        return fail("schema", seen, "upgrade Pollux")
    if inside.version < inside.newest:
        return ok("schema", f"version {inside.version}; the next start brings it to {inside.newest}")
    jobs = 0 if inside.counts is None else inside.counts.jobs
    return ok("schema", f"version {inside.version}, the newest; {counted(jobs, 'job')}")


def of_time(inside: DatabaseReport, now_ms: int) -> DoctorFinding:
    ahead_ms = inside.clock_ms - now_ms
    if ahead_ms > AHEAD_MS_MAX:
        seen = f"a process wrote {format_ms(ahead_ms)} ahead of this machine's clock"
        return warn("store clock", seen, "this clock came back, or another machine's goes ahead: look at NTP on both")
    return ok("store clock", "no later than ours")


def of_leaders(inside: DatabaseReport, now_ms: int) -> Iterator[DoctorFinding]:
    """Each version that has jobs, or nodes of its own, wants a leader."""
    if not inside.nodes:
        with_jobs = [each.number for each in inside.versions if each.counts.jobs] or [SCHEDULER_VERSION]
        cure = f"start one: {', and '.join(map(serve_words, with_jobs[:NAMED_MAX]))}"
        yield warn("leader", "no node lives: nothing is planned or run", cure)
        return
    served = {node.scheduler_version for node in inside.nodes}
    wanted = [each.number for each in inside.versions if each.counts.jobs or each.leader or each.number in served]
    for number in wanted:
        nodes = [node for node in inside.nodes if node.serves(number)]
        found = leadership(inside.nodes, now_ms=now_ms, version=number)
        about = "leader" if len(wanted) == 1 else f"leader of {number}"
        seen = f"{found.seen}; {counted(len(nodes), 'node')}"
        if found.cure and not found.is_led:
            yield broken(inside, about, seen, found.cure)
        else:
            yield warn(about, seen, found.cure) if found.cure else ok(about, seen)


def of_workers(inside: DatabaseReport) -> DoctorFinding:
    """The workers that claim nothing."""
    living = {node.id for node in inside.nodes}
    found = [drained_of(note) for note in inside.stops]
    drains = [each for each in found if each is not None and (each.node is None or each.node in living)]
    for drain in drains:
        return warn("workers", f"{drain}: nothing is claimed", drain.cure)
    if any(note.key == stop_key("all") for note in inside.stops):
        return warn("workers", "everything is paused: due times are skipped", "pollux resume --all")
    return ok("workers", "none is drained")


def of_loads(inside: DatabaseReport, lag_ms: int) -> Iterator[DoctorFinding]:
    """What holds the nodes up, as `pollux health` judges it by their beats."""
    from pollux.app.health import beat_findings

    for found in beat_findings(inside.nodes, lag_ms=lag_ms):
        yield of_health(asdict(found))


def of_sources(inside: DatabaseReport) -> Iterator[DoctorFinding]:
    """Jobs that code left behind, as far as the first of the jobs tell, and programs that get each other's runs."""
    from pollux.app.operations.jobs import orphaned

    for source, ids in orphaned(inside.jobs, inside.nodes).items():
        names = ", ".join(ids[:NAMED_MAX]) + (", ..." if len(ids) > NAMED_MAX else "")
        cure = f"start one, or if it was removed for good: pollux jobs delete --source {source}"
        yield warn("sources", f"no living node has {source} ({counted(len(ids), 'job')}: {names})", cure)
    for found in handler_conflicts(inside.nodes)[:NAMED_MAX]:
        yield warn("code", str(found), HANDLER_CURE)


def of_ready(inside: DatabaseReport, now_ms: int) -> DoctorFinding:
    assert inside.counts is not None
    words = queue_words(inside.counts, inside.waiting)
    if inside.oldest_ready_ms is not None and now_ms - inside.oldest_ready_ms > WAIT_MS_MAX:
        waited = format_ms((now_ms - inside.oldest_ready_ms) // 1_000 * 1_000)
        seen = f"{words}; the oldest for {waited}"
        if any(node.seats > node.busy and not node.draining for node in inside.nodes) and not inside.stops:
            return broken(
                inside, "ready runs", seen, "seats are free, and no worker claims: see the log of the workers"
            )
        return warn("ready runs", seen, "add seats or nodes; `pollux why RUN` tells more")
    return ok("ready runs", f"{words}; none waits long")


def of_dues(inside: DatabaseReport, now_ms: int) -> DoctorFinding:
    """As `pollux health` judges them: by what the schedule of each allows."""
    from pollux.app.health import late_after, most_overdue

    clock = "; ".join([words for each in inside.clocks if (words := each.words(now_ms))])
    if any(each.is_behind(now_ms) for each in inside.clocks):
        cure = "a leader corrects them within seconds: `pollux nodes` shows whether one leads"
        return warn("due times", clock, cure)
    job = most_overdue(inside.due, now_ms)
    late_ms = 0 if job is None or job.next_due_ms is None else now_ms - job.next_due_ms
    late = format_ms(late_ms // 1_000 * 1_000)
    if job is not None and late_ms > min(WAIT_MS_MAX, late_after(job)):
        seen, cure = f"job {job.id} was due {late} ago and has not fired", "see that a node leads: pollux nodes"
        if held := blocked_leader(inside.nodes, job.scheduler_version):
            cure = f"{held}: `loop` tells what to do"
        is_broken = late_ms > WAIT_MS_MAX
        return broken(inside, "due times", seen, cure) if is_broken else warn("due times", seen, cure)
    if late_ms > DUE_NOW_MS:
        return ok("due times", f"none is due for longer than its schedule allows; one was due {late} ago")
    return ok("due times", f"none is missed; {clock}" if clock else "none is missed")


def of_dead(inside: DatabaseReport) -> DoctorFinding:
    assert inside.counts is not None
    if inside.counts.dead:
        seen = counted(inside.counts.dead, "dead letter")
        return warn("dead letters", seen, "pollux dead lists them; fix the cause, then revive or drop them")
    return ok("dead letters", "no dead letters")


def of_feed(inside: DatabaseReport) -> DoctorFinding:
    assert inside.counts is not None
    ends = inside.counts.ends
    if ends > FEED_MAX:
        return fail("feed", f"{_count(ends)} ends are unread: claims are refused", "start a node that plans")
    if ends > FEED_WARN:
        return warn("feed", f"{_count(ends)} ends are unread", "the leader is behind: look at its CPU and disk")
    return ok("feed", f"{counted(ends, 'end')} unread")


def of_records(inside: DatabaseReport) -> DoctorFinding:
    """The records that the leader cannot read."""
    jobs = [each.words for each in inside.aside if each.kind == JOBS]
    if jobs:
        seen = f"the leader cannot read {'; '.join(jobs)}: nothing of it is fired"
        return warn("records", seen, "let a newer release lead; if none knows it put it anew or delete it")
    entries = [each.words for each in inside.aside if each.kind != SCHEDULES]
    return ok("records", f"skipped in the last week: {'; '.join(entries)}" if entries else "no job is unreadable")


def _count(number: int) -> str:
    return f"{number:,}"


# a store on a server


def look_at_server(url: str, found: list[Node], *, now_ms: int, lag_ms: int) -> Iterator[DoctorFinding]:
    """All that a server tells of itself; then, if the store is there, what goes on in it, and on which nodes."""
    try:
        findings, is_there = _judged_server(url)
    except PolluxError as error:
        yield _refused("server", error)
        return
    yield from findings
    if not is_there:
        return
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


def _judged_server(url: str) -> tuple[list[DoctorFinding], bool]:
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

    store = open_store(url)
    await store.open()
    try:
        nodes, versions = await store.nodes(), await store.versions()
        ready, _ = await readable_part(store.list_runs(RunFilter(states=(RunState.READY,)), limit=1))
        handles = await of_all_versions(store)
        dues = [await readable_due(each, before_ms=now_ms, limit=DUE_MAX) for each in handles]
        lines = [line for each in handles for line in await each.lines()]
        (stops, _), (aside, _) = await readable_stops(store.notes(STOP)), await readable_part(store.notes(LEADER_NOTES))
        jobs, _ = await readable_part(store.list_jobs(limit=JOBS_MAX))
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
            aside=unreadable_notes(aside),
            starts=starts_in((await readable_part(store.notes(START)))[0]),
            clocks=clock_notes(aside),
        )
    finally:
        await store.close()


def _refused(about: str, error: PolluxError) -> DoctorFinding:
    what, found, cure = str(error).rpartition("; ")
    return fail(about, what if found else str(error), cure if found else "see that it runs, and the store's URL")
