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

from pollux.model import SCHEDULER_VERSION, Ended, Entry
from pollux.store.relational.rows import RUN_COLUMNS, Row, encode
from pollux.store.relational.sql import NamedStatements
from pollux.store.relational.transaction import Transaction
from pollux.store.relational.wakeup import FEED

# The latest claims of this process by token, and what they got: the same claim again gets the same runs.  In memory,
# because an answer can be lost only between the threads of one process, and the claim is repeated in that process.
Claims = dict[str, list[int]]
ROWS_AT_ONCE = 10
NUMBERS = 1 << 48  # entries of the feed have so many numbers in each version


def ids_json(ids: Sequence[Any]) -> str:
    """For `json_each`; as text, because a blob would be taken for SQLite's own binary form."""
    return encode(ids).decode()


SQL = NamedStatements(__package__, lambda sql: sql.replace("{run_columns}", RUN_COLUMNS))


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


class SqliteTransaction(Transaction):
    """One write under way.  Begun, committed and undone by the writer alone."""

    no_index = "+"

    def __init__(self, connection: apsw.Connection, stats: WriteStats, claims: Claims | None = None) -> None:
        self.claims: Claims = {} if claims is None else claims
        self._connection = connection
        self._stats = stats
        self._counters_by_version: dict[int, SqliteCounters] = {}
        self._befores: dict[int, Row] = {}
        self.version = SCHEDULER_VERSION  # of the handle whose call runs now,
        self.given_ms: int = 0  # and its time
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
        before = self._connection.total_changes()
        self._insert(sql, rows)
        return self._connection.total_changes() - before

    def _insert(self, sql: str, rows: Sequence[Sequence[Any]]) -> list[Row]:
        self._stats.statements += 1
        found: list[Row] = []
        whole = len(rows) - len(rows) % ROWS_AT_ONCE
        if whole:
            parts = (chain.from_iterable(rows[at : at + ROWS_AT_ONCE]) for at in range(0, whole, ROWS_AT_ONCE))
            found += self._connection.executemany(_for_many(sql), map(tuple, parts)).fetchall()
        if left := len(rows) - whole:
            found += self._connection.execute(_for_many(sql, left), tuple(chain.from_iterable(rows[whole:]))).fetchall()
        return found

    def counters_of(self, version: int) -> SqliteCounters:
        found = self._counters_by_version.get(version)
        if found is None:
            row = self.row(SQL["counters.read"], (version,))
            if row is None:
                self.write(SQL["versions.add_counters"], (version,))
                self.write(SQL["versions.add_term"], (version,))
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

    # for shared verbs

    async def fetch(self, name: str, *args: Any) -> list[Row]:
        return self.rows(SQL[name], [ids_json(each) if type(each) is list else each for each in args])

    async def fetch_text(self, sql: str, values: Sequence[Any]) -> list[Row]:
        return self.rows(sql, values)

    async def write_rows(self, name: str, rows: Sequence[Row], *same: Any) -> list[Row]:
        if not rows:
            return []
        sql, bindings = SQL[name], [(*row, *same) for row in rows] if same else rows
        if len(rows) > 1 and "VALUES (?," in sql:
            return self._insert(sql, bindings)
        self._stats.statements += 1
        return self._connection.executemany(sql, bindings).fetchall()

    def text(self, name: str) -> str:
        return SQL[name]

    @staticmethod
    def contains(column: str) -> str:
        return f"instr({column}, {{}})"

    @staticmethod
    def place(number: int) -> str:
        return f"?{number}"

    async def now(self) -> int:
        return self.given_ms

    async def lock(self, what: int) -> None:
        """Nothing to do: one write at a time has the file."""

    async def ensure(self, version: int) -> None:
        self.counters_of(version)

    async def clock_ms(self, versions: Iterable[int]) -> int:
        return max([self.counters_of(version).clock_ms for version in versions], default=0)

    async def dead(self) -> int:
        return self.shared.dead

    async def forget_version(self, version: int) -> bool:
        counters = self.counters_of(version)
        if counters.jobs or counters.held or counters.ready or counters.leased:
            return False
        self.write(SQL["versions.unread"], feed_numbers(version))
        self.write(SQL["versions.drop"], (version,))
        counters.feed = counters.ends = 0
        return True

    def next_revision(self) -> int:
        """Revisions come from one count, so that a note made anew is never taken for the old one."""
        self.shared.notes += 1
        return self.shared.notes

    async def pass_revision(self, revision: int) -> None:
        self.shared.notes = max(self.shared.notes, revision)

    async def unread_ends(self, versions: Sequence[int]) -> list[Row]:
        return [row for version in versions for row in self.rows(SQL["versions.unread_ends"], feed_numbers(version))]

    def add_entry(self, version: int, entry: Entry) -> None:
        """Put an entry into the inbox of a version's leader."""
        counters, shared = self.counters_of(version), self.shared
        ends = len(entry.ends) if type(entry) is Ended else 0
        shared.entries += 1
        counters.feed += 1
        counters.ends += ends
        first, last = feed_numbers(version)
        try:
            self.write(SQL["counters.add_entry"], (first + shared.entries, ends, encode(entry)))
        except apsw.ConstraintError:  # inserted by hand with that number: ours becomes the last
            shared.entries = self.rows(SQL["counters.highest"], (first, last))[0][0] - first + 1
            self.write(SQL["counters.add_entry"], (first + shared.entries, ends, encode(entry)))
        self.wakeups |= FEED

    def write_counters(self) -> None:
        """Write down what the counts became; the last thing before the commit."""
        for version, counters in self._counters_by_version.items():
            row = counters.row()
            if row != self._befores[version]:
                self.write(SQL["counters.write"], (*row, version))
