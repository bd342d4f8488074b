"""Writer of SQLite: one commit for all calls that wait, answered once it is on disk, each with its own error."""

import asyncio
import re
import threading
import time

import apsw
import pytest
from msgspec.structs import replace

from pollux.errors import InvalidInput, StoreBusy, StoreError, StoreFull, StoreTimeout
from pollux.model import AuditLine, NotePut
from pollux.store.contract import Answer, Audit, JobPut
from pollux.store.sqlite import SqliteStore, wal
from tests.store.children import JOB, in_writer, some_runs, until


@pytest.fixture
async def store(tmp_path):
    store = SqliteStore(tmp_path / "pollux.db")
    await store.open()
    await store.put_jobs([JobPut(JOB)])
    yield store
    await store.close()


class Gate:
    """Keeps the writer busy with a verb of ours until it is opened."""

    def __init__(self, store) -> None:
        self._entered, self._opened = threading.Event(), threading.Event()
        self.passed = asyncio.ensure_future(in_writer(store, self._stand))

    def _stand(self, _tx) -> None:
        self._entered.set()
        assert self._opened.wait(60)

    async def __aenter__(self):
        await until(self._entered.is_set)
        return self

    async def __aexit__(self, *_):
        self._opened.set()
        await self.passed


async def test_calls_that_wait_share_one_commit(store):
    async with Gate(store):
        calls = [asyncio.ensure_future(store.enqueue(some_runs(n, 1))) for n in range(100)]
        await until(lambda: store.backend.database.writer._queue.qsize() == 100)
        before = store.stats.commits
    answers = await asyncio.gather(*calls)

    assert [answer.answer for (answer,) in answers] == [Answer.OK] * 100
    assert store.stats.commits - before == 1


async def test_a_value_of_another_kind_is_the_callers_mistake_and_no_failure_of_the_store(store):
    """Who hears of a failing store asks again; this would fail again for ever."""
    async with Gate(store):
        odd = [replace(run, due_ms="soon") for run in some_runs(0, 1)]
        calls = [asyncio.ensure_future(store.enqueue(runs)) for runs in (odd, some_runs(1, 1))]
        await until(lambda: store.backend.database.writer._queue.qsize() == 2)
    mistake, [neighbour] = await asyncio.gather(*calls, return_exceptions=True)

    assert isinstance(mistake, InvalidInput)
    assert "TEXT value in INTEGER column" in str(mistake)
    assert neighbour.answer is Answer.OK


async def test_a_failing_call_does_not_undo_its_neighbours(store):
    def fail(tx) -> None:
        tx.write("INSERT INTO notes (key, value, revision) VALUES ('half', x'31', 1)")
        raise ValueError("spoilt")

    async with Gate(store):
        calls = [
            asyncio.ensure_future(call)
            for call in (
                store.enqueue(some_runs(1, 1)),
                in_writer(store, fail),
                store.enqueue(some_runs(2, 1)),
                in_writer(store, lambda tx: tx.write("no such statement")),
                store.put_notes([NotePut("whole", 1)]),
            )
        ]
        await until(lambda: store.backend.database.writer._queue.qsize() == 5)
    first, spoilt, second, wrong, notes = await asyncio.gather(*calls, return_exceptions=True)

    assert (first[0].answer, second[0].answer, notes) == (Answer.OK, Answer.OK, [Answer.OK])
    assert isinstance(spoilt, ValueError)
    assert isinstance(wrong, StoreError)
    assert isinstance(wrong.__cause__, apsw.SQLError)
    assert [note.key for note in await store.notes()] == ["whole"]
    assert (await store.counts()).ready == 2


async def test_a_full_disk_is_said_in_our_words_and_changes_nothing(store):
    connection = store.backend.database.writer._connection
    pages = await in_writer(store, lambda _: connection.pragma("page_count"))
    await in_writer(store, lambda _: connection.pragma("max_page_count", pages + 2))

    with pytest.raises(StoreFull):
        await store.enqueue(some_runs(0, 1_000))
    assert (await store.counts()).ready == 0
    assert (await store.list_runs()).runs == ()

    await in_writer(store, lambda _: connection.pragma("max_page_count", 2**30))
    await until_accepted(store)
    assert (await store.enqueue(some_runs(0, 1)))[0].answer is Answer.OK


async def until_accepted(store) -> None:
    """It goes on by itself, within a second or two."""
    async with asyncio.timeout(60):
        while True:
            try:
                await store.put_jobs([JobPut(JOB)])
            except StoreFull:
                await asyncio.sleep(0.05)
            else:
                return


async def test_a_claim_that_finds_nothing_commits_nothing(store):
    before = store.stats.commits
    for n in range(10):
        await store.claim(node="n", token=f"t{n}", limit=9, lease_ms=1_000)

    assert store.stats.commits == before


