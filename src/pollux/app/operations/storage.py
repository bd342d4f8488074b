"""Operations on the store itself: dump and load everything, its clock, and notes that expire for the HTTP layer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from pollux.app.operations.context import OperationGroup
from pollux.model import Note, NotePut
from pollux.store.contract import Answer, DumpPage


class StorageOperations(OperationGroup):
    """Dump and load records; expiring notes that all nodes share, written by compare-and-set."""

    async def dump(self) -> AsyncIterator[DumpPage]:
        """Everything in the store, page by page."""
        after: str | None = None
        while True:
            page = await self._store.dump(after=after)
            yield page
            after = page.next
            if after is None:
                return

    async def load(self, records: Sequence[tuple[str, Any]]) -> int:
        """Write dumped records where there are none of the same id; answers how many were new."""
        new = await self._store.load(records)
        await self._audit.record_loaded(records, new)
        return new

    async def store_now(self) -> int:
        """The store's clock, by which notes expire."""
        return await self._store.now()

    async def kept(self, prefix: str) -> list[Note]:
        """The notes under keys with this prefix."""
        return await self._store.notes(prefix)

    async def keep(self, values: Mapping[str, Any], *, keep_ms: int, revision: int | None = None) -> bool:
        """Write notes that expire after `keep_ms`; true if all were written.  `revision` as in `NotePut`."""
        expires_ms = await self.store_now() + keep_ms
        puts = [NotePut(key, value, revision=revision, expires_ms=expires_ms) for key, value in values.items()]
        return all(answer is Answer.OK for answer in await self._store.put_notes(puts))

    async def forget(self, keys: Sequence[str]) -> None:
        """Delete the notes of these keys."""
        await self._store.put_notes([NotePut(key) for key in keys])
