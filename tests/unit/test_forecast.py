"""Forecast, compared with the real planner in virtual time and with a list of firings."""

import time
from collections import Counter

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pollux.model import Cron, Interval, Job, Memory, Misfire, Note, Once, OnEvent, Overlap, stop_key
from pollux.plan.forecast import BUCKETS_MAX, FiringTimes, bucket_width, firing_times, forecast, moments, placed
from pollux.units import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS, moment_ms
from tests.unit.plan_world import T0, Leader, World

SEATS = 10_000  # so many that catching up is not a matter of pace
LINES = ("* * * * *", "*/7 * * * *", "H/10 * * * *", "0 * * * *", "15 */20 * * * *", "H H(0-23) * * *")


def a_job(id, schedule, **options):
    return Job(id=id, handler="h", schedule=schedule, overlap=Overlap.ALLOW, **options)


@st.composite
def fleets(draw):
    jobs = []
    for number in range(draw(st.integers(1, 6))):
        schedule = draw(
            st.one_of(
                st.builds(
                    Interval,
                    st.integers(3 * SECOND_MS, 20 * MINUTE_MS),
                    st.none() | st.integers(T0 - HOUR_MS, T0 + HOUR_MS),
                    st.booleans(),
                ),
                st.builds(Cron, st.sampled_from(LINES), st.sampled_from(("UTC", "Europe/Berlin", "Asia/Kolkata"))),
                st.builds(Once, st.none() | st.integers(T0 - HOUR_MS, T0 + HOUR_MS)),
                st.just(OnEvent()),
                st.none(),
            )
        )
        jobs.append(
            a_job(
                f"{draw(st.sampled_from('abc'))}{number}",
                schedule,
                group=draw(st.sampled_from(("", "edge"))),
                enabled=draw(st.sampled_from((True, True, True, False))),
                misfire=draw(st.sampled_from(list(Misfire))),
            )
        )
    return jobs


def foretold(jobs, world, span_ms, **options):
    stops = {note.key: note for note in world.standing_notes()}
    now = world.now_ms
    return forecast(jobs, stops=stops, now_ms=now, from_ms=now, to_ms=now + span_ms, rows_max=100_000, **options)


def as_it_came(leader, span_ms):
    """What the real planner fires in the window: (job, due, when), without what comes at its very end."""
    began, seen = leader.world.now_ms, len(leader.late)
    leader.go(span_ms)
    fired = [(job_id, due_ms, due_ms + late_ms) for job_id, due_ms, late_ms in leader.late[seen:]]
    return sorted((job_id, due, at) for job_id, due, at in fired if at < began + span_ms)


def assert_same(told, came):
    assert sorted((row.job_id, row.due_ms) for row in told.firings) == [(job_id, due) for job_id, due, _ in came]
    on_time = {(job_id, due): at for job_id, due, at in came}
    for row in told.firings:
        if row.at_ms == row.due_ms:
            assert on_time[row.job_id, row.due_ms] == row.at_ms
    assert told.total == len(came) == sum(told.counts)
    assert told.jobs == len({job_id for job_id, _, _ in came})


@settings(max_examples=60)
@given(fleets(), st.integers(MINUTE_MS, HOUR_MS), st.integers(0, 150))
@example([a_job("a", Interval(30_000))], MINUTE_MS, 0)
def test_a_file_fires_as_foretold_before_anything_is_started(jobs, span_ms, crowd):
    """The same places as the planner's: at once, on the grid of the id, spread in a crowd, hashed in a cron line."""
    jobs = [*jobs, *(a_job(f"crowd-{number}", Interval(HOUR_MS)) for number in range(crowd))]
    world = World(seats=SEATS)
    new = [placed(job, None, now_ms=world.now_ms, batch_size=len(jobs)) for job in jobs]
    told = foretold(new, world, span_ms)
    world.put(*jobs)
    assert_same(told, as_it_came(Leader(world, seats=SEATS), span_ms))


@settings(max_examples=60)
@given(fleets(), st.integers(1, 20 * MINUTE_MS), st.integers(0, 30 * MINUTE_MS), st.integers(MINUTE_MS, HOUR_MS))
def test_a_store_fires_as_foretold_also_after_a_downtime(jobs, ran_ms, down_ms, span_ms):
    world = World(seats=SEATS)
    world.put(*jobs)
    Leader(world, seats=SEATS).go(ran_ms)
    world.now_ms += down_ms
    told = foretold(list(world.jobs.values()), world, span_ms)
    assert_same(told, as_it_came(Leader(world, seats=SEATS), span_ms))


