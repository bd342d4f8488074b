"""Health findings: a pure judgement of one snapshot of the deployment, and its JSON documents.

    store  nodes  leader  due  ready  queue  freshness  sources  feed  records  dead  stops      always, from the store
    versions                                                     the other versions on the store, if there are any
    code                                    programs with different code under one handler name, if there are any
    texts                                   nodes with other jobs than the latest text of their source, if there are any
    schedules                                                      those that the leader cannot use, if there are any
    loop  handlers                          this node as it measures itself, others as of their last heartbeat
    polling  file                                                                 this node, as it measures itself

Each finding has what was seen and the cure.  The worst one is the status: `healthy`, `degraded` (it works, and needs
attention), `unhealthy` (what should run does not).  Whether the process lives is another question: `/live`.

The documents have the fields of older schedulers and our own.  A field without a source yet is present and empty: no
breaker is open, adaptive polling is off.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from pollux.model import (
    BEAT_LATE_MS,
    DECLARATION_CURE,
    HANDLER_CURE,
    LOOP_CURE,
    Node,
    NodeLoad,
    Run,
    Version,
    blocked_leader,
    handler_conflicts,
    leader_of,
    leadership,
    queue_words,
    role_of,
    serve_words,
    unserved,
    with_start,
)
from pollux.model.leader_notes import JOBS, SCHEDULES, SCHEDULES_CURE, unusable_schedules
from pollux.observe.snapshot import Deployment, JobSnapshot, NodeSnapshot, Snapshot
from pollux.units import format_moment, format_ms

HEALTHY, DEGRADED, UNHEALTHY = LEVELS = ("healthy", "degraded", "unhealthy")
SILENT_MS = 120_000  # no loop rests or waits so long
FAILING = 3  # errors in a row
DUE_NOW_MS = 1_000  # what is due for less is about to fire
NAMED_MAX = 5


class HealthFinding(Struct, frozen=True):
    name: str
    level: str
    seen: str
    cure: str = ""


class Health(Struct, frozen=True):
    status: str
    findings: tuple[HealthFinding, ...]
    snapshot: Snapshot

    @property
    def is_well(self) -> bool:
        """Whether what should run does run; degraded counts."""
        return self.status != UNHEALTHY

    def worries(self) -> list[HealthFinding]:
        return [finding for finding in self.findings if finding.level != HEALTHY]


def judge(snapshot: Snapshot) -> Health:
    """Return the health: a finding for every check that this snapshot allows, in order."""
    findings = tuple(_with_start(finding, snapshot.deployment) for finding in _findings(snapshot))
    worst = max((LEVELS.index(finding.level) for finding in findings), default=0)
    return Health(LEVELS[worst], findings, snapshot)


def _with_start(finding: HealthFinding, seen: Deployment | None) -> HealthFinding:
    """Name in a cure that starts a node the command by which this app was started."""
    if seen is None or not seen.starts or not finding.cure:
        return finding
    source = seen.orphaned[0][0] if seen.orphaned and finding.name == "sources" else ""
    return replace(finding, cure=with_start(finding.cure, seen.starts, version=seen.version, source=source))


def _findings(snapshot: Snapshot) -> Iterator[HealthFinding]:
    seen, node = snapshot.deployment, snapshot.node
    if seen is None:
        why = snapshot.trouble or "it gave no answer"
        cure = "check that it runs and can be reached: pollux doctor; nodes go on by themselves once it answers"
        yield HealthFinding("store", UNHEALTHY, f"the store does not answer: {why}", cure)
    elif seen.sealed:
        yield _store(seen)  # and nothing else: the work goes on in the other store
    else:
        yield _store(seen)
        yield _nodes(snapshot, seen)
        yield _leader(snapshot, seen)
        if seen.others:
            yield _versions(snapshot, seen)
        if any(each.words(snapshot.now_ms) for each in seen.clocks):
            yield _clock(snapshot, seen)
        yield from _programs(seen)
        if words := unusable_schedules(seen.unreadable):
            yield HealthFinding("schedules", DEGRADED, words, SCHEDULES_CURE)
        for question in (_due, _ready, _queue, _freshness, _sources, _feed, _records, _dead, _stops):
            yield question(snapshot, seen)
    if node is not None:
        yield _polling(snapshot, node)
    if node is not None or (seen is not None and seen.nodes and not seen.sealed):
        loads = _loads(snapshot)
        yield _loop(loads, snapshot.limits.lag_ms, None if node is None else node.lag_ms)
        yield _handlers(loads, *_busy(snapshot))
    if node is not None and node.file:
        yield _file(snapshot, node)


# the deployment


def _store(seen: Deployment) -> HealthFinding:
    if seen.sealed:
        what, _, cure = seen.sealed.partition("; ")
        return HealthFinding("store", UNHEALTHY, f"{what}: nothing is planned or run here", cure)
    if seen.problems:
        found = [problem.rpartition("; ") for problem in seen.problems]
        return HealthFinding(
            "store", DEGRADED, "; ".join(what for what, *_ in found), "; ".join(cure for *_, cure in found)
        )
    where = ""
    if seen.others:
        where = f" in version {seen.version}, {_count(sum(each.counts.jobs for each in seen.others))} in others"
    return HealthFinding("store", HEALTHY, f"the store answers; {_many(seen.counts.jobs, 'job')}{where}")


def _nodes(snapshot: Snapshot, seen: Deployment) -> HealthFinding:
    seats = sum(node.seats for node in seen.nodes)
    serve = serve_words(seen.version)
    if lack := unserved(seen.version, seen.all_nodes):
        return HealthFinding("nodes", UNHEALTHY, f"{lack[0]}: nothing of it is planned or run", lack[1])
    if not seen.nodes:
        return HealthFinding("nodes", UNHEALTHY, "no node lives: nothing is planned or run", f"start one: {serve}")
    if not seats and (seen.counts.ready or seen.counts.jobs):
        cure = f"start a node that runs ({serve}, pollux worker), or wait until the draining ones are replaced"
        return HealthFinding("nodes", UNHEALTHY, f"{_many(len(seen.nodes), 'node')}, and none has seats", cure)
    late = [node for node in seen.nodes if snapshot.now_ms - node.beat_ms > BEAT_LATE_MS]
    if late:
        names = _named([node.id for node in late])
        return HealthFinding(
            "nodes", DEGRADED, f"no heartbeat for {format_ms(BEAT_LATE_MS)}: {names}", "look at that machine"
        )
    return HealthFinding("nodes", HEALTHY, f"{_many(len(seen.nodes), 'node')} with {_many(seats, 'seat')}")


def _leader(snapshot: Snapshot, seen: Deployment) -> HealthFinding:
    found = leadership(seen.all_nodes, now_ms=snapshot.now_ms, version=seen.version)
    level = HEALTHY if not found.cure else DEGRADED if found.is_led or _is_young(snapshot) else UNHEALTHY
    return HealthFinding("leader", level, found.seen, found.cure)


def _is_young(snapshot: Snapshot) -> bool:
    """Whether this node has just started, when there may be no leader yet."""
    node = snapshot.node
    return node is not None and snapshot.now_ms - node.started_ms < 2 * node.leader_ttl_ms


def _versions(snapshot: Snapshot, seen: Deployment) -> HealthFinding:
    """Judge the other versions: the figures of this one do not show whether they are led."""
    now_ms, all_nodes = snapshot.now_ms, seen.all_nodes
    found = [(each, leadership(all_nodes, now_ms=now_ms, version=each.number)) for each in seen.others]
    faulty = [(each, led) for each, led in found if led.cure]
    if not faulty:
        return HealthFinding("versions", HEALTHY, f"led as well: {_named([_version(each) for each, _ in found])}")
    is_lost = any(not led.can_be for _, led in faulty) and not _is_young(snapshot)
    what = "; ".join(f"{_version(each)}: {led.seen}" for each, led in faulty[:NAMED_MAX])
    cures = "; ".join(led.cure for _, led in faulty[:NAMED_MAX])
    return HealthFinding("versions", UNHEALTHY if is_lost else DEGRADED, what, cures)


def _version(each: Version) -> str:
    live = each.counts.held + each.counts.ready + each.counts.leased
    runs = f", {_many(live, 'live run')}" if live else ""
    return f"version {each.number} ({_many(each.counts.jobs, 'job')}{runs})"


def _clock(snapshot: Snapshot, seen: Deployment) -> HealthFinding:
    """The store's clock came back: due times, retries and visible times that were planned before lie too far ahead."""
    words = "; ".join([found for each in seen.clocks if (found := each.words(snapshot.now_ms))])
    if any(each.is_behind(snapshot.now_ms) for each in seen.clocks):
        cure = (
            "a leader corrects them within seconds: see that a node leads (pollux nodes), and that NTP keeps the clock"
        )
        return HealthFinding("clock", DEGRADED, words, cure)
    return HealthFinding("clock", HEALTHY, words)


