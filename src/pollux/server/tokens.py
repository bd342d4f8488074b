"""Which tokens are good?  Their hashes are notes in the store, so that every node knows them; nobody keeps a token."""

from __future__ import annotations

import hashlib
import hmac
import secrets

from pollux.server.identity import Identity, Role

PREFIX = "pf_"


class Tokens:
    """Tokens are `pf_<id>_<secret>`: found by id, compared by hash in constant time."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[bytes, Identity]] = {}

    def make(self, name: str, role: Role) -> str:
        token_id, secret = secrets.token_hex(4), secrets.token_urlsafe(32)
        token = f"{PREFIX}{token_id}_{secret}"
        self._known[token_id] = (hashlib.sha256(token.encode()).digest(), Identity(f"token:{name}", role))
        return token

    async def identify(self, token: str) -> Identity | None:
        token_id = token.removeprefix(PREFIX).partition("_")[0]
        digest, identity = self._known.get(token_id, (b"", None))
        return identity if hmac.compare_digest(digest, hashlib.sha256(token.encode()).digest()) else None
