"""Interval due times: on the grid, for every caller and however late."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollux.errors import InvalidInput
from pollux.model.job import Cron, Interval, Once, OnEvent
from pollux.schedule import first_due, interval, next_due, validate
from pollux.schedule.interval import place
from pollux.units import DURATION_MAX_MS

T0 = 1_800_000_000_000

moments = st.integers(0, 4_000_000_000_000)
job_ids = st.text(alphabet="abcdefgh0123456789._:/-", min_size=1, max_size=20)
intervals = st.builds(
    Interval,
    every_ms=st.integers(100, DURATION_MAX_MS) | st.sampled_from([100, 101, 1_000, 30_000, 60_000, 3_600_000]),
    start_ms=st.none() | moments,
    spread=st.booleans(),
)


# the stable hash


def test_a_place_is_the_same_for_ever():
    """These numbers are part of the promise: if they change, an upgrade moves the phase of every job there is."""
    assert place("disk", "phase", 60_000) == 37_988
    assert place("disk", "crowd", 60_000) == 50_298


def test_the_places_of_a_fleet_are_spread_evenly():
    tenths = [place(f"job-{n}", "phase", 60_000) // 6_000 for n in range(10_000)]
    assert all(900 < tenths.count(tenth) < 1_100 for tenth in range(10))


def test_the_purposes_of_one_job_are_independent():
    same = sum(place(f"job-{n}", "phase", 10) == place(f"job-{n}", "crowd", 10) for n in range(10_000))
    assert 900 < same < 1_100


# the grid


@given(intervals, job_ids)
def test_the_phase_lies_inside_the_interval(spec, job_id):
    assert 0 <= interval.phase_ms(job_id, spec) < spec.every_ms


def test_the_phase_is_zero_without_spread_and_counted_from_the_start_if_one_is_given():
    assert interval.phase_ms("a", Interval(60_000, spread=False)) == 0
    assert interval.phase_ms("a", Interval(60_000, start_ms=T0 + 7)) == 7
    assert interval.phase_ms("a", Interval(60_000, start_ms=T0 + 7, spread=False)) == 7


@given(intervals, job_ids, moments)
def test_the_next_instant_is_the_first_of_the_grid_after_the_moment(spec, job_id, after_ms):
    found = interval.next_after(spec, job_id, after_ms)

    assert found > after_ms
    assert (found - interval.phase_ms(job_id, spec)) % spec.every_ms == 0
    assert found >= (spec.start_ms or 0)
    assert found - spec.every_ms <= after_ms or found == spec.start_ms


@given(intervals, job_ids, moments, st.integers(1, 50))
def test_the_grid_never_drifts(spec, job_id, after_ms, times):
    """However often it is asked for the next, the due is where the grid says; late planning moves nothing."""
    first = due = interval.next_due(spec, job_id, after_ms)
    for _ in range(times):
        due = interval.next_due(spec, job_id, due)
    assert due == first + times * spec.every_ms


@given(intervals, job_ids, moments)
def test_the_due_after_a_firing_off_the_grid_is_at_least_half_an_interval_away(spec, job_id, after_ms):
    on_grid = (after_ms - interval.phase_ms(job_id, spec)) % spec.every_ms == 0
    found = interval.next_due(spec, job_id, after_ms)

    assert found > after_ms
    assert (found - interval.phase_ms(job_id, spec)) % spec.every_ms == 0
    if spec.start_ms is None or after_ms >= spec.start_ms:
        distance = found - after_ms
        assert distance == spec.every_ms if on_grid else spec.every_ms <= 2 * distance < 3 * spec.every_ms


def test_half_of_an_odd_interval_is_rounded_up():
    assert interval.next_due(Interval(101, spread=False), "a", 50) == 101
    assert interval.next_due(Interval(101, spread=False), "a", 51) == 202


@given(intervals, job_ids, moments)
def test_asking_twice_moves_nothing(spec, job_id, after_ms):
    assert interval.next_due(spec, job_id, after_ms) == interval.next_due(spec, job_id, after_ms)


def test_nothing_comes_before_the_start():
    spec = Interval(60_000, start_ms=T0)
    assert interval.next_after(spec, "a", 0) == T0
    assert interval.next_due(spec, "a", T0 - 59_000) == T0
    assert interval.next_due(spec, "a", T0 - 60_000) == T0
    assert interval.next_due(spec, "a", T0) == T0 + 60_000


# the first due


def test_a_hundred_new_jobs_start_at_once():
    assert {first_due(Interval(30_000), f"j{n}", now_ms=T0, batch_size=100) for n in range(100)} == {T0}


def test_more_than_a_hundred_new_jobs_are_spread_over_the_interval_or_a_minute():
    short = [first_due(Interval(30_000), f"j{n}", now_ms=T0, batch_size=101) - T0 for n in range(1_000)]
    long = [first_due(Interval(3_600_000), f"j{n}", now_ms=T0, batch_size=101) - T0 for n in range(1_000)]
    assert min(short) >= 0
    assert 29_000 < max(short) < 30_000
    assert 59_000 < max(long) < 60_000
    assert len(set(long)) > 950


def test_the_place_in_the_crowd_says_nothing_about_the_phase():
    """Otherwise the first run would fall on the grid, and the second come a whole interval after it for everybody."""
    spec = Interval(60_000)
    now_ms = T0 - T0 % 60_000
    same = sum(
        first_due(spec, f"j{n}", now_ms=now_ms, batch_size=500) % 60_000 == interval.phase_ms(f"j{n}", spec)
        for n in range(500)
    )
    assert same < 5


def test_a_job_that_is_not_spread_starts_at_once_in_any_crowd():
    assert first_due(Interval(30_000, spread=False), "a", now_ms=T0 + 1, batch_size=9_999) == T0 + 1


def test_a_start_ahead_is_the_first_due_and_a_start_behind_is_not():
    assert first_due(Interval(30_000, start_ms=T0 + 5), "a", now_ms=T0, batch_size=9_999) == T0 + 5
    assert first_due(Interval(30_000, start_ms=T0 - 5), "a", now_ms=T0) == T0


# every kind of schedule


def test_a_cron_job_never_fires_at_start():
    assert first_due(Cron("* * * * *"), "a", now_ms=T0 - T0 % 60_000) == T0 - T0 % 60_000 + 60_000


def test_a_one_shot_job_is_due_now_or_at_its_moment_and_never_again():
    assert first_due(Once(), "a", now_ms=T0) == T0
    assert first_due(Once(at_ms=T0 + 5), "a", now_ms=T0) == T0 + 5
    assert first_due(Once(at_ms=5), "a", now_ms=T0) == 5
    assert next_due(Once(at_ms=5), "a", 5) is None


def test_an_event_job_has_no_dues():
    assert first_due(OnEvent(), "a", now_ms=T0) is None
    assert next_due(OnEvent(), "a", T0) is None


@pytest.mark.parametrize(
    "schedule",
    [
        Interval(100),
        Interval(DURATION_MAX_MS, start_ms=0),
        Cron("@daily", "Europe/Berlin"),
        Once(),
        Once(T0),
        OnEvent(),
    ],
)
def test_a_schedule_that_can_be_computed_with_is_accepted(schedule):
    validate(schedule, "a")


@pytest.mark.parametrize(
    ("schedule", "where", "what"),
    [
        (Interval(99), "every", "an interval of 99ms is too short"),
        (Interval(0), "every", "too short"),
        (Interval(-1), "every", "too short"),
        (Interval(DURATION_MAX_MS + 1), "every", "too long"),
        (Interval(1_000, start_ms=-1), "start", "out of reach"),
        (Once(at_ms=-1), "at", "out of reach"),
        (Once(at_ms=10**18), "at", "out of reach"),
        (Cron("61 * * * *"), "line", "minute"),
        (Cron("* * * * *", "Mars/Olympus"), "tz", "no time zone"),
    ],
)
def test_a_schedule_that_cannot_is_refused_with_place_and_cure(schedule, where, what):
    with pytest.raises(InvalidInput, match=what) as refusal:
        validate(schedule, "a")
    assert refusal.value.where == where
    assert refusal.value.cure
