"""How is it told?  Two tables: what was bound and whether it held, and every absolute figure with its spread."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

PEERS = ("huey", "APScheduler", "dramatiq", "taskiq", "taskiq-redis", "saq", "pgqueuer", "procrastinate")


@dataclass(frozen=True)
class Figure:
    bench: str
    system: str
    what: str
    values: list[float]
    unit: str


@dataclass(frozen=True)
class Bound:
    bench: str
    what: str
    measured: float
    limit: float
    unit: str
    is_floor: bool
    note: str = ""

    @property
    def holds(self) -> bool:
        return self.measured >= self.limit if self.is_floor else self.measured <= self.limit


def percentile(values: Sequence[float], share: float) -> float:
    """The value below or at which this share of all lies (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(min(round(share * len(ordered) + 0.5) - 1, len(ordered) - 1), 0)]


def number(value: float) -> str:
    if value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 100 else f"{value:.2f}" if abs(value) >= 1 else f"{value:.3f}"


def bounds_table(bounds: Sequence[Bound]) -> str:
    rows = [
        [
            each.bench,
            each.what,
            f"{number(each.measured)} {each.unit}",
            f"{'>=' if each.is_floor else '<='} {number(each.limit)} {each.unit}",
            "PASS" if each.holds else "MISS",
            each.note,
        ]
        for each in bounds
    ]
    return table(["bench", "bound", "measured", "wanted", "", "remark"], rows)


def figures_table(figures: Sequence[Figure]) -> str:
    rows = [
        [each.bench, each.what, each.system, number(statistics.median(each.values)), each.unit, spread(each.values)]
        for each in figures
    ]
    return table(["bench", "figure", "system", "median", "unit", "min to max (of)"], rows)


def spread(values: Sequence[float]) -> str:
    if len(values) == 1:
        return "(1)"
    return f"{number(min(values))} to {number(max(values))} ({len(values)})"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown that also reads well in a terminal."""
    widths = [max(len(row[n]) for row in [head, *rows]) for n in range(len(head))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    first = "| " + " | ".join(cell.ljust(width) for cell, width in zip(head, widths, strict=True)) + " |"
    return "\n".join([first, "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines])


def machine(folder: Path) -> str:
    """What it was measured on, in one paragraph."""
    import apsw

    peers = ", ".join(f"{name} {version(name)}" for name in PEERS)
    loop = f"uvloop {version('uvloop')}" if has("uvloop") else "asyncio's own loop"
    return (
        f"{os.cpu_count()} cores ({processor()}), {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}, SQLite {apsw.sqlite_lib_version()}, {peers}, "
        f"{loop} for every asyncio system; stores on {file_system(folder)}; load {os.getloadavg()[0]:.1f} at the start."
    )


def has(module: str) -> bool:
    from importlib.util import find_spec

    return find_spec(module) is not None


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


def file_system(folder: Path) -> str:
    """The kind of file system; on tmpfs an fsync costs nothing and durable figures mean nothing."""
    try:
        asked = subprocess.run(["stat", "-f", "-c", "%T", str(folder)], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "an unknown file system"
    kind = asked.stdout.strip()
    return f"{kind} (memory: durable figures mean nothing here)" if kind in {"tmpfs", "ramfs"} else kind


def write_json(
    path: Path, figures: Sequence[Figure], bounds: Sequence[Bound], about: str, settings: Sequence[str]
) -> None:
    record = {
        "about": about,
        "settings": list(settings),
        "argv": sys.argv[1:],
        "figures": [asdict(each) for each in figures],
        "bounds": [asdict(each) | {"holds": each.holds} for each in bounds],
    }
    path.write_text(json.dumps(record, indent=1) + "\n")
