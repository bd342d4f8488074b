"""What could the leader not read, or not plan?  Three notes of each version say it: jobs, schedules, and feed entries.

`aside:jobs:<version>` stands as long as there are jobs that cannot be read, `aside:schedules:<version>` as long as
there are some whose schedule cannot be used; a leader that finds one looks at its jobs first of all.
`aside:feed:<version>` keeps the latest entries as they stood there, for a week: what they told was read anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import Struct, json

from pollux.model.note import Note

ASIDE = "aside:"
JOBS, SCHEDULES, FEED = "jobs", "schedules", "feed"
SCHEDULES_CURE = (
    "put a schedule that works; if the leader's machine does not know the time zone, bring its tzdata up to date: "
    "the schedule is tried again every minute, and by each new leader"
)
NAMED_MAX = 100  # jobs that the note names; a leader that finds more of them looks at all there are
NAMED_BYTES_MAX = 40_000  # of them all, as they are written: a note has its own limit
NAME_CHARS_MAX = 500  # a longer one is counted, not named: cut off it would name another job
KEPT_MAX = 20  # entries
WHY_CHARS_MAX = 120
TEXT_CHARS_MAX = 600
_encode = json.Encoder().encode


class UnreadableNote(Struct, frozen=True):
    """What one note says."""

    kind: str  # JOBS, SCHEDULES or FEED
    version: int
    count: int
    named: dict[str, str]  # the first jobs, or the latest entries, and why each cannot be read or planned
    texts: dict[str, str] = {}  # the entries, as far as they can be shown

    @property
    def words(self) -> str:
        """`job a: Invalid value (and 3 more)`, `entry 17 of the feed: it was cut off`"""
        what = "entry {} of the feed: {}" if self.kind == FEED else "job {}: {}"
        first = [what.format(name, why) for name, why in self.named.items()][:1]
        if not first:
            return f"{self.count} {'entries' if self.kind == FEED else 'jobs'} whose names cannot be told"
        return "".join(first) + (f" (and {self.count - 1} more)" if self.count > 1 else "")


def aside_key(kind: str, version: int) -> str:
    return f"{ASIDE}{kind}:{version}"


def jobs_value(jobs: dict[str, str]) -> dict[str, Any] | None:
    """What the note says of them; None: there is none."""
    named: dict[str, str] = {}
    left = NAMED_BYTES_MAX
    for name, why in jobs.items():
        size = 0 if len(name) > NAME_CHARS_MAX else _size_of(name, why[:WHY_CHARS_MAX])
        left -= size
        if left < 0 or len(named) >= NAMED_MAX:
            break
        if size:
            named[name] = why[:WHY_CHARS_MAX]
    return {"count": len(jobs), "named": named} if jobs else None


def feed_value(before: UnreadableNote | None, entries: Iterable[tuple[int, str, str]]) -> dict[str, Any]:
    """What the note says with these, too: (id, why, text) each."""
    count, named, texts = (0, {}, {}) if before is None else (before.count, dict(before.named), dict(before.texts))
    for number, why, text in entries:
        count += 1
        named[str(number)], texts[str(number)] = why[:WHY_CHARS_MAX], text[:TEXT_CHARS_MAX]
    kept = list(named)[-KEPT_MAX:]
    return {
        "count": count,
        "named": {name: named[name] for name in kept},
        "texts": {name: texts.get(name, "") for name in kept},
    }


def set_aside(note: Note) -> UnreadableNote | None:
    """What a note says, if it is one of these; what somebody else wrote there is none."""
    kind, _, number = note.key.removeprefix(ASIDE).partition(":")
    value = note.value
    if not note.key.startswith(ASIDE) or kind not in {JOBS, SCHEDULES, FEED} or not number.isdecimal():
        return None
    if not isinstance(value, dict) or not isinstance(value.get("count"), int):
        return None
    return UnreadableNote(kind, int(number), value["count"], _texts(value.get("named")), _texts(value.get("texts")))


def unusable_schedules(asides: Iterable[UnreadableNote]) -> str:
    """In words, if there are any."""
    found = [each.words for each in asides if each.kind == SCHEDULES]
    return f"a schedule cannot be used, and nothing of it is fired: {'; '.join(found)}" if found else ""


def all_aside(notes: Iterable[Note]) -> tuple[UnreadableNote, ...]:
    found = [set_aside(note) for note in notes]
    return tuple([each for each in found if each is not None])


def _size_of(name: str, why: str) -> int:
    """In bytes, as it is written; 0 if it cannot be."""
    try:
        return len(_encode((name, why)))
    except ValueError:
        return 0


def _texts(value: Any) -> dict[str, str]:
    return {str(key): str(text) for key, text in value.items()} if isinstance(value, dict) else {}
