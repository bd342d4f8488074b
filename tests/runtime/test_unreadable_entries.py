"""Cost of many feed entries that the leader cannot read: one scan of all jobs in some seconds, and one event."""

import asyncio

import pytest
from msgspec.structs import replace

from pollux.events import RecordUnreadable
from pollux.model import FeedItem, Job, JobsPut, NotePut, Spoilt
from pollux.runtime.timekeeper import APART_MS, UNREADABLE_MAX, WAITING_MAX, UnreadableEntries
from pollux.store.contract import PAGE_MAX as JOBS_PAGE_MAX
from pollux.store.contract import JobPut
from pollux.store.memory.state import VersionState
from tests.runtime.fakes import Heard, settle_down
from tests.runtime.test_timekeeper import Office, every


def spoil(office, count=1):
    """Somebody puts entries into the feed that nobody can read."""
    for _ in range(count):
        office.store.inner.memory._do(VersionState.tell, Spoilt("odd", "what"))


def spoilt_in(feed):
    return [item.id for item in feed.items if isinstance(item.entry, Spoilt)]


async def left(office):
    return len(spoilt_in(await office.store.inner.feed(limit=10_000)))


async def turns(office, count=20):
    for _ in range(count):
        turn = asyncio.ensure_future(office.timekeeper.turn())
        await settle_down()
        office.timekeeper.interrupt()
        await turn


@pytest.fixture
async def office():
    opened = await Office().open(every(60))
    await opened.quiet()
    return opened


async def test_a_flood_of_them_costs_one_look_in_some_seconds_and_they_are_told_together(office):
    heard, before = Heard(office.events, RecordUnreadable), office.timekeeper.rebuilds
    office.timekeeper.start()
    office.leader.start()
    for _ in range(40):
        spoil(office)
        await office.clock.advance(100)
    assert office.timekeeper.rebuilds == before + 1
    await office.clock.advance(2 * APART_MS)

    assert office.timekeeper.rebuilds == before + 2
    assert await left(office) == 0
    assert [event.more for event in heard.all] == [0, 38]
    [aside] = await office.store.inner.notes("leader:feed")
    assert aside.value["count"] == 40
    await office.timekeeper.stop()
    await office.leader.stop()


async def test_what_can_be_read_is_read_beside_those_that_wait(office):
    """Also behind a page of them."""
    spoil(office)
    await turns(office)
    assert await left(office) == 0
    spoil(office, 300)
    await office.store.put_jobs([JobPut(every(60, id="new"))])
    await turns(office)

    assert len(await office.runs()) == 2
    assert await left(office) == 300
    await office.clock.advance(APART_MS)
    await office.leader.turn()
    await turns(office)
    assert await left(office) == 0


async def test_very_many_do_not_wait_for_each_other(office):
    spoil(office)
    await turns(office)
    before = office.timekeeper.rebuilds
    spoil(office, WAITING_MAX + 50)
    await turns(office, 40)

    assert (await left(office), office.timekeeper.rebuilds) == (50, before + 1)


def entries(*numbers):
    return [FeedItem(number, Spoilt("odd")) for number in numbers] + [FeedItem(10_000, JobsPut(("a",), 1))]


def test_a_look_that_was_begun_ends_whatever_comes_meanwhile():
    """As long as one that it began behind is in the feed it is not over; the next one begins some seconds later."""
    spoilt = UnreadableEntries()
    assert list(spoilt.rebuild_after(entries(1), 0)) == [1]
    assert not spoilt.rebuild_after(entries(1, *range(2, 2_000)), 10 * APART_MS)
    assert (len(spoilt.waiting), spoilt.page) == (1_998, UNREADABLE_MAX)
    assert not spoilt.rebuild_after(entries(2, 3), 11 * APART_MS - 1)
    assert list(spoilt.rebuild_after(entries(2, 3), 11 * APART_MS)) == [2, 3]
    assert not spoilt.rebuild_after(entries(2, 3), 20 * APART_MS)
    assert not spoilt.rebuild_after(entries(), 21 * APART_MS)
    assert len(spoilt) == 0


async def test_of_all_notes_only_the_pauses_are_read_when_one_changes(office):
    await office.store.put_jobs([JobPut(Job(id="other", handler="h"))])
    await office.store.put_notes([NotePut("stop:job:other", {"reason": "night"})])
    before = office.store.count("notes")
    await office.quiet()

    assert [args for args, _ in office.store.sent("notes")[before:]] == [("stop:",)]


async def test_of_all_jobs_one_page_is_read_in_a_turn_so_that_firings_go_on_beside_it(office):
    many = [JobPut(Job(id=f"j{number:04}", handler="h")) for number in range(JOBS_PAGE_MAX)]
    for number in (2, 3):
        version = office.store.inner.of_version(number)
        for start in range(0, len(many), 500):
            some = many[start : start + 500]
            await version.put_jobs([JobPut(replace(put.job, id=f"v{number}{put.job.id}")) for put in some])
    await office.quiet()
    spoil(office)
    office.store.calls.clear()

    pages = []
    for _ in range(4):
        before = office.store.count("list_jobs")
        turn = asyncio.ensure_future(office.timekeeper.turn())
        await settle_down()
        office.timekeeper.interrupt()
        await turn
        pages.append(office.store.count("list_jobs") - before)
    assert pages[:3] == [1, 1, 1]
    assert await left(office) == 0, "all of them were looked at, those of another version too"
