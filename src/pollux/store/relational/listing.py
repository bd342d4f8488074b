"""Pages of runs: cursors, and the indexes that a filter needs.

A cursor is `live:<due>:<id>` or `past:<finished>:<seq>` of the last run of its page.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pollux.errors import InvalidInput
from pollux.model import FINISHED, LIVE, RunState
from pollux.store.backend import Page
from pollux.store.contract import RunFilter
from pollux.store.relational.rows import HISTORY_DEAD, HISTORY_PLAIN, HISTORY_UNCHANGED, STATE_NUMBER, Row

LIVE_STATES = frozenset(STATE_NUMBER[state] for state in LIVE)
Place = tuple[int, Any]


def place_of(after: str | None) -> tuple[str, Place | None]:
    if after is None:
        return "live", None
    kind, _, place = after.partition(":")
    number, _, rest = place.partition(":")
    try:
        if kind == "live":
            return kind, (_int64(number), rest)
        if kind == "past":
            return kind, (_int64(number), _int64(rest))
    except ValueError:
        pass
    raise InvalidInput(f"{after!r} is no place in a list of runs", cure="use what the page before answered as next")


def _int64(text: str) -> int:
    """A number that a column can hold."""
    number = int(text)
    if abs(number) >= 2**63:
        raise ValueError(text)
    return number


def listed(live: Sequence[Row], past: Sequence[Row], limit: int) -> Page:
    """A page of `RUN_COLUMNS` of what was found, one more than fits; rows are (seq, RUN_COLUMNS)."""
    places = [f"live:{row[3]}:{row[1]}" for row in live] + [f"past:{row[23]}:{row[0]}" for row in past]
    rows = [tuple(row)[1:] for row in (*live, *past)]
    return Page(rows[:limit], places[limit - 1] if len(rows) > limit else None)


def newest(rows: list[Row], limit: int) -> list[Row]:
    """Finished runs of several sources, merged."""
    rows.sort(key=lambda row: (row[23], row[0]), reverse=True)
    return rows[:limit]


def wants(where: RunFilter, states: frozenset[RunState]) -> bool:
    return not where.states or not states.isdisjoint(where.states)


def live_states(where: RunFilter) -> frozenset[int]:
    """The numbers of the live states of a filter."""
    return frozenset(STATE_NUMBER[state] for state in where.states) & LIVE_STATES or LIVE_STATES


def finished_states(where: RunFilter) -> list[int]:
    return [STATE_NUMBER[state] for state in where.states if state in FINISHED]


def history_classes_of(states: Sequence[RunState]) -> list[int]:
    if not states:
        return [HISTORY_PLAIN, HISTORY_UNCHANGED, HISTORY_DEAD]
    classes = [HISTORY_DEAD] if RunState.DEAD in states else []
    if RunState.DONE in states:
        return [HISTORY_PLAIN, HISTORY_UNCHANGED, *classes]
    return [HISTORY_PLAIN, *classes] if RunState.CANCELLED in states else classes
