"""Parsing and formatting of durations, moments, time zones and sizes.

Inside Pollux a duration is an integer of milliseconds, a moment an integer of UTC milliseconds, a size an integer of
bytes; texts exist only at the edges.  Ambiguous input is refused with the cure: a moment without an offset, a unit in
the wrong place, a duration of centuries.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from math import isfinite
from zoneinfo import ZoneInfo, available_timezones

from pollux.errors import InvalidInput

SECOND_MS = 1_000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
WEEK_MS = 7 * DAY_MS
DURATION_MAX_MS = 3_653 * DAY_MS  # ten years: a longer one is a typing error
MOMENT_MAX_MS = 253_402_300_799_999  # the last millisecond of 9999, the limit of `datetime`
SIZE_MAX_BYTES = 10**15
TEXT_MAX = 64  # a longer text is no duration, moment, zone or size and is not parsed

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DURATION_UNITS = {"w": WEEK_MS, "d": DAY_MS, "h": HOUR_MS, "m": MINUTE_MS, "s": SECOND_MS, "ms": 1}
_DURATION = re.compile(r"(?:[0-9]+(?:\.[0-9]+)? *(?:ms|[wdhms]) *)+", re.ASCII)
_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?) *(ms|[wdhms])", re.ASCII)
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?", re.ASCII)
_DURATION_CURE = 'write it like "30s", "1m30s", "2h", "1d", "1w" or "250ms"; a bare number is seconds'
_SIZE_UNITS = {
    "TiB": 2**40, "TB": 10**12, "GiB": 2**30, "GB": 10**9, "MiB": 2**20, "MB": 10**6, "KiB": 2**10, "kB": 10**3, "B": 1,
}  # fmt: skip
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) *([a-z]*)", re.ASCII | re.IGNORECASE)
_SIZE_CURE = 'write it like "512 kB", "1 MB" or "4 MiB"; a bare number is bytes'
_FOREIGN_ZONES = ("right/", "posix/", "posixrules", "localtime", "Factory")


def duration_ms(value: str | float) -> int:
    """Milliseconds of "30s", "1m30s", "250ms", or of a number of seconds; rounded to the nearest millisecond."""
    if isinstance(value, str):
        exact = _duration_of_text(value)
    elif _is_number(value) and isfinite(value):
        exact = Fraction(value) * SECOND_MS
    else:
        raise InvalidInput(f"{_short(value)} is not a duration", cure=_DURATION_CURE)
    if exact < 0:
        raise InvalidInput(f"the duration {_short(value)} is negative", cure=_DURATION_CURE)
    if exact > DURATION_MAX_MS:
        raise InvalidInput(f"the duration {_short(value)} is longer than ten years", cure="give at most 3653d")
    ms = round(exact)
    if exact > 0 and ms == 0:
        raise InvalidInput(f"the duration {value!r} is shorter than a millisecond", cure='give 0 or at least "1ms"')
    return ms


def _duration_of_text(text: str) -> Fraction:
    bare = text.strip()
    if len(bare) > TEXT_MAX:
        raise InvalidInput(f"{_short(text)} is not a duration", cure=_DURATION_CURE)
    if _NUMBER.fullmatch(bare):
        return Fraction(bare) * SECOND_MS
    if not _DURATION.fullmatch(bare):
        what = f"the duration {text!r} is negative" if bare.startswith("-") else f"{text!r} is not a duration"
        raise InvalidInput(what, cure=_DURATION_CURE)
    parts = _DURATION_PART.findall(bare)
    sizes = [_DURATION_UNITS[unit] for _, unit in parts]
    if any(left <= right for left, right in pairwise(sizes)):
        raise InvalidInput(f"the units of {text!r} are out of order", cure="biggest first, each once: 1w2d3h4m5s6ms")
    return sum((Fraction(number) * _DURATION_UNITS[unit] for number, unit in parts), Fraction(0))


def format_ms(ms: int) -> str:
    """The shortest exact way to write a duration: "1m30s", "250ms", "10d"; `duration_ms` reads it back."""
    if ms == 0:
        return "0s"
    text, rest = ("-", -ms) if ms < 0 else ("", ms)
    for unit, size in (("d", DAY_MS), ("h", HOUR_MS), ("m", MINUTE_MS), ("s", SECOND_MS), ("ms", 1)):
        count, rest = divmod(rest, size)
        text += f"{count}{unit}" if count else ""
    return text


def moment_ms(value: str | datetime) -> int:
    """UTC milliseconds of an ISO 8601 text or an aware datetime; one without an offset is refused."""
    moment = _datetime_of(value)
    if moment.utcoffset() is None:
        raise InvalidInput(
            f"the moment {str(value)!r} has no offset, so it could be any of many",
            cure='add one: "2030-01-31T09:00:00Z" or "2030-01-31T09:00:00+02:00"',
        )
    ms = (moment - _EPOCH) // timedelta(milliseconds=1)
    if not 0 <= ms <= MOMENT_MAX_MS:
        raise InvalidInput(f"the moment {str(value)!r} is out of reach", cure="moments go from 1970 to 9999")
    return ms


def past_ms(text: str, now_ms: int) -> int:
    """The start of a time range: "2h" means two hours ago, a moment means itself."""
    try:
        return now_ms - duration_ms(text)
    except InvalidInput:
        pass
    try:
        return moment_ms(text)
    except InvalidInput:
        cure = 'write it like "2h" or "2026-12-01T06:00:00+01:00"'
        raise InvalidInput(f"{_short(text)} is no time", cure=cure) from None


def _datetime_of(value: object) -> datetime:
    if isinstance(value, datetime):
        return value
    cure = 'write it like "2030-01-31T09:00:00Z" or "2030-01-31T09:00:00+02:00"'
    if not isinstance(value, str) or len(value) > TEXT_MAX:
        raise InvalidInput(f"{_short(value)} is not a moment", cure=cure)
    try:
        return datetime.fromisoformat(value.strip())
    except ValueError as error:
        raise InvalidInput(f"{value!r} is not a moment", cure=cure) from error


def format_moment(ms: int, tz: str = "UTC") -> str:
    """ISO 8601 in a zone, with milliseconds only where they are not zero; `moment_ms` reads it back."""
    if not 0 <= ms <= MOMENT_MAX_MS:
        raise InvalidInput(f"the moment {ms} ms is out of reach", cure="moments go from 1970 to 9999")
    precision = "milliseconds" if ms % SECOND_MS else "seconds"
    moment = _EPOCH + timedelta(milliseconds=ms)
    if tz == "UTC":
        return moment.replace(tzinfo=None).isoformat(timespec=precision) + "Z"
    try:
        return moment.astimezone(zone_of(tz)).isoformat(timespec=precision)
    except OverflowError as error:
        what = f"the moment {ms} ms is out of reach in {tz}"
        raise InvalidInput(what, cure="moments go from 1970 to 9999") from error


@lru_cache(maxsize=1024)
def zone_of(name: str) -> ZoneInfo:
    """The time zone of that name; the error for a misspelt one suggests the correct name."""
    cause: Exception | None = None
    if 0 < len(name) <= TEXT_MAX and not name.startswith(_FOREIGN_ZONES):
        try:
            return ZoneInfo(name)
        except (ValueError, KeyError, OSError) as error:  # OSError: "Europe" is a directory of the zone files
            cause = error
    raise InvalidInput(f"there is no time zone {_short(name)}", where="tz", cure=_zone_cure(name)) from cause


# Abbreviations of an offset, often of one season, and a zone that has it.
_ABBREVIATIONS = {
    "cest": "Europe/Berlin", "mesz": "Europe/Berlin", "mez": "Europe/Berlin", "bst": "Europe/London",
    "west": "Europe/Lisbon", "eest": "Europe/Athens", "msk": "Europe/Moscow", "edt": "America/New_York",
    "cst": "America/Chicago", "cdt": "America/Chicago", "mdt": "America/Denver", "pst": "America/Los_Angeles",
    "pdt": "America/Los_Angeles", "ist": "Asia/Kolkata", "jst": "Asia/Tokyo", "kst": "Asia/Seoul",
    "sgt": "Asia/Singapore",
    "aest": "Australia/Sydney", "aedt": "Australia/Sydney", "nzst": "Pacific/Auckland", "nzdt": "Pacific/Auckland",
}  # fmt: skip


@lru_cache(maxsize=256)
def _zone_cure(name: str) -> str:
    wanted = name[:TEXT_MAX].strip().replace(" ", "_").casefold()
    if wanted in _ABBREVIATIONS:
        return f"it is a clock's offset, often of one season: name a place, like {_ABBREVIATIONS[wanted]}"
    by_key, by_city = _zone_names()
    near = [key for key in (wanted, by_city.get(wanted, "")) if key in by_key]
    near = near or get_close_matches(wanted, by_key, n=1, cutoff=0.7)
    near = near or [by_city[city] for city in get_close_matches(wanted, by_city, n=1, cutoff=0.7)]
    return f"did you mean {by_key[near[0]]}?" if near else "use a name like UTC or Europe/Berlin"


@lru_cache(maxsize=1)
def _zone_names() -> tuple[dict[str, str], dict[str, str]]:
    """Every zone by its name in lower case, and these lower-case names by their last part."""
    by_key = {key.casefold(): key for key in sorted(available_timezones())}
    return by_key, {key.rpartition("/")[2]: key for key in sorted(by_key)}


def size_bytes(value: str | int) -> int:
    """Bytes of "512 kB", "1 MB" (a million), "1 MiB" (2**20), or of a number of bytes."""
    if isinstance(value, str):
        size = _size_of_text(value)
    elif _is_number(value) and isinstance(value, int):
        size = Fraction(value)
    else:
        raise InvalidInput(f"{_short(value)} is not a size", cure=_SIZE_CURE)
    if size < 0:
        raise InvalidInput(f"the size {_short(value)} is negative", cure=_SIZE_CURE)
    if size > SIZE_MAX_BYTES:
        raise InvalidInput(f"the size {_short(value)} is absurd", cure="give at most 1000 TB")
    if size.denominator != 1:
        raise InvalidInput(f"the size {value!r} is not a whole number of bytes", cure=_SIZE_CURE)
    return int(size)


def _size_of_text(text: str) -> Fraction:
    found = _SIZE.fullmatch(text.strip()) if len(text) <= TEXT_MAX else None
    units = {unit.casefold(): factor for unit, factor in _SIZE_UNITS.items()}
    if found is None or (found[2] or "b").casefold() not in units:
        raise InvalidInput(f"{_short(text)} is not a size", cure=_SIZE_CURE)
    return Fraction(found[1]) * units[(found[2] or "b").casefold()]


def format_size(size: int) -> str:
    """A size for display: exact where a unit divides it ("4 MiB", "1 MB"), else three digits ("1.23 MB")."""
    for unit, factor in _SIZE_UNITS.items():
        if size >= factor > 1 and size % factor == 0:
            return f"{size // factor} {unit}"
    for unit in ("TB", "GB", "MB", "kB"):
        if size >= _SIZE_UNITS[unit]:
            count = size / _SIZE_UNITS[unit]
            return f"{count:.0f} {unit}" if count >= 100 else f"{count:.3g} {unit}"
    return f"{size} B"


def counted(number: int, what: str) -> str:
    """`1 run`, `2 runs`, `12,000 dead letters`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def shell_word(text: str) -> str:
    """The text for pasting into a shell, quoted if it contains `?` or `&`."""
    if "?" not in text and "&" not in text:
        return text  # also the `***` of a password, which the user must replace
    from shlex import quote

    return quote(text)


def _is_number(value: object) -> bool:
    """Whether it is a number; a bool is not, although it is an int in Python."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= TEXT_MAX else f"{text[: TEXT_MAX - 1]}…"


def printable(text: str) -> str:
    """The text with all characters escaped that would control a terminal or break a line."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
