"""`pollux pause`, `resume`, `drain` and `trigger`: stop jobs or claims, let them go on, and plan now."""

from __future__ import annotations

import asyncio
import sys
from shlex import quote
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from pollux.cli.command_table import FAILED
from pollux.cli.options import json_option, store_options
from pollux.cli.output import ago, clean, notice, now_ms, print_json, print_table, progress
from pollux.cli.runner import TeachingCommand
from pollux.cli.selection import (
    LINES_MAX,
    Selection,
    chosen_jobs,
    in_batches,
    job_filter,
    pages,
    print_unreadable_jobs,
    selecting,
)
from pollux.cli.target import StoreChoice
from pollux.errors import InvalidInput
from pollux.model import DRAIN, STOP, Drained, Node, Note, RunState
from pollux.store.contract import RunFilter
from pollux.units import counted

if TYPE_CHECKING:
    from pollux.app import OperationsProtocol
    from pollux.app.operations.control import TriggerResult

LOOK_S = 0.5
PAGE = 1_000
NO_JOBS = "there are no such jobs"
reason_option = click.option("--reason", default="", help="Shown by `pollux why`.")


class PauseScope(NamedTuple):
    """What one pause stops: a job, a group, a target or everything."""

    kind: str
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" if self.name else "everything"

    @property
    def arguments(self) -> dict[str, Any]:
        """As the operations take it."""
        return {self.kind: self.name or True}

    @property
    def option(self) -> str:
        """As the command line takes it."""
        name = quote(self.name)
        return "--all" if self.kind == "everything" else name if self.kind == "job" else f"--{self.kind} {name}"


async def _scopes(operations: OperationsProtocol, choice: Selection, *, verb: str) -> list[PauseScope]:
    """Everything, a group or a target as a whole; else the selected jobs, each by itself."""
    if choice.everything:
        return [PauseScope("everything")]
    if len(choice.parts) == 1 and (kind := next(iter(choice.parts))) in ("group", "target"):
        return [PauseScope(kind, choice.parts[kind])]
    return [PauseScope("job", job_id) for job_id in await chosen_jobs(operations, choice, verb=verb)]


async def _print_unreadable(operations: OperationsProtocol, scopes: list[PauseScope]) -> None:
    await print_unreadable_jobs(operations, [scope.name for scope in scopes if scope.kind == "job"])


@click.command(cls=TeachingCommand)
@selecting("job", job_filter)
@click.option("--for", "duration", metavar="DURATION", help="Like 30m or 2h; without it until resumed.")
@reason_option
@json_option
@store_options
def pause(choice: Selection, duration: str | None, reason: str, where: StoreChoice, *, as_json: bool) -> None:
    """Stop jobs, a group, a target or everything, for a while or until resumed.

    What runs goes on; due times are skipped and counted; runs that were asked for wait.  The pause survives restarts
    and counts on every node.

    --group, --target and --all by themselves also stop jobs that are added later.  Any other filter, or several, pause
    the jobs that they select now, each by itself; they are counted and confirmed first.

    For example:
      pollux pause home --for 1h --reason "moving house"
      pollux pause home office
      pollux pause --target db-1
      pollux pause --tag nightly --yes
      pollux pause --all --for 10m
    """

    async def paused(operations: OperationsProtocol) -> tuple[list[PauseScope], str]:
        from pollux.app.operations.status import nobody_of

        async def act(batch: list[PauseScope]) -> list[PauseScope]:
            for scope in batch:
                await operations.pauses.pause(**scope.arguments, reason=reason, duration=duration)
            await _print_unreadable(operations, batch)
            return batch

        done = await in_batches(await _scopes(operations, choice, verb="pause"), act, doing="pausing")
        whole = {scope.kind: scope.name for scope in done if scope.kind in ("group", "target")}
        return done, await nobody_of(operations, **whole)

    done, hint = where.ask(paused)
    if as_json:
        print_json({"paused": [str(scope) for scope in done]})
        return
    lasts = f" for {duration}" if duration else ""
    if len(done) > LINES_MAX:
        click.echo(f"{counted(len(done), 'job')} are paused{lasts}; `pollux resume {choice.as_options()}` ends it")
    else:
        for scope in done:
            click.echo(f"{scope} is paused{lasts}; `pollux resume {scope.option}` ends it")
    if not done:
        click.echo(NO_JOBS)
    if hint:
        click.echo(clean(hint), err=True)


