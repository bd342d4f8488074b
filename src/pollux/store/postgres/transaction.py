"""One write: its statements, the changes of the counters, the feed entries and wake-ups that go with it.

Counters, entries and the notification are collected and written by one statement at the end, so that the slot of the
counters is locked only briefly, and entries get their numbers after all rows of the write are locked: the entries of
two writes that touch the same run have the order in which they took effect.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from asyncpg import Connection

from pollux.model import SCHEDULER_VERSION, Ended, Entry
from pollux.store.postgres.rows import (
    HELD_COLUMNS,
    LEASED_COLUMNS,
    LIVE_COLUMNS,
    RUN_COLUMNS_OF_R,
    columns,
    got,
    put,
    put_at,
)
from pollux.store.postgres.wakeup import PostgresNotifier
from pollux.store.relational.rows import Row, encode
from pollux.store.relational.sql import NamedStatements
from pollux.store.relational.transaction import Transaction, TransactionRetry
from pollux.store.relational.wakeup import FEED

REACH = 100_000  # numbers that are passed over at once
_COLUMNS = {
    "{run_columns}": RUN_COLUMNS_OF_R,
    "{live_columns}": LIVE_COLUMNS,
    "{held_columns}": HELD_COLUMNS,
    "{leased_columns}": LEASED_COLUMNS,
}


class SchemaStatements:
    """One schema: its statements with their names, and its numbers."""

    def __init__(self, schema: str) -> None:
        self.schema = schema
        self.channel = f"pollux_{schema}"
        self.lock_number = int.from_bytes(schema.encode()[-8:], "big") % (2**31 - 1)
        self.named = NamedStatements(__package__, self.sql)
        self.statements = 0  # sent so far, for tests and benchmarks

    def sql(self, template: str) -> str:
        text = template.replace("{s}", f'"{self.schema}"')
        for name, names in _COLUMNS.items():
            text = text.replace(name, names)
        return text


def notification_payload(sender: str, kinds: int, versions: Iterable[int]) -> str:
    """What a notification carries; the sender, so that it does not wake itself."""
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


class PostgresTransaction(Transaction):
    """One write (or a few reads) under way on one connection.  `now_ms` is None until the server was asked."""

    def __init__(
        self,
        connection: Connection,
        space: SchemaStatements,
        version: int,
        given_ms: int | None = None,
        sender: str = "",
        *,
        notifier: PostgresNotifier | None = None,
    ) -> None:
        self._notifier = notifier
        self.is_notification_due = False  # after the commit: it was too soon for one with it
        self._connection, self._space, self.given_ms, self._sender = connection, space, given_ms, sender
        self.version = version  # the handle's own
        self.wakeups = 0
        self.made: list[str] = []  # ids that must not have ended meanwhile
        self._counters_by_version: dict[int, PostgresCounters] = {}
        self._entries: dict[int, list[tuple[int, bytes]]] = {}
        self._locks: set[int] = set()

    def counters_of(self, version: int) -> PostgresCounters:
        found = self._counters_by_version.get(version)
        if found is None:
            found = self._counters_by_version[version] = PostgresCounters()
        return found

    @property
    def touched(self) -> frozenset[int]:
        """The versions whose waiters are woken."""
        return frozenset(self._counters_by_version)

    def one_moment(self) -> AbstractAsyncContextManager[object]:
        """All reads in it see the same state."""
        moment: AbstractAsyncContextManager[object] = self._connection.transaction(
            isolation="repeatable_read", readonly=True
        )
        return moment

    async def fetch(self, name: str, *args: Any) -> list[Row]:
        return await self.fetch_text(self._space.named[name], args)

    async def fetch_text(self, sql: str, values: Sequence[Any]) -> list[Row]:
        self._space.statements += 1
        found: list[Row] = await self._connection.fetch(sql, *values)
        return found

    async def one(self, name: str, *args: Any) -> Row:
        return (await self.fetch(name, *args))[0]

    async def write_rows(self, name: str, rows: Sequence[Row], *same: Any) -> list[Row]:
        return await self.fetch(name, *columns(rows, 0), *same) if rows else []

    def text(self, name: str) -> str:
        return self._space.named[name]

    @staticmethod
    def contains(column: str) -> str:
        return f"strpos({column}, {{}}) > 0"

    @staticmethod
    def place(number: int) -> str:
        return f"${number}"

    def put(self, text: str) -> str:
        return put(text)

    def put_at(self, row: Row, places: Sequence[int]) -> Row:
        return put_at(row, places)

    def got(self, text: str) -> str:
        return got(text)

    async def now(self) -> int:
        if self.given_ms is None:
            self.given_ms = (await self.one("counters.now"))[0]
        return self.given_ms

    async def lock(self, what: int) -> None:
        """One at a time, until this write ends."""
        if what not in self._locks:
            self._locks.add(what)
            await self.fetch("counters.lock", what)

    async def catch_up(self) -> None:
        """New runs get numbers behind all that there are."""
        await self.fetch("counters.catch_up")

    async def step_over(self) -> None:
        """Pass over numbers of rows that this store did not make, so that the next one is free."""
        await self.fetch("counters.step_over", REACH)

    async def ensure(self, version: int) -> None:
        if version != self.version:  # which has its counts before any write
            await self.fetch("versions.ensure", version)

    async def clock_ms(self, versions: Iterable[int]) -> int:
        return int((await self.one("versions.clock", [*versions]))[0])

    async def dead(self) -> int:
        return int((await self.one("versions.dead"))[0]) + self.shared.dead

    async def forget_version(self, version: int) -> bool:
        if (await self.one("versions.left", version))[0]:
            return False
        await self.fetch("versions.drop", version)
        return True

    def next_revision(self) -> None:
        return None

    async def pass_revision(self, revision: int) -> None:
        await self.fetch("notes.pass_revision", revision)

    async def unread_ends(self, versions: Sequence[int]) -> list[Row]:
        return await self.fetch("versions.unread_ends", versions)

    def forget_made(self, run_ids: Container[str]) -> None:
        """Runs that this write ends, too: `finish` does not take them for ones that ended meanwhile."""
        self.made = [run_id for run_id in self.made if run_id not in run_ids]

    def add_entry(self, version: int, entry: Entry) -> None:
        ends = len(entry.ends) if type(entry) is Ended else 0
        self._entries.setdefault(version, []).append((ends, encode(entry)))
        counters = self.counters_of(version)
        counters.feed += 1
        counters.ends += ends
        self.wakeups |= FEED

    def notification(self, versions: Iterable[int] | None = None) -> tuple[str, str]:
        """The channel and the payload that go with this write; for all versions that it touched, if none are named."""
        notifier = self._notifier
        self.is_notification_due = bool(self.wakeups) and notifier is not None and not notifier.may_notify_now()
        if not self.wakeups or self.is_notification_due:
            return self._space.channel, ""
        concerned = self.touched if versions is None else versions
        return self._space.channel, notification_payload(self._sender, self.wakeups, concerned)

    async def finish(self, *, is_users: bool = False) -> None:
        """Write down what was gathered, version by version; the last thing before the commit."""
        rows = {version: counters.row() for version, counters in sorted(self._counters_by_version.items())}
        concerned = [version for version, row in rows.items() if any(row)]
        if not (concerned or self.wakeups or self.made):
            return
        statement = "counters.join" if is_users else "counters.finish"
        *others, last = concerned or [SCHEDULER_VERSION]
        for version in others:
            await self.one(statement, *self._entries_of(version), *rows[version], "", "", [], version)
        counts = rows.get(last) or PostgresCounters().row()
        ended, _ = await self.one(statement, *self._entries_of(last), *counts, *self.notification(), self.made, last)
        if ended:
            raise TransactionRetry

    def _entries_of(self, version: int) -> list[list[Any]]:
        return [list(column) for column in zip(*self._entries.get(version, ()), strict=True)] or [[], []]
