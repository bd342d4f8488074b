"""Codec between values and what the scripts read and return.

A run is a hash of two fields: its state, packed, which the scripts read and write as a whole, and its immutable
input.  Texts of JSON go through the scripts untouched: no number in them is ever Lua's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Struct

from pollux.model import (
    PROGRESS_CHARS_MAX,
    SCHEDULER_VERSION,
    Back,
    Cancelled,
    Cause,
    Dead,
    Done,
    Entry,
    Hold,
    Job,
    Memory,
    Note,
    NotePut,
    Once,
    Outcome,
    RetryAt,
    Run,
    RunState,
    Tried,
    Verdict,
    definition,
    error_parts,
    error_text,
    lease_lost,
    tried_again,
)
from pollux.store.contract import PAYLOAD_BYTES_MAX, RESULT_BYTES_MAX, RunsAlike, Settlement
from pollux.store.decoding import BatchDecoder, legible
from pollux.store.job_cache import JobCache
from pollux.store.limits import checked_notes, checked_run, written
from pollux.store.values import PRIORITIES

Row = list[Any]

encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder().decode
decode_entry = msgspec.msgpack.Decoder(Entry).decode
_encode_sorted = msgspec.json.Encoder(order="deterministic").encode
_decode_tried = msgspec.json.Decoder(list[list[Any]]).decode
_MADE = (RunState.READY, RunState.HELD)
_NO_MEMORY = Memory()


# jobs


def job_put(job: Job, revision: int | None = None) -> dict[str, Any]:
    """A definition as `put_jobs.lua` takes it; two jobs are the same if their texts are."""
    return {
        "id": job.id,
        "def": _encode_sorted(definition(job)).decode(),
        "rel": job.release,
        "src": job.source,
        "on": job.enabled,
        "once": type(job.schedule) is Once,
        "revision": or_false(revision),
    }


def job_given(row: Row) -> tuple[Any, ...]:
    """The row of `job_row`, in the form that `JobCache` takes."""
    return (*[None if value is False else value for value in row], SCHEDULER_VERSION)


def legible_job(cache: JobCache, row: Row) -> Job:
    given = job_given(row)
    return legible(cache.job, given, f"job {given[0]!r}")


def memory_text(memory: Memory) -> str:
    return "" if memory == _NO_MEMORY else encode(memory).decode()


def or_false(value: int | None) -> int | bool:
    """Lua's arrays know no None."""
    return False if value is None else value


# notes


def note_rows(puts: list[NotePut]) -> list[Row]:
    return [
        [put.key, value_text(put.value), False if put.revision is None else put.revision, or_false(put.expires_ms)]
        for put in puts
    ]


def value_text(value: Any) -> str | bool:
    return False if value is None else encode(value).decode()


def note(row: Row) -> Note:
    return Note(row[0], decode(row[1]), row[2], None if row[3] is False else row[3])


def note_reading() -> BatchDecoder[Row, Note]:
    return BatchDecoder("note", note)


def legible_note(row: Row) -> Note:
    return legible(note, row, f"note {row[0]!r}")


# runs


class RunHash(Struct, gc=False):
    """How a run stands, as its hash says; what has its default is not there."""

    st: RunState
    job: str
    due: int
    vis: int = 0
    cause: Cause = Cause.SCHEDULE
    key: str | None = None
    pr: Annotated[int, msgspec.Meta(ge=1, le=3)] = 2
    gated: bool = False
    why: str = ""
    att: int = 0
    loss: int = 0
    crash: int = 0
    fence: int = 0
    tok: str = ""
    own: str = ""
    til: int = 0
    cancel: str = ""
    beg: int | None = None
    fin: int | None = None
    failed: bool = False
    chg: bool | None = None
    err: str = ""
    res: str | None = None
    deaths: int = 1
    prog: str = ""
    tried: str = ""
    v: int = SCHEDULER_VERSION
    z: int = 0  # written by a plain call, which also tells its entry: see plain.py
    ent: str = ""


class RunPayload(Struct, gc=False, omit_defaults=True):
    """What a run was given on its way, which no script reads."""

    payload: Any = None
    group: str = ""
    target: str = ""


