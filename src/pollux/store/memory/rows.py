"""Packed rows of jobs and finished runs, decoded when they are read.

Most of a hundred thousand jobs are idle: a packed definition is a few bytes instead of a tree of objects, which the
garbage collector would scan.  Fields that change with every firing (due times, memory) are separate.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, get_type_hints

import msgspec
from msgspec import Struct
from msgspec.structs import astuple, replace

from pollux.model import Job, Memory, Once, Run, Schedule, definition

NO_MEMORY = Memory()

_pack = msgspec.msgpack.Encoder().encode
_unpack_job = msgspec.msgpack.Decoder(Job).decode
_read_job = msgspec.json.Decoder(Job).decode
_unpack_memory = msgspec.msgpack.Decoder(Memory).decode
_hints = get_type_hints(Run)
_RUN: Any = tuple[tuple(_hints[name] for name in Run.__struct_fields__)]  # type: ignore[misc]
_unpack_run = msgspec.msgpack.Decoder(_RUN).decode
_read_run = msgspec.json.Decoder(_RUN).decode
_write = msgspec.json.Encoder().encode
LIST, MAP = b"[{"  # first byte of JSON, never of a packed row


class HistoryChain(Struct, gc=False):
    """Chain of a job's finished runs: the number of the newest, which links to the older ones, and their count."""

    newest: int = 0
    kept: int = 0


class StoredJobFields(HistoryChain, gc=False, kw_only=True):
    packed: bytes  # the definition without id and schedule
    schedule: Schedule | None
    revision: int
    enabled: bool
    version: int
    next_due_ms: int | None = None
    last_due_ms: int | None = None
    memory: bytes = b""

    @property
    def is_once(self) -> bool:
        return type(self.schedule) is Once

    @property
    def is_spent(self) -> bool:
        """Whether the job has fired and has no next due."""
        return self.last_due_ms is not None and self.next_due_ms is None


def packed(job: Job) -> bytes:
    """The definition without the fields that the row has separately."""
    return _packed(_stripped(job))


def is_same(job: Job, row: StoredJobFields) -> bool:
    """Whether the job equals the stored definition."""
    if job.schedule != row.schedule:
        return False
    return packed(job) == row.packed or _stripped(job) == _definition(row)


@lru_cache(maxsize=1_000)
def shared(schedule: Schedule | None) -> Schedule | None:
    """One object for equal schedules, of which many jobs share a few."""
    return schedule


def _stripped(job: Job) -> Job:
    return replace(definition(job), id="", schedule=None)


def job_of(job_id: str, row: StoredJobFields) -> Job:
    """The decoded job; its id is the key of the row, so that all references share one string."""
    return replace(
        _definition(row),
        id=job_id,
        schedule=row.schedule,
        scheduler_version=row.version,
        revision=row.revision,
        next_due_ms=row.next_due_ms,
        last_due_ms=row.last_due_ms,
        memory=memory_of(row),
    )


def memory_of(row: StoredJobFields) -> Memory:
    return _unpack_memory(row.memory) if row.memory else NO_MEMORY


def packed_memory(memory: Memory) -> bytes:
    return b"" if memory == NO_MEMORY else _pack(memory)


def packed_run(run: Run) -> bytes:
    return _packed(astuple(run))


def run_from(data: bytes | memoryview) -> Run:
    fields: tuple[Any, ...] = _read_run(data) if data[0] == LIST else _unpack_run(data)
    return Run(*fields)


def _packed(value: object) -> bytes:
    """The value as MessagePack; as JSON if it has an integer beyond 64 bits, which MessagePack cannot encode."""
    try:
        return _pack(value)
    except OverflowError:
        return _write(value)


def _definition(row: StoredJobFields) -> Job:
    return _read_job(row.packed) if row.packed[0] == MAP else _unpack_job(row.packed)
