"""Redis Cluster for tests: servers on free ports that are introduced to each other.

Each primary has a third of the slots; with replicas, each has one.  Node timeouts are short, so that a failover takes
about two seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from redis import Redis
from redis.exceptions import RedisError

from pollux.errors import StoreError
from pollux.store.redis.wakeup import RedisListener
from tests.servers.ports import free_port
from tests.servers.redis import RedisServer

SLOTS = 16_384
PRIMARIES = 3
NODE_TIMEOUT_MS = 3_000  # a machine may stand still for a second or two; then no node has died
START_S = 60.0
T = TypeVar("T")


class RedisNodes:
    """A cluster of three primaries and some replicas."""

    def __init__(self, folder: Path, *, replicas: int = 0) -> None:
        self.nodes = [_node(folder / f"node-{number}") for number in range(PRIMARIES + replicas)]

    def start(self) -> RedisNodes:
        for node in self.nodes:
            node.start()
        for number, node in enumerate(self.nodes):
            ask(node, "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            for other in self.nodes[:number]:
                ask(node, "CLUSTER", "MEET", "127.0.0.1", other.port, _bus_port(other))
        for number, node in enumerate(self.nodes[:PRIMARIES]):
            ask(node, "CLUSTER", "ADDSLOTSRANGE", SLOTS * number // PRIMARIES, SLOTS * (number + 1) // PRIMARIES - 1)
        until(lambda: all(self._is_met(node) for node in self.nodes), "all nodes know each other")
        for number, node in enumerate(self.nodes[PRIMARIES:]):
            ask(node, "CLUSTER", "REPLICATE", self.node_id(self.nodes[number]))
        until(lambda: all(self._is_fine(node) for node in self.nodes), "the cluster is fine")
        return self

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes[:PRIMARIES])

    def node_id(self, node: RedisServer) -> str:
        return str(ask(node, "CLUSTER", "MYID"))

    def owner(self, key: str) -> RedisServer:
        """Who has the slot of a key, as the first node that lives sees it."""
        return self._owner_of(self.slot(key))

    def slot(self, key: str) -> int:
        return int(self._anybody("CLUSTER", "KEYSLOT", key))

    @property
    def primaries(self) -> list[RedisServer]:
        return [node for node in self.nodes if "role:master" in str(ask(node, "INFO", "replication"))]

    def replica_of(self, primary: RedisServer) -> RedisServer:
        [line] = [line for line in self._lines() if self.node_id(primary) in line.split()[3:4]]
        return self._at(line)

    def migrate(self, slot: int, target: RedisServer, *, between: Callable[[], None] = lambda: None) -> None:
        """Move a slot key by key, as `redis-cli --cluster reshard` does; `between` is called while it is on its way."""
        source = self.begin_migration(slot, target)
        while keys := ask(source, "CLUSTER", "GETKEYSINSLOT", slot, 5):
            ask(source, "MIGRATE", "127.0.0.1", target.port, "", 0, 5_000, "KEYS", *keys)
            between()
        for node in (target, source, *self.primaries):
            ask(node, "CLUSTER", "SETSLOT", slot, "NODE", self.node_id(target))

    def begin_migration(self, slot: int, target: RedisServer) -> RedisServer:
        source = self._owner_of(slot)
        ask(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", self.node_id(source))
        ask(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", self.node_id(target))
        return source

    def _owner_of(self, slot: int) -> RedisServer:
        for first, last, primary, *_ in self._anybody("CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return next(node for node in self.nodes if node.port == primary[1])
        raise LookupError(f"nobody owns slot {slot}")

    def _lines(self) -> list[str]:
        return [line for line in str(self._anybody("CLUSTER", "NODES")).splitlines() if line]

    def _at(self, line: str) -> RedisServer:
        port = int(line.split()[1].partition("@")[0].rpartition(":")[2])
        return next(node for node in self.nodes if node.port == port)

    def _anybody(self, *command: Any) -> Any:
        for node in self.nodes:
            with contextlib.suppress(RedisError):
                return ask(node, *command)
        raise LookupError("no node lives")

    def _is_met(self, node: RedisServer) -> bool:
        lines = str(ask(node, "CLUSTER", "NODES")).splitlines()
        return len(lines) == len(self.nodes) and "handshake" not in str(lines)

    def _is_fine(self, node: RedisServer) -> bool:
        lines = str(ask(node, "CLUSTER", "NODES")).splitlines()
        replicas = sum("slave" in line for line in lines)
        is_ok = "cluster_state:ok" in str(ask(node, "CLUSTER", "INFO"))
        is_synced = "master_link_status:down" not in str(ask(node, "INFO", "replication"))
        return is_ok and is_synced and replicas == len(self.nodes) - PRIMARIES


def ask(server: RedisServer, *command: Any) -> Any:
    with Redis(port=server.port, decode_responses=True, socket_timeout=20, protocol=2) as client:
        client.response_callbacks.clear()
        return client.execute_command(*command)


def until(is_so: Callable[[], bool], what: str, patience_s: float = START_S) -> None:
    end = time.monotonic() + patience_s
    while not is_so():
        if time.monotonic() > end:
            raise TimeoutError(f"not so after {patience_s} s: {what}")
        time.sleep(0.02)


async def again(call: Callable[[], Awaitable[T]], meets: Callable[[StoreError], None] = lambda _: None) -> T:
    """As the loops do: ask again until the server is back; `meets` is told what is heard until then."""
    async with asyncio.timeout(START_S):
        while True:
            try:
                return await call()
            except StoreError as error:
                meets(error)
                await asyncio.sleep(0.02)


async def hears_again(ear: RedisListener) -> None:
    """Its connection breaks; then it finds the bell again."""
    async with asyncio.timeout(START_S):
        while ear._reader is None:  # noqa: ASYNC110 - it happens in another task
            await asyncio.sleep(0.01)
        ear.move()
        while ear._place is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def _node(folder: Path) -> RedisServer:
    folder.mkdir(parents=True)
    options = ("--cluster-enabled", "yes", "--cluster-node-timeout", str(NODE_TIMEOUT_MS), "--cluster-port")
    return RedisServer(folder, *options, str(free_port()), "--appendonly", "yes", "--appendfsync", "no")


def _bus_port(node: RedisServer) -> int:
    return int(node.options[node.options.index("--cluster-port") + 1])
