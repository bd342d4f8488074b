"""What is a dumped record?  How it is read back, and what the leader is told of it; the same for every store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from pollux.errors import InvalidInput
from pollux.model import Arrived, AuditLine, Entry, Job, JobsPut, Note, NotesChanged, Run, RunState

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


def entries_of(new: Sequence[Record]) -> Iterator[Entry]:
    """A leader at work is told what came: nothing of it stands in what it has read before."""
    if jobs := tuple(record.id for record in new if isinstance(record, Job)):
        yield JobsPut(jobs, len(jobs))
    if held := tuple(record.id for record in new if isinstance(record, Run) and record.state is RunState.HELD):
        yield Arrived(held)
    if keys := tuple(record.key for record in new if isinstance(record, Note)):
        yield NotesChanged(keys)
