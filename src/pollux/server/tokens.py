"""Is this token good?  Their hashes are notes in the store; a node reads them every few seconds, never for one request.

Nobody learns why a token is not good, nor by how long the answer took: every one is hashed and compared, and whenever
the answer is no the records are looked at once more (at most a few times a second), because it may be new.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Callable

from pollux.app import Pollux
from pollux.app.tokens import TokenRecord, hash_of, id_of
from pollux.errors import InvalidInput, PolluxError, StoreTimeout
from pollux.secrets import HIDDEN
from pollux.server.roles import Identity, Role

FRESH_S = 3.0  # so long the records are believed: a token taken back works no longer than this
AGAIN_S = 0.25  # so soon they are read again for a token that is not among them
PATIENCE_S = 2.0  # a store that does not answer is waited for so long,
STALE_S = 300.0  # and what was known last holds so long
GIVEN_CHARS_MIN = 24
_NOBODY = hash_of("")


class TokenCheck:
    """Who a token stands for, on one node."""

    def __init__(self, app: Pollux | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._app, self._clock = app, clock
        self._given: dict[str, Identity] = {}  # by hash: those that are not in the store
        self._known: dict[str, TokenRecord] = {}
        self._used: set[str] = set()  # since they were read
        self._read_at: float | None = None
        self._ahead_ms = 0.0  # of the monotonic clock: the store's, by which tokens end
        self._reading: asyncio.Task[None] | None = None

    def trust(self, secret: str, identity: Identity) -> None:
        """This one is good on this node, whatever the store says: its operator named it."""
        if len(secret) < GIVEN_CHARS_MIN or not secret.isascii() or not secret.isprintable() or " " in secret:
            raise InvalidInput(
                "the token is too short, or has characters that a header cannot carry",
                where="server.token",
                cure=f"{GIVEN_CHARS_MIN} or more letters and digits: `openssl rand -hex 32`",
            )
        HIDDEN.add(secret)
        self._given[hash_of(secret)] = identity

    async def identify(self, secret: str) -> Identity | None:
        """Whose token this is; None if it is nobody's, or not any more; `StoreTimeout` if nobody can say."""
        mark = hash_of(secret)
        for known, identity in self._given.items():
            if hmac.compare_digest(known, mark):
                return identity
        if not self._is_younger(FRESH_S):
            await self._read()
        found = self._match(secret, mark)
        if found is None and not self._is_younger(AGAIN_S):
            await self._read()
            found = self._match(secret, mark)
        return found

    def forget(self) -> None:
        """They were changed here: look again with the next request."""
        self._read_at = None

    def _match(self, secret: str, mark: str) -> Identity | None:
        record = self._known.get(id_of(secret))
        is_equal = hmac.compare_digest(_NOBODY if record is None else record.hash, mark)
        if record is None or not is_equal or record.token.is_over(self._now_ms()):
            return None
        self._used.add(record.token.id)
        return Identity(f"token:{record.token.name}", Role[record.token.role.upper()], record.token.id)

    def _now_ms(self) -> int:
        return int(time.monotonic() * 1_000 + self._ahead_ms)

    def _is_younger(self, seconds: float) -> bool:
        return self._app is None or (self._read_at is not None and self._clock() - self._read_at < seconds)

    async def _read(self) -> None:
        """One reading for all who wait; a store that is slow or away leaves what was known, for a while."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read_records())
        await asyncio.wait([self._reading], timeout=PATIENCE_S)
        if not self._is_younger(STALE_S):
            raise StoreTimeout("whose token it is cannot be told: the store does not answer")

    async def _read_records(self) -> None:
        assert self._app is not None
        begun = self._clock()
        try:
            records = await self._app.token_records()
            self._ahead_ms = await self._app.store_now() - time.monotonic() * 1_000
            self._known, self._read_at = {record.token.id: record for record in records}, begun
            used = [self._known[token_id] for token_id in self._used if token_id in self._known]
            self._used.clear()
            await self._app.tokens_used(used)
        except PolluxError:
            return  # what was known holds; the verbs themselves will say what is wrong with the store

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])
