"""`pollux dead`: list, show, revive and drop dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from pollux.cli.completion import job_ids, run_ids_of
from pollux.cli.options import StoreChoice, ask, existing_store, json_option, page_options, store_options
from pollux.cli.output import (
    ago,
    now_ms,
    print_json,
    print_more,
    print_table,
    say_unreadable,
    shortened,
    unreadable_json,
)
from pollux.cli.runner import ListingGroup
from pollux.cli.runs import SAYS_MAX, print_run
from pollux.cli.selection import choice_of, chosen_runs, dead_filter_options, in_batches, print_answers, since_ms
from pollux.errors import Conflict
from pollux.units import counted

if TYPE_CHECKING:
    from pollux.app import OperationsProtocol

DEAD = ("dead",)
WHAT = "dead letter"
WHY_NOT = {
    "lost": "it is no dead letter",
    "stale": "its job was deleted; add the job again, or drop it",
    "conflict": "its key is taken by a live run",
}


@click.group(cls=ListingGroup)
def dead() -> None:
    """Dead letters: runs that were given up on.  They keep their payload and error until revived or dropped.

    The newest 10,000 are kept, for 90 days: see `history.dead` and `history.dead_age` in the config.

    For example:
      pollux dead                       what is there
      pollux dead show home@1790000000000
      pollux dead revive --job home     let them run again
      pollux dead drop --all --yes      forget them for good
    """


@dead.command("ls")
@click.option("--job", "job_id", metavar="ID", shell_complete=job_ids, help="Of this job.")
@click.option("--group", help="Of this group.")
@click.option("--target", help="Of this target.")
@click.option("--error", metavar="TEXT", help="With this text in the error.")
@click.option("--since", metavar="WHEN", help="Died since: 2h ago, or a moment with its offset.")
@page_options
@json_option
@store_options
def ls(
    since: str | None,
    limit: int,
    after: str | None,
    config: str | None,
    store: str | None,
    *,
    as_json: bool,
    **parts: Any,
) -> None:
    """List dead letters, newest first.

    For example:
      pollux dead ls --job home --json
      pollux dead ls --since 2h --error refused
    """
    from pollux.model import RunState
    from pollux.store.contract import RunFilter

    begin_ms = None if since is None else since_ms(since)
    where = RunFilter(states=(RunState.DEAD,), finished_after_ms=begin_ms, **parts)
    page = ask(
        existing_store(StoreChoice(config, store)),
        lambda operations: operations.runs.list_runs(where, after=after, limit=limit),
    )
    if as_json:
        print_json({"dead": page.runs, "next": page.next, "unreadable": unreadable_json(page.unreadable)})
        return
    now = now_ms()
    print_table(
        ("id", "job", "ended", "attempt", "deaths", "error"),
        (
            (
                run.id,
                run.job_id,
                ago(run.finished_ms, now=now),
                str(run.attempt + 1),
                str(run.dead_letters),
                shortened(run.error, SAYS_MAX),
            )
            for run in page.runs
        ),
    )
    say_unreadable(page.unreadable, "run")
    if not page.runs and not page.unreadable:
        click.echo("there are no dead letters", err=True)
    print_more(page.next)


@dead.command()
@click.argument("run_id", metavar="ID", shell_complete=run_ids_of("dead"))
@json_option
@store_options
def show(run_id: str, config: str | None, store: str | None, *, as_json: bool) -> None:
    """Show one dead letter in full.

    For example:
      pollux dead show home@1790000000000
    """
    run = ask(existing_store(StoreChoice(config, store)), lambda operations: _dead_run(operations, run_id))
    if as_json:
        print_json({"run": run})
    else:
        print_run(run)


@dead.command()
@click.argument("run_ids", metavar="[ID]...", nargs=-1, shell_complete=run_ids_of("dead"))
@dead_filter_options
@json_option
@store_options
def revive(run_ids: tuple[str, ...], config: str | None, store: str | None, *, as_json: bool, **given: Any) -> int:
    """Let dead letters run again, with all their attempts.  By id, or by what they are.

    For example:
      pollux dead revive home@1790000000000
      pollux dead revive --target db-1 --since 2h
      pollux dead revive --all --yes
    """
    choice = choice_of(WHAT, run_ids, given)
    url = existing_store(StoreChoice(config, store))
    ids = chosen_runs(url, choice, DEAD, verb="revive")
    answers = in_batches(url, ids, lambda operations, batch: operations.dead_letters.revive(batch), doing="reviving")
    if as_json:
        print_json({"runs": answers})
        return int(any(answer.answer.value != "ok" for answer in answers))
    none = "there are no such dead letters"
    return print_answers(answers, done="runs again", why_not=WHY_NOT, none=none, what=WHAT)


@dead.command()
@click.argument("run_ids", metavar="[ID]...", nargs=-1, shell_complete=run_ids_of("dead"))
@dead_filter_options
@json_option
@store_options
def drop(run_ids: tuple[str, ...], config: str | None, store: str | None, *, as_json: bool, **given: Any) -> None:
    """Forget dead letters for good.  By id, or by what they are.

    For example:
      pollux dead drop home@1790000000000
      pollux dead drop --error "404" --job home
      pollux dead drop --all --yes
    """
    choice = choice_of(WHAT, run_ids, given)
    url = existing_store(StoreChoice(config, store))
    ids = chosen_runs(url, choice, DEAD, verb="drop")

    async def act(operations: OperationsProtocol, batch: list[str]) -> list[int]:
        if choice.is_named:
            for run_id in batch:  # only dead letters: the history of finished runs is not ours to thin out
                await _dead_run(operations, run_id)
        return [await operations.dead_letters.drop(batch)]

    count = sum(in_batches(url, ids, act, doing="dropping"))
    if as_json:
        print_json({"dropped": count})
    else:
        click.echo(f"dropped {counted(count, WHAT)}")


async def _dead_run(operations: OperationsProtocol, run_id: str) -> Any:
    run = await operations.runs.get_run(run_id)
    if run.state.value != "dead":
        raise Conflict(f"run {run_id} is {run.state.value}, no dead letter; see it with `pollux runs show {run_id}`")
    return run