decode_stand = msgspec.msgpack.Decoder(RunHash).decode
_decode_body = msgspec.json.Decoder(RunPayload).decode


def made_row(run: Run) -> Row:
    """A run as `admit_row` takes it, with all that it has."""
    stand: dict[str, Any] = {"st": run.state, "job": run.job_id, "due": run.due_ms, "vis": run.visible_ms}
    if run.cause is not Cause.SCHEDULE:
        stand["cause"] = run.cause
    if run.key is not None:
        stand["key"] = run.key
    if run.priority != 2:
        stand["pr"] = run.priority
    if run.gated:
        stand["gated"] = True
    if run.held_reason:
        stand["why"] = run.held_reason
    if run.scheduler_version != SCHEDULER_VERSION:
        stand["v"] = run.scheduler_version
    if run.fence or run.tried or run.is_finished:
        stand |= _history(run)
    return [run.id, stand, body_of(run)]


def checked_row(run: Run) -> Row:
    """The same, refused in the words of all stores if a run cannot be made so."""
    if run.priority not in PRIORITIES or run.state not in _MADE or run.fence or run.token or run.cancel:
        checked_run(run)
    return made_row(run)


def past_row(run: Run) -> Row:
    """A finished run as `load.lua` takes it."""
    is_unchanged = run.state is RunState.DONE and not run.failed and run.changed is False
    row = made_row(run)
    row[1]["fin"] = run.finished_ms or 0
    return ["history", row, is_unchanged]


def body_of(run: Run) -> str | bool:
    """What a run was given, as JSON; refused in the words of all stores."""
    try:
        data = _body(run.payload, run.group, run.target)
    except (TypeError, ValueError, OverflowError, RecursionError):
        data = None
    if data is None or len(data) > PAYLOAD_BYTES_MAX:
        written(run.payload, PAYLOAD_BYTES_MAX, "the payload of run", run.id)
    return data.decode() if data else False


def bodies_of(runs: Sequence[Run]) -> list[str | bool]:
    """The same of many; what is JSON already goes as it is."""
    if not isinstance(runs, RunsAlike):
        return [body_of(run) for run in runs]
    group, target = runs.one.group, runs.one.target
    bodies = [_body(None if body is None else msgspec.Raw(body), group, target) for body in runs.bodies]
    return [body.decode() if body else False for body in bodies]


def _body(payload: object, group: str, target: str) -> bytes:
    return b"" if payload is None and not group and not target else encode(RunPayload(payload, group, target))


_COUNTS = (("att", "attempt"), ("loss", "lease_losses"), ("crash", "crashes"), ("fence", "fence"))
_TEXTS = (("tok", "token"), ("cancel", "cancel"), ("err", "error"), ("prog", "progress"))


def _history(run: Run) -> dict[str, Any]:
    """What a run brings along that was delivered before: only a loaded one does."""
    fields = {name: value for name, field in (*_COUNTS, *_TEXTS) if (value := getattr(run, field))}
    if run.started_ms is not None:
        fields["beg"] = run.started_ms
    if run.finished_ms is not None:
        fields["fin"] = run.finished_ms
    if run.failed:
        fields["failed"] = True
    if run.changed is not None:
        fields["chg"] = run.changed
    if run.result is not None:
        fields["res"] = encode(run.result).decode()
    if run.deaths != 1:
        fields["deaths"] = run.deaths
    if run.traceback:
        fields["err"] = error_text(run.error, run.traceback)
    if run.tried:
        fields["tried"] = "\n".join(encode(each).decode() for each in run.tried)
    return fields


_NO_BODY = RunPayload()


def run(run_id: bytes, state: bytes, body: bytes) -> Run:
    return run_of(run_id.decode(), decode_stand(state), body)


def legible_run(run_id: bytes, state: bytes, body: bytes) -> Run:
    name = run_id.decode(errors="replace")
    return legible(lambda parts: run(*parts), (run_id, state, body), f"run {name!r}")


