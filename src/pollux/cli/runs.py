"""`pollux runs`: what ran, runs or waits, and how did it go?"""

from __future__ import annotations

import json
from typing import Any

import click

from pollux.cli.commands import Listing
from pollux.cli.menu import FAILED
from pollux.cli.options import Where, ask, existing_store, json_option, page_options, store_options
from pollux.cli.show import ago, full, moment, now_ms, print_json, print_more, print_pairs, print_table, span

STATES = ("held", "ready", "leased", "done", "dead", "cancelled")


@click.group(cls=Listing)
def runs() -> None:
    """List runs, show one, cancel one.

    For example:
      pollux runs                       live ones first, then the newest finished
      pollux runs --job home --failed   what went wrong with one job
      pollux runs show home@1790000000000
    """


@runs.command("ls")
@click.option("--job", "job_id", metavar="ID", help="Of this job.")
@click.option("--state", "states", type=click.Choice(STATES), multiple=True, help="In this state; may be repeated.")
@click.option("--failed", is_flag=True, help="Only those that failed.")
@page_options
@json_option
@store_options
def ls(
    job_id: str | None,
    states: tuple[str, ...],
    limit: int,
    after: str | None,
    config: str | None,
    store: str | None,
    *,
    failed: bool,
    as_json: bool,
) -> None:
    """List runs: live ones by due time, then finished ones, newest first.

    For example:
      pollux runs ls --state held --state ready
      pollux runs ls --failed --limit 20 --json
    """
    from pollux.model import RunState
    from pollux.store.contract import RunFilter

    chosen = tuple(RunState(state) for state in states)
    where = RunFilter(states=chosen, job_id=job_id, failed=True if failed else None)
    page = ask(existing_store(Where(config, store)), lambda app: app.list_runs(where, after=after, limit=limit))
    if as_json:
        print_json({"runs": page.runs, "next": page.next})
        return
    now = now_ms()
    print_table(
        ("id", "job", "state", "due", "attempt", "took", "says"),
        (
            (run.id, run.job_id, outcome_of(run), ago(run.due_ms, now=now), attempt(run), took(run), says(run))
            for run in page.runs
        ),
    )
    if not page.runs:
        click.echo("there are no such runs", err=True)
    print_more(page.next)


@runs.command()
@click.argument("run_id", metavar="ID")
@json_option
@store_options
def show(run_id: str, config: str | None, store: str | None, *, as_json: bool) -> None:
    """Show one run in full, with its result or error.

    For example:
      pollux runs show home@1790000000000
    """

    async def question(app: Any) -> tuple[Any, Any]:
        return await app.get_run(run_id), await app.why(run_id)

    run, why = ask(existing_store(Where(config, store)), question)
    if as_json:
        print_json({"run": run, "why": why})
        return
    print_run(run)
    print_pairs((("now", why.reason), ("cure", why.cure)))


@runs.command()
@click.argument("run_ids", metavar="ID...", nargs=-1, required=True)
@click.option("--reason", default="", help="Kept with the run.")
@json_option
@store_options
def cancel(run_ids: tuple[str, ...], reason: str, config: str | None, store: str | None, *, as_json: bool) -> int:
    """Cancel runs: waiting ones at once, running ones by request.

    For example:
      pollux runs cancel home@1790000000000
    """

    async def question(app: Any) -> list[Any]:
        for run_id in run_ids:  # an id may also be a job's: here it must be a run's
            await app.get_run(run_id)
        return [answer for run_id in run_ids for answer in await app.cancel(run_id, reason=reason)]

    answers = ask(existing_store(Where(config, store)), question)
    if as_json:
        print_json({"runs": answers})
    for answer in () if as_json else answers:
        is_ok = answer.answer.value == "ok"
        click.echo(f"run {answer.id}: {'cancelled, or asked to stop' if is_ok else 'is over already'}")
    return 0 if all(answer.answer.value == "ok" for answer in answers) else FAILED


def print_run(run: Any) -> None:
    now = now_ms()
    print_pairs(
        (
            ("id", run.id),
            ("job", run.job_id),
            ("state", outcome_of(run)),
            ("held", run.held_reason),
            ("due", f"{moment(run.due_ms)} ({ago(run.due_ms, now=now)})"),
            ("cause", run.cause.value),
            ("key", run.key),
            ("payload", json.dumps(full(run.payload), ensure_ascii=False) if run.payload else ""),
            ("group", run.group),
            ("target", run.target),
            ("attempt", attempt(run)),
            ("lost leases", run.lease_losses or ""),
            ("crashes", run.crashes or ""),
            ("deliveries", run.fence or ""),
            ("runs on", run.owner),
            ("lease until", moment(run.lease_until_ms) if run.state.value == "leased" else ""),
            ("asked to stop", run.cancel),
            ("started", moment(run.started_ms)),
            ("finished", moment(run.finished_ms)),
            ("took", took(run)),
            ("changed", {True: "yes", False: "no", None: ""}[run.changed]),
            ("error", run.error),
            ("stands for", f"{run.deaths} dead letters" if run.deaths > 1 else ""),
            ("result", json.dumps(full(run.result), ensure_ascii=False) if run.result is not None else ""),
        )
    )


def outcome_of(run: Any) -> str:
    return "failed" if run.failed and run.state.value == "done" else str(run.state.value)


def attempt(run: Any) -> str:
    """Which attempt it is at, as the handler sees it in `ctx.attempt`; the first goes without saying."""
    return str(run.attempt + 1) if run.attempt else ""


def took(run: Any) -> str:
    if run.started_ms is None or run.finished_ms is None:
        return ""
    return span(max(0, run.finished_ms - run.started_ms))


def says(run: Any) -> str:
    """The most telling thing about a run, in a line."""
    if run.state.value == "held":
        return str(run.held_reason)
    return str(run.error or run.cancel)
