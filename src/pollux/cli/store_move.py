"""`pollux store move` and `unseal`: move everything into another store, and take a store that was left into use again.

Its progress is a bar on a terminal, a JSON document a line with `--json`, and nothing in a pipe.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterator
from random import Random
from typing import TYPE_CHECKING, Any

import click

from pollux.cli.options import StoreChoice, existing_store
from pollux.cli.output import full, print_json, progress
from pollux.cli.runner import TeachingCommand
from pollux.errors import Conflict, InvalidInput, NotFound
from pollux.secrets import hide
from pollux.units import counted, duration_ms, format_ms

if TYPE_CHECKING:
    from pollux.app.move import MoveReport, MoveStep
    from pollux.store.contract import Store

WAIT = "5m"


@click.command(cls=TeachingCommand)
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.option("--live", is_flag=True, help="Nodes that live on FROM are asked to drain first.")
@click.option(
    "--wait", metavar="DURATION", default=WAIT, show_default=True, help="How long they may take, with --live."
)
@click.option("--json", "as_json", is_flag=True, help="A JSON document a line: each step, then what was moved.")
def move(source: str, target: str, wait: str, *, live: bool, as_json: bool) -> None:
    """Carry everything over into another store: jobs, live runs, dead letters, history, notes, audit log, terms.

    TO must be empty.  FROM is sealed: nobody can serve it any more, so that nobody plans on both; unseal takes it into
    use again.  What ran is ready in TO, and uncharged.  Cut off anywhere, the same command goes on where it was.

    For example:
      pollux store move sqlite:///pollux.db postgresql://pollux@db/pollux
      pollux store move redis://old:6379/0 redis://new:6379/0 --live --wait 10m
    """
    from pollux.ids import new_id

    wait_ms = duration_ms(wait)
    for url in (source, target):
        refuse_memory(url)
    existing_store(StoreChoice(None, source))
    if source == target:
        raise InvalidInput("FROM and TO are the same store", cure="name another one to move to")
    with _steps(as_json=as_json) as report:
        moved = asyncio.run(_move(source, target, report, new_id, live=live, wait_ms=wait_ms))
    if as_json:
        click.echo(json.dumps({"phase": "moved", **full(moved)}, ensure_ascii=False))
    else:
        _tell(moved)


@click.command(cls=TeachingCommand)
@click.argument("url", metavar="URL")
@click.option("--force", is_flag=True, help="Also if the move is over: what happened in the other store is not here.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of words.")
def unseal(url: str, *, force: bool, as_json: bool) -> None:
    """Take a store into use again that was moved elsewhere, or give a move up that is under way.

    For example:
      pollux store unseal sqlite:///pollux.db
      pollux store unseal redis://old:6379/0 --force
    """
    refuse_memory(url)
    existing_store(StoreChoice(None, url))
    mark = asyncio.run(_unseal(url, force=force))
    if as_json:
        print_json({"unsealed": hide(url), "mark": mark})
        return
    click.echo(f"{hide(url)} can be used again; see that nobody uses {mark.other} as well")


async def _move(
    source: str, target: str, report: Callable[[MoveStep], None], new_id: Any, *, live: bool, wait_ms: int
) -> MoveReport:
    from pollux.app.move import Move, MoveEnd
    from pollux.app.operations.context import default_actor
    from pollux.clock import SystemClock

    clock = SystemClock()
    async with opened(source) as origin, opened(target) as goal:
        ends = MoveEnd(origin, hide(source)), MoveEnd(goal, hide(target))
        move_id = new_id(clock.now_ms(), Random())  # noqa: S311  an id, not a secret
        moving = Move(*ends, clock=clock, report=report)
        return await moving.run(move_id, actor=default_actor("cli"), live=live, wait_ms=wait_ms)


async def _unseal(url: str, *, force: bool) -> Any:
    from pollux.store.move_marks import filled_words, marks_of, unseal

    async with opened(url) as store:
        mark, origin = await marks_of(store)
        if mark is None and origin is not None and not origin.is_over:
            what, _, cure = filled_words(origin, hide(url)).partition("; ")
            raise Conflict(f"{hide(url)} {what}: it is not whole, and cannot be used as it is", cure=cure)
        if mark is None:
            raise NotFound("seal on", hide(url), cure="everybody may use it")
        if mark.is_over and not force:
            raise Conflict(
                f"{hide(url)} was moved to {mark.other}: what happened there since is not here; add --force if this "
                "one is to be used all the same"
            )
        return await unseal(store)


@contextlib.asynccontextmanager
async def opened(url: str) -> AsyncIterator[Store]:
    from pollux.clock import SystemClock
    from pollux.store.guard import Guarded
    from pollux.store.urls import open_store

    store = Guarded(open_store(url), clock=SystemClock())
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@contextlib.contextmanager
def _steps(*, as_json: bool) -> Iterator[Callable[[MoveStep], None]]:
    if as_json:
        yield lambda step: click.echo(json.dumps(full(step)))
        return
    with progress() as show:
        yield lambda step: show(_words(step), step.done, step.total or 0)


def _words(step: MoveStep) -> str:
    match step.phase:
        case "draining":
            return f"draining: {counted(step.done, 'run')} still at work"
        case "copying":
            return f"copying: {counted(step.done, 'record')}"
        case _:
            return f"counting: {step.done:,} of {step.total:,}"


def _tell(moved: MoveReport) -> None:
    carried = ", ".join(counted(number, kind.removesuffix("s")) for kind, number in moved.counts.items())
    took = format_ms((moved.ended_ms - moved.began_ms) // 1_000 * 1_000)
    click.echo(f"moved {moved.source} to {moved.target} in {took}: {carried}; counted on both sides, and equal")
    click.echo(f"{moved.source} is sealed: nobody can serve it any more")
    if moved.nodes:
        nodes = ", ".join(moved.nodes[:5]) + (" ..." if len(moved.nodes) > 5 else "")
        is_one = len(moved.nodes) == 1
        left = f"{counted(len(moved.nodes), 'node')} {'is' if is_one else 'are'} left there ({nodes})"
        does, them = ("does", "it") if is_one else ("do", "them")
        click.echo(f"{left}, and {does} nothing; start {them} on the other store")


def refuse_memory(url: str) -> None:
    if url.startswith("memory:"):
        raise InvalidInput("a memory store lives inside the one process that made it", cure="name another store")
