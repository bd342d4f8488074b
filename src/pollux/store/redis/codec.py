"""Codec between values and what the functions of the server read and return.

A run is a hash of two fields: its state, packed, which the functions read and write as a whole, and its immutable
input.  Texts of JSON go through the functions untouched: no number in them is ever Lua's.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from pollux.model import (
    LIVE,
    PROGRESS_CHARS_MAX,
    SCHEDULER_VERSION,
    AuditLine,
    Back,
    Cancelled,
    Cause,
    Dead,
    Done,
    Entry,
    FeedItem,
    Hold,
    Job,
    Memory,
    Node,
    Note,
    NotePut,
    Once,
    Outcome,
    Plan,
    RetryAt,
    Run,
    RunState,
    Spoilt,
    Tried,
    Verdict,
    definition,
    error_parts,
    error_text,
    lease_lost,
    tried_again,
)
from pollux.store.contract import (
    PAYLOAD_BYTES_MAX,
    RESULT_BYTES_MAX,
    Answer,
    Audit,
    JobAnswer,
    JobPut,
    Pruning,
    Renewal,
    RunAnswer,
    RunsAlike,
    Settlement,
)
from pollux.store.decoding import UNREADABLE, decode_or_raise, spoilt
from pollux.store.dump_format import Record, TermRecord, Tombstone
from pollux.store.limits import checked_notes, checked_run, written
from pollux.store.values import PRIORITIES
from pollux.store.versions import other_version

NO_TEXT = "\N{REPLACEMENT CHARACTER}"
COUNTED_MAX = 2**53  # a function counts exactly up to here; entries of the feed beyond it are not ours, and go together
SEPARATOR = "\x1f"  # of the fields of an audit line, as they are hashed

Row = list[Any]
RunParts = tuple[bytes, bytes, bytes]  # id, state, body

encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder().decode
decode_entry = msgspec.msgpack.Decoder(Entry).decode
_encode_sorted = msgspec.json.Encoder(order="deterministic").encode
_unpack = msgspec.msgpack.Decoder().decode
_decode_head = msgspec.msgpack.Decoder(tuple[str, list[msgspec.Raw], Any, Any, int, str, list[str], list[str]]).decode
_decode_parts = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_decode_node = msgspec.json.Decoder(Node).decode
_decode_tried = msgspec.json.Decoder(list[list[Any]]).decode
_MADE = (RunState.READY, RunState.HELD)
_NO_MEMORY = Memory()


# jobs


def job_put(job: Job, revision: int | None = None) -> dict[str, Any]:
    """A definition as `put_jobs` takes it; two jobs are the same if their texts are."""
    return {
        "id": job.id,
        "def": _encode_sorted(definition(job)).decode(),
        "rel": job.release,
        "src": job.source,
        "on": job.enabled,
        "once": type(job.schedule) is Once,
        "revision": or_false(revision),
    }


def stored_job(row: Row) -> tuple[Any, ...]:
    """A row as `JobCache` takes it."""
    return tuple([None if value is False else value for value in row])


def memory_text(memory: Memory) -> str:
    return "" if memory == _NO_MEMORY else encode(memory).decode()


def or_false(value: int | None) -> int | bool:
    """Lua's arrays know no None."""
    return False if value is None else value


# notes


def note_rows(puts: Sequence[NotePut]) -> list[Row]:
    return [
        [put.key, value_text(put.value), False if put.revision is None else put.revision, or_false(put.expires_ms)]
        for put in puts
    ]


def value_text(value: Any) -> str | bool:
    return False if value is None else encode(value).decode()


def note(row: Row) -> Note:
    """From (key, value, revision, end)."""
    return Note(row[0], decode(row[1]), row[2], None if row[3] is False else row[3])


# runs


class RunHash(Struct, gc=False):
    """State of a run, as its hash has it; what has its default is not there."""

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


class RunPayload(Struct, gc=False, omit_defaults=True):
    """Input of a run, which no function reads."""

    payload: Any = None
    group: str = ""
    target: str = ""


_decode_state = msgspec.msgpack.Decoder(RunHash).decode
_encode_packed = msgspec.msgpack.Encoder().encode
_decode_body = msgspec.json.Decoder(RunPayload).decode


def made_row(run: Run) -> Row:
    """A run as `runs.admit_row` takes it, with all that it has."""
    return [run.id, made_state(run), body_of(run)]


def made_state(run: Run) -> dict[str, Any]:
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
    return stand


def checked_row(run: Run) -> Row:
    """The same, refused as by all stores if a run cannot be made so."""
    _check(run)
    return made_row(run)


def checked_rows(runs: Sequence[Run]) -> list[Row]:
    """The same of many; those that differ only in ids and payloads have one state, which is encoded once."""
    if not isinstance(runs, RunsAlike) or not len(runs):
        return [checked_row(run) for run in runs]
    one = runs.one
    _check(one)
    state = msgspec.Raw(_encode_packed(made_state(one)))
    bodies = [_body(None if body is None else msgspec.Raw(body), one.group, one.target) for body in runs.bodies]
    return [[id_, state, body.decode() or False] for id_, body in zip(runs.ids, bodies, strict=True)]


