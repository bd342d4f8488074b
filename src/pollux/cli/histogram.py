"""Histogram of firings: a line an hour (or another round time), a character a minute, as high as its firings are many.

    09:00  ▁▁▁▁▁█▁▁▁▁▁▁▁▁▁▁...   63
    10:00  ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁...   60

A line begins at a round time on the wall, so a jump of the clocks breaks it: the lost hour has no line, the hour that
comes twice has two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import click

from pollux.cli.output import can_show, clock
from pollux.units import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS, moment_ms

BARS = "▁▂▃▄▅▆▇█"
PLAIN_BARS = "12345678"  # where no others can be shown
_LINES_MS = {
    SECOND_MS: MINUTE_MS,
    MINUTE_MS: HOUR_MS,
    5 * MINUTE_MS: 6 * HOUR_MS,
    10 * MINUTE_MS: 12 * HOUR_MS,
    30 * MINUTE_MS: DAY_MS,
    HOUR_MS: DAY_MS,
    6 * HOUR_MS: 7 * DAY_MS,
    DAY_MS: 28 * DAY_MS,
    7 * DAY_MS: 364 * DAY_MS,
}


class HourCounts(Protocol):
    """A forecast, as far as it is drawn."""

    @property
    def start_ms(self) -> int: ...
    @property
    def bucket_ms(self) -> int: ...
    @property
    def counts(self) -> Sequence[int]: ...
    @property
    def peak(self) -> int | None: ...


def picture(told: HourCounts, tz: str) -> Iterator[str]:
    """The lines of the picture; the fullest place is marked."""
    line_ms, peak = _LINES_MS[told.bucket_ms], told.peak
    top = 0 if peak is None else told.counts[peak]
    day = ""
    for first, buckets in _lines(told, tz, line_ms):
        label = clock(told.start_ms + first * told.bucket_ms, tz)
        label, day = (label[11:] if label[:10] == day else label), label[:10]
        counts = [told.counts[index] for index in buckets]
        width = line_ms // told.bucket_ms
        indent = (_on_the_wall(told.start_ms + first * told.bucket_ms, tz) % line_ms) // told.bucket_ms
        bars = " " * indent + "".join(bar(count, top) for count in counts)
        mark = f"  < peak {top}" if peak in buckets else ""
        mark += "  < the clocks jumped" if first and _jumps(told, tz, first) else ""
        yield f"{label:>19}  {bars:<{width}}  {sum(counts)}" + click.style(mark, fg="red", bold=True)


def bar(count: int, top: int) -> str:
    """As high as the share of the top; nothing is a dot, little is never nothing."""
    if not count:
        return "."
    return (BARS if can_show(BARS) else PLAIN_BARS)[max(0, -(-count * 8 // top) - 1)]


def _lines(told: HourCounts, tz: str, line_ms: int) -> Iterator[tuple[int, range]]:
    """The buckets of each line; a new one begins at a round time on the wall, and where the wall clock goes back."""
    first, line, last = 0, None, None
    for index in range(len(told.counts)):
        wall = _on_the_wall(told.start_ms + index * told.bucket_ms, tz)
        if last is not None and (wall // line_ms != line or wall != last + told.bucket_ms):
            yield first, range(first, index)
            first = index
        line, last = wall // line_ms, wall
    if told.counts:
        yield first, range(first, len(told.counts))


def _jumps(told: HourCounts, tz: str, index: int) -> bool:
    """Does the wall clock jump where this bucket begins?"""
    at_ms = told.start_ms + index * told.bucket_ms
    return _on_the_wall(at_ms, tz) - _on_the_wall(at_ms - told.bucket_ms, tz) != told.bucket_ms


def _on_the_wall(ms: int, tz: str) -> int:
    """What the clock shows, as milliseconds that can be divided."""
    return moment_ms(clock(ms, tz).replace(" ", "T") + "Z") + ms % 1_000
