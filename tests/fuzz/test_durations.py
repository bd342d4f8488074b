"""Fuzzed durations, sizes, moments, zones and cron lines: a value, or `InvalidInput` with a cure on one line."""

from pollux import schedule as schedules
from pollux.errors import InvalidInput, problems_of
from pollux.schedule import builders
from pollux.units import duration_ms, format_ms, format_size, moment_ms, size_bytes, zone_of
from tests.fuzz.draws import Draws, cases

DURATIONS = (
    "30s",
    "1m30s",
    "2h",
    "250ms",
    "1w2d3h4m5s6ms",
    "1.5h",
    "0",
    "90",
    "1d 2h",
    "-5s",
    "1e3s",
    "10y",
    "1 m",
    "",
)
SIZES = ("512 kB", "1 MB", "4 MiB", "0", "17", "1.5 kB", "1TB", "1 PB", "-1", "KB", "1e3 B", "")
MOMENTS = (
    "2030-01-31T09:00:00Z", "2030-01-31T09:00:00.123+02:00", "2030-01-31", "2030-W05-4T10:00Z", "20300131T090000Z",
    "1969-12-31T23:59:59Z", "9999-12-31T23:59:59.999Z", "0001-01-01T00:00:00+14:00", "2030-02-30T00:00:00Z", "now",
)  # fmt: skip
ZONES = ("Europe/Berlin", "UTC", "Berlin", "europe/berlin", "../etc/passwd", "Europe", "posix/UTC", "", "/", "GMT+1")
FIELDS = (
    *("*", "*/5", "0", "5", "1-5", "1,2,3", "H", "H/5", "H(0-10)", "MON", "jan", "L", "1#2", "15W", "60", "-1"),
    *("5-1", "*/0", "1-", "@daily", "@reboot", "@", "?", "1/2", "0-59/7", "FRI-SUN", "31", "L-1", "99999999999"),
)
LINES = (
    "* * * * *",
    "0 6 * * *",
    "*/15 8-18 * * MON-FRI",
    "0 0 29 2 *",
    "0 0 31 2 *",
    "H H * * *",
    "@hourly",
    "@yearly",
)
NOW_MS = 1_900_000_000_000


def clear(call, *given):
    """The answer, or None after a refusal that says of each thing what to do."""
    try:
        return call(*given)
    except InvalidInput as error:
        refusal = error
    for one in problems_of(refusal):
        said = str(one)
        assert one.cure, said
        assert said.isprintable(), said
        assert len(said) < 1_000, said
    return None


def text_of(draws: Draws, choices) -> str:
    text = draws.one(choices)
    return draws.mutated(text) if draws.number(4) else text


@cases(size=24, at_once=5)
def test_any_text_is_a_duration_or_refused(draws):
    ms = clear(duration_ms, text_of(draws, DURATIONS))
    assert ms is None or duration_ms(format_ms(ms)) == ms


@cases(size=24, at_once=5)
def test_any_text_is_a_size_or_refused(draws):
    size = clear(size_bytes, text_of(draws, SIZES))
    assert size is None or format_size(size)


@cases(size=24, at_once=5)
def test_any_text_is_a_moment_or_refused(draws):
    ms = clear(moment_ms, text_of(draws, MOMENTS))
    assert ms is None or 0 <= ms < 2**53


@cases(2_000, size=24, at_once=5)
def test_any_text_is_a_zone_or_refused(draws):
    zone = clear(zone_of, text_of(draws, ZONES))
    assert zone is None or zone.key


@cases(size=24, at_once=5)
def test_any_text_is_a_cron_line_whose_next_time_lies_ahead_or_refused(draws):
    if draws.number(3):
        line = " ".join(draws.one(FIELDS) for _ in range(4 + draws.number(4) // 2))
    else:
        line = draws.mutated(draws.one(LINES))
    tz = draws.one(("UTC", "Europe/Berlin", "Australia/Lord_Howe", "nowhere"))

    def next_of() -> int | None:
        schedule = builders.cron(line, tz=tz)
        schedules.validate(schedule, "job")
        return schedules.next_due(schedule, "job", NOW_MS)

    due_ms = clear(next_of)
    assert due_ms is None or due_ms > NOW_MS
