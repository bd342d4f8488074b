"""Notes about records that the leader cannot decode or plan: jobs, schedules and feed entries of a version.

`leader:jobs:<version>` exists while there are jobs that cannot be decoded, `leader:schedules:<version>` while there are
jobs whose schedule cannot be used; a new leader that finds one checks these jobs first.
`leader:feed:<version>` keeps the raw text of the latest such entries for a week, and requests a scan of all jobs until
one is over.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

from msgspec import Struct

from pollux.ids import is_id
from pollux.model.note import Note

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
