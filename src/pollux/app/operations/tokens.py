"""Operations on API tokens: create, list, revoke and rotate them; the store keeps only their hashes.

A token is `pf_<id>_<secret>`.  Its record is the note `token:<id>`, so that every node of the store knows it.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from hashlib import sha256

import msgspec
from msgspec import Struct

from pollux.app.operations.context import OperationGroup
from pollux.errors import Conflict, InvalidInput, NotFound, read_at
from pollux.model import Note, NotePut
from pollux.secrets import HIDDEN
from pollux.store.contract import Answer
from pollux.store.decoding import CONTENT_UNREADABLE, UNREADABLE, readable_part
from pollux.units import HOUR_MS, duration_ms, format_ms

PREFIX = "pf_"
RECORDS = "token:"
BEGUN = "tokens-begun"  # a note: tokens existed, so the first one is not made again
ROLES = ("viewer", "operator", "admin")  # each includes the ones before it
NO_ROLE = "none"  # the role of a token that cannot be read
FIRST = "first"
TOKENS_MAX = 1_000
NAME_CHARS_MAX = 100
USED_EVERY_MS = HOUR_MS  # precision of the time of last use
OVERLAP = "1h"
_NAME = re.compile(rf"[\w.@:/ -]{{1,{NAME_CHARS_MAX}}}")


class Token(Struct, frozen=True, omit_defaults=True):
    """A token without its secret."""

    id: str
    name: str
    role: str
    made_ms: int
    expires_ms: int | None = None
    used_ms: int | None = None  # to the hour

    def is_over(self, now_ms: int) -> bool:
        return self.expires_ms is not None and now_ms >= self.expires_ms


class TokenRecord(Struct, frozen=True):
    """A token as it is stored."""

    token: Token
    hash: str  # SHA-256 of the whole token, in hexadecimal digits
    revision: int = 0


class MadeToken(Struct, frozen=True):
    """A new token, with the secret that is shown only once."""

    secret: str  # pf_...
    token: Token


class TokenOperations(OperationGroup):
    """Create, list, revoke and rotate the tokens of the API."""

    async def create_token(self, role: str, *, name: str = "", expires: str | float | None = None) -> MadeToken:
        """Create a token for a role; all nodes of the store accept it at once."""
        now_ms = await self._store.now()
        expires_ms = None if expires is None else now_ms + _lasting(expires)
        if len(await self.token_records()) >= TOKENS_MAX:
            cure = "revoke some: `pollux token ls`, `pollux token revoke ID`"
            raise Conflict(f"there are {TOKENS_MAX:,} tokens", cure=cure)
        made = _made(secrets.token_hex(4), _name(name), _role(role), now_ms, expires_ms)
        if not await self._keep(made):
            raise Conflict(f"the id {made.token.id} of the new token exists already", cure="try again")
        return made

    async def needs_first_token(self) -> bool:
        """Whether this store never had a token; unreadable ones count."""
        for prefix in (RECORDS, BEGUN):
            if any(await readable_part(self._store.notes(prefix))):
                return False
        return True

    async def first_token(self) -> MadeToken | None:
        """Create an admin token if the store never had any token; else None."""
        if not await self.needs_first_token():
            return None
        made = _made(FIRST, FIRST, ROLES[-1], await self._store.now(), None)
        return made if await self._keep(made) else None  # None: another node was faster

    async def list_tokens(self) -> list[Token]:
        """All tokens, oldest first; an unreadable one is never accepted, and can be revoked by its id."""
        records, odd = await self._records()
        found = [*(record.token for record in records), *(Token(each, CONTENT_UNREADABLE, NO_ROLE, 0) for each in odd)]
        return sorted(found, key=lambda token: (token.made_ms, token.id))

    async def token_records(self) -> list[TokenRecord]:
        """The readable tokens with their hashes, for authentication."""
        return (await self._records())[0]

    async def _records(self) -> tuple[list[TokenRecord], list[str]]:
        """The readable ones, and the ids of the others."""
        notes, unreadable = await readable_part(self._store.notes(RECORDS))
        found, odd = [], [each.name.removeprefix(RECORDS) for each in unreadable]
        for note in notes:
            try:
                found.append(_record(note))
            except UNREADABLE:
                odd.append(note.key.removeprefix(RECORDS))
        return found, odd

    async def revoke_token(self, ref: str) -> Token:
        """Revoke a token by its id or name; every node refuses it within seconds."""
        token = _chosen(await self.list_tokens(), ref)
        puts = [NotePut(f"{RECORDS}{token.id}"), NotePut(BEGUN, await self._store.now())]
        await self._store.put_notes(puts, audit=self._audit.first_on_record("token revoke", token.id, _words(token)))
        return token

    async def rotate_token(self, ref: str, *, overlap: str | float = OVERLAP) -> MadeToken:
        """Replace a token by a new one with the same expiry; the old one stays valid for the `overlap`."""
        now_ms = await self._store.now()
        old = _chosen(await self.list_tokens(), ref)
        record = next((each for each in await self.token_records() if each.token.id == old.id), None)
        if record is None:
            cure = f"revoke it and create a new one: `pollux token revoke {old.id}`, `pollux token create`"
            raise Conflict(f"token {old.id} was removed, or {CONTENT_UNREADABLE}", cure=cure)
        if old.is_over(now_ms):
            cure = f"create a new one: `pollux token create --role {old.role}`"
            raise Conflict(f"token {old.id} has expired", cure=cure)
        ends_ms = now_ms + read_at("overlap", duration_ms, overlap)
        ending = msgspec.structs.replace(old, expires_ms=min(ends_ms, old.expires_ms or ends_ms))
        made = _made(secrets.token_hex(4), old.name, old.role, now_ms, old.expires_ms)
        puts = [_put(msgspec.structs.replace(record, token=ending)), _put(_record_of(made))]
        words = f"by {made.token.id}; the old one ends in {format_ms(ends_ms - now_ms)}"
        audit = self._audit.first_on_record("token rotate", old.id, _words(old, words))
        answers = await self._store.put_notes(puts, audit=audit)
        if Answer.CONFLICT in answers:
            if answers[1] is Answer.OK:  # else its id is that of another token, which stays
                await self._store.put_notes([NotePut(f"{RECORDS}{made.token.id}")])
            raise Conflict(f"token {old.id} was changed meanwhile", cure="try again")
        return made

    async def tokens_used(self, records: Sequence[TokenRecord]) -> None:
        """Store the time of use of these tokens, if the stored one is of an earlier hour."""
        now_ms = await self._store.now()
        for record in records:
            if now_ms - (record.token.used_ms or 0) >= USED_EVERY_MS:
                used = msgspec.structs.replace(record.token, used_ms=now_ms - now_ms % USED_EVERY_MS)
                put = _put(msgspec.structs.replace(record, token=used))
                await self._store.put_notes([put])  # a conflict: another node did, or it was revoked

    async def _keep(self, made: MadeToken) -> bool:
        audit = self._audit.on_record("token create", made.token.id, _words(made.token))
        return await self._store.put_notes([_put(_record_of(made))], audit=audit) == [Answer.OK]


def hash_of(secret: str) -> str:
    """The stored hash of a token; it has 256 random bits, so a fast hash is enough."""
    return sha256(secret.encode("utf-8", "replace")).hexdigest()


def id_of(secret: str) -> str:
    return secret.removeprefix(PREFIX).partition("_")[0] if secret.startswith(PREFIX) else ""


def _made(token_id: str, name: str, role: str, made_ms: int, expires_ms: int | None) -> MadeToken:
    secret = f"{PREFIX}{token_id}_{secrets.token_urlsafe(32)}"
    HIDDEN.add(secret)  # it is masked in all output of this process
    return MadeToken(secret, Token(token_id, name or token_id, role, made_ms, expires_ms))


def _record_of(made: MadeToken) -> TokenRecord:
    return TokenRecord(made.token, hash_of(made.secret))


def _put(record: TokenRecord) -> NotePut:
    value = {**msgspec.to_builtins(record.token), "hash": record.hash}
    return NotePut(f"{RECORDS}{record.token.id}", value, revision=record.revision)


def _words(token: Token, more: str = "") -> str:
    return ", ".join(filter(None, (token.name, token.role, more)))


def _record(note: Note) -> TokenRecord:
    value = dict(note.value)
    token = msgspec.convert(value, Token)
    if token.used_ms is not None and token.used_ms < token.made_ms:  # it is rounded down to the hour
        token = msgspec.structs.replace(token, used_ms=token.made_ms)
    return TokenRecord(token=token, hash=value.get("hash", ""), revision=note.revision)


def _chosen(tokens: Sequence[Token], ref: str) -> Token:
    found = [token for token in tokens if token.id == ref] or [token for token in tokens if token.name == ref]
    if not found:
        raise NotFound("token", ref, cure="`pollux token ls` lists them")
    if len(found) > 1:
        ids = ", ".join(token.id for token in found[:5])
        raise Conflict(f"{len(found)} tokens have the name {ref!r}: {ids}", cure="name one by its id")
    return found[0]


def _role(role: object) -> str:
    if role not in ROLES:
        raise InvalidInput(f"{str(role)[:60]!r} is no role", where="role", cure=f"one of {', '.join(ROLES)}")
    return str(role)


def _name(name: object) -> str:
    if name == "" or (isinstance(name, str) and _NAME.fullmatch(name)):
        return str(name)
    cure = f"1 to {NAME_CHARS_MAX} letters, digits, spaces and . @ : / _ -"
    raise InvalidInput(f"the name {str(name)[:60]!r} cannot be used", where="name", cure=cure)


def _lasting(expires: str | float) -> int:
    ms = read_at("expires", duration_ms, expires)
    if ms <= 0:
        raise InvalidInput("it would never be valid", where="expires", cure='give it some time, like "30d"')
    return ms
