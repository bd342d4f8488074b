"""Schedules of jobs as values; `pollux.schedule` computes with them."""

from __future__ import annotations

from msgspec import Struct

INTERVAL_MIN_MS = 100


class Interval(Struct, frozen=True, tag="interval", omit_defaults=True):
    """A fixed interval without drift: due times are `phase + k * every_ms` on the wall clock."""

    every_ms: int
    start_ms: int | None = None  # the origin of the phase, and the earliest due time
    spread: bool = True  # False: the phase is zero (on the minute, on the hour)


class Cron(Struct, frozen=True, tag="cron", omit_defaults=True):
    """The times of a cron line in a time zone."""

    line: str
    tz: str = "UTC"


class Once(Struct, frozen=True, tag="once", omit_defaults=True):
    """A single time: now (`at_ms` is None), or at `at_ms`."""

    at_ms: int | None = None


class OnEvent(Struct, frozen=True, tag="event"):
    """No due times: runs are requested by a trigger or a person."""


Schedule = Interval | Cron | Once | OnEvent
