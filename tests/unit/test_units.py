"""Units: parsing without guesses, exact formatting, and refusals with a cure."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollux.errors import InvalidInput
from pollux.units import (
    DURATION_MAX_MS,
    MOMENT_MAX_MS,
    SIZE_MAX_BYTES,
    duration_ms,
    format_moment,
    format_ms,
    format_size,
    moment_ms,
    shell_word,
    size_bytes,
    zone_of,
)

# durations


@pytest.mark.parametrize(
    ("written", "ms"),
    [
        ("30s", 30_000),
        ("1m30s", 90_000),
        ("1m 30s", 90_000),
        ("2h", 7_200_000),
        ("1d", 86_400_000),
        ("1w", 604_800_000),
        ("250ms", 250),
        ("0.5s", 500),
        ("1.5h", 5_400_000),
        (" 30s ", 30_000),
        ("0s", 0),
        ("1w2d3h4m5s6ms", 788_645_006),
        ("30", 30_000),
        ("0.25", 250),
        (30, 30_000),
        (0, 0),
        (0.1 + 0.2, 300),
        (0.29, 290),
        (1.5, 1_500),
    ],
)
def test_a_duration_is_read(written, ms):
    assert duration_ms(written) == ms


@pytest.mark.parametrize(
    ("written", "what"),
    [
        (True, "not a duration"),
        (None, "not a duration"),
        ("", "not a duration"),
        ("   ", "not a duration"),
        ("soon", "not a duration"),
        ("30S", "not a duration"),
        ("30 parsecs", "not a duration"),
        ("1e3", "not a duration"),
        ("٣s", "not a duration"),
        (".5s", "not a duration"),
        ("9" * 10_000, "not a duration"),
        (float("nan"), "not a duration"),
        (float("inf"), "not a duration"),
        (-1, "negative"),
        ("-5s", "negative"),
        (-0.001, "negative"),
        ("1s1m", "out of order"),
        ("1s1s", "out of order"),
        ("0.1ms", "shorter than a millisecond"),
        (0.0001, "shorter than a millisecond"),
        ("3654d", "longer than ten years"),
        (1e300, "longer than ten years"),
    ],
)
def test_a_duration_that_cannot_be_meant_is_refused_with_the_cure(written, what):
    with pytest.raises(InvalidInput, match=what) as refusal:
        duration_ms(written)
    assert refusal.value.cure
    assert len(str(refusal.value)) < 300


@pytest.mark.parametrize(
    ("ms", "written"),
    [
        (0, "0s"),
        (90_000, "1m30s"),
        (250, "250ms"),
        (864_000_000, "10d"),
        (86_461_001, "1d1m1s1ms"),
        (-1_500, "-1s500ms"),
    ],
)
def test_a_duration_is_written_short_and_exact(ms, written):
    assert format_ms(ms) == written


@given(st.integers(0, DURATION_MAX_MS))
def test_a_duration_survives_being_written_and_read(ms):
    assert duration_ms(format_ms(ms)) == ms


@given(st.text() | st.text(alphabet="0123456789.-+ wdhms", max_size=100) | st.floats() | st.integers())
def test_whatever_is_given_as_a_duration_is_read_in_range_or_refused(value):
    try:
        ms = duration_ms(value)
    except InvalidInput:
        return
    assert 0 <= ms <= DURATION_MAX_MS


# moments


@pytest.mark.parametrize(
    ("written", "ms"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("2030-01-31T09:00:00+02:00", 1_896_073_200_000),
        ("2030-01-31T07:00:00.250Z", 1_896_073_200_250),
        ("2030-01-31 09:00+02:00", 1_896_073_200_000),
        (datetime(2030, 1, 31, 7, tzinfo=UTC), 1_896_073_200_000),
        (datetime(2030, 1, 31, 9, tzinfo=timezone(timedelta(hours=2))), 1_896_073_200_000),
    ],
)
def test_a_moment_is_read_into_utc(written, ms):
    assert moment_ms(written) == ms


@pytest.mark.parametrize("naive", ["2030-01-31T09:00:00", "2030-01-31", datetime(2030, 1, 31)])  # noqa: DTZ001
def test_a_moment_without_an_offset_is_refused_and_told_how_to_add_one(naive):
    with pytest.raises(InvalidInput, match="no offset") as refusal:
        moment_ms(naive)
    assert "+02:00" in refusal.value.cure


@pytest.mark.parametrize("wrong", ["", "tomorrow", 1_896_073_200, True, None, "2030-13-01T00:00Z", "2" * 10_000])
def test_what_is_no_moment_is_refused(wrong):
    with pytest.raises(InvalidInput, match="not a moment"):
        moment_ms(wrong)


@pytest.mark.parametrize("far", ["1969-12-31T23:59:59Z", "9999-12-31T23:59:59-10:00", "0001-01-01T00:00:00+14:00"])
def test_a_moment_outside_the_calendar_is_refused(far):
    with pytest.raises(InvalidInput, match="out of reach"):
        moment_ms(far)


@given(st.integers(0, MOMENT_MAX_MS - 86_400_000), st.sampled_from(["UTC", "Europe/Berlin", "Pacific/Apia"]))
def test_a_moment_survives_being_written_and_read_in_any_zone(ms, tz):
    assert moment_ms(format_moment(ms, tz)) == ms


def test_a_moment_is_written_in_its_zone_to_the_second_if_it_is_one():
    assert format_moment(1_896_073_200_000) == "2030-01-31T07:00:00Z"
    assert format_moment(1_896_073_200_250) == "2030-01-31T07:00:00.250Z"
    assert format_moment(1_896_073_200_000, "Europe/Berlin") == "2030-01-31T08:00:00+01:00"


@pytest.mark.parametrize(("ms", "tz"), [(-1, "UTC"), (MOMENT_MAX_MS + 1, "UTC"), (MOMENT_MAX_MS, "Pacific/Apia")])
def test_a_moment_that_no_calendar_has_is_not_written(ms, tz):
    with pytest.raises(InvalidInput, match="out of reach"):
        format_moment(ms, tz)


@given(st.text())
def test_whatever_is_given_as_a_moment_is_read_or_refused(text):
    try:
        assert 0 <= moment_ms(text) <= MOMENT_MAX_MS
    except InvalidInput as refusal:
        assert refusal.cure  # noqa: PT017


# zones


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("europe/berlin", "Europe/Berlin"),
        ("Berlin", "Europe/Berlin"),
        ("Europe/Berln", "Europe/Berlin"),
        ("new york", "America/New_York"),
        ("America/NewYork", "America/New_York"),
        ("Europe/berlin ", "Europe/Berlin"),
    ],
)
def test_a_zone_that_nearly_is_one_is_answered_with_the_right_name(name, meant):
    with pytest.raises(InvalidInput, match="no time zone") as refusal:
        zone_of(name)
    assert refusal.value.cure == f"did you mean {meant}?"
    assert refusal.value.where == "tz"


@pytest.mark.parametrize(
    "name", ["", "Europe", "../etc/passwd", "/etc/localtime", "a\0b", "x" * 10_000, "right/UTC", "localtime", "\ud800"]
)
def test_what_is_no_zone_is_refused_whatever_the_files_say(name):
    with pytest.raises(InvalidInput, match="no time zone") as refusal:
        zone_of(name)
    assert refusal.value.cure


@given(st.text(max_size=80))
def test_whatever_is_given_as_a_zone_is_one_or_is_refused(name):
    try:
        assert zone_of(name).key == name
    except InvalidInput as refusal:
        assert refusal.cure  # noqa: PT017


# sizes


@pytest.mark.parametrize(
    ("written", "size"),
    [("1 MB", 1_000_000), ("1MiB", 1_048_576), ("512 kB", 512_000), ("1.5 KB", 1_500), ("10", 10), (10, 10), ("7b", 7)],
)
def test_a_size_is_read(written, size):
    assert size_bytes(written) == size


@pytest.mark.parametrize(
    "wrong", ["", "big", "1 XB", "-1", -1, 1.5, True, None, "0.3 B", "1001 TB", 10**16, "1" * 9_999]
)
def test_what_is_no_size_is_refused_with_the_cure(wrong):
    with pytest.raises(InvalidInput) as refusal:
        size_bytes(wrong)
    assert refusal.value.cure


@pytest.mark.parametrize(
    ("size", "written"),
    [(0, "0 B"), (999, "999 B"), (1_000_000, "1 MB"), (4_194_304, "4 MiB"), (1_234_567, "1.23 MB"), (1_001, "1 kB")],
)
def test_a_size_is_written_for_the_eye(size, written):
    assert format_size(size) == written


@given(st.integers(0, SIZE_MAX_BYTES))
def test_a_size_that_is_written_and_read_is_off_by_half_a_percent_at_most(size):
    assert abs(size_bytes(format_size(size)) - size) <= size / 200


@given(st.text(alphabet="0123456789. kKMGTiBb", max_size=80) | st.text())
def test_whatever_is_given_as_a_size_is_read_or_refused(text):
    try:
        assert 0 <= size_bytes(text) <= SIZE_MAX_BYTES
    except InvalidInput as refusal:
        assert refusal.cure  # noqa: PT017


def test_a_url_that_a_shell_would_not_read_as_one_word_is_quoted():
    assert shell_word("redis://h:6379/0?namespace=a&wait=1") == "'redis://h:6379/0?namespace=a&wait=1'"
    assert shell_word("postgresql://u:***@h/db") == "postgresql://u:***@h/db", "there is nothing to paste anyway"
