"""Time zones as segments of constant offset.

A segment is a span of real time in which a zone's offset is constant.  The wall clock jumps only between segments:
forward (a gap: local times that do not exist) or back (a fold: local times that occur twice).

    real    ----[ offset +1 h )[ offset +2 h                    )[ offset +1 h )----
    wall        ... 01:59      | 03:00 ...                 02:59 | 02:00 ...
                               gap                               fold
    passed                     02:00                             03:00

`passed` is the local time that the wall clock had reached when the segment began: local times below it have occurred.
After a gap it is before the segment's first local time, after a fold it is after it.

zoneinfo has no API for its transitions, so the offset is sampled once a day and bisected where it changed.  (Since 1970
no zone has jumped twice within six days.)  Windows of about a year are cached, in bounded number; a segment that
crosses the border of a window is cut there, which changes no result.
"""

from __future__ import annotations

from bisect import bisect_right
from datetime import datetime
from functools import lru_cache
from itertools import pairwise
from zoneinfo import ZoneInfo

from msgspec import Struct

from pollux.units import zone_of

DAY_S = 86_400
_WINDOW_BITS = 25  # 2**25 s: about 388 days
_LOOK_BACK_S = 2 * DAY_S  # a fold repeats hours, not days


class Segment(Struct, frozen=True, gc=False):
    """Real seconds [start_s, end_s) in which local = real + offset_s; `passed_s` is a local time."""

    start_s: int
    end_s: int
    offset_s: int
    passed_s: int


def segment_at(tz: str, at_s: int) -> Segment:
    """The segment of the zone that contains the real second `at_s`."""
    starts, segments = _window(tz, at_s >> _WINDOW_BITS)
    return segments[bisect_right(starts, at_s) - 1]


@lru_cache(maxsize=2048)
def _window(tz: str, index: int) -> tuple[tuple[int, ...], tuple[Segment, ...]]:
    """The segments of one window, with their starts for bisecting."""
    window_start, window_end = index << _WINDOW_BITS, (index + 1) << _WINDOW_BITS
    zone = zone_of(tz)
    borders = [window_start - _LOOK_BACK_S, *_transitions(zone, window_start - _LOOK_BACK_S, window_end), window_end]
    segments, passed_s = [], borders[0] + _offset(zone, borders[0])
    for start, end in pairwise(borders):
        offset, shown = _offset(zone, start), max(start, window_start)
        if shown < end:
            seen = passed_s if shown == start else max(passed_s, shown + offset)
            segments.append(Segment(shown, end, offset, seen))
        passed_s = end + offset
    return tuple(segment.start_s for segment in segments), tuple(segments)


def _transitions(zone: ZoneInfo, from_s: int, to_s: int) -> list[int]:
    """Every real second in (from_s, to_s) at which the offset changes."""
    found = []
    before, offset_before = from_s, _offset(zone, from_s)
    for probe in [*range(from_s + DAY_S, to_s, DAY_S), to_s - 1]:
        offset = _offset(zone, probe)
        if offset != offset_before:
            found.append(_transition(zone, before, probe))
        before, offset_before = probe, offset
    return found


def _transition(zone: ZoneInfo, before_s: int, after_s: int) -> int:
    """The first second whose offset differs from that of `before_s`."""
    offset = _offset(zone, before_s)
    while after_s - before_s > 1:
        middle = (before_s + after_s) // 2
        if _offset(zone, middle) == offset:
            before_s = middle
        else:
            after_s = middle
    return after_s


def _offset(zone: ZoneInfo, at_s: int) -> int:
    offset = datetime.fromtimestamp(at_s, zone).utcoffset()
    assert offset is not None, "a named zone always has an offset"
    return offset.days * DAY_S + offset.seconds
