"""Calls of one verb: what goes with each function that it calls."""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from pollux.store.contract import Audit
from pollux.store.job_cache import JobCache
from pollux.store.redis import codec
from pollux.store.redis.connection import RedisConnections


class RedisCalls(Struct, frozen=True):
    """The functions of the server, with the version, time, audit and condition of one call of a verb."""

    link: RedisConnections
    jobs: JobCache
    version: int
    now_ms: int | None = None
    audit: Audit | None = None
    unless_moved: bool = False

    async def __call__(self, function: str, **arguments: Any) -> Any:
        return await self.link.run(function, **self.packed(arguments))

    async def raw(self, function: str, **arguments: Any) -> Any:
        """The answer as it comes: packed, or a list of texts."""
        return await self.link.run_raw(function, **self.packed(arguments))

    def packed(self, arguments: dict[str, Any]) -> dict[str, Any]:
        arguments |= {"now": self.now_ms, "v": self.version}
        if self.audit is not None:
            arguments["audit"] = codec.audit_row(self.audit)
        if self.unless_moved:
            arguments["unless_moved"] = True
        return arguments

    def silent(self) -> RedisCalls:
        """The same without lines, for the parts after the one that wrote them."""
        return replace(self, audit=None)

    def rest(self) -> RedisCalls:
        """For what follows from a change that was made."""
        return replace(self, audit=None, unless_moved=False)
