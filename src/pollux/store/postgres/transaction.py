"""One write: its statements, the changes of the counters, the feed entries and wake-ups that go with it.

Counters, entries and the notification are collected and written by one statement at the end, so that the slot of the
counters is locked only briefly, and entries get their numbers after all rows of the write are locked: the entries of
two writes that touch the same run have the order in which they took effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from asyncpg import Connection

from pollux.model import SCHEDULER_VERSION, Arrived, End, Ended, Entry
from pollux.store.postgres.rows import LIVE_COLUMNS, RUN_COLUMNS_OF_R
from pollux.store.postgres.sql import PostgresStatements
from pollux.store.postgres.wakeup import PostgresNotifier
from pollux.store.relational.rows import Row, by_version, encode
from pollux.store.relational.wakeup import FEED

JOBS_LOCK, NOTES_LOCK, LOG_LOCK, SCHEMA_LOCK = range(1, 5)
REACH = 100_000  # numbers that are passed over at once
_sql = PostgresStatements("finish")


class TransactionRetry(Exception):
    """Somebody else was quicker: undo, and begin again."""


class SchemaStatements:
    """One schema: its statements with their names, and its numbers."""

    def __init__(self, schema: str) -> None:
        self.schema = schema
        self.channel = f"pollux_{schema}"
        self.lock_number = int.from_bytes(schema.encode()[-8:], "big") % (2**31 - 1)
        self._written: dict[str, str] = {}
        self.statements = 0  # sent so far, for tests and benchmarks

    def sql(self, template: str) -> str:
        found = self._written.get(template)
        if found is None:
            found = template.replace("{s}", f'"{self.schema}"').replace("{run_columns}", RUN_COLUMNS_OF_R)
            found = found.replace("{live_columns}", LIVE_COLUMNS)
            self._written[template] = found
        return found


def said_by(sender: str, kinds: int, versions: Iterable[int]) -> str:
    """What is said on the channel, and by whom, so that it does not wake itself."""
    return f"{kinds}:{sender}:{','.join(map(str, versions))}"


class PostgresCounters:
    """By how much the counts change."""

    __slots__ = ("clock_ms", "dead", "ends", "feed", "held", "jobs", "leased", "ready", "stops")

    def __init__(self) -> None:
        self.held = self.ready = self.leased = self.dead = self.feed = self.ends = self.jobs = self.stops = 0
        self.clock_ms = 0

    def row(self) -> list[int]:
        counts = [self.held, self.ready, self.leased, self.dead, self.feed, self.ends, self.jobs, self.stops]
        return [*counts, self.clock_ms]


class PostgresTransaction:
    """One write (or a few reads) under way on one connection.  `now_ms` is None until the server was asked."""

    def __init__(
        self,
        connection: Connection,
        space: SchemaStatements,
        version: int,
        given_ms: int | None = None,
        sender: str = "",
        *,
        bells: PostgresNotifier | None = None,
    ) -> None:
        self._bells = bells
        self.is_owed = False  # the bell, which could not go along
        self._connection, self._space, self.given_ms, self._sender = connection, space, given_ms, sender
        self.version = version  # the handle's own
        self.rings = 0
        self.made: list[str] = []  # ids that must not have ended meanwhile
        self._counters_by_version: dict[int, PostgresCounters] = {}
        self._told: dict[int, list[tuple[int, bytes]]] = {}
        self._locks: set[int] = set()

    def counters_of(self, version: int) -> PostgresCounters:
        found = self._counters_by_version.get(version)
        if found is None:
            found = self._counters_by_version[version] = PostgresCounters()
        return found

    @property
    def counters(self) -> PostgresCounters:
        """Of the handle's own version."""
        return self.counters_of(self.version)

    @property
    def shared(self) -> PostgresCounters:
        """Of all versions: what is dead, and the stops."""
        return self.counters_of(SCHEDULER_VERSION)

    @property
    def touched(self) -> frozenset[int]:
        """The versions whose waiters the bells are for."""
        return frozenset(self._counters_by_version)

    def one_moment(self) -> AbstractAsyncContextManager[object]:
        """All reads in it see the same state."""
        moment: AbstractAsyncContextManager[object] = self._connection.transaction(
            isolation="repeatable_read", readonly=True
        )
        return moment

    async def rows(self, sql: str, *args: Any) -> list[Row]:
        self._space.statements += 1
        found: list[Row] = await self._connection.fetch(self._space.sql(sql), *args)
        return found

    async def row(self, sql: str, *args: Any) -> Row | None:
        found = await self.rows(sql, *args)
        return found[0] if found else None

    async def one(self, sql: str, *args: Any) -> Row:
        return (await self.rows(sql, *args))[0]

    async def now(self) -> int:
        if self.given_ms is None:
            self.given_ms = (await self.one(_sql.now))[0]
        return self.given_ms

    async def lock(self, what: int) -> None:
        """One at a time, until this write ends."""
        if what not in self._locks:
            self._locks.add(what)
            await self.rows(_sql.lock, self._space.lock_number, what)

    async def catch_up(self) -> None:
        """New runs get numbers behind all that there are."""
        await self.rows(_sql.catch_up)

    async def step_over(self) -> None:
        """Numbers that rows have which we did not make: the next that is asked for is a free one."""
        await self.rows(_sql.step_over, REACH)

    def tell(self, version: int, entry: Entry) -> None:
        """Put an entry into the inbox of a version's leader."""
        ends = len(entry.ends) if type(entry) is Ended else 0
        self._told.setdefault(version, []).append((ends, encode(entry)))
        counters = self.counters_of(version)
        counters.feed += 1
        counters.ends += ends
        self.rings |= FEED

    def tell_ends(self, ends: Sequence[tuple[int, End]]) -> None:
        """Each with the version it ended in: one entry a version."""
        for version, some in by_version(ends).items():
            self.tell(version, Ended(tuple(some)))

    def tell_arrived(self, run_ids: Sequence[tuple[int, str]]) -> None:
        for version, some in by_version(run_ids).items():
            self.tell(version, Arrived(tuple(some)))

    def bell(self, versions: Iterable[int] | None = None) -> tuple[str, str]:
        """The channel, and what is said there with this write; for all that it touched, if no versions are named."""
        self.is_owed = bool(self.rings) and self._bells is not None and not self._bells.may_go_along()
        concerned = self.touched if versions is None else versions
        said = said_by(self._sender, self.rings, concerned) if self.rings and not self.is_owed else ""
        return self._space.channel, said

    async def finish(self, *, is_users: bool = False) -> None:
        """Write down what was gathered, version by version; the last thing before the commit."""
        rows = {version: counters.row() for version, counters in sorted(self._counters_by_version.items())}
        concerned = [version for version, row in rows.items() if any(row)]
        if not (concerned or self.rings or self.made):
            return
        statement = _sql.join if is_users else _sql.finish
        *others, last = concerned or [SCHEDULER_VERSION]
        for version in others:
            await self.one(statement, *self._told_of(version), *rows[version], "", "", [], version)
        counts = rows.get(last) or PostgresCounters().row()
        ended, _ = await self.one(statement, *self._told_of(last), *counts, *self.bell(), self.made, last)
        if ended:
            raise TransactionRetry

    def _told_of(self, version: int) -> list[list[Any]]:
        return [list(column) for column in zip(*self._told.get(version, ()), strict=True)] or [[], []]
