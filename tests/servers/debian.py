"""Programs that no wheel carries: from the machine, else from Debian's package, only unpacked.

`apt-get download` needs no rights and changes nothing on the machine; what it brings is unpacked once, beside the
packages of this Python, and run from there.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

FETCH_S = 240.0
DEPTH_MAX = 4  # libraries of libraries, and theirs


class Program(NamedTuple):
    """A binary, and the folders of the libraries that it needs besides those of the machine."""

    binary: str
    libraries: str = ""

    @property
    def environment(self) -> dict[str, str] | None:
        return {**os.environ, "LD_LIBRARY_PATH": self.libraries} if self.libraries else None


class Parcel(NamedTuple):
    """A program, as a path under the root, and the packages that have it."""

    path: str
    packages: tuple[str, ...]
    called: str = ""  # where several have programs of one name

    @property
    def name(self) -> str:
        return self.called or Path(self.path).name

    @property
    def cure(self) -> str:
        return f"install the package {self.packages[0]}, or let apt-get reach a mirror of Debian"


IP = Parcel("usr/bin/ip", ("iproute2",))
PGBOUNCER = Parcel("usr/sbin/pgbouncer", ("pgbouncer",))
POSTGRES = {
    major: Parcel(f"usr/lib/postgresql/{major}/bin/postgres", (f"postgresql-{major}",), f"postgresql-{major}")
    for major in (15, 17)  # a release of Debian has one of them
}
REDIS = Parcel("usr/bin/redis-server", ("redis-server", "redis-tools"))
CHROMIUM = Parcel("usr/lib/chromium/chromium-headless-shell", ("chromium-headless-shell", "chromium-common"))
PROMTOOL = Parcel("usr/bin/promtool", ("prometheus",))


def find_program(parcel: Parcel) -> Program:
    """FileNotFoundError, with the cure, if it is not there and cannot be fetched."""
    for place in (shutil.which(parcel.name), f"/{parcel.path}"):
        if place and os.access(place, os.X_OK):
            return Program(place)
    folder = _shelf() / parcel.name
    with (_shelf() / f"{parcel.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other workers of the same suite wait for the first
        if not (folder / "whole").exists():
            shutil.rmtree(folder, ignore_errors=True)
            _fetch(parcel, folder)
            (folder / "whole").touch()
    return Program(str(_place(parcel, folder)), _libraries(folder))


def _shelf() -> Path:
    """Beside the packages of this Python, which `make clean` removes; else with the user's own caches."""
    for place in (Path(sys.prefix) / "share" / "pollux-tests", Path.home() / ".cache" / "pollux-tests"):
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(place, os.W_OK):
            return place
    return Path(tempfile.mkdtemp(prefix="pollux-tests-"))


def _place(parcel: Parcel, folder: Path) -> Path:
    """Packages from before the two trees were one have it without `usr`."""
    old = folder / parcel.path.removeprefix("usr/")
    return old if old.exists() else folder / parcel.path


def _libraries(folder: Path) -> str:
    """With the folders in which some packages keep libraries that only their own may use."""
    own = [path for base in ("usr/lib", "lib") for path in sorted((folder / base).glob("*-linux-*"))]
    inner = sorted({path.parent for place in own for path in place.glob("*/lib*.so*")})
    return ":".join(map(str, [*own, *inner]))


def _fetch(parcel: Parcel, folder: Path) -> None:
    folder.mkdir(parents=True)
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        raise FileNotFoundError(f"no {parcel.name} here, and no apt-get to fetch it with; cure: {parcel.cure}")
    own = _own_lists(parcel, folder)
    _download(parcel, folder, parcel.packages, own)
    packages, known = parcel.packages, _installed(folder) | {*parcel.packages}
    for _ in range(DEPTH_MAX):
        if not packages or not _missing(parcel, folder):
            break
        told = _run(["apt-cache", *own, "depends", "--important", *packages], folder).stdout
        named = {*re.findall(r"Depends: ((?:lib|lua-)[\w.+-]+)", told)} - known
        packages = tuple(sorted(name for name in named if not name.startswith("libc6")))
        known |= named
        if packages:
            _download(parcel, folder, packages, own)
    if needed := _missing(parcel, folder):
        raise FileNotFoundError(f"{parcel.name} was fetched, but needs {', '.join(needed)}; cure: {parcel.cure}")


def _installed(folder: Path) -> set[str]:
    """Packages of this machine: what they hold is found where it is."""
    told = _run(["dpkg-query", "-W", "-f", "${db:Status-Status} ${Package}\n"], folder).stdout
    return {*re.findall(r"^installed (\S+)$", told, re.MULTILINE)}


def _own_lists(parcel: Parcel, folder: Path) -> list[str]:
    """Options of apt: none if it knows the package, else those that keep lists of its own here, without rights."""
    known = _run(["apt-cache", "policy", parcel.packages[0]], folder).stdout
    if re.search(r"Candidate: [^(\s]", known):
        return []
    for name in ("lists/partial", "cache/archives/partial"):
        (folder / "apt" / name).mkdir(parents=True)
    own = ["-o", f"Dir::State::lists={folder}/apt/lists", "-o", f"Dir::Cache={folder}/apt/cache"]
    own += ["-o", "Debug::NoLocking=true", "-o", f"APT::Sandbox::User={'root' if os.geteuid() == 0 else ''}"]
    _run(["apt-get", *own, "-q", "update"], folder)
    return own


def _download(parcel: Parcel, folder: Path, packages: Sequence[str], own: Sequence[str]) -> None:
    done = _run(["apt-get", *own, "-q", "download", *packages], folder)
    found = list(folder.glob("*.deb"))
    if not found:
        words = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
        raise FileNotFoundError(f"no {parcel.name} here, and apt-get does not fetch it ({words}); cure: {parcel.cure}")
    for package in found:
        subprocess.run(["dpkg-deb", "-x", str(package), str(folder)], check=True, timeout=FETCH_S)
        package.unlink()


def _missing(parcel: Parcel, folder: Path) -> list[str]:
    """Libraries that the program does not find."""
    told = subprocess.run(
        ["ldd", str(_place(parcel, folder))],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "LD_LIBRARY_PATH": _libraries(folder)},
        timeout=FETCH_S,
    )
    return re.findall(r"(\S+) => not found", told.stdout)


def _run(command: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, timeout=FETCH_S)
