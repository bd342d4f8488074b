"""A clock that was a day ahead and is corrected, with a change of the leader in between: every schedule goes on."""

import pytest

from pollux import Pollux, Transient, cron, every
from pollux.clock import FakeClock, StoreClock
from pollux.events import Events
from pollux.model import Interval, Job, Once, Overlap, RunState
from pollux.model.leader_notes import CLOCK, clock_note
from pollux.plan import Planner
from pollux.runtime.leader import Leader
from pollux.runtime.timekeeper import Timekeeper
from pollux.store.contract import BATCH_MAX, PAGE_MAX, JobPut, RunFilter
from pollux.store.memory import MemoryStore
from pollux.testing import story
from tests.runtime.fakes import Spy, settle_down

AT = "2026-03-01T08:00Z"
MINUTE = 60_000
HOUR = 60 * MINUTE
DAY = 24 * HOUR
HOW = pytest.mark.parametrize("how", ["stop", "crash"])


@pytest.fixture
def app(tmp_path):
    return Pollux(f"sqlite:///{tmp_path}/real.db", name="shop")


async def leave(tale, how):
    await (tale.stop() if how == "stop" else tale.crash())


@HOW
async def test_every_schedule_goes_on_after_a_restart(app, how):
    @app.job(every("10m"))
    async def poll(ctx): ...

    @app.job(cron("*/10 * * * *"))
    async def sweep(ctx): ...

    async with story(app, at=AT) as tale:
        await tale.advance("30m")
        tale.jump("1d")
        await tale.advance("30m")
        await leave(tale, how)
        tale.jump("-1d")
        before = tale.fired(poll), tale.fired(sweep)
        assert "further ahead than its schedule allows" in tale.why(poll).reason or how == "stop"
        await tale.start()
        await tale.advance("2h")
        assert (tale.fired(poll) - before[0], tale.fired(sweep) - before[1]) == (12, 12)
        for job in (poll, sweep):
            dues = [run.due_ms for run in tale.runs(job)]
            assert len(dues) == len(set(dues))


@pytest.mark.parametrize(
    ("by", "ahead", "how", "fires"), [("50s", "30s", "stop", 18), ("50s", "30s", "crash", 4), ("16s", "5s", "stop", 23)]
)
async def test_a_clock_that_was_seconds_ahead_keeps_no_schedule_waiting_for_them(app, by, ahead, how, fires):
    """What fired in the time that is lived twice does not fire again; a crashed leader's term lasts 15 s."""

    @app.job(every("1s"))
    async def poll(ctx): ...

    async with story(app, at=AT) as tale:
        await tale.advance("30s")
        tale.jump(by)
        await tale.advance(ahead)
        await leave(tale, how)
        tale.jump(f"-{by}")
        before = tale.fired(poll)
        await tale.start()
        await tale.advance("30s")
        assert tale.fired(poll) - before >= fires
        dues = [run.due_ms for run in tale.runs(poll)]
        assert len(dues) == len(set(dues))
        expected_ms = tale.why(poll).expected_ms
        assert expected_ms is None or expected_ms - tale.clock.now_ms() <= 1_000


async def test_every_schedule_goes_on_if_the_leader_changed_while_the_clock_was_ahead(app):
    """The new leader has read the next minute of due times and no more when the clock is set right in its term."""

    @app.job(cron("*/10 * * * *"))
    async def sweep(ctx): ...

    async with story(app, at=AT) as tale:
        await tale.advance("30m")
        tale.jump("1d")
        await tale.advance("35m")
        await tale.restart()
        await tale.advance("30s")
        tale.jump("-1d")
        before = tale.fired(sweep)
        await tale.advance("2h")
        assert tale.fired(sweep) - before == 12


@HOW
async def test_a_retry_that_was_a_day_away_comes_as_its_policy_says(app, how):
    @app.job(every("10m"), retry={"attempts": 5, "base": "2m", "jitter": 0})
    async def poll(ctx): ...

    @app.job(retry={"attempts": 5, "base": "2m", "jitter": 0}, target="db")
    async def gated(ctx): ...

    async with story(app, at=AT) as tale:
        await tale.advance("30m")
        tale.jump("1d")
        await tale.advance("5m")
        for job in (poll, gated):
            tale.fail(job, Transient("no answer"), times=1)
        await tale.enqueue(gated)
        await tale.run_now(poll)
        await leave(tale, how)
        tale.jump("-1d")
        await tale.start()
        await tale.advance("30s")  # until the term of a crashed one is over
        [waiting] = tale.runs(gated)
        assert 0 < waiting.visible_ms - tale.clock.now_ms() <= 2 * MINUTE
        await tale.advance("3m")
        assert [run.state for run in tale.runs(gated)] == [RunState.DONE]
        assert tale.runs(gated)[0].attempt == 1
        before = tale.fired(poll)
        await tale.advance("1h")
        assert tale.fired(poll) - before == 6, "the retry of a day ahead holds the job as an overlap"


