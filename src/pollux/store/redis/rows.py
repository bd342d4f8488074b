"""How do values become what the scripts read, and what they answer values?

A run is a hash with the fields of `RUN_COLUMNS` (in `_runs.lua`); what has its default is not there.  Texts of JSON go
through the scripts untouched: no number in them is ever Lua's.
"""

from __future__ import annotations

from typing import Any

import msgspec

from pollux.model import (
    PROGRESS_CHARS_MAX,
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
    lease_lost,
    tried_again,
)
from pollux.store.contract import PAYLOAD_BYTES_MAX, RESULT_BYTES_MAX, Settlement
from pollux.store.limits import PRIORITIES, checked_notes, checked_run, written

Row = list[Any]

encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder().decode
decode_entry = msgspec.msgpack.Decoder(Entry).decode
_encode_sorted = msgspec.json.Encoder(order="deterministic").encode
_decode_tried = msgspec.json.Decoder(list[list[Any]]).decode
_STATES = {str(state): state for state in RunState}
_CAUSES = {str(cause): cause for cause in Cause}
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


# runs


def made_row(run: Run) -> Row:
    """A run as `admit` takes it, with all that it has."""
    fields: list[Any] = ["job", run.job_id, "due", run.due_ms, "vis", run.visible_ms, *_routing(run), *_history(run)]
    return [
        run.id,
        run.job_id,
        run.due_ms,
        False if run.key is None else run.key,
        run.priority,
        str(run.state),
        run.visible_ms,
        fields,
    ]


def checked_row(run: Run) -> Row:
    """The same, refused in the words of all stores if a run cannot be made so."""
    if run.priority not in PRIORITIES or run.state not in _MADE or run.fence or run.token or run.cancel:
        checked_run(run)
    return made_row(run)


def past_row(run: Run) -> Row:
    """A finished run as `load.lua` takes it."""
    is_unchanged = run.state is RunState.DONE and not run.failed and run.changed is False
    fields = ["st", str(run.state), *made_row(run)[7], "fin", run.finished_ms or 0]
    return ["past", run.id, run.job_id, str(run.state), run.finished_ms or 0, is_unchanged, fields]


def _routing(run: Run) -> list[Any]:
    fields: list[Any] = []
    if run.cause is not Cause.SCHEDULE:
        fields += "cause", str(run.cause)
    if run.key is not None:
        fields += "key", run.key
    if run.payload is not None:
        fields += "payload", written(run.payload, PAYLOAD_BYTES_MAX, "the payload of run", run.id).decode()
    if run.priority != 2:
        fields += "pr", run.priority
    if run.group:
        fields += "grp", run.group
    if run.target:
        fields += "tgt", run.target
    if run.gated:
        fields += "gated", "1"
    if run.held_reason:
        fields += "why", run.held_reason
    return fields


_COUNTS = (("att", "attempt"), ("loss", "lease_losses"), ("crash", "crashes"), ("fence", "fence"))
_TEXTS = (("tok", "token"), ("cancel", "cancel"), ("err", "error"), ("prog", "progress"))


def _history(run: Run) -> list[Any]:
    """What a run brings along that was delivered before: only a loaded one does."""
    if run.fence == 0 and not run.is_finished and not run.tried:
        return []
    pairs: list[tuple[str, Any]] = [(name, getattr(run, field)) for name, field in (*_COUNTS, *_TEXTS)]
    fields = [part for name, value in pairs if value for part in (name, value)]
    if run.started_ms is not None:
        fields += "beg", run.started_ms
    if run.finished_ms is not None and not run.is_finished:
        fields += "fin", run.finished_ms
    if run.failed:
        fields += "failed", "1"
    if run.changed is not None:
        fields += "chg", "1" if run.changed else "0"
    if run.result is not None:
        fields += "res", encode(run.result).decode()
    if run.deaths != 1:
        fields += "deaths", run.deaths
    if run.tried:
        fields += "tried", "\n".join(encode(each).decode() for each in run.tried)
    return fields


def run(row: Row) -> Run:
    """From `RUN_COLUMNS` and the id."""
    return Run(
        row[29],
        row[0],
        int(row[1]),
        _CAUSES[row[2] or "schedule"],
        None if row[3] is False else row[3],
        None if row[4] is False else decode(row[4]),
        int(row[5] or 2),
        row[6] or "",
        row[7] or "",
        row[8] == "1",
        _STATES[row[9]],
        row[10] or "",
        int(row[11] or 0),
        int(row[12] or 0),
        int(row[13] or 0),
        int(row[14] or 0),
        int(row[15] or 0),
        row[16] or "",
        row[17] or "",
        int(row[18] or 0),
        row[19] or "",
        None if row[20] is False else int(row[20]),
        None if row[21] is False else int(row[21]),
        row[22] == "1",
        None if row[23] is False else row[23] == "1",
        row[24] or "",
        None if row[25] is False else decode(row[25]),
        int(row[26] or 1),
        row[27] or "",
        _tried(row[28]) if row[28] else (),
    )


def _tried(lines: str) -> tuple[Tried, ...]:
    """An attempt of three parts is a lost lease: fence, end, owner."""
    tried: tuple[Tried, ...] = ()
    for parts in _decode_tried("[" + lines.replace("\n", ",") + "]"):
        tried = tried_again(tried, lease_lost(parts[0], parts[2], parts[1]) if len(parts) == 3 else Tried(*parts))
    return tried


# settlements


def settlement_row(settlement: Settlement) -> Row:
    """As `settle.lua` takes it."""
    outcome = settlement.outcome
    return [
        settlement.run_id,
        settlement.token,
        _verdict(settlement.verdict),
        False if outcome is None else _outcome(outcome, settlement.run_id),
        [checked_row(run) for run in settlement.follow_ups],
        note_rows(checked_notes(settlement.notes)) if settlement.notes else [],
        settlement.progress[:PROGRESS_CHARS_MAX],
    ]


def _verdict(verdict: Verdict) -> Row:
    match verdict:
        case Done():
            return ["done", "", verdict.failed, verdict.clears]
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
    result: str | bool = False
    if outcome.result is not None:
        result = written(outcome.result, RESULT_BYTES_MAX, "the result of run", run_id).decode()
    [kept] = tried_again((), Tried(0, 0, 0, outcome.error))
    return [
        outcome.started_ms,
        outcome.ended_ms,
        outcome.error,
        result,
        "" if outcome.changed is None else "1" if outcome.changed else "0",
        outcome.fingerprint,
        outcome.crashed,
        encode(kept.error).decode(),
    ]