def _programs(seen: Deployment) -> Iterator[HealthFinding]:
    """Yield conflicts between nodes: of their handlers, and of the jobs that they declare."""
    if found := handler_conflicts(seen.nodes):
        yield HealthFinding("code", DEGRADED, "; ".join(map(str, found[:NAMED_MAX])), HANDLER_CURE)
    if seen.declaration_conflicts:
        yield HealthFinding(
            "texts", DEGRADED, "; ".join(map(str, seen.declaration_conflicts[:NAMED_MAX])), DECLARATION_CURE
        )


def _due(snapshot: Snapshot, seen: Deployment) -> HealthFinding:
    """A due time that is later than its schedule allows is neither fired nor skipped by a policy."""
    late_ms = 0 if seen.overdue_ms is None else snapshot.now_ms - seen.overdue_ms
    wait_ms = snapshot.limits.wait_ms
    if late_ms > min(wait_ms, seen.late_after_ms):
        what = f"due but not fired: job {seen.overdue_job} for {_rough(late_ms)}"
        cure = "see that a node leads and keeps up: pollux nodes, and the CPU of the leader"
        if held := blocked_leader(seen.all_nodes, seen.version):
            cure = f"{held}: {LOOP_CURE}"
        return HealthFinding("due", UNHEALTHY if late_ms > wait_ms else DEGRADED, what, cure)
    if late_ms > DUE_NOW_MS:
        longest = f"the longest: {seen.overdue_job}, {_rough(late_ms)}"
        return HealthFinding("due", HEALTHY, f"nothing is due for longer than its schedule allows ({longest})")
    return HealthFinding("due", HEALTHY, "what was due has fired")