def waiting_claim(store, token, wait_ms=60_000):
    return asyncio.ensure_future(store.claim(node="n", token=token, limit=9, lease_ms=60_000, wait_ms=wait_ms))


async def test_a_claim_that_waits_takes_a_run_in_the_commit_that_brings_it(store):
    claiming = waiting_claim(store, "t")
    await until(lambda: store.backend.database.writer._parked)
    before = store.stats.commits
    await store.enqueue(some_runs(0, 2))

    assert len((await claiming).runs) == 2
    assert store.stats.commits - before == 1


async def test_of_two_claims_that_wait_the_second_goes_on_waiting(store):
    first, second = waiting_claim(store, "one"), waiting_claim(store, "two")
    await until(lambda: len(store.backend.database.writer._parked) == 2)
    await store.enqueue(some_runs(0, 3))
    assert len((await first).runs) == 3
    await store.enqueue(some_runs(3, 1))

    assert len((await second).runs) == 1


async def test_no_run_is_left_to_a_claim_that_stops_waiting_just_then(store):
    """Each claim waits a millisecond, about as long as a run takes to come: what is leased was answered."""
    seen = []

    async def claim_on() -> None:
        while len(seen) < 300:
            seen.extend((await waiting_claim(store, f"t{len(seen)}-{store.stats.ops}", wait_ms=1)).runs)

    claiming = asyncio.ensure_future(claim_on())
    for n in range(300):
        await store.enqueue(some_runs(n, 1))
    async with asyncio.timeout(60):
        await claiming

    assert len({run.id for run in seen}) == len(seen) == 300


async def test_a_claim_that_is_cut_off_while_it_waits_can_be_repeated(store):
    claiming = waiting_claim(store, "t")
    await until(lambda: store.backend.database.writer._parked)
    async with Gate(store):  # the writer is at work: the run comes, and the claim is given up before its answer
        bringing = asyncio.ensure_future(store.enqueue(some_runs(0, 1)))
        await until(lambda: store.backend.database.writer._queue.qsize() == 1)
        claiming.cancel()
        await asyncio.wait({claiming})
        assert not store.backend.database.writer._parked
    await bringing

    assert len((await waiting_claim(store, "t")).runs) == 1


async def test_a_claim_that_waits_is_answered_though_the_batch_that_brings_its_run_is_run_one_by_one(store):
    """A neighbour's failure undoes the batch; whoever is called up then is answered like all others."""

    def fail(_tx) -> None:
        raise ValueError("spoilt")

    claiming = waiting_claim(store, "t")
    await until(lambda: store.backend.database.writer._parked)
    async with Gate(store):
        bringing = asyncio.ensure_future(store.enqueue(some_runs(0, 1)))
        spoilt = asyncio.ensure_future(in_writer(store, fail))
        await until(lambda: store.backend.database.writer._queue.qsize() == 2)
    async with asyncio.timeout(50):
        assert [answer.answer for answer in await bringing] == [Answer.OK]
        with pytest.raises(ValueError, match="spoilt"):
            await spoilt
        assert len((await claiming).runs) == 1


async def test_a_call_that_comes_while_a_batch_is_run_one_by_one_is_answered(store):
    second, opened, tries = threading.Event(), threading.Event(), []

    def slow(_tx) -> None:
        tries.append("together" if not tries else "alone")
        if tries[-1] == "alone":
            second.set()
            assert opened.wait(60)

    def fail(_tx) -> None:
        raise ValueError("spoilt")

    gate = Gate(store)
    await until(gate._entered.is_set)
    calls = [asyncio.ensure_future(in_writer(store, verb)) for verb in (slow, fail)]
    await until(lambda: store.backend.database.writer._queue.qsize() == 2)
    gate._opened.set()
    await until(second.is_set)
    coming = asyncio.ensure_future(store.enqueue(some_runs(0, 1)))
    await until(lambda: store.backend.database.writer._queue.qsize() == 1)
    opened.set()

    async with asyncio.timeout(50):
        assert [answer.answer for answer in await coming] == [Answer.OK]
        await asyncio.gather(gate.passed, *calls, return_exceptions=True)


async def test_a_claim_whose_loop_has_ended_is_given_nothing(store):
    """A thread may die with its loop, and what waited in it is never told that it waits no more."""
    twin = store.twin()

    def elsewhere() -> None:
        loop = asyncio.new_event_loop()
        loop.run_until_complete(twin.open())
        claiming = loop.create_task(twin.claim(node="n", token="gone", limit=9, lease_ms=60_000, wait_ms=60_000))
        loop.run_until_complete(until(lambda: store.backend.database.writer._parked))
        claiming._log_destroy_pending = False
        left.append(claiming)
        loop.close()
        twin.backend.opened.listener._watch.close(loop)

    left: list[asyncio.Task] = []
    await asyncio.to_thread(elsewhere)
    await store.enqueue(some_runs(0, 1))
    store.backend.database.leave()  # for the twin, which cannot any more

    assert len((await waiting_claim(store, "t", wait_ms=1)).runs) == 1