@HOW
async def test_a_delay_that_somebody_wants_after_the_clock_came_back_is_kept(app, how):
    @app.job(cron("*/10 * * * *"))
    async def sweep(ctx): ...

    @app.job()
    async def asked(ctx): ...

    @app.job(target="db")
    async def gated(ctx): ...

    async with story(app, at=AT) as tale:
        await tale.advance("30m")
        tale.jump("1d")
        await tale.advance("30m")
        await leave(tale, how)
        tale.jump("-1d")
        await tale.start()
        for job in (asked, gated):
            await tale.enqueue(job, delay="1h")
        await tale.advance("59m")
        assert [run.fence for job in (asked, gated) for run in tale.runs(job)] == [0, 0], "they ran before their time"
        await tale.advance("2m")
        assert [run.state for job in (asked, gated) for run in tale.runs(job)] == [RunState.DONE] * 2


@HOW
async def test_what_was_wanted_at_once_while_the_clock_was_ahead_runs_as_soon_as_it_is_right(app, how):
    """Of a job that another node runs, and of a target that was paused until then."""

    @app.job(cron("*/10 * * * *"))
    async def sweep(ctx): ...

    @app.job(target="db")
    async def gated(ctx): ...

    async with story(app, at=AT) as tale:
        await tale.advance("30m")
        tale.jump("1d")
        await tale.advance("30m")
        await tale.pause(target="db")
        await tale.enqueue(gated)
        await tale.advance("1m")
        await leave(tale, how)
        tale.jump("-1d")
        await tale.resume(target="db")
        await tale.start()
        await tale.advance("1m")
        assert [run.state for run in tale.runs(gated)] == [RunState.DONE]


async def test_a_run_that_somebody_wants_tomorrow_stays_tomorrows(app):
    @app.job(cron("*/10 * * * *"))
    async def sweep(ctx): ...

    @app.job()
    async def asked(ctx): ...

    async with story(app, at=AT) as tale:
        at_ms = (await tale.enqueue(asked, delay="26h")).visible_ms
        tale.jump("1d")
        await tale.advance("30m")
        await tale.crash()
        tale.jump("-1d")
        await tale.start()
        await tale.advance("10m")
        assert [(run.state, run.visible_ms) for run in tale.runs(asked)] == [(RunState.READY, at_ms)]


async def test_health_tells_of_it_until_it_is_put_right_and_that_it_was(app):
    @app.job(cron("*/10 * * * *"))
    async def sweep(ctx): ...

    async def told(tale):
        await tale.advance("2s")
        findings = (await tale.app.operations.status.health()).findings
        return [(finding.level, finding.seen) for finding in findings if finding.name == "clock"]

    async with story(app, at=AT) as tale:
        await tale.advance("30m")
        assert await told(tale) == []
        tale.jump("1d")
        await tale.advance("30m")
        await tale.restart()
        tale.jump("-1d")
        [(level, seen)] = await told(tale)  # nobody leads until the term of the crashed node is over
        assert level == "degraded"
        assert seen.startswith("the clock is 23h59m")
        await tale.advance("1m")
        [(level, seen)] = await told(tale)
        assert level == "healthy"
        assert seen.endswith(": 1 due time and 0 runs were corrected")


# two nodes


class Side:
    """A leader's side of one node on a store that it shares."""

    def __init__(self, name, store, clock):
        self.store, self.clock, self.events = Spy(store), clock, Events()
        self.leader = Leader(self.store, name, clock=clock, events=self.events)
        self.time = StoreClock(clock, self.events)
        self.leader.on_answer = lambda term: self.time.learn(term.now_ms)
        self.timekeeper = Timekeeper(
            self.store, self.leader, self.time, Planner, clock=clock, events=self.events, wait_max_ms=5_000
        )
        self.leader.on_change.append(self.timekeeper.wake)

    async def start(self):
        self.leader.start()
        self.timekeeper.start()
        await settle_down()

    async def die(self):
        """Nobody is told."""
        await self.timekeeper.stop()
        await self.leader.stop()


def jobs(count, minutes=10):
    schedule = Interval(minutes * MINUTE)
    return [JobPut(Job(id=f"j{n:04}", handler="h", schedule=schedule, overlap=Overlap.ALLOW)) for n in range(count)]


async def a_pair(*puts):
    clock = FakeClock()
    store = MemoryStore(clock)
    await store.open()
    for start in range(0, len(puts), BATCH_MAX):
        await store.put_jobs(puts[start : start + BATCH_MAX])
    sides = Side("a", store, clock), Side("b", store, clock)
    for side in sides:
        await side.start()
    return store, clock, *sides


