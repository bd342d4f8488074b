"""A leader that cannot read a record: reports it once, goes on, and loses nothing that can be found.

On each store with a real server or file, written into by hand: a leader that turns by hand, by the real clock.
"""

import time

import apsw
import asyncpg
import pytest
from redis.asyncio import Redis

from pollux import Pollux
from pollux import every as schedule_every
from pollux.cli.doctor import deployment
from pollux.cli.doctor.deployment import of_records
from pollux.clock import StoreClock, SystemClock
from pollux.errors import Illegible
from pollux.events import Events, RecordUnreadable
from pollux.model import (
    Answer,
    Cause,
    Done,
    Firing,
    Interval,
    Job,
    Node,
    NotePut,
    Once,
    Plan,
    RunState,
    run_of,
    unreadable_note,
)
from pollux.plan import Planner
from pollux.runtime.leader import Leader
from pollux.runtime.timekeeper import Timekeeper
from pollux.store.contract import JobPut, Pruning, RunFilter
from pollux.store.decoding import readable_part
from pollux.store.postgres import check as of_postgres
from pollux.store.postgres.address import read_address
from pollux.store.redis import check as of_redis
from pollux.store.sqlite import check as of_sqlite
from pollux.store.sqlite.inspect import look_inside
from pollux.store.urls import open_store
from pollux.testing.conformance.builders import settlement
from tests.chaos.yard import wait_until
from tests.runtime.fakes import Heard
from tests.servers import postgres, redis

NEWER = b'{"type":"of a newer release","ids":["a"]}'


class InSqlite:
    """Somebody with the command line of SQLite."""

    def __init__(self, folder):
        self._path = folder / "store.db"
        self.url = f"sqlite:///{self._path}"

    async def do(self, statement, *values):
        connection = apsw.Connection(str(self._path))
        connection.set_busy_timeout(60_000)
        found = connection.execute(statement, values).fetchall()
        connection.close()
        return found

    async def add_entry(self, body=NEWER):
        await self.do("INSERT INTO feed (ends, body) VALUES (0, ?)", body)

    async def spoil_entries(self):
        await self.do("UPDATE feed SET body = CAST('what' AS BLOB)")

    async def definition(self, job_id):
        return (await self.do("SELECT definition, revision FROM jobs WHERE id = ?", job_id))[0]

    async def define(self, job_id, text):
        await self.do("UPDATE jobs SET definition = ?, revision = revision + 1 WHERE id = ?", text, job_id)

    async def spoil_note(self, key):
        await self.do("UPDATE notes SET value = CAST('what' AS BLOB) WHERE key = ?", key)

    async def spoil_run(self, run_id):
        await self.do("UPDATE runs SET payload = CAST('what' AS BLOB) WHERE id = ?", run_id)

    async def spoil_memory(self, job_id):
        await self.do("UPDATE jobs SET memory = CAST('what' AS BLOB) WHERE id = ?", job_id)

    async def inside(self):
        return look_inside(self._path, now_ms=int(time.time() * 1000))

    async def check(self):
        return of_sqlite.check(self._path, lambda *_: None)

    async def repair(self):
        of_sqlite.repair(self._path)


class InPostgres:
    """Somebody with psql."""

    def __init__(self, _):
        self.url = postgres.own_url("spoilt")
        self._schema = read_address(self.url).schema

    async def do(self, statement, *values):
        connection = await asyncpg.connect(postgres.shared_url())
        try:
            return [tuple(row) for row in await connection.fetch(statement.format(s=self._schema), *values)]
        finally:
            await connection.close()

    async def add_entry(self, body=NEWER):
        """Under the next number of ours, which the sequence does not know of."""
        [[name]] = await self.do("SELECT pg_get_serial_sequence('{s}.feed', 'id')")
        await self.do(
            "INSERT INTO {s}.feed (id, version, ends, body) OVERRIDING SYSTEM VALUE "
            f"SELECT greatest(last_value, (SELECT max(id) FROM {{s}}.feed)) + 1, 2, 0, $1 FROM {name}",
            body,
        )

    async def spoil_entries(self):
        await self.do("UPDATE {s}.feed SET body = 'what'")

    async def definition(self, job_id):
        return (await self.do("SELECT definition, revision FROM {s}.jobs WHERE id = $1", job_id))[0]

    async def define(self, job_id, text):
        await self.do("UPDATE {s}.jobs SET definition = $1, revision = revision + 1 WHERE id = $2", text, job_id)

    async def spoil_note(self, key):
        await self.do("UPDATE {s}.notes SET value = 'what' WHERE key = $1", key)

    async def spoil_run(self, run_id):
        await self.do("UPDATE {s}.runs SET payload = 'what' WHERE id = $1", run_id)

    async def spoil_memory(self, job_id):
        await self.do("UPDATE {s}.jobs SET memory = 'what' WHERE id = $1", job_id)

    async def inside(self):
        return await deployment._inside(self.url, int(time.time() * 1000))

    async def check(self):
        return await of_postgres.check(self.url, lambda *_: None)

    async def repair(self):
        await of_postgres.repair(self.url)


