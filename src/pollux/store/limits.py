"""Limits and checks of arguments, the same on every store, applied before anything is written.

Users' values are stored as plain JSON on every store: a stored value equals the original after one round trip through
JSON, and shares no object with the caller.  A value that is too big or cannot be encoded is refused as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from pollux.errors import InvalidInput
from pollux.model import (
    AHEAD_MAX,
    FIRINGS_MAX,
    NOTE_BYTES_MAX,
    NOTES_MAX,
    UPDATES_MAX,
    Done,
    Job,
    NotePut,
    Plan,
    Run,
    RunState,
    check_version,
)
from pollux.store.contract import BATCH_MAX, PAGE_MAX, PAYLOAD_BYTES_MAX, RESULT_BYTES_MAX, JobPut, Pruning, Settlement
from pollux.store.values import PRIORITIES

LINE_MAX = 10_000  # a queue is counted up to here, because its depth is read often
_MADE = frozenset({RunState.READY, RunState.HELD})
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class StoredJob(Protocol):
    """The fields of a stored job that a put is checked against."""

    @property
    def revision(self) -> int: ...
    @property
    def source(self) -> str: ...
    @property
    def release(self) -> int: ...


def counted_max(before: str | None) -> int:
    """The number up to which a queue is counted exactly: see `Store.lines`."""
    return LINE_MAX if before is None else AHEAD_MAX


def plain(value: Any, *, bytes_max: int, what: str) -> Any:
    """The value after a round trip through JSON; refused if it cannot be encoded or is too big."""
    try:
        data = _encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidInput(f"{what} cannot be written as JSON ({error})", cure="use plain values") from error
    if len(data) > bytes_max:
        raise InvalidInput(
            f"{what} has {len(data):,} bytes, at most {bytes_max:,} are kept",
            cure="keep the bulk elsewhere and store where it is",
        )
    return _decode(data)


def written(value: Any, bytes_max: int, what: str, whose: str) -> bytes:
    """The value as JSON; refused with the error of `plain` if it cannot be encoded or is too big."""
    try:
        data = _encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        data = None
    if data is None or len(data) > bytes_max:
        plain(value, bytes_max=bytes_max, what=f"{what} {whose!r}")
        raise AssertionError("plain() refuses such a value")
    return data


def check_batch(items: Sized, what: str, *, at_most: int = BATCH_MAX) -> None:
    if len(items) > at_most:
        raise InvalidInput(
            f"{len(items):,} {what} in one call, at most {at_most:,} are taken", cure="send them in parts"
        )


def check_pruning(what: Pruning, *, has_audit: bool) -> None:
    """Audit lines are accepted with the ids of runs or with a version, not with pruning by age."""
    check_batch(what.ids, "runs")
    if has_audit and what not in (Pruning(ids=what.ids, limit=what.limit), Pruning(version=what.version)):
        raise InvalidInput(
            "a line of the audit log goes with the ids of runs or with a version alone",
            cure="prune by age in a call of its own",
        )
    if what.version is not None:
        check_version(what.version)


def check_page(limit: int) -> int:
    """The number of rows of a page: at least one, at most `PAGE_MAX`."""
    if limit < 1:
        raise InvalidInput(f"a page of {limit} rows", cure=f"ask for 1 to {PAGE_MAX:,}")
    return min(limit, PAGE_MAX)


def checked_job(job: Job) -> Job:
    """The job with plain params."""
    _check_priority(job.priority, f"job {job.id!r}")
    if not job.params:
        return job
    params = plain(job.params, bytes_max=PAYLOAD_BYTES_MAX, what=f"the params of job {job.id!r}")
    return replace(job, params=params)


def checked_runs(runs: Sequence[Run], *, at_most: int = BATCH_MAX) -> list[Run]:
    """The runs with plain payloads; a new run is ready or held, and was never delivered."""
    check_batch(runs, "runs", at_most=at_most)
    return [checked_run(run) for run in runs]


def checked_run(run: Run) -> Run:
    _check_priority(run.priority, f"run {run.id!r}")
    if run.state not in _MADE:
        raise InvalidInput(f"run {run.id!r} is {run.state}", cure="a new run is ready or held; make it with run_of")
    if run.fence or run.token or run.cancel:
        raise InvalidInput(f"run {run.id!r} was delivered before", cure="make a new one with run_of")
    if run.payload is None:
        return run
    payload = plain(run.payload, bytes_max=PAYLOAD_BYTES_MAX, what=f"the payload of run {run.id!r}")
    return replace(run, payload=payload)


def checked_notes(puts: Sequence[NotePut], *, at_most: int = BATCH_MAX) -> list[NotePut]:
    check_batch(puts, "notes", at_most=at_most)
    return [
        put
        if put.value is None
        else replace(put, value=plain(put.value, bytes_max=NOTE_BYTES_MAX, what=f"note {put.key!r}"))
        for put in puts
    ]


def check_settlements(settlements: Sequence[Settlement]) -> None:
    """Check the number of settlements and the types of their fields: a value of another type could not be decoded."""
    check_batch(settlements, "settlements")
    for settlement in settlements:
        outcome = settlement.outcome
        if type(settlement.progress) is not str or (outcome is not None and not _fits(outcome)):
            raise InvalidInput(
                f"the outcome of run {settlement.run_id!r} cannot be recorded: {_odd(settlement)}",
                cure="make it with the fields and kinds of `Outcome`",
            )


def _fits(outcome: Any) -> bool:
    """Whether the fields that are stored unchanged have their types.  A result may be any JSON."""
    return (
        type(outcome.started_ms) is int is type(outcome.ended_ms)
        and type(outcome.error) is str is type(outcome.fingerprint)
        and type(outcome.traceback) is str
        and (outcome.changed is None or type(outcome.changed) is bool)
        and type(outcome.crashed) is bool
    )


def _odd(settlement: Settlement) -> str:
    """The type error: "Expected `bool | null`, got `str` - at `$.changed`"."""
    reduced = Settlement(settlement.run_id, "", Done(), settlement.outcome, progress=settlement.progress)
    try:
        msgspec.json.decode(_encode(reduced), type=Settlement)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        return str(error)
    return "it has values of a kind of their own"


def checked_settlements(settlements: Sequence[Settlement]) -> list[Settlement]:
    check_settlements(settlements)
    return [_checked_settlement(settlement) for settlement in settlements]


def _checked_settlement(settlement: Settlement) -> Settlement:
    outcome = settlement.outcome
    if outcome is not None and outcome.result is not None:
        what = f"the result of run {settlement.run_id!r}"
        result = plain(outcome.result, bytes_max=RESULT_BYTES_MAX, what=what)
        settlement = replace(settlement, outcome=replace(outcome, result=result))
    if settlement.follow_ups:
        settlement = replace(settlement, follow_ups=tuple(checked_runs(settlement.follow_ups)))
    if settlement.notes:
        settlement = replace(settlement, notes=tuple(checked_notes(settlement.notes)))
    return settlement


def check_plan(plan: Plan) -> None:
    firings = len(plan.firings) + len(plan.releases)
    if firings > FIRINGS_MAX or len(plan.updates) > UPDATES_MAX or len(plan.notes) > NOTES_MAX:
        raise InvalidInput(
            f"a plan with {firings} firings and releases, {len(plan.updates)} updates and {len(plan.notes)} notes",
            cure=f"at most {FIRINGS_MAX}, {UPDATES_MAX} and {NOTES_MAX} are written at once; the rest waits a turn",
        )
    check_batch(plan.holds, "holdings")
    check_batch(plan.earlier, "earlier times")
    check_batch(plan.cancels, "cancel orders")


def check_first(first: int) -> None:
    """Check the priority that a claim begins with."""
    if first not in PRIORITIES:
        raise InvalidInput(f"there is no priority {first}", cure="begin with 1, 2 or 3")


def stands_against(put: JobPut, there: StoredJob) -> str:
    """Why the stored job may not be replaced; empty if it may."""
    if put.revision is not None and put.revision != there.revision:
        return f"revision {put.revision} was expected, the stored one is {there.revision}"
    if put.job.source != there.source:
        return f"{there.source} owns it, not {put.job.source}"
    if put.job.release < there.release:
        return f"release {there.release} is stored, this is release {put.job.release}"
    return ""


def _check_priority(priority: int, whose: str) -> None:
    if priority not in PRIORITIES:
        raise InvalidInput(f"{whose} has priority {priority}", cure="use 1 (high), 2 (normal) or 3 (low)")
