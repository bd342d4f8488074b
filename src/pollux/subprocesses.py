"""Child processes under a process guard (`process_guard.py`), so that none of their descendants is left behind.

A `Process` is a command in a process group of its own.  `stop`, or the end of this process, closes the control socket:
then the guard sends SIGTERM to the group and kills it after its grace.  Waiting for the end needs no thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

import msgspec
from msgspec import Struct

STUCK_SECONDS = 5.0  # a guard that has not answered so long after the grace is killed itself
_GUARD = str(Path(__file__).with_name("process_guard.py"))

Stream = int | IO[bytes] | None


class ProcessLimits(Struct, frozen=True):
    """Resource limits of a process; None: the limit of the node itself."""

    memory: int | None = None  # bytes, for each of its processes
    cpu: int | None = None  # seconds
    files: int | None = None  # open files


class ProcessEnd(Struct, frozen=True):
    """How a process ended: one of `exit_code`, `signal` and `errno` is set."""

    exit_code: int | None = None
    signal: int | None = None
    errno: int | None = None  # it could not be started
    is_unready: bool = False  # and not by its own fault: the machine lacked resources

    @property
    def words(self) -> str:
        if self.errno is not None:
            return f"could not be started: {os.strerror(self.errno)}"
        return f"ended with exit code {self.exit_code}" if self.signal is None else f"was killed by {signal_name(self)}"


def signal_name(ended: ProcessEnd) -> str:
    try:
        return signal.Signals(ended.signal or 0).name
    except ValueError:
        return f"signal {ended.signal}"


class Process:
    """A command under its guard, started at once; it belongs to the running event loop."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str | None = None,
        limits: ProcessLimits = ProcessLimits(),  # noqa: B008  a frozen value
        grace_ms: int = 0,
        has_home: bool = False,
        stdin: Stream = subprocess.DEVNULL,
        stdout: Stream = None,
        stderr: Stream = None,
        keep: Sequence[int] = (),
    ) -> None:
        """`keep`: descriptors it inherits; `has_home`: HOME and TMPDIR are a private folder, removed afterwards."""
        self.pid: int | None = None  # of the command itself, once it is known
        self._grace_ms = grace_ms
        self._loop = asyncio.get_running_loop()
        self._control, theirs = socket.socketpair()
        options = _guard_options(theirs.fileno(), limits, grace_ms, tempfile.gettempdir() if has_home else "", env)
        try:
            self._popen = subprocess.Popen(  # noqa: S603  the caller has checked the command
                [sys.executable, "-I", "-S", _GUARD, *options, "--", *argv],
                env=dict(env),
                cwd=cwd,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                pass_fds=(theirs.fileno(), *keep),
                start_new_session=True,
            )
        except BaseException:
            self._control.close()
            raise
        finally:
            theirs.close()
        self._control.setblocking(False)  # noqa: FBT003  of the standard library
        self._is_stopped = False
        self._backstop: asyncio.TimerHandle | None = None
        self._end = self._loop.create_task(self._watch(), name=f"pollux process {self._popen.pid}")

    @property
    def has_ended(self) -> bool:
        return self._end.done()

    async def ended(self) -> ProcessEnd:
        """Wait until it and all that it started have ended; any number of callers may wait."""
        return await asyncio.shield(self._end)

    def stop(self) -> None:
        """Request its end, by force after its grace; a second call does nothing."""
        if self._is_stopped or self._end.done():
            return
        self._is_stopped = True
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)
        self._backstop = self._loop.call_later(self._grace_ms / 1000 + STUCK_SECONDS, self._kill)

    async def _watch(self) -> ProcessEnd:
        received = b""
        try:
            with contextlib.suppress(OSError):
                while chunk := await self._loop.sock_recv(self._control, 256):
                    received += chunk
                    self._read_pid(received)
        finally:
            if self._backstop is not None:
                self._backstop.cancel()
            self._control.close()
        code = self._popen.wait()  # returns at once: the guard closes its side by exiting
        return _process_end(received.decode().splitlines(), code)

    def _read_pid(self, received: bytes) -> None:
        first, newline, _ = received.partition(b"\n")
        if self.pid is None and newline and first.startswith(b"pid "):
            self.pid = int(first[4:])

    def _kill(self) -> None:
        """Kill both, as the guard does not answer (it got SIGSTOP); the command dies with its guard."""
        for pid in (self.pid, self._popen.pid):
            if pid is not None:
                with contextlib.suppress(OSError):
                    os.killpg(pid, signal.SIGKILL)


def _guard_options(control: int, limits: ProcessLimits, grace_ms: int, home: str, env: Mapping[str, str]) -> list[str]:
    """The guard's command line options."""
    options = {"control": control, "node": os.getpid(), "grace": grace_ms, "home": home}
    options |= msgspec.structs.asdict(limits)
    if "LC_CTYPE" not in env:
        options["unset"] = "LC_CTYPE"  # Python sets it for itself where the locale is C
    return [f"{name}={value}" for name, value in options.items() if value is not None]


def _process_end(lines: list[str], code: int) -> ProcessEnd:
    """The end that the guard reported; a failed start takes precedence over the exit that follows it."""
    reports = dict(line.split(" ", 1) for line in lines)
    if "unready" in reports:
        return ProcessEnd(errno=int(reports["unready"]), is_unready=True)
    if "error" in reports:
        return ProcessEnd(errno=int(reports["error"]))
    if "exit" in reports:
        return ProcessEnd(exit_code=int(reports["exit"]))
    return ProcessEnd(signal=int(reports["signal"]) if "signal" in reports else max(0, -code) or signal.SIGKILL)
