"""Cost of many feed entries that the leader cannot decode: one rebuild of the planner in some seconds."""

import asyncio

import pytest
from msgspec.structs import replace

from pollux.events import RecordUnreadable
from pollux.model import Job, NotePut, Spoilt
from pollux.plan.leader_notes import REBUILD_APART_MS
from pollux.store.contract import PAGE_MAX as JOBS_PAGE_MAX
from pollux.store.contract import JobPut
from pollux.store.memory.state import VersionState
from tests.runtime.fakes import Heard, settle_down
from tests.runtime.test_timekeeper import Office, every


def spoil(office, count=1):
    """Add feed entries that cannot be decoded."""
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


async def test_a_flood_of_them_rebuilds_the_planner_once_in_some_seconds_and_each_is_put_aside_at_once(office):
    heard, before = Heard(office.events, RecordUnreadable), office.timekeeper.rebuilds
    office.timekeeper.start()
    office.leader.start()
    for _ in range(40):
        spoil(office)
        await office.clock.advance(100)
        assert await left(office) == 0
    assert office.timekeeper.rebuilds == before + 1
    await office.clock.advance(2 * REBUILD_APART_MS)

    assert office.timekeeper.rebuilds == before + 2
    assert [event.more for event in heard.all] == [0] * 40
    [entries] = await office.store.inner.notes("leader:feed")
    assert entries.value["count"] == 40
    await office.timekeeper.stop()
    await office.leader.stop()


async def test_those_of_one_read_are_reported_together_and_do_not_hide_the_others(office):
    heard = Heard(office.events, RecordUnreadable)
    spoil(office, 300)
    await office.store.put_jobs([JobPut(every(60, id="new"))])
    await turns(office)

    assert (len(await office.runs()), await left(office)) == (2, 0)
    assert [event.more for event in heard.all] == [99, 99, 99]


async def test_the_settings_are_read_again_after_one(office):
    """It may have reported a changed one."""
    await office.store.put_notes([NotePut("setting:pool.seats", 3)])
    await office.quiet()
    changed = []
    office.timekeeper.on_notes = changed.extend
    spoil(office)
    await turns(office)

    assert "setting:pool.seats" in changed


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
    assert pages == [0, 1, 1, 1], "all of them, those of another version too, once the entry is consumed"
    assert await left(office) == 0
