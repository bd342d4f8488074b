"""One finding of the doctor: fine, worth a look, or broken; what was seen, and the cure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from pollux.units import format_size

OK, WARN, FAIL = "ok", "warn", "fail"
_LEVELS = {"healthy": OK, "degraded": WARN, "unhealthy": FAIL}


class DoctorFinding(Struct, frozen=True):
    about: str  # "file system"
    level: str  # ok, warn, fail
    seen: str
    cure: str = ""


def of_health(found: Mapping[str, Any]) -> DoctorFinding:
    """A finding of `pollux health`, as doctor tells it."""
    return DoctorFinding(found["name"], _LEVELS[found["level"]], found["seen"], found["cure"])


def ok(about: str, seen: str, cure: str = "") -> DoctorFinding:
    """`cure` here is a hint for those who want more."""
    return DoctorFinding(about, OK, seen, cure)


def warn(about: str, seen: str, cure: str) -> DoctorFinding:
    return DoctorFinding(about, WARN, seen, cure)


def fail(about: str, seen: str, cure: str) -> DoctorFinding:
    return DoctorFinding(about, FAIL, seen, cure)


def about_size(size: int) -> str:
    """A size in three digits."""
    unit = 10 ** max(0, len(str(size)) - 3)
    return format_size(size // unit * unit)
