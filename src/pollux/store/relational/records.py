"""The order of a dump, and its cursor.

The order of kinds can be loaded: jobs before their runs.  A cursor is `<kind> <place>` of the last
record of its page.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from pollux.model import Run, RunState
from pollux.store.dump_format import dump_place
from pollux.store.relational.rows import Row

LAST = 2**63 - 1  # no line has a higher number
KINDS = ("term", "job", "run", "note", "log", "tomb")


class RecordRow(NamedTuple):
    kind: str
    place: str
    row: Row


class RecordPage(NamedTuple):
    """Raw rows by kind, and the cursor of the next page."""

    rows: list[tuple[str, Row]]
    next: str | None


def kinds_from(after: str | None) -> Iterator[tuple[str, str]]:
    """The kinds that a page goes through, the first from where the last page ended."""
    kind, place = dump_place(after, KINDS)
    for each in KINDS[KINDS.index(kind) if kind else 0 :]:
        yield each, place if each == kind else ""


def dumped(found: Sequence[RecordRow], limit: int) -> RecordPage:
    """A page of what was found, one more than fits."""
    rows = [(each.kind, each.row) for each in found[:limit]]
    if len(found) <= limit:
        return RecordPage(rows, None)
    return RecordPage(rows, f"{found[limit - 1].kind} {found[limit - 1].place}")


def without_lease(run: Run) -> Run:
    """As it is loaded: nobody holds it here."""
    if run.state is not RunState.LEASED:
        return run
    return replace(run, state=RunState.READY, token="", owner="", lease_until_ms=0)
