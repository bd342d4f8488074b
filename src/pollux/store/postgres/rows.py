r"""Conversion of values to rows and back: as in SQLite, but PostgreSQL's text cannot contain NUL.

Texts that came from outside are written with `\x01` and a digit, and read back; ids and tokens are not: one
with a NUL in it is refused.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from pollux.model import Note, Run, RunState
from pollux.store.contract import PAYLOAD_BYTES_MAX, RunsAlike
from pollux.store.relational.rows import MADE_TEXTS, PAYLOAD, RUN_COLUMNS, RUN_TEXTS, Row, checked_made_row, decode
from pollux.store.relational.rows import leased_run as plain_leased_run
from pollux.store.relational.rows import run as plain_run

RUN_COLUMNS_OF_R = ", ".join(f"r.{name.strip()}" for name in RUN_COLUMNS.split(","))
_IN_QUEUE = frozenset(("state", "held_reason", "visible_ms", "fence", "token", "owner", "lease_until_ms", "cancel"))
_IN_QUEUE |= {"progress", "version"}
LIVE_COLUMNS = ", ".join(
    f"{'q' if name in _IN_QUEUE else 'r'}.{name}" for name in RUN_COLUMNS_OF_R.replace("r.", "").split(", ")
)
HELD_COLUMNS = LIVE_COLUMNS.replace("r.due_ms", "q.due_ms")
LEASED_COLUMNS = LIVE_COLUMNS.replace("r.due_ms", "r.due_ms + 0 AS due_ms")
COLUMNS = len(RUN_COLUMNS_OF_R.split(","))
_alike = attrgetter(
    *("job_id", "due_ms", "cause", "key", "priority", "group", "target", "gated", "state", "held_reason"),
    *("visible_ms", "fence", "token", "cancel"),
)
_encode = msgspec.json.Encoder().encode
_LEASE_TEXTS = (5, 8, 9)


def put(text: str) -> str:
    """As it can be written."""
    if "\x00" in text or "\x01" in text:
        return text.replace("\x01", "\x011").replace("\x00", "\x010")
    return text


def got(text: str) -> str:
    """As it was."""
    if "\x01" in text:
        return text.replace("\x010", "\x00").replace("\x011", "\x01")
    return text


def put_at(row: Row, places: Sequence[int]) -> Row:
    if any(row[place] and ("\x00" in row[place] or "\x01" in row[place]) for place in places):
        whole = list(row)
        for place in places:
            whole[place] = None if whole[place] is None else put(whole[place])
        return tuple(whole)
    return row


def made_row(run: Run) -> Row:
    return put_at(checked_made_row(run), MADE_TEXTS)


class UniformRuns(NamedTuple):
    """Runs that differ only in id and payload, and the row of one of them.

    The ids and payloads of several are lines: of an array the driver looks at each element, and several times.
    """

    ids: list[str]
    given: tuple[str, bytes | str | None]
    row: Row


def alike(runs: Sequence[Run]) -> UniformRuns | None:
    """As many runs are made at once.  None: they differ in more, or are not simply ready."""
    if len(runs) == 1:
        if not _is_plain(runs[0]):
            return None
        row = made_row(runs[0])
        return UniformRuns([row[0]], (row[0], row[PAYLOAD]), row)
    many = runs if isinstance(runs, RunsAlike) else _as_alike(runs)
    if many is None or not _is_plain(many.one):
        return None
    lines = "\n".join(many.ids), b"\n".join([b"null" if body is None else body for body in many.bodies]).decode()
    if any(each.count("\n") >= len(many) for each in lines):
        return None
    return UniformRuns(many.ids, lines, made_row(many.one))


def _is_plain(run: Run) -> bool:
    return run.key is None and run.state is RunState.READY and not run.held_reason


def _as_alike(runs: Sequence[Run]) -> RunsAlike | None:
    """None: they differ in more, or a payload is to be refused, which the long way does in words."""
    one = _alike(runs[0])
    if not _is_plain(runs[0]) or any(map(one.__ne__, map(_alike, runs))):
        return None
    try:
        bodies = [_encode(run.payload) for run in runs]
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None
    if max(map(len, bodies)) > PAYLOAD_BYTES_MAX:
        return None
    return RunsAlike(runs[0], [run.id for run in runs], [*bodies])


def run(row: Row) -> Run:
    for place in RUN_TEXTS:
        text = row[place]
        if text and "\x01" in text:
            whole = list(row)
            for each in RUN_TEXTS:
                whole[each] = None if whole[each] is None else got(whole[each])
            return plain_run(tuple(whole))
    return plain_run(row)


def note(row: Row) -> Note:
    return Note(got(row[0]), decode(row[1]), row[2], row[3])


def leased_run(row: Row, token: str, node: str, until_ms: int, version: int) -> Run:
    """A first delivery, from a row of `lease`."""
    if any(row[place] and "\x01" in row[place] for place in _LEASE_TEXTS):
        row = tuple([got(value) if place in _LEASE_TEXTS and value else value for place, value in enumerate(row)])
    return plain_leased_run(row, token, node, until_ms, version)


def packed(rows: Sequence[Row], nullable: Container[int]) -> list[Any]:
    """As `columns`, but what is the same in all rows is sent once, and what is nowhere not at all.

    `unnest` fills up with NULL, which the statement reads as the first value; not where a NULL may be meant.  Writing
    out arrays is what most of a batch costs here.
    """
    arrays: list[Any] = []
    for place, column in enumerate(zip(*rows, strict=True)):
        is_alike = column.count(column[0]) == len(column)
        if place in nullable:
            arrays.append([] if is_alike and column[0] is None else list(column))
        else:
            arrays.append([column[0]] if is_alike else list(column))
    return arrays


def columns(rows: Sequence[Row], width: int) -> list[Any]:
    """Rows as arrays, one per column, for `unnest`."""
    return [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in range(width)]
