"""Redis Sentinels for tests: three of them watch a primary and its two replicas, started here.

They are told of each other and of the replicas in their config, so that they need not find out first.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from tests.servers.redis import RedisServer
from tests.servers.redis_cluster import ask, until

SERVICE = "jobs"
SENTINELS = 3
DOWN_AFTER_MS = 3_000  # a machine may stand still for a second or two; then no server has died


class Watched:
    """A primary, its replicas, and three sentinels that watch them."""

    def __init__(self, folder: Path) -> None:
        options = ("--appendonly", "yes", "--appendfsync", "no", "--repl-diskless-sync-delay", "0")
        self.servers = [RedisServer(_made(folder / name), *options) for name in ("one", "two", "three")]
        self.sentinels = [RedisServer(_made(folder / f"sentinel-{n}")) for n in range(SENTINELS)]

    def start(self) -> Watched:
        primary, *replicas = self.servers
        primary.start()
        for replica in replicas:
            replica.start()
            follow(replica, primary)
        ids = {sentinel.port: secrets.token_hex(20) for sentinel in self.sentinels}
        for sentinel in self.sentinels:
            sentinel.sentinel = _config(sentinel, primary, replicas, ids)
            sentinel.start()
        until(
            lambda: all(self.primary_of(sentinel) == primary.port for sentinel in self.sentinels),
            "all sentinels see it",
        )
        until(self._is_agreed, "the sentinels see each other")
        return self

    def stop(self) -> None:
        for server in (*self.sentinels, *self.servers):
            server.stop()

    @property
    def url(self) -> str:
        places = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{places}/{SERVICE}"

    def primary_of(self, sentinel: RedisServer) -> int:
        return int(ask(sentinel, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)[1])

    @property
    def primary(self) -> RedisServer:
        """As most of the sentinels see it."""
        ports = sorted(self.primary_of(sentinel) for sentinel in self.sentinels)
        return next(server for server in self.servers if server.port == ports[len(ports) // 2])

    def follow(self, server: RedisServer) -> None:
        """Make a former primary a replica now; the sentinels would do it, too, some ten seconds later."""
        server.options += ("--replicaof", "127.0.0.1", str(self.primary.port))  # never a primary, not for a moment
        server.start()
        follow(server, self.primary)

    def _is_agreed(self) -> bool:
        return all(str(ask(each, "SENTINEL", "CKQUORUM", SERVICE)).startswith("OK 3") for each in self.sentinels)


def follow(replica: RedisServer, primary: RedisServer) -> None:
    """Make it a replica, and wait until it has everything, and its primary sends it what comes next."""
    ask(replica, "REPLICAOF", "127.0.0.1", primary.port)
    until(lambda: "master_link_status:up" in str(ask(replica, "INFO", "replication")), "the replica follows")
    known = f"port={replica.port},state=online"  # a moment later, and until then no write is confirmed
    until(lambda: known in str(ask(primary, "INFO", "replication")), "its primary knows that")


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def _config(sentinel: RedisServer, primary: RedisServer, replicas: list[RedisServer], ids: dict[int, str]) -> str:
    lines = [
        f"sentinel myid {ids[sentinel.port]}",
        f"sentinel monitor {SERVICE} 127.0.0.1 {primary.port} 2",
        f"sentinel down-after-milliseconds {SERVICE} {DOWN_AFTER_MS}",
        f"sentinel failover-timeout {SERVICE} 5000",
    ]
    lines += [f"sentinel known-replica {SERVICE} 127.0.0.1 {replica.port}" for replica in replicas]
    for port, name in ids.items():
        if port != sentinel.port:
            lines.append(f"sentinel known-sentinel {SERVICE} 127.0.0.1 {port} {name}")
    return "\n".join(lines) + "\n"
