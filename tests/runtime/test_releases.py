"""Nodes with different code on one store: the newest release decides, whatever starts, stops or dies in any order."""

import asyncio
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pollux import Pollux, every
from pollux.app.declarations import LOOKS, Declared, Registrar
from pollux.clock import FakeClock
from pollux.config import load_config
from pollux.errors import Conflict, InvalidInput
from pollux.events import Events, JobsDeclared, ReleaseIsOld
from pollux.model import Interval, Job, Node
from pollux.registry import Registry
from pollux.store.contract import JobFilter
from pollux.store.memory import MemoryStore
from pollux.testing.faults import FaultyStore
from tests.runtime.fakes import Heard, settle_down

BEAT_MS, TTL_MS = 15_000, 45_000


class Process:
    """A node as far as declaring goes: it beats, writes its jobs, and looks again as its loop would."""

    def __init__(self, yard, number, release, jobs, *, name="app", store=None):
        registry = Registry()
        self.store = store or yard.store
        self.release, self.jobs = release, {job.id: job for job in jobs}
        self.declared = Declared(registry, source=source_of(name), release=release)
        for job_id, job in self.jobs.items():
            registry.add(job_id, _nothing)
            self.declared.add(job_id, job.schedule, id=job_id, params=None)
        self.events = Events()
        self.heard = Heard(self.events, ReleaseIsOld, JobsDeclared)
        self.node = Node(f"node-{number}", declares=self.declared.declares())
        self.registrar = Registrar(
            self.store, self.declared, self.node, clock=yard.clock, events=self.events, beat_ms=BEAT_MS
        )

    async def start(self):
        await self.beat()
        await self.registrar.begin()
        await self.registrar.turn()  # the loop's first, which only rests

    async def beat(self):
        await self.store.beat(self.node, ttl_ms=TTL_MS)


async def _nothing(ctx):
    """A handler of the tests."""


