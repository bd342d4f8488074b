"""JSON documents of the health, with the fields that older schedulers had and our own.

A field without a source yet is present and empty: no breaker is open, adaptive polling is off.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from pollux.model import Node, Run, leader_of, role_of
from pollux.observe.health import Health, HealthFinding, is_stale
from pollux.observe.snapshot import Deployment, JobSnapshot, Snapshot
from pollux.units import format_moment

PRIORITIES = ("high", "normal", "low")
CLOSED = {"state": "closed", "since": None, "lastTransition": None, "retryAt": None, "failureCount": 0}


def health_document(health: Health) -> dict[str, Any]:
    """The deployment's health: `status`, what was found, and the numbers behind it."""
    snapshot, seen, node = health.snapshot, health.snapshot.deployment, health.snapshot.node
    nodes = _nodes(snapshot)
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
    """Who works: the seats of all living nodes, and what the handlers of this one are at."""
    nodes = _nodes(health.snapshot)
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
    """What a monitor of polled things wants to know."""
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
            "tasks": [_dead(run, jobs) for run in snapshot.dead],
        },
        "breakers": [],
        "staleness": [_staleness(job) for job in jobs if job.is_watched],
        "instances": [_instance(job, snapshot, dead.get(job.id)) for job in jobs],
    }


# parts


def _nodes(snapshot: Snapshot) -> list[Node]:
    """The living; of ourselves we know better than our last beat."""
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
        "runs": None if own is None else [_sitting(each) for each in own.sitting],
    }


def _sitting(sitting: Any) -> dict[str, Any]:
    return {
        "seat": sitting.seat,
        "run_id": sitting.run_id,
        "job_id": sitting.job_id,
        "started_at": _moment(sitting.started_ms),
        "progress": sitting.progress,
    }


def _finding(finding: HealthFinding) -> dict[str, str]:
    return {"name": finding.name, "level": finding.level, "seen": finding.seen, "cure": finding.cure}


def _cron_jobs(seen: Deployment | None) -> int | None:
    """None where there are more jobs than were looked at: to count them would be to read them all."""
    if seen is None or seen.counts.jobs > len(seen.jobs):
        return None
    return sum(job.is_cron for job in seen.jobs)


def _per_priority(seen: Deployment | None) -> dict[str, int]:
    return {name: line.ready for name, line in zip(PRIORITIES, seen.lines if seen is not None else (), strict=False)}


def _dead(run: Run, jobs: tuple[JobSnapshot, ...]) -> dict[str, Any]:
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
    """When it was first tried; one that was never tried again has no list of earlier ones."""
    if dead is None:
        return None
    return dead.tried[0].started_ms if dead.tried else dead.started_ms


def _moment(ms: int | None) -> str | None:
    return None if ms is None else format_moment(ms)
