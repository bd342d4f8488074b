"""Redis primary and replica for tests: the replica takes over at the same port, as a virtual address moves."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from tests.servers.ports import nobodys_port
from tests.servers.redis import RedisServer
from tests.servers.redis_cluster import ask, until
from tests.servers.redis_sentinel import follow


class Pair:
    """A primary, its replica, and one address at which the primary is found."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder, self.options = folder, ("--repl-diskless-sync-delay", "0", *options)
        self._held = ExitStack()  # a server that came to where the replica looks would give it its own data
        self.primary, self.replica = self._made("a"), self._made("b")
        self.port = self.primary.port
        self.url = f"redis://127.0.0.1:{self.port}/0"
        follow(self.replica, self.primary)

    def _made(self, name: str) -> RedisServer:
        (self.folder / name).mkdir()
        return RedisServer(self.folder / name, *self.options).start()

    def cut(self) -> None:
        """From now on the replica gets nothing; it keeps what it has."""
        ask(self.replica, "REPLICAOF", "127.0.0.1", self._held.enter_context(nobodys_port()))

    def mend(self) -> None:
        follow(self.replica, self.primary)

    def catch_up(self) -> None:
        """By the bytes: `WAIT` asks for the writes of its own connection, and a new one has none."""
        written = _offset(self.primary, "master_repl_offset")
        until(lambda: _offset(self.replica, "slave_repl_offset") >= written, "the replica has everything")

    def fail_over(self) -> None:
        self.primary.kill()
        self.promote()

    def primary_at(self, port: int) -> RedisServer:
        """The primary as it was found before it moved to another port."""
        server = RedisServer(self.primary.folder)
        server.port = port
        return server

    def promote(self) -> None:
        ask(self.replica, "REPLICAOF", "NO", "ONE")
        ask(self.replica, "CONFIG", "SET", "port", self.port)
        self.replica.port = self.port

    def renew(self) -> None:
        """Give the primary a new replica."""
        self.primary, self.replica = self.replica, self._made("c")
        follow(self.replica, self.primary)

    def stop(self) -> None:
        self.primary.stop()
        self.replica.stop()
        self._held.close()


def _offset(server: RedisServer, name: str) -> int:
    told = str(ask(server, "INFO", "replication"))
    return int(next(line for line in told.splitlines() if line.startswith(f"{name}:")).partition(":")[2])
