"""Checkpoints of the write-ahead log, after the answers are sent.

Every thousand pages, and when the writer is idle; every few pages when the disk is nearly full.  A long log is
truncated once all of it is checkpointed; a stalled reader can delay that, and then it is tried again later.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import apsw

from pollux.store.sqlite.transaction import WriteStats

BUSY_MS = 5_000  # for programs that do not use the write lock
CHECKPOINT_PAGES = 1_000
TIGHT_PAGES = 32  # when room is short
TRUNCATE_PAGES = 8_192  # 32 MB of log


class Wal:
    """The log as the writer's connection sees it."""

    def __init__(self, stats: WriteStats) -> None:
        self._stats = stats
        self._connection: apsw.Connection
        self._due_at = CHECKPOINT_PAGES
        self.pages = 0  # without a checkpoint so far

    def watch(self, connection: apsw.Connection) -> None:
        self._connection = connection
        connection.set_wal_hook(self._on_commit)

    def is_due(self, *, is_tight: bool) -> bool:
        return self.pages >= (TIGHT_PAGES if is_tight else self._due_at)

    def growth_bytes(self, path: Path) -> int:
        """How much the database file will grow with the checkpoint of all; a half has used its bytes twice."""
        pages = self._connection.pragma("page_count")
        size = self._connection.pragma("page_size")
        assert isinstance(pages, int)
        assert isinstance(size, int)
        return pages * size - path.stat().st_size

    def checkpoint(self) -> None:
        """As far as possible; `pages` are then those that stay because a reader needs them or the disk is full."""
        self._stats.checkpoints += 1
        try:
            log, done = self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            if log > TRUNCATE_PAGES and log == done:
                self.truncate()
        except (apsw.BusyError, apsw.FullError):
            log, done = self.pages, 0  # later
        self._due_at = CHECKPOINT_PAGES if log == done else self.pages + CHECKPOINT_PAGES
        self.pages = 0 if log == done else self.pages

    def truncate(self) -> None:
        """Checkpoint all of it and free its bytes, unless a reader is active."""
        timeout = self._connection.set_busy_timeout
        timeout(0)
        try:
            with suppress(apsw.BusyError, apsw.FullError):
                self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
                self.pages = 0
        finally:
            timeout(BUSY_MS)

    def _on_commit(self, _connection: apsw.Connection, _name: str, pages: int) -> int:
        self.pages = pages
        return apsw.SQLITE_OK