def _ready(snapshot: Snapshot, seen: Deployment) -> HealthFinding:
    firsts = [line.first_ms for line in seen.lines if line.first_ms is not None]
    waited_ms = snapshot.now_ms - min(firsts, default=snapshot.now_ms)
    if waited_ms <= snapshot.limits.wait_ms:
        few = f"none of {_many(seen.waiting, 'ready run')} has waited for {format_ms(snapshot.limits.wait_ms)}"
        return HealthFinding("ready", HEALTHY, few if seen.waiting else "nothing waits to be claimed")
    what = f"ready but not claimed: {_count(seen.waiting)}, the first for {_rough(waited_ms)}"
    if seen.drained:
        return HealthFinding("ready", DEGRADED, what, f"{seen.drained[0]}: {seen.drained[0].cure}")
    if sum(_free(node) for node in seen.nodes):
        cure = "seats are free, and no node claims: look at the log of the workers, restart one that hangs"
        return HealthFinding("ready", UNHEALTHY, what, cure)
    if not seen.nodes:
        return HealthFinding("ready", UNHEALTHY, what, f"no node lives that could: {serve_words(seen.version)}")
    taken = f"all seats are taken{_by(_seated(_loads(snapshot)))}"
    return HealthFinding("ready", DEGRADED, what, f"{taken}: add seats (pollux set pool.seats) or nodes")


def _queue(snapshot: Snapshot, seen: Deployment) -> HealthFinding:
    depth, most = seen.waiting, snapshot.limits.queue_depth
    if depth > most:
        cure = "add seats or nodes if it stays so; the limit is the option health.queue_depth"
        return HealthFinding("queue", DEGRADED, f"{_count(depth)} runs wait for a seat, more than {most}", cure)
    return HealthFinding("queue", HEALTHY, queue_words(seen.counts, depth))


def _freshness(snapshot: Snapshot, seen: Deployment) -> HealthFinding:
    stale = [job for job in seen.jobs if is_stale(job, snapshot)]
    if stale:
        cure = "pollux why JOB shows what it waits for, pollux runs --job JOB how it failed"
        names = _named([f"{job.id} ({_age(job, snapshot.now_ms)})" for job in stale])
        return HealthFinding("freshness", DEGRADED, f"no success for too long: {names}", cure)
    watched = sum(job.is_watched for job in seen.jobs)
    return HealthFinding("freshness", HEALTHY, f"{_many(watched, 'job')} looked at, all fresh")


