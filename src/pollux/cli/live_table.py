"""The live table of `pollux serve`.

Once a second the app is asked for an overview of as many jobs as the screen has lines; that is all it costs.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console, Group, OverflowMethod, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pollux.app import JobRow, Overview, Pollux, listen_for_signals, run_to_end
from pollux.cli.options import program_name
from pollux.cli.output import ago, clean, span
from pollux.cli.serve import greeting, log_to
from pollux.config import Config
from pollux.errors import PolluxError
from pollux.server import ServerOptions, served

if TYPE_CHECKING:
    from pollux.app import Pollux

LOOK_SECONDS = 1.0
PIPE_SECONDS = 5.0  # without a terminal a table is printed now and then,
PIPE_COLUMNS = 160  # and nothing limits its width but taste
NEWS = 5  # log lines below the table
FRAME_LINES = 10  # of the screen, for everything but rows
ROWS_MAX = 200
BAR = 6

OUTCOME_COLOURS = {
    "ok": "green",
    "changed": "cyan",
    "retrying": "yellow",
    "failing": "red",
    "failed": "red",
    "dead": "bold red",
}


class RecentLog(logging.Handler):
    """Keeps the last lines of the log, to be shown below the table."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: deque[str] = deque(maxlen=NEWS)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(clean(self.format(record).splitlines()[0]))


def run_watched(
    app: Pollux, config: Config, options: ServerOptions | None, warnings: Sequence[str], *, replace: bool
) -> None:
    news = RecentLog()
    log_to(news, config, moments="%H:%M:%S")
    news.lines += [clean(line) for line in (greeting(app, config), *warnings)]
    run_to_end(_run(app, options, news, replace=replace))


async def _run(app: Pollux, options: ServerOptions | None, news: RecentLog, *, replace: bool) -> None:
    stop = asyncio.Event()
    listen_for_signals(stop)
    console = Console() if sys.stdout.isatty() else Console(width=PIPE_COLUMNS)

    def say(words: str) -> None:
        console.print(clean(words), style="yellow", highlight=False, markup=False, soft_wrap=True)

    async with served(app, options, stop=stop, say=say, replace=replace) as server:
        if server is not None and server.first_token and console.is_terminal:
            console.print(f"the first token, shown this once: {server.first_token}", highlight=False, soft_wrap=True)
        api = "" if server is None else server.url
        if console.is_terminal:
            with Live(console=console, auto_refresh=False) as live:
                while not stop.is_set():
                    live.update(await _frame(app, news, console.height, api=api, cut=True), refresh=True)
                    await _rest(stop, LOOK_SECONDS)
        else:
            while not stop.is_set():
                console.print(await _frame(app, news, ROWS_MAX, api=api, cut=False))
                await _rest(stop, PIPE_SECONDS)
        if app.crew is not None:
            console.print("draining: running handlers may finish; Ctrl-C again ends at once")
    console.print("stopped")


async def _rest(stop: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return


async def _frame(app: Pollux, news: RecentLog, height: int, *, api: str, cut: bool) -> RenderableType:
    limit = max(1, min(ROWS_MAX, height - FRAME_LINES - len(news.lines)))
    try:
        overview = await app.operations.status.overview(limit=limit)
    except PolluxError as error:
        return Text(clean(f"the store does not answer: {error}"), style="red")
    late = app.crew.status().start_late if app.crew is not None else None
    lateness = f"99% start within {span(late.at_most_ms(0.99))} of due" if late is not None and late.count else ""
    return Group(
        header(overview, store=app.store_url, lateness=lateness),
        jobs_table(overview, cut=cut),
        *(Text(line, style="dim", no_wrap=True, overflow="ellipsis") for line in news.lines),
        footer(overview, app.store_url, api),
    )


def header(overview: Overview, *, store: str, lateness: str) -> Text:
    counts = overview.counts
    text = Text()
    text.append("pollux", style="bold")
    text.append(f"  {clean(store)}  ")
    leader = f"term {overview.term}, {overview.nodes} node{'' if overview.nodes == 1 else 's'}"
    text.append(f"{leader}  " if overview.leader else "no leader  ", style="" if overview.leader else "yellow")
    text.append(f"jobs {_count(counts.jobs)}  running {_count(counts.leased)}  ready {_count(counts.ready)}  ")
    text.append(f"held {_count(counts.held)}  ", style="yellow" if counts.held else "")
    text.append(f"dead {_count(counts.dead)}  ", style="red" if counts.dead else "")
    return text.append(lateness, style="dim")


def jobs_table(overview: Overview, *, cut: bool) -> RenderableType:
    """One line a job if they are `cut`: a live table that is higher than the screen would lose its end."""
    if not overview.rows:
        return Text("\n  there are no jobs yet\n")
    overflow: OverflowMethod = "ellipsis" if cut else "fold"
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, expand=True)
    table.add_column("id", overflow=overflow, no_wrap=cut)
    table.add_column("schedule", overflow=overflow, no_wrap=cut)
    table.add_column("last", min_width=7)
    table.add_column("fresh", min_width=BAR + 6, no_wrap=True)
    table.add_column("next due", justify="right", min_width=9, no_wrap=True)
    table.add_column("now", overflow=overflow, no_wrap=cut, min_width=12, ratio=1)  # takes what the others leave
    for row in overview.rows:
        table.add_row(*_cells(row, overview.now_ms))
    return table


def _cells(row: JobRow, now: int) -> tuple[Text, ...]:
    last = row.last or "-"
    doing = Text(f"{row.progress} ", style="cyan") if row.progress else Text()
    if row.held:
        doing.append(clean(row.held), style="yellow")
    elif row.failing and not row.progress:
        doing.append(clean(row.last_failure), style="red")
    elif row.answer == "running" and not row.progress:
        doing.append("running", style="cyan")
    return (
        Text(row.job.id),
        Text(row.schedule, style="dim"),
        Text(last, style=OUTCOME_COLOURS.get(last, "dim")),
        freshness_bar(row.freshness.score, row.freshness.age_ms),
        Text(ago(row.next_due_ms, now=now) or "-"),
        doing,
    )


def freshness_bar(score: float, age_ms: int | None) -> Text:
    """How old the last success is, against what was planned."""
    if age_ms is None:
        return Text("·" * BAR + " never", style="dim")
    full = round(score * BAR)
    colour = "green" if score > 0.66 else "yellow" if score > 0.33 else "red"
    bar = Text("█" * full, style=colour)
    return bar.append("·" * (BAR - full), style="dim").append(f" {span(age_ms)}")


def footer(overview: Overview, store: str, api: str = "") -> Text:
    more = overview.counts.jobs - len(overview.rows)
    hidden = f"{_count(more)} more jobs not shown.  " if more > 0 else ""
    look = (
        "a memory store can be seen from here only"
        if store.startswith("memory")
        else f"from a second terminal: {program_name()} jobs --store {clean(store)}"
    )
    page = f"   in a browser: {api}/api/v2/docs" if api else ""
    return Text(f"{hidden}{look}{page}   stop: Ctrl-C", style="dim")


def _count(number: int) -> str:
    return str(number) if number <= 10_000 else "10000+"
