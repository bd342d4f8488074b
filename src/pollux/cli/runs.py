"""`pollux runs`: list, show, follow and cancel runs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from pollux.cli.completion import job_ids, run_ids_of
from pollux.cli.follow_run import exit_code, follow
from pollux.cli.options import StoreChoice, ask, existing_store, json_option, page_options, store_options
from pollux.cli.output import (
    ago,
    full,
    moment,
    now_ms,
    print_block,
    print_json,
    print_more,
    print_pairs,
    print_table,
    say_unreadable,
    shortened,
    span,
    unreadable_json,
)
from pollux.cli.runner import ListingGroup
from pollux.cli.selection import choice_of, chosen_runs, how_cancelled, in_batches, print_answers, run_filter_options
from pollux.errors import InvalidInput
from pollux.model import SCHEDULED, as_it_is

if TYPE_CHECKING:
    from pollux.app import OperationsProtocol

STATES = (SCHEDULED, "held", "ready", "leased", "done", "dead", "cancelled")
FAILED = "failed"  # what the column calls a run that is done and failed
LIVE = STATES[:4]
SAYS_MAX = 200  # characters of an error in a table
RESULT_LINES_MAX = 40
RESULT_CHARS_MAX = 4_000


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
@click.option("--job", "job_id", metavar="ID", shell_complete=job_ids, help="Of this job.")
@click.option("--group", help="Of this group.")
@click.option("--target", help="Of this target.")
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
    config: str | None,
    store: str | None,
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
    from pollux.store.contract import RunFilter

    chosen, is_failed = _chosen_states(states)
    where, now = RunFilter(failed=True if failed or is_failed else None, **parts), now_ms()
    url = existing_store(StoreChoice(config, store))
    page = ask(
        url, lambda operations: runs_in_state(operations.runs, chosen, where, now_ms=now, after=after, limit=limit)
    )
    if as_json:
        print_json({"runs": page.runs, "next": page.next, "unreadable": unreadable_json(page.unreadable)})
        return
    _print_runs(page.runs, now)
    say_unreadable(page.unreadable, "run")
    if not page.runs and not page.unreadable:
        click.echo("there are no such runs", err=True)
    print_more(page.next)


def _print_runs(found: Iterable[Any], now: int) -> None:
    print_table(
        ("id", "job", "state", "due", "attempt", "took", "changed", "detail"),
        (
            (
                run.id,
                run.job_id,
                outcome_of(run, now=now),
                ago(run.due_ms, now=now),
                attempt(run),
                took(run),
                changed(run),
                shortened(says(run, now=now), SAYS_MAX),
            )
            for run in found
        ),
    )


@runs.command()
@click.argument("run_id", metavar="ID", shell_complete=run_ids_of())
@click.option("--follow", "-f", "is_followed", is_flag=True, help="Tell every change until it ends.")
@json_option
@store_options
def show(run_id: str, config: str | None, store: str | None, *, is_followed: bool, as_json: bool) -> int:
    """Show one run in full: its attempts, its progress, its result or error.

    With --follow every change is told on stderr until the run ends; the exit code is then 1 if it did not succeed.

    For example:
      pollux runs show home@1790000000000
      pollux runs show home@1790000000000 --follow
    """

    async def question(operations: OperationsProtocol) -> tuple[Any, Any]:
        run = await operations.runs.get_run(run_id)
        if is_followed and not run.is_finished:
            run = await follow(operations, run_id)
        return run, await operations.status.why(run_id)

    run, why = ask(existing_store(StoreChoice(config, store)), question)
    if as_json:
        print_json({"run": run, "why": why})
    else:
        print_run(run)
        print_pairs((("now", why.reason), ("cure", why.cure)))
    return exit_code(run) if is_followed else 0


@runs.command()
@click.argument("run_ids", metavar="[ID]...", nargs=-1, shell_complete=run_ids_of(*LIVE))
@run_filter_options
@click.option("--state", "states", type=click.Choice(LIVE), multiple=True, help="In this state; may be repeated.")
@click.option("--reason", default="", help="Kept with the runs.")
@json_option
@store_options
def cancel(
    run_ids: tuple[str, ...],
    states: tuple[str, ...],
    reason: str,
    config: str | None,
    store: str | None,
    *,
    as_json: bool,
    **given: Any,
) -> int:
    """Cancel runs: waiting ones at once, running ones by request.  By id, or by what they are.

    For example:
      pollux runs cancel home@1790000000000
      pollux runs cancel --group edge --state held --reason "the line is cut"
      pollux runs cancel --all --yes
    """
    choice = choice_of("run", run_ids, given)
    url = existing_store(StoreChoice(config, store))
    ids = chosen_runs(url, choice, states or LIVE, verb="cancel")

    async def act(operations: OperationsProtocol, batch: list[str]) -> Any:
        if choice.is_named:
            for run_id in batch:  # an id may also be a job's: here it must be a run's
                await operations.runs.find_run(run_id)
        return await operations.runs.cancel_runs(batch, reason=reason)

    answers = in_batches(url, ids, act, doing="cancelling")
    if as_json:
        print_json({"runs": answers})
        return int(any(answer.answer.value != "ok" for answer in answers))
    why_not = {"lost": "is over already", "already": "was cancelled or asked to stop before"}
    done, none = "cancelled, or asked to stop", "there are no such live runs"
    each = how_cancelled(url, answers)
    return print_answers(answers, done=done, why_not=why_not, none=none, what="run", each=each)


def print_run(run: Any) -> None:
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
            ("priority", {1: "high", 2: "", 3: "low"}[run.priority]),
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
            ("stands for", f"{run.dead_letters} dead letters" if run.dead_letters > 1 else ""),
        )
    )
    print_block("traceback", run.traceback.splitlines())
    print_block("earlier attempts", _tried_lines(run))
    print_block("result", _result_lines(run.result))


def _tried_lines(run: Any) -> Iterator[str]:
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
    """As people read it, cut where nobody reads on."""
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


def outcome_of(run: Any, *, now: int) -> str:
    """The state as the column shows it."""
    return FAILED if run.failed and run.state.value == "done" else str(run.shown_state(now))


def attempt(run: Any) -> str:
    """Which attempt it is at, as the handler sees it in `ctx.attempt`; the first goes without saying."""
    return str(run.attempt + 1) if run.attempt else ""


def changed(run: Any) -> str:
    return {True: "yes", False: "no", None: ""}[as_it_is(run).changed]


def took(run: Any) -> str:
    run = as_it_is(run)
    if run.started_ms is None or run.finished_ms is None:
        return ""
    return span(max(0, run.finished_ms - run.started_ms))


def late(run: Any) -> str:
    """How long after it could have begun it began."""
    late_ms = run.started_ms - max(run.due_ms, run.visible_ms)
    return f"{span(late_ms)} late" if late_ms > 0 else "on time"


def says(run: Any, *, now: int) -> str:
    """The most telling thing about a run, in a line."""
    if run.is_retried_at(now):
        return f"tried again {ago(run.visible_ms, now=now)}: {run.error or 'no error was told'}"
    match run.state.value:
        case "held":
            return str(run.held_reason)
        case "leased":
            return str(run.cancel or run.progress or (f"failed before: {run.error}" if run.error else ""))
        case "cancelled":
            return str(run.cancel or run.error)
        case _:
            return str(run.error or run.cancel)
