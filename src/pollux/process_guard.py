"""Process guard: a small process between a node and a command, which kills the command with everything it started.

    node ──── control ────▶ guard ──── own process group ────▶ the command and its descendants
         (closed: stop)           (adopts orphans)

    python -I -S process_guard.py control=5 node=4711 grace=1000 [memory= cpu= files= home= unset=] -- argv ...

The node writes nothing to the control socket.  When its side closes, by request or because the node died, the guard
sends SIGTERM to the process group, waits for the grace and kills what is left.  It writes `pid N`, then one result:
`exit N`, `signal N`, `error N` (the command could not be started) or `unready N` (no resources for a process or its
folder).  Nothing that the command started outlives it: not in its group, and on Linux, where orphans can be adopted,
not in a session of its own.

It imports nothing else of Pollux and starts in a few milliseconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import select
import signal
import sys
import time

LIMITS = {"memory": resource.RLIMIT_DATA, "cpu": resource.RLIMIT_CPU, "files": resource.RLIMIT_NOFILE}
SWEEP_SECONDS = 2.0  # how long the last of its children may take to die of SIGKILL
POLL_SECONDS = 0.005
_SET_DEATH_SIGNAL, _ADOPT_ORPHANS = 1, 36  # options of Linux's prctl
_STOP_SIGNALS = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGTERM})


def main() -> None:
    split = sys.argv.index("--")
    options = dict(word.split("=", 1) for word in sys.argv[1:split])
    control = int(options["control"])
    os.set_inheritable(control, False)  # noqa: FBT003  of the standard library
    wakeups = _wakeups()
    _prctl(_SET_DEATH_SIGNAL, signal.SIGHUP)
    _prctl(_ADOPT_ORPHANS, 1)
    if os.getppid() != int(options["node"]):
        return  # the node died before the death signal was set
    home = ""
    try:
        home = _make_home(options["home"]) if options.get("home") else ""
        pid = _start(sys.argv[split + 1 :], options, control, home)
    except OSError as error:  # no space for the folder, or too many processes
        _remove(home)
        _report(control, f"unready {error.errno}")
        return
    _report(control, f"pid {pid}")
    status = _watch(pid, control, wakeups, grace=int(options["grace"]) / 1000)
    _sweep(pid)
    _remove(home)
    code = os.waitstatus_to_exitcode(status)
    _report(control, f"exit {code}" if code >= 0 else f"signal {-code}")


def _start(argv: list[str], options: dict[str, str], control: int, home: str) -> int:
    pid = os.fork()
    if pid:
        with contextlib.suppress(OSError):  # the child does so too: the group exists for whichever runs first
            os.setpgid(pid, pid)
        return pid
    try:
        os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        for number in (*_STOP_SIGNALS, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        _prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
        os.environ.pop(options.get("unset", ""), None)
        if home:
            os.environ["HOME"] = os.environ["TMPDIR"] = home
        _limit(resource.RLIMIT_CORE, 0)
        for name, kind in LIMITS.items():
            if name in options:
                _limit(kind, int(options[name]))
        os.execvpe(argv[0], argv, os.environ)  # noqa: S606  argv, never a shell
    except OSError as error:
        _report(control, f"error {error.errno}")
    finally:
        os._exit(127)


def _limit(kind: int, value: int) -> None:
    """Set a resource limit, within the hard limit of this process."""
    _, allowed = resource.getrlimit(kind)
    is_unlimited = allowed == resource.RLIM_INFINITY
    soft = value if is_unlimited else min(value, allowed)
    spare = 1 if kind == resource.RLIMIT_CPU and (is_unlimited or soft < allowed) else 0  # SIGXCPU before SIGKILL
    resource.setrlimit(kind, (soft, soft + spare))


def _watch(pid: int, control: int, wakeups: int, *, grace: float) -> int:
    """Wait for the command and return its status; on a stop request end its group, by force after the grace."""
    poller = select.poll()
    poller.register(control, select.POLLIN)
    poller.register(wakeups, select.POLLIN)
    is_stopping = False
    kill_at: float | None = None
    while True:
        status = _reap(pid)
        if status is not None:
            return status
        rest = None if kill_at is None else max(0.0, kill_at - time.monotonic()) * 1000
        for fd, _ in poller.poll(rest):
            is_stopping |= _is_stop_request(fd, control)
        if is_stopping and kill_at is None:
            poller.unregister(control)
            is_stopping, kill_at = False, time.monotonic() + grace
            _kill_group(pid, signal.SIGTERM if grace > 0 else signal.SIGKILL)
        if kill_at is not None and time.monotonic() >= kill_at:
            _kill_group(pid, signal.SIGKILL)
            kill_at = time.monotonic() + SWEEP_SECONDS


def _is_stop_request(fd: int, control: int) -> bool:
    try:
        received = os.read(fd, 4096)
    except OSError:
        return fd == control
    return not received if fd == control else not _STOP_SIGNALS.isdisjoint(received)


def _reap(pid: int) -> int | None:
    """The status of the command if it has ended; reaps adopted orphans on the way."""
    while True:
        try:
            found, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return 127 << 8  # its status was already reaped, which does not happen
        if found == pid:
            return status
        if not found:
            return None


def _sweep(pid: int) -> None:
    """Kill what the command left behind: its group, then adopted orphans until there are none."""
    _kill_group(pid, signal.SIGKILL)
    until = time.monotonic() + SWEEP_SECONDS
    while time.monotonic() < until:
        try:
            found, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not found:
            for child in _children():
                with contextlib.suppress(OSError):
                    os.kill(child, signal.SIGKILL)
            time.sleep(POLL_SECONDS)


def _children() -> list[int]:
    me, found = str(os.getpid()).encode(), []
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():  # noqa: PTH112, PTH208  pathlib costs 10 ms
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as stat:  # noqa: PTH123
                # `pid (name) state parent ...`: the name may contain parentheses.
                if stat.read().rpartition(b")")[2].split()[1] == me:
                    found.append(int(name))
    return found


def _kill_group(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(OSError):
        os.killpg(pid, number)


def _wakeups() -> int:
    """A pipe that receives the number of every signal of this process."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in (*_STOP_SIGNALS, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    return reader


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _make_home(folder: str) -> str:
    """Create a private folder, removed after the command has ended."""
    home = f"{folder}/pollux-{os.getpid()}-{os.urandom(6).hex()}"
    os.mkdir(home, 0o700)  # noqa: PTH102
    return home


def _remove(home: str) -> None:
    for folder, folders, files in os.walk(home, topdown=False) if home else ():
        for name in (*files, *folders):
            path = f"{folder}/{name}"
            with contextlib.suppress(OSError):
                os.rmdir(path) if name in folders and not os.path.islink(path) else os.unlink(path)  # noqa: PTH106, PTH108, PTH114
    if home:
        with contextlib.suppress(OSError):
            os.rmdir(home)  # noqa: PTH106


def _report(control: int, words: str) -> None:
    with contextlib.suppress(OSError):  # the node has died
        os.write(control, f"{words}\n".encode())


if __name__ == "__main__":
    main()
