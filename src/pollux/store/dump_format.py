"""Dump records: decoding, and the feed entries for loaded records; the same for every store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from pollux.errors import InvalidInput
from pollux.model import (
    SCHEDULER_VERSION,
    Arrived,
    AuditLine,
    Entry,
    Job,
    JobsPut,
    Note,
    NotesChanged,
    Run,
    RunState,
    chained,
)

COUNTED = frozenset({"term", "run", "log", "tomb"})  # kinds whose cursors are numbers


class TermRecord(Struct, frozen=True, omit_defaults=True):
    """The last term number of a version."""

    number: int
    scheduler_version: int = SCHEDULER_VERSION


class Tombstone(Struct, frozen=True, omit_defaults=True):
    """Revision and last due of a deleted job or a pruned once-job, so that a new job of its id repeats no firing."""

    id: str
    revision: int
    last_due_ms: int | None = None


Record = Job | Run | Note | AuditLine | TermRecord | Tombstone


def next_lines(lines: Sequence[AuditLine], seq: int, chain: str) -> list[AuditLine]:
    """The lines with their numbers and hashes, continuing after line `seq` with the hash `chain`."""
    added = []
    for line in lines:
        seq += 1
        chain = chained(replace(line, seq=seq, chain=""), before=chain)
        added.append(replace(line, seq=seq, chain=chain))
    return added


def read_record(kind: str, data: Any) -> Record:
    try:
        match kind:
            case "job":
                return msgspec.convert(data, Job)
            case "run":
                return msgspec.convert(data, Run)
            case "note":
                return msgspec.convert(data, Note)
            case "log":
                return msgspec.convert(data, AuditLine)
            case "term":
                return msgspec.convert(data, TermRecord)
            case "tomb":
                return msgspec.convert(data, Tombstone)
    except (msgspec.ValidationError, LookupError, TypeError) as error:
        raise InvalidInput(f"a record of kind {kind!r} cannot be read ({error})") from error
    raise InvalidInput(f"a record of kind {kind!r}", cure="load what dump wrote: job, run, note, log, term, tomb")


def dump_place(after: str | None, kinds: Sequence[str]) -> tuple[str, str]:
    """Kind and place of a dump cursor, `<kind> <place>`; both empty at the beginning."""
    kind, _, place = (after or "").partition(" ")
    is_number = place.isascii() and place.isdecimal()
    if not after or (kind in kinds and (is_number or (place and kind not in COUNTED))):
        return kind, place
    raise InvalidInput(f"{after!r} is no place in a dump", cure="use what the page before answered as next")


def entries_of(new: Sequence[Record]) -> Iterator[tuple[int | None, Entry]]:
    """Feed entries for loaded records, so that a running leader reads them, each with its version.

    The version None stands for all versions.
    """
    jobs: dict[int, list[str]] = {}
    held: dict[int, list[str]] = {}
    for record in new:
        if isinstance(record, Job):
            jobs.setdefault(record.scheduler_version, []).append(record.id)
        elif isinstance(record, Run) and record.state is RunState.HELD:
            held.setdefault(record.scheduler_version, []).append(record.id)
    for version, ids in jobs.items():
        yield version, JobsPut(tuple(ids), len(ids))
    for version, ids in held.items():
        yield version, Arrived(tuple(ids))
    if keys := tuple(record.key for record in new if isinstance(record, Note)):
        yield None, NotesChanged(keys)