def run_of(run_id: str, stand: RunHash, body: bytes) -> Run:
    given = _decode_body(body) if body else _NO_BODY
    error, traceback = error_parts(stand.err)
    return Run(
        run_id,
        stand.job,
        stand.due,
        stand.cause,
        stand.key,
        given.payload,
        stand.pr,
        given.group,
        given.target,
        stand.gated,
        stand.st,
        stand.why,
        stand.vis,
        stand.att,
        stand.loss,
        stand.crash,
        stand.fence,
        stand.tok,
        stand.own,
        stand.til,
        stand.cancel,
        stand.beg,
        stand.fin,
        stand.failed,
        stand.chg,
        error,
        None if stand.res is None else decode(stand.res),
        stand.deaths,
        stand.prog,
        _tried(stand.tried) if stand.tried else (),
        stand.v,
        traceback,
    )


def runs(parts: list[bytes], first: int = 0) -> list[Run | None]:
    """From id, state, body, and again; None where there is no run."""
    return [legible_run(*parts[n : n + 3]) if parts[n + 1] else None for n in range(first, len(parts), 3)]


class RunReading(BatchDecoder[list[bytes], Run]):
    """The runs of one call; what cannot be read is told of with its answer."""

    def __init__(self) -> None:
        super().__init__("run", lambda parts: run(*parts))

    def runs(self, parts: list[bytes], first: int = 0) -> list[Run | None]:
        """As `runs`; None also where one cannot be read."""
        return list(self.each(parts, first))

    def each(self, parts: list[bytes], first: int = 0) -> Iterator[Run | None]:
        """The same, each read when its turn comes."""
        for n in range(first, len(parts), 3):
            found = parts[n : n + 3]
            yield self(found, found[0].decode(errors="replace")) if found[1] else None


def _tried(lines: str) -> tuple[Tried, ...]:
    """An attempt of three parts is a lost lease: fence, end, owner."""
    tried: tuple[Tried, ...] = ()
    for parts in _decode_tried("[" + lines.replace("\n", ",") + "]"):
        tried = tried_again(tried, lease_lost(parts[0], parts[2], parts[1]) if len(parts) == 3 else Tried(*parts))
    return tried


# settlements


def settlement_row(settlement: Settlement) -> Row:
    """As `settle.lua` takes it: what would be empty at its end is left out."""
    outcome = settlement.outcome
    row: Row = [
        settlement.run_id,
        settlement.token,
        _verdict(settlement.verdict),
        False if outcome is None else _outcome(outcome, settlement.run_id),
    ]
    if settlement.progress or settlement.follow_ups or settlement.notes:
        row += (
            settlement.progress[:PROGRESS_CHARS_MAX],
            [checked_row(run) for run in settlement.follow_ups],
            note_rows(checked_notes(settlement.notes)),
        )
    return row


def _verdict(verdict: Verdict) -> Row | bool:
    match verdict:
        case Done():
            return ["done", "", verdict.failed, verdict.clears] if verdict.failed or verdict.clears else True
        case Dead():
            return ["dead", verdict.reason, True, False, verdict.sole]
        case Cancelled():
            return ["cancelled", verdict.reason]
        case RetryAt():
            return ["retry", verdict.at_ms]
        case Back():
            return ["back", verdict.at_ms]
        case Hold():
            return ["hold", verdict.reason]


def _outcome(outcome: Outcome, run_id: str) -> Row:
    row: Row = [outcome.started_ms, outcome.ended_ms]
    if (
        outcome.error
        or outcome.result is not None
        or outcome.changed is not None
        or outcome.fingerprint
        or outcome.crashed
        or outcome.traceback
    ):
        row += (
            outcome.error,
            _result(outcome, run_id),
            "" if outcome.changed is None else outcome.changed,
            outcome.fingerprint,
            outcome.crashed,
            _kept(outcome) if outcome.error else '""',
        )
    if outcome.traceback:
        row.append(error_text(outcome.error, outcome.traceback))
    return row


def _result(outcome: Outcome, run_id: str) -> str | bool:
    if outcome.result is None:
        return False
    return written(outcome.result, RESULT_BYTES_MAX, "the result of run", run_id).decode()


def _kept(outcome: Outcome) -> str:
    """What a run remembers of the error of an earlier attempt, as JSON: its last fields."""
    [kept] = tried_again((), Tried(0, 0, 0, outcome.error, outcome.traceback))
    error = encode(kept.error).decode()
    return f"{error},{encode(kept.traceback).decode()}" if kept.traceback else error
