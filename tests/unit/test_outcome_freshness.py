"""A job's memory of its ends, and its freshness."""

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pollux.model import Cause, Cron, End, Interval, Job, Memory, Once, OnEvent, RunState
from pollux.outcome import RECENT_MAX, RecentResult, count_skips, freshness, learn, marks, within_ms
from pollux.outcome.freshness import remember

T = 1_800_000_000_000


def end(at=0, state=RunState.DONE, *, cause=Cause.SCHEDULE, **options):
    return End(f"j@{at}", "j", state, cause, T + at, T + at, 5, **options)


def failed(at=0, state=RunState.DONE, **options):
    return end(at, state, failed=True, error=f"E{at}", **options)


def learnt(*ends, memory=None):
    memory = memory or Memory()
    for each in ends:
        memory = learn(memory, each)
    return memory


# ends


def test_a_success_is_counted_and_dated():
    memory = learnt(end(7, changed=True, fingerprint="f"))

    assert memory == Memory(
        ended=1,
        last_end_ms=T + 7,
        last_success_ms=T + 7,
        last_change_ms=T + 7,
        duration_ms=5,
        fingerprint="f",
        recent=memory.recent,
    )
    assert marks(memory.recent) == (RecentResult(failed=False, changed=True, at_most_ms=8),)


# the latest ends


def test_the_latest_ends_are_remembered_in_their_order():
    memory = learnt(end(1), end(2, changed=True), failed(3), end(4, changed=False), failed(5, RunState.DEAD))

    assert [(mark.failed, mark.changed) for mark in marks(memory.recent)] == [
        (False, False),
        (False, True),
        (True, False),
        (False, False),
        (True, False),
    ]


def test_no_more_ends_are_remembered_than_a_line_has_room_for():
    memory = learnt(failed(0), *(end(n) for n in range(1, 100)))

    assert len(memory.recent) == len(marks(memory.recent)) == RECENT_MAX
    assert not any(mark.failed for mark in marks(memory.recent))
    assert memory.recent.isascii()
    assert memory.recent.isprintable()


def test_an_attempt_that_is_tried_again_is_no_end_yet():
    assert learnt(failed(1, RunState.READY)).recent == ""


@given(st.integers(-5, 10**9), st.booleans(), st.sampled_from([None, False, True]))
def test_a_duration_is_remembered_within_a_factor_of_two(duration_ms, has_failed, changed):
    [mark] = marks(remember("", duration_ms, failed=has_failed, changed=changed))

    assert mark.failed is has_failed
    assert mark.changed is (bool(changed) and not has_failed)
    longest = 1 << 25
    assert duration_ms <= mark.at_most_ms or mark.at_most_ms == longest
    assert mark.at_most_ms < 2 * max(1, duration_ms)


@pytest.mark.parametrize(("share", "ms"), [(0.0, 1), (0.5, 16), (0.95, 1024), (1.0, 1024)])
def test_so_long_took_the_quickest_of_them(share, ms):
    recent = ""
    for duration_ms in (1000, 1, 16, 2, 9):
        recent = remember(recent, duration_ms, failed=False, changed=None)

    assert within_ms(marks(recent), share) == ms
    assert within_ms((), share) == 0


@pytest.mark.parametrize("changed", [False, None])
def test_only_a_change_is_a_change(changed):
    assert learnt(end(1, changed=True), end(2, changed=changed)).last_change_ms == T + 1


def test_a_success_without_a_fingerprint_keeps_the_last_one():
    assert learnt(end(1, fingerprint="f"), end(2)).fingerprint == "f"


def test_failures_count_in_a_row_and_success_ends_the_row():
    memory = learnt(failed(1), failed(2))
    assert (memory.failures, memory.ended, memory.last_error, memory.last_error_ms) == (2, 2, "E2", T + 2)
    assert memory.last_success_ms is None

    memory = learnt(end(3), memory=memory)
    assert (memory.failures, memory.ended, memory.last_error) == (0, 3, "E2")


