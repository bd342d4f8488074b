"""How do values become rows, and rows values?  Runs by column, jobs and entries as JSON beside what is searched.

Columns stand in the order of the fields, so that a row becomes a `Run` in one step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from pollux.errors import InvalidInput
from pollux.model import Cause, Entry, Job, Memory, Node, Note, Once, Run, RunState, definition

HELD, READY, LEASED, DONE, DEAD, CANCELLED = range(6)
SHELF_PLAIN, SHELF_UNCHANGED, SHELF_DEAD = range(3)
STATES = (
    RunState.HELD,
    RunState.READY,
    RunState.LEASED,
    RunState.DONE,
    RunState.DEAD,
    RunState.CANCELLED,
)
STATE_NUMBER = {state: number for number, state in enumerate(STATES)}
CAUSES = (Cause.SCHEDULE, Cause.FORCED, Cause.ENQUEUED)  # their numbers are stored: only append
CAUSE_NUMBER = {cause: number for number, cause in enumerate(CAUSES)}
RUN_COLUMNS = (
    "id, job_id, due_ms, cause, key, payload, priority, grp, target, gated, state, held_reason, visible_ms, attempt,"
    " lease_losses, crashes, fence, token, owner, lease_until_ms, cancel, started_ms, finished_ms, failed, changed,"
    " error, result, deaths"
)
MADE_COLUMNS = 13  # of a run that was never delivered; the others have their defaults

Row = tuple[Any, ...]

encode = msgspec.json.Encoder().encode
encode_sorted = msgspec.json.Encoder(order="deterministic").encode
decode = msgspec.json.Decoder().decode
decode_entry = msgspec.json.Decoder(Entry).decode
_decode_job = msgspec.json.Decoder(Job).decode
_decode_memory = msgspec.json.Decoder(Memory).decode
_decode_node = msgspec.json.Decoder(Node).decode
_NO_MEMORY = Memory()


# jobs


def job_row(job: Job, revision: int, definition_json: bytes) -> Row:
    """A definition's columns, in the order of `put_jobs.sql`."""
    tags = "".join(f"\x1f{tag}" for tag in job.tags)
    return (
        job.id,
        revision,
        job.release,
        job.source,
        job.handler,
        job.name,
        job.group,
        job.target,
        f"{tags}\x1f" if tags else "",
        job.enabled,
        type(job.schedule) is Once,
        definition_json,
    )


def definition_json(job: Job) -> bytes:
    """What makes two jobs the same, byte by byte."""
    return encode_sorted(definition(job))


def memory_json(memory: Memory) -> bytes | None:
    return None if memory == _NO_MEMORY else encode(memory)


class JobShelf:
    """Jobs as they were last read: a definition is decoded once per revision, an unchanged job not at all."""

    def __init__(self, size_max: int = 10_000) -> None:
        self._size_max = size_max
        self._read: dict[str, tuple[Row, Job]] = {}

    def job(self, row: Row) -> Job:
        """From (id, revision, next_due_ms, last_due_ms, memory, definition)."""
        known = self._read.get(row[0])
        if known is not None:
            if known[0] == row:
                return known[1]
            if known[0][1] == row[1]:
                return self._keep(row, _current(known[1], row))
        return self._keep(row, _current(_decode_job(row[5]), row))

    def _keep(self, row: Row, job: Job) -> Job:
        if len(self._read) >= self._size_max:
            self._read.clear()
        self._read[row[0]] = (row, job)
        return job


def _current(job: Job, row: Row) -> Job:
    memory = _NO_MEMORY if row[4] is None else _decode_memory(row[4])
    return replace(job, revision=row[1], next_due_ms=row[2], last_due_ms=row[3], memory=memory)


def ids_json(ids: Sequence[Any]) -> str:
    """For `json_each`; as text, because a blob would be taken for SQLite's own binary form."""
    return encode(ids).decode()


def note(row: Row) -> Note:
    return Note(row[0], decode(row[1]), row[2], row[3])


def node(row: Row) -> Node:
    return _decode_node(row[0])
