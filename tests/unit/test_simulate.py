"""Simulation: it fires by the schedules, is deterministic, and its counts balance."""

import os
import subprocess
import sys
from itertools import pairwise
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pollux.errors import InvalidInput
from pollux.model import Cron, Interval, Job, Once, OnEvent, Overlap, Retry, Run, RunState
from pollux.schedule import first_due, next_due
from pollux.simulate import (
    Forecast,
    HandlerBehaviour,
    Scenario,
    Unbalanced,
    fine_enough_ms,
    firings_expected,
    habit_of,
    scaled,
    simulate,
)
from pollux.simulate.engine import SimulationEngine, at_once
from pollux.simulate.results import JobResults, QuantileSketch, SimulationResults
from pollux.store.contract import RunFilter
from pollux.units import DAY_MS, HOUR_MS, MINUTE_MS, moment_ms

START_MS = moment_ms("2026-01-05T00:00:00Z")


def a_job(id: str, schedule, **options) -> Job:
    return Job(id=id, handler="h", schedule=schedule, **options)


def a_day(**options) -> Scenario:
    return Scenario(**({"from_ms": START_MS, "for_ms": HOUR_MS} | options))


def dues(job: Job, from_ms: int, until_ms: int) -> list[int]:
    """What the pure schedule says."""
    found, due = [], first_due(job.schedule, job.id, now_ms=from_ms)
    while due is not None and due <= until_ms:
        found.append(due)
        due = next_due(job.schedule, job.id, due)
    return found


def skipped(forecast: Forecast) -> int:
    return sum(forecast.skipped.values())


# what fires

SCHEDULES = st.one_of(
    st.builds(Interval, every_ms=st.integers(30_000, 40 * MINUTE_MS), spread=st.booleans()),
    st.builds(
        Cron,
        line=st.sampled_from(["*/5 * * * *", "0 * * * *", "H/10 * * * *", "30 2 * * *", "0 30 1-4 * * *"]),
        tz=st.sampled_from(["UTC", "Europe/Berlin", "Australia/Lord_Howe", "America/New_York"]),
    ),
    st.builds(Once),
)


@settings(max_examples=25)
@given(
    st.lists(SCHEDULES, min_size=1, max_size=6), st.integers(0, 400 * DAY_MS), st.sampled_from([HOUR_MS, 2 * HOUR_MS])
)
def test_with_seats_enough_what_fires_is_what_the_schedule_says(schedules, later_ms, for_ms):
    """Short runs and a seat for each: every due time fires, none else, and none is skipped."""
    jobs = [a_job(f"job-{n}", schedule) for n, schedule in enumerate(schedules)]
    start = START_MS + later_ms
    forecast = simulate(jobs, Scenario(from_ms=start, for_ms=for_ms, seats=10, habit=HandlerBehaviour(100, 100)))
    assert {job.id: job.fired for job in forecast.jobs} == {
        job.id: len(dues(job, start, start + for_ms)) for job in jobs
    }
    assert forecast.skipped == {}
    assert forecast.late.max_ms <= 25  # the planner's own rest between two turns


@pytest.mark.parametrize(
    ("tz", "night", "line", "walls"),
    [
        # forward: 02:00 to 03:00 does not exist
        ("Europe/Berlin", "2026-03-28T22:00:00Z", "30 2 * * *", ["2026-03-29T03:00:00+02:00"]),
        (
            "Europe/Berlin",
            "2026-03-28T23:30:00Z",
            "0 */1 * * *",
            ["01:00:00+01:00", "03:00:00+02:00", "04:00:00+02:00"],
        ),
        # back: 02:00 to 03:00 comes twice
        ("Europe/Berlin", "2026-10-24T22:00:00Z", "30 2 * * *", ["2026-10-25T02:30:00+02:00"]),
        ("Europe/Berlin", "2026-10-24T23:15:00Z", "30 * * * *", ["01:30:00+02:00", "02:30:00+02:00", "02:30:00+01:00"]),
        # half an hour, on the other side of the world
        ("Australia/Lord_Howe", "2026-10-03T13:00:00Z", "15 2 * * *", ["2026-10-04T02:30:00+11:00"]),
        ("Australia/Lord_Howe", "2026-04-04T13:00:00Z", "45 1 * * *", ["2026-04-05T01:45:00+11:00"]),
    ],
)
def test_nights_in_which_the_clock_changes_go_by_the_documented_rules(tz, night, line, walls):
    start = moment_ms(night)
    forecast = simulate([a_job("report", Cron(line, tz))], Scenario(from_ms=start, for_ms=5 * HOUR_MS))
    [change] = forecast.clock_changes
    fired = [firing.split()[0] for firing in change.firings]
    near = fired[: len(walls)]
    assert [wall[-len(want) :] for wall, want in zip(near, walls, strict=True)] == walls
    assert ("does not exist" in change.words) == (change.after > change.before)


