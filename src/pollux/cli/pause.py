"""`pollux pause` and `pollux resume`: stop jobs, groups, targets or everything, and let them go on."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from pollux.cli.completion import job_ids
from pollux.cli.options import StoreChoice, ask, existing_store, json_option, store_options
from pollux.cli.output import ago, clean, now_ms, print_json, print_table, say_unreadable
from pollux.cli.runner import TeachingCommand
from pollux.errors import InvalidInput, NotFound, Unreadable
from pollux.model import DRAIN, STOP

if TYPE_CHECKING:
    from pollux.app import OperationsProtocol


def _scope_options(command: Any) -> Any:
    """Jobs by id, or `--group`, `--target`, `--all`."""
    command = click.option("--all", "everything", is_flag=True, help="Everything.")(command)
    command = click.option("--target", metavar="T", help="All jobs of a target.")(command)
    command = click.option("--group", metavar="G", help="All jobs of a group.")(command)
    return click.argument("jobs", metavar="[JOB]...", nargs=-1, shell_complete=job_ids)(command)


@click.command(cls=TeachingCommand)
@_scope_options
@click.option("--for", "duration", metavar="DURATION", help="Like 30m or 2h; without it until resumed.")
@click.option("--reason", default="", help="Shown to everybody who asks why.")
@json_option
@store_options
def pause(
    jobs: tuple[str, ...],
    group: str | None,
    target: str | None,
    duration: str | None,
    reason: str,
    config: str | None,
    store: str | None,
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
    url = existing_store(StoreChoice(config, store))

    async def question(operations: OperationsProtocol) -> str:
        from pollux.app.operations.status import nobody_of

        for scope in scopes:
            await operations.pauses.pause(**scope, reason=reason, duration=duration)
        await say_unreadable_jobs(operations, jobs)
        return await nobody_of(operations, group=group, target=target)

    hint = ask(url, question)
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
    config: str | None,
    store: str | None,
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
        _resume_workers(StoreChoice(config, store), node, as_json=as_json)
        return
    if not (jobs or group or target or everything):
        _tell_stopped(StoreChoice(config, store), as_json=as_json)
        return
    scopes = _scopes(jobs, group, target, everything=everything)

    async def question(operations: OperationsProtocol) -> list[tuple[str, bool]]:
        resumed = [(_name(scope), await operations.pauses.resume(**scope)) for scope in scopes]
        await say_unreadable_jobs(operations, jobs)
        return resumed

    resumed = ask(existing_store(StoreChoice(config, store)), question)
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
    was_drained = ask(existing_store(where), lambda operations: operations.workers.resume_workers(node))
    who = f"node {node}" if node else "all workers"
    if as_json:
        print_json({"resumed": [who] if was_drained else [], "not_drained": [] if was_drained else [who]})
    else:
        click.echo(f"{who}: {'claims go on' if was_drained else 'there was no drain'}")


def _tell_stopped(where: StoreChoice, *, as_json: bool) -> None:
    """What is stopped, and the words that end it."""

    async def question(operations: OperationsProtocol) -> tuple[list[Any], list[Any]]:
        return [
            note for note in await operations.pauses.stops() if not note.key.startswith(DRAIN)
        ], await operations.workers.drained_workers()

    stops, drained = ask(existing_store(where), question)
    if as_json:
        print_json({"paused": stops, "drained": drained})
        return
    rows = [(*_stop_words(note), ago(note.expires_ms, now=now_ms()) or "until resumed") for note in stops]
    rows += [_drain_words(each) for each in drained]
    if rows:
        print_table(("stopped", "reason", "by", "resume", "ends"), rows)
    else:
        click.echo("nothing is stopped")


def _stop_words(note: Any) -> tuple[str, str, str, str]:
    kind, _, name = note.key.removeprefix(STOP).partition(":")
    scope = {"everything": True} if kind == "all" else {kind: name}
    value = note.value if isinstance(note.value, dict) else {}
    again = _name(scope, for_command=True)
    return _name(scope), str(value.get("reason") or ""), str(value.get("by") or ""), f"pollux resume {again}"


async def say_unreadable_jobs(operations: OperationsProtocol, ids: Sequence[str]) -> None:
    """Name those of the jobs that cannot be read here; the ids were enough for what was done to them."""
    found = zip(ids, await operations.jobs.jobs_by_id(list(ids)), strict=True) if ids else ()
    for job_id in [job_id for job_id, job in found if job is None]:
        with contextlib.suppress(NotFound):  # it was deleted in between
            if isinstance(job := await operations.jobs.find_job(job_id), Unreadable):
                say_unreadable([job])


async def say_drained(operations: OperationsProtocol) -> None:
    """Warn that a run waits because the workers are drained."""
    for each in await operations.workers.drained_workers():
        if each.node is None:
            click.echo(f"{each}: the run waits; {each.ends}", err=True)


def _drain_words(each: Any) -> tuple[str, str, str, str, str]:
    who, again = (f"node {each.node}", f" --node {each.node}") if each.node else ("all workers", "")
    return who, each.reason, each.by, f"pollux resume --workers{again}", "until resumed"


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
