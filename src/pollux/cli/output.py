"""Output of answers: tables for people, plain columns for pipes, one JSON document for programs; progress bars; times.

Nothing is cut off: on a terminal long cells fold, in a pipe lines are as long as they need to be.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import click
import msgspec

from pollux.errors import InvalidInput
from pollux.model import Run, as_it_is
from pollux.secrets import HIDDEN, hide, looks_secret
from pollux.units import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS, format_moment, printable, zone_of

Show = Callable[[str, int, int], None]  # what is done, how far, of how many (0: nobody knows)


@contextlib.contextmanager
def progress() -> Iterator[Show]:
    if not sys.stderr.isatty():
        yield lambda _what, _done, _total: None
        return
    from rich.columns import Columns
    from rich.console import Console
    from rich.live import Live
    from rich.progress_bar import ProgressBar

    with Live(console=Console(stderr=True), transient=True, refresh_per_second=10) as live:

        def show(what: str, done: int, total: int) -> None:
            live.update(Columns([what, ProgressBar(total=total or None, completed=done, width=40, pulse=not total)]))

        yield show


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


def clean(text: str) -> str:
    """What came from handlers may hold anything: a table stays a table, no terminal is steered, no secret seen."""
    return printable(hide(text))


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def print_json(value: object) -> None:
    click.echo(json.dumps(full(value), indent=2, ensure_ascii=False))


def full(value: object) -> Any:
    """Plain data with every field there, also those that have their default: field names are a promise."""
    if isinstance(value, Run):  # attempts are counted from 1, as its handler sees it; who is not dead died never
        value = msgspec.structs.replace(as_it_is(value), attempt=value.attempt + 1, deaths=value.dead_letters)
    if isinstance(value, msgspec.Struct):
        tag = value.__struct_config__.tag
        kind = {"type": tag} if tag is not None else {}
        return kind | {name: full(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, str):
        return HIDDEN.hide_in(value)
    if isinstance(value, Mapping):  # somebody's own data: what is called a password is none of ours to show
        return {str(key): full(HIDDEN.hide_in(item, is_secret=looks_secret(str(key)))) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [full(item) for item in value]
    return value


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    cells = [[clean(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _print_rich(columns, cells)
        return
    widths = [max(len(row[index]) for row in [columns, *cells]) for index in range(len(columns))]
    for row in [[column.upper() for column in columns], *cells]:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def print_pairs(pairs: Iterable[tuple[str, object]]) -> None:
    """One thing in full: a line for each of its properties that has something to say."""
    told = [(name, clean(str(value))) for name, value in pairs if value not in (None, "", (), {}, [])]
    width = max((len(name) for name, _ in told), default=0)
    for name, value in told:
        click.echo(f"{name.ljust(width)}  {value}")


def print_more(next_cursor: object) -> None:
    """The same command goes on: whatever else was asked for still holds."""
    if next_cursor is not None:
        click.echo(f"there are more: add --after {next_cursor}", err=True)


def say_unreadable(found: Iterable[Any], kind: str = "job") -> None:
    """What is there besides, and nobody can show."""
    for each in found:
        words = f"{kind} {each.name} cannot be read here ({each.why}); see `pollux why {each.name}`"
        click.echo(clean(words), err=True)


def unreadable_json(found: Iterable[Any]) -> list[dict[str, str]]:
    return [{"id": each.name, "why": each.why} for each in found]


def shortened(text: str, at_most: int) -> str:
    """For a line of a table; what shows one thing shows it whole."""
    return text if len(text) <= at_most else f"{text[: at_most - 3]}..."


def print_block(name: str, lines: Iterable[str]) -> None:
    """Something that needs more than a line, under its name."""
    told = [clean(line) for line in lines]
    if told:
        click.echo(name)
        for line in told:
            click.echo(f"  {line}")


def sparkline(values: Sequence[int], marked: Sequence[bool], *, plain: bool | None = None) -> str:
    """One character a value, as high as it is on the scale from the least to the greatest; marked ones are crossed.

    `plain`: ASCII only; None: if the terminal can do no better.
    """
    if plain is None:
        plain = not can_show("▁█✗")
    levels, cross = (".:-=+*#%", "x") if plain else ("▁▂▃▄▅▆▇█", "✗")
    sizes = [max(1, value).bit_length() for value in values]
    low, high = min(sizes, default=0), max(sizes, default=0)
    steps = [(size - low) * (len(levels) - 1) // max(1, high - low) for size in sizes]
    return "".join(cross if mark else levels[step] for step, mark in zip(steps, marked, strict=True))


def can_show(text: str) -> bool:
    """Can whoever reads our output see these characters?"""
    if os.environ.get("TERM") == "dumb":
        return False
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except (UnicodeError, LookupError):
        return False
    return True


def moment(ms: int | None) -> str:
    return "" if ms is None else format_moment(ms - ms % SECOND_MS)


def ago(ms: int | None, *, now: int) -> str:
    """`3m ago`, `in 12s`, `now`."""
    if ms is None:
        return ""
    if abs(now - ms) < SECOND_MS:
        return "now"
    return f"{span(now - ms)} ago" if ms < now else f"in {span(ms - now)}"


def span(ms: int) -> str:
    """A duration for the eye: two units at most."""
    if ms < SECOND_MS:
        return f"{ms}ms"
    for size, name, smaller, small_name in (
        (DAY_MS, "d", HOUR_MS, "h"),
        (HOUR_MS, "h", MINUTE_MS, "m"),
        (MINUTE_MS, "m", SECOND_MS, "s"),
    ):
        if ms >= size:
            rest = ms % size // smaller
            return f"{ms // size}{name}{rest}{small_name}" if rest else f"{ms // size}{name}"
    return f"{ms // SECOND_MS}s"


def _print_rich(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    console = Console()
    for index, column in enumerate(columns):  # an id that is whole can be copied, so the others fold before it does
        width = max((len(row[index]) for row in cells), default=0)
        table.add_column(column, overflow="fold", no_wrap=column == "id" and width <= console.width // 3)
    for row in cells:
        table.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
    console.print(table)


_STYLES = {
    "ok": "green",
    "done": "green",
    "changed": "cyan",
    "leased": "cyan",
    "failed": "red",
    "dead": "bold red",
    "cancelled": "yellow",
    "held": "yellow",
    "failing": "red",
    "healthy": "green",
    "degraded": "yellow",
    "unhealthy": "bold red",
}
