"""Output of answers: tables for people, plain columns for pipes, one JSON document for programs; progress bars; times.

Nothing is cut off: on a terminal long cells fold, in a pipe lines are as long as they need to be.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from pollux.errors import InvalidInput, Unreadable
from pollux.model import Run, as_it_is
from pollux.secrets import HIDDEN, hide, looks_secret
from pollux.units import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS, format_moment, printable, zone_of

if TYPE_CHECKING:
    from pollux.store.contract import JobPage, RunPage

PROGRAM = "pollux"
BAR_FROM = 500  # fewer are done before a bar could be read
_Item = TypeVar("_Item")
Columns = Mapping[str, Callable[[_Item], object]]  # heading: the cell of an item
Show = Callable[[str, int, int], None]  # what is done, how far, of how many (0: unknown)
BARS, PLAIN_BARS = "▁▂▃▄▅▆▇█", "12345678"  # plain ones where no others can be shown


@contextlib.contextmanager
def progress(*, total: int | None = None) -> Iterator[Show]:
    """A bar on a terminal, nothing in a pipe, nor where the `total` is too small for a bar to be read."""
    if not sys.stderr.isatty() or (total is not None and total < BAR_FROM):
        yield lambda _what, _done, _total: None
        return
    from rich.columns import Columns
    from rich.console import Console
    from rich.live import Live
    from rich.progress_bar import ProgressBar
    from rich.text import Text

    with Live(console=Console(stderr=True), transient=True, refresh_per_second=10) as live:

        def show(what: str, done: int, total: int) -> None:
            live.update(
                Columns([Text(what), ProgressBar(total=total or None, completed=done, width=40, pulse=not total)])
            )

        yield show


_HERE = Path("/etc/localtime")
_FOLDER = "zoneinfo/"


def local_zone() -> str:
    """The name of the machine's zone; UTC if it has none that is known."""
    named = os.environ.get("TZ", "").removeprefix(":")
    try:
        found = named or os.readlink(_HERE).rpartition(_FOLDER)[2]  # noqa: PTH115  it may lead nowhere
        zone_of(found)
    except (OSError, InvalidInput):
        return "UTC"
    return "UTC" if found in {"Etc/UTC", "Etc/UCT", "UCT", "Zulu", "Etc/Zulu"} else found


def clock(ms: int, tz: str) -> str:
    """`2030-01-31 09:00:00`, in a zone."""
    return format_moment(ms - ms % 1_000, tz)[:19].replace("T", " ")


def clean(text: str) -> str:
    """Text of handlers may hold anything: without line breaks, control characters and secrets."""
    return printable(hide(text))


def notice(words: str) -> None:
    """A remark of the program, beside the answer."""
    click.echo(f"pollux: {clean(words)}", err=True)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def print_json(value: object) -> None:
    click.echo(json.dumps(full(value), indent=2, ensure_ascii=False))


def full(value: object) -> Any:
    """Plain data with every field there, also those that have their default: field names are a promise."""
    if isinstance(value, Run):  # attempts count from 1, as the handler sees it
        value = msgspec.structs.replace(as_it_is(value), attempt=value.attempt + 1, deaths=value.dead_letters)
    if isinstance(value, msgspec.Struct):
        tag = value.__struct_config__.tag
        kind = {"type": tag} if tag is not None else {}
        return kind | {name: full(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, str):
        return HIDDEN.hide_in(value)
    if isinstance(value, Mapping):  # the user's own data: the value of a key named like a password is masked
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
    """One record in full: a line for each of its properties that is not empty."""
    shown = [(name, clean(str(value))) for name, value in pairs if value not in (None, "", (), {}, [])]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        click.echo(f"{name.ljust(width)}  {value}")


def print_items(items: Sequence[_Item], columns: Columns[_Item], *, none: str = "") -> None:
    """A table with a line for each item; `none` goes to stderr where there is no item."""
    print_table(tuple(columns), ([str(cell(item)) for cell in columns.values()] for item in items))
    if none and not items:
        click.echo(none, err=True)


def print_runs(page: RunPage, columns: Columns[Run], *, key: str, none: str, as_json: bool) -> None:
    """A page of runs; `key` is its name in the JSON document."""
    if as_json:
        print_json({key: page.runs, "next": page.next, "unreadable": unreadable_json(page.unreadable)})
        return
    print_items(page.runs, columns)
    print_page_end(page, kind="run", none=none)


def print_page_end(page: JobPage | RunPage, *, kind: str, none: str) -> None:
    """What follows the table of a page: unreadable ones, that there are none, the cursor of the next page."""
    print_unreadable(page.unreadable, kind)
    if not page.unreadable and not getattr(page, f"{kind}s"):
        click.echo(none, err=True)
    if page.next is not None:
        click.echo(f"there are more: add --after {page.next}", err=True)


def print_unreadable(found: Iterable[Unreadable], kind: str = "job") -> None:
    """Records that exist and cannot be shown."""
    for each in found:
        words = f"{kind} {each.name} cannot be read here ({each.why}); see `pollux why {each.name}`"
        click.echo(clean(words), err=True)


def unreadable_json(found: Iterable[Unreadable]) -> list[dict[str, str]]:
    return [{"id": each.name, "why": each.why} for each in found]


def shortened(text: str, at_most: int) -> str:
    """For a line of a table; what shows one thing shows it whole."""
    return text if len(text) <= at_most else f"{text[: at_most - 3]}..."


def print_block(name: str, lines: Iterable[str]) -> None:
    """Something that needs more than a line, under its name."""
    shown = [clean(line) for line in lines]
    if shown:
        click.echo(name)
        for line in shown:
            click.echo(f"  {line}")


@contextlib.contextmanager
def private_file(file: Path) -> Iterator[IO[bytes]]:
    """A file that takes its name only when it is complete, and that only its owner may read."""
    partial = file.with_name(f"{file.name}.part")
    try:
        partial.unlink(missing_ok=True)  # of a process that was killed, perhaps readable for others
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as target:
            yield target
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)


def sparkline(values: Sequence[int], marked: Sequence[bool], *, plain: bool | None = None) -> str:
    """One character a value, as high as it is on the scale from the least to the greatest; marked ones are crossed.

    `plain`: ASCII only; None: if the terminal can do no better.
    """
    if plain is None:
        plain = not can_show(f"{BARS}✗")
    levels, cross = (".:-=+*#%", "x") if plain else (BARS, "✗")
    sizes = [max(1, value).bit_length() for value in values]
    low, high = min(sizes, default=0), max(sizes, default=0)
    steps = [(size - low) * (len(levels) - 1) // max(1, high - low) for size in sizes]
    return "".join(cross if mark else levels[step] for step, mark in zip(steps, marked, strict=True))


def can_show(text: str) -> bool:
    """Does the encoding of our output have these characters?"""
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


def program_name() -> str:
    """What to type for this program: `pollux`, or the way it was called if that would find none or another."""
    called = Path(sys.argv[0])
    if called.name != PROGRAM:
        return f"{Path(sys.executable).name} -m {PROGRAM}"
    found = shutil.which(PROGRAM)
    return PROGRAM if found is not None and Path(found).resolve() == called.resolve() else str(called)
