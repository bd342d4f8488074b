"""Arguments and replies of the scripts, verb by verb."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from pollux.model import (
    LIVE,
    PROGRESS_CHARS_MAX,
    AuditLine,
    Entry,
    FeedItem,
    Job,
    Node,
    Note,
    Plan,
    Run,
    RunState,
    Spoilt,
)
from pollux.store.contract import Answer, JobAnswer, JobPut, Pruning, Renewal, RunAnswer
from pollux.store.decoding import UNREADABLE, legible, spoilt
from pollux.store.dump_format import Record, TermRecord, Tombstone
from pollux.store.limits import checked_notes
from pollux.store.redis import codec, fast_path
from pollux.store.versions import other_version

decode = msgspec.msgpack.Decoder().decode
_decode_head = msgspec.msgpack.Decoder(tuple[str, list[msgspec.Raw], Any, Any, int, str, list[str], list[str]]).decode
_decode_parts = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_decode_node = msgspec.json.Decoder(Node).decode
NO_TEXT = "\N{REPLACEMENT CHARACTER}"
COUNTED_MAX = 2**53  # a script counts exactly up to here; entries of the feed beyond it are not ours, and go together


def claim_head(packed: bytes) -> list[Any]:
    """What stands before the runs in a claim's answer; of a job that is no text at all what can be read comes."""
    try:
        head: list[Any] = decode(packed)
    except UNREADABLE:
        head = [*legible(_decode_head, packed, "what a claim was answered")]
        head[1] = [_job_row(row) for row in head[1]]
    return head


def job_rows(packed: bytes) -> list[codec.Row]:
    """The answer of a script that reads jobs; of one that is no text at all what can be read comes."""
    try:
        found: list[codec.Row] = decode(packed)
    except UNREADABLE:
        found = [_job_row(row) for row in legible(_decode_parts, packed, "what a script answered of jobs")]
    return found


def _job_row(packed: msgspec.Raw) -> codec.Row:
    """What is no text stands there as a mark that is no JSON either."""
    try:
        row: codec.Row = decode(packed)
    except UNREADABLE:
        row = [_text_or(part, NO_TEXT) for part in _decode_parts(packed)]
    return row


def _text_or(packed: msgspec.Raw, usual: str) -> Any:
    try:
        return decode(packed)
    except UNREADABLE:
        return usual


def job_answer(put: JobPut, row: codec.Row, version: int) -> JobAnswer:
    """A conflict names what stands against the put: `gone`, `version`, `revision`, `source` or `release`, and which."""
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

    Somebody may have written beside an entry of ours, under the same number: that goes with it, and tells nothing.
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
        entry: Entry = codec.decode_entry(item[1])
    except UNREADABLE as error:
        return spoilt(error, item[1])
    return entry


def plan_of(term: int, plan: Plan) -> dict[str, Any]:
    consumed = frozenset(plan.consumed)
    return {
        "term": term,
        "consumed": [min(entry_id, COUNTED_MAX) for entry_id in plan.consumed],
        "spoilt": [min(entry_id, COUNTED_MAX) for entry_id in plan.spoilt],
        "read": [min(entry_id, COUNTED_MAX) for entry_id in plan.read],
        "firings": [
            [
                fast_path.made_row(firing.run),
                firing.revision,
                codec.or_false(firing.next_due_ms),
                str(firing.overlap),
                False if firing.if_overlapped is None else codec.encode(firing.if_overlapped).decode(),
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
                codec.or_false(update.next_due_ms),
                codec.memory_text(update.memory),
                codec.or_false(update.last_due_ms),
                [number for number, _ in update.memory.learnt if number in consumed],
            ]
            for update in plan.updates
        ],
        "notes": codec.note_rows(checked_notes(plan.notes)) if plan.notes else [],
    }


def renewal_rows(renewals: Sequence[Renewal]) -> list[codec.Row]:
    return [[renewal.run_id, renewal.token, renewal.progress[:PROGRESS_CHARS_MAX]] for renewal in renewals]


def pruning_of(what: Pruning, limit: int) -> dict[str, Any]:
    return {
        "ids": what.ids,
        "unchanged_before": codec.or_false(what.unchanged_before_ms),
        "finished_before": codec.or_false(what.finished_before_ms),
        "keep_per_job": codec.or_false(what.keep_per_job),
        "once_before": codec.or_false(what.once_before_ms),
        "dead_before": codec.or_false(what.dead_before_ms),
        "dead_max": codec.or_false(what.dead_max),
        "log_max": codec.or_false(what.log_max),
        "limit": limit,
    }


CancelledRun = tuple[str, str, int]  # the answer to a cancel, the run, and the order of its coming


class CancelledPart(NamedTuple):
    """What one call cancelled; where the next begins, if there is more, and up to which run, by their coming.

    Of a look also how many are behind it.
    """

    found: list[CancelledRun]
    after: str | bool = False
    upto: int | bool = False
    behind: int = 0

    @property
    def does_any(self) -> bool:
        return any(answer == "ok" for answer, _, _ in self.found)

    @property
    def said(self) -> list[str]:
        return [f"{answer} {run_id}" for answer, run_id, _ in self.found]


def part(row: codec.Row) -> CancelledPart:
    return CancelledPart(*row)


def cancel_of(run_ids: Sequence[str], job_id: str | None, reason: str, limit: int) -> Any:
    job = False if job_id is None else job_id
    asked = {"ids": run_ids, "job": job, "reason": reason, "limit": limit}
    return asked | {"after": False, "upto": False, "to": False}


def run_answers(found: Sequence[CancelledRun], named: int) -> list[RunAnswer]:
    """Those that were named, then the others of the job in the order of their coming."""
    names = {run_id for _, run_id, _ in found[:named]}
    mates = sorted([each for each in found[named:] if each[1] not in names], key=lambda each: each[2])
    return [RunAnswer(Answer(answer), run_id) for answer, run_id, _ in [*found[:named], *mates]]


def node_of(node: Node) -> dict[str, Any]:
    handlers = codec.encode(node.handlers).decode()
    text = codec.encode(node).decode()
    return {"id": node.id, "seats": node.seats, "handlers": handlers, "node": text, "version": node.scheduler_version}


def nodes_from(found: Sequence[codec.Row]) -> list[Node]:
    """The nodes that have beaten, by id; what somebody else wrote there is none."""
    nodes = []
    for row in found:
        with suppress(*UNREADABLE):
            nodes.append(replace(_decode_node(row[0]), beat_ms=row[1]))
    return sorted(nodes, key=lambda node: node.id)


def record_row(value: Record) -> codec.Row:
    """As `load.lua` takes it; a lease is void."""
    match value:
        case Job():
            times = [codec.or_false(value.next_due_ms), codec.or_false(value.last_due_ms)]
            memory = codec.memory_text(value.memory) or False
            return ["job", value.id, codec.job_put(value), value.revision, *times, memory, value.scheduler_version]
        case Run() if value.state in LIVE:
            if value.state is RunState.LEASED:
                value = replace(value, state=RunState.READY, token="", owner="", lease_until_ms=0)
            return ["live", codec.made_row(value)]
        case Run():
            return codec.past_row(value)
        case Note():
            return [
                "note",
                value.key,
                codec.encode(value.value).decode(),
                codec.or_false(value.expires_ms),
                value.revision,
            ]
        case AuditLine():
            return ["log", value.seq, codec.encode(value).decode()]
        case TermRecord():
            return ["term", value.number, value.scheduler_version]
        case Tombstone():
            return ["tomb", value.id, value.revision, codec.or_false(value.last_due_ms)]
