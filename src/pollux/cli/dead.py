"""`pollux dead`: list, show, revive and drop dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from pollux.cli.completion import run_ids_of
from pollux.cli.options import json_option, page_options, store_options
from pollux.cli.output import ago, now_ms, print_json, print_runs, shortened
from pollux.cli.runner import ListingGroup
from pollux.cli.runs import DETAIL_CHARS_MAX, print_run
from pollux.cli.selection import Selection, chosen_runs, dead_filter, in_batches, print_answers, selecting, since_ms
from pollux.cli.target import StoreChoice
from pollux.errors import Conflict
from pollux.model import Run, RunState
from pollux.store.contract import RunAnswer, RunFilter
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
    """Dead letters: runs whose attempts are used up.  They keep their payload and error until revived or dropped.

    The newest 10,000 are kept, for 90 days: see `history.dead` and `history.dead_age` in the config.

    For example:
      pollux dead                       what is there
      pollux dead show home@1790000000000
      pollux dead revive --job home     let them run again
      pollux dead drop --all --yes      forget them for good
    """


@dead.command("ls")
@dead_filter
@page_options
@json_option
@store_options
def ls(since: str | None, limit: int, after: str | None, where: StoreChoice, *, as_json: bool, **parts: Any) -> None:
    """List dead letters, newest first.

    For example:
      pollux dead ls --job home --json
      pollux dead ls --since 2h --error refused
    """
    begin_ms = None if since is None else since_ms(since)
    selected = RunFilter(states=(RunState.DEAD,), finished_after_ms=begin_ms, **parts)
    page = where.ask(lambda operations: operations.runs.list_runs(selected, after=after, limit=limit))
    now = now_ms()
    print_runs(
        page,
        {
            "id": lambda run: run.id,
            "job": lambda run: run.job_id,
            "ended": lambda run: ago(run.finished_ms, now=now),
            "attempt": lambda run: run.attempt + 1,
            "deaths": lambda run: run.dead_letters,
            "error": lambda run: shortened(run.error, DETAIL_CHARS_MAX),
        },
        key="dead",
        none="there are no dead letters",
        as_json=as_json,
    )


@dead.command()
@click.argument("run_id", metavar="ID", shell_complete=run_ids_of("dead"))
@json_option
@store_options
def show(run_id: str, where: StoreChoice, *, as_json: bool) -> None:
    """Show one dead letter in full.

    For example:
      pollux dead show home@1790000000000
    """
    run = where.ask(lambda operations: _dead_run(operations, run_id))
    if as_json:
        print_json({"run": run})
    else:
        print_run(run)


@dead.command()
@selecting(WHAT, dead_filter, complete=run_ids_of("dead"))
@json_option
@store_options
def revive(choice: Selection, where: StoreChoice, *, as_json: bool) -> int:
    """Let dead letters run again, with all their attempts.  By id, or by filter.

    For example:
      pollux dead revive home@1790000000000
      pollux dead revive --target db-1 --since 2h
      pollux dead revive --all --yes
    """

    async def revived(operations: OperationsProtocol) -> list[RunAnswer]:
        ids = await chosen_runs(operations, choice, DEAD, verb="revive")
        return await in_batches(ids, operations.dead_letters.revive, doing="reviving")

    answers = where.ask(revived)
    if as_json:
        print_json({"runs": answers})
        return int(any(answer.answer.value != "ok" for answer in answers))
    none = "there are no such dead letters"
    return print_answers(answers, done="runs again", why_not=WHY_NOT, none=none, what=WHAT)


@dead.command()
@selecting(WHAT, dead_filter, complete=run_ids_of("dead"))
@json_option
@store_options
def drop(choice: Selection, where: StoreChoice, *, as_json: bool) -> None:
    """Forget dead letters for good.  By id, or by filter.

    For example:
      pollux dead drop home@1790000000000
      pollux dead drop --error "404" --job home
      pollux dead drop --all --yes
    """

    async def dropped(operations: OperationsProtocol) -> int:
        async def act(batch: list[str]) -> list[int]:
            if choice.is_named:
                for run_id in batch:  # only dead letters: finished runs stay in the history
                    await _dead_run(operations, run_id)
            return [await operations.dead_letters.drop(batch)]

        ids = await chosen_runs(operations, choice, DEAD, verb="drop")
        return sum(await in_batches(ids, act, doing="dropping"))

    count = where.ask(dropped)
    if as_json:
        print_json({"dropped": count})
    else:
        click.echo(f"dropped {counted(count, WHAT)}")


async def _dead_run(operations: OperationsProtocol, run_id: str) -> Run:
    run = await operations.runs.get_run(run_id)
    if run.state.value != "dead":
        raise Conflict(f"run {run_id} is {run.state.value}, no dead letter; see it with `pollux runs show {run_id}`")
    return run