@click.command(cls=TeachingCommand)
@selecting("job", job_filter, may_be_empty=True)
@click.option("--workers", is_flag=True, help="End a drain: let them claim again.")
@click.option("--node", metavar="ID", help="With --workers: only this node.")
@json_option
@store_options
def resume(choice: Selection, node: str | None, where: StoreChoice, *, workers: bool, as_json: bool) -> None:
    """End the pause of jobs, a group, a target or everything, or a drain; alone: list what is stopped.

    --group, --target and --all by themselves end the pause of that as a whole.  Any other filter, or several, resume
    the jobs that they select, each by itself.

    For example:
      pollux resume
      pollux resume home
      pollux resume --tag nightly --yes
      pollux resume --all
      pollux resume --workers
    """
    if workers or node:
        if not workers or not choice.is_empty:
            raise InvalidInput("--workers and --node end a drain, and nothing else", cure="--workers [--node ID]")
        _resume_workers(where, node, as_json=as_json)
        return
    if choice.is_empty:
        _list_stopped(where, as_json=as_json)
        return

    async def resumed_scopes(operations: OperationsProtocol) -> list[tuple[PauseScope, bool]]:
        async def act(batch: list[PauseScope]) -> list[tuple[PauseScope, bool]]:
            done = [(scope, await operations.pauses.resume(**scope.arguments)) for scope in batch]
            await _print_unreadable(operations, batch)
            return done

        return await in_batches(await _scopes(operations, choice, verb="resume"), act, doing="resuming")

    resumed = where.ask(resumed_scopes)
    if as_json:
        names = {was: [str(scope) for scope, was_paused in resumed if was_paused is was] for was in (True, False)}
        print_json({"resumed": names[True], "not_paused": names[False]})
    elif len(resumed) > LINES_MAX:
        count = sum(was_paused for _, was_paused in resumed)
        click.echo(f"of {counted(len(resumed), 'job')} {count:,} go on, {len(resumed) - count:,} were not paused")
    elif not resumed:
        click.echo(NO_JOBS)
    else:
        for scope, was_paused in resumed:
            not_paused = "there was no pause of everything" if choice.everything else f"{scope} was not paused"
            click.echo(f"{scope} goes on" if was_paused else not_paused)


def _resume_workers(where: StoreChoice, node: str | None, *, as_json: bool) -> None:
    was_drained = where.ask(lambda operations: operations.workers.resume_workers(node))
    who = f"node {node}" if node else "all workers"
    if as_json:
        print_json({"resumed": [who] if was_drained else [], "not_drained": [] if was_drained else [who]})
    else:
        click.echo(f"{who}: {'claims go on' if was_drained else 'there was no drain'}")


def _list_stopped(where: StoreChoice, *, as_json: bool) -> None:
    """What is stopped, and the command that ends it."""

    async def read(operations: OperationsProtocol) -> tuple[list[Note], list[Drained]]:
        return await operations.pauses.stops(), await operations.workers.drained_workers()

    stops, drained = where.ask(read)
    stops = [note for note in stops if not note.key.startswith(DRAIN)]
    if as_json:
        print_json({"paused": stops, "drained": drained})
        return
    rows = [(*_stop_cells(note), ago(note.expires_ms, now=now_ms()) or "until resumed") for note in stops]
    rows += [(*_drain_cells(each), "until resumed") for each in drained]
    if rows:
        print_table(("stopped", "reason", "by", "resume", "ends"), rows)
    else:
        click.echo("nothing is stopped")


def _stop_cells(note: Note) -> tuple[str, str, str, str]:
    kind, _, name = note.key.removeprefix(STOP).partition(":")
    scope = PauseScope("everything" if kind == "all" else kind, name)
    value = note.value if isinstance(note.value, dict) else {}
    return str(scope), str(value.get("reason") or ""), str(value.get("by") or ""), f"pollux resume {scope.option}"


