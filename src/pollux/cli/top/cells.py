"""Texts of `pollux top`: the header, the cells of a job, the lines of runs; no store and no screen here."""

from __future__ import annotations

from collections.abc import Callable

from rich.text import Text

from pollux.app import JobRow
from pollux.app.operations.status import history_of
from pollux.cli.live_table import OUTCOME_COLOURS, freshness_bar
from pollux.cli.output import ago, clean, span, sparkline
from pollux.cli.top.board import StoreSummary
from pollux.model import Run

COLUMNS = ("id", "state", "last", "latest", "fresh", "next due", "failures", "now")
LATEST = 16  # ends in the sparkline
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


def header_of(look: StoreSummary, url: str) -> Text:
    """Who is there, what waits, how late it is."""
    counts, leader = look.counts, look.leader
    text = Text.assemble(("pollux top", "bold"), f"  {clean(url)}  ")
    count = len(look.nodes)
    text.append(f"{count} node{'' if count == 1 else 's'}  ", "" if count else "red")
    text.append(f"led by {leader.id} (term {leader.leads})" if leader else "no leader", "" if leader else "yellow")
    text.append(f"\nrunning {counted(counts.leased)} on {look.seats} seats  ready {counted(counts.ready)}  ")
    text.append(f"held {counted(counts.held)}  ", "yellow" if counts.held else "")
    text.append(f"dead {counted(counts.dead)}  ", "red" if counts.dead else "")
    text.append(f"jobs {counted(counts.jobs)}  ")
    return text.append_text(lateness_of(look))


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


def cells_of(row: JobRow, now_ms: int, *, plain: bool) -> tuple[Text, ...]:
    """One job, in the order of the columns; `plain`: the terminal knows ASCII only."""
    history, memory = history_of(row.job), row.job.memory
    marks = history.marks[-LATEST:]
    line = sparkline([mark.at_most_ms for mark in marks], [mark.failed for mark in marks], plain=plain)
    last = row.last or "-"
    return (
        Text(row.job.id),
        Text(row.answer, _STATES.get(row.answer, "")),
        Text(last, OUTCOME_COLOURS.get(last, "dim")),
        Text(f"{line:<{LATEST}} {span(memory.duration_ms) if memory.last_end_ms else ''}".rstrip()),
        freshness_bar(row.freshness.score, row.freshness.age_ms),
        Text(ago(row.next_due_ms, now=now_ms) or "-"),
        Text(str(memory.failures or ""), "red"),
        _doing(row),
    )


def _doing(row: JobRow) -> Text:
    if row.progress:
        return Text(clean(row.progress), "cyan")
    if row.held:
        return Text(clean(row.held), "yellow")
    if row.failing:
        return Text(clean(row.last_failure), "red")
    return Text(row.schedule, "dim")


def running_of(look: StoreSummary) -> Text:
    return _listed("running", look.counts.leased, look.running, _running, "cyan")


def held_of(look: StoreSummary) -> Text:
    return _listed("held", look.counts.held, look.held, lambda run: clean(run.held_reason), "yellow")


def _listed(title: str, count: int, runs: tuple[Run, ...], words: Callable[[Run], str], style: str) -> Text:
    text = Text.assemble((f"{title} {counted(count)}\n", f"bold {style}"))
    for run in runs:
        text.append(f"{run.job_id}  ").append(f"{words(run)}\n", "dim")
    return text


def _running(run: Run) -> str:
    again = f"attempt {run.attempt + 1} " if run.attempt else ""
    return f"{again}{clean(run.progress) or f'on {run.owner}'}"


def counted(number: int) -> str:
    """Counts are exact to 10,000."""
    return f"{number:,}" if number <= 10_000 else "10,000+"
