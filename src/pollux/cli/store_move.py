"""`pollux store move`, `unseal` and `drop`: move everything into another store, and what to do with the one it left.

The progress of a move is a bar on a terminal, a JSON document a line with `--json`, and nothing in a pipe.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from random import Random
from typing import TYPE_CHECKING

import click

from pollux.cli.command_table import FAILED
from pollux.cli.options import json_option
from pollux.cli.output import full, print_json, progress
from pollux.cli.runner import TeachingCommand
from pollux.cli.target import StoreChoice, existing, place_of_target, sqlite_path
from pollux.clock import SystemClock
from pollux.errors import Conflict, InvalidInput, NotFound
from pollux.ids import new_id
from pollux.secrets import hide
from pollux.store.contract import Counts, Store
from pollux.store.move_marks import MoveMark, filled_words, marks_of
from pollux.store.move_marks import unseal as remove_seal
from pollux.store.urls import open_store
from pollux.units import counted, duration_ms, format_ms, shell_word

if TYPE_CHECKING:
    from pollux.app.move import MoveReport, MoveStep

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

    TO must be empty.  FROM is sealed: no node can serve it any more, so that none plans on both; unseal takes it into
    use again.  What ran is ready in TO, and uncharged.  Cut off anywhere, the same command goes on where it was.

    For example:
      pollux store move sqlite:///pollux.db postgresql://pollux@db/pollux
      pollux store move redis://old:6379/0 redis://new:6379/0 --live --wait 10m
    """
    wait_ms = duration_ms(wait)
    _refuse_memory(target)
    _refuse_unusable(source)
    if source == target:
        raise InvalidInput("FROM and TO are the same store", cure="name another one to move to")
    with _steps(as_json=as_json) as report:
        moved = asyncio.run(_move(source, target, report, live=live, wait_ms=wait_ms))
    if as_json:
        click.echo(json.dumps({"phase": "moved", **full(moved)}, ensure_ascii=False))
    else:
        _print_report(moved)


@click.command(cls=TeachingCommand)
@click.argument("url", metavar="URL")
@click.option("--force", is_flag=True, help="Also if the move is over: what happened in the other store is not here.")
@json_option
def unseal(url: str, *, force: bool, as_json: bool) -> None:
    """Take a store into use again that was moved elsewhere, or abandon a move that is under way.

    For example:
      pollux store unseal sqlite:///pollux.db
      pollux store unseal redis://old:6379/0 --force
    """
    _refuse_unusable(url)
    mark = asyncio.run(_unseal(url, force=force))
    if as_json:
        print_json({"unsealed": hide(url), "mark": mark})
        return
    click.echo(f"{hide(url)} can be used again; make sure that no node uses {mark.other} as well")


async def _move(
    source: str, target: str, report: Callable[[MoveStep], None], *, live: bool, wait_ms: int
) -> MoveReport:
    from pollux.app.move import Move, MoveEnd
    from pollux.app.operations.context import default_actor

    clock = SystemClock()
    async with _existing(source) as origin, _opened(target) as goal:
        ends = MoveEnd(origin, hide(source)), MoveEnd(goal, hide(target))
        move_id = new_id(clock.now_ms(), Random())  # noqa: S311  an id, not a secret
        moving = Move(*ends, clock=clock, report=report)
        return await moving.run(move_id, actor=default_actor("cli"), live=live, wait_ms=wait_ms)


async def _unseal(url: str, *, force: bool) -> MoveMark:
    from pollux.app.operations.audit import AuditRecorder
    from pollux.app.operations.context import default_actor

    async with _existing(url) as store:
        mark, origin = await marks_of(store)
        if mark is None and origin is not None and not origin.is_over:
            what, _, cure = filled_words(origin, hide(url)).partition("; ")
            raise Conflict(f"{hide(url)} {what}: it is not whole, and cannot be used as it is", cure=cure)
        if mark is None:
            raise NotFound("seal on", hide(url), cure="it can be used")
        if mark.is_over and not force:
            raise Conflict(
                f"{hide(url)} was moved to {mark.other}: what happened there since is not here; add --force if this "
                "one is to be used all the same"
            )
        recorder = AuditRecorder(store, SystemClock(), default_actor("cli"), is_named=True)
        how = f"it {'was' if mark.is_over else 'was being'} moved to {mark.other}, move {mark.move}"
        return await remove_seal(store, audit=recorder.first_on_record("unseal", hide(url), how)) or mark


@contextlib.asynccontextmanager
async def _existing(url: str) -> AsyncIterator[Store]:
    await existing(url, StoreChoice(None, url))
    async with _opened(url) as store:
        yield store