async def firings(store, from_ms, until_ms, job_id=None):
    runs = (await store.list_runs(RunFilter(job_id=job_id), limit=PAGE_MAX)).runs
    return sorted(run.due_ms for run in runs if from_ms < run.due_ms <= until_ms)


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_standby_that_noticed_the_jump_takes_over_and_every_schedule_goes_on(when):
    """The leader dies a day ahead; the standby takes its term before, or after, the clock is set right."""
    store, clock, first, standby = await a_pair(*jobs(3))
    await clock.advance(25 * MINUTE)
    clock.jump(DAY)
    await clock.advance(21 * MINUTE)
    assert standby.time.jumps == 1
    await first.die()
    if when == "before":
        await clock.advance(30_000)
        assert standby.leader.term is not None
    clock.jump(-DAY)
    right_ms = clock.now_ms()
    await clock.advance(2 * HOUR)
    assert standby.leader.term is not None
    assert standby.time.jumps == 2
    dues = await firings(store, right_ms, clock.now_ms())
    assert len(dues) >= 3 * 12 - 3  # what came due until the dead leader's term was over is caught up or counted
    await standby.die()


async def test_a_term_that_begins_with_a_sane_clock_scans_nothing():
    store, clock, first, standby = await a_pair(*jobs(3))
    await clock.advance(25 * MINUTE)
    [noted] = [clock_note(note) for note in await store.notes(CLOCK)]
    assert clock.now_ms() - 10 * MINUTE <= noted.highest_ms <= clock.now_ms()
    await first.die()
    await clock.advance(MINUTE)
    assert standby.leader.term is not None
    scans = [where.states for (where, *_), _ in standby.store.sent("list_runs")]
    assert scans == [(RunState.HELD,)], "more than what every term begins with"
    assert standby.store.count("list_jobs") == 0
    assert standby.store.count("notes") == 1
    assert {verb for verb, _, _ in standby.store.calls} <= {
        *("elect", "notes", "nodes", "counts", "list_runs", "due", "feed", "advance", "get_jobs")
    }
    await standby.die()


async def test_a_server_a_little_behind_the_last_one_is_a_sane_clock():
    """A failover, and servers that are in step as well as ordinary machines are; leaders note every few seconds."""
    _, clock, first, standby = await a_pair(
        JobPut(Job(id="often", handler="h", schedule=Interval(1_000), overlap=Overlap.ALLOW))
    )
    await clock.advance(5 * MINUTE)
    await first.die()
    clock.jump(-3_000)
    await clock.advance(MINUTE)
    assert standby.leader.term is not None
    assert standby.store.count("list_jobs") == 0
    assert [where.states for (where, *_), _ in standby.store.sent("list_runs")] == [(RunState.HELD,)]
    clock.jump(-3_000)  # also in a term
    await clock.advance(MINUTE)
    assert standby.store.count("list_jobs") == 0
    await standby.die()


async def test_the_look_goes_on_in_pages_beside_the_firings():
    count = 2 * PAGE_MAX + 500
    store, clock, first, standby = await a_pair(
        *jobs(count, minutes=600),
        JobPut(Job(id="z-often", handler="h", schedule=Interval(MINUTE, spread=False), overlap=Overlap.ALLOW)),
    )
    await clock.advance(3 * MINUTE)
    clock.jump(DAY)
    await clock.advance(3 * MINUTE)
    await first.die()
    clock.jump(-DAY)
    right_ms = clock.now_ms()
    await clock.advance(5 * MINUTE)

    calls = [verb for verb, _, _ in standby.store.calls]
    pages = [place for place, verb in enumerate(calls) if verb == "list_jobs"]
    assert len(pages) == 3
    assert "advance" in calls[pages[0] : pages[1]], "no plan was written between two pages"
    page = await store.list_jobs(limit=PAGE_MAX)
    assert all(job.next_due_ms <= clock.now_ms() + 900 * MINUTE for job in page.jobs)
    [noted] = [clock_note(note) for note in await store.notes(CLOCK)]
    assert noted.back.is_over
    assert noted.back.jobs >= count
    assert noted.highest_ms <= clock.now_ms()
    assert len(await firings(store, right_ms, clock.now_ms(), "z-often")) >= 4
    await standby.die()


async def test_a_once_job_of_now_that_was_put_a_day_ahead_fires_and_one_of_a_moment_waits_for_it():
    store, clock, first, standby = await a_pair(*jobs(1))
    await clock.advance(MINUTE)
    clock.jump(DAY)
    await clock.advance(MINUTE)
    await first.die()
    await standby.die()
    at_ms = clock.now_ms() + HOUR
    now = Job(id="now", handler="h", schedule=Once())
    await store.put_jobs([JobPut(now), JobPut(Job(id="then", handler="h", schedule=Once(at_ms=at_ms)))])
    clock.jump(-DAY)
    third = Side("c", store, clock)
    await third.start()
    await clock.advance(MINUTE)
    assert third.leader.term is not None
    live = [run.job_id for run in (await store.list_runs()).runs if run.job_id in {"now", "then"}]
    assert live == ["now"]
    assert (await store.get_jobs(["then"]))[0].next_due_ms == at_ms
    await third.die()
