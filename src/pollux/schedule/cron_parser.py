"""Cron line parser: nicknames, `H`, and errors with a cure, before cronsim parses the fields.

    0 9 * * MON-FRI        minute hour day month weekday
    30 0 9 * * MON-FRI     second first, if there are six
    @daily                 a nickname
    H H(0-7) * * *         H: a value from a stable hash of the job's id

cronsim parses lists, ranges, steps, names, `L`, `LW`, `5L` and `FRI#2`.  Syntax that other programs accept and Pollux
does not is refused here with the reason and the cure.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

from cronsim import CronSim, CronSimError
from msgspec import Struct

from pollux.errors import InvalidInput
from pollux.schedule.interval import place

LINE_MAX = 1_000  # characters; sixty minutes written out are 170

_NICKNAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}


class _Field(Struct, frozen=True):
    name: str
    low: int
    high: int
    hashed_high: int  # upper limit of H: a value that every month and week has
    cure: str


_FIELDS = (
    _Field("second", 0, 59, 59, "seconds go from 0 to 59"),
    _Field("minute", 0, 59, 59, "minutes go from 0 to 59"),
    _Field("hour", 0, 23, 23, "hours go from 0 to 23"),
    _Field("day-of-month", 1, 31, 28, "days go from 1 to 31; L is the last day, LW the last weekday of the month"),
    _Field("month", 1, 12, 12, "months go from 1 to 12 or from JAN to DEC"),
    _Field("day-of-week", 0, 7, 6, "weekdays go from 0 to 7 (0 and 7: Sunday) or from SUN to SAT; 5L, FRI#2"),
)
_HASHED = re.compile(r"H(?:\(([0-9]{1,4})-([0-9]{1,4})\))?(?:/([0-9]{1,4}))?", re.ASCII)
_REVERSED = re.compile(r"([0-9]{1,4})-([0-9]{1,4})(?:/[0-9]+)?", re.ASCII)
_REAL_HOURS = re.compile(r"\*(?:/[0-9]+)?", re.ASCII)


class CronLine(Struct, frozen=True):
    """A parsed line: its fields, and the kind of time it follows (see `cron`)."""

    fields: CronSim  # used for its sets and `match_day` only; `CronMatcher` iterates
    follows_wall: bool  # False: the hour is * or */n, and the line follows real time


def read_line(line: str, job_id: str) -> CronLine:
    """Parse a line for a job; the error names the field, the problem and the cure."""
    parts = _split(line)
    for field, part in zip(_FIELDS, parts, strict=True):
        _check_steps(field, part)
    expanded = [_expand(field, part, job_id) for field, part in zip(_FIELDS, parts, strict=True)]
    try:
        fields = CronSim(" ".join(expanded), datetime(2000, 1, 1, tzinfo=UTC))
    except CronSimError as error:
        if str(error) == "Bad day-of-month" and _is_valid_day(expanded[3]):
            what = f"the day-of-month {parts[3]!r} never comes in the month {parts[4]!r}"
            raise _wrong(what, "change the day or the month") from error
        raise _refusal(str(error), parts) from error
    return CronLine(fields, follows_wall=not _REAL_HOURS.fullmatch(parts[2]))


def names_a_hash(line: str) -> bool:
    """Whether the line may mean different times for different jobs; a false positive (THU) only costs a cache entry."""
    return "H" in line.upper() and not line.lstrip().startswith("@")


def _split(line: str) -> list[str]:
    """The six fields of a line, upper case, nicknames resolved."""
    if len(line) > LINE_MAX:
        raise _wrong(f"a cron line of {len(line)} characters", f"give at most {LINE_MAX}")
    text = line.strip()
    if text.startswith("@"):
        text = _nickname(text)
    if text.upper().startswith(("CRON_TZ=", "TZ=")):
        raise _wrong("the zone is not part of the line", "give it as an option of its own, like tz: Europe/Berlin")
    parts = text.upper().split()
    if len(parts) == 5:
        parts.insert(0, "0")
    if len(parts) != 6:
        raise _wrong(f"{line!r} has {len(parts)} fields", "a cron line has 5 fields, or 6 with the seconds first")
    return parts


def _nickname(text: str) -> str:
    name = text.split(maxsplit=1)[0].lower()
    if name == "@every":
        raise _wrong("@every is an interval, not a cron line", "use an interval, like every: 5m")
    if name == "@reboot":
        cure = "for one run now use a job that runs once, for steady work an interval"
        raise _wrong("@reboot names no time, and a restart of Pollux fires nothing", cure)
    if text.lower() not in _NICKNAMES:
        raise _wrong(f"there is no nickname {text!r}", "use one of " + " ".join(_NICKNAMES))
    return _NICKNAMES[text.lower()]


def _check_steps(field: _Field, part: str) -> None:
    """Refuse a step that exceeds the range, like */90 in the minutes, which cron silently reads as */60."""
    span = field.high - field.low + 1
    for term in part.split(","):
        step = term.partition("/")[2]
        if step.isascii() and step.isdigit() and int(step) > span:
            what = f"the {field.name} field {part!r} has a step of {step}, but only {span} values"
            raise _wrong(what, f"{field.cure}; for other rhythms use an interval")


def _expand(field: _Field, part: str, job_id: str) -> str:
    """The field with each H replaced by the values for this job."""
    if "H" not in part:
        return part
    return ",".join(_expand_term(field, term, job_id) for term in part.split(","))


def _expand_term(field: _Field, term: str, job_id: str) -> str:
    found = _HASHED.fullmatch(term)
    if found is None:
        if term.startswith("H"):
            raise _wrong(f"the {field.name} field has {term!r}", "H is written H, H/15, H(0-29) or H(0-29)/10")
        return term
    low, high = int(found[1] or field.low), int(found[2] or field.hashed_high)
    step = int(found[3] or high - low + 1)
    if not field.low <= low <= high <= field.high or step == 0:
        raise _wrong(f"the {field.name} field has {term!r}", f"{field.cure}; ranges go upwards, steps start at 1")
    start = low + place(job_id, f"cron {field.name}", min(step, high - low + 1))
    return ",".join(str(value) for value in range(start, high + 1, step))


def _is_valid_day(day: str) -> bool:
    """Whether the day is valid by itself, so that only the month excludes it."""
    try:
        CronSim(f"0 0 {day} * *", datetime(2000, 1, 1, tzinfo=UTC))
    except CronSimError:
        return False
    return True


def _refusal(reason: str, parts: list[str]) -> InvalidInput:
    """Our error for one of cronsim ("Bad minute")."""
    for field, part in zip(_FIELDS, parts, strict=True):
        if reason == f"Bad {field.name}":
            return _wrong(f"the {field.name} field {part!r} is wrong", _cure(field, part))
    return _wrong(f"the line {' '.join(parts)!r} is wrong", "a cron line is minute, hour, day, month, weekday")


def _cure(field: _Field, part: str) -> str:
    if field.name == "day-of-month" and re.search(r"[0-9]W|W[0-9]", part):
        return "the nearest weekday (15W) is no part of cron and unclear at a month's edges; name the days, or use LW"
    if "?" in part:
        return "? is not needed here: write *"
    for term in part.split(","):
        found = _REVERSED.fullmatch(term)
        if found and field.low <= int(found[2]) < int(found[1]) <= field.high:
            return f"a range goes upwards: write {found[1]}-{field.high},{field.low}-{found[2]}"
        if term.endswith("/0"):
            return "a step starts at 1"
    return field.cure


def _wrong(what: str, cure: str) -> InvalidInput:
    return InvalidInput(what, where="line", cure=cure)
