"""What was found?  One thing that was looked at: fine, worth a look, or broken; what was seen, and the cure."""

from __future__ import annotations

from msgspec import Struct

OK, WARN, FAIL = "ok", "warn", "fail"


class Finding(Struct, frozen=True):
    about: str  # "file system"
    level: str  # ok, warn, fail
    seen: str
    cure: str = ""


def ok(about: str, seen: str, cure: str = "") -> Finding:
    """`cure` here is a hint for those who want more."""
    return Finding(about, OK, seen, cure)


def warn(about: str, seen: str, cure: str) -> Finding:
    return Finding(about, WARN, seen, cure)


def fail(about: str, seen: str, cure: str) -> Finding:
    return Finding(about, FAIL, seen, cure)
