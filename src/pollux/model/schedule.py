"""When should a job fire?  The values; `pollux.schedule` computes with them."""

from __future__ import annotations

from msgspec import Struct

INTERVAL_MIN_MS = 100


class Interval(Struct, frozen=True, tag="interval", omit_defaults=True):
    """Every so often, never drifting: due times are `phase + k * every_ms` on the wall clock."""

    every_ms: int
    start_ms: int | None = None  # given: the phase is counted from here, and nothing fires before
    spread: bool = True  # False: the phase is zero (on the minute, on the hour)


class Cron(Struct, frozen=True, tag="cron", omit_defaults=True):
    """At the times a cron line names, in a time zone."""

    line: str
    tz: str = "UTC"


class Once(Struct, frozen=True, tag="once", omit_defaults=True):
    """One single time: now (`at_ms` is None), or then."""

    at_ms: int | None = None


class OnEvent(Struct, frozen=True, tag="event"):
    """Never by the clock: only when a trigger or a person asks."""


Schedule = Interval | Cron | Once | OnEvent
