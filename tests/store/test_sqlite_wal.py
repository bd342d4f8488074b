"""Length of the write-ahead log: bounded under steady load, reported under a reader that never ends."""

import asyncio
import itertools

import pytest

from pollux.errors import StoreFull, StoreTimeout
from pollux.model import Done
from pollux.store.contract import Answer, JobPut, Settlement
from pollux.store.sqlite import SqliteStore, disk_space, wal
from tests.store.children import JOB, in_writer, some_runs
from tests.store.test_sqlite_full_disk import until_accepted
from tests.store.test_sqlite_processes import line, tell

PAGE_BYTES = 4_096


@pytest.fixture
def lengths(monkeypatch) -> list[int]:
    """How long the log was after each commit."""
    lengths, told = [0], wal.Wal._on_commit

    def tell(self, connection, name, length):
        lengths.append(length)
        return told(self, connection, name, length)

    monkeypatch.setattr(wal.Wal, "_on_commit", tell)
    return lengths


@pytest.fixture
async def store(tmp_path, monkeypatch):
    monkeypatch.setattr(wal, "CHECKPOINT_PAGES", 50)
    monkeypatch.setattr(wal, "TRUNCATE_PAGES", 400)
    monkeypatch.setattr(disk_space, "LOG_PAGES_MAX", 300)
    store = SqliteStore(tmp_path / "pollux.db")
    await store.open()
    await store.put_jobs([JobPut(JOB)])
    yield store
    await store.close()


def pages(store) -> int:
    """How long the log is on disk."""
    path = store.backend.database.path
    return path.with_name(path.name + "-wal").stat().st_size // PAGE_BYTES


async def work(store, number: int) -> None:
    """One round of what a busy store does."""
    await store.enqueue(some_runs(number * 50, 50))
    claimed = await store.claim(node="n", token=f"t{number}", limit=50, lease_ms=60_000)
    await store.settle([Settlement(run.id, run.token, Done()) for run in claimed.runs])


async def test_under_steady_load_with_readers_the_log_stays_short(lengths, store):
    """A lot more is written than the log ever holds."""
    longest = 0
    for number in range(60):
        await asyncio.gather(work(store, number), store.list_runs(limit=1_000), store.counts())
        longest = max(longest, pages(store))

    written = sum(after - before if after > before else after for before, after in itertools.pairwise(lengths))
    assert store.stats.checkpoints > 20
    assert 0 < longest * 4 < written, "however slow the readers are"


async def test_a_reader_that_never_ends_is_named_and_new_work_refused_before_the_log_eats_the_disk(
    store, tmp_path, start
):
    child = start("read_on", tmp_path / "pollux.db")
    assert await line(child) == "reads"
    with pytest.raises(
        StoreFull, match=f"because process {child.pid} reads without end.*nothing was changed; end that"
    ):
        await work_on(store)
    at_refusal = pages(store)
    assert at_refusal < 300 + 200
    claimed = await store.claim(node="n", token="late", limit=50, lease_ms=60_000)
    answers = await store.settle([Settlement(run.id, run.token, Done()) for run in claimed.runs])
    assert set(answers) <= {Answer.OK}, "what is there goes on"
    for _ in range(20):
        with pytest.raises(StoreFull):
            await store.enqueue(some_runs(900_000, 1))
    assert pages(store) < at_refusal + 50, "refusals do not make it longer"

    tell(child)
    await asyncio.to_thread(child.wait)
    await until_accepted(lambda: store.enqueue(some_runs(900_000, 1)))
    await work(store, 900)
    await work(store, 901)
    assert store.backend.database.writer._wal.pages < 300


async def test_past_twice_the_limit_nothing_is_begun_either(store, tmp_path, start):
    child = start("read_on", tmp_path / "pollux.db")
    assert await line(child) == "reads"
    await store.enqueue(some_runs(0, 10))
    claimed = await store.claim(node="n", token="t", limit=5, lease_ms=60_000)
    with pytest.raises(StoreFull, match="taken in or begun"):
        await claim_on(store)
    assert await store.settle([Settlement(run.id, run.token, Done()) for run in claimed.runs]) == [Answer.OK] * 5
    tell(child)
    await asyncio.to_thread(child.wait)


async def work_on(store) -> None:
    for number in range(2_000):
        await work(store, number)


async def claim_on(store) -> None:
    for number in range(2_000):
        await more_log(store, number)
        await store.claim(node="n", token=f"u{number}", limit=1, lease_ms=1)


async def more_log(store, number: int) -> None:
    await store.elect(f"node-{number}", ttl_ms=1)
    await in_writer(
        store, lambda tx: tx.write("INSERT OR REPLACE INTO notes VALUES (?, zeroblob(20000), 1, NULL)", ("x",))
    )


async def test_a_read_that_takes_too_long_is_cut_off(tmp_path):
    """Otherwise the log could not be carried over until it ends, whoever still waits for it or not."""
    store = SqliteStore(tmp_path / "pollux.db", deadline_ms=1_000)
    await store.open()
    endless = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
    with pytest.raises(StoreTimeout, match="took longer than its deadline and was cut off"):
        await store.backend.send(store.backend.database.slow, lambda tx: tx.rows(endless))
    assert (await store.list_jobs()).jobs == (), "the lane is free again"
    await store.close()