def test_a_change_of_the_clock_is_told_with_its_hours():
    start = moment_ms("2026-03-28T22:00:00Z")
    forecast = simulate([a_job("r", Cron("30 2 * * *", "Europe/Berlin"))], Scenario(from_ms=start, for_ms=5 * HOUR_MS))
    assert forecast.clock_changes[0].words == "Europe/Berlin: on 2026-03-29 02:00 to 03:00: that hour does not exist"


def test_events_and_jobs_that_are_off_or_without_schedule_never_fire():
    jobs = [a_job("a", OnEvent()), a_job("b", None), a_job("c", Interval(60_000), enabled=False)]
    forecast = simulate(jobs, a_day())
    assert (forecast.fired, forecast.skipped, forecast.attempts) == (0, {}, 0)


# the same twice


def fleet(count: int = 40) -> list[Job]:
    kinds = [Interval(20_000), Interval(45_000), Cron("*/3 * * * *"), Cron("H * * * *", "Europe/Berlin")]
    return [
        a_job(f"f{n}", kinds[n % 4], overlap=list(Overlap)[n % 4], target="db" if n % 3 == 0 else "")
        for n in range(count)
    ]


ROUGH = {"for_ms": 10 * MINUTE_MS, "seats": 6, "habit": HandlerBehaviour(3_000, 30_000, 0.1)}


def test_the_same_seed_gives_the_same_trace_and_another_seed_another():
    first, again = (simulate(fleet(), a_day(**ROUGH)) for _ in range(2))
    assert first == again
    assert first.trace != simulate(fleet(), a_day(**ROUGH, seed=2)).trace


def test_the_same_seed_gives_the_same_trace_in_every_process():
    """Sets of strings are ordered anew in every process; nothing may go by that."""
    program = "from tests.unit.test_simulate import *\nprint(simulate(fleet(), a_day(**ROUGH)).trace)"
    traces = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in (1, 2)
    }
    assert traces == {f"{simulate(fleet(), a_day(**ROUGH)).trace}\n"}


@pytest.mark.parametrize("seed", range(2))
def test_more_seats_never_make_more_skips_nor_later_runs(seed):
    jobs = [a_job(f"f{n}", Interval(20_000 + 1_000 * n)) for n in range(30)]
    habit = HandlerBehaviour(4_000, 12_000)
    forecasts = [
        simulate(jobs, a_day(seats=seats, habit=habit, seed=seed, for_ms=15 * MINUTE_MS)) for seats in (2, 4, 8, 32)
    ]
    assert skipped(forecasts[0]) > 0
    for fewer, more in pairwise(forecasts):
        assert skipped(more) <= skipped(fewer)
        assert more.late.p95_ms <= fewer.late.p95_ms


def test_how_a_run_goes_does_not_depend_on_what_happens_around_it():
    """The dice are the run's own: with more seats the same attempts fail."""
    jobs = [a_job(f"f{n}", Interval(60_000), retry=Retry(attempts_max=1)) for n in range(10)]
    few, many = (simulate(jobs, a_day(seats=seats, habit=HandlerBehaviour(500, 500, 0.2))) for seats in (3, 30))
    assert few.failed == many.failed > 0


# what is counted


def test_a_job_that_takes_longer_than_its_interval_overlaps_itself_and_is_named():
    slow = a_job("slow", Interval(30_000, spread=False))
    forecast = simulate([slow], a_day(habit=HandlerBehaviour(40_000, 40_000)))
    assert forecast.skipped == {"overlap": 60}
    assert forecast.fired == 61
    [warning] = forecast.warnings
    assert warning.startswith("job slow overlaps itself 60 times: its runs take 40s and it is due every 30s")