@settings(max_examples=40)
@given(
    fleets(), st.sampled_from(("all", "group")), st.none() | st.integers(1, HOUR_MS), st.integers(MINUTE_MS, HOUR_MS)
)
def test_pauses_are_foretold(jobs, kind, pause_ms, span_ms):
    """Due times in a pause are skipped, those at its end and later fire; what runs once is another test's."""
    jobs = [job for job in jobs if not isinstance(job.schedule, Once)]
    world = World(seats=SEATS)
    world.put(*jobs)
    Leader(world, seats=SEATS).go(5 * MINUTE_MS)
    world.stop(stop_key(kind, "edge"), expires_ms=None if pause_ms is None else world.now_ms + pause_ms)
    told = foretold(list(world.jobs.values()), world, span_ms)
    assert_same(told, as_it_came(Leader(world, seats=SEATS), span_ms))


@settings(max_examples=60)
@given(fleets(), st.integers(0, DAY_MS), st.integers(1, 2 * DAY_MS), st.data())
def test_counting_is_the_same_as_listing(jobs, later_ms, span_ms, data):
    """Buckets and durations, for any window, also one that begins later than now."""
    copies = data.draw(st.integers(1, 40))
    fleet = [
        placed(
            a_job(f"{job.id}-{copy}", job.schedule, memory=Memory(ended=1, duration_ms=copy)),
            None,
            now_ms=T0,
            batch_size=9,
        )
        for job in jobs
        for copy in range(copies)
    ]
    from_ms, to_ms = T0 + later_ms, T0 + later_ms + min(span_ms, 20 * HOUR_MS // copies)
    told = forecast(fleet, stops={}, now_ms=T0, from_ms=from_ms, to_ms=to_ms, rows_max=5)
    counts, busy, listed = Counter(), Counter(), []
    for job in fleet:
        times = firing_times(job, stops={}, now_ms=T0)
        for at_ms, _ in moments(times, from_ms) if isinstance(times, FiringTimes) else ():
            if at_ms >= to_ms:
                break
            listed.append((at_ms, job.id))
            counts[(at_ms - told.start_ms) // told.bucket_ms] += 1
            busy[(at_ms - told.start_ms) // told.bucket_ms] += job.memory.duration_ms
    assert {index: count for index, count in enumerate(told.counts) if count} == counts
    assert {index: ms for index, ms in enumerate(told.busy_ms) if ms} == {key: ms for key, ms in busy.items() if ms}
    assert [(row.at_ms, row.job_id) for row in told.firings] == sorted(listed)[:5]


# by hand


def told_of(*jobs, span_ms=HOUR_MS, now_ms=T0, stops=(), **options):
    known = {"rows_max": 50} | options
    stops = {note.key: note for note in stops}
    return forecast(jobs, stops=stops, now_ms=now_ms, from_ms=now_ms, to_ms=now_ms + span_ms, **known)


def test_a_once_job_in_a_pause_waits_for_its_end():
    job = a_job("a", Once(T0 + 10), next_due_ms=T0 + 10)
    [row] = told_of(job, stops=[Note("stop:job:a", {}, 1, T0 + MINUTE_MS)]).firings
    assert (row.at_ms, row.due_ms) == (T0 + MINUTE_MS, T0 + 10)


@pytest.mark.parametrize(
    ("job", "kind"),
    [
        (a_job("a", None), "asked"),
        (a_job("a", OnEvent()), "asked"),
        (a_job("a", Interval(1000), enabled=False, next_due_ms=T0), "disabled"),
        (a_job("a", Interval(1000), declared=False, next_due_ms=T0), "undeclared"),
        (a_job("a", Once(T0)), "over"),
        (a_job("a", Interval(1000)), "broken"),
        (a_job("a", Cron("bad line"), next_due_ms=T0), "broken"),
        (a_job("a", Interval(1000), next_due_ms=T0, target="db"), "paused"),
    ],
)
def test_a_job_that_will_not_fire_is_told_with_its_reason(job, kind):
    told = told_of(job, stops=[Note("stop:target:db", {"reason": "moving"}, 1)])
    assert told.total == 0
    assert told.peak is None
    assert [(quiet.kind, quiet.count) for quiet in told.quiet] == [(kind, 1)]
    assert told.quiet[0].some[0].reason


@pytest.mark.parametrize("schedule", [Interval(MINUTE_MS, spread=False), Cron("* * * * *")])
def test_a_due_at_the_very_end_of_a_pause_fires(schedule):
    world = World(seats=SEATS)
    world.put(a_job("a", schedule))
    Leader(world, seats=SEATS).go(90 * SECOND_MS)
    end_ms = world.jobs["a"].next_due_ms
    world.stop(stop_key("job", "a"), expires_ms=end_ms)
    told = foretold(list(world.jobs.values()), world, 10 * MINUTE_MS)
    assert told.firings[0].at_ms == end_ms
    assert_same(told, as_it_came(Leader(world, seats=SEATS), 10 * MINUTE_MS))


def test_two_pauses_end_with_the_later_one():
    job = a_job("a", Interval(MINUTE_MS), group="g", next_due_ms=T0 + MINUTE_MS)
    stops = [Note("stop:job:a", {}, 1, T0 + MINUTE_MS), Note("stop:group:g", {}, 1, T0 + 10 * MINUTE_MS)]
    assert told_of(job, stops=stops).firings[0].at_ms >= T0 + 10 * MINUTE_MS


@pytest.mark.parametrize("schedule", [Cron("* * * * * *"), Interval(SECOND_MS)])
def test_a_dense_schedule_is_not_counted_before_its_pause_ends(schedule):
    """So many due times that they are counted and not listed, from the middle of the window on."""
    stop = Note("stop:all", {}, 1, T0 + 30 * MINUTE_MS)
    told = told_of(a_job("a", schedule, next_due_ms=T0 + SECOND_MS), stops=[stop])
    assert told.total == sum(told.counts) == 30 * 60
    assert set(told.counts[:29]) == {0}


@pytest.mark.parametrize("schedule", [Cron("* * * * * *"), Interval(SECOND_MS, spread=False)])
def test_a_due_on_the_edge_of_a_bucket_is_in_the_later_one(schedule):
    told = told_of(a_job("a", schedule, next_due_ms=T0))
    assert told.counts == (60,) * 60


def test_the_herd_is_seen_and_what_it_needs():
    """A hundred jobs of two seconds at the full hour: 200 s of work, four seats for that minute."""
    now = moment_ms("2030-01-31T08:30:00Z")
    jobs = [
        a_job(f"j{n}", Cron("0 * * * *"), next_due_ms=now + 30 * MINUTE_MS, memory=Memory(ended=1, duration_ms=2_000))
        for n in range(100)
    ]
    told = told_of(
        *jobs, a_job("x", Interval(MINUTE_MS, spread=False), next_due_ms=now), now_ms=now, span_ms=6 * HOUR_MS
    )
    assert told.bucket_ms == MINUTE_MS
    assert told.peak == 30
    assert told.counts[30] == 101
    assert told.seats(30) == 4
    assert told.counts.count(101) == 6
    assert (told.jobs, told.untimed, len(told.firings)) == (101, 1, 50)


@pytest.mark.parametrize(("start", "by_ms"), [("2030-03-30T20:00:00Z", HOUR_MS), ("2030-10-26T20:00:00Z", -HOUR_MS)])
def test_jumps_of_the_clocks_are_marked(start, by_ms):
    now = moment_ms(start)
    cron = a_job("a", Cron("30 2 * * *", "Europe/Berlin"), next_due_ms=now + MINUTE_MS)
    told = told_of(cron, now_ms=now, span_ms=DAY_MS, zones=("America/New_York", "UTC"))
    assert [(change.tz, change.by_ms) for change in told.changes] == [("Europe/Berlin", by_ms)]
    assert told.changes[0].at_ms == now + 5 * HOUR_MS


@pytest.mark.parametrize(
    ("span_ms", "width_ms"),
    [
        (1, SECOND_MS),
        (10 * MINUTE_MS, SECOND_MS),
        (6 * HOUR_MS, MINUTE_MS),
        (DAY_MS, MINUTE_MS),
        (DAY_MS + 1, 5 * MINUTE_MS),
        (3_653 * DAY_MS, 7 * DAY_MS),
    ],
)
def test_buckets_are_round_and_never_too_many(span_ms, width_ms):
    assert bucket_width(span_ms) == width_ms
    assert span_ms <= width_ms * BUCKETS_MAX


def test_a_big_fleet_is_counted_and_not_listed():
    """36 million firings of 20,000 jobs in a moment; listing them would take minutes."""
    jobs = [
        a_job(f"job-{n}", Interval(12_000), next_due_ms=T0 + n % 12_000, memory=Memory(ended=1, duration_ms=30))
        for n in range(20_000)
    ]
    began = time.process_time()
    told = told_of(*jobs, span_ms=DAY_MS - MINUTE_MS, rows_max=50)
    assert time.process_time() - began < 10
    assert told.total > 140_000_000
    assert len(told.firings) == 50
    assert len(told.counts) <= BUCKETS_MAX + 1
