"""Several processes on one file: real ones, with real locks, wake-ups and deaths."""

import asyncio
import os
import signal
import time

import apsw
import pytest

from pollux.errors import StoreBusy, StoreError
from pollux.model import LIVE, Cause, Run, RunState, run_of
from pollux.store.contract import Answer, JobPut
from pollux.store.sqlite import SqliteStore, schema
from tests.store.children import JOB, sleeps, some_runs, until

LONG_S = 60
MIGRATION_PLACES = sum(len(migration.statements) for migration in schema.migrations()) + 2


@pytest.fixture
async def store(tmp_path):
    store = SqliteStore(tmp_path / "pollux.db")
    await store.open()
    await store.put_jobs([JobPut(JOB)])
    yield store
    await store.close()


async def line(child) -> str:
    """The next line that a child says; it is there within a minute or the test is red."""
    async with asyncio.timeout(LONG_S):
        return (await asyncio.to_thread(child.stdout.readline)).rstrip("\n")


def tell(child, word: str = "go") -> None:
    child.stdin.write(f"{word}\n")
    child.stdin.flush()


def said_in_a_fork(program) -> str:
    """What the function answers in a child that was forked from here."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, program().encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    said = os.read(read, 4096).decode()
    os.close(read)
    return said


async def test_two_processes_claim_each_run_exactly_once(store, tmp_path, start):
    for first in range(0, 4_000, 500):
        await store.enqueue(some_runs(first, 500))
    children = [start("drain", tmp_path / "pollux.db", f"node-{n}") for n in range(2)]
    for child in children:
        assert await line(child) == "open"
    for child in children:
        tell(child)
    said = [(await asyncio.to_thread(child.communicate, timeout=LONG_S))[0].split() for child in children]

    assert sorted(said[0] + said[1]) == [f"run-{n:07}" for n in range(4_000)]
    assert min(len(said[0]), len(said[1])) > 400, "one process starved the other"
    counts = await store.counts()
    assert (counts.ready, counts.leased, counts.ends) == (0, 0, 4_000)


async def test_the_bell_wakes_a_waiter_in_another_process(store, tmp_path, start):
    child = start("wait", tmp_path / "pollux.db")
    assert await line(child) == "waits"
    began = time.monotonic()
    await store.enqueue(some_runs(1, 1))

    assert await line(child) == "['run-0000001']"
    assert time.monotonic() - began < LONG_S
    await asyncio.to_thread(child.communicate, timeout=LONG_S)


async def test_wake_ends_waits_in_another_process(store, tmp_path, start):
    child = start("wait", tmp_path / "pollux.db")
    assert await line(child) == "waits"
    await store.wake()

    assert await line(child) == "[]"
    await asyncio.to_thread(child.communicate, timeout=LONG_S)


async def test_a_write_lock_held_too_long_names_its_holder(tmp_path, start):
    path = tmp_path / "pollux.db"
    store = SqliteStore(path)
    await store.open()
    await store.put_jobs([JobPut(JOB)])
    child = start("hold", path)
    assert await line(child) == "held"

    store.backend.database.deadline_ms, usual = 300, store.backend.database.deadline_ms
    with pytest.raises(StoreBusy, match=f"process {child.pid} holds the write lock"):
        await store.enqueue(some_runs(1, 1))
    store.backend.database.deadline_ms = usual
    assert await store.get_runs(["run-0000001"]) == [None]

    tell(child)
    await asyncio.to_thread(child.communicate, timeout=LONG_S)
    assert (await store.enqueue(some_runs(1, 1)))[0].answer is Answer.OK
    await store.close()


async def test_a_writer_gets_the_lock_as_soon_as_it_is_free(tmp_path, start):
    path = tmp_path / "pollux.db"
    store = SqliteStore(path)
    await store.open()
    await store.put_jobs([JobPut(JOB)])
    child = start("hold", path)
    assert await line(child) == "held"
    waiting = asyncio.ensure_future(store.enqueue(some_runs(1, 1)))
    await until(lambda: store.backend.database.writer.lock.waits)
    assert not waiting.done()

    tell(child)
    async with asyncio.timeout(LONG_S):
        assert (await waiting)[0].answer is Answer.OK
    await asyncio.to_thread(child.communicate, timeout=LONG_S)
    await store.close()


async def test_reads_and_empty_claims_do_not_wait_for_the_lock(store, tmp_path, start):
    child = start("hold", tmp_path / "pollux.db")
    assert await line(child) == "held"
    async with asyncio.timeout(LONG_S):  # a call that waits for the lock is refused by its deadline, long before that
        assert await store.get_jobs(["job"]) != [None]
        assert (await store.claim(node="n", token="t", limit=1, lease_ms=1_000)).runs == ()
    tell(child)
    await asyncio.to_thread(child.communicate, timeout=LONG_S)


async def all_runs(store) -> dict[str, Run]:
    found, page = [], await store.list_runs(limit=1_000)
    while True:
        found += page.runs
        if page.next is None:
            return {run.id: run for run in found}
        page = await store.list_runs(after=page.next, limit=1_000)


async def check_what_is_left(path, answered: list[int]) -> None:
    """The database is sound, holds all that was answered, and its counts are true."""
    connection = apsw.Connection(str(path))
    assert connection.pragma("integrity_check") == "ok"
    connection.close()
    store = SqliteStore(path)
    await store.open()
    runs, counts = await all_runs(store), await store.counts()
    await store.close()
    for first in answered:
        states = [runs[f"run-{n:07}"].state for n in range(first, first + 10)]
        assert states.count(RunState.DONE) >= 5
    live = [run.state for run in runs.values() if run.state in LIVE]
    assert (live.count(RunState.READY), live.count(RunState.LEASED)) == (counts.ready, counts.leased)
    assert counts.ends == len(runs) - len(live)


async def test_a_killed_writer_leaves_a_sound_database_with_all_that_was_answered(tmp_path, start):
    path = tmp_path / "pollux.db"
    child = start("write", path)
    assert await line(child) == "open"
    answered = [int(await line(child)) for _ in range(100)]
    child.send_signal(signal.SIGKILL)
    rest, _ = await asyncio.to_thread(child.communicate, timeout=LONG_S)

    await check_what_is_left(path, answered + [int(word) for word in rest.split()])


@pytest.mark.parametrize("place", range(1, 13))
async def test_a_writer_killed_around_a_commit_leaves_all_that_was_answered(tmp_path, start, place):
    """Before a commit, after it, before the answer: of the put and of the first enqueue, claim and settle."""
    path = tmp_path / "pollux.db"
    said, _ = start("write", path, POLLUX_CRASH_AT=str(MIGRATION_PLACES + place)).communicate(timeout=LONG_S)

    await check_what_is_left(path, [int(word) for word in said.split() if word != "open"])
    child = start("write", path)
    assert await line(child) == "open"
    assert await line(child) == "0", "the same calls again go through"


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
async def test_a_forked_child_is_told_to_open_its_own_store(store):
    def use() -> str:
        try:
            store.backend.lanes()
        except StoreError as error:
            return str(error)
        return "it may"

    said = said_in_a_fork(use)

    assert f"process {os.getpid()}" in said
    assert "open another one after the fork" in said
    assert (await store.enqueue(some_runs(1, 1)))[0].answer is Answer.OK


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
async def test_a_forked_child_does_not_keep_the_lock_of_its_dead_parent(store):
    """The lock belongs to the open file, which a child inherits: it closes its copy at once."""
    lock = store.backend.database.writer.lock

    assert said_in_a_fork(lambda: "closed" if lock._fd < 0 else "open") == "closed"


async def test_a_lost_bell_is_made_up_for(store, tmp_path, monkeypatch):
    """A process that died between commit and bell: nobody rings, the waiter finds the run all the same."""
    monkeypatch.setattr("pollux.store.sqlite.store.LOOK_AGAIN_MS", 600_000)
    waiting = asyncio.ensure_future(store.claim(node="n", token="t", limit=1, lease_ms=60_000, wait_ms=600_000))
    await until(lambda: sleeps(store))
    other = apsw.Connection(str(tmp_path / "pollux.db"))
    now_ms = time.time_ns() // 1_000_000
    run = run_of(JOB, now_ms, Cause.ENQUEUED, id="silent")
    other.execute(
        "INSERT INTO runs (id, job_id, due_ms, cause, priority, grp, target, gated, state, held_reason, visible_ms)"
        " VALUES (?, ?, ?, 2, 2, '', '', 0, 1, '', ?)",
        (run.id, run.job_id, run.due_ms, run.visible_ms),
    )
    other.close()

    claimed = await asyncio.wait_for(waiting, LONG_S)  # its next look is ten times as far: it watches for commits
    assert [run.id for run in claimed.runs] == ["silent"]