def test_too_few_seats_make_runs_late_and_the_warning_says_so():
    jobs = [a_job(f"f{n}", Interval(10_000), overlap=Overlap.ALLOW) for n in range(20)]
    forecast = simulate(jobs, a_day(seats=2, habit=HandlerBehaviour(2_000, 2_000), for_ms=10 * MINUTE_MS))
    assert forecast.peak_seats == 2
    assert forecast.mean_seats == pytest.approx(2, abs=0.05)
    assert forecast.waiting > 100
    assert forecast.late.max_ms > MINUTE_MS
    assert "100% of the 2 seats is taken on average" in forecast.warnings[0]


def test_seats_are_counted_as_they_are_taken():
    jobs = [a_job(f"f{n}", Cron("0 * * * *")) for n in range(7)]
    forecast = simulate(jobs, a_day(habit=HandlerBehaviour(60_000, 60_000)))
    assert (forecast.fired, forecast.peak_seats) == (7, 7)
    assert forecast.mean_seats == pytest.approx(7 / 60, abs=0.001)
    assert forecast.busiest[0].fired == 7


def test_failures_are_retried_and_given_up_on_as_the_engine_does():
    once = a_job("once", Once(), retry=Retry(attempts_max=3, base_ms=1_000))
    forecast = simulate([once], a_day(habit=HandlerBehaviour(100, 100, 1.0)))
    assert (forecast.attempts, forecast.failed, forecast.retries, forecast.dead) == (3, 3, 2, 1)
    assert "job once ends dead 1 time" in forecast.warnings[0]


def test_a_run_past_its_timeout_is_cut_off_and_leaves_its_seat():
    job = a_job("long", Interval(60_000, spread=False), timeout_ms=5_000, retry=Retry(attempts_max=1))
    forecast = simulate([job], a_day(habit=HandlerBehaviour(50_000, 50_000), for_ms=10 * MINUTE_MS))
    assert (forecast.fired, forecast.failed) == (11, 10)
    assert skipped(forecast) == 0
    assert forecast.mean_seats == pytest.approx(11 * 5 / 600, abs=0.01)


def test_a_herd_is_named_with_its_minute():
    jobs = [a_job(f"f{n}", Cron("0 6 * * *")) for n in range(60)]
    forecast = simulate(jobs, a_day(for_ms=DAY_MS, seats=60))
    assert "60 firings fall into the minute 2026-01-05T06:00:00Z" in " ".join(forecast.warnings)
    assert forecast.busiest[0].fired == 60


def test_params_and_isolation_are_left_out_so_that_nothing_real_happens():
    job = a_job("a", Interval(60_000), params={"token": "${env:NO_SUCH_VARIABLE_ANYWHERE}"})
    assert simulate([job], a_day()).failed == 0


# the books


def test_a_planner_that_drops_a_due_time_is_seen():
    """Sabotage: one due time in fifty is passed over without a word."""
    count = 0
    real_next = next_due

    def hasty(schedule, job_id, after_ms):
        nonlocal count
        count += 1
        following = real_next(schedule, job_id, after_ms)
        return real_next(schedule, job_id, following) if count % 50 == 0 else following

    with (
        mock.patch("pollux.plan.due_decision.when.next_due", hasty),
        pytest.raises(Unbalanced, match=r"job .*: \d+ due, \d+ fired and 0 skipped"),
    ):
        simulate([a_job("a", Cron("* * * * *")), a_job("b", Cron("*/2 * * * *"))], a_day(for_ms=2 * HOUR_MS))


def test_a_planner_that_stops_is_seen():
    with (
        mock.patch.object(
            SimulationEngine, "_plan", lambda stage, us: setattr(stage, "_plan_at", us + 10 * HOUR_MS * 1_000)
        ),
        pytest.raises(Unbalanced),
    ):
        simulate([a_job("a", Interval(60_000))], a_day())


@pytest.mark.parametrize(
    ("schedule", "first", "following", "count"),
    [
        (Interval(10_000, spread=False), 0, 10_000, 1),
        (Interval(10_000, spread=False), 0, 60_000, 6),
        (Interval(10_000, spread=False), 3_000, 60_000, 6),  # at once, and then on the grid: 10, 20, ... 50
        (Cron("* * * * *"), 60_000, 180_000, 2),
        (Cron("* * * * *"), 60_000, 60_000, 0),
    ],
)
def test_due_times_are_counted_by_the_schedule(schedule, first, following, count):
    tally = JobResults(a_job("a", schedule))
    tally.saw_due(first)
    assert tally.dues_before(following) == count


