"""`pollux drain` and `pollux trigger`: stop claims, and run a turn of the leader now."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

import click

from pollux.cli.command_table import FAILED
from pollux.cli.options import StoreChoice, ask, existing_store, json_option, store_options
from pollux.cli.output import print_json, progress
from pollux.cli.runner import TeachingCommand
from pollux.model import Node
from pollux.units import counted

if TYPE_CHECKING:
    from pollux.app import OperationsProtocol

LOOK_S = 0.5
PAGE = 1_000


@click.command(cls=TeachingCommand)
@click.option("--node", metavar="ID", help="Only this node; it lasts as long as the node lives.")
@click.option("--wait", is_flag=True, help="Come back when nothing runs any more.")
@click.option("--reason", default="", help="Shown to everybody who asks why.")
@json_option
@store_options
def drain(node: str | None, reason: str, config: str | None, store: str | None, *, wait: bool, as_json: bool) -> None:
    """Let the workers claim nothing, until `pollux resume --workers`: all of them, or one node.

    What runs may end; what is due is planned and waits, one run of each job (due times after it are skipped and counted
    until it has run).  It lasts over restarts.  To stop a process send it SIGTERM: that drains it, too.

    For example:
      pollux drain --wait --reason "database moves"
      pollux drain --node web-1:4711:9f2c11aa
      pollux resume --workers
    """

    async def question(operations: OperationsProtocol) -> int:
        await operations.workers.drain_workers(node, reason=reason)
        return await _wait(operations, node) if wait else await _running(operations, node)

    left = ask(existing_store(StoreChoice(config, store)), question)
    who, again = (f"node {node}", f"--workers --node {node}") if node else ("all workers", "--workers")
    if as_json:
        print_json({"drained": node or "all", "running": left})
        return
    runs = f"; {counted(left, 'run')} still going on" if left else "; nothing runs"
    click.echo(f"{who}: nothing is claimed{runs}; `pollux resume {again}` ends it")


async def _running(operations: OperationsProtocol, node: str | None) -> int:
    if node is None:
        return int((await operations.status.counts()).leased)
    from pollux.model import RunState
    from pollux.store.contract import RunFilter

    where, after = RunFilter(states=(RunState.LEASED,)), None
    count = 0
    while True:
        page = await operations.runs.list_runs(where, after=after, limit=PAGE)
        count += sum(run.owner == node for run in page.runs)
        after = page.next
        if after is None:
            return int(count)


async def _wait(operations: OperationsProtocol, node: str | None) -> int:
    """Until nothing runs; the count is there to see."""
    first = left = await _running(operations, node)
    said = None
    with progress() as show:
        while left:
            show(f"{counted(left, 'run')} still going on", first - left, first)
            if not sys.stderr.isatty() and left != said:
                click.echo(f"{counted(left, 'run')} still going on", err=True)
                said = left
            await asyncio.sleep(LOOK_S)
            left = await _running(operations, node)
            first = max(first, left)
    return 0


@click.command(cls=TeachingCommand)
@json_option
@store_options
def trigger(config: str | None, store: str | None, *, as_json: bool) -> int:
    """Let the leader plan now, wherever it is, and say what that fired and released.

    Where several versions share the store the leader of each is asked, and named with its version.
    Nothing fires before its time: what is due, and what waits for something that has come, goes out.

    For example:
      pollux trigger
      pollux trigger --json
    """
    answer, nodes = ask(existing_store(StoreChoice(config, store)), _triggered)
    if as_json:
        print_json({"triggered": answer})
        return 0
    if not answer.leaders:
        click.echo("pollux: nobody leads, so nobody plans; start a node with `pollux serve`", err=True)
        return FAILED
    silent = [node for node in answer.leaders if node not in answer.answered]
    leaders = ", ".join(_with_version(node, nodes) for node in answer.leaders)
    click.echo(f"{answer.fired} fired, {answer.released} released, {answer.skipped} skipped ({leaders})")
    if silent:
        click.echo(f"pollux: asked, but not answered in time: {', '.join(silent)}", err=True)
    return FAILED if silent else 0


async def _triggered(operations: OperationsProtocol) -> tuple[Any, list[Node]]:
    return await operations.workers.trigger(), await operations.status.nodes()


def _with_version(leader: str, nodes: list[Node]) -> str:
    """`n1`, or `n1 of version 1` where several versions share the store."""
    versions = {node.id: node.scheduler_version for node in nodes}
    is_one = len(set(versions.values())) == 1
    return leader if is_one or leader not in versions else f"{leader} of version {versions[leader]}"