def _drain_cells(each: Drained) -> tuple[str, str, str, str]:
    who, again = (f"node {each.node}", f" --node {each.node}") if each.node else ("all workers", "")
    return who, each.reason, each.by, f"pollux resume --workers{again}"


async def drain_warnings(operations: OperationsProtocol) -> list[str]:
    """That a run waits because the workers are drained."""
    drains = await operations.workers.drained_workers()
    return [f"{each}: the run waits; {each.ends}" for each in drains if each.node is None]


@click.command(cls=TeachingCommand)
@click.option("--node", metavar="ID", help="Only this node; it lasts as long as the node lives.")
@click.option("--wait", is_flag=True, help="Come back when nothing runs any more.")
@reason_option
@json_option
@store_options
def drain(node: str | None, reason: str, where: StoreChoice, *, wait: bool, as_json: bool) -> None:
    """Let the workers claim nothing, until `pollux resume --workers`: all of them, or one node.

    What runs may end; what is due is planned and waits, one run of each job (due times after it are skipped and counted
    until it has run).  It lasts over restarts.  To stop a process send it SIGTERM: that drains it, too.

    For example:
      pollux drain --wait --reason "database moves"
      pollux drain --node web-1:4711:9f2c11aa
      pollux resume --workers
    """

    async def drained(operations: OperationsProtocol) -> int:
        await operations.workers.drain_workers(node, reason=reason)
        return await _wait(operations, node) if wait else await _running(operations, node)

    left = where.ask(drained)
    who, again = (f"node {node}", f"--workers --node {node}") if node else ("all workers", "--workers")
    if as_json:
        print_json({"drained": node or "all", "running": left})
        return
    runs = f"; {counted(left, 'run')} still going on" if left else "; nothing runs"
    click.echo(f"{who}: nothing is claimed{runs}; `pollux resume {again}` ends it")


async def _running(operations: OperationsProtocol, node: str | None) -> int:
    if node is None:
        return (await operations.status.counts()).leased

    where = RunFilter(states=(RunState.LEASED,))
    found = pages(lambda after: operations.runs.list_runs(where, after=after, limit=PAGE))
    return sum([sum(run.owner == node for run in page.runs) async for page in found])


async def _wait(operations: OperationsProtocol, node: str | None) -> int:
    """Until nothing runs; the count is there to see."""
    first = left = await _running(operations, node)
    printed = None
    with progress() as show:
        while left:
            show(f"{counted(left, 'run')} still going on", first - left, first)
            if not sys.stderr.isatty() and left != printed:
                click.echo(f"{counted(left, 'run')} still going on", err=True)
                printed = left
            await asyncio.sleep(LOOK_S)
            left = await _running(operations, node)
            first = max(first, left)
    return 0


@click.command(cls=TeachingCommand)
@json_option
@store_options
def trigger(where: StoreChoice, *, as_json: bool) -> int:
    """Let the leader plan now, wherever it is, and print what that fired and released.

    Where several versions share the store the leader of each is asked, and named with its version.
    Nothing fires before its time: due jobs fire, and held runs are released if nothing holds them any more.

    For example:
      pollux trigger
      pollux trigger --json
    """

    async def triggered(operations: OperationsProtocol) -> tuple[TriggerResult, list[Node]]:
        return await operations.workers.trigger(), await operations.status.nodes()

    answer, nodes = where.ask(triggered)
    if as_json:
        print_json({"triggered": answer})
        return 0
    if not answer.leaders:
        notice("no node leads, so nothing is planned; start a node with `pollux serve`")
        return FAILED
    silent = [node for node in answer.leaders if node not in answer.answered]
    leaders = ", ".join(_with_version(node, nodes) for node in answer.leaders)
    click.echo(f"{answer.fired} fired, {answer.released} released, {answer.skipped} skipped ({leaders})")
    if silent:
        notice(f"asked, but not answered in time: {', '.join(silent)}")
    return FAILED if silent else 0


def _with_version(leader: str, nodes: list[Node]) -> str:
    """`n1`, or `n1 of version 1` where several versions share the store."""
    versions = {node.id: node.scheduler_version for node in nodes}
    is_one = len(set(versions.values())) == 1
    return leader if is_one or leader not in versions else f"{leader} of version {versions[leader]}"
