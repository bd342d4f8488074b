"""The next run begins after the end of the one before was read, however close that end is to its due time."""

import asyncio

import pytest

from pollux.events import RunFired, RunReleased
from pollux.model import Done, Node, Overlap, RunState
from pollux.runtime.loop import Rest
from pollux.testing.conformance.builders import a_run, an_outcome, settlement
from pollux.testing.conformance.records import whole_dump
from tests.runtime.fakes import Heard, settle_down
from tests.runtime.test_timekeeper import MINUTE, Office, every


class Between:
    """A store where something happens just before a plan is written: after the feed was read, that is."""

    def __init__(self, store):
        self._store = store
        self.capabilities, self.scheduler_version = store.capabilities, store.scheduler_version
        self.happens = []  # calls, one for each plan to come

    def __getattr__(self, verb):
        return getattr(self._store, verb)

    async def advance(self, *args, **options):
        if self.happens:
            await self.happens.pop(0)()
        return await self._store.advance(*args, **options)


class World(Office):
    """A leader, one run of its job in the hands of a worker, and the next due time a moment away."""

    def __init__(self):
        super().__init__(wrap=self._wrap)

    def _wrap(self, store):
        self.between = Between(store)
        return self.between

    async def begun(self, **options):
        await self.open(every(1, **options))
        await self.quiet()
        [self.first] = await self.claim()
        [job] = await self.store.get_jobs(["job"])
        await self.clock.advance(job.next_due_ms - self.clock.now_ms())
        await self.leader.turn()
        return self

    async def claim(self):
        claimed = await self.store.claim(node="n", token=f"t{len(self.store.calls)}", limit=9, lease_ms=30 * MINUTE)
        self.known = claimed.jobs  # as the worker gets them
        return claimed.runs

    async def end(self):
        """As an http poll ends: the next one says what the page was."""
        outcome = an_outcome(self.clock.now_ms(), fingerprint="etag", changed=True)
        await self.store.settle([settlement(self.first, Done(), outcome=outcome)])

    async def turn_until_fired(self):
        """Turns until the next run can be claimed; answers how each of those before it rested."""
        rests = []
        for _ in range(9):
            rests.append(await self.timekeeper.turn())
            runs = await self.claim()
            if runs:
                return runs, rests[:-1]
        raise AssertionError("it never fired")


async def test_a_run_is_not_made_before_the_end_of_the_one_before_was_read():
    world = await World().begun()
    world.between.happens.append(world.end)

    [run], rests = await world.turn_until_fired()

    assert run.id != world.first.id
    assert world.known["job"].memory.fingerprint == "etag", "the worker polls with what the last poll learnt"
    assert set(rests) == {Rest.NONE}, "nothing keeps it waiting"


async def test_a_run_is_not_made_before_what_was_read_of_the_one_before_is_written():
    world = await World().begun()
    await world.end()

    [_], rests = await world.turn_until_fired()

    assert world.known["job"].memory.fingerprint == "etag"
    assert set(rests) <= {Rest.NONE}


async def test_a_run_that_ends_close_to_every_due_time_fires_each_once_and_is_not_late():
    world = await World().begun()
    heard = []
    for _ in range(5):
        world.between.happens.append(world.end)
        [world.first], rests = await world.turn_until_fired()
        heard.append((world.known["job"].memory.ended, len(rests)))
        [job] = await world.store.get_jobs(["job"])
        await world.clock.advance(job.next_due_ms - world.clock.now_ms())
        await world.leader.turn()

    assert heard == [(1, 2), (2, 2), (3, 2), (4, 2), (5, 2)], "read, learnt, fired: three turns without a rest"
    assert world.timekeeper.fired == 6
    assert world.timekeeper.skipped == 0
    assert world.timekeeper.late.max_ms == 0
    assert len(await world.runs()) == 6


async def test_who_allows_runs_beside_each_other_waits_for_no_end():
    world = await World().begun(overlap=Overlap.ALLOW)
    world.between.happens.append(world.end)

    _, rests = await world.turn_until_fired()

    assert rests == []


async def turns(office):
    """Some turns, none of which waits for anything."""
    for _ in range(9):
        turning = asyncio.ensure_future(office.timekeeper.turn())
        await settle_down()
        office.timekeeper.interrupt()
        await turning


@pytest.mark.parametrize("is_led", [True, False], ids=["a leader was there before", "a leader comes after"])
async def test_a_firing_that_waited_for_a_run_whose_end_was_lost_with_its_store_begins_in_the_next(is_led):
    """What nobody has read of the feed is not in a dump.  It must not wait for ever, and with it its job."""
    world = await World().begun(overlap=Overlap.QUEUE)
    await world.timekeeper.turn()
    [waiting] = [run for run in (await world.store.list_runs()).runs if run.state is RunState.HELD]
    await world.end()
    records = [record for record in await whole_dump(world.store.inner) if record[0] != "term"]

    office = Office()
    await office.open(leads=False)
    await office.store.beat(Node("n", seats=1, handlers=("h",)), ttl_ms=60 * MINUTE)
    await office.clock.advance(5 * MINUTE)
    await office.leader.turn()
    if is_led:
        await turns(office)
    await office.store.load(records)
    await turns(office)

    [run] = await office.store.get_runs([waiting.id])
    assert (run.state, run.held_reason) == (RunState.READY, "")


async def test_only_a_run_that_was_released_is_told_as_released():
    """The end of a run that somebody asked for is a question; the firing that waits may have to wait on."""
    world = await World().begun(overlap=Overlap.QUEUE)
    await world.store.beat(Node("n", seats=1, handlers=("h",)), ttl_ms=60 * MINUTE)
    await world.timekeeper.turn()
    [waiting] = [run for run in (await world.store.list_runs()).runs if run.state is RunState.HELD]
    heard = Heard(world.events, RunFired, RunReleased)  # whoever hears of one hears of the other
    await world.store.enqueue([a_run("asked", due_ms=0)])
    [asked] = await world.claim()
    await world.store.settle([settlement(asked, Done())])
    await turns(world)
    assert heard.of(RunReleased) == []

    await world.end()
    await turns(world)
    assert [event.run_id for event in heard.of(RunReleased)] == [waiting.id]
