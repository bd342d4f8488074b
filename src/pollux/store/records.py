"""What is a dumped record?  How it is read back, and what the leader is told of it; the same for every store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from pollux.errors import InvalidInput
from pollux.model import Arrived, AuditLine, Entry, Job, JobsPut, Note, NotesChanged, Run, RunState

COUNTED = frozenset({"term", "run", "log"})  # kinds whose places are numbers
Record = Job | Run | Note | AuditLine | int  # an int is the number of a term


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
                return msgspec.convert(data["number"], int)
    except (msgspec.ValidationError, LookupError, TypeError) as error:
        raise InvalidInput(f"a record of kind {kind!r} cannot be read ({error})") from error
    raise InvalidInput(f"a record of kind {kind!r}", cure="load what dump wrote: job, run, note, log, term")


def dump_place(after: str | None, kinds: Sequence[str]) -> tuple[str, str]:
    """The kind and place that a cursor of a dump names: `<kind> <place>`; both empty at the beginning."""
    kind, _, place = (after or "").partition(" ")
    is_number = place.isascii() and place.isdecimal()
    if not after or (kind in kinds and (is_number or (place and kind not in COUNTED))):
        return kind, place
    raise InvalidInput(f"{after!r} is no place in a dump", cure="use what the page before answered as next")


def entries_of(new: Sequence[Record]) -> Iterator[Entry]:
    """A leader at work is told what came: nothing of it stands in what it has read before."""
    if jobs := tuple(record.id for record in new if isinstance(record, Job)):
        yield JobsPut(jobs, len(jobs))
    if held := tuple(record.id for record in new if isinstance(record, Run) and record.state is RunState.HELD):
        yield Arrived(held)
    if keys := tuple(record.key for record in new if isinstance(record, Note)):
        yield NotesChanged(keys)
