"""Header, columns and cells of the live tables of `pollux serve` and `pollux top`; no store and no screen here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import OverflowMethod, RenderableType
from rich.table import Table
from rich.text import Text

from pollux.app.operations.status import history_of
from pollux.cli.output import ago, clean, program_name, span, sparkline
from pollux.model import Counts, Run
from pollux.units import counted

if TYPE_CHECKING:
    from pollux.app import JobRow, Overview
    from pollux.cli.top.board import StoreSummary

BAR = 6
LATEST = 16  # ends in the sparkline
SERVE_COLUMNS = ("id", "schedule", "last", "fresh", "next due", "now")
TOP_COLUMNS = ("id", "state", "last", "latest", "fresh", "next due", "failures", "now")
OUTCOME_COLOURS = {
    "ok": "green",
    "changed": "cyan",
    "retrying": "yellow",
    "failing": "red",
    "failed": "red",
    "dead": "bold red",
}
_STATES = {
    "running": "bold cyan",
    "ready": "cyan",
    "due": "cyan",
    "held": "yellow",
    "paused": "yellow",
    "disabled": "dim",
    "undeclared": "yellow",
    "stranded": "red",
    "waits": "",
    "done": "dim",
}

# what both have


def counts_of(counts: Counts, *, seats: int | None = None) -> Text:
    running = _count(counts.leased) if seats is None else f"{_count(counts.leased)} on {seats} seats"
    text = Text(f"jobs {_count(counts.jobs)}  running {running}  queued {_count(counts.ready)}  ")
    text.append(f"held {_count(counts.held)}  ", "yellow" if counts.held else "")
    return text.append(f"dead {_count(counts.dead)}  ", "red" if counts.dead else "")


def cells_of(row: JobRow, columns: Sequence[str], now_ms: int, *, plain: bool = False) -> tuple[Text, ...]:
    """The cells of one job in these columns; `plain`: the terminal knows ASCII only."""
    memory, marks, last = row.job.memory, history_of(row.job).marks[-LATEST:], row.last or "-"
    line = sparkline([mark.at_most_ms for mark in marks], [mark.failed for mark in marks], plain=plain)
    cells = {
        "id": Text(row.job.id),
        "schedule": Text(row.schedule, "dim"),
        "state": Text(row.answer, _STATES.get(row.answer, "")),
        "last": Text(last, OUTCOME_COLOURS.get(last, "dim")),
        "latest": Text(f"{line:<{LATEST}} {span(memory.duration_ms) if memory.last_end_ms else ''}".rstrip()),
        "fresh": freshness_bar(row.freshness.score, row.freshness.age_ms),
        "next due": Text(ago(row.next_due_ms, now=now_ms) or "-"),
        "failures": Text(str(memory.failures or ""), "red"),
        "now": _now(row) or _idle(row, columns),
    }
    return tuple(cells[column] for column in columns)


def _now(row: JobRow) -> Text:
    """What the job does, what holds it up, or why it fails."""
    parts = [Text(clean(row.progress), "cyan"), Text(clean(row.held), "yellow")]
    if row.failing and not row.progress and not row.held:
        parts.append(Text(clean(row.last_failure), "red"))
    return Text(" ").join(part for part in parts if part)


def _idle(row: JobRow, columns: Sequence[str]) -> Text:
    """That it runs, or its schedule: what no other column shows."""
    if "schedule" not in columns:
        return Text(row.schedule, "dim")
    return Text("running", "cyan") if row.answer == "running" else Text()


def freshness_bar(score: float, age_ms: int | None) -> Text:
    """The age of the last success, against what was planned."""
    if age_ms is None:
        return Text("·" * BAR + " never", style="dim")
    full = round(score * BAR)
    colour = "green" if score > 0.66 else "yellow" if score > 0.33 else "red"
    bar = Text("█" * full, style=colour)
    return bar.append("·" * (BAR - full), style="dim").append(f" {span(age_ms)}")


def _count(number: int) -> str:
    """Counts are exact to 10,000."""
    return f"{number:,}" if number <= 10_000 else "10,000+"


# `pollux serve`


def header(overview: Overview, *, store: str, lateness: str) -> Text:
    text = Text.assemble(("pollux", "bold"), f"  {clean(store)}  ")
    leader = f"term {overview.term}, {counted(overview.nodes, 'node')}"
    text.append(f"{leader}  " if overview.leader else "no leader  ", style="" if overview.leader else "yellow")
    return text.append_text(counts_of(overview.counts)).append(lateness, style="dim")


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
        table.add_row(*cells_of(row, SERVE_COLUMNS, overview.now_ms))
    return table


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


# `pollux top`


def top_header(look: StoreSummary, url: str) -> Text:
    leader, count = look.leader, len(look.nodes)
    text = Text.assemble(("pollux top", "bold"), f"  {clean(url)}  ")
    text.append(f"{counted(count, 'node')}  ", "" if count else "red")
    text.append(f"led by {leader.id} (term {leader.leads})" if leader else "no leader", "" if leader else "yellow")
    return text.append("\n").append_text(counts_of(look.counts, seats=look.seats)).append_text(lateness_of(look))


def lateness_of(look: StoreSummary) -> Text:
    late_ms = max(look.waits_ms, look.overdue_ms)
    if late_ms < 1_000:
        return Text("on time", "green")
    words = []
    if look.waits_ms >= 1_000:
        words.append(f"the oldest ready run waits {span(look.waits_ms)}")
    if look.overdue_ms >= 1_000:
        words.append(f"a due time is {span(look.overdue_ms)} late")
    return Text(", ".join(words), "red" if late_ms > 10_000 else "yellow")


def running_pane(look: StoreSummary) -> Text:
    return _pane("running", look.counts.leased, look.running, _running_words, "cyan")


def held_pane(look: StoreSummary) -> Text:
    return _pane("held", look.counts.held, look.held, lambda run: clean(run.held_reason), "yellow")


def _pane(title: str, count: int, runs: tuple[Run, ...], words: Callable[[Run], str], style: str) -> Text:
    text = Text.assemble((f"{title} {_count(count)}\n", f"bold {style}"))
    for run in runs:
        text.append(f"{run.job_id}  ").append(f"{words(run)}\n", "dim")
    return text


def _running_words(run: Run) -> str:
    again = f"attempt {run.attempt + 1} " if run.attempt else ""
    return f"{again}{clean(run.progress) or f'on {run.owner}'}"
