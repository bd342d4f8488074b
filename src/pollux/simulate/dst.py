"""Clock changes (daylight saving) in the zones of cron jobs, with the firings near them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from pollux.model import Cron, Job
from pollux.schedule.timezones import segment_at
from pollux.units import HOUR_MS, format_moment

NEAR_MS = 3 * HOUR_MS
FIRINGS_MAX = 50  # shown of each transition


class ClockChange(Struct, frozen=True):
    """`before` and `after`: local time at that instant by the old and the new offset."""

    tz: str
    at_ms: int
    before: str
    after: str
    firings: tuple[str, ...]  # "02:30 report/daily", within three hours
    more: int

    @property
    def words(self) -> str:
        forwards = self.after[11:16] > self.before[11:16]
        what = "that hour does not exist" if forwards else "that hour comes twice"
        first, last = (self.before, self.after) if forwards else (self.after, self.before)
        return f"{self.tz}: on {self.before[:10]} {first[11:16]} to {last[11:16]}: {what}"


class ClockChanges:
    """Collector of firings near a transition."""

    def __init__(self, jobs: Sequence[Job], from_ms: int, until_ms: int) -> None:
        zones = sorted({job.schedule.tz for job in jobs if isinstance(job.schedule, Cron)})
        self._at = {tz: list(transitions(tz, from_ms, until_ms)) for tz in zones}
        self._at = {tz: found for tz, found in self._at.items() if found}
        self._fired: dict[tuple[str, int], list[tuple[int, str]]] = {}

    def fired(self, job: Job, due_ms: int) -> None:
        if not self._at or not isinstance(job.schedule, Cron):
            return
        for at_ms, _, _ in self._at.get(job.schedule.tz, ()):
            if abs(due_ms - at_ms) <= NEAR_MS:
                self._fired.setdefault((job.schedule.tz, at_ms), []).append((due_ms, job.id))

    def told(self) -> tuple[ClockChange, ...]:
        changes = []
        for tz, found in self._at.items():
            for at_ms, before_s, after_s in found:
                near = sorted(self._fired.get((tz, at_ms), ()), key=lambda firing: abs(firing[0] - at_ms))
                shown = sorted(near[:FIRINGS_MAX])
                words = tuple(f"{format_moment(due_ms, tz)} {job_id}" for due_ms, job_id in shown)
                walls = (_wall(at_ms, before_s), _wall(at_ms, after_s))
                changes.append(ClockChange(tz, at_ms, *walls, words, len(near) - len(shown)))
        return tuple(sorted(changes, key=lambda change: (change.at_ms, change.tz)))


def transitions(tz: str, from_ms: int, until_ms: int) -> Iterator[tuple[int, int, int]]:
    """Yield the changes of a zone's offset within (from, until]: the instant, and the offsets before and after it."""
    segment = segment_at(tz, from_ms // 1_000)
    while segment.end_s * 1_000 <= until_ms:
        after = segment_at(tz, segment.end_s)
        if after.offset_s != segment.offset_s:
            yield segment.end_s * 1_000, segment.offset_s, after.offset_s
        segment = after


def _wall(at_ms: int, offset_s: int) -> str:
    return format_moment(at_ms + offset_s * 1_000).removesuffix("Z")
