"""`pollux runs`: list, show, follow and cancel runs."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from pollux.cli.completion import run_ids_of
from pollux.cli.options import json_option, page_options, store_options
from pollux.cli.output import (
    ago,
    clean,
    full,
    moment,
    now_ms,
    print_block,
    print_json,
    print_pairs,
    print_runs,
    shortened,
    span,
)
from pollux.cli.runner import ListingGroup
from pollux.cli.selection import Selection, chosen_runs, how_cancelled, in_batches, print_answers, run_filter, selecting
from pollux.cli.target import StoreChoice
from pollux.errors import InvalidInput, PolluxError
from pollux.model import SCHEDULED, Run, as_it_is
from pollux.store.contract import RunAnswer, RunFilter
from pollux.units import format_ms

if TYPE_CHECKING:
    from pollux.app import OperationsProtocol

STATES = (SCHEDULED, "held", "ready", "leased", "done", "dead", "cancelled")
FAILED = "failed"  # what the column calls a run that is done and failed
LIVE = STATES[:4]
PRIORITIES = {1: "high", 2: "normal", 3: "low"}
DETAIL_CHARS_MAX = 200  # of an error in a table
RESULT_LINES_MAX = 40
RESULT_CHARS_MAX = 4_000
LOOK_SECONDS = 0.5


@click.group(cls=ListingGroup)
def runs() -> None:
    """List runs, show one, cancel some.

    For example:
      pollux runs                       live ones first, then the newest finished
      pollux runs --job home --failed   what went wrong with one job
      pollux runs show home@1790000000000
      pollux runs cancel --job home
    """


@runs.command("ls")
@run_filter
@click.option(
    "--state", "states", type=click.Choice((*STATES, FAILED)), multiple=True, help="In this state; may be repeated."
)
@click.option("--error", metavar="TEXT", help="With this text in the error.")
@click.option("--failed", is_flag=True, help="Only those that failed.")
@page_options
@json_option
@store_options
def ls(
    states: tuple[str, ...],
    limit: int,
    after: str | None,
    where: StoreChoice,
    *,
    failed: bool,
    as_json: bool,
    **parts: Any,
) -> None:
    """List runs: live ones by due time, then finished ones, newest first.

    A run whose time is still to come is scheduled; a ready one is due and waits for a seat.

    With --job it is the history of a job: how long each run took, whether anything had changed, what went wrong.

    For example:
      pollux runs ls --state held --state ready
      pollux runs ls --state scheduled
      pollux runs ls --job home --limit 20
      pollux runs ls --failed --error refused --json
    """
    from pollux.app.operations.status import runs_in_state

    chosen, is_failed = _chosen_states(states)
    selected, now = RunFilter(failed=True if failed or is_failed else None, **parts), now_ms()
    page = where.ask(
        lambda operations: runs_in_state(operations.runs, chosen, selected, now_ms=now, after=after, limit=limit)
    )
    print_runs(
        page,
        {
            "id": lambda run: run.id,
            "job": lambda run: run.job_id,
            "state": lambda run: outcome_of(run, now=now),
            "due": lambda run: ago(run.due_ms, now=now),
            "attempt": attempt,
            "took": took,
            "changed": changed,
            "detail": lambda run: shortened(detail_of(run, now=now), DETAIL_CHARS_MAX),
        },
        key="runs",
        none="there are no such runs",
        as_json=as_json,
    )


@runs.command()
@click.argument("run_id", metavar="ID", shell_complete=run_ids_of())
@click.option("--follow", "-f", "is_followed", is_flag=True, help="Print every change until it ends.")
@json_option
@store_options
def show(run_id: str, where: StoreChoice, *, is_followed: bool, as_json: bool) -> int:
    """Show one run in full: its attempts, its progress, its result or error.

    With --follow every change is printed on stderr until the run ends; the exit code is then 1 if it did not succeed.

    For example:
      pollux runs show home@1790000000000
      pollux runs show home@1790000000000 --follow
    """

    async def read(operations: OperationsProtocol) -> tuple[Run, Any]:
        run = await operations.runs.get_run(run_id)
        if is_followed and not run.is_finished:
            run = await follow(operations, run_id)
        return run, await operations.status.why(run_id)

    run, why = where.ask(read)
    if as_json:
        print_json({"run": run, "why": why})
    else:
        print_run(run)
        print_pairs((("now", why.reason), ("cure", why.cure)))
    return exit_code(run) if is_followed else 0


@runs.command()
@selecting("run", run_filter, complete=run_ids_of(*LIVE))
@click.option("--state", "states", type=click.Choice(LIVE), multiple=True, help="In this state; may be repeated.")
@click.option("--reason", default="", help="Kept with the runs.")
@json_option
@store_options
def cancel(choice: Selection, states: tuple[str, ...], reason: str, where: StoreChoice, *, as_json: bool) -> int:
    """Cancel runs: waiting ones at once, running ones by request.  By id, or by filter.

    For example:
      pollux runs cancel home@1790000000000
      pollux runs cancel --group edge --state held --reason "the line is cut"
      pollux runs cancel --all --yes
    """

    async def cancelled(operations: OperationsProtocol) -> tuple[list[RunAnswer], dict[str, str]]:
        async def act(batch: list[str]) -> list[RunAnswer]:
            if choice.is_named:
                for run_id in batch:  # an id may also be a job's: here it must be a run's
                    await operations.runs.find_run(run_id)
            return await operations.runs.cancel_runs(batch, reason=reason)

        ids = await chosen_runs(operations, choice, states or LIVE, verb="cancel")
        answers = await in_batches(ids, act, doing="cancelling")
        return answers, {} if as_json else await how_cancelled(operations, answers)

    answers, each = where.ask(cancelled)
    if as_json:
        print_json({"runs": answers})
        return int(any(answer.answer.value != "ok" for answer in answers))
    why_not = {"lost": "is over already", "already": "was cancelled or asked to stop before"}
    done, none = "cancelled, or asked to stop", "there are no such live runs"
    return print_answers(answers, done=done, why_not=why_not, none=none, what="run", each=each)


async def follow(
    operations: OperationsProtocol, run_id: str, *, quiet: bool = False, wait_ms: int | None = None
) -> Run:
    """Print every change on stderr until the run is over; returns the run."""
    printed = ""
    began = time.monotonic()
    while True:
        run = await operations.runs.get_run(run_id)
        if not quiet and (news := state_words(run)) != printed:
            printed = news
            click.echo(f"{moment(now_ms())}  {news}", err=True)
        if run.is_finished:
            return run
        if wait_ms is not None and (time.monotonic() - began) * 1000 >= wait_ms:
            raise PolluxError(
                f"run {run_id} is still {run.shown_state(now_ms())} after {format_ms(wait_ms)}; it goes on: "
                f"`pollux runs show {run_id} --follow` waits on, `pollux why {run_id}` explains it"
            )
        await asyncio.sleep(LOOK_SECONDS)


def state_words(run: Run) -> str:
    """The state of a run, in a line."""
    state = run.shown_state(now_ms())
    match state:
        case "scheduled" if not run.attempt:
            words = f"scheduled: {moment(run.visible_ms)}"
        case "held":
            words = f"held: {run.held_reason}"
        case "scheduled" | "ready" if run.attempt:
            words = f"waits for attempt {run.attempt + 1} ({moment(run.visible_ms)}): {run.error}"
        case "leased":
            again = f" (attempt {run.attempt + 1})" if run.attempt else ""
            words = f"runs on {run.owner}{again}{f': {run.progress}' if run.progress else ''}"
        case "done" if run.failed:
            words = f"failed: {run.error}"
        case "dead":
            words = f"dead: {run.error}"
        case "cancelled":
            words = f"cancelled: {run.cancel}"
        case _:
            words = state
    return shortened(clean(words), DETAIL_CHARS_MAX)


def exit_code(run: Run) -> int:
    """0 if the run is done and did not fail."""
    return int(run.state.value != "done" or run.failed)


def print_run(run: Run) -> None:
    now, run = now_ms(), as_it_is(run)
    print_pairs(
        (
            ("id", run.id),
            ("job", run.job_id),
            ("state", outcome_of(run, now=now)),
            ("held", "" if run.is_retried_at(now) else run.held_reason),
            ("due", f"{moment(run.due_ms)} ({ago(run.due_ms, now=now)})"),
            ("next attempt", ago(run.visible_ms, now=now) if run.is_retried_at(now) else ""),
            ("cause", run.cause.value),
            ("key", run.key),
            ("payload", json.dumps(full(run.payload), ensure_ascii=False) if run.payload else ""),
            ("priority", "" if run.priority == 2 else PRIORITIES[run.priority]),
            ("group", run.group),
            ("target", run.target),
            ("attempt", attempt(run)),
            ("lost leases", run.lease_losses or ""),
            ("crashes", run.crashes or ""),
            ("deliveries", run.fence or ""),
            ("runs on", run.owner),
            ("lease until", moment(run.lease_until_ms) if run.state.value == "leased" else ""),
            ("progress", run.progress),
            ("asked to stop", run.cancel),
            ("started", f"{moment(run.started_ms)} ({late(run)})" if run.started_ms is not None else ""),
            ("finished", moment(run.finished_ms)),
            ("took", took(run)),
            ("changed", changed(run)),
            ("error", run.error),
            ("deaths", run.dead_letters if run.dead_letters > 1 else ""),
        )
    )
    print_block("traceback", run.traceback.splitlines())
    print_block("earlier attempts", _tried_lines(run))
    print_block("result", _result_lines(run.result))


def _tried_lines(run: Run) -> Iterator[str]:
    """Each attempt, and where it broke unless that was shown before."""
    shown = {run.traceback}
    for tried in run.tried:
        lasted = f" after {span(tried.ended_ms - tried.started_ms)}" if tried.ended_ms > tried.started_ms else ""
        which = f"delivery {tried.fence}" if tried.fence else "before it was revived"
        yield f"{which}, ended {moment(tried.ended_ms)}{lasted}: {tried.error}"
        if tried.traceback not in shown:
            shown.add(tried.traceback)
            yield from (f"    {line}" for line in tried.traceback.splitlines())


def _result_lines(result: Any) -> list[str]:
    """The result as indented JSON, cut to what is read on a screen."""
    if result is None:
        return []
    text = json.dumps(full(result), indent=2, ensure_ascii=False)
    lines = shortened(text, RESULT_CHARS_MAX).splitlines()
    if len(lines) > RESULT_LINES_MAX or len(text) > RESULT_CHARS_MAX:
        return [*lines[:RESULT_LINES_MAX], f"... {len(text):,} characters in all; --json has them"]
    return lines


def _chosen_states(words: tuple[str, ...]) -> tuple[list[str], bool]:
    """The states that these words of the column mean, and whether only failed runs of them."""
    if FAILED in words and not {"done", FAILED}.issuperset(words):
        cure = "ask for --state failed by itself; --failed lists dead ones, too"
        raise InvalidInput("failed runs and runs of other states are two lists", where="--state", cure=cure)
    stored = ["done" if word == FAILED else word for word in words]
    return list(dict.fromkeys(stored)), FAILED in words and "done" not in words


def outcome_of(run: Run, *, now: int) -> str:
    """The state as the column shows it."""
    return FAILED if run.failed and run.state.value == "done" else str(run.shown_state(now))


def attempt(run: Run) -> str:
    """Which attempt it is at, as the handler sees it in `ctx.attempt`; nothing for the first."""
    return str(run.attempt + 1) if run.attempt else ""


def changed(run: Run) -> str:
    return {True: "yes", False: "no", None: ""}[as_it_is(run).changed]


def took(run: Run) -> str:
    run = as_it_is(run)
    if run.started_ms is None or run.finished_ms is None:
        return ""
    return span(max(0, run.finished_ms - run.started_ms))


def late(run: Run) -> str:
    """How long after it could have begun it began; nothing if it has not."""
    if run.started_ms is None:
        return ""
    late_ms = run.started_ms - max(run.due_ms, run.visible_ms)
    return f"{span(late_ms)} late" if late_ms > 0 else "on time"


def detail_of(run: Run, *, now: int) -> str:
    """What matters most about a run in its state, in a line."""
    if run.is_retried_at(now):
        return f"tried again {ago(run.visible_ms, now=now)}: {run.error or 'without an error'}"
    match run.state.value:
        case "held":
            return str(run.held_reason)
        case "leased":
            return str(run.cancel or run.progress or (f"failed before: {run.error}" if run.error else ""))
        case "cancelled":
            return str(run.cancel or run.error)
        case _:
            return str(run.error or run.cancel)