@contextlib.asynccontextmanager
async def _opened(url: str) -> AsyncIterator[Store]:

    store = open_store(url)
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


def _print_report(moved: MoveReport) -> None:
    carried = ", ".join(counted(number, kind.removesuffix("s")) for kind, number in moved.counts.items())
    took = format_ms((moved.ended_ms - moved.began_ms) // 1_000 * 1_000)
    click.echo(f"moved {moved.source} to {moved.target} in {took}: {carried}; counted on both sides, and equal")
    click.echo(f"{moved.source} is sealed: no node can serve it any more")
    if moved.nodes:
        nodes = ", ".join(moved.nodes[:5]) + (" ..." if len(moved.nodes) > 5 else "")
        is_one = len(moved.nodes) == 1
        left = f"{counted(len(moved.nodes), 'node')} {'is' if is_one else 'are'} left there ({nodes})"
        does, them = ("does", "it") if is_one else ("do", "them")
        click.echo(f"{left}, and {does} nothing; start {them} on the other store")


def _refuse_unusable(url: str) -> None:
    _refuse_memory(url)
    place_of_target(StoreChoice(None, url))  # it reads the URL


def _refuse_memory(url: str) -> None:
    if url.startswith("memory:"):
        raise InvalidInput("a memory store lives inside the one process that made it", cure="name another store")


@click.command(cls=TeachingCommand)
@click.argument("url", metavar="URL")
@click.option("--force", is_flag=True, help="Do not ask.")
@json_option
def drop(url: str, *, force: bool, as_json: bool) -> None:
    """Delete a store with all that is in it: files, keys or tables of ours, and nothing else.

    Refused while nodes live on it, and for the source of a move that is under way.  It asks for the store's name first.

    For example:
      pollux store drop redis://new:6379/0
      pollux store drop sqlite:///pollux.db --force
    """
    _refuse_unusable(url)
    counts = asyncio.run(_counts_of(url))
    if not force:
        _confirm(hide(url), counts)
    left = _dropped(url)
    if as_json:
        print_json({"dropped": hide(url), "jobs": counts.jobs, "runs": _live(counts), "left": left})
        return
    click.echo(f"dropped {hide(url)}: {_size(counts)}")
    if left:
        click.echo(f"{left:,} beside it {'is' if left == 1 else 'are'} not of this store, and stayed")


async def _counts_of(url: str) -> Counts:
    """How much would be deleted; refused while it is needed."""
    async with _existing(url) as store:
        await _refuse_needed(store, hide(url))
        return await store.counts(all_versions=True)


async def _refuse_needed(store: Store, name: str) -> None:

    if nodes := [node.id for node in await store.nodes()]:
        lives, more = "node lives" if len(nodes) == 1 else "nodes live", ", ..." if len(nodes) > 5 else ""
        raise Conflict(
            f"{len(nodes)} {lives} on {name} ({', '.join(nodes[:5])}{more}); nothing was dropped; stop them first (one "
            "that was killed is seen for some seconds more)"
        )
    mark = (await marks_of(store)).to
    if mark is not None and not mark.is_over:
        raise Conflict(
            f"{name} is being moved to {mark.other}, which is not whole yet; nothing was dropped; complete the move, "
            f"or abandon it first: `pollux store unseal {shell_word(name)}`"
        )


def _confirm(name: str, counts: Counts) -> None:
    if not sys.stdin.isatty():
        what = f"this would drop {name}: {_size(counts)}, and there is no terminal to confirm it"
        raise InvalidInput(what, cure="add --force")
    click.echo(f"this drops {name} for good: {_size(counts)}", err=True)
    if click.prompt("its name once more", default="", show_default=False, err=True).strip() != name:
        click.echo("nothing was dropped", err=True)
        raise click.exceptions.Exit(FAILED)


def _dropped(url: str) -> int:
    path = sqlite_path(url)
    if path is not None:
        import pollux.store.sqlite.drop as of_file

        return of_file.drop(path.absolute())
    if url.startswith("postgres"):
        import pollux.store.postgres.drop as of_postgres

        return asyncio.run(of_postgres.drop(url))
    import pollux.store.redis.drop as of_redis

    return asyncio.run(of_redis.drop(url))


def _size(counts: Counts) -> str:
    parts = counted(counts.jobs, "job"), counted(_live(counts), "live run"), counted(counts.dead, "dead letter")
    return ", ".join(parts)


def _live(counts: Counts) -> int:
    return counts.held + counts.ready + counts.leased
