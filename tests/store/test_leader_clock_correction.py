"""What a leader wrote by a clock a day ahead is put right by the next one, on every store by its own clock."""

import pytest

from pollux.cli.doctor.deployment import of_dues
from pollux.cli.doctor.finding import OK, WARN
from pollux.clock import StoreClock, SystemClock
from pollux.events import Events
from pollux.model import (
    SCHEDULER_VERSION,
    Back,
    Cron,
    Interval,
    Job,
    JobUpdate,
    Memory,
    Note,
    NotePut,
    Plan,
    Release,
    RetryAt,
)
from pollux.model.leader_notes import CLOCK, ClockSetBack, clock_key, clock_note, clock_notes, clock_value
from pollux.plan import Planner
from pollux.plan.due_decision import lies_ahead
from pollux.runtime.leader import Leader
from pollux.runtime.timekeeper import Timekeeper
from pollux.store.contract import Answer, JobPut
from pollux.store.sqlite.inspect import DatabaseReport
from pollux.store.urls import open_store
from pollux.testing.conformance.builders import a_run, settlement
from tests.servers import postgres, redis

MINUTE, HOUR = 60_000, 3_600_000
DAY = 24 * HOUR
DELAY_MS = 10 * MINUTE
TURNS_MAX = 500
BACK = ClockSetBack(at_ms=DAY, by_ms=DAY, jobs=12, runs=1, is_over=True)


@pytest.fixture(params=["memory", "sqlite", "redis", "postgres"])
async def store(request, tmp_path):
    urls = {
        "memory": lambda: "memory://",
        "sqlite": lambda: f"sqlite:///{tmp_path}/store.db",
        "redis": lambda: redis.own_url("setright"),
        "postgres": lambda: postgres.own_url("setright"),
    }
    opened = open_store(urls[request.param]())
    await opened.open()
    yield opened
    await opened.close()


async def planned_a_day_ahead(store, now_ms):
    """Three schedules, a retry of a plain run and one of a gated run, a run handed back; then that leader is gone."""
    there_ms = now_ms + DAY
    jobs = [
        Job(id="poll", handler="h", schedule=Interval(HOUR)),
        Job(id="sweep", handler="h", schedule=Cron("*/5 * * * *")),
        Job(id="later", handler="h", schedule=Interval(HOUR, start_ms=now_ms + 2 * DAY)),
        Job(id="asked", handler="h"),
        Job(id="gated", handler="h", target="db"),
    ]
    await store.put_jobs([JobPut(job) for job in jobs], now_ms=there_ms)
    await store.enqueue([a_run("sent away", "asked", due_ms=now_ms)], now_ms=now_ms)
    term = await store.elect("gone", ttl_ms=15_000, now_ms=there_ms)
    feed = await store.feed(limit=99, now_ms=there_ms)
    stored = dict(zip(("poll", "sweep", "later"), await store.get_jobs(["poll", "sweep", "later"]), strict=True))
    dues = {"poll": there_ms + HOUR, "sweep": there_ms + 5 * MINUTE, "later": now_ms + 2 * DAY}
    updates = [JobUpdate(job_id, stored[job_id].revision, due_ms, Memory()) for job_id, due_ms in dues.items()]
    note = NotePut(clock_key(SCHEDULER_VERSION), clock_value(there_ms, None))
    plan = Plan(consumed=tuple(item.id for item in feed.items), updates=tuple(updates), notes=(note,))
    assert (await store.advance(term.number, plan, now_ms=there_ms)).answer is Answer.OK
    runs = [a_run("plain", "asked", due_ms=there_ms), a_run("held", "gated", due_ms=there_ms, gated=True)]
    await store.enqueue(runs, now_ms=there_ms)
    await store.advance(term.number, Plan(releases=(Release("held"),)), now_ms=there_ms)
    claimed = await store.claim(node="n", token="t", limit=9, lease_ms=30_000, now_ms=there_ms)
    again, back = RetryAt(there_ms + DELAY_MS), Back(there_ms + DELAY_MS)
    verdicts = {run: back if run.id == "sent away" else again for run in claimed.runs}
    await store.settle([settlement(run, verdict) for run, verdict in verdicts.items()], now_ms=there_ms)
    await store.resign("gone", term=term.number, now_ms=there_ms)
    return [run.id for run, verdict in verdicts.items() if verdict is again]


@pytest.mark.parametrize(
    ("noted", "level", "words"),
    [
        (None, OK, "none is missed"),
        (clock_value(DAY, None), OK, "none is missed"),
        (clock_value(2 * DAY, None), WARN, "the clock is 1d behind the latest time used for planning"),
        (
            clock_value(DAY, BACK),
            OK,
            "none is missed; the clock came back by 1d at 1970-01-02T00:00:00Z: 12 due times and",
        ),
    ],
)
def test_doctor_tells_of_a_clock_that_came_back(noted, level, words):
    notes = [] if noted is None else [Note(clock_key(SCHEDULER_VERSION), noted)]
    found = of_dues(DatabaseReport(is_ours=True, version=1, newest=1, clocks=clock_notes(notes)), DAY)
    assert (found.level, bool(found.cure)) == (level, level == WARN)
    assert found.seen.startswith(words)


async def test_due_times_and_retries_a_day_ahead_are_put_right(store):
    now_ms = (await store.feed(limit=1)).now_ms
    retried = await planned_a_day_ahead(store, now_ms)
    assert sorted(retried) == ["held", "plain"]
    clock, events = SystemClock(), Events()
    leader, told = Leader(store, "new", clock=clock, events=events), StoreClock(clock, events)
    timekeeper = Timekeeper(store, leader, told, Planner, clock=clock, events=events, wait_max_ms=50)
    leader.on_answer = lambda term: told.learn(term.now_ms)
    await leader.turn()
    assert leader.term is not None

    for _ in range(TURNS_MAX):
        await timekeeper.turn()
        [noted] = [clock_note(note) for note in await store.notes(CLOCK)]
        if noted.back is not None and noted.back.is_over:
            break
    done_ms = (await store.feed(limit=1)).now_ms
    assert noted.back is not None
    assert (noted.back.is_over, noted.back.jobs, noted.back.runs) == (True, 2, len(retried) + 1)
    assert noted.highest_ms <= done_ms
    jobs = {job.id: job for job in await store.get_jobs(["poll", "sweep", "later"])}
    assert not [job.id for job in jobs.values() if lies_ahead(job, done_ms)]
    assert jobs["poll"].next_due_ms <= done_ms + HOUR
    assert jobs["later"].next_due_ms == now_ms + 2 * DAY
    for run in await store.get_runs(retried):
        assert now_ms + DELAY_MS <= run.visible_ms <= done_ms + DELAY_MS
    [handed_back] = await store.get_runs(["sent away"])
    assert handed_back.visible_ms <= done_ms
    await leader.resign()