@given(st.lists(st.integers(0, 10**7), min_size=1), st.sampled_from([0.5, 0.95, 0.99]))
def test_quantiles_are_right_to_a_twentieth(values, share):
    spread = QuantileSketch()
    for value in values:
        spread.add(value)
    exact = sorted(values)[max(0, -(-int(share * 1000) * len(values) // 1000) - 1)]
    assert exact * 0.94 - 1 <= spread.at_most(share) <= exact * 1.06 + 1


def test_memory_is_bounded_whatever_happens():
    """A few numbers a job and a minute; the store forgets what has ended."""
    jobs = [a_job(f"f{n}", Interval(1_000)) for n in range(5)]
    tally = SimulationResults(jobs, START_MS, START_MS + 15 * MINUTE_MS)
    stage = SimulationEngine(a_day(), tally)
    stage.open(jobs)
    stage.play_until(START_MS + 15 * MINUTE_MS)
    assert sum(row.attempts for row in tally.jobs.values()) > 4_000
    kept = at_once(stage.store.list_runs(RunFilter(states=(RunState.DONE,)), limit=1_000)).runs
    assert len(kept) <= 5 * 62


# options


def test_a_habit_is_read_from_words():
    assert habit_of("200ms", "0%") == HandlerBehaviour(200, 200, 0.0)
    assert habit_of("200ms..2s", "5%") == HandlerBehaviour(200, 2_000, 0.05)
    assert habit_of("1s", "0.25").failing == 0.25


@pytest.mark.parametrize(
    ("duration", "failing"),
    [("fast", "0"), ("2s..1s", "0"), ("1s", "150%"), ("1s", "much"), ("1s", "-1"), ("1s", "nan")],
)
def test_a_habit_that_cannot_be_is_refused(duration, failing):
    with pytest.raises(InvalidInput):
        habit_of(duration, failing)


def test_durations_spread_as_their_quantiles_say():
    habit = HandlerBehaviour(200, 2_000, 0.1)
    rolls = [habit.roll(1, Run(id=f"a@{n}", job_id="a", due_ms=n)) for n in range(4_000)]
    durations = sorted(us / 1_000 for us, _ in rolls)
    assert durations[2_000] == pytest.approx(200, rel=0.1)
    assert durations[3_800] == pytest.approx(2_000, rel=0.2)
    assert sum(fails for _, fails in rolls) == pytest.approx(400, abs=80)


@pytest.mark.parametrize("options", [{"seats": 0}, {"for_ms": 10}, {"for_ms": 400 * DAY_MS}, {"grain_ms": 0}])
def test_scenarios_that_cannot_be_are_refused(options):
    with pytest.raises(InvalidInput):
        a_day(**options)


def test_nothing_to_simulate_is_said():
    with pytest.raises(InvalidInput, match="nothing to simulate"):
        simulate([], a_day())


def test_a_fleet_is_scaled_with_phases_of_their_own():
    jobs = scaled([a_job("home", Interval(60_000)), a_job("edge", Interval(60_000))], 3)
    assert [job.id for job in jobs] == ["home", "edge", "home~2", "edge~2", "home~3", "edge~3"]
    with pytest.raises(InvalidInput):
        scaled(jobs, 0)


def test_a_coarse_grain_changes_lateness_and_nothing_else():
    fine, coarse = (simulate(fleet(8), a_day(grain_ms=grain, seats=20)) for grain in (1, 100))
    assert coarse.fired == fine.fired
    assert coarse.late.max_ms <= fine.late.max_ms + 200
    assert [fine_enough_ms(n, DAY_MS) for n in (1_000, 2_880_000, 100_000_000)] == [1, 120, 3]


def test_progress_is_told_to_the_end():
    told = []
    simulate([a_job("a", Interval(60_000))], a_day(), progress=told.append)
    assert told[-1] == 1.0
    assert told == sorted(told)


def test_the_number_of_due_times_is_known_before():
    jobs = fleet()
    expected = firings_expected(jobs, START_MS, START_MS + HOUR_MS)
    forecast = simulate(jobs, a_day(seats=100))
    assert expected == pytest.approx(forecast.fired + skipped(forecast), abs=len(jobs))
