"""Cache of the runs that this handle claimed, as far as a plain settlement needs them.

With it the whole settlement is one statement, which checks that the leases still hold.  Runs that are not in it are
read first.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from pollux.model import Done
from pollux.store.relational.rows import Row
from pollux.store.relational.settle import PreparedSettlement

GRANTS_MAX = 50_000


class SettleCache:
    """Rows of `Found` by run id, up to what is asked of its owner, and their versions."""

    def __init__(self, most: int = GRANTS_MAX) -> None:
        self._most = most
        self._held: dict[str, Row] = {}

    def add(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self._held[row[0]] = row
        excess = len(self._held) - self._most
        if excess > 0:  # leases that nobody settled here
            for run_id in list(islice(self._held, excess)):
                del self._held[run_id]

    def take(self, items: Sequence[PreparedSettlement]) -> list[Row] | None:
        """What is known of all of them, if each is ours and ends plainly, all in one version; then it is forgotten."""
        rows = [self._held.pop(item.settlement.run_id, None) for item in items]
        found = [row for row, item in zip(rows, items, strict=True) if row is not None and _is_plain(row, item)]
        is_whole = len(found) == len(items) and len({row[-1] for row in found}) == 1
        return found if is_whole else None


def _is_plain(row: Row, item: PreparedSettlement) -> bool:
    settlement = item.settlement
    verdict, outcome = settlement.verdict, settlement.outcome
    return (
        type(verdict) is Done
        and not verdict.clears
        and outcome is not None
        and not outcome.crashed
        and row[2] == settlement.token
        and not (item.follow_ups or item.notes or settlement.progress)
    )