def _check(run: Run) -> None:
    if run.priority not in PRIORITIES or run.state not in _MADE or run.fence or run.token or run.cancel:
        checked_run(run)


def body_of(run: Run) -> str | bool:
    """Input of a run, as JSON; refused as by all stores."""
    try:
        data = _body(run.payload, run.group, run.target)
    except (TypeError, ValueError, OverflowError, RecursionError):
        data = None
    if data is None or len(data) > PAYLOAD_BYTES_MAX:
        written(run.payload, PAYLOAD_BYTES_MAX, "the payload of run", run.id)
    return data.decode() if data else False


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


def run(row: RunParts) -> Run:
    """From (id, state, body)."""
    run_id, stand, body = row[0].decode(), _decode_state(row[1]), row[2]
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


def run_parts(found: list[bytes], first: int = 0) -> list[RunParts]:
    """Id, state and body of each; no state where there is no run."""
    ends = range(first, len(found), 3)
    return [(found[n], found[n + 1], found[n + 2]) for n in ends]


def _tried(lines: str) -> tuple[Tried, ...]:
    """An attempt of three parts is a lost lease: fence, end, owner."""
    tried: tuple[Tried, ...] = ()
    for parts in _decode_tried("[" + lines.replace("\n", ",") + "]"):
        tried = tried_again(tried, lease_lost(parts[0], parts[2], parts[1]) if len(parts) == 3 else Tried(*parts))
    return tried


# settlements


def settlement_row(settlement: Settlement) -> Row:
    """As `settle` takes it: what would be empty at its end is left out."""
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
            _tried_error(outcome) if outcome.error else '""',
        )
    if outcome.traceback:
        row.append(error_text(outcome.error, outcome.traceback))
    return row


def _result(outcome: Outcome, run_id: str) -> str | bool:
    if outcome.result is None:
        return False
    return written(outcome.result, RESULT_BYTES_MAX, "the result of run", run_id).decode()


def _tried_error(outcome: Outcome) -> str:
    """The error of an attempt as the run remembers it, as JSON: its last fields."""
    [tried] = tried_again((), Tried(0, 0, 0, outcome.error, outcome.traceback))
    error = encode(tried.error).decode()
    return f"{error},{encode(tried.traceback).decode()}" if tried.traceback else error


# answers


def claim_head(packed: bytes) -> list[Any]:
    """What stands before the runs in a claim's answer; of a job that is no text at all what can be read comes."""
    try:
        head: list[Any] = _unpack(packed)
    except UNREADABLE:
        head = [*decode_or_raise(_decode_head, packed, "what a claim was answered")]
        head[1] = [_job_row(row) for row in head[1]]
    return head


def job_rows(packed: bytes) -> list[Row]:
    """The answer of a function that reads jobs; of one that is no text at all what can be read comes."""
    try:
        found: list[Row] = _unpack(packed)
    except UNREADABLE:
        found = [_job_row(row) for row in decode_or_raise(_decode_parts, packed, "what a function answered of jobs")]
    return found


def _job_row(packed: msgspec.Raw) -> Row:
    """What is no text stands there as a mark that is no JSON either."""
    try:
        row: Row = _unpack(packed)
    except UNREADABLE:
        row = [_text_or(part, NO_TEXT) for part in _decode_parts(packed)]
    return row


def _text_or(packed: msgspec.Raw, usual: str) -> Any:
    try:
        return _unpack(packed)
    except UNREADABLE:
        return usual


def job_answer(put: JobPut, row: Row, version: int) -> JobAnswer:
    """A conflict names what is against the put: `gone`, `version`, `revision`, `source` or `release`, and which."""
    answer, revision, against, stored = row
    match against:
        case "gone":
            detail = f"revision {put.revision} was expected, but there is no such job"
        case "version":
            detail = other_version(int(stored), version)
        case "revision":
            detail = f"revision {put.revision} was expected, the stored one is {stored}"
        case "source":
            detail = f"{stored} owns it, not {put.job.source}"
        case "release":
            detail = f"release {stored} is stored, this is release {put.job.release}"
        case _:
            detail = ""
    return JobAnswer(Answer(answer), put.job.id, revision, detail)


def feed_items(found: Sequence[list[bytes]], known: dict[int, FeedItem]) -> tuple[FeedItem, ...]:
    """`<id>-0` and the packed entry, which is left out if it is known; one that is not ours with all that it says.

    An entry that another client wrote under the number of one of ours goes with it.
    """
    items: dict[int, FeedItem] = {}
    for item in found:
        entry_id = int(item[0].partition(b"-")[0])
        each = known[entry_id] if len(item) == 1 and entry_id in known else FeedItem(entry_id, _entry(item))
        items.setdefault(entry_id, each)
    return tuple(items.values())


