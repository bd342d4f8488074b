"""Are we alive?  A beat now and then says so, and what this node can do."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pollux.clock import Clock
from pollux.errors import InvalidInput
from pollux.events import Events
from pollux.model import Node
from pollux.runtime.loop import Loop, Rest
from pollux.store.contract import Store

BEAT_MS = 15_000
BEAT_TTL_MS = 45_000


class Heartbeat(Loop):
    """Tell the store that this node lives; the first beat comes before the first claim."""

    def __init__(
        self,
        store: Store,
        describe: Callable[[], Node],
        *,
        clock: Clock,
        events: Events,
        beat_ms: int = BEAT_MS,
        ttl_ms: int = BEAT_TTL_MS,
    ) -> None:
        super().__init__("beat", clock=clock, events=events)
        self.store, self.describe = store, describe
        self.beat_ms, self.ttl_ms = beat_ms, ttl_ms

    async def turn(self) -> Rest:
        await self.store.beat(self.describe(), ttl_ms=self.ttl_ms)
        return Rest(self.beat_ms)


def check_key(node: Node, living: Iterable[Node]) -> None:
    """Refuse a node that names another leadership than those that live: one store has one."""
    for other in living:
        if other.key != node.key and other.scheduler_version == node.scheduler_version:
            raise InvalidInput(
                f"node {other.id} on this store {_named(other.key)}, this one {_named(node.key)}",
                where="leader.key",
                cure="name the store that is meant, or say one name on all nodes; to change it stop them all first",
            )


def _named(key: str) -> str:
    return f"names the leadership {key!r}" if key else "names no leadership"
