"""One read or write: its statements, the changes of the counters, the wake-ups that follow it.

The counts of a version are one row of `counters`: read once and written once per transaction, however many verbs
share it, so that `counts` costs one look and is exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import chain
from typing import Any

import apsw

from pollux.model import SCHEDULER_VERSION, Arrived, End, Ended, Entry
from pollux.store.relational.rows import Row, by_version, encode
from pollux.store.relational.sql import StatementFolder
from pollux.store.relational.wakeup import FEED

# The latest claims of this process by token, and what they got: the same claim again gets the same runs.  In memory,
# because an answer can be lost only between the threads of one process, and the claim is repeated in that process.
Claims = dict[str, list[int]]
ROWS_AT_ONCE = 10
NUMBERS = 1 << 48  # entries of the feed have so many numbers in each version


class SqliteStatements(StatementFolder):
    """The statements of `queries/<verb>.sql` as attributes."""

    def __init__(self, verb: str) -> None:
        super().__init__(__package__, verb)


def ids_json(ids: Sequence[Any]) -> str:
    """For `json_each`; as text, because a blob would be taken for SQLite's own binary form."""
    return encode(ids).decode()


_sql = SqliteStatements("counters")
_versions = SqliteStatements("versions")


@cache
def feed_numbers(version: int) -> tuple[int, int]:
    """The first and the last number that an entry of a version can have."""
    first = 0 if version == SCHEDULER_VERSION else version * NUMBERS
    return first, first + NUMBERS - 1


@cache
def _for_many(sql: str, count: int = ROWS_AT_ONCE) -> str:
    """The statement for so many rows: a quarter less time than row by row; and Python's lock, which each statement
    gives away, is waited for once and not for every row.
    """
    head, _, rest = sql.partition("VALUES ")
    values, end, tail = rest.partition(")")
    return f"{head}VALUES {', '.join([values + end] * count)}{tail}"


class WriteStats:
    """What the store did so far; for benchmarks and tests."""

    __slots__ = ("checkpoints", "commits", "ops", "reads", "statements", "versions")

    def __init__(self) -> None:
        self.ops = 0  # verbs that went through the writer
        self.commits = 0  # transactions that wrote something
        self.statements = 0  # on all connections, but for `data_version`
        self.reads = 0  # verbs that went through a reader
        self.versions = 0  # looks at `data_version`
        self.checkpoints = 0


class SqliteCounters:
    """How many there are of everything, and the counters that only rise."""

    __slots__ = ("clock_ms", "dead", "ends", "entries", "feed", "held", "jobs", "leased", "notes", "ready", "stops")

    def __init__(self, row: Row) -> None:
        self.held: int
        self.ready: int
        self.leased: int
        self.dead: int
        self.feed: int
        self.ends: int
        self.jobs: int
        self.entries: int
        self.notes: int
        self.stops: int
        self.clock_ms: int
        (
            self.held,
            self.ready,
            self.leased,
            self.dead,
            self.feed,
            self.ends,
            self.jobs,
            self.entries,
            self.notes,
            self.stops,
            self.clock_ms,
        ) = row

    def row(self) -> Row:
        return (
            self.held,
            self.ready,
            self.leased,
            self.dead,
            self.feed,
            self.ends,
            self.jobs,
            self.entries,
            self.notes,
            self.stops,
            self.clock_ms,
        )


class SqliteTransaction:
    """One write under way.  Begun, committed and undone by the writer alone."""

    __slots__ = ("_befores", "_connection", "_counters_by_version", "_stats", "claims", "version", "wakeups")

    def __init__(self, connection: apsw.Connection, stats: WriteStats, claims: Claims | None = None) -> None:
        self.claims: Claims = {} if claims is None else claims
        self._connection = connection
        self._stats = stats
        self._counters_by_version: dict[int, SqliteCounters] = {}
        self._befores: dict[int, Row] = {}
        self.version = SCHEDULER_VERSION  # of the handle whose call runs now
        self.wakeups = 0

    def rows(self, sql: str, bindings: Sequence[Any] = ()) -> list[Row]:
        self._stats.statements += 1
        return self._connection.execute(sql, bindings).fetchall()

    def row(self, sql: str, bindings: Sequence[Any] = ()) -> Row | None:
        self._stats.statements += 1
        return self._connection.execute(sql, bindings).fetchone()

    def write(self, sql: str, bindings: Sequence[Any] = ()) -> int:
        """How many rows changed."""
        self._stats.statements += 1
        self._connection.execute(sql, bindings)
        return self._connection.changes()

    def write_many(self, sql: str, rows: Iterable[Sequence[Any]]) -> int:
        """How many rows changed, all together."""
        self._stats.statements += 1
        before = self._connection.total_changes()
        self._connection.executemany(sql, rows)
        return self._connection.total_changes() - before

    def insert(self, sql: str, rows: Sequence[Sequence[Any]]) -> int:
        """Put rows in, ten to a statement, the rest in one; `sql` has the values of one.  Answers how many were new."""
        self._stats.statements += 1
        before = self._connection.total_changes()
        whole = len(rows) - len(rows) % ROWS_AT_ONCE
        if whole:
            parts = (chain.from_iterable(rows[at : at + ROWS_AT_ONCE]) for at in range(0, whole, ROWS_AT_ONCE))
            self._connection.executemany(_for_many(sql), map(tuple, parts))
        if left := len(rows) - whole:
            self._connection.execute(_for_many(sql, left), tuple(chain.from_iterable(rows[whole:])))
        return self._connection.total_changes() - before

    def counters_of(self, version: int) -> SqliteCounters:
        found = self._counters_by_version.get(version)
        if found is None:
            row = self.row(_sql.read, (version,))
            if row is None:
                self.write(_versions.add_counters, (version,))
                self.write(_versions.add_term, (version,))
                row = (0,) * len(SqliteCounters.__slots__)
            found = self._counters_by_version[version] = SqliteCounters(row)
            self._befores[version] = row
        return found

    @property
    def counters(self) -> SqliteCounters:
        """Of the version whose call runs now."""
        return self.counters_of(self.version)

    @property
    def shared(self) -> SqliteCounters:
        """Of all versions: what is dead, the stops, and the numbers of entries and notes."""
        return self.counters_of(SCHEDULER_VERSION)

    def add_entry(self, version: int, entry: Entry) -> None:
        """Put an entry into the inbox of a version's leader."""
        counters, shared = self.counters_of(version), self.shared
        ends = len(entry.ends) if type(entry) is Ended else 0
        shared.entries += 1
        counters.feed += 1
        counters.ends += ends
        first, last = feed_numbers(version)
        try:
            self.write(_sql.add_entry, (first + shared.entries, ends, encode(entry)))
        except apsw.ConstraintError:  # inserted by hand with that number: ours becomes the last
            shared.entries = self.rows(_sql.highest, (first, last))[0][0] - first + 1
            self.write(_sql.add_entry, (first + shared.entries, ends, encode(entry)))
        self.wakeups |= FEED

    def add_ends(self, ends: Sequence[tuple[int, End]]) -> None:
        """Each with the version it ended in: one entry a version."""
        for version, some in by_version(ends).items():
            self.add_entry(version, Ended(tuple(some)))

    def add_arrived(self, run_ids: Sequence[tuple[int, str]]) -> None:
        for version, some in by_version(run_ids).items():
            self.add_entry(version, Arrived(tuple(some)))

    def write_counters(self) -> None:
        """Write down what the counts became; the last thing before the commit."""
        for version, counters in self._counters_by_version.items():
            row = counters.row()
            if row != self._befores[version]:
                self.write(_sql.write, (*row, version))
