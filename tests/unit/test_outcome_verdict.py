"""Verdicts: the table in `outcome/verdict.py`, row by row."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pollux.model import Cause, Cron, Dead, Done, Fault, Interval, Job, Memory, Once, Outcome, Retry, RetryAt, Run
from pollux.outcome import RETRY_AFTER_MAX_MS, decide

NOW = 1_800_000_000_000
TRANSIENT = Outcome(started_ms=NOW - 10, ended_ms=NOW, fault=Fault.TRANSIENT, error="ConnectionError: refused")
PERMANENT = Outcome(started_ms=NOW - 10, ended_ms=NOW, fault=Fault.PERMANENT, error="Permanent: no such host")
SUCCESS = Outcome(started_ms=NOW - 10, ended_ms=NOW)


def job(schedule=None, **options):
    return Job(id="j", handler="h", schedule=schedule, **options)


def run(attempt=0, cause=Cause.SCHEDULE):
    return Run("j@1", "j", 1, cause, attempt=attempt)


def judged(outcome, run, job):
    return decide(outcome, run, job, now_ms=NOW, roll=0.5)


RECURRING = [Interval(60_000), Cron("0 5 * * *")]
OTHERS = [None, Once()]


# successes


@pytest.mark.parametrize("schedule", RECURRING + OTHERS)
def test_a_success_is_done(schedule):
    assert judged(SUCCESS, run(), job(schedule)) == Done()


@pytest.mark.parametrize("schedule", RECURRING)
def test_a_success_clears_the_dead_letter_of_its_recurring_job(schedule):
    assert judged(SUCCESS, run(), job(schedule, memory=Memory(dead=1))) == Done(clears=True)


@pytest.mark.parametrize("schedule", OTHERS)
def test_a_success_leaves_the_dead_letters_of_other_jobs_to_people(schedule):
    assert judged(SUCCESS, run(), job(schedule, memory=Memory(dead=1))) == Done()


# runs without a next firing


@pytest.mark.parametrize("attempt", [0, 1, 3])
def test_a_transient_failure_is_tried_again(attempt):
    assert judged(TRANSIENT, run(attempt), job()) == RetryAt(NOW + 5_000 * 2**attempt)


def test_the_last_attempt_that_fails_is_dead_and_says_how_often_and_why():
    assert judged(TRANSIENT, run(4), job()) == Dead("gave up after 5 failures in a row: ConnectionError: refused")


def test_a_single_try_dies_of_its_first_failure():
    verdict = judged(TRANSIENT, run(), job(retry=Retry(attempts_max=1)))

    assert verdict == Dead("gave up after 1 failure: ConnectionError: refused")


def test_a_permanent_fault_is_not_tried_again():
    assert judged(PERMANENT, run(), job()) == Dead("permanent fault: Permanent: no such host")


@pytest.mark.parametrize("cause", [Cause.FORCED, Cause.ENQUEUED])
def test_a_run_that_was_asked_for_has_no_next_firing_also_if_its_job_recurs(cause):
    """It is retried past the job's next due, and its death is its own: no firing's dead letter makes room for it."""
    recurring = job(Interval(60_000), next_due_ms=NOW + 1, memory=Memory(failures=4, dead=1))

    assert judged(TRANSIENT, run(0, cause), recurring) == RetryAt(NOW + 5_000)
    assert judged(TRANSIENT, run(4, cause), recurring) == Dead(
        "gave up after 5 failures in a row: ConnectionError: refused", sole=False
    )
    assert judged(PERMANENT, run(0, cause), recurring) == Dead("permanent fault: Permanent: no such host", sole=False)


# firings of recurring jobs


@pytest.mark.parametrize("schedule", RECURRING)
def test_a_failed_firing_is_retried_before_the_next_one(schedule):
    assert judged(TRANSIENT, run(), job(schedule, next_due_ms=NOW + 5_001)) == RetryAt(NOW + 5_000)


@pytest.mark.parametrize("schedule", RECURRING)
@pytest.mark.parametrize("next_due_ms", [NOW + 5_000, NOW + 1, NOW - 60_000])
def test_where_the_next_firing_comes_first_it_is_the_retry(schedule, next_due_ms):
    assert judged(TRANSIENT, run(), job(schedule, next_due_ms=next_due_ms)) == Done(failed=True)


def test_a_recurring_job_without_a_next_due_is_retried():
    assert judged(TRANSIENT, run(), job(Interval(60_000), next_due_ms=None)) == RetryAt(NOW + 5_000)


def test_the_fifth_failed_firing_in_a_row_leaves_the_sole_dead_letter():
    fourth = job(Interval(60_000), next_due_ms=NOW + 1, memory=Memory(failures=3))
    fifth = job(Interval(60_000), next_due_ms=NOW + 1, memory=Memory(failures=4))

    assert judged(TRANSIENT, run(), fourth) == Done(failed=True)
    assert judged(TRANSIENT, run(), fifth) == Dead(
        "gave up after 5 failures in a row: ConnectionError: refused", sole=True
    )


def test_attempts_inside_a_firing_count_with_the_firings_before_it():
    daily = job(Cron("0 5 * * *"), next_due_ms=NOW + 86_400_000, memory=Memory(failures=2))

    assert judged(TRANSIENT, run(1), daily) == RetryAt(NOW + 10_000)
    assert isinstance(judged(TRANSIENT, run(2), daily), Dead)


def test_a_permanent_fault_of_a_firing_leaves_the_sole_dead_letter_at_once():
    assert judged(PERMANENT, run(), job(Interval(60_000), next_due_ms=NOW + 1)) == Dead(
        "permanent fault: Permanent: no such host", sole=True
    )


# what the source said


def after(ms):
    return Outcome(started_ms=NOW - 10, ended_ms=NOW, fault=Fault.TRANSIENT, error="429", retry_after_ms=ms)


def test_a_run_is_not_tried_again_before_the_source_allows():
    assert judged(after(90_000), run(), job()) == RetryAt(NOW + 90_000)
    assert judged(after(1_000), run(), job()) == RetryAt(NOW + 5_000)
    assert judged(after(-5), run(), job()) == RetryAt(NOW + 5_000)


def test_no_source_puts_a_run_off_for_longer_than_a_day():
    assert judged(after(10**15), run(), job()) == RetryAt(NOW + RETRY_AFTER_MAX_MS)


def test_a_firing_that_may_not_be_retried_before_the_next_one_waits_for_it():
    assert judged(after(90_000), run(), job(Interval(60_000), next_due_ms=NOW + 60_000)) == Done(failed=True)


@given(
    fault=st.sampled_from([None, Fault.TRANSIENT, Fault.PERMANENT]),
    cause=st.sampled_from(list(Cause)),
    schedule=st.sampled_from(RECURRING + OTHERS),
    attempt=st.integers(0, 200),
    failures=st.integers(0, 200),
    attempts_max=st.integers(1, 100),
    next_in=st.none() | st.integers(-(10**9), 10**9),
    retry_after_ms=st.none() | st.integers(-(10**18), 10**18),
    roll=st.floats(0.0, 1.0, exclude_max=True),
)
def test_every_failure_ends_one_day(
    fault, cause, schedule, attempt, failures, attempts_max, next_in, retry_after_ms, roll
):
    """A retry never lies in the past nor further than the rule and a day; no retry past the last attempt."""
    next_due_ms = None if next_in is None else NOW + next_in
    memory = Memory(failures=failures)
    wanted = job(schedule, retry=Retry(attempts_max=attempts_max), memory=memory, next_due_ms=next_due_ms)
    outcome = Outcome(started_ms=NOW, ended_ms=NOW, fault=fault, retry_after_ms=retry_after_ms)
    verdict = decide(outcome, run(attempt, cause), wanted, now_ms=NOW, roll=roll)

    if isinstance(verdict, RetryAt):
        assert NOW < verdict.at_ms <= NOW + max(RETRY_AFTER_MAX_MS, 360_000)
        assert attempt + 1 < attempts_max
    if isinstance(verdict, Dead):
        assert verdict.sole is (wanted.is_recurring and cause is Cause.SCHEDULE)
    if verdict == Done(failed=True):
        assert wanted.is_recurring
        assert cause is Cause.SCHEDULE


# crashes

CRASH = Outcome(NOW - 10, NOW, fault=Fault.TRANSIENT, error="Crashed: its child was killed by SIGSEGV", crashed=True)


@pytest.mark.parametrize("schedule", RECURRING + OTHERS)
def test_a_crash_is_tried_again_like_any_failure(schedule):
    assert judged(CRASH, replace(run(), crashes=1), job(schedule)) == judged(TRANSIENT, run(), job(schedule))


@pytest.mark.parametrize("schedule", RECURRING + OTHERS)
def test_the_third_crash_of_a_run_is_its_end_whatever_attempts_are_left(schedule):
    patient = job(schedule, retry=Retry(attempts_max=100))
    verdict = judged(CRASH, replace(run(), crashes=2), patient)
    reason = "crashed 3 times: Crashed: its child was killed by SIGSEGV"
    assert verdict == Dead(reason, sole=schedule in RECURRING)
    assert isinstance(judged(TRANSIENT, replace(run(), crashes=2), patient), RetryAt), "another failure is no crash"


def test_how_many_crashes_are_too_many_can_be_said():
    verdict = decide(CRASH, run(), job(), now_ms=NOW, roll=0.5, crashes_max=1)
    assert isinstance(verdict, Dead)


def test_a_crashed_firing_that_cannot_be_retried_in_time_is_a_failed_one():
    """Decision 0059: the next firing is the retry, and failures are counted over firings."""
    soon = job(Interval(1_000), next_due_ms=NOW + 1)
    assert judged(CRASH, run(), soon) == Done(failed=True)
    assert isinstance(judged(CRASH, run(), replace(soon, memory=Memory(failures=4))), Dead)