class InRedis:
    """Somebody with redis-cli."""

    def __init__(self, _):
        self.url = redis.own_url("spoilt")
        self._prefix = f"pollux:{self.url.partition('namespace=')[2]}:"

    async def do(self, command, key, *values):
        async with Redis.from_url(redis.shared_url()) as client:
            return await client.execute_command(command, self._prefix + key, *values)

    async def add_entry(self, body=b"\x82\xa4type\xa5ended"):  # and nothing behind it
        await self.do("XADD", "feed", "*", "ends", 0, "entry", body)

    async def spoil_entries(self):
        for number, _ in await self.do("XRANGE", "feed", "-", "+"):
            await self.do("XDEL", "feed", number)
            await self.add_entry()

    async def definition(self, job_id):
        return await self.do("HMGET", f"job:{job_id}", "def", "rev")

    async def define(self, job_id, text):
        await self.do("HSET", f"job:{job_id}", "def", text)
        await self.do("HINCRBY", f"job:{job_id}", "rev", 1)

    async def spoil_note(self, key):
        await self.do("HSET", "notes", key, "what")

    async def spoil_run(self, run_id):
        await self.do("HSET", f"run:{run_id}", "b", "what")

    async def spoil_memory(self, job_id):
        await self.do("HSET", f"job:{job_id}", "mem", "what")

    async def inside(self):
        return await deployment._inside(self.url, int(time.time() * 1000))

    async def check(self):
        return await of_redis.check(self.url, lambda *_: None)

    async def repair(self):
        await of_redis.repair(self.url)


@pytest.fixture(params=[InSqlite, InPostgres, InRedis], ids=["sqlite", "postgres", "redis"])
def hand(request, tmp_path):
    return request.param(tmp_path)


@pytest.fixture
async def store(hand):
    opened = open_store(hand.url)
    await opened.open()
    yield opened
    await opened.close()


class Office:
    """A leader's side of a node, by the real clock: it turns as long as it is told to."""

    def __init__(self, store, name):
        clock, events = SystemClock(), Events()
        self.store, self.heard, self.renew_at = store, Heard(events, RecordUnreadable), 0.0
        self.leader = Leader(store, name, clock=clock, events=events)
        options = {"clock": clock, "events": events, "wait_max_ms": 1, "turn_rest_ms": 0}
        self.timekeeper = Timekeeper(store, self.leader, StoreClock(clock, events), Planner, **options)

    async def until(self, look, what):
        """Turn until it is so."""
        deadline = time.monotonic() + 60
        while not await look():
            assert time.monotonic() < deadline, f"{what}: not within 60 s"
            if self.leader.term is None or time.monotonic() > self.renew_at:
                await self.leader.turn()
                self.renew_at = time.monotonic() + 5
            await self.timekeeper.turn()

    async def all_read(self):
        async def is_empty():
            return not (await self.store.feed(limit=1)).items

        await self.until(is_empty, "an empty feed")

    def said(self):
        return [(event.kind, event.name) for event in self.heard.all]


@pytest.fixture
async def lead(store):
    """Another leader each time; the one before is gone."""
    offices = []

    async def lead():
        for office in offices:
            await office.leader.resign()
        offices.append(Office(store, f"leader-{len(offices)}"))
        await offices[-1].all_read()
        return offices[-1]

    return lead


