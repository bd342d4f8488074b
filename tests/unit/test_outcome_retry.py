"""Retry delays."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollux.errors import InvalidInput
from pollux.model import Retry
from pollux.outcome import delay_ms, validate_retry

RETRIES = st.builds(
    Retry,
    attempts_max=st.integers(1, 100),
    base_ms=st.integers(0, 600_000),
    factor=st.floats(1.0, 100.0),
    max_ms=st.integers(600_000, 604_800_000),
    jitter=st.floats(0.0, 1.0),
)


def test_delays_double_up_to_the_longest():
    assert [delay_ms(Retry(), n, roll=0.5) for n in range(8)] == [
        5_000, 10_000, 20_000, 40_000, 80_000, 160_000, 300_000, 300_000,
    ]  # fmt: skip


def test_jitter_spreads_a_delay_evenly_to_both_sides():
    assert delay_ms(Retry(), 0, roll=0.0) == 4_000
    assert delay_ms(Retry(), 0, roll=0.999_999) == 6_000


def test_without_jitter_the_dice_do_not_matter():
    assert {delay_ms(Retry(jitter=0.0), 1, roll=roll) for roll in (0.0, 0.3, 0.9)} == {10_000}


@given(RETRIES, st.integers(0, 10**6), st.floats(0.0, 1.0, exclude_max=True))
def test_no_rule_and_no_attempt_leads_out_of_bounds(retry, attempt, roll):
    delay = delay_ms(validate_retry(retry), attempt, roll=roll)

    assert 0 <= delay <= round(retry.max_ms * (1 + retry.jitter))


@given(RETRIES, st.integers(0, 200), st.floats(0.0, 1.0, exclude_max=True))
def test_a_later_attempt_never_waits_less(retry, attempt, roll):
    assert delay_ms(retry, attempt, roll=roll) <= delay_ms(retry, attempt + 1, roll=roll)


@pytest.mark.parametrize(
    ("retry", "field"),
    [
        (Retry(attempts_max=0), "attempts"),
        (Retry(attempts_max=101), "attempts"),
        (Retry(attempts_max=2.5), "attempts"),
        (Retry(attempts_max=True), "attempts"),
        (Retry(base_ms=-1), "base"),
        (Retry(factor=0.5), "factor"),
        (Retry(factor=float("nan")), "factor"),
        (Retry(factor="2"), "factor"),
        (Retry(max_ms=10**12), "max"),
        (Retry(base_ms=10_000, max_ms=5_000), "max"),
        (Retry(jitter=1.1), "jitter"),
        (Retry(jitter=float("inf")), "jitter"),
    ],
)
def test_a_rule_that_cannot_be_kept_is_refused_by_field_and_with_a_cure(retry, field):
    with pytest.raises(InvalidInput) as refusal:
        validate_retry(retry)

    assert refusal.value.where == field
    assert refusal.value.cure


def test_the_usual_rule_and_a_single_try_are_fine():
    assert validate_retry(Retry()) == Retry()
    assert validate_retry(Retry(attempts_max=1)) == Retry(attempts_max=1)
