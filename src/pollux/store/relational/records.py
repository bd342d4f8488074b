"""Pages of the audit log and of a dump.

The kinds of a dump have an order that can be loaded: jobs before their runs.  A cursor is `<kind> <place>` of the last
record of its page.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from pollux.model import AuditLine, Run, RunState
from pollux.store.backend import Page
from pollux.store.dump_format import dump_place
from pollux.store.relational.rows import Row

LAST = 2**63 - 1  # no line has a higher number
KINDS = ("term", "job", "run", "note", "log", "tomb")


class RecordRow(NamedTuple):
    kind: str
    place: str
    row: Row


def kinds_from(after: str | None) -> Iterator[tuple[str, str]]:
    """The kinds that a page goes through, the first from where the last page ended."""
    kind, place = dump_place(after, KINDS)
    for each in KINDS[KINDS.index(kind) if kind else 0 :]:
        yield each, place if each == kind else ""


def dumped(found: Sequence[RecordRow], limit: int) -> Page:
    """A page of (kind, row) of what was found, one more than fits."""
    rows = [(each.kind, each.row) for each in found[:limit]]
    if len(found) <= limit:
        return Page(rows, None)
    return Page(rows, f"{found[limit - 1].kind} {found[limit - 1].place}")


def log_page(found: Sequence[AuditLine], limit: int, *, newest: bool) -> Page:
    """A page of what was found, one more than fits; with `newest` they were found from the last one backwards."""
    lines = found[:limit]
    return Page(lines[::-1] if newest else lines, lines[-1].seq if len(found) > limit else None)


def without_lease(run: Run) -> Run:
    """As it is loaded: without a lease."""
    if run.state is not RunState.LEASED:
        return run
    return replace(run, state=RunState.READY, token="", owner="", lease_until_ms=0)
