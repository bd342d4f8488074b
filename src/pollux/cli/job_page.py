"""The page of one job: definition, history, present state and next due time."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from pollux.cli.follow_run import state_words
from pollux.cli.output import ago, clean, full, moment, now_ms, print_block, print_json, print_pairs, span, sparkline
from pollux.units import format_ms


class JobDetails(NamedTuple):
    row: Any  # as in the list
    live: tuple[Any, ...]  # its live runs
    why: Any
    has_versions: bool  # there is more than one on the store


def print_job(shown: JobDetails, *, as_json: bool) -> None:
    from pollux.app.operations.status import history_of

    history = history_of(shown.row.job)
    if as_json:
        told = full(history) | {"success_rate": history.success_rate}
        print_json({"job": row_json(shown.row), "why": shown.why, "history": told, "live": shown.live})
        return
    now = now_ms()
    version = (("version", shown.row.job.scheduler_version),) if shown.has_versions else ()
    print_pairs((*_what_it_is(shown.row), *version, *_how_it_went(shown.row, history, now), *_what_comes(shown, now)))
    print_block("live runs", (f"{run.id}  {state_words(run)}" for run in shown.live))


def row_json(row: Any) -> dict[str, Any]:
    """A job with what the list shows beside it."""
    job: dict[str, Any] = full(row.job)
    return job | {
        "schedule_text": row.schedule,
        "state": row.state,
        "last": row.last,
        "freshness": full(row.freshness),
        "held": row.held,
        "progress": row.progress,
        "failing": row.failing,
    }


def _what_it_is(row: Any) -> tuple[tuple[str, Any], ...]:
    job = row.job
    return (
        ("id", job.id),
        ("name", job.name),
        ("handler", job.handler),
        ("params", json.dumps(full(job.params), ensure_ascii=False) if job.params else ""),
        ("schedule", row.schedule),
        ("enabled", "" if job.enabled else "no"),
        ("priority", {1: "high", 2: "normal", 3: "low"}[job.priority]),
        ("group", job.group),
        ("target", job.target),
        ("tags", ", ".join(job.tags)),
        ("timeout", format_ms(job.timeout_ms)),
        ("attempts", job.retry.attempts_max),
        ("overlap", job.overlap.value),
        ("misfire", job.misfire.value),
        ("isolate", job.isolate.value),
        ("source", f"{job.source}, release {job.release}" if job.release else job.source),
        ("revision", job.revision),
    )


def _how_it_went(row: Any, history: Any, now: int) -> tuple[tuple[str, Any], ...]:
    memory = row.job.memory
    fresh = row.freshness
    planned = f", planned every {span(fresh.planned_ms)}" if fresh.planned_ms else ""
    return (
        ("runs ended", memory.ended),
        ("latest", _line(history)),
        ("succeeded", _rate(history)),
        ("took", _durations(memory, history)),
        ("last run", f"{row.last or 'none'} {_both(memory.last_end_ms, now)}".strip()),
        ("failures in a row", memory.failures or ""),
        ("failing since", _both(row.failing_since_ms, now)),
        ("fresh", f"{fresh.score:.0%} ({span(fresh.age_ms)} old{planned})" if fresh.age_ms is not None else ""),
        ("last success", _both(memory.last_success_ms, now)),
        ("last change", _both(memory.last_change_ms, now)),
        ("last error", f"{_both(memory.last_error_ms, now)}: {memory.last_error}" if memory.last_error_ms else ""),
        ("skipped", ", ".join(f"{count} ({reason})" for reason, count in memory.skips.items())),
        ("last due", _both(row.job.last_due_ms, now)),
    )


def _what_comes(shown: JobDetails, now: int) -> tuple[tuple[str, Any], ...]:
    return (
        ("next due", _both(shown.row.job.next_due_ms, now)),
        ("progress", shown.row.progress),
        ("now", clean(shown.why.reason)),
        ("cure", shown.why.cure),
    )


def _line(history: Any) -> str:
    return sparkline([mark.at_most_ms for mark in history.marks], [mark.failed for mark in history.marks])


def _rate(history: Any) -> str:
    count = len(history.marks)
    if not count:
        return ""
    share = f"{history.succeeded} of the latest {count} ({history.success_rate:.0%})"
    return f"{share}; {history.changed} of them found a change"


def _durations(memory: Any, history: Any) -> str:
    if memory.last_end_ms is None:
        return ""
    usual = f"; half within {span(history.p50_ms)}, 95% within {span(history.p95_ms)}" if history.marks else ""
    return f"{span(memory.duration_ms)}{usual}"


def _both(ms: int | None, now: int) -> str:
    return "" if ms is None else f"{moment(ms)} ({ago(ms, now=now)})"
