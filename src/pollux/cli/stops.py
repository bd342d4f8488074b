"""`pollux pause`, `resume` and `why`: what may not run, and why does it not?"""

from __future__ import annotations

from typing import Any

import click

from pollux.cli.commands import Taught
from pollux.cli.completion import job_ids
from pollux.cli.options import Where, ask, existing_store, json_option, store_options
from pollux.cli.show import ago, now_ms, print_json, print_pairs
from pollux.errors import InvalidInput


def _scope_options(command: Any) -> Any:
    """A job, or `--group`, `--target`, `--all`."""
    command = click.option("--all", "everything", is_flag=True, help="Everything.")(command)
    command = click.option("--target", metavar="T", help="All jobs of a target.")(command)
    command = click.option("--group", metavar="G", help="All jobs of a group.")(command)
    return click.argument("job", metavar="[JOB]", required=False, shell_complete=job_ids)(command)


@click.command(cls=Taught)
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
    url = existing_store(Where(config, store))

    async def question(app: Any) -> bool:
        await app.pause(**scope, reason=reason, duration=duration)
        return await _is_there(app, scope)

    is_there = ask(url, question)
    if as_json:
        print_json({"paused": [_name(scope)]})
        return
    again = _name(scope, for_command=True)
    click.echo(f"{_name(scope)} is paused{f' for {duration}' if duration else ''}; `pollux resume {again}` ends it")
    if not is_there:
        click.echo(f"no job is of {_name(scope)} now; the pause waits for the first", err=True)


@click.command(cls=Taught)
@_scope_options
@json_option
@store_options
def resume(
    job: str | None,
    group: str | None,
    target: str | None,
    config: str | None,
    store: str | None,
    *,
    everything: bool,
    as_json: bool,
) -> None:
    """End the pause of a job, a group, a target or everything: the same words as with `pollux pause`.

    For example:
      pollux resume home
      pollux resume --all
    """
    scope = _scope(job, group, target, everything=everything)
    was_paused = ask(existing_store(Where(config, store)), lambda app: app.resume(**scope))
    if as_json:
        names = [_name(scope)]
        print_json({"resumed": names if was_paused else [], "not_paused": [] if was_paused else names})
    elif was_paused:
        click.echo(f"{_name(scope)} goes on")
    else:
        click.echo("there was no pause of everything" if everything else f"{_name(scope)} was not paused")


@click.command(cls=Taught)
@click.argument("ref", metavar="ID", shell_complete=job_ids)
@json_option
@store_options
def why(ref: str, config: str | None, store: str | None, *, as_json: bool) -> None:
    """Say why a job or run does not run (or that it does), when it is expected, and what to do.

    For example:
      pollux why home
      pollux why home@1790000000000 --json
    """
    answer = ask(existing_store(Where(config, store)), lambda app: app.why(ref))
    if as_json:
        print_json({"id": ref, "why": answer})
        return
    expected = ago(answer.expected_ms, now=now_ms())
    print_pairs((("answer", answer.answer), ("reason", answer.reason), ("expected", expected), ("cure", answer.cure)))


async def _is_there(app: Any, scope: dict[str, Any]) -> bool:
    """A pause of a group or target may come before its first job, or be a slip of the pen."""
    from pollux.store.contract import JobFilter

    kinds = {kind: name for kind, name in scope.items() if kind in ("group", "target")}
    return not kinds or bool((await app.list_jobs(JobFilter(**kinds), limit=1)).jobs)


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