def is_stale(job: JobSnapshot, snapshot: Snapshot) -> bool:
    """Whether the last success is older than so many planned intervals, and older than `staleness_ms`.

    A job that never succeeded is stale once it has failed that often, or has been due for so long.
    """
    limits = snapshot.limits
    if not job.is_watched or job.planned_ms is None:
        return False
    age_ms = job.wanted_ms if job.last_success_ms is None else snapshot.now_ms - job.last_success_ms
    if job.last_success_ms is None and job.failures >= limits.intervals:
        return True
    return age_ms > max(limits.staleness_ms, limits.intervals * job.planned_ms)


def _sources(_: Snapshot, seen: Deployment) -> HealthFinding:
    """Judge sources of which no node lives: their jobs stay, for the nodes may come back."""
    if not seen.nodes:
        return HealthFinding("sources", HEALTHY, "no node lives: all jobs wait")
    if not seen.orphaned:
        return HealthFinding("sources", HEALTHY, "every source with jobs of its own has a living node")
    parts = [f"{source} ({_many(len(ids), 'job')}: {_named(list(ids))})" for source, ids in seen.orphaned]
    source = seen.orphaned[0][0]
    cure = f"start one, or if it was removed for good delete its jobs: pollux jobs delete --source {source}"
    return HealthFinding("sources", DEGRADED, f"no living node has {', '.join(parts)}", cure)


def _feed(snapshot: Snapshot, seen: Deployment) -> HealthFinding:
    ends, limits = seen.counts.ends, snapshot.limits
    if ends > limits.feed_max:
        cure = f"start a node that plans: {serve_words(seen.version)}"
        return HealthFinding("feed", UNHEALTHY, f"{_count(ends)} ends are unread: nothing is claimed any more", cure)
    if ends > limits.feed:
        cure = "the leader is behind: look at its CPU, its disk, and at the store"
        return HealthFinding("feed", DEGRADED, f"{_count(ends)} ends are unread", cure)
    return HealthFinding("feed", HEALTHY, f"{_many(ends, 'end')} unread")


def _records(_: Snapshot, seen: Deployment) -> HealthFinding:
    """Judge records that the leader cannot read; feed entries among them were made up for."""
    jobs = [each.words for each in seen.unreadable if each.kind == JOBS]
    if jobs:
        cure = "let a newer release lead; if none can read it put it again or delete it: pollux store check"
        return HealthFinding(
            "records", DEGRADED, f"the leader cannot read {'; '.join(jobs)}: nothing of it is fired", cure
        )
    entries = [each.words for each in seen.unreadable if each.kind != SCHEDULES]
    what = f"; skipped in the last week: {'; '.join(entries)}" if entries else ""
    return HealthFinding("records", HEALTHY, f"no job is unreadable{what}")


def _dead(_: Snapshot, seen: Deployment) -> HealthFinding:
    if seen.counts.dead:
        cure = "pollux dead lists them; fix the cause, then revive or drop them"
        return HealthFinding("dead", DEGRADED, f"{_many(seen.counts.dead, 'dead letter')}", cure)
    return HealthFinding("dead", HEALTHY, "no dead letters")


def _stops(_: Snapshot, seen: Deployment) -> HealthFinding:
    whole = [f"everything is paused{f' ({why})' if why else ''}" for what, why in seen.stops if what == "all"]
    cures = ["pollux resume --all"] if whole else []
    for drain in (each for each in seen.drained if each.node is None):
        whole.append(str(drain))
        cures.append(drain.cure)
    if whole:
        return HealthFinding("stops", DEGRADED, "; ".join(whole), "; ".join(cures))
    parts = [f"paused: {_named([what for what, _ in seen.stops])}"] if seen.stops else []
    parts += [f"{drain}; {drain.ends}" for drain in seen.drained[:NAMED_MAX]]
    return HealthFinding("stops", HEALTHY, "; ".join(parts) or "nothing is paused or drained")


# this node


