"""`pollux dead`: what was given up on?  Dead letters: look, let run again, or forget."""

from __future__ import annotations

import sys
from typing import Any

import click

from pollux.cli.commands import Listing
from pollux.cli.menu import FAILED
from pollux.cli.options import Where, ask, existing_store, json_option, page_options, store_options
from pollux.cli.runs import print_run
from pollux.cli.show import ago, now_ms, print_json, print_more, print_table
from pollux.errors import Conflict, InvalidInput

WHY_NOT = {
    "lost": "it is no dead letter",
    "stale": "its job is gone; add the job again, or drop it",
    "conflict": "its key is taken by a live run",
}


@click.group(cls=Listing)
def dead() -> None:
    """Dead letters: runs that were given up on.  They keep their payload and error until revived or dropped.

    For example:
      pollux dead                       what is there
      pollux dead show home@1790000000000
      pollux dead revive --job home     let them run again
      pollux dead drop --all --yes      forget them for good
    """


@dead.command("ls")
@click.option("--job", "job_id", metavar="ID", help="Of this job.")
@page_options
@json_option
@store_options
def ls(
    job_id: str | None, limit: int, after: str | None, config: str | None, store: str | None, *, as_json: bool
) -> None:
    """List dead letters, newest first.

    For example:
      pollux dead ls --job home --json
    """
    where = _letters(job_id)
    page = ask(existing_store(Where(config, store)), lambda app: app.list_runs(where, after=after, limit=limit))
    if as_json:
        print_json({"dead": page.runs, "next": page.next})
        return
    now = now_ms()
    print_table(
        ("id", "job", "died", "attempts", "stands for", "error"),
        (
            (run.id, run.job_id, ago(run.finished_ms, now=now), str(run.attempt + 1), str(run.deaths), run.error)
            for run in page.runs
        ),
    )
    if not page.runs:
        click.echo("there are no dead letters", err=True)
    print_more(page.next)


@dead.command()
@click.argument("run_id", metavar="ID")
@json_option
@store_options
def show(run_id: str, config: str | None, store: str | None, *, as_json: bool) -> None:
    """Show one dead letter in full.

    For example:
      pollux dead show home@1790000000000
    """
    run = ask(existing_store(Where(config, store)), lambda app: _dead_run(app, run_id))
    if as_json:
        print_json({"run": run})
    else:
        print_run(run)


@dead.command()
@click.argument("run_ids", metavar="[ID]...", nargs=-1)
@click.option("--job", "job_id", metavar="ID", help="All of this job.")
@click.option("--all", "everything", is_flag=True, help="All there are.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@store_options
def revive(
    run_ids: tuple[str, ...],
    job_id: str | None,
    config: str | None,
    store: str | None,
    *,
    everything: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Let dead letters run again, with all their attempts.

    For example:
      pollux dead revive home@1790000000000
      pollux dead revive --job home
      pollux dead revive --all
    """
    _check_choice(run_ids, job_id, everything=everything)
    url = existing_store(Where(config, store))
    if everything and not yes:
        _confirm(url, "revive")
    answers = ask(url, lambda app: app.revive(list(run_ids) or None, job=job_id))
    if as_json:
        print_json({"runs": answers})
    for answer in () if as_json else answers:
        what = "runs again" if answer.answer.value == "ok" else WHY_NOT.get(answer.answer.value, answer.answer.value)
        click.echo(f"run {answer.id}: {what}", err=answer.answer.value != "ok")
    if not answers and not as_json:
        click.echo("there are no such dead letters")
    return 0 if all(answer.answer.value == "ok" for answer in answers) else FAILED


@dead.command()
@click.argument("run_ids", metavar="[ID]...", nargs=-1)
@click.option("--job", "job_id", metavar="ID", help="All of this job.")
@click.option("--all", "everything", is_flag=True, help="All there are.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@store_options
def drop(
    run_ids: tuple[str, ...],
    job_id: str | None,
    config: str | None,
    store: str | None,
    *,
    everything: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Forget dead letters for good.

    For example:
      pollux dead drop home@1790000000000
      pollux dead drop --all --yes
    """
    _check_choice(run_ids, job_id, everything=everything)
    url = existing_store(Where(config, store))
    if everything and not yes:
        _confirm(url, "drop")

    async def question(app: Any) -> int:
        for run_id in run_ids:  # only dead letters: the history of finished runs is not ours to thin out
            await _dead_run(app, run_id)
        dropped: int = await app.drop(list(run_ids) or None, job=job_id)
        return dropped

    count = ask(url, question)
    if as_json:
        print_json({"dropped": count})
    else:
        click.echo(f"dropped {count} dead letter{'' if count == 1 else 's'}")


def _letters(job_id: str | None) -> Any:
    from pollux.model import RunState
    from pollux.store.contract import RunFilter

    return RunFilter(states=(RunState.DEAD,), job_id=job_id)


async def _dead_run(app: Any, run_id: str) -> Any:
    run = await app.get_run(run_id)
    if run.state.value != "dead":
        raise Conflict(f"run {run_id} is {run.state.value}, no dead letter; see it with `pollux runs show {run_id}`")
    return run


def _check_choice(run_ids: tuple[str, ...], job_id: str | None, *, everything: bool) -> None:
    if sum((bool(run_ids), job_id is not None, everything)) != 1:
        raise InvalidInput("say which dead letters", cure="give their ids, or --job ID, or --all")


def _confirm(url: str, verb: str) -> None:
    if not sys.stdin.isatty():
        raise InvalidInput(f"--all would {verb} every dead letter, and nobody is here to confirm it", cure="add --yes")
    count = ask(url, lambda app: app.counts()).dead
    if not click.confirm(f"{verb} {count if count <= 10_000 else 'more than 10000'} dead letters?", err=True):
        click.echo("nothing was changed", err=True)
        raise click.exceptions.Exit(FAILED)
