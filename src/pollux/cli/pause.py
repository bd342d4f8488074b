"""`pollux pause`, `resume` and `why`: what may not run, and why does it not?"""

from __future__ import annotations

from typing import Any

import click

from pollux.cli.completion import job_ids
from pollux.cli.options import StoreChoice, ask, existing_store, json_option, store_options
from pollux.cli.output import ago, clean, now_ms, print_json, print_pairs, print_table
from pollux.cli.runner import TeachingCommand
from pollux.errors import InvalidInput
from pollux.model import DRAIN, STOP


def _scope_options(command: Any) -> Any:
    """A job, or `--group`, `--target`, `--all`."""
    command = click.option("--all", "everything", is_flag=True, help="Everything.")(command)
    command = click.option("--target", metavar="T", help="All jobs of a target.")(command)
    command = click.option("--group", metavar="G", help="All jobs of a group.")(command)
    return click.argument("job", metavar="[JOB]", required=False, shell_complete=job_ids)(command)


@click.command(cls=TeachingCommand)
@_scope_options
@click.option("--for", "duration", metavar="DURATION", help="Like 30m or 2h; without it until resumed.")
@click.option("--reason", default="", help="Shown to everybody who asks why.")
@json_option
@store_options
def pause(
    job: str | None,
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
    """Stop a job, a group, a target or everything, for a while or until resumed.

    What runs goes on; due times are skipped and counted; runs that were asked for wait.  The pause survives restarts
    and counts on every node.

    For example:
      pollux pause home --for 1h --reason "moving house"
      pollux pause --target db-1
      pollux pause --all --for 10m
    """
    scope = _scope(job, group, target, everything=everything)
    url = existing_store(StoreChoice(config, store))

    async def question(app: Any) -> str:
        from pollux.app.overview import nobody_of

        await app.pause(**scope, reason=reason, duration=duration)
        return await nobody_of(app, group=group, target=target)

    hint = ask(url, question)
    if as_json:
        print_json({"paused": [_name(scope)]})
    else:
        lasts, again = f" for {duration}" if duration else "", _name(scope, for_command=True)
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
    job: str | None,
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
    """End the pause of a job, a group, a target or everything, or a drain; alone: say what is stopped.

    For example:
      pollux resume
      pollux resume home
      pollux resume --all
      pollux resume --workers
    """
    if workers or node:
        if not workers or job or group or target or everything:
            raise InvalidInput("--workers and --node end a drain, and nothing else", cure="--workers [--node ID]")
        _resume_workers(StoreChoice(config, store), node, as_json=as_json)
        return
    if not (job or group or target or everything):
        _tell_stopped(StoreChoice(config, store), as_json=as_json)
        return
    scope = _scope(job, group, target, everything=everything)
    was_paused = ask(existing_store(StoreChoice(config, store)), lambda app: app.resume(**scope))
    if as_json:
        names = [_name(scope)]
        print_json({"resumed": names if was_paused else [], "not_paused": [] if was_paused else names})
    elif was_paused:
        click.echo(f"{_name(scope)} goes on")
    else:
        click.echo("there was no pause of everything" if everything else f"{_name(scope)} was not paused")


def _resume_workers(where: StoreChoice, node: str | None, *, as_json: bool) -> None:
    was_drained = ask(existing_store(where), lambda app: app.resume_workers(node))
    who = f"node {node}" if node else "all workers"
    if as_json:
        print_json({"resumed": [who] if was_drained else [], "not_drained": [] if was_drained else [who]})
    else:
        click.echo(f"{who}: {'claims go on' if was_drained else 'there was no drain'}")


def _tell_stopped(where: StoreChoice, *, as_json: bool) -> None:
    """What is stopped, and the words that end it."""

    async def question(app: Any) -> tuple[list[Any], list[Any]]:
        return [note for note in await app.stops() if not note.key.startswith(DRAIN)], await app.drained_workers()

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


async def say_drained(app: Any) -> None:
    """Whoever asks for a run while nobody claims any is told so."""
    for each in await app.drained_workers():
        if each.node is None:
            click.echo(f"{each}: the run waits; {each.ends}", err=True)


def _drain_words(each: Any) -> tuple[str, str, str, str, str]:
    who, again = (f"node {each.node}", f" --node {each.node}") if each.node else ("all workers", "")
    return who, each.reason, each.by, f"pollux resume --workers{again}", "until resumed"


@click.command(cls=TeachingCommand)
@click.argument("ref", metavar="ID", shell_complete=job_ids)
@json_option
@store_options
def why(ref: str, config: str | None, store: str | None, *, as_json: bool) -> None:
    """Say why a job or run does not run (or that it does), when it is expected, and what to do.

    For example:
      pollux why home
      pollux why home@1790000000000 --json
    """
    answer = ask(existing_store(StoreChoice(config, store)), lambda app: app.why(ref))
    if as_json:
        print_json({"id": ref, "why": answer})
        return
    expected = ago(answer.expected_ms, now=now_ms())
    print_pairs((("answer", answer.answer), ("reason", answer.reason), ("expected", expected), ("cure", answer.cure)))


def _scope(job: str | None, group: str | None, target: str | None, *, everything: bool) -> dict[str, Any]:
    scope = {"job": job, "group": group, "target": target, "everything": everything or None}
    given = {name: value for name, value in scope.items() if value is not None}
    if len(given) != 1:
        raise InvalidInput(
            "say what: exactly one of a job, a group, a target, or all", cure="JOB, --group, --target or --all"
        )
    return given


def _name(scope: dict[str, Any], *, for_command: bool = False) -> str:
    [(kind, name)] = scope.items()
    if kind == "everything":
        return "--all" if for_command else "everything"
    if for_command:
        return str(name) if kind == "job" else f"--{kind} {name}"
    return f"{kind} {name}"