def _polling(snapshot: Snapshot, node: NodeSnapshot) -> HealthFinding:
    """Judge the loops: one that ended, hangs in a turn, or fails again and again."""
    if node.is_draining:
        cure = "it ends by itself; start another one if that was not meant"
        return HealthFinding("polling", DEGRADED, "this node is draining: it claims nothing", cure)
    up_ms = snapshot.now_ms - node.started_ms
    ended = [loop.name for loop in node.loops if not loop.is_alive]
    silent = [loop.name for loop in node.loops if (up_ms if loop.silent_ms is None else loop.silent_ms) > SILENT_MS]
    if ended or silent:
        what = f"alive but not polling: {_named(ended)} ended" if ended else f"alive but not polling: {_named(silent)}"
        return HealthFinding("polling", UNHEALTHY, what, "restart this node, and keep its log")
    failing = [loop for loop in node.loops if loop.errors_in_a_row >= FAILING]
    if failing:
        names = _named([f"{loop.name} ({loop.errors_in_a_row} times)" for loop in failing])
        return HealthFinding(
            "polling", DEGRADED, f"failing in a row: {names}", "the log says why; look at the store first"
        )
    return HealthFinding("polling", HEALTHY, f"{_many(len(node.loops), 'loop')} turn")


def _loads(snapshot: Snapshot) -> list[tuple[str, NodeLoad]]:
    """Return owner and load: of this node as it is now, of the others as of their last heartbeat."""
    own, seen = snapshot.node, snapshot.deployment
    others = [node for node in (() if seen is None else seen.nodes) if own is None or node.id != own.id]
    mine = [] if own is None else [("", replace(own.load, blocked_ms=max(own.load.blocked_ms, own.lag_ms)))]
    return [*mine, *((f" of node {node.id}", node.load) for node in others)]


def of_nodes(nodes: Sequence[Node], *, lag_ms: int) -> Iterator[HealthFinding]:
    """Yield `loop` and `handlers` of nodes, as of their last heartbeats."""
    loads = [(f" of node {node.id}", node.load) for node in nodes]
    if loads:
        yield _loop(loads, lag_ms, None)
        yield _handlers(loads, *_busy_of(nodes))


def _loop(loads: list[tuple[str, NodeLoad]], most: int, own_ms: int | None) -> HealthFinding:
    """`own_ms`: the longest block of this node's loop."""
    blocked = sorted([(load.blocked_ms, whose, load.blocked_by) for whose, load in loads], reverse=True)
    if blocked[0][0] > most:
        slow = [each for each in blocked if each[0] > most][:NAMED_MAX]
        words = [f"the event loop{whose} was blocked for {_rough(ms)}{_by(by)}" for ms, whose, by in slow]
        return HealthFinding("loop", DEGRADED, "; ".join(words), LOOP_CURE)
    if own_ms is None:
        return HealthFinding("loop", HEALTHY, "no event loop was blocked for long")
    return HealthFinding("loop", HEALTHY, f"the event loop was blocked for {own_ms} ms at most in the last minute")


def _handlers(loads: list[tuple[str, NodeLoad]], busy: int, seats: int) -> HealthFinding:
    stuck = [(whose, load) for whose, load in loads if load.stuck]
    if stuck:
        words = []
        for whose, load in stuck[:NAMED_MAX]:
            names = f": {', '.join(load.stuck_at)}" if load.stuck_at else ""
            still = "still holds a seat" if load.stuck == 1 else "still hold a seat each"
            words.append(f"{_many(load.stuck, 'handler')}{whose} did not stop at the timeout, and {still}{names}")
        return HealthFinding(
            "handlers", DEGRADED, "; ".join(words), "let it check ctx.cancelled, or set isolate: process"
        )
    return HealthFinding("handlers", HEALTHY, f"{busy} of {_many(seats, 'seat')} busy{_by(_seated(loads))}")


def _busy(snapshot: Snapshot) -> tuple[int, int]:
    """Return busy and all seats of this node, or of all nodes where only the store was read."""
    if snapshot.node is not None:
        return snapshot.node.busy, snapshot.node.seats
    return _busy_of(() if snapshot.deployment is None else snapshot.deployment.nodes)


def _busy_of(nodes: Sequence[Node]) -> tuple[int, int]:
    return sum(node.busy for node in nodes), sum(node.seats for node in nodes)


def _seated(loads: list[tuple[str, NodeLoad]]) -> str:
    """Name the handlers that hold the seats, if all are taken."""
    return ", ".join([f"{', '.join(load.seated)}{whose}" for whose, load in loads if load.seated][:NAMED_MAX])


def _by(name: str) -> str:
    return f" by {name}" if name else ""


def _file(_: Snapshot, node: NodeSnapshot) -> HealthFinding:
    if node.refused:
        cure = "fix it (it is read again by itself), or go back to the text in force: pollux reload --rollback"
        return HealthFinding("file", DEGRADED, f"{node.file} was changed and is refused: {node.refused}", cure)
    return HealthFinding("file", HEALTHY, f"{node.file} is in force")


