"""Conversion of values to rows and back: runs by column, jobs and entries as JSON and searched columns.

Columns have the order of the fields, so that a row becomes a `Run` in one step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from pollux.model import (
    Cause,
    Entry,
    Job,
    Memory,
    Node,
    Note,
    NotePut,
    Once,
    Run,
    RunState,
    Spoilt,
    Tried,
    definition,
    error_parts,
    error_text,
)
from pollux.store.contract import PAYLOAD_BYTES_MAX, RunsAlike
from pollux.store.decoding import UNREADABLE, spoilt
from pollux.store.limits import checked_run, written
from pollux.store.values import PRIORITIES

HELD, READY, LEASED, DONE, DEAD, CANCELLED = range(6)
HISTORY_PLAIN, HISTORY_UNCHANGED, HISTORY_DEAD = range(3)
STATES = (RunState.HELD, RunState.READY, RunState.LEASED, RunState.DONE, RunState.DEAD, RunState.CANCELLED)
STATE_NUMBER = {state: number for number, state in enumerate(STATES)}
CAUSES = (Cause.SCHEDULE, Cause.FORCED, Cause.ENQUEUED)  # their numbers are stored: only append
CAUSE_NUMBER = {cause: number for number, cause in enumerate(CAUSES)}
RUN_COLUMNS = (
    "id, job_id, due_ms, cause, key, payload, priority, grp, target, gated, state, held_reason, visible_ms, attempt,"
    " lease_losses, crashes, fence, token, owner, lease_until_ms, cancel, started_ms, finished_ms, failed, changed,"
    " error, result, deaths, progress, tried, version"
)

ID, JOB, KEY, PAYLOAD, STATE, VERSION = 0, 1, 4, 5, 10, 13  # places in the row of a run that is made
FINISHED_MS = 22  # in `RUN_COLUMNS`
MADE_TEXTS = (4, 7, 8, 11)  # places of texts from outside in the row of a run that is made,
RUN_TEXTS = (*MADE_TEXTS, 18, 20, 25, 28)  # in `RUN_COLUMNS`,
JOB_TEXTS = (3, 4, 5, 6, 7, 8)  # and in the row of a job; ids and tokens are none

Row = tuple[Any, ...]
T = TypeVar("T")

encode = msgspec.json.Encoder().encode
encode_sorted = msgspec.json.Encoder(order="deterministic").encode
decode = msgspec.json.Decoder().decode
decode_entry = msgspec.json.Decoder(Entry).decode
_decode_tried = msgspec.json.Decoder(tuple[Tried, ...]).decode
_decode_node = msgspec.json.Decoder(Node).decode
_NO_MEMORY = Memory()
_MADE = (RunState.READY, RunState.HELD)


def tried_before(text: bytes | None) -> tuple[Tried, ...]:
    """Earlier attempts; none if they cannot be decoded."""
    try:
        return () if text is None else _decode_tried(text)
    except UNREADABLE:
        return ()


def by_version(items: Iterable[tuple[int, T]]) -> dict[int, list[T]]:
    """Items that come with their version, each under it, in their order."""
    found: dict[int, list[T]] = {}
    for version, item in items:
        found.setdefault(version, []).append(item)
    return found


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


def note(row: Row) -> Note:
    return Note(row[0], decode(row[1]), row[2], row[3])


def is_same_note(put: NotePut, stored: Row | None) -> bool:
    """Would it change nothing?  `stored` is (expires_ms, value) of the stored note; None: there is none."""
    if put.revision is not None:
        return False
    if put.value is None or stored is None:
        return put.value is None and stored is None
    return (put.expires_ms, encode(put.value)) == stored


def living(rows: Iterable[Row]) -> list[Node]:
    """The nodes that can be decoded, of (body, beat_ms, ...)."""
    found = []
    for row in rows:
        with suppress(*UNREADABLE):
            found.append(replace(_decode_node(row[0]), beat_ms=row[1]))
    return found


# the feed


def entry(body: bytes) -> Entry | Spoilt:
    """The entry, or a `Spoilt` one if it cannot be decoded."""
    try:
        read: Entry = decode_entry(body)
    except UNREADABLE as error:
        return spoilt(error, body)
    return read


# runs


def made_row(run: Run) -> Row:
    """A run that was never delivered, in the order of `enqueue.sql`; last of all its version."""
    return (*_as_made(run), run.scheduler_version)


def _as_made(run: Run) -> Row:
    payload = run.payload
    return (
        run.id,
        run.job_id,
        run.due_ms,
        CAUSE_NUMBER[run.cause],
        run.key,
        None if payload is None else written(payload, PAYLOAD_BYTES_MAX, "the payload of run", run.id),
        run.priority,
        run.group,
        run.target,
        run.gated,
        STATE_NUMBER[run.state],
        run.held_reason,
        run.visible_ms,
    )


def made_in(row: Row, version: int) -> Row:
    """A run that is made in that version, whatever its maker thought."""
    return row if row[VERSION] == version else (*row[:VERSION], version)


def checked_made_row(run: Run) -> Row:
    """The same, refused as on all stores if a run cannot be made so."""
    if run.priority not in PRIORITIES or run.state not in _MADE or run.fence or run.token or run.cancel:
        checked_run(run)
    return made_row(run)


def checked_made_rows(runs: Sequence[Run]) -> list[Row]:
    """The same of many; of `RunsAlike` one is checked."""
    if not isinstance(runs, RunsAlike):
        return [checked_made_row(run) for run in runs]
    one = checked_made_row(runs.one)
    head, tail = one[1:PAYLOAD], one[PAYLOAD + 1 :]
    return [(run_id, *head, body, *tail) for run_id, body in zip(runs.ids, runs.bodies, strict=True)]


def run(row: Row) -> Run:
    """From `RUN_COLUMNS`; an error and its traceback are in one column."""
    error, traceback = error_parts(row[25])
    return Run(
        row[0],
        row[1],
        row[2],
        CAUSES[row[3]],
        row[4],
        None if row[5] is None else decode(row[5]),
        row[6],
        row[7],
        row[8],
        row[9] == 1,
        STATES[row[10]],
        row[11],
        row[12],
        row[13],
        row[14],
        row[15],
        row[16],
        row[17],
        row[18],
        row[19],
        row[20],
        row[21],
        row[22],
        row[23] == 1,
        None if row[24] is None else row[24] == 1,
        error,
        None if row[26] is None else decode(row[26]),
        row[27],
        row[28],
        () if row[29] is None else _decode_tried(row[29]),
        row[30],
        traceback,
    )


def leased_run(row: Row, token: str, node: str, until_ms: int, version: int) -> Run:
    """A first delivery, from a row of `claim.sql` as it was before; all that is not named has its default."""
    return Run(
        row[1],
        row[2],
        row[3],
        CAUSES[row[4]],
        row[5],
        None if row[6] is None else decode(row[6]),
        row[7],
        row[8],
        row[9],
        row[10] == 1,
        RunState.LEASED,
        "",
        row[11],
        0,
        0,
        0,
        1,
        f"{token}:1",
        node,
        until_ms,
        scheduler_version=version,
    )


def run_row(run: Run) -> Row:
    """All columns of `RUN_COLUMNS`."""
    return (
        *_as_made(run),
        run.attempt,
        run.lease_losses,
        run.crashes,
        run.fence,
        run.token,
        run.owner,
        run.lease_until_ms,
        run.cancel,
        run.started_ms,
        run.finished_ms,
        run.failed,
        run.changed,
        error_text(run.error, run.traceback),
        None if run.result is None else encode(run.result),
        run.deaths,
        run.progress,
        encode(run.tried) if run.tried else None,
        run.scheduler_version,
    )


def history_class_of(run: Run) -> int:
    """The history class of a finished run."""
    if run.state is RunState.DEAD:
        return HISTORY_DEAD
    is_unchanged = run.state is RunState.DONE and not run.failed and run.changed is False
    return HISTORY_UNCHANGED if is_unchanged else HISTORY_PLAIN
