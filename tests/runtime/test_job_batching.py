"""Concurrent adds of jobs share writes: how many writes that takes, and what it delays."""

import asyncio

import pytest

from pollux.app.operations.jobs import PutResult
from pollux.errors import InvalidInput
from pollux.model import Answer, Job
from pollux.server import job_batching as module
from pollux.server.job_batching import AT_ONCE, MOMENTS_MAX, JobBatcher
from pollux.store.contract import JobPut

CALLERS = 16
PATIENCE_S = 60


class FakeOperations:
    """Operations on a store that answers after some rounds of the loop, and remembers what was written together."""

    def __init__(self, rounds=3):
        self.rounds, self.batches = rounds, []
        self.jobs = self.pauses = self

    async def put_each(self, puts, *, version=None):
        self.batches.append([put.job.id for put in puts])
        for _ in range(self.rounds):
            await asyncio.sleep(0)
        if len(puts) > 1 and any(put.job.id == "bad" for put in puts):
            raise InvalidInput("it cannot be used")
        return [PutResult(put.job, Answer.OK, 1, "") for put in puts]

    async def stops(self):
        return []


def a_put(name):
    return JobPut(Job(id=name, handler="fine"), 0)


async def add_many(together, operations, caller, count):
    """One after the other, as a client does that waits for each answer."""
    for number in range(count):
        said = await together.add(operations, "ann", a_put(f"{caller}-{number}"), None)
        assert said.written.job.id == f"{caller}-{number}"


async def crowd(together, operations, callers, count):
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*(add_many(together, operations, caller, count) for caller in range(callers)))


async def rounds_of(adding, most=50):
    """How many rounds of the loop it took; no time has to pass meanwhile."""
    adding = asyncio.ensure_future(adding)
    for rounds in range(most):
        if adding.done():
            return rounds
        await asyncio.sleep(0)
    await adding
    return most


@pytest.fixture
def no_moments(monkeypatch):
    """Whoever waits for company waits for ever."""
    monkeypatch.setattr(module, "MOMENT_S", 3_600)


async def test_whoever_is_alone_waits_for_nobody(no_moments):
    operations, together = FakeOperations(), JobBatcher()

    await crowd(together, operations, 1, 50)

    assert [len(batch) for batch in operations.batches] == [1] * 50


async def test_those_who_come_again_and_again_share_their_writes(no_moments):
    operations, together = FakeOperations(), JobBatcher()

    await crowd(together, operations, CALLERS, 50)

    assert len(operations.batches) == 50
    assert all(len(batch) == CALLERS for batch in operations.batches)


async def test_a_crowd_is_written_in_full_batches_one_after_the_other(no_moments):
    operations, together = FakeOperations(rounds=20), JobBatcher()

    added = asyncio.gather(*(together.add(operations, "ann", a_put(f"job{n}"), None) for n in range(3 * AT_ONCE)))
    for _ in range(10):
        await asyncio.sleep(0)

    assert [len(batch) for batch in operations.batches] == [AT_ONCE]
    await added
    assert [len(batch) for batch in operations.batches] == [AT_ONCE] * 3


async def test_nobody_is_waited_for_longer_than_a_moment():
    """The others are gone: the first writes wait for them, each for fewer; then nobody waits any more."""
    operations, together = FakeOperations(), JobBatcher()
    await crowd(together, operations, CALLERS, 3)
    operations.batches.clear()

    async with asyncio.timeout(PATIENCE_S):
        for _ in range(CALLERS.bit_length() - 1):
            await together.add(operations, "ann", a_put("alone"), None)

    assert operations.batches == [["alone"]] * 4
    assert await rounds_of(together.add(operations, "ann", a_put("again"), None)) < 10


async def test_those_who_come_in_two_halves_find_together(monkeypatch):
    """All are answered before the first of them comes again: whoever was early once waits for the others then."""
    monkeypatch.setattr(module, "MOMENT_S", 0.2)
    operations, together = FakeOperations(), JobBatcher()

    async with asyncio.timeout(PATIENCE_S):
        for number in range(10):
            early = [
                asyncio.ensure_future(together.add(operations, "ann", a_put(f"{number}-{n}"), None)) for n in range(8)
            ]
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            late = [together.add(operations, "ann", a_put(f"{number}-{n}"), None) for n in range(8, 16)]
            await asyncio.gather(*early, *late)

    assert [len(batch) for batch in operations.batches[-8:]] == [16] * 8


async def test_who_keeps_coming_is_waited_for_but_not_for_ever():
    """A moment in which somebody came is followed by another one, a few times."""
    operations, together = FakeOperations(), JobBatcher()
    await crowd(together, operations, CALLERS, 3)
    operations.batches.clear()
    begun = []

    class Moment(asyncio.Event):
        async def wait(self):
            """Whenever a moment begins, one more comes before it is over."""
            begun.append(asyncio.ensure_future(together.add(operations, "ann", a_put(f"late{len(begun)}"), None)))
            await asyncio.sleep(0)
            raise TimeoutError

    together._queues["ann", None].is_full = Moment()
    async with asyncio.timeout(PATIENCE_S):
        await together.add(operations, "ann", a_put("first"), None)
        await asyncio.gather(*begun)

    assert operations.batches[0] == ["first", *(f"late{number}" for number in range(MOMENTS_MAX))]


async def test_the_company_of_one_caller_is_nobody_elses(no_moments):
    operations, together = FakeOperations(), JobBatcher()
    await crowd(together, operations, CALLERS, 3)

    assert await rounds_of(together.add(operations, "bob", a_put("his"), None)) < 10


async def test_one_that_cannot_be_used_spoils_nobody_elses():
    operations, together = FakeOperations(), JobBatcher()

    async with asyncio.timeout(PATIENCE_S):
        said = await asyncio.gather(*(together.add(operations, "ann", a_put(name), None) for name in ("a", "bad", "b")))

    assert [each.written.job.id for each in said] == ["a", "bad", "b"]
    assert operations.batches == [["a", "bad", "b"], ["a"], ["bad"], ["b"]]


async def test_the_same_id_twice_is_written_twice_in_its_order():
    operations, together = FakeOperations(), JobBatcher()

    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*(together.add(operations, "ann", a_put("same"), None) for _ in range(3)))

    assert operations.batches == [["same"]] * 3


async def test_callers_who_are_gone_are_forgotten_when_there_are_many(monkeypatch):
    monkeypatch.setattr(module, "QUEUES_MAX", 10)
    operations, together = FakeOperations(), JobBatcher()

    for number in range(35):
        await together.add(operations, f"caller{number}", a_put("a"), None)

    assert len(together._queues) <= 10
