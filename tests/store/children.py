"""Programs for other processes: `python -m tests.store.children <name> <database> ...`, started by `start`."""

import asyncio
import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

import apsw

from pollux.errors import StoreRefused
from pollux.model import Cause, Done, Job, Outcome, run_of
from pollux.store.contract import JobPut, Settlement
from pollux.store.relational.sql import Migration
from pollux.store.sqlite import SqliteStore, schema
from pollux.store.sqlite import store as module

ROOT = Path(__file__).parents[2]
JOB = Job(id="job", handler="poll")
LATER = Migration(
    2,
    "0002_planted.sql",
    (
        "CREATE TABLE planted (n INTEGER PRIMARY KEY, id TEXT NOT NULL) STRICT",
        "INSERT INTO planted (id) SELECT id FROM runs ORDER BY seq",
        "ALTER TABLE runs ADD COLUMN planted TEXT",
        "UPDATE runs SET planted = (SELECT planted.id FROM planted WHERE planted.id = runs.id)",
        "DROP TABLE planted",
    ),
)


def start(name: str, *args: object, **env: str) -> subprocess.Popen[str]:
    """The child's standard output is a pipe; what it complains about goes where ours goes."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.store.children", name, *map(str, args)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **env},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def say(word: object) -> None:
    print(word, flush=True)


async def until(is_so, *, patience_s: float = 60.0) -> None:
    """Come back once it is so; red if that takes too long."""
    async with asyncio.timeout(patience_s):
        while not is_so():  # noqa: ASYNC110 - what is waited for happens in another thread or process
            await asyncio.sleep(0.001)


def sleeps(store: SqliteStore) -> bool:
    """Does somebody wait in this store who has found nothing?"""
    listener = store.backend.opened.listener
    return bool(listener._waiters) and listener._watch._mark >= 0


def in_writer(store: SqliteStore, verb):
    """Run a verb of ours in the writer's thread."""
    return store.backend.send(store.backend.lanes().writer, verb)


def some_runs(first: int, count: int):
    now_ms = time.time_ns() // 1_000_000
    return [run_of(JOB, now_ms, Cause.ENQUEUED, {"n": n}, id=f"run-{n:07}") for n in range(first, first + count)]


async def drain(path: str, node: str) -> None:
    """Claim and settle until nothing is left; say every run's id."""
    store = SqliteStore(path)
    await store.open()
    say("open")
    sys.stdin.readline()
    number = 0
    while True:
        number += 1
        claimed = await store.claim(node=node, token=f"{node}-{number}", limit=20, lease_ms=60_000)
        if not claimed.runs:
            break
        now_ms = claimed.now_ms
        await store.settle([Settlement(run.id, run.token, Done(), Outcome(now_ms, now_ms)) for run in claimed.runs])
        for run in claimed.runs:
            say(run.id)
    await store.close()


async def wait(path: str) -> None:
    """Wait for one run, for long, and never look up by itself: only the bell can end it.  Say what came."""
    module.LOOK_AGAIN_MS = module.VERSION_MS = 1_000_000
    store = SqliteStore(path)
    await store.open()
    waiting = asyncio.ensure_future(
        store.claim(node="waiter", token="waiter", limit=1, lease_ms=60_000, wait_ms=100_000)
    )
    await until(lambda: sleeps(store))
    say("waits")
    claimed = await waiting
    say([run.id for run in claimed.runs])
    await store.close()


def hold(path: str) -> None:
    """Hold the write lock until told."""
    fd = os.open(f"{path}.lock", os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    os.pwrite(fd, str(os.getpid()).ljust(12).encode(), 0)
    say("held")
    sys.stdin.readline()


def read_on(path: str) -> None:
    """Begin to read, as another program would, and do not end it until told."""
    connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)
    connection.execute("BEGIN")
    connection.execute("SELECT count(*) FROM jobs").fetchall()
    say("reads")
    sys.stdin.readline()
    connection.close()


async def write(path: str) -> None:
    """Enqueue, claim and settle as fast as can be, saying what was answered, until killed."""
    store = SqliteStore(path)
    await store.open()
    await store.put_jobs([JobPut(JOB)])
    say("open")
    for number in range(0, 10_000_000, 10):
        await store.enqueue(some_runs(number, 10))
        claimed = await store.claim(node="writer", token=f"t-{number}", limit=10, lease_ms=60_000)
        await store.settle([Settlement(run.id, run.token, Done()) for run in claimed.runs[:5]])
        say(number)


async def make(path: str) -> None:
    """Open, which makes the database; then use it once."""
    store = SqliteStore(path)
    await store.open()
    await store.put_jobs([JobPut(JOB)])
    await store.close()
    say("made")


async def make_later(path: str) -> None:
    """As `make`, with the release that has one migration more."""
    whole = schema.migrations()
    schema.migrations = lambda: [*whole, LATER]
    await make(path)


async def refuse(path: str) -> None:
    """Say what the store answers to being opened by somebody who is nobody."""
    if os.getuid() == 0:
        os.setuid(65534)
    try:
        await SqliteStore(path).open()
    except StoreRefused as error:
        say(f"{type(error).__name__}: {error}")


class _Listening(apsw.VFS):
    """The file system of every connection in this process, as it is, but for saying when it syncs a log."""

    def xOpen(self, name, flags):  # noqa: N802 - SQLite's name
        return _ListeningFile("unix", name, flags)


class _ListeningFile(apsw.VFSFile):
    def __init__(self, inherit, name, flags) -> None:
        super().__init__(inherit, name, flags)
        self._is_log = bool(flags[0] & apsw.SQLITE_OPEN_WAL)

    def xSync(self, flags):  # noqa: N802 - SQLite's name
        if self._is_log:
            time.sleep(0.02)  # a slow disk: who answers before it is done is seen
        super().xSync(flags)
        if self._is_log:
            os.write(1, b"synced\n")


async def answered(path: str, count: str) -> None:
    """Write `count` times, one after the other; say when asked, when the log is synced, and when answered."""
    listening = _Listening("listening", "unix", makedefault=True)
    store = SqliteStore(path)
    await store.open()
    await store.put_jobs([JobPut(JOB)])
    for number in range(int(count)):
        await asyncio.sleep(0.05)  # a sync that comes after its answer is said before the next is asked
        os.write(1, b"asked\n")
        await store.enqueue(some_runs(number, 1))
        os.write(1, b"answered\n")
    await store.close()
    listening.unregister()


if __name__ == "__main__":
    program = globals()[sys.argv[1]](*sys.argv[2:])
    if program is not None:
        asyncio.run(program)
