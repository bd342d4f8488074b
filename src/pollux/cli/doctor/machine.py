"""Checks of the machine: Python, SQLite, clocks, zones, limits, and what may be installed besides."""

from __future__ import annotations

import ctypes
import os
import resource
import sys
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pollux.cli.doctor.finding import DoctorFinding, fail, ok, warn
from pollux.units import SECOND_MS, format_moment, format_ms
from pollux.version import __version__

PYTHON_MIN = (3, 11)
DRIFT_MS_MAX = 50  # between the wall clock and the monotonic one, while we look
EARLIEST_MS = 1_735_689_600_000  # 2025: a clock that shows less was never set
FILES_PER_SEAT, FILES_BESIDES = 4, 64
_INOTIFY = Path("/proc/sys/fs/inotify")
_TIMEX_BYTES, _STATUS_AT, _UNSYNCHRONISED = 256, 40, 0x40
_EXTRAS = (("uvloop", "fast", "a quicker event loop"), ("textual", "tui", "`pollux top`"))


class Stopwatch:
    """Both clocks at one moment; looked at again later, they must have gone equally far."""

    def __init__(self) -> None:
        self._wall, self._steady = time.time_ns(), time.monotonic_ns()

    def drift_ms(self) -> int:
        return ((time.time_ns() - self._wall) - (time.monotonic_ns() - self._steady)) // 1_000_000


def look_at_machine(*, seats: int) -> Iterator[DoctorFinding]:
    yield of_python(sys.version_info[:3])
    yield of_sqlite()
    yield of_zones()
    yield of_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0], seats)
    yield of_inotify()
    yield from of_extras()


def of_python(found: tuple[int, ...]) -> DoctorFinding:
    words = f"Python {'.'.join(map(str, found))}, Pollux {__version__}"
    if found < PYTHON_MIN:
        return fail("python", words, "install Python 3.11 or newer")
    return ok("python", words)


def of_sqlite() -> DoctorFinding:
    import apsw

    from pollux.store.sqlite.schema import SQLITE_MIN

    found = apsw.sqlite_lib_version()
    if tuple(int(part) for part in found.split(".")[:3]) < SQLITE_MIN:
        least = ".".join(map(str, SQLITE_MIN))
        seen = f"SQLite {found} can damage a database that several connections use (fixed in {least})"
        return fail("sqlite", seen, f"pip install 'apsw>={least}'")
    return ok("sqlite", f"SQLite {found}, apsw's own; the one of the system is not used")


def of_clock(watch: Stopwatch, now_ms: int) -> DoctorFinding:
    drift_ms = watch.drift_ms()
    if now_ms < EARLIEST_MS:
        return fail("clock", f"it shows {format_moment(now_ms)}", "set the clock, and let NTP keep it")
    if abs(drift_ms) > DRIFT_MS_MAX:
        seen = f"the wall clock jumped by {format_ms(drift_ms)} while we looked"
        return warn("clock", seen, "let NTP slew the clock rather than step it")
    return ok("clock", f"{format_moment(now_ms - now_ms % SECOND_MS)}; it goes as steadily as the monotonic clock")


def of_ntp(*, is_kept: bool | None) -> DoctorFinding:
    if is_kept is None:
        return ok("ntp", "it is unknown whether the clock is synchronised")
    if not is_kept:
        seen = "by the kernel, nothing synchronises the clock"
        return warn("ntp", seen, "run chrony, ntpd or systemd-timesyncd; on a virtual machine the host may do it")
    return ok("ntp", "the clock is synchronised")


def is_synchronised() -> bool | None:
    """The answer of the kernel (adjtimex, read only); None where it cannot be asked."""
    if not sys.platform.startswith("linux"):
        return None
    state = ctypes.create_string_buffer(_TIMEX_BYTES)  # all zero: read, change nothing
    try:
        answer = ctypes.CDLL(None, use_errno=True).adjtimex(state)
    except (OSError, AttributeError):
        return None
    if answer < 0:
        return None
    return not int.from_bytes(state.raw[_STATUS_AT : _STATUS_AT + 4], sys.byteorder) & _UNSYNCHRONISED


def of_zones() -> DoctorFinding:
    try:
        ZoneInfo("Europe/Berlin")
    except ZoneInfoNotFoundError:
        return fail("time zones", "there is no time zone data", "pip install tzdata")
    version = _version("tzdata")
    source = f"tzdata {version}" if version else "the system's"
    return ok("time zones", f"they are there ({source})")


def of_files(limit: int, seats: int) -> DoctorFinding:
    need = seats * FILES_PER_SEAT + FILES_BESIDES
    if limit == resource.RLIM_INFINITY or limit >= need:
        shown = "no limit" if limit == resource.RLIM_INFINITY else str(limit)
        return ok("open files", f"{shown}, enough for {seats} seats")
    seen = f"{limit} at most, but {seats} seats may need {need}"
    return warn("open files", seen, f"ulimit -n {need}, or LimitNOFILE={need} in the systemd unit")


def of_inotify() -> DoctorFinding:
    libc = ctypes.CDLL(None, use_errno=True)
    cure = "raise fs.inotify.max_user_instances with sysctl; without it other processes are noticed a second later"
    try:
        handle = libc.inotify_init1(os.O_CLOEXEC)
    except AttributeError:
        return warn("inotify", "this system has none", "nothing: other processes are noticed a second later")
    if handle < 0:
        return warn("inotify", f"it cannot be used: {os.strerror(ctypes.get_errno())}", cure)
    os.close(handle)
    limits = {name: _number(_INOTIFY / name) for name in ("max_user_instances", "max_user_watches")}
    return ok("inotify", "it works; " + ", ".join(f"{name} {value}" for name, value in limits.items() if value))


def of_extras() -> Iterator[DoctorFinding]:
    for package, extra, purpose in _EXTRAS:
        version = _version(package)
        if version:
            yield ok(package, f"{version}, for {purpose}")
        else:
            yield ok(package, f"not installed; it is for {purpose}", f'pip install "pollux-scheduler[{extra}]"')


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _number(path: Path) -> str:
    try:
        return path.read_text("ascii").strip()
    except (OSError, ValueError):
        return ""