async def put(store, *jobs):
    assert {each.answer.value for each in await store.put_jobs([JobPut(job) for job in jobs])} <= {"ok", "already"}


def every(ms, id="job", **options):
    return Job(id=id, handler="h", schedule=Interval(ms), **options)


async def runs_of(store, job_id):
    return len((await store.list_runs(RunFilter(job_id=job_id))).runs)


async def work(store):
    """Run all that is ready."""
    token = f"t{time.monotonic_ns()}"
    taken = (await store.claim(node="n", token=token, limit=100, lease_ms=60_000)).runs
    await store.settle([settlement(run, Done()) for run in taken])


async def fires_on(office, job_id):
    """It fires, ends, and fires again."""
    before = await runs_of(office.store, job_id)

    async def twice_more():
        await work(office.store)
        return await runs_of(office.store, job_id) >= before + 2

    await office.until(twice_more, f"two more firings of {job_id}")


async def findings(hand):
    """But for the counts: of what was put there by hand nobody has counted that it came."""
    return {found.rule: found for found in (await hand.check()).findings if found.rule != "counts"}


async def note(store, key):
    return [unreadable_note(each) for each in await store.notes(key)]


# entries of the feed


async def test_an_entry_that_cannot_be_read_is_set_aside_and_said_once(hand, store, lead):
    await put(store, every(100, "a"))
    office = await lead()
    await hand.add_entry()
    [number] = [item.id for item in (await store.feed(limit=100)).items]
    await office.all_read()
    await fires_on(office, "a")

    assert office.said() == [("entry", str(number))]
    [aside] = await note(store, "leader:feed:2")
    assert (aside.count, list(aside.named)) == (1, [str(number)])
    assert aside.texts[str(number)]
    [found] = (await findings(hand)).values()
    assert (found.rule, found.count, found.can_repair) == ("aside", 1, True)
    assert found.shown[0].startswith(f"{number} of version 2: ")
    doctors = of_records(await hand.inside())
    assert (doctors.level, f"entry {number} of the feed: " in doctors.seen) == ("ok", True)
    await hand.repair()
    assert (await hand.check()).findings == ()
    assert of_records(await hand.inside()).seen == "no job is unreadable"


async def test_entries_that_came_with_the_work_of_others_are_found_again_in_the_store(hand, store, lead):
    """A new job, a changed one, a run at the gate, a pause, an end: all of it unread, and none of it legible."""
    await put(store, every(3_600_000, "changed"), Job(id="gated", handler="h", target="host"), every(100, "paused"))
    office = await lead()
    await work(store)
    await put(store, every(100, "new"), every(100, "changed"))
    await store.beat(Node("n", seats=1, handlers=("h",)), ttl_ms=600_000)
    [job] = await store.get_jobs(["gated"])
    await store.enqueue([run_of(job, 1, Cause.ENQUEUED, id="at-the-gate")])
    await store.put_notes([NotePut("stop:job:paused", {"reason": "night"})])
    await hand.spoil_entries()
    await office.all_read()
    await fires_on(office, "new")
    await fires_on(office, "changed")

    assert {kind for kind, _ in office.said()} == {"entry"}
    [gated] = await store.get_runs(["at-the-gate"])
    assert gated.state is not RunState.HELD
    [paused] = await store.get_jobs(["paused"])
    assert paused.memory.skips.get("paused")


async def test_what_somebody_wrote_into_the_feed_stops_nobody_who_tells_the_leader(hand, store, lead):
    """Whatever number it got: ours come behind it, and each write is whole."""
    await put(store, every(100, "a"))
    office = await lead()
    await work(store)
    for _ in range(2):
        await hand.add_entry()
        await put(store, Job(id=f"new{time.monotonic_ns()}", handler="h"))
        [job] = await store.get_jobs(["a"])
        await store.enqueue([run_of(job, 1, Cause.ENQUEUED, id=f"r{time.monotonic_ns()}")])
        await work(store)
        await office.all_read()
        await fires_on(office, "a")
    [aside] = await note(store, "leader:feed:2")
    assert aside.count == 2
    assert set(await findings(hand)) == {"aside"}


