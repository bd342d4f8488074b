"""What does a door remember for a while, on every node?  Small values with an end, written by compare-and-set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pollux.clock import Clock
from pollux.model import Note, NotePut
from pollux.store.contract import Answer, Store


class ExpiringNoteVerbs:
    """Notes for whoever stands in front of the app; those of the engine have verbs of their own."""

    _store: Store
    _clock: Clock

    def now_ms(self) -> int:
        return self._clock.now_ms()

    async def store_now(self) -> int:
        """The store's clock, by which what is kept ends."""
        return await self._store.now()

    async def kept(self, prefix: str) -> list[Note]:
        """What is kept under keys that begin so."""
        return await self._store.notes(prefix)

    async def keep(self, values: Mapping[str, Any], *, keep_ms: int, revision: int | None = None) -> bool:
        """Keep these values for so long; true if all were written.  `revision` as in `NotePut`."""
        expires_ms = await self.store_now() + keep_ms
        puts = [NotePut(key, value, revision=revision, expires_ms=expires_ms) for key, value in values.items()]
        return all(answer is Answer.OK for answer in await self._store.put_notes(puts))

    async def forget(self, keys: Sequence[str]) -> None:
        await self._store.put_notes([NotePut(key) for key in keys])
