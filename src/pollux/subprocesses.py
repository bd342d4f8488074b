"""How does a process of ours live and end?  Under a warden (`process_guard.py`), so that nothing of it is left behind.

A `Process` is a command in a process group of its own.  `stop` cuts its lifeline, and so does the end of this process:
then the group is told to end, and killed after its grace.  Whoever waits gets how it ended; nothing waits in a thread.
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

STUCK_SECONDS = 5.0  # a warden that has not answered so long after the grace is killed itself
_WARDEN = str(Path(__file__).with_name("process_guard.py"))

Stream = int | IO[bytes] | None


class ProcessLimits(Struct, frozen=True):
    """What a process may use; None: as much as the node itself."""

    memory: int | None = None  # bytes of its own, each of its processes
    cpu: int | None = None  # seconds
    files: int | None = None  # open ones


class ProcessEnd(Struct, frozen=True):
    """How a process ended: one of these is set."""

    exit_code: int | None = None
    signal: int | None = None
    errno: int | None = None  # it could not be started
    is_unready: bool = False  # and not by its own fault: there was no room for it

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
    """A command under its warden, started at once; it belongs to the running event loop."""

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
        """`keep`: descriptors that it gets; `has_home`: HOME and TMPDIR are a private folder that goes with it."""
        self.pid: int | None = None  # of the command itself, once it is known
        self._grace_ms = grace_ms
        self._loop = asyncio.get_running_loop()
        self._control, theirs = socket.socketpair()
        words = _words(theirs.fileno(), limits, grace_ms, tempfile.gettempdir() if has_home else "", env)
        try:
            self._popen = subprocess.Popen(  # noqa: S603  what is run was checked by whoever asks
                [sys.executable, "-I", "-S", _WARDEN, *words, "--", *argv],
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
        """How it ended, when it has, with all that it started; to be asked by any number."""
        return await asyncio.shield(self._end)

    def stop(self) -> None:
        """Tell it to end and kill it after its grace, whoever waits for that; a second time is harmless."""
        if self._is_stopped or self._end.done():
            return
        self._is_stopped = True
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)
        self._backstop = self._loop.call_later(self._grace_ms / 1000 + STUCK_SECONDS, self._kill)

    async def _watch(self) -> ProcessEnd:
        said = b""
        try:
            with contextlib.suppress(OSError):
                while chunk := await self._loop.sock_recv(self._control, 256):
                    said += chunk
                    self._learn(said)
        finally:
            if self._backstop is not None:
                self._backstop.cancel()
            self._control.close()
        code = self._popen.wait()  # it has closed its side, which it does by ending
        return _ended(said.decode().splitlines(), code)

    def _learn(self, said: bytes) -> None:
        first, line, _ = said.partition(b"\n")
        if self.pid is None and line and first.startswith(b"pid "):
            self.pid = int(first[4:])

    def _kill(self) -> None:
        """The warden itself does not answer (somebody stopped it): end both; the command dies with its warden."""
        for pid in (self.pid, self._popen.pid):
            if pid is not None:
                with contextlib.suppress(OSError):
                    os.killpg(pid, signal.SIGKILL)


def _words(control: int, limits: ProcessLimits, grace_ms: int, home: str, env: Mapping[str, str]) -> list[str]:
    """What the warden is told."""
    words = {"control": control, "node": os.getpid(), "grace": grace_ms, "home": home, **msgspec.structs.asdict(limits)}
    if "LC_CTYPE" not in env:
        words["unset"] = "LC_CTYPE"  # Python sets it for itself where the locale is C
    return [f"{name}={value}" for name, value in words.items() if value is not None]


def _ended(said: list[str], code: int) -> ProcessEnd:
    """What the warden said; the last word counts, but not starting at all goes before it."""
    told = dict(line.split(" ", 1) for line in said)
    if "unready" in told:
        return ProcessEnd(errno=int(told["unready"]), is_unready=True)
    if "error" in told:
        return ProcessEnd(errno=int(told["error"]))
    if "exit" in told:
        return ProcessEnd(exit_code=int(told["exit"]))
    return ProcessEnd(signal=int(told["signal"]) if "signal" in told else max(0, -code) or signal.SIGKILL)
