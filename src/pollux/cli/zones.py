"""What does the clock on the wall show here?  The machine's own zone by its name, and moments in it."""

from __future__ import annotations

import os
from pathlib import Path

from pollux.errors import InvalidInput
from pollux.units import format_moment, zone_of

_HERE = Path("/etc/localtime")
_FOLDER = "zoneinfo/"


def local_zone() -> str:
    """The name of the machine's zone; UTC if it has none that is known."""
    told = os.environ.get("TZ", "").removeprefix(":")
    try:
        found = told or os.readlink(_HERE).rpartition(_FOLDER)[2]  # noqa: PTH115  it may lead nowhere
        zone_of(found)
    except (OSError, InvalidInput):
        return "UTC"
    return "UTC" if found in {"Etc/UTC", "Etc/UCT", "UCT", "Zulu", "Etc/Zulu"} else found


def clock(ms: int, tz: str) -> str:
    """`2030-01-31 09:00:00`, in a zone."""
    return format_moment(ms - ms % 1_000, tz)[:19].replace("T", " ")
