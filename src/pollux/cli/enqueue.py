"""`pollux enqueue`: a run of a job, now or later, with params of its own."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

import click

from pollux.cli.accepting import LATE_S, Unanswered, accepted_by
from pollux.cli.commands import Taught
from pollux.cli.completion import job_ids
from pollux.cli.follow import exit_code, follow
from pollux.cli.options import Where, ask, existing_store, json_option, store_options
from pollux.cli.runs import print_run
from pollux.cli.show import ago, clean, now_ms, print_json
from pollux.cli.stops import say_drained
from pollux.errors import InvalidInput, StoreError
from pollux.model import RunState, unserved
from pollux.units import duration_ms

EXAMPLE = """write it like --params '{"depth": 2}'"""


@click.command(cls=Taught)
@click.argument("job_id", metavar="JOB", shell_complete=job_ids)
@click.argument("pairs", metavar="[KEY=VALUE]...", nargs=-1)
@click.option("--params", metavar="JSON", help="An object; laid over the job's own params.")
@click.option("--id", "run_id", metavar="ID", help="The run's id: the same id again is the same run.")
@click.option("--key", help="At most one live run has it.")
@click.option("--delay", metavar="DURATION", help="Not before so long, like 10m.")
@click.option("--at", metavar="MOMENT", help="Not before, like 2026-12-01T06:00:00+01:00.")
@click.option("--priority", type=click.Choice(("high", "normal", "low")), help="Instead of the job's own.")
@click.option("--wait", is_flag=True, help="Follow it to its end; the exit code is 1 if it did not succeed.")
@click.option("--timeout", metavar="DURATION", help="With --wait: give up waiting after so long; the run goes on.")
@json_option
@store_options
def enqueue(
    job_id: str,
    pairs: tuple[str, ...],
    params: str | None,
    run_id: str | None,
    timeout: str | None,
    config: str | None,
    store: str | None,
    *,
    wait: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Ask for a run of a job.  It is on disk when this returns, and runs when a node has a free seat.

    Beside the answer it is said what keeps the run from running: a drain, that nobody declares the job any more, or
    that no node serves its version.  A run for later lets the job's own schedule go on.

    A value of KEY=VALUE is JSON if it can be read so, else text: `depth=2` is a number, `depth='"2"'` is not.

    For example:
      pollux enqueue report day=2026-11-30
      pollux enqueue report --params '{"day": "2026-11-30"}' --id report-30 --wait
      pollux enqueue cleanup --delay 10m --priority low
    """
    if timeout is not None and not wait:
        raise InvalidInput("--timeout is about waiting", cure="add --wait, or leave it out")
    given, wait_ms = params_of(params, pairs), None if timeout is None else duration_ms(timeout)

    async def question(app: Any, late: Unanswered | None = None) -> tuple[Any, Any]:
        accepted = await accepted_by(app, job_id, given, late or run_id, options)
        run = accepted.run
        if not as_json:
            click.echo(f"{_told(accepted)}{'' if wait else _look(run)}")
        await _say_hints(app, run)
        return (await follow(app, run.id, quiet=as_json, wait_ms=wait_ms) if wait else run), accepted

    try:
        run, accepted = ask(existing_store(Where(config, store)), question)
    except Unanswered as error:
        late = error
        run, accepted = ask(late.store, lambda app: question(app, late))
    if as_json:
        print_json({"run": run, "is_new": accepted.is_new, "message": _words(accepted)})
    elif wait:
        print_run(run)
    return exit_code(run) if wait else 0


async def _say_hints(app: Any, run: Any) -> None:
    with suppress(StoreError, TimeoutError):  # it is accepted, whatever can be found out besides
        async with asyncio.timeout(LATE_S):
            await say_drained(app)
            for hint in await _hints(app, run):
                click.echo(clean(hint), err=True)


async def _hints(app: Any, run: Any) -> list[str]:
    """What whoever hears "is ready" would not expect.  The run is accepted, whatever can be found out of its job."""
    if run.state not in (RunState.HELD, RunState.READY):
        return []
    [job], found = await app.jobs_by_id([run.job_id]), []
    if job is not None and not job.declared:
        words = f"nobody declares job {job.id} any more: the run waits until somebody does"
        found.append(f"{words}; `pollux jobs delete {job.id}` takes both away")
    if lack := unserved(run.scheduler_version, await app.nodes()):
        found.append(f"{lack[0]}: the run waits; {lack[1]}")
    return found


def params_of(text: str | None, pairs: tuple[str, ...] = ()) -> dict[str, Any] | None:
    """The params that were given, as an object or as pairs; None: none."""
    if text is None and not pairs:
        return None
    try:
        params = {} if text is None else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"--params is no JSON: {error}", cure=EXAMPLE) from error
    if not isinstance(params, dict):
        raise InvalidInput("--params is no JSON object", cure=EXAMPLE)
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not sign or not name:
            raise InvalidInput(f"{pair!r} is no param", cure="write it like depth=2")
        if name in params:
            raise InvalidInput(f"{name!r} was given twice", cure="give each param once")
        params[name] = _value(value)
    return params


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _told(accepted: Any) -> str:
    run = accepted.run
    return f"run {run.id} of job {run.job_id} is {run.state.value}{_when(run)}" if accepted.is_new else _words(accepted)


def _words(accepted: Any) -> str:
    return str(accepted.in_words(revive=f"pollux dead revive {accepted.run.id}"))


def _when(run: Any) -> str:
    """A run that waits for its time."""
    return f", due {ago(run.due_ms, now=now_ms())}" if run.due_ms > now_ms() + 1_000 else ""


def _look(run: Any) -> str:
    return f"; see it with `pollux runs show {run.id} --follow`"