async def test_a_firing_and_a_move_look_past_an_entry_that_cannot_be_read(hand, store, lead):
    await put(store, every(100, "a"))
    office = await lead()
    await work(store)
    await hand.spoil_entries()
    await hand.add_entry()
    await office.leader.turn()  # its term is young
    due_ms = int(time.time() * 1000)
    [job] = await store.get_jobs(["a"])
    firing = Firing(run_of(job, due_ms, Cause.SCHEDULE), job.revision, due_ms + 100)

    assert (await store.advance(office.leader.term, Plan(firings=(firing,)))).answer is Answer.OK
    assert await store.move_jobs(["a"], 3) == [Answer.OK]


# jobs


async def test_all_other_jobs_fire_beside_one_that_cannot_be_read_and_it_is_left_as_it_is(hand, store, lead):
    """Met among the due jobs, by a leader whose term begins; as while releases change."""
    await put(store, every(100, "a"), every(100, "b"))
    office = await lead()
    await work(store)  # who claims a run of it later sets it aside for a minute
    whole = (await hand.definition("a"))[0]
    await hand.define("a", whole.replace(b'"type":"interval"', b'"type":"of a newer release"'))
    kept = await hand.definition("a")
    assert kept[0] != whole
    office = await lead()
    before = await runs_of(store, "a")
    await fires_on(office, "b")
    await fires_on(office, "b")

    assert await runs_of(store, "a") == before
    assert await hand.definition("a") == kept
    assert office.said() == [("job", "a")]
    assert list((await note(store, "leader:jobs:2"))[0].named) == ["a"]
    wrong = await findings(hand)
    assert set(wrong) == {"records", "unplanned"}
    assert wrong["unplanned"].shown[0].startswith("a of version 2: ")
    doctors = of_records(await hand.inside())
    assert (doctors.level, "the leader cannot read job a: " in doctors.seen) == ("warn", True)
    await put(store, every(150, "a"))
    await fires_on(office, "a")
    assert await note(store, "leader:jobs:2") == []
    assert (await hand.check()).findings == ()


async def test_the_leader_after_one_that_could_not_read_a_new_job_plans_it(hand, store, lead):
    """Its entry is consumed, and nobody puts it again: the note tells of it."""
    await put(store, every(100, "a"), every(100, "b"))
    whole = (await hand.definition("a"))[0]
    await hand.define("a", b"what")
    office = await lead()
    await fires_on(office, "b")
    assert await runs_of(store, "a") == 0
    await hand.define("a", whole)
    office = await lead()
    await fires_on(office, "a")
    assert office.said() == []


async def test_who_asks_for_jobs_is_told_of_all_that_cannot_be_read_and_has_the_others(hand, store):
    await put(store, every(100, "a"), every(100, "b"), every(100, "c"))
    for job_id in ("a", "c"):
        await hand.define(job_id, b"what")

    with pytest.raises(Illegible, match=r"job 'a' cannot be read .* `pollux store check` .* \(and 1 more\)") as caught:
        await store.get_jobs(["a", "b", "c", "d"])
    assert [each.name for each in caught.value.unreadable] == ["a", "c"]
    assert [None if job is None else job.id for job in caught.value.rest] == [None, "b", None, None]
    found, after, is_more = [], None, True
    while is_more:
        page, _ = await readable_part(store.list_jobs(after=after, limit=1))
        found += [job.id for job in page.jobs]
        after, is_more = page.next, page.next is not None
    assert found == ["b"]


# whatever else


async def test_a_held_run_and_a_pause_that_cannot_be_read_do_not_stop_the_leader_and_the_pause_stands(
    hand, store, lead
):
    await put(store, Job(id="gated", handler="nobody", target="host"), every(100, "a"), every(100, "paused"))
    [job] = await store.get_jobs(["gated"])
    await store.enqueue([run_of(job, 1, Cause.ENQUEUED, id=name, payload={"n": 1}) for name in ("one", "two")])
    await store.put_notes([NotePut("stop:job:paused", {"reason": "night"})])
    await hand.spoil_run("one")
    await hand.spoil_note("stop:job:paused")
    office = await lead()
    await fires_on(office, "a")

    assert set(office.said()) == {("run", "one"), ("note", "stop:job:paused")}
    assert await runs_of(store, "paused") == 0
    [two] = await store.get_runs(["two"])
    assert "no live node has" in two.held_reason