@pytest.mark.parametrize("state", [RunState.READY, RunState.HELD])
def test_a_retried_attempt_leaves_its_error_and_ends_no_run(state):
    memory = learnt(failed(1, state))

    assert (memory.ended, memory.failures, memory.last_error, memory.last_end_ms) == (0, 0, "E1", T + 1)


@pytest.mark.parametrize("state", [RunState.READY, RunState.HELD, RunState.CANCELLED])
def test_an_end_where_nothing_ran_teaches_nothing(state):
    before = learnt(end(1))

    assert learnt(end(2, state, ran=False), memory=before) is before


def test_a_run_that_lost_too_many_workers_is_a_failure_like_any_other():
    memory = learnt(end(2, RunState.DEAD, ran=False, error="10 leases were lost"))

    assert (memory.dead, memory.failures, memory.ended, memory.last_error) == (1, 1, 1, "10 leases were lost")


def test_a_cancelled_run_that_ran_is_neither_success_nor_failure():
    memory = learnt(failed(1), end(2, RunState.CANCELLED))

    assert (memory.ended, memory.failures, memory.last_success_ms, memory.last_end_ms) == (1, 1, None, T + 2)


def test_a_scheduled_job_has_one_dead_letter_however_often_it_dies():
    assert learnt(failed(1, RunState.DEAD), failed(2, RunState.DEAD)).dead == 1


def test_a_scheduled_success_clears_the_dead_letter():
    assert learnt(failed(1, RunState.DEAD), end(2)).dead == 0


def test_dead_letters_of_asked_runs_add_up_and_no_success_of_another_run_clears_them():
    asked = {"cause": Cause.ENQUEUED}

    assert learnt(failed(1, RunState.DEAD, **asked), failed(2, RunState.DEAD, **asked), end(3, **asked)).dead == 2


# out of order


def test_an_older_end_overwrites_nothing_newer():
    newer = learnt(end(10, changed=True, fingerprint="new"))
    memory = learnt(end(5, changed=True, fingerprint="old"), memory=newer)

    assert (memory.ended, memory.last_end_ms, memory.last_success_ms, memory.fingerprint) == (2, T + 10, T + 10, "new")
    assert memory.last_change_ms == T + 10


def test_an_older_failure_does_not_break_a_newer_success():
    memory = learnt(end(10), failed(5))

    assert (memory.failures, memory.last_error, memory.last_error_ms, memory.ended) == (0, "E5", T + 5, 2)


def test_an_older_success_does_not_end_a_newer_row_of_failures():
    memory = learnt(failed(10), end(5))

    assert (memory.failures, memory.last_success_ms, memory.ended) == (1, T + 5, 2)


def test_since_when_it_fails_is_the_first_failure_after_the_last_success_in_any_order():
    row = [end(1), failed(2), failed(3, RunState.DEAD), failed(4)]
    assert {learnt(*order).failing_since_ms for order in permutations(row)} == {T + 2}
    assert learnt(*row, end(5)).failing_since_ms is None
    assert learnt(*row, end(5), failed(6), failed(7)).failing_since_ms == T + 6
    assert learnt(failed(1, RunState.READY)).failing_since_ms is None, "it is tried again: no end yet"


def test_the_order_of_arrival_changes_no_fact():
    ends = [failed(1), end(2, changed=True, fingerprint="x"), failed(3), end(4, fingerprint="y")]
    facts = set()
    for order in permutations(ends):
        m = learnt(*order)
        facts.add(
            (m.ended, m.last_end_ms, m.last_success_ms, m.last_error_ms, m.last_error, m.last_change_ms, m.fingerprint)
        )

    assert facts == {(4, T + 4, T + 4, T + 3, "E3", T + 2, "y")}


# skips


def test_skips_add_up_by_reason():
    memory = count_skips(count_skips(count_skips(Memory(), "late", 3), "overlap"), "late")

    assert memory.skips == {"late": 4, "overlap": 1}