# words


def _free(node: Node) -> int:
    return 0 if node.draining else max(0, node.seats - node.busy)


def _age(job: JobSnapshot, now_ms: int) -> str:
    return "never" if job.last_success_ms is None else _rough(now_ms - job.last_success_ms)


def _named(names: list[str]) -> str:
    more = len(names) - NAMED_MAX
    return ", ".join(names[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")


def _many(number: int, what: str) -> str:
    return f"{_count(number)} {what}{'' if number == 1 else 's'}"


def _count(number: int) -> str:
    return f"{number:,}"


def _rough(ms: int) -> str:
    """Format a duration, rounded down to seconds from one second on."""
    return format_ms(ms // 1_000 * 1_000 if ms >= 1_000 else ms)


PRIORITIES = ("high", "normal", "low")
CLOSED = {"state": "closed", "since": None, "lastTransition": None, "retryAt": None, "failureCount": 0}


def health_document(health: Health) -> dict[str, Any]:
    """Return the deployment's health: `status`, the findings, and the numbers behind them."""
    snapshot, seen, node = health.snapshot, health.snapshot.deployment, health.snapshot.node
    nodes = _living_nodes(snapshot)
    leader = leader_of(nodes)
    return {
        "status": health.status,
        "findings": [_finding(finding) for finding in health.findings],
        "running": node is not None and not node.is_draining,
        "is_leader": node is not None and node.term is not None,
        "leader": leader.id if leader is not None else None,
        "term": leader.leads if leader is not None else None,
        "node": node.id if node is not None else None,
        "workers_active": sum(each.seats for each in nodes if not each.draining),
        "workers_busy": sum(each.busy for each in nodes),
        "queue_depth": seen.waiting if seen is not None else None,
        "jobs_count": seen.counts.jobs if seen is not None else None,
        "cron_jobs_count": _cron_jobs(seen),
        "last_check_at": _moment(snapshot.now_ms if seen is None else seen.read_ms),
        "uptime_seconds": 0 if node is None else max(0, snapshot.now_ms - node.started_ms) // 1_000,
        "circuit_breaker_state": "closed",
        "store": {
            "kind": snapshot.store,
            "reachable": seen is not None,
            "trouble": snapshot.trouble or ("" if seen is None else "; ".join(seen.problems)),
        },
        **_of_monitor(health),
    }


def workers_document(health: Health) -> dict[str, Any]:
    """Return the seats of all living nodes, and what the handlers of this one are at."""
    nodes = _living_nodes(health.snapshot)
    seen = health.snapshot.deployment
    total, busy = sum(node.seats for node in nodes), sum(node.busy for node in nodes)
    return {
        "total": total,
        "active": busy,
        "idle": max(0, total - busy),
        "draining": any(node.draining for node in nodes) or _is_drained(health.snapshot),
        "workers": [_worker(node, health.snapshot) for node in nodes],
        "queue_size": seen.waiting if seen is not None else None,
    }


def _of_monitor(health: Health) -> dict[str, Any]:
    """Return the fields for monitors of polled systems."""
    snapshot, seen, node = health.snapshot, health.snapshot.deployment, health.snapshot.node
    jobs = seen.jobs if seen is not None else ()
    dead = {run.job_id: run for run in reversed(snapshot.dead)}
    return {
        "updatedAt": _moment(snapshot.now_ms if seen is None else seen.read_ms),
        "enabled": False,
        "queue": {
            "depth": seen.waiting if seen is not None else None,
            "held": seen.counts.held if seen is not None else None,
            "running": seen.counts.leased if seen is not None else None,
            "dueWithinSeconds": node.due_soon if node is not None else None,
            "perPriority": _per_priority(seen),
            "feed": seen.counts.feed if seen is not None else None,
        },
        "deadLetter": {
            "count": seen.counts.dead if seen is not None else None,
            "tasks": [_dead_letter(run, jobs) for run in snapshot.dead],
        },
        "breakers": [],
        "staleness": [_staleness(job) for job in jobs if job.is_watched],
        "instances": [_instance(job, snapshot, dead.get(job.id)) for job in jobs],
    }


# parts


def _living_nodes(snapshot: Snapshot) -> list[Node]:
    """Return the living nodes; of this one the state as it is now."""
    seen, own = snapshot.deployment, snapshot.node
    found = []
    for node in () if seen is None else seen.nodes:
        if own is not None and node.id == own.id:
            seats = 0 if own.is_draining else own.seats
            since_ms = node.leads_ms if own.term else 0
            node = replace(node, seats=seats, busy=own.busy, draining=own.is_draining, leads=own.term or 0)  # noqa: PLW2901
            node = replace(node, leads_ms=since_ms)  # noqa: PLW2901
        found.append(node)
    return found


def _is_drained(snapshot: Snapshot) -> bool:
    return snapshot.deployment is not None and any(each.node is None for each in snapshot.deployment.drained)


def _worker(node: Node, snapshot: Snapshot) -> dict[str, Any]:
    own = snapshot.node if snapshot.node is not None and snapshot.node.id == node.id else None
    return {
        "id": node.id,
        "host": node.host,
        "pid": node.pid,
        "status": "draining" if node.draining else "busy" if node.busy else "idle",
        "seats": node.seats,
        "busy": node.busy,
        "role": role_of(node),
        "is_leader": bool(node.leads),
        "version": node.version,
        "started_at": _moment(node.started_ms),
        "last_beat_at": _moment(node.beat_ms),
        "runs": None if own is None else [_busy_seat(each) for each in own.busy_seats],
    }


def _busy_seat(seat: Any) -> dict[str, Any]:
    return {
        "seat": seat.seat,
        "run_id": seat.run_id,
        "job_id": seat.job_id,
        "started_at": _moment(seat.started_ms),
        "progress": seat.progress,
    }


def _finding(finding: HealthFinding) -> dict[str, str]:
    return {"name": finding.name, "level": finding.level, "seen": finding.seen, "cure": finding.cure}


def _cron_jobs(seen: Deployment | None) -> int | None:
    """Return None where there are more jobs than were read one by one."""
    if seen is None or seen.counts.jobs > len(seen.jobs):
        return None
    return sum(job.is_cron for job in seen.jobs)


def _per_priority(seen: Deployment | None) -> dict[str, int]:
    return {name: line.ready for name, line in zip(PRIORITIES, seen.lines if seen is not None else (), strict=False)}


def _dead_letter(run: Run, jobs: tuple[JobSnapshot, ...]) -> dict[str, Any]:
    job = next((job for job in jobs if job.id == run.job_id), None)
    return {
        "instance": run.job_id,
        "type": job.kind if job is not None else run.group,
        "run": run.id,
        "nextRun": _moment(job.next_due_ms) if job is not None else None,
        "lastError": run.error,
        "failures": max(run.attempt + 1, run.dead_letters),
    }


def _staleness(job: JobSnapshot) -> dict[str, Any]:
    return {
        "instance": job.id,
        "type": job.kind,
        "score": round(1.0 - job.score, 3),
        "lastSuccess": _moment(job.last_success_ms),
        "lastError": _moment(job.last_error_ms),
        "plannedSeconds": None if job.planned_ms is None else job.planned_ms / 1_000,
    }


def _instance(job: JobSnapshot, snapshot: Snapshot, dead: Run | None) -> dict[str, Any]:
    error = {"at": _moment(job.last_error_ms), "message": job.last_error, "category": job.category}
    return {
        "key": f"{job.kind}::{job.id}",
        "type": job.kind,
        "displayName": job.name or job.id,
        "instance": job.id,
        "connection": job.target,
        "pollStatus": {
            "lastSuccess": _moment(job.last_success_ms),
            "lastError": error if job.last_error_ms is not None else None,
            "consecutiveFailures": job.failures,
            "firstFailureAt": _moment(job.failing_since_ms),
        },
        "breaker": dict(CLOSED),
        "deadLetter": {
            "present": dead is not None or job.dead > 0,
            "reason": dead.error if dead is not None else "",
            "firstAttempt": _moment(_first_attempt_ms(dead)),
            "lastAttempt": _moment(dead.finished_ms if dead is not None else None),
            "retryCount": dead.attempt if dead is not None else 0,
            "nextRetry": _moment(job.next_due_ms) if dead is not None else None,
        },
        "warnings": ["no success for too long"] if is_stale(job, snapshot) else [],
    }


def _first_attempt_ms(dead: Run | None) -> int | None:
    """Return when it was first tried; a run that was never tried again has no list of earlier attempts."""
    if dead is None:
        return None
    return dead.tried[0].started_ms if dead.tried else dead.started_ms


def _moment(ms: int | None) -> str | None:
    return None if ms is None else format_moment(ms)
