"""Who ends a process for good, with everything it started?  Its warden: a small process between the node and it.

    node ──── control ────▶ warden ──── own process group ────▶ the command, and whatever it starts
         (closed: end it)          (orphans come to the warden)

    python -I -S process_guard.py control=5 node=4711 grace=1000 [memory= cpu= files= home= unset=] -- argv ...

The node says nothing on the control socket; when its side closes, because it wants the end or because it is dead, the
warden tells the group to end, waits for the grace and kills what is left.  It answers `pid N`, then how it ended:
`exit N`, `signal N`, `error N` if it could not be started, `unready N` if there was no room for it at all.  When the
command has ended, nothing that it started lives on: not in its group, and not in a session of its own (on Linux, where
orphans can be adopted).

It imports nothing of ours and starts in a few milliseconds.
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
LOOK_SECONDS = 0.005
_SET_DEATH_SIGNAL, _ADOPT_ORPHANS = 1, 36  # of Linux's prctl
_TOLD_TO_END = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGTERM})


def main() -> None:
    split = sys.argv.index("--")
    options = dict(word.split("=", 1) for word in sys.argv[1:split])
    control = int(options["control"])
    os.set_inheritable(control, False)  # noqa: FBT003  of the standard library
    wakeups = _wakeups()
    _ask_kernel(_SET_DEATH_SIGNAL, signal.SIGHUP)
    _ask_kernel(_ADOPT_ORPHANS, 1)
    if os.getppid() != int(options["node"]):
        return  # it died before we could ask to be told
    home = ""
    try:
        home = _make_home(options["home"]) if options.get("home") else ""
        pid = _start(sys.argv[split + 1 :], options, control, home)
    except OSError as error:  # no room for its folder, or for one more process
        _remove(home)
        _say(control, f"unready {error.errno}")
        return
    _say(control, f"pid {pid}")
    status = _watch(pid, control, wakeups, grace=int(options["grace"]) / 1000)
    _sweep(pid)
    _remove(home)
    code = os.waitstatus_to_exitcode(status)
    _say(control, f"exit {code}" if code >= 0 else f"signal {-code}")


def _start(argv: list[str], options: dict[str, str], control: int, home: str) -> int:
    pid = os.fork()
    if pid:
        with contextlib.suppress(OSError):  # it does so itself; whoever is first
            os.setpgid(pid, pid)
        return pid
    try:
        os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        for number in (*_TOLD_TO_END, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        _ask_kernel(_SET_DEATH_SIGNAL, signal.SIGKILL)
        os.environ.pop(options.get("unset", ""), None)
        if home:
            os.environ["HOME"] = os.environ["TMPDIR"] = home
        _limit(resource.RLIMIT_CORE, 0)
        for name, kind in LIMITS.items():
            if name in options:
                _limit(kind, int(options[name]))
        os.execvpe(argv[0], argv, os.environ)  # noqa: S606  argv, never a shell
    except OSError as error:
        _say(control, f"error {error.errno}")
    finally:
        os._exit(127)


def _limit(kind: int, value: int) -> None:
    """At most so much, and never more than the machine allows already."""
    _, allowed = resource.getrlimit(kind)
    is_free = allowed == resource.RLIM_INFINITY
    soft = value if is_free else min(value, allowed)
    spare = 1 if kind == resource.RLIMIT_CPU and (is_free or soft < allowed) else 0  # told before it is killed
    resource.setrlimit(kind, (soft, soft + spare))


def _watch(pid: int, control: int, wakeups: int, *, grace: float) -> int:
    """Until it has ended; told to end it, tell the group, and kill it when the grace is over."""
    poller = select.poll()
    poller.register(control, select.POLLIN)
    poller.register(wakeups, select.POLLIN)
    is_told = False
    kill_at: float | None = None
    while True:
        status = _reap(pid)
        if status is not None:
            return status
        rest = None if kill_at is None else max(0.0, kill_at - time.monotonic()) * 1000
        for fd, _ in poller.poll(rest):
            is_told |= _is_end(fd, control)
        if is_told and kill_at is None:
            poller.unregister(control)
            is_told, kill_at = False, time.monotonic() + grace
            _kill_group(pid, signal.SIGTERM if grace > 0 else signal.SIGKILL)
        if kill_at is not None and time.monotonic() >= kill_at:
            _kill_group(pid, signal.SIGKILL)
            kill_at = time.monotonic() + SWEEP_SECONDS


def _is_end(fd: int, control: int) -> bool:
    try:
        said = os.read(fd, 4096)
    except OSError:
        return fd == control
    return not said if fd == control else not _TOLD_TO_END.isdisjoint(said)


def _reap(pid: int) -> int | None:
    """The status of the command if it has ended; adopted orphans that have ended are let go."""
    while True:
        try:
            found, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return 127 << 8  # somebody else took its status: nobody does
        if found == pid:
            return status
        if not found:
            return None


def _sweep(pid: int) -> None:
    """Kill what the command left behind: its group, then orphans that came to us, until there is none."""
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
            time.sleep(LOOK_SECONDS)


def _children() -> list[int]:
    me, found = str(os.getpid()).encode(), []
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():  # noqa: PTH112, PTH208  pathlib costs 10 ms
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as stat:  # noqa: PTH123
                # `pid (name) state parent ...`: the name may hold anything, also a parenthesis.
                if stat.read().rpartition(b")")[2].split()[1] == me:
                    found.append(int(name))
    return found


def _kill_group(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(OSError):
        os.killpg(pid, number)


def _wakeups() -> int:
    """A descriptor that gets the number of every signal we hear."""
    heard, ring = os.pipe()
    os.set_blocking(heard, False)
    os.set_blocking(ring, False)
    signal.set_wakeup_fd(ring, warn_on_full_buffer=False)
    for number in (*_TOLD_TO_END, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    return heard


def _ask_kernel(question: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(question, value, 0, 0, 0)


def _make_home(folder: str) -> str:
    """A private folder that goes with the command."""
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


def _say(control: int, words: str) -> None:
    with contextlib.suppress(OSError):  # the node is gone
        os.write(control, f"{words}\n".encode())


if __name__ == "__main__":
    main()
