"""Packed rows of jobs and finished runs, decoded when they are read.

A hundred thousand jobs are mostly at rest: their definitions are a few bytes each instead of trees of objects, and
the garbage collector has nothing to walk.  What changes with every firing (due times, memory) is beside it.
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
LIST, MAP = b"[{"  # how JSON begins, and nothing packed does


class HistoryChain(Struct, gc=False):
    """A job's finished runs: the number of the newest, from which the older ones are found, and how many there are."""

    newest: int = 0
    kept: int = 0


class StoredJobFields(HistoryChain, gc=False, kw_only=True):
    packed: bytes  # the definition, but for its id and its schedule
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
        """Has it fired, and fires no more?"""
        return self.last_due_ms is not None and self.next_due_ms is None


def packed(job: Job) -> bytes:
    """The definition, but for what the row has beside it."""
    return _packed(_stripped(job))


def is_same(job: Job, row: StoredJobFields) -> bool:
    """Is this the stored definition?"""
    if job.schedule != row.schedule:
        return False
    return packed(job) == row.packed or _stripped(job) == _definition(row)


@lru_cache(maxsize=1_000)
def shared(schedule: Schedule | None) -> Schedule | None:
    """The same object for equal schedules: a fleet has a few."""
    return schedule


def _stripped(job: Job) -> Job:
    return replace(definition(job), id="", schedule=None)


def job_of(job_id: str, row: StoredJobFields) -> Job:
    """The job; its id is the very string it stands under, which all who keep it share."""
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
    """Small; as JSON if there is an integer beyond 64 bits in it, which only JSON knows."""
    try:
        return _pack(value)
    except OverflowError:
        return _write(value)


def _definition(row: StoredJobFields) -> Job:
    return _read_job(row.packed) if row.packed[0] == MAP else _unpack_job(row.packed)