async def test_no_answer_in_time_is_unknown(tmp_path):
    store = SqliteStore(tmp_path / "pollux.db")
    await store.open()
    async with Gate(store):
        hasty = store.twin()
        await hasty.open()
        hasty.deadline_ms = 50
        with pytest.raises(StoreTimeout, match="repeat it with the same ids"):
            await hasty.put_jobs([JobPut(JOB)])
    await hasty.close()
    await store.close()


async def test_a_call_that_joins_others_at_the_lock_is_told_what_they_are_told(store, monkeypatch):
    """Some gave up waiting for the lock; then a call joins, and the file turns out to be gone."""
    writer, asked, looks = store.backend.database.writer, [], []
    acquire = writer.lock.acquire

    def at_lock(deadline) -> None:
        asked.append(deadline)
        if len(asked) == 1:
            raise StoreBusy("somebody else writes")
        joins.set()
        while len(asked) == 2 and writer._queue.empty():
            time.sleep(0.001)
        acquire(deadline)

    def gone() -> None:
        looks.append(len(asked))
        if len(looks) == 2:  # after the commit
            raise StoreError("the file is gone")

    joins = threading.Event()
    monkeypatch.setattr(writer.lock, "acquire", at_lock)
    monkeypatch.setattr(writer._place, "check", gone)
    first = asyncio.ensure_future(store.enqueue(some_runs(0, 1)))
    await until(joins.is_set)
    second = asyncio.ensure_future(store.enqueue(some_runs(1, 1)))
    async with asyncio.timeout(50):
        for call in (first, second):
            with pytest.raises(StoreError, match="gone"):
                await call


async def test_closing_finishes_what_was_asked(tmp_path):
    store = SqliteStore(tmp_path / "pollux.db")
    await store.open()
    await store.put_jobs([JobPut(JOB)])
    calls = [asyncio.ensure_future(store.enqueue(some_runs(n, 1))) for n in range(300)]
    await asyncio.sleep(0)
    await store.close()

    answers = await asyncio.gather(*calls)
    assert {answer.answer for (answer,) in answers} == {Answer.OK}
    with pytest.raises(StoreError, match="not open"):
        await store.counts()


async def test_a_twin_in_another_thread_shares_the_writer_and_outlives_the_first(store):
    twin = store.twin()

    def elsewhere() -> int:
        async def use() -> int:
            await twin.open()
            await twin.enqueue(some_runs(1, 1))
            ready = (await twin.counts()).ready
            await twin.close()
            return ready

        return asyncio.run(use())

    assert await asyncio.to_thread(elsewhere) == 1
    assert twin.backend.database is store.backend.database
    assert (await store.counts()).ready == 1


async def test_the_log_is_carried_over_and_stays_small(store, tmp_path):
    log = tmp_path / "pollux.db-wal"
    for first in range(0, 40_000, 1_000):
        await store.enqueue(some_runs(first, 1_000))

    assert store.stats.checkpoints > 1
    assert log.stat().st_size < 4 * wal.CHECKPOINT_PAGES * 4_096


def test_every_answer_was_synced_first(tmp_path, start):
    """Between being asked and answering, the write-ahead log is synced."""
    said, _ = start("answered", tmp_path / "pollux.db", 10).communicate(timeout=60)
    story = "".join({"asked": "A", "synced": "s", "answered": "Z"}[word] for word in said.split())

    assert re.fullmatch("s*(As+Zs*){10}", story), story


@pytest.mark.parametrize("count", [1, 2, 9, 10, 11, 19, 20, 21])
async def test_batches_of_any_size_are_put_whole_and_in_order(store, count):
    """Ten rows go in one statement, and the rest in another."""
    lines = [AuditLine(number, "ann", "put", f"job{number:02}") for number in range(count)]
    jobs = [replace(JOB, id=f"job{number:02}") for number in range(count)]
    answers = await store.put_jobs([JobPut(job) for job in jobs], audit=Audit(tuple(lines)))
    assert [answer.answer for answer in answers] == [Answer.OK] * count
    assert [job.id for job in await store.get_jobs([job.id for job in jobs])] == [job.id for job in jobs]
    log = (await store.read_log()).lines
    assert [line.subject for line in log] == [job.id for job in jobs]
    runs = some_runs(0, count)
    assert [answer.answer for answer in await store.enqueue(runs)] == [Answer.OK] * count
    assert [run.payload for run in await store.get_runs([run.id for run in runs])] == [run.payload for run in runs]