class Yard:
    """A store, and the processes that live on it."""

    def __init__(self):
        self.clock = FakeClock()
        self.store = MemoryStore(self.clock)
        self.living: list[Process] = []
        self.count = 0

    async def open(self):
        await self.store.open()
        return self

    def process(self, release, **every_seconds):
        options = {key: every_seconds.pop(key) for key in ("name", "store") if key in every_seconds}
        self.count += 1
        jobs = [a_job(job_id, seconds) for job_id, seconds in every_seconds.items()]
        return Process(self, self.count, release, jobs, **options)

    async def start(self, release, **every_seconds):
        process = self.process(release, **every_seconds)
        await process.start()
        self.living.append(process)
        return process

    async def leave(self, process):
        self.living.remove(process)
        await self.store.beat(process.node, ttl_ms=0)

    async def die(self, process):
        """Killed: the others hear of it when its beat has run out."""
        self.living.remove(process)

    async def pass_time(self, beats=1):
        for _ in range(beats):
            await self.clock.advance(BEAT_MS)
            for process in self.living:
                await process.beat()
            for process in self.living:
                await process.registrar.turn()

    async def stored(self, name="app"):
        """The jobs that fire, by their interval; and those that nobody declares."""
        page = await self.store.list_jobs(JobFilter(source=source_of(name)), limit=1_000)
        fires = {job.id: job.schedule.every_ms // 1_000 for job in page.jobs if job.declared}
        return fires, {job.id for job in page.jobs if not job.declared}


def source_of(name):
    return name if name.startswith("file:") else f"code:{name}"


def a_job(job_id, seconds):
    return Job(id=job_id, handler=job_id, schedule=Interval(seconds * 1_000))


@pytest.fixture
async def yard():
    return await Yard().open()


# one after the other


async def test_the_newer_release_wins_and_an_old_node_that_restarts_does_not_put_the_old_one_back(yard):
    old = await yard.start(1, a=10)
    await yard.start(2, a=20)
    assert await yard.stored() == ({"a": 20}, set())
    await yard.leave(old)
    again = await yard.start(1, a=10)
    assert await yard.stored() == ({"a": 20}, set())
    await yard.pass_time(6)
    assert await yard.stored() == ({"a": 20}, set())
    [said] = again.heard.of(ReleaseIsOld)
    assert (said.source, said.release, said.newest) == ("code:app", 1, 2)


async def test_the_order_of_starting_does_not_matter(yard):
    await yard.start(2, a=20, new=5)
    await yard.start(1, a=10, old=5)
    assert await yard.stored() == ({"a": 20, "new": 5}, set())


async def test_a_job_that_the_new_release_dropped_goes_on_while_an_old_node_lives_and_then_no_more(yard):
    olds = [await yard.start(1, a=10, old=5) for _ in range(2)]
    await yard.start(2, a=10)
    for old in olds:
        await yard.pass_time(4)
        assert await yard.stored() == ({"a": 10, "old": 5}, set())
        await yard.leave(old)
    await yard.pass_time()
    assert await yard.stored() == ({"a": 10}, {"old"})


async def test_a_killed_node_counts_until_its_beat_has_run_out(yard):
    old = await yard.start(1, a=10, old=5)
    await yard.start(2, a=10)
    await yard.die(old)
    await yard.pass_time(2)
    assert await yard.stored() == ({"a": 10, "old": 5}, set())
    await yard.pass_time(2)
    assert await yard.stored() == ({"a": 10}, {"old"})


async def test_what_was_retired_is_not_brought_back_by_an_old_node_but_by_a_newer_release(yard):
    old = await yard.start(1, a=10, old=5)
    await yard.leave(old)
    await yard.start(2, a=10)
    assert await yard.stored() == ({"a": 10}, {"old"})
    await yard.start(1, a=10, old=5)
    await yard.pass_time(4)
    assert await yard.stored() == ({"a": 10}, {"old"})
    await yard.start(3, a=10, old=6)
    assert await yard.stored() == ({"a": 10, "old": 6}, set())


async def test_a_newer_release_that_lives_is_known_before_it_has_written_anything(yard):
    newer = yard.process(2, a=20)
    await newer.beat()
    await yard.start(1, a=10)
    assert await yard.stored() == ({}, set())
    await newer.start()
    assert await yard.stored() == ({"a": 20}, set())


async def test_without_numbers_a_deploy_works_too_and_the_last_start_wins(yard):
    """Nobody knows which is newer; but what a living node declares goes on, and what none declares does not."""
    olds = [await yard.start(0, a=10, old=5) for _ in range(2)]
    for old in olds:
        await yard.start(0, a=20, new=5)
        await yard.leave(old)
        await yard.pass_time()
    assert await yard.stored() == ({"a": 20, "new": 5}, {"old"})


async def test_two_apps_on_one_store_never_touch_each_others_jobs(yard):
    await yard.start(7, name="first", a=10)
    second = await yard.start(1, name="second", b=10)
    await yard.pass_time(4)
    await yard.start(2, name="second", c=10)
    await yard.leave(second)
    await yard.pass_time(4)
    assert await yard.stored("first") == ({"a": 10}, set())
    assert await yard.stored("second") == ({"c": 10}, {"b"})


async def test_one_id_in_two_apps_is_refused_and_the_first_keeps_it(yard):
    await yard.start(1, name="first", a=10)
    with pytest.raises(Conflict, match="job 'a' is in code:first and in code:second"):
        await yard.start(9, name="second", a=20)
    assert await yard.stored("first") == ({"a": 10}, set())


async def test_a_node_with_a_number_forgotten_changes_nothing(yard):
    await yard.start(5, a=50)
    forgetful = await yard.start(0, a=10, b=10)
    assert await yard.stored() == ({"a": 50}, set())
    assert forgetful.heard.of(ReleaseIsOld)


async def test_alone_a_node_asks_once_in_four_beats_who_lives_and_reads_nothing_else(yard):
    faulty = FaultyStore(yard.store)
    node = await yard.start(1, store=faulty, a=10)
    faulty.calls.clear()
    assert (await node.registrar.turn()).ms == 4 * BEAT_MS
    assert faulty.calls == ["nodes"]


async def test_nodes_of_other_code_that_stay_are_not_compared_with_for_ever(yard):
    await yard.start(0, a=10, b=10)
    faulty = FaultyStore(yard.store)
    node = await yard.start(0, store=faulty, b=10, c=10)
    for _ in range(LOOKS):
        assert (await node.registrar.turn()).ms == BEAT_MS
    faulty.calls.clear()
    await node.registrar.turn()
    assert faulty.calls == ["nodes"]


# at the same time


async def test_a_write_that_crosses_a_newer_one_is_put_right_once_the_old_node_is_gone(yard):
    """The old node has read that the store is empty, and writes only after the new one has."""
    gate, faulty = asyncio.Event(), FaultyStore(yard.store)
    faulty.delay("put_jobs", gate)
    old = yard.process(1, store=faulty, a=10, old=5)
    starting = asyncio.ensure_future(old.start())
    await settle_down()
    await yard.start(2, a=20)
    gate.set()
    await starting
    yard.living.append(old)
    assert await yard.stored() == ({"a": 20, "old": 5}, set())
    await yard.pass_time(2)
    assert await yard.stored() == ({"a": 20, "old": 5}, set())
    await yard.leave(old)
    await yard.pass_time(2)
    assert await yard.stored() == ({"a": 20}, {"old"})


async def test_a_job_that_is_declared_again_while_we_retire_it_stays_declared(yard):
    """We have read that nobody else declares it, and write only after somebody does."""
    first = await yard.start(0, a=10, b=10)
    await yard.leave(first)
    gate, faulty = asyncio.Event(), FaultyStore(yard.store)
    slow = yard.process(0, store=faulty, a=10)
    faulty.delay("put_jobs", gate)
    await slow.beat()
    retiring = asyncio.ensure_future(slow.registrar.begin())
    await settle_down()
    [b] = await yard.store.get_jobs(["b"])
    await yard.start(0, a=10, b=30)
    gate.set()
    await retiring
    assert b.declared
    assert await yard.stored() == ({"a": 10, "b": 30}, set())


async def test_a_write_of_an_old_node_that_comes_after_the_retirement_is_refused_by_the_store(yard):
    """It slept so long between reading and writing that the others believed it dead."""
    gate, faulty = asyncio.Event(), FaultyStore(yard.store)
    faulty.delay("put_jobs", gate)
    sleeper = yard.process(1, store=faulty, old=5)
    starting = asyncio.ensure_future(sleeper.start())
    await settle_down()
    await yard.leave(await yard.start(1, old=5))
    await yard.clock.advance(TTL_MS)
    await yard.start(2, a=20)
    assert await yard.stored() == ({"a": 20}, {"old"})
    gate.set()
    await starting
    assert await yard.stored() == ({"a": 20}, {"old"})


async def test_an_id_that_another_app_takes_while_we_write_is_an_error_of_the_start(yard):
    gate, faulty = asyncio.Event(), FaultyStore(yard.store)
    faulty.delay("put_jobs", gate)
    starting = asyncio.ensure_future(yard.process(5, name="first", store=faulty, a=10).start())
    await settle_down()
    await yard.start(1, name="second", a=20)
    gate.set()
    with pytest.raises(Conflict, match=r"job 'a'.*code:second"):
        await starting


async def test_a_job_that_an_old_file_took_away_meanwhile_is_put_back(yard):
    """It had read that the job is none of its own, before the newer file was there."""
    gate, faulty = asyncio.Event(), FaultyStore(yard.store)
    await yard.leave(await yard.start(1, name="file:x", a=10, b=10))
    faulty.delay("delete_jobs", gate)
    old = yard.process(1, name="file:x", store=faulty, a=10)
    starting = asyncio.ensure_future(old.start())
    await settle_down()
    await yard.start(2, name="file:x", a=10, b=20)
    gate.set()
    await starting
    yard.living.append(old)
    assert await yard.stored("file:x") == ({"a": 10}, set())
    await yard.pass_time(1)
    assert await yard.stored("file:x") == ({"a": 10, "b": 20}, set())


# in any order

RELEASES = st.integers(1, 4)
CODE = st.fixed_dictionaries(
    {
        release: st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 60), min_size=1, max_size=5)
        for release in range(1, 5)
    }
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("start"), RELEASES),
        st.tuples(st.sampled_from(["leave", "die"]), st.integers(0, 9)),
        st.tuples(st.just("pass"), st.integers(1, 4)),
    ),
    min_size=1,
    max_size=25,
)


