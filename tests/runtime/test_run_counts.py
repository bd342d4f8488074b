"""Counts survive errors that make the leader rebuild its planner."""

import asyncio
import itertools

import pytest

from pollux.errors import StoreError, StoreTimeout
from pollux.model import Cause, Done, Job, Node, NotePut, run_of
from pollux.model.leader_notes import counted_since
from pollux.store.contract import JobPut
from pollux.testing.conformance.builders import settlement
from tests.runtime.fakes import LOST, settle_down
from tests.runtime.test_timekeeper import Office

numbers = itertools.count()
TOLD_MS = 5_000


@pytest.fixture
async def office():
    opened = await Office().open()
    await opened.store.put_jobs([JobPut(Job(id="a", handler="h"))])
    await opened.store.beat(Node("n", seats=1, handlers=("h",)), ttl_ms=600_000)
    await opened.quiet()
    return opened


async def end_one(office):
    store = office.store.inner
    [job] = await store.get_jobs(["a"])
    run_id = f"r{next(numbers)}"
    await store.enqueue([run_of(job, office.clock.now_ms(), Cause.ENQUEUED, id=run_id)])
    claimed = (await store.claim(node="n", token=f"t{run_id}", limit=9, lease_ms=60_000)).runs
    await store.settle([settlement(run, Done()) for run in claimed])


async def turns(office):
    """Some, also where the leader was woken and none of them waits."""
    for _ in range(5):
        turn = asyncio.ensure_future(office.timekeeper.turn())
        await settle_down()
        office.timekeeper.interrupt()
        await turn


async def counted(office):
    return counted_since(await office.store.inner.notes(), 2, 0, office.clock.now_ms()).ended


async def forty_of_which_one_is_told(office):
    for _ in range(40):
        await end_one(office)
        await office.quiet()
        await office.clock.advance(100)
    assert await counted(office) == 1


async def later(office):
    await office.clock.advance(TOLD_MS)
    await office.leader.turn()
    await turns(office)


async def fails(office, error=StoreError):
    with pytest.raises(error):
        await office.timekeeper.turn()


@pytest.mark.parametrize("verb", ["feed", "notes"])
async def test_an_error_of_the_store_loses_nothing_of_the_count(office, verb):
    await forty_of_which_one_is_told(office)
    office.store.faults["feed"] = [StoreError("no")]
    await fails(office)
    assert office.timekeeper.planner is None
    if verb == "notes":  # nor one in the middle of the new beginning
        office.store.faults["notes"] = [StoreError("no")]
        await fails(office)
    await end_one(office)
    await office.quiet()
    await later(office)

    assert await counted(office) == 41


@pytest.mark.parametrize("is_written", [True, False])
async def test_a_note_of_which_nobody_knows_whether_it_was_written_counts_once(office, is_written):
    await forty_of_which_one_is_told(office)
    await office.clock.advance(TOLD_MS)
    await office.leader.turn()
    await end_one(office)
    office.store.faults["advance"] = [LOST if is_written else StoreTimeout("none"), StoreError("no")]
    await fails(office, StoreTimeout)
    assert await counted(office) == (41 if is_written else 1)
    await fails(office)
    assert office.timekeeper.planner is None
    await office.quiet()
    await end_one(office)
    await office.quiet()
    await later(office)

    assert await counted(office) == 42


async def test_a_plan_that_was_refused_though_its_first_try_was_written_counts_once(office):
    """The answer was lost, and then the term."""
    await forty_of_which_one_is_told(office)
    await office.clock.advance(TOLD_MS)
    await office.leader.turn()
    await end_one(office)
    office.store.faults["advance"] = [LOST]
    await fails(office, StoreTimeout)
    await office.store.inner.resign("a", term=office.leader.term)
    await office.timekeeper.turn()
    assert (office.timekeeper.fenced, office.timekeeper.planner) == (1, None)
    await office.clock.advance(500)
    await office.leader.turn()
    await turns(office)
    await later(office)

    assert await counted(office) == 41


async def test_who_leads_again_goes_on_with_what_it_had_not_told_beside_what_others_counted(office):
    await forty_of_which_one_is_told(office)
    store = office.store.inner
    await store.resign("a", term=office.leader.term)
    other = await store.elect("b", ttl_ms=60_000)
    office.leader.drop_term("it was given away")
    await office.timekeeper.turn()
    [told] = await store.notes("ends:")
    [(minute, row)] = told.value["minutes"].items()
    await store.put_notes([_with(told, minute, [row[0] + 7, *row[1:]])])
    await store.resign("b", term=other.number)
    await office.clock.advance(500)
    await office.leader.turn()
    await turns(office)

    assert await counted(office) == 47


def _with(note, minute, row):
    value = {**note.value, "minutes": {minute: row}}
    return NotePut(note.key, value, expires_ms=note.expires_ms)


async def test_a_leader_that_said_farewell_leaves_nothing_to_tell(office):
    await forty_of_which_one_is_told(office)
    await office.timekeeper.flush_counts()
    assert await counted(office) == 40
    office.store.faults["feed"] = [StoreError("no")]
    await fails(office)
    await office.quiet()
    await later(office)

    assert await counted(office) == 40