def test_counting_skips_leaves_the_old_memory_alone():
    before = Memory(skips={"late": 1})
    count_skips(before, "late", 5)

    assert before.skips == {"late": 1}
    assert count_skips(before, "late", 0) is before


# freshness


EVERY_MINUTE = Interval(60_000)


def scored(age_s, schedule=EVERY_MINUTE):
    job = Job(id="j", handler="h", schedule=schedule, memory=Memory(last_success_ms=T))
    return freshness(job, T + age_s * 1000)


@pytest.mark.parametrize("schedule", [EVERY_MINUTE, Cron("0 2 * * *")])
def test_a_job_whose_first_time_is_still_to_come_is_fresh(schedule):
    for due_ms in (None, T + 1, T + 86_400_000):
        job = Job(id="j", handler="h", schedule=schedule, next_due_ms=due_ms)
        fresh = freshness(job, T)
        assert (fresh.age_ms, fresh.score, fresh.wanted_ms) == (None, 1.0, 0)


def test_a_job_that_was_due_and_failed_or_never_ended_is_stale():
    job = Job(id="j", handler="h", schedule=EVERY_MINUTE, last_due_ms=T, next_due_ms=T + 60_000)
    assert freshness(job, T + 30_000).score == 1.0, "its first run may still be at it"
    assert freshness(job, T + 150_000).score == pytest.approx(0.5)
    assert freshness(replace(job, memory=Memory(failures=1, ended=1)), T + 1).score == 0.0
    skipping = replace(job, memory=Memory(skips={"overlap": 3, "late": 1, "paused": 9}))
    assert (freshness(skipping, T).wanted_ms, freshness(skipping, T).score) == (240_000, 0.0)
    never_fired = Job(id="j", handler="h", schedule=EVERY_MINUTE, next_due_ms=T)
    assert freshness(never_fired, T + 240_000).score == 0.0


@pytest.mark.parametrize(
    ("age_s", "score"), [(0, 1.0), (60, 1.0), (120, 2 / 3), (150, 0.5), (240, 0.0), (10_000, 0.0), (-5, 1.0)]
)
def test_freshness_falls_evenly_from_the_planned_age_to_four_times_that(age_s, score):
    assert scored(age_s).score == pytest.approx(score)
    assert scored(age_s).planned_ms == 60_000


@pytest.mark.parametrize("schedule", [None, Once(), OnEvent()])
def test_what_was_never_planned_cannot_be_stale_after_a_success(schedule):
    assert scored(10**6, schedule).score == 1.0
    assert scored(10**6, schedule).planned_ms is None


def test_a_cron_job_is_fresh_over_the_weekend_it_was_planned_to_sleep_through():
    friday = 1_799_989_200_000  # 2027-01-15, a Friday, 05:00 UTC
    job = Job(id="j", handler="h", schedule=Cron("0 5 * * 1-5"), memory=Memory(last_success_ms=friday + 3_000))

    sunday = freshness(job, friday + 60 * 3_600_000)
    assert sunday.score == 1.0
    assert sunday.planned_ms == pytest.approx(72 * 3_600_000, abs=5_000)


def test_a_cron_job_that_was_run_by_hand_just_before_its_time_is_not_stale_at_once():
    five = 1_799_989_200_000
    job = Job(id="j", handler="h", schedule=Cron("0 5 * * *"), memory=Memory(last_success_ms=five - 1_000))

    assert freshness(job, five + 3_600_000).score == 1.0


def test_a_bad_cron_line_does_not_break_the_overview():
    assert scored(5, Cron("no such line")).planned_ms is None


@given(st.integers(0, 10**12), st.integers(100, 10**10))
def test_a_score_is_a_score_and_never_rises_with_age(age_ms, every_ms):
    job = Job(id="j", handler="h", schedule=Interval(every_ms), memory=Memory(last_success_ms=T))
    younger, older = freshness(job, T + age_ms).score, freshness(job, T + age_ms + 1).score

    assert 0.0 <= older <= younger <= 1.0
