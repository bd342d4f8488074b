"""PgBouncer before a server of the tests, in transaction mode and with few connections to it.

A connection is ours from BEGIN to COMMIT, and between two statements it may be another one.  No wheel carries it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

from tests import guard
from tests.servers.debian import PGBOUNCER, find_program
from tests.servers.ports import free_port
from tests.servers.redis import await_port

START_S = 60.0


class PgBouncer:
    """A pooler on loopback before a server, with few connections to it, so that clients must share them."""

    def __init__(self, url: str, *, size: int = 3, folder: Path | None = None) -> None:
        there = urlsplit(url)
        self.folder = folder or guard.new_folder("pgbouncer")
        self.port = free_port()
        self._user, self._password = there.username or "", there.password or ""
        self._database = there.path.lstrip("/")
        self._target = f"host={there.hostname} port={there.port or 5432} user={self._user} password={self._password}"
        self._size = size
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, query: str = "") -> str:
        """Without prepared statements, which transaction mode does not keep, and without LISTEN, which it forgets."""
        told = f"{query}&" if query else ""
        return (
            f"postgresql://{self._user}:{self._password}@127.0.0.1:{self.port}/{self._database}"
            f"?{told}listen=false&statement_cache_size=0"
        )

    def start(self) -> PgBouncer:
        program = find_program(PGBOUNCER)
        self._write_config()
        with (self.folder / "out.log").open("ab") as log:
            self._process = subprocess.Popen(
                [program.binary, str(self.folder / "pgbouncer.ini")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=program.environment,
            )
        guard.watch(self._process.pid)
        await_port(self.port, self._process, START_S)
        return self

    def _write_config(self) -> None:
        users = self.folder / "users.txt"
        users.write_text(f'"{self._user}" "{self._password}"\n')
        lines = [
            "[databases]",
            f"{self._database} = {self._target}",
            "[pgbouncer]",
            "listen_addr = 127.0.0.1",
            f"listen_port = {self.port}",
            "unix_socket_dir =",
            "auth_type = trust",
            f"auth_file = {users}",
            "pool_mode = transaction",
            f"default_pool_size = {self._size}",
            "max_client_conn = 200",
        ]
        if os.geteuid() == 0:  # it refuses to stay root
            self.folder.chmod(0o755)
            lines.append("user = nobody")
        (self.folder / "pgbouncer.ini").write_text("\n".join(lines) + "\n")

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(START_S)
            self._process = None
        shutil.rmtree(self.folder, ignore_errors=True)