@pytest.mark.parametrize("ends", [True, False], ids=["ended", "cancelled"])
async def test_a_once_job_whose_memory_cannot_be_read_is_pruned_like_all_others(hand, store, lead, ends):
    await put(store, Job(id="once", handler="h", schedule=Once()), Job(id="other", handler="h", schedule=Once()))
    office = await lead()
    if ends:
        await work(store)
    else:
        await store.cancel(job_id="once")
        await store.cancel(job_id="other")
    await office.all_read()
    await hand.spoil_memory("once")
    later = int(time.time() * 1000) + 10**7

    assert await store.prune(Pruning(finished_before_ms=later)) == 2
    assert await store.prune(Pruning(once_before_ms=later)) == 2
    assert await store.get_jobs(["once", "other"]) == [None, None]


async def test_a_node_goes_on_beside_all_of_it_and_its_health_and_log_name_it(hand, caplog):
    app, ticks = Pollux(hand.url, name="spoilt", seats=4), []

    @app.job(schedule_every("200ms"))
    async def tick(ctx):
        ticks.append(ctx.run.id)

    @app.job(schedule_every("200ms"))
    async def other(ctx):
        ticks.append(ctx.run.id)

    async def records():
        [found] = [finding for finding in (await app.operations.status.health()).findings if finding.name == "records"]
        return found

    async def has_both():
        return {run_id.partition("@")[0] for run_id in ticks} == {"tick", "other"}

    async def is_named():
        return "job other: " in (await records()).seen

    async def goes_on():
        return len([run_id for run_id in ticks if run_id.startswith("tick@")]) >= since + 2

    with caplog.at_level("WARNING", logger="pollux"):
        async with app:
            await wait_until(has_both, "a run of each")
            await hand.define("other", b"what")
            await hand.add_entry()
            await wait_until(is_named, "the job in the health")
            since = len([run_id for run_id in ticks if run_id.startswith("tick@")])
            await wait_until(goes_on, "more runs")
            assert (await records()).level == "degraded"
    said = [record.getMessage() for record in caplog.records if "cannot be read by the leader" in record.getMessage()]
    assert sorted(line.partition(" ")[0] for line in said) == ["entry", "job"]


async def test_whoever_is_told_to_delete_it_or_put_it_anew_can(hand, store):
    await put(store, every(100, "a"), every(100, "b"), every(100, "c"))
    for job_id in ("a", "b", "c"):
        await hand.define(job_id, b"what")
    app = Pollux(hand.url)
    await app.open()
    try:
        await app.operations.jobs.delete_jobs(["a"])
        await app.put_jobs([every(100, "b")])
    finally:
        await app.close()
    jobs, unreadable = await readable_part(store.get_jobs(["a", "b", "c"]))

    assert [None if job is None else job.id for job in jobs] == [None, "b", None]
    assert [each.name for each in unreadable] == ["c"]


async def test_a_node_starts_beside_spoilt_jobs_of_its_own_source_and_leaves_them(hand, store):
    """Perhaps they are a newer release's, declared here or not; and a pause that cannot be read is heeded."""

    def app_with(*names):
        app = Pollux(hand.url, name="shop", seats=2)
        for name in names:
            app.job(schedule_every("200ms"), id=name)(lambda ctx, name=name: ran.append(name))
        return app

    ran = []
    async with app_with("fine", "declared", "newer", "paused"):
        pass
    ran.clear()
    await store.put_notes([NotePut("stop:job:paused", {"reason": "night"}), NotePut("setting:pool.seats", 3)])
    for key in ("stop:job:paused", "setting:pool.seats"):
        await hand.spoil_note(key)
    for name in ("declared", "newer"):
        await hand.define(name, b"what")
    before = [await hand.definition(name) for name in ("declared", "newer")]

    async def has_run():
        return ran.count("fine") >= 2

    async with app_with("fine", "declared", "paused"):
        await wait_until(has_run, "runs of the job that can be read")
    assert set(ran) == {"fine"}
    assert [await hand.definition(name) for name in ("declared", "newer")] == before
