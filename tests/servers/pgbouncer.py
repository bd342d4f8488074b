"""Where does a PgBouncer for the tests come from?  The machine's own, else Debian's package, which is only unpacked.

No wheel carries it.  `apt-get download` needs no rights and changes nothing on the machine; what it brings is unpacked
once, beside the packages of this Python, and run from there.  It runs in transaction mode: a connection is ours from
BEGIN to COMMIT, and between two statements it may be another one.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from tests.servers.ports import free_port
from tests.servers.redis import await_port

START_S = 60.0
FETCH_S = 240.0
CURE = "install the package pgbouncer, or let apt-get reach a mirror of Debian"


class PgBouncer:
    """A pooler on loopback before a server, with few connections to it, so that clients must share them."""

    def __init__(self, url: str, *, size: int = 3, folder: Path | None = None) -> None:
        there = urlsplit(url)
        self.folder = folder or Path(tempfile.mkdtemp(prefix="pollux-pgbouncer-"))
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
        binary, libraries = find_binary()
        self._write_config()
        environment = {**os.environ, "LD_LIBRARY_PATH": libraries} if libraries else None
        with (self.folder / "out.log").open("ab") as log:
            self._process = subprocess.Popen(
                [binary, str(self.folder / "pgbouncer.ini")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
            )
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


def find_binary() -> tuple[str, str]:
    """The program, and the folders of the libraries that it needs besides those of the machine."""
    for place in (shutil.which("pgbouncer"), "/usr/sbin/pgbouncer"):
        if place and os.access(place, os.X_OK):
            return place, ""
    folder = _shelf() / "pgbouncer"
    with (_shelf() / "pgbouncer.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other workers of the same suite wait for the first
        if not (folder / "whole").exists():
            shutil.rmtree(folder, ignore_errors=True)
            _fetch(folder)
            (folder / "whole").touch()
    return str(folder / "usr" / "sbin" / "pgbouncer"), _libraries(folder)


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


def _libraries(folder: Path) -> str:
    return ":".join(str(path) for base in ("usr/lib", "lib") for path in sorted((folder / base).glob("*-linux-*")))


def _fetch(folder: Path) -> None:
    folder.mkdir(parents=True)
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        raise FileNotFoundError(f"no pgbouncer here, and no apt-get to fetch it with; cure: {CURE}")
    own = _own_lists(folder)
    _download(folder, ["pgbouncer"], own)
    needed = _missing(folder)
    if needed:
        told = _run(["apt-cache", *own, "depends", "--important", "pgbouncer"], folder).stdout
        packages = re.findall(r"Depends: (lib[\w.+-]+)", told)
        _download(folder, [name for name in packages if not name.startswith("libc6")], own)
    if needed := _missing(folder):
        raise FileNotFoundError(f"pgbouncer was fetched, but needs {', '.join(needed)}; cure: {CURE}")


def _own_lists(folder: Path) -> list[str]:
    """What apt must be told: nothing if it knows the package, else to keep lists of its own here, with no rights."""
    known = _run(["apt-cache", "policy", "pgbouncer"], folder).stdout
    if re.search(r"Candidate: [^(\s]", known):
        return []
    for name in ("lists/partial", "cache/archives/partial"):
        (folder / "apt" / name).mkdir(parents=True)
    own = ["-o", f"Dir::State::lists={folder}/apt/lists", "-o", f"Dir::Cache={folder}/apt/cache"]
    own += ["-o", "Debug::NoLocking=true", "-o", f"APT::Sandbox::User={'root' if os.geteuid() == 0 else ''}"]
    _run(["apt-get", *own, "-q", "update"], folder)
    return own


def _download(folder: Path, packages: Sequence[str], own: Sequence[str]) -> None:
    done = _run(["apt-get", *own, "-q", "download", *packages], folder)
    found = list(folder.glob("*.deb"))
    if not found:
        words = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
        raise FileNotFoundError(f"no pgbouncer here, and apt-get does not fetch it ({words}); cure: {CURE}")
    for package in found:
        subprocess.run(["dpkg-deb", "-x", str(package), str(folder)], check=True, timeout=FETCH_S)
        package.unlink()


def _missing(folder: Path) -> list[str]:
    """Libraries that the program does not find."""
    environment = {**os.environ, "LD_LIBRARY_PATH": _libraries(folder)}
    told = subprocess.run(
        ["ldd", str(folder / "usr" / "sbin" / "pgbouncer")],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        timeout=FETCH_S,
    )
    return re.findall(r"(\S+) => not found", told.stdout)


def _run(command: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, timeout=FETCH_S)
