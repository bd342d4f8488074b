"""`pollux pause`, `resume`, `drain` and `trigger`: stop jobs or claims, let them go on, and plan now."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from pollux.cli.command_table import FAILED
from pollux.cli.completion import job_ids
from pollux.cli.options import applied, json_option, store_options
from pollux.cli.output import ago, clean, notice, now_ms, print_json, print_table, print_unreadable, progress
from pollux.cli.runner import TeachingCommand
from pollux.cli.selection import pages
from pollux.cli.target import StoreChoice
from pollux.errors import InvalidInput, NotFound, Unreadable
from pollux.model import DRAIN, STOP, Drained, Node, Note
from pollux.units import counted

if TYPE_CHECKING:
    from pollux.app import OperationsProtocol
    from pollux.app.operations.control import TriggerResult

LOOK_S = 0.5
PAGE = 1_000
reason_option = click.option("--reason", default="", help="Shown to everybody who asks why.")


def _scope_options(command: Any) -> Any:
    """Jobs by id, or `--group`, `--target`, `--all`."""
    return applied(
        command,
        click.argument("jobs", metavar="[JOB]...", nargs=-1, shell_complete=job_ids),
        click.option("--group", metavar="G", help="All jobs of a group."),
        click.option("--target", metavar="T", help="All jobs of a target."),
        click.option("--all", "everything", is_flag=True, help="Everything."),
    )


@click.command(cls=TeachingCommand)
@_scope_options
@click.option("--for", "duration", metavar="DURATION", help="Like 30m or 2h; without it until resumed.")
@reason_option
@json_option
@store_options
def pause(
    jobs: tuple[str, ...],
    group: str | None,
    target: str | None,
    duration: str | None,
    reason: str,
    where: StoreChoice,
    *,
    everything: bool,
    as_json: bool,
) -> None:
    """Stop jobs, a group, a target or everything, for a while or until resumed.

    What runs goes on; due times are skipped and counted; runs that were asked for wait.  The pause survives restarts
    and counts on every node.

    For example:
      pollux pause home --for 1h --reason "moving house"
      pollux pause home office
      pollux pause --target db-1
      pollux pause --all --for 10m
    """
    scopes = _scopes(jobs, group, target, everything=everything)

    async def paused(operations: OperationsProtocol) -> str:
        from pollux.app.operations.status import nobody_of

        for scope in scopes:
            await operations.pauses.pause(**scope, reason=reason, duration=duration)
        await print_unreadable_jobs(operations, jobs)
        return await nobody_of(operations, group=group, target=target)

    hint = where.ask(paused)
    if as_json:
        print_json({"paused": [_name(scope) for scope in scopes]})
    else:
        lasts = f" for {duration}" if duration else ""
        for scope in scopes:
            again = _name(scope, for_command=True)
            click.echo(f"{_name(scope)} is paused{lasts}; `pollux resume {again}` ends it")
    if hint:
        click.echo(clean(hint), err=True)


@click.command(cls=TeachingCommand)
@_scope_options
@click.option("--workers", is_flag=True, help="End a drain: let them claim again.")
@click.option("--node", metavar="ID", help="With --workers: only this node.")
@json_option
@store_options
def resume(
    jobs: tuple[str, ...],
    group: str | None,
    target: str | None,
    node: str | None,
    where: StoreChoice,
    *,
    everything: bool,
    workers: bool,
    as_json: bool,
) -> None:
    """End the pause of jobs, a group, a target or everything, or a drain; alone: list what is stopped.

    For example:
      pollux resume
      pollux resume home
      pollux resume --all
      pollux resume --workers
    """
    if workers or node:
        if not workers or jobs or group or target or everything:
            raise InvalidInput("--workers and --node end a drain, and nothing else", cure="--workers [--node ID]")
        _resume_workers(where, node, as_json=as_json)
        return
    if not (jobs or group or target or everything):
        _list_stopped(where, as_json=as_json)
        return
    scopes = _scopes(jobs, group, target, everything=everything)

    async def resumed_scopes(operations: OperationsProtocol) -> list[tuple[str, bool]]:
        resumed = [(_name(scope), await operations.pauses.resume(**scope)) for scope in scopes]
        await print_unreadable_jobs(operations, jobs)
        return resumed

    resumed = where.ask(resumed_scopes)
    if as_json:
        names = {was: [name for name, was_paused in resumed if was_paused is was] for was in (True, False)}
        print_json({"resumed": names[True], "not_paused": names[False]})
        return
    for name, was_paused in resumed:
        if was_paused:
            click.echo(f"{name} goes on")
        else:
            click.echo("there was no pause of everything" if everything else f"{name} was not paused")


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
    scope = {"everything": True} if kind == "all" else {kind: name}
    value = note.value if isinstance(note.value, dict) else {}
    again = _name(scope, for_command=True)
    return _name(scope), str(value.get("reason") or ""), str(value.get("by") or ""), f"pollux resume {again}"


def _drain_cells(each: Drained) -> tuple[str, str, str, str]:
    who, again = (f"node {each.node}", f" --node {each.node}") if each.node else ("all workers", "")
    return who, each.reason, each.by, f"pollux resume --workers{again}"


async def print_unreadable_jobs(operations: OperationsProtocol, ids: Sequence[str]) -> None:
    """Name those of the jobs that cannot be read here; the ids were enough for what was done to them."""
    found = zip(ids, await operations.jobs.jobs_by_id(list(ids)), strict=True) if ids else ()
    for job_id in [job_id for job_id, job in found if job is None]:
        with contextlib.suppress(NotFound):  # it was deleted in between
            if isinstance(job := await operations.jobs.find_job(job_id), Unreadable):
                print_unreadable([job])


async def drain_warnings(operations: OperationsProtocol) -> list[str]:
    """That a run waits because the workers are drained."""
    drains = await operations.workers.drained_workers()
    return [f"{each}: the run waits; {each.ends}" for each in drains if each.node is None]


def _scopes(jobs: Sequence[str], group: str | None, target: str | None, *, everything: bool) -> list[dict[str, Any]]:
    others = {"group": group, "target": target, "everything": everything or None}
    scopes: list[dict[str, Any]] = [{name: value} for name, value in others.items() if value is not None]
    if len(scopes) + bool(jobs) != 1:
        cure = "JOB..., --group, --target or --all"
        raise InvalidInput("say what: exactly one of jobs, a group, a target, or all", cure=cure)
    return scopes or [{"job": job} for job in dict.fromkeys(jobs)]


def _name(scope: dict[str, Any], *, for_command: bool = False) -> str:
    [(kind, name)] = scope.items()
    if kind == "everything":
        return "--all" if for_command else "everything"
    if for_command:
        return str(name) if kind == "job" else f"--{kind} {name}"
    return f"{kind} {name}"


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
    from pollux.model import RunState
    from pollux.store.contract import RunFilter

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
    Nothing fires before its time: what is due, and what waits for something that has come, goes out.

    For example:
      pollux trigger
      pollux trigger --json
    """
    answer, nodes = where.ask(_triggered)
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


async def _triggered(operations: OperationsProtocol) -> tuple[TriggerResult, list[Node]]:
    return await operations.workers.trigger(), await operations.status.nodes()


def _with_version(leader: str, nodes: list[Node]) -> str:
    """`n1`, or `n1 of version 1` where several versions share the store."""
    versions = {node.id: node.scheduler_version for node in nodes}
    is_one = len(set(versions.values())) == 1
    return leader if is_one or leader not in versions else f"{leader} of version {versions[leader]}"
