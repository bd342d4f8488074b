"""Disk errors: every write, sync, truncation and read of a story fails once, and nothing is half written."""

import asyncio
import contextlib
import itertools
import os
import tempfile
from pathlib import Path

import apsw
import pytest

from pollux.errors import PolluxError, StoreError
from pollux.model import Cause, Done, Outcome, RunState, run_of
from pollux.store.contract import Answer, JobPut, Settlement
from pollux.store.sqlite import SqliteStore, disk_space, wal
from tests.store.children import JOB, in_writer
from tests.store.disks import broken_disk
from tests.store.test_sqlite_twins import recount

# What a layer raises where SQLite cannot pass it on (closing, for one) is said by apsw in this way.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

NOW_MS = 1_800_000_000_000
RUNS = [run_of(JOB, NOW_MS, Cause.ENQUEUED, {"n": n}, id=f"r{n}") for n in range(4)]
FINE = {Answer.OK, Answer.ALREADY}


@pytest.fixture
def faults(monkeypatch):
    monkeypatch.setattr(wal, "CHECKPOINT_PAGES", 1)  # so that every commit is carried over, and that can fail, too
    monkeypatch.setattr(disk_space, "TRY_AGAIN_S", 0.0)  # a disk that was full once is asked again at once
    with broken_disk() as faults:
        yield faults


@pytest.fixture
def folder(tmp_path):
    """In memory where there is such a place: hundreds of stories with a real sync each would take minutes."""
    memory = Path("/dev/shm")
    where = memory if os.access(memory, os.W_OK) else tmp_path
    with tempfile.TemporaryDirectory(dir=where) as folder:
        yield Path(folder)


@pytest.fixture
async def store(faults, folder):
    store = await opened(folder / "pollux.db")
    yield store
    faults.disarm()
    await store.close()


async def opened(path) -> SqliteStore:
    """A store with a job in it, whose writer has nothing left to do."""
    store = SqliteStore(path)
    await store.open()
    await store.put_jobs([JobPut(JOB)])
    await in_writer(store, lambda _: None)  # what follows an answer is done before the next call
    return store


async def story(store) -> list[object]:
    """Enqueue, claim and settle; each step once more if it fails.  Answers the errors, in order."""
    errors: list[object] = []

    async def step(call):
        for _ in range(3):
            try:
                return await call()
            except PolluxError as error:
                errors.append(error)
        raise AssertionError(f"three times no answer: {errors}")

    accepted = await step(lambda: store.enqueue(RUNS, now_ms=NOW_MS))
    assert {answer.answer for answer in accepted} <= FINE
    claim = {"node": "n", "token": "t", "limit": 2, "lease_ms": 60_000, "now_ms": NOW_MS}
    claimed = await step(lambda: store.claim(**claim))
    assert len(claimed.runs) == 2
    ends = [Settlement(run.id, run.token, Done(), Outcome(NOW_MS, NOW_MS)) for run in claimed.runs]
    settled = await step(lambda: store.settle(ends, now_ms=NOW_MS))
    assert set(settled) <= FINE
    seen = await step(lambda: store.get_runs([run.id for run in RUNS]))
    states = sorted(run.state for run in seen)
    assert states == sorted([RunState.DONE] * 2 + [RunState.READY] * 2)
    return errors


async def check_whole(path) -> None:
    """After the same calls again everything is there once, and the file is sound; also for a fresh handle."""
    store = SqliteStore(path)
    await store.open()
    counts = await store.counts()
    assert (counts.ready, counts.leased, counts.ends) == (2, 0, 2)
    assert recount(path) == tuple(getattr(counts, field) for field in counts.__struct_fields__)
    await store.close()
    connection = apsw.Connection(str(path))
    assert connection.pragma("integrity_check") == "ok"
    connection.close()


