"""Batched reads: those that wait together wake the loop once, and none waits for a long one."""

import asyncio
import threading

import pytest

from pollux.store.sqlite import SqliteStore, database

PATIENCE_S = 60


@pytest.fixture
async def store(tmp_path):
    store = SqliteStore(tmp_path / "pollux.db")
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def answered(monkeypatch):
    """How many calls were answered at a time."""
    sizes, answer = [], database.answer

    def noted(calls):
        sizes.append(len(calls))
        answer(calls)

    monkeypatch.setattr(database, "answer", noted)
    return sizes


def read(store, verb):
    return store.backend.send(store.backend.database.quick, verb)


async def behind_a_slow_one(store, lane):
    """Calls that came while their lane was busy."""
    opened = threading.Event()
    first = asyncio.ensure_future(store.backend.send(lane, lambda _tx: opened.wait(PATIENCE_S)))
    async with asyncio.timeout(PATIENCE_S):
        calls = [
            asyncio.ensure_future(store.backend.send(lane, lambda _tx, number=number: number)) for number in range(5)
        ]
        while lane._queue.qsize() < 5:  # noqa: ASYNC110  a queue of threads has no event
            await asyncio.sleep(0.001)
        opened.set()
        await first
        assert await asyncio.gather(*calls) == [0, 1, 2, 3, 4]


async def test_quick_reads_that_wait_are_answered_together(store, answered):
    await behind_a_slow_one(store, store.backend.database.quick)

    assert sum(answered) == 6
    assert len(answered) < 6


async def test_a_listing_is_answered_as_soon_as_it_is_read(store, answered):
    await behind_a_slow_one(store, store.backend.database.slow)

    assert answered == [1] * 6


async def test_of_reads_that_are_answered_together_one_that_fails_fails_alone(store):
    def broken(_tx):
        raise ValueError("broken")

    opened = threading.Event()
    first = asyncio.ensure_future(read(store, lambda _tx: opened.wait(PATIENCE_S)))
    calls = [asyncio.ensure_future(read(store, verb)) for verb in (broken, lambda _tx: "fine")]
    await asyncio.sleep(0)
    opened.set()

    async with asyncio.timeout(PATIENCE_S):
        bad, good = await asyncio.gather(*calls, return_exceptions=True)
        await first
    assert (str(bad), good) == ("broken", "fine")


async def test_a_store_that_is_closed_answers_what_was_asked_before(store):
    opened = threading.Event()
    calls = [asyncio.ensure_future(read(store, lambda _tx: opened.wait(PATIENCE_S)))]
    calls += [asyncio.ensure_future(read(store, lambda _tx: True)) for _ in range(3)]
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(store.close())
    await asyncio.sleep(0)
    opened.set()

    async with asyncio.timeout(PATIENCE_S):
        await closing
        assert await asyncio.gather(*calls) == [True] * 4
