"""Notes of the leader: records that it cannot decode or plan, its clock, and the counts of ended runs.

*Unreadable records.*  `leader:jobs:<version>` exists while there are jobs that cannot be decoded, and
`leader:schedules:<version>` while there are jobs whose schedule cannot be used; a new leader that finds one checks
these jobs first.  `leader:feed:<version>` keeps the raw text of the latest feed entries that could not be decoded for a
week, and requests a scan of all jobs until one is over.

*Clock.*  One note a version holds the highest time its leaders planned with, and the corrections after a jump back.

A plan carries `leader:clock:<version>` if the note would grow by `NOTED_MS` or more, so no leader plans with a time
further beyond it.  A leader that finds the store's clock behind the note detects that the clock was ahead earlier.

*Counts.*  The notes `ends:<version>:<hour>` count the runs that ended by minute.  They are complete, unlike history,
which is thinned, and are kept for a week.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

import msgspec
from msgspec import Struct

from pollux.ids import is_id
from pollux.model.note import Note, NotePut
from pollux.units import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS, WEEK_MS, format_moment, format_ms

LEADER_NOTES = "leader:"  # of what the leader cannot read, and of its clock
JOBS, SCHEDULES, FEED = "jobs", "schedules", "feed"
SCHEDULES_CURE = (
    "put a schedule that works; if the leader's machine does not have the time zone, update its tzdata: "
    "the schedule is tried again every minute, and by each new leader"
)
NAMED_MAX = 50  # jobs that the note names; if there are more, the leader reads all jobs
KEPT_MAX = 20  # feed entries
WHY_CHARS_MAX = 120
TEXT_CHARS_MAX = 600


class UnreadableNote(Struct, frozen=True):
    """The content of one note."""

    kind: str  # JOBS, SCHEDULES or FEED
    version: int
    count: int = 0
    named: dict[str, str] = {}  # the first jobs, or the latest entries, with the reason of each
    texts: dict[str, str] = {}  # raw entries, as far as they can be shown
    requests_scan: bool = False  # all jobs are still to be read: an entry may have named any of them

    @property
    def words(self) -> str:
        """`job a: Invalid value (and 3 more)`, `entry 17 of the feed: it was cut off`"""
        what = "entry {} of the feed: {}" if self.kind == FEED else "job {}: {}"
        first = [what.format(name, why) for name, why in self.named.items()][:1]
        if not first:
            return f"{self.count} {'entries' if self.kind == FEED else 'jobs'} whose names cannot be shown"
        return "".join(first) + (f" (and {self.count - 1} more)" if self.count > 1 else "")


def unreadable_note_key(kind: str, version: int) -> str:
    return f"{LEADER_NOTES}{kind}:{version}"


def jobs_value(jobs: dict[str, str]) -> dict[str, Any] | None:
    """The value of the note about these jobs; None if there are none.  An id that cannot be one of ours is counted."""
    named = {name: why[:WHY_CHARS_MAX] for name, why in islice(jobs.items(), NAMED_MAX) if is_id(name)}
    return {"count": len(jobs), "named": named} if jobs else None


def feed_value(
    before: UnreadableNote, entries: Iterable[tuple[int, str, str]], *, requests_scan: bool
) -> dict[str, Any]:
    """The value of the feed note with these entries added, each as (id, why, text)."""
    count, named, texts = before.count, dict(before.named), dict(before.texts)
    for number, why, text in entries:
        count += 1
        named[str(number)], texts[str(number)] = why[:WHY_CHARS_MAX], text[:TEXT_CHARS_MAX]
    kept = list(named)[-KEPT_MAX:]
    return {
        "count": count,
        "named": {name: named[name] for name in kept},
        "texts": {name: texts.get(name, "") for name in kept},
        "requests_scan": requests_scan,
    }


def unreadable_note(note: Note) -> UnreadableNote | None:
    """The decoded note; None for any other note, or if it cannot be decoded."""
    kind, _, number = note.key.removeprefix(LEADER_NOTES).partition(":")
    value = note.value
    if not note.key.startswith(LEADER_NOTES) or kind not in {JOBS, SCHEDULES, FEED} or not number.isdecimal():
        return None
    if not isinstance(value, dict) or not isinstance(value.get("count"), int):
        return None
    named, texts = _texts(value.get("named")), _texts(value.get("texts"))
    return UnreadableNote(kind, int(number), value["count"], named, texts, value.get("requests_scan") is True)


def unusable_schedules(notes: Iterable[UnreadableNote]) -> str:
    """The report of jobs with unusable schedules; empty if there are none."""
    found = [each.words for each in notes if each.kind == SCHEDULES]
    return f"a schedule cannot be used, and nothing of it is fired: {'; '.join(found)}" if found else ""


def unreadable_notes(notes: Iterable[Note]) -> tuple[UnreadableNote, ...]:
    found = [unreadable_note(note) for note in notes]
    return tuple([each for each in found if each is not None])


def _texts(value: Any) -> dict[str, str]:
    return {str(key): str(text) for key, text in value.items()} if isinstance(value, dict) else {}


CLOCK = f"{LEADER_NOTES}clock:"  # below `LEADER_NOTES`, so that one read gets it with the notes of unreadable records
CAME_BACK_MS = 5_000  # a time further ahead was written before the clock came back; synchronized servers differ by less
NOTED_MS = 5_000  # plans use times less far beyond the note
REPORTED_MS = DAY_MS  # for this long a corrected jump back is reported


class ClockSetBack(Struct, frozen=True):
    """A jump back of the store's clock, and the leader's corrections since."""

    at_ms: int  # when the leader noticed it, by the corrected clock
    by_ms: int
    jobs: int = 0  # corrected next due times, further ahead than the schedule allows
    runs: int = 0  # corrected retries and visible times, further ahead than the policy allows
    is_over: bool = False  # all jobs and runs have been checked


class ClockNote(Struct, frozen=True):
    version: int
    highest_ms: int
    back: ClockSetBack | None = None

    def is_behind(self, now_ms: int) -> bool:
        """Whether the clock is behind the highest time, so that planned times may be too far ahead."""
        return self.highest_ms > now_ms + CAME_BACK_MS

    def words(self, now_ms: int) -> str:
        """The state of the clock as text; empty without a recent jump back.

        `the clock jumped back by 1d at 2026-03-01T08:30:00Z: 12 due times and 1 run were corrected`
        """
        back = self.back
        if back is None or (back.is_over and self.is_behind(now_ms)):
            behind = format_ms((self.highest_ms - now_ms) // SECOND_MS * SECOND_MS)
            words = f"the clock is {behind} behind the latest time used for planning: due times may be too far ahead"
            return words if self.is_behind(now_ms) else ""
        if back.is_over and now_ms >= back.at_ms + REPORTED_MS:
            return ""
        jobs, runs = (
            f"{back.jobs} due time{'' if back.jobs == 1 else 's'}",
            f"{back.runs} run{'' if back.runs == 1 else 's'}",
        )
        at, by_ms = format_moment(back.at_ms // SECOND_MS * SECOND_MS), back.by_ms // SECOND_MS * SECOND_MS
        since = f"{jobs} and {runs} were corrected" if back.is_over else "the leader corrects what lies too far ahead"
        return f"the clock came back by {format_ms(by_ms)} at {at}: {since}"


def clock_key(version: int) -> str:
    return f"{CLOCK}{version}"


def clock_value(highest_ms: int, back: ClockSetBack | None) -> dict[str, Any]:
    return {"highest_ms": highest_ms} | ({} if back is None else {"back": msgspec.to_builtins(back)})


def clock_note(note: Note) -> ClockNote | None:
    """The decoded clock note; None for any other note, or if it cannot be decoded."""
    number = note.key.removeprefix(CLOCK)
    if not note.key.startswith(CLOCK) or not number.isdecimal() or not isinstance(note.value, dict):
        return None
    try:
        return msgspec.convert({**note.value, "version": int(number)}, ClockNote)
    except msgspec.ValidationError:
        return None


def clock_notes(notes: Iterable[Note]) -> tuple[ClockNote, ...]:
    return tuple([found for found in map(clock_note, notes) if found is not None])


ENDS = "ends:"
MINUTES = HOUR_MS // MINUTE_MS
Row = tuple[int, int, int, int]  # ended, and of them failed, dead, cancelled
Minutes = dict[int, Row]  # by minute since 1970


class HourlyCounts(Struct, frozen=True):
    """The content of one note."""

    version: int
    hour: int  # since 1970
    from_ms: int  # when the leaders of this version began to count
    minutes: Minutes


class RunCounts(Struct, frozen=True):
    """The runs that ended in a version."""

    from_ms: int | None = None  # from this time on; None: there are no counts
    ended: int = 0
    failed: int = 0
    dead: int = 0
    cancelled: int = 0


def hour_put(counts: HourlyCounts) -> NotePut:
    value = {
        "from_ms": counts.from_ms,
        "minutes": {str(minute % MINUTES): list(row) for minute, row in sorted(counts.minutes.items())},
    }
    expires_ms = (counts.hour + 1) * HOUR_MS + WEEK_MS
    return NotePut(f"{ENDS}{counts.version}:{counts.hour}", value, expires_ms=expires_ms)


def hour_of(note: Note) -> HourlyCounts | None:
    """The counts of a note; None for any other note, or if it cannot be decoded."""
    kind, _, name = note.key.partition(":")
    try:
        if f"{kind}:" != ENDS:
            return None
        version, hour = map(int, name.split(":"))
        value: Any = note.value
        rows = {hour * MINUTES + int(minute): _row(row) for minute, row in value["minutes"].items()}
        return HourlyCounts(version, hour, int(value["from_ms"]), rows)
    except (LookupError, TypeError, ValueError, AttributeError):
        return None


def _row(values: Iterable[Any]) -> Row:
    ended, failed, dead, cancelled = map(int, values)
    return ended, failed, dead, cancelled


def added(one: Row, other: Row) -> Row:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2], one[3] + other[3]


def counted_since(notes: Iterable[Note], version: int, since_ms: int, now_ms: int) -> RunCounts:
    """The runs that ended in a version since `since_ms`, in whole minutes, the minute of `since_ms` included."""
    hours = [hour for hour in map(hour_of, notes) if hour is not None and hour.version == version]
    if not hours:
        return RunCounts()
    first = since_ms // MINUTE_MS
    total: Row = (0, 0, 0, 0)
    for row in (row for hour in hours for minute, row in hour.minutes.items() if minute >= first):
        total = added(total, row)
    began_ms = max(min(hour.from_ms for hour in hours), now_ms - WEEK_MS)
    return RunCounts(max(first * MINUTE_MS, began_ms), *total)