@pytest.mark.parametrize("error", [apsw.IOError, apsw.FullError])
@pytest.mark.parametrize(
    "kinds",
    ["write-wal", "sync-wal", "write-db sync-db", "truncate-db truncate-wal", "write-wal write-db sync-wal sync-db"],
)
async def test_a_disk_that_fails_at_any_touch_leaves_nothing_half_written(faults, folder, kinds, error):
    times = 2 if " " in kinds else 1
    struck = 0
    for number in itertools.count(1):
        path = folder / f"{number}.db"
        store = await opened(path)
        faults.arm(kinds, number, error=error, times=times)
        errors = await story(store)
        was_struck = faults.struck
        faults.disarm()
        await store.close()
        assert all(isinstance(said, StoreError) for said in errors), errors
        await check_whole(path)
        struck += was_struck
        if not was_struck:
            break
    assert struck or kinds.startswith("truncate"), "nothing ever failed: the story touches no disk"


async def test_a_disk_that_cannot_be_read_says_so_and_works_afterwards(faults, folder):
    for number in itertools.count(1):
        path = folder / f"{number}.db"
        store = await opened(path)
        faults.arm("read-db read-wal", number)
        errors = await story(store)
        was_struck = faults.struck
        faults.disarm()
        await store.close()
        assert all(isinstance(said, StoreError) for said in errors), errors
        await check_whole(path)
        if not was_struck:
            break
    assert number > 3


async def test_a_disk_that_fails_while_the_store_is_opened_is_said_and_the_next_opening_works(faults, folder):
    for number in itertools.count(1):
        path = folder / f"{number}.db"
        faults.arm("write-wal write-db sync-wal sync-db read-db", number)
        store = SqliteStore(path)
        with contextlib.suppress(StoreError):  # and nothing else
            await store.open()
        await store.close()
        was_struck = faults.struck
        faults.disarm()
        store = SqliteStore(path)
        await store.open()
        assert await story_on_new(store) == []
        await store.close()
        await check_whole(path)
        if not was_struck:
            break
    assert number > 5


async def story_on_new(store):
    await store.put_jobs([JobPut(JOB)])
    return await story(store)


async def test_a_sync_that_failed_is_not_asked_again_as_if_it_had_not(faults, store):
    """The kernel forgets what it could not write and says yes the next time: so the frames are written anew first."""
    before = store.backend.database.writer._connection
    faults.arm("sync-wal", 1)
    with pytest.raises(StoreError, match="may have taken effect; look at the disk; repeat it with the same ids"):
        await store.enqueue(RUNS, now_ms=NOW_MS)
    assert faults.log[-1] == "sync-wal", "the failed sync was the last touch: no checkpoint, no second try"
    faults.log.clear()

    answers = await store.enqueue(RUNS, now_ms=NOW_MS)
    assert {answer.answer for answer in answers} <= FINE
    assert "write-wal" in faults.log[: faults.log.index("sync-wal")]
    assert store.backend.database.writer._connection is not before, "the connection was thrown away"


async def test_a_log_that_could_not_be_carried_over_is_nobodys_error_and_ends_the_connection(faults, store):
    """What was answered is in the log; only the connection is not trusted any more."""
    before = store.backend.database.writer._connection
    faults.arm("sync-db", 1)
    answers = await store.enqueue(RUNS, now_ms=NOW_MS)
    assert {answer.answer for answer in answers} == {Answer.OK}
    await in_writer(store, lambda _: None)

    assert faults.struck == 1
    assert store.backend.database.writer._connection is not before


async def test_all_calls_of_a_batch_are_told_and_none_is_tried_alone(faults, store):
    faults.arm("sync-wal", 1)
    calls = [asyncio.ensure_future(store.enqueue([run], now_ms=NOW_MS)) for run in RUNS]
    answers = await asyncio.gather(*calls, return_exceptions=True)

    assert faults.struck == 1
    failed = [answer for answer in answers if isinstance(answer, StoreError)]
    assert failed
    again = [await store.enqueue([run], now_ms=NOW_MS) for run in RUNS]
    assert {answer.answer for (answer,) in again} <= FINE


async def test_a_disk_that_stays_broken_is_said_every_time_and_reading_goes_on(faults, store):
    faults.arm("sync-wal", 1, times=1_000)
    for _ in range(3):
        with pytest.raises(StoreError, match="the disk failed"):
            await store.enqueue(RUNS, now_ms=NOW_MS)
    assert (await store.get_jobs(["job"]))[0] is not None
    faults.disarm()

    assert {answer.answer for answer in await store.enqueue(RUNS, now_ms=NOW_MS)} <= FINE
