"""Many runs at once: checked as a whole, then written batch by batch; one is made while the one before is written."""

import asyncio
from random import Random

import pytest

from pollux import Pollux
from pollux.errors import InvalidInput, StoreFull
from pollux.store.contract import BATCH_MAX, RunFilter
from pollux.store.memory import MemoryStore

PATIENCE = 60.0
MANY = 3 * BATCH_MAX + 7


class Line(MemoryStore):
    """One that writes when the gate is open, and remembers what it was given."""

    def __init__(self):
        super().__init__()
        self.batches: list[list[str]] = []
        self.gate, self.is_cut = asyncio.Event(), False
        self.gate.set()
        self.writing = self.most = 0  # writes under way, and how many there were at once

    async def enqueue(self, runs, **options):
        self.writing += 1
        self.most = max(self.most, self.writing)
        self.batches.append([run.id for run in runs])
        try:
            await self.gate.wait()
            await asyncio.sleep(0)
            return await super().enqueue(runs, **options)
        except asyncio.CancelledError:
            self.is_cut = True
            raise
        finally:
            self.writing -= 1


class Dice(Random):
    """Counts the batches that were begun; something may happen at one of them."""

    def __init__(self):
        super().__init__(1)
        self.begun, self.at, self.happen = 0, -1, lambda: None

    def getrandbits(self, k):
        self.begun += k > 64
        if self.begun == self.at:
            self.happen()
        return super().getrandbits(k)


@pytest.fixture
def dice():
    return Dice()


@pytest.fixture
def line():
    return Line()


@pytest.fixture
async def app(line, dice):
    made = Pollux(line, dice=dice, ready_max=10 * MANY)

    @made.job()
    async def noop(ctx, n: int): ...

    await made.open()
    await made.put_jobs(made.declared_jobs())
    yield made
    line.gate.set()
    await made.close()


def some(n=MANY):
    return [{"n": i} for i in range(n)]


async def until(look):
    async with asyncio.timeout(PATIENCE):
        while not look():  # noqa: ASYNC110  nobody tells of it
            await asyncio.sleep(0)


async def test_all_are_accepted_in_their_order_one_batch_after_another(app, line):
    ids = await app.enqueue_many("noop", iter(some()))
    assert [len(batch) for batch in line.batches] == [BATCH_MAX, BATCH_MAX, BATCH_MAX, 7]
    assert ids == [run_id for batch in line.batches for run_id in batch]
    assert len(set(ids)) == MANY
    assert all(batch == sorted(batch) for batch in line.batches), "an index takes them best so"
    claimed = await line.claim(node="n", token="t", limit=BATCH_MAX, lease_ms=60_000)
    assert [run.id for run in claimed.runs] == ids[:BATCH_MAX]
    assert [run.payload for run in claimed.runs] == some(BATCH_MAX)


async def test_none_is_no_batch(app, line):
    assert await app.enqueue_many("noop", []) == []
    assert line.batches == []


async def test_the_next_batch_is_made_while_one_is_written_and_no_more(app, line, dice):
    line.gate.clear()
    asking = asyncio.ensure_future(app.enqueue_many("noop", some()))
    await until(lambda: dice.begun == 2)
    for _ in range(50):
        await asyncio.sleep(0)
    assert (dice.begun, len(line.batches), asking.done()) == (2, 1, False)
    line.gate.set()
    assert len(await asyncio.wait_for(asking, PATIENCE)) == MANY
    assert line.most == 1


async def test_one_that_cannot_be_accepted_keeps_all_out_also_those_of_earlier_batches(app, line):
    with pytest.raises(InvalidInput, match="unknown m"):
        await app.enqueue_many("noop", [*some(2 * BATCH_MAX), {"n": 1, "m": 2}])
    assert line.batches == []


async def test_after_a_refused_batch_nothing_more_is_written_and_those_before_stay(line, dice):
    app = Pollux(line, dice=dice, ready_max=BATCH_MAX)

    @app.job()
    async def noop(ctx, n: int): ...

    await app.open()
    await app.put_jobs(app.declared_jobs())
    with pytest.raises(StoreFull, match=f"{BATCH_MAX} runs wait"):
        await app.enqueue_many("noop", some())
    assert len(line.batches) == 2
    kept = await line.list_runs(RunFilter(), limit=BATCH_MAX)
    assert {run.id for run in kept.runs} == set(line.batches[0])
    assert (await line.counts()).ready == BATCH_MAX
    await app.close()


async def test_what_was_accepted_before_a_refused_batch_is_on_record(line):
    app = Pollux(line, actor="ann", ready_max=BATCH_MAX)

    @app.job()
    async def noop(ctx, n: int): ...

    await app.open()
    await app.put_jobs(app.declared_jobs())
    with pytest.raises(StoreFull):
        await app.enqueue_many("noop", some())
    [told] = [line for line in (await app.operations.audit.list_audit()).lines if line.action == "enqueue"]
    assert (told.actor, told.subject) == ("ann", "noop")
    assert told.detail.startswith(f"{BATCH_MAX:,} runs: {line.batches[0][0]}, ")
    await app.close()


async def test_whoever_is_cut_off_while_it_waits_cuts_off_the_write(app, line):
    line.gate.clear()
    asking = asyncio.ensure_future(app.enqueue_many("noop", some(10)))
    await until(lambda: line.writing)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(asking, PATIENCE)
    assert (line.is_cut, line.writing, len(line.batches)) == (True, 0, 1)


async def test_whoever_is_cut_off_while_it_makes_a_batch_cuts_off_the_write_before(app, line, dice):
    line.gate.clear()
    asking = asyncio.ensure_future(app.enqueue_many("noop", some()))
    dice.at, dice.happen = 2, asking.cancel
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(asking, PATIENCE)
    assert dice.begun == 2
    assert (line.is_cut, line.writing, len(line.batches)) == (True, 0, 1)