@settings(max_examples=100, deadline=None)
@given(CODE, STEPS)
def test_whatever_starts_and_stops_the_end_is_what_the_newest_release_declares(code, steps):
    asyncio.run(_live_through(code, steps))


async def _live_through(code, steps):
    yard = await Yard().open()
    newest = 0
    for what, value in steps:
        fires = set((await yard.stored())[0])
        if what == "start":
            await yard.start(value, **code[value])
            newest = max(newest, value)
        elif what == "pass":
            await yard.pass_time(value)
        elif yard.living:
            await getattr(yard, what)(yard.living[value % len(yard.living)])
        now, retired = await yard.stored()
        if newest:
            assert code[newest].items() <= now.items(), "the newest is there as soon as it was started, and stays"
        for process in yard.living:
            assert not fires & retired & set(process.jobs), "a job was retired under a node that declares it"
    if not newest:
        return
    for process in [process for process in yard.living if process.jobs.keys() != code[newest].keys()]:
        await yard.leave(process)
    if all(process.release < newest for process in yard.living):
        await yard.start(newest, **code[newest])
    await yard.pass_time(8)
    known = set(code[newest]) | {job_id for _, retired in [await yard.stored()] for job_id in retired}
    assert (await yard.stored())[0] == code[newest]
    assert {job.id for job in (await yard.store.list_jobs(limit=1_000)).jobs} == known, "nothing was deleted"


