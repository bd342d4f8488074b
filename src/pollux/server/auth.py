"""Authentication and authorization: roles, tokens, and what a caller may add or run.

Token hashes are notes in the store, read every few seconds and not for each request.  A caller does not learn why a
token is invalid, nor from the time of the answer: every one is hashed and compared.  For an unknown token the records
are read again, at most a few times a second, because it may be new.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Callable, Collection, Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from pollux.app import Operations, Pollux
from pollux.app.operations.tokens import TokenRecord, hash_of, id_of
from pollux.errors import InvalidInput, PolluxError, StoreTimeout, did_you_mean
from pollux.model import Job
from pollux.secrets import HIDDEN, MASK, texts_of

if TYPE_CHECKING:
    from pollux.server.routing import RequestContext


class Role(IntEnum):
    NOBODY = 0  # probes; no token has this role
    VIEWER = 1  # reads
    OPERATOR = 2  # runs, pauses, cancels, revives; adds and changes jobs
    ADMIN = 3  # tokens, settings, reload, commands to execute

    @property
    def word(self) -> str:
        return self.name.lower()


class Identity(Struct, frozen=True):
    name: str  # as in the audit log
    role: Role
    budget: str = ""  # key of the rate limit; "": unlimited


FRESH_S = 3.0  # age of the cache: a revoked token works no longer than this
AGAIN_S = 0.25  # between two reads for unknown tokens
PATIENCE_S = 2.0  # wait for a store that does not answer,
STALE_S = 300.0  # and use the last records for so long
GIVEN_CHARS_MIN = 24
_NOBODY = hash_of("")


class TokenCheck:
    """Identities by token, on one node."""

    def __init__(self, app: Pollux | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._app, self._clock = app, clock
        self._given: dict[str, Identity] = {}  # by hash: tokens that are not in the store
        self._known: dict[str, TokenRecord] = {}
        self._used: set[str] = set()  # since the last read
        self._read_at: float | None = None
        self._ahead_ms = 0.0  # of the store's clock, by which tokens expire, to the monotonic one
        self._reading: asyncio.Task[None] | None = None

    def trust(self, secret: str, identity: Identity) -> None:
        """Accept a token on this node that is not in the store: its operator configured it."""
        if len(secret) < GIVEN_CHARS_MIN or not secret.isascii() or not secret.isprintable() or " " in secret:
            raise InvalidInput(
                "the token is too short, or has characters that a header cannot carry",
                where="server.token",
                cure=f"{GIVEN_CHARS_MIN} or more letters and digits: `openssl rand -hex 32`",
            )
        HIDDEN.add(secret)
        self._given[hash_of(secret)] = identity

    async def identify(self, secret: str) -> Identity | None:
        """The identity of a token; None if it is invalid; `StoreTimeout` if the records are too old to tell."""
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
        """Read the records again for the next request, as they were changed here."""
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
        """One read for all waiting requests; with a store that is slow or away the last records stay, for a while."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read_records())
        await asyncio.wait([self._reading], timeout=PATIENCE_S)
        if not self._is_younger(STALE_S):
            raise StoreTimeout("the token cannot be checked: the store does not answer")

    async def _read_records(self) -> None:
        assert self._app is not None
        begun = self._clock()
        try:
            records = await self._app.operations.tokens.token_records()
            self._ahead_ms = await self._app.operations.storage.store_now() - time.monotonic() * 1_000
            self._known, self._read_at = {record.token.id: record for record in records}, begun
            used = [self._known[token_id] for token_id in self._used if token_id in self._known]
            self._used.clear()
            await self._app.operations.tokens.tokens_used(used)
        except PolluxError:
            return  # the last records stay; the verbs report the error of the store

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])


EXEC = "exec"


async def known_handlers(operations: Operations, wanted: Collection[str]) -> frozenset[str]:
    """Handlers of this process; and of all live nodes, if others are wanted."""
    ours = frozenset(operations.jobs.handler_names()) | {
        EXEC
    }  # whether it is enabled is checked elsewhere, with its own error
    if ours.issuperset(wanted):
        return ours
    return ours.union(*(node.handlers for node in await operations.status.nodes()))


def check_author(context: RequestContext, job: Job, known: frozenset[str]) -> None:
    """Raise if the caller may not add or change this job."""
    if job.handler == EXEC:
        context.refuse_below(Role.ADMIN)
    if job.handler not in known:
        cure = did_you_mean(job.handler, known).strip("; ") or f"known are {', '.join(sorted(known - {EXEC})[:20])}"
        raise InvalidInput(f"no live node has a handler {job.handler!r}", where="handler", cure=cure)
    if words := context.app.out_of_reach(job):
        raise InvalidInput(words, where="url", cure="declare the job in a file or code, or allow its network")
    for path, text in texts_of(job.params):
        if text == MASK:
            what = "it is the mask of a hidden value, not the value"
            raise InvalidInput(what, where=f"params.{path}", cure="send the value, or omit it")


def check_asker(context: RequestContext, job: Job, params: Mapping[str, Any] | None) -> None:
    """Raise if the caller may not enqueue a run of this job with these params.

    Params can turn a command into another one; a URL in the params has the same limits as that of a job of the API.
    """
    if params and job.handler == EXEC:
        context.refuse_below(Role.ADMIN)
    if params and "url" in params and (words := context.app.out_of_reach(replace(job, params=dict(params)))):
        cure = "name the URL in a job of a file or code, or allow its network"
        raise InvalidInput(words, where="params.url", cure=cure)