def _entry(item: list[bytes]) -> Entry | Spoilt:
    if len(item) > 2:
        return spoilt(ValueError("it has other fields than ends and entry"), item[2])
    if not item[0].endswith(b"-0"):
        return spoilt(ValueError(f"its number {item[0].decode()} is none of ours"), item[1])
    try:
        entry: Entry = decode_entry(item[1])
    except UNREADABLE as error:
        return spoilt(error, item[1])
    return entry


# arguments


def plan_of(term: int, plan: Plan) -> dict[str, Any]:
    consumed = frozenset(plan.consumed)
    return {
        "term": term,
        "consumed": [min(entry_id, COUNTED_MAX) for entry_id in plan.consumed],
        "spoilt": [min(entry_id, COUNTED_MAX) for entry_id in plan.spoilt],
        "read": [min(entry_id, COUNTED_MAX) for entry_id in plan.read],
        "firings": [
            [
                checked_row(firing.run),
                firing.revision,
                or_false(firing.next_due_ms),
                str(firing.overlap),
                False if firing.if_overlapped is None else encode(firing.if_overlapped).decode(),
            ]
            for firing in plan.firings
        ],
        "releases": [release.run_id for release in plan.releases if not release.alone],
        "alone": [release.run_id for release in plan.releases if release.alone],
        "holds": [[holding.run_id, holding.reason] for holding in plan.holds],
        "earlier": [[each.run_id, each.visible_ms] for each in plan.earlier],
        "cancels": [[order.run_id, order.reason] for order in plan.cancels],
        "updates": [
            [
                update.job_id,
                update.revision,
                or_false(update.next_due_ms),
                memory_text(update.memory),
                or_false(update.last_due_ms),
                [number for number, _ in update.memory.learnt if number in consumed],
            ]
            for update in plan.updates
        ],
        "notes": note_rows(checked_notes(plan.notes)) if plan.notes else [],
    }


def audit_row(audit: Audit) -> dict[str, Any]:
    """Lines as `audit.lua` takes them: it adds number, count and hash."""
    lines = [
        [str(line.at_ms), SEPARATOR.join(_audit_texts(line)), _open_json(line), line.count] for line in audit.lines
    ]
    return {"lines": lines, "each": audit.each}


def _audit_texts(line: AuditLine) -> tuple[str, ...]:
    return line.actor, line.action, line.subject, line.detail


def _open_json(line: AuditLine) -> str:
    return encode(replace(line, seq=0, count=0, chain="")).decode().removesuffix("}")


def renewal_rows(renewals: Sequence[Renewal]) -> list[Row]:
    return [[renewal.run_id, renewal.token, renewal.progress[:PROGRESS_CHARS_MAX]] for renewal in renewals]


def pruning_of(what: Pruning, limit: int) -> dict[str, Any]:
    return {
        "ids": what.ids,
        "unchanged_before": or_false(what.unchanged_before_ms),
        "finished_before": or_false(what.finished_before_ms),
        "keep_per_job": or_false(what.keep_per_job),
        "once_before": or_false(what.once_before_ms),
        "dead_before": or_false(what.dead_before_ms),
        "dead_max": or_false(what.dead_max),
        "log_max": or_false(what.log_max),
        "limit": limit,
    }


def cancel_answers(found: Sequence[tuple[str, str, int]], named: int) -> list[RunAnswer]:
    """From (answer, run, order of its coming): those that were named, then the others of the job in that order."""
    names = {run_id for _, run_id, _ in found[:named]}
    mates = sorted([each for each in found[named:] if each[1] not in names], key=lambda each: each[2])
    return [RunAnswer(Answer(answer), run_id) for answer, run_id, _ in [*found[:named], *mates]]


def node_of(node: Node) -> dict[str, Any]:
    handlers = encode(node.handlers).decode()
    text = encode(node).decode()
    return {"id": node.id, "seats": node.seats, "handlers": handlers, "node": text, "version": node.scheduler_version}


def nodes_from(found: Sequence[Row]) -> list[Node]:
    """The living nodes, by id; what another client wrote there is none."""
    nodes = []
    for row in found:
        with suppress(*UNREADABLE):
            nodes.append(replace(_decode_node(row[0]), beat_ms=row[1]))
    return sorted(nodes, key=lambda node: node.id)


def record_row(value: Record) -> Row:
    """As `load` takes it; a lease is void."""
    match value:
        case Job():
            times = [or_false(value.next_due_ms), or_false(value.last_due_ms)]
            memory = memory_text(value.memory) or False
            return ["job", value.id, job_put(value), value.revision, *times, memory, value.scheduler_version]
        case Run() if value.state in LIVE:
            if value.state is RunState.LEASED:
                value = replace(value, state=RunState.READY, token="", owner="", lease_until_ms=0)
            return ["live", made_row(value)]
        case Run():
            row = made_row(value)
            row[1]["fin"] = value.finished_ms or 0
            return ["history", row]
        case Note():
            return ["note", value.key, encode(value.value).decode(), or_false(value.expires_ms), value.revision]
        case AuditLine():
            return ["log", value.seq, encode(value).decode()]
        case TermRecord():
            return ["term", value.number, value.scheduler_version]
        case Tombstone():
            return ["tomb", value.id, value.revision, or_false(value.last_due_ms)]