# the app itself


def an_app(url, release=0, **options):
    app = Pollux(url, name="shop", release=release, seats=2, **options)

    @app.job(every("1h"))
    async def tick(ctx): ...

    return app


async def test_what_a_node_declares_and_since_when_it_leads_is_in_its_beat(tmp_path):
    app = an_app(f"sqlite:///{tmp_path}/p.db", release=7, leader_key="shop-1")
    won = asyncio.Event()
    async with app:
        app.runtime.leader.on_change.append(won.set)
        async with asyncio.timeout(60):
            while not (node := (await app.operations.status.nodes())[0]).leads:
                await won.wait()
                await asyncio.sleep(0.01)
    [declared] = node.declares
    assert (declared.source, declared.release, declared.jobs) == ("code:shop", 7, 1)
    assert "tick" in node.handlers
    assert node.key == "shop-1"
    assert node.started_ms <= node.leads_ms <= node.beat_ms


def test_a_release_that_the_configuration_says_is_that_of_the_code_too(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    code = (
        "from pollux import Pollux, every\napp = Pollux('memory://', release=3)\n@app.job(every('1h'))\ndef t(ctx): ..."
    )
    (tmp_path / "shop_of_releases.py").write_text(code)
    for said, expected in ((None, 3), (8, 8)):
        monkeypatch.delitem(sys.modules, "shop_of_releases", raising=False)
        config = load_config(None, environ={}, arguments={"app": "shop_of_releases:app", "release": said})
        app = Pollux.from_config(config)
        assert [job.release for job in app.declared_jobs()] == [expected]
        assert [declared.release for declared in app.declared.declares()] == [expected]


async def test_a_node_that_names_another_leadership_is_refused_and_leaves_no_trace(tmp_path):
    url = f"sqlite:///{tmp_path}/p.db"
    async with an_app(url, leader_key="production") as first:
        for key, named in (("staging", "the leadership 'staging'"), ("", "no leadership")):
            other = an_app(url, leader_key=key)
            other.add("tick", every("2h"), id="other")
            with pytest.raises(InvalidInput, match=f"'production', this one names {named};.*stop them all first"):
                await other.start()
            assert other.runtime is None
        assert [node.id for node in await first.operations.status.nodes()] == [first.node_id]
        assert [job.id for job in (await first.operations.jobs.list_jobs()).jobs] == ["tick"]
        async with an_app(url, leader_key="production"):
            assert len(await first.operations.status.nodes()) == 2
    async with an_app(url, leader_key="staging") as renamed:
        assert len(await renamed.operations.status.nodes()) == 1


async def test_a_start_that_fails_leaves_no_node_behind(tmp_path):
    url = f"sqlite:///{tmp_path}/p.db"
    async with an_app(url) as first:
        other = Pollux(url, name="other")

        @other.job(every("1h"))
        async def tick(ctx): ...

        with pytest.raises(Conflict, match="job 'tick' is in code:shop and in code:other"):
            await other.start()
        assert [node.id for node in await first.operations.status.nodes()] == [first.node_id]


async def test_a_file_of_an_older_release_changes_nothing_and_the_node_runs_all_the_same(tmp_path):
    """Not even by taking jobs away that it does not know."""

    def a_file(release, **jobs):
        app = Pollux(f"sqlite:///{tmp_path}/p.db", seats=1)
        app.handler(_nothing, name="h")
        there = [replace(a_job(job_id, s), handler="h", source="file:x", release=release) for job_id, s in jobs.items()]
        app.declared.take_file("file:x", there, release=release)
        return app

    async with a_file(3, a=10, new=10):
        pass
    async with a_file(2, a=20, old=10) as older:
        jobs = (await older.operations.jobs.list_jobs()).jobs
        assert [(job.id, job.schedule.every_ms) for job in jobs] == [("a", 10_000), ("new", 10_000)]
        [diff] = await older.declared.diff(older._store)
        assert diff.newer == 3
    async with a_file(4) as emptied:
        assert (await emptied.operations.jobs.list_jobs()).jobs == ()
