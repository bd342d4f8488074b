"""`pollux enqueue`: one run of a job, now or later, with params of its own.

The id of the run is made before the request, so that an error can name it.  A run may hold the event loop of the very
node that has just accepted it: then its answer comes when the run is over, or not at all.  A node on this machine
whose store can be opened from here is left after a few seconds, and the store is asked for the same run; the same id
again is the same run.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from random import SystemRandom
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from pollux.cli.completion import job_ids
from pollux.cli.follow_run import exit_code, follow
from pollux.cli.options import StoreChoice, ask, existing_store, json_option, store_options
from pollux.cli.output import ago, clean, now_ms, print_json
from pollux.cli.pause import say_drained
from pollux.cli.runner import TeachingCommand
from pollux.cli.runs import print_run
from pollux.errors import InvalidInput, PolluxError, StoreError, StoreTimeout
from pollux.ids import new_id
from pollux.model import RunState, unserved
from pollux.units import duration_ms

if TYPE_CHECKING:
    from pollux.app import OperationsProtocol
    from pollux.app.operations.runs import RunAccepted
    from pollux.client.rpc_codec import Hello


LATE_S = 5.0


class NodeUnanswered(Exception):
    """The node that was asked for this run says nothing, and its store can be asked instead."""

    def __init__(self, store: str, run_id: str, *, is_made: bool) -> None:
        self.store, self.run_id, self.is_made = store, run_id, is_made  # is_made: nobody else has this id
        super().__init__(store, run_id)


async def accepted_by(
    operations: OperationsProtocol,
    job_id: str,
    params: Mapping[str, Any] | None,
    run: NodeUnanswered | str | None,
    options: Mapping[str, Any],
) -> RunAccepted:
    """What was answered; `NodeUnanswered`, or a `StoreTimeout` that names the run.

    The `run` is the id that was given, if any; or what a node has not answered, of which `app` is the store.
    """
    if isinstance(run, NodeUnanswered):
        return await _accepted_in_store(operations, job_id, params, run, options)
    asked = run or new_id(await _store_now(operations), SystemRandom())
    call = asyncio.ensure_future(operations.runs.accept(job_id, params, id=asked, **options))
    try:
        if store := _store_of(getattr(operations, "hello", None)):
            await asyncio.wait({call}, timeout=LATE_S)
            if not call.done():
                raise NodeUnanswered(store, asked, is_made=run is None)
        accepted: RunAccepted = await call
    except StoreTimeout as error:
        raise _unknown(asked, job_id, str(error)) from error
    finally:
        call.cancel()
    return accepted


async def _store_now(operations: OperationsProtocol) -> int:
    """The store's time, with which the ids of runs begin; our own where a node could not tell it."""
    hello: Hello | None = getattr(operations, "hello", None)
    if hello is None:
        now: int = await operations.storage.store_now()
        return now
    return hello.now_ms or now_ms()


async def _accepted_in_store(
    operations: OperationsProtocol,
    job_id: str,
    params: Mapping[str, Any] | None,
    late: NodeUnanswered,
    options: Mapping[str, Any],
) -> RunAccepted:
    """What the store itself answers to whoever asks for that same run."""
    why = await _held_words(operations)
    words = f"the node that was asked did not answer within {LATE_S:.0f} s{why}; its store is asked for the same run"
    click.echo(f"pollux: {clean(words)}", err=True)
    try:
        accepted: RunAccepted = await operations.runs.accept(job_id, params, id=late.run_id, **options)
    except PolluxError as error:
        raise _unknown(late.run_id, job_id, f"the node did not answer{why}, and its store said: {error}") from error
    return replace(accepted, is_new=True) if late.is_made else accepted


def _unknown(run_id: str, job_id: str, why: str) -> StoreTimeout:
    if why.startswith(f"run {run_id} "):  # whoever was asked named it
        return StoreTimeout(why)
    cure = f"`pollux runs show {run_id}` tells, and `--id {run_id}` asks for the same run"
    return StoreTimeout(f"run {run_id} of job {job_id} may have been accepted: {why}; {cure}")


def _store_of(hello: Hello | None) -> str:
    """The store of a node, if that can be opened from here: the very file, or a server that wants no password."""
    from pollux.client.rpc_codec import file_mark
    from pollux.secrets import MASK

    if hello is None or MASK in hello.store or hello.store.startswith("memory"):
        return ""
    return hello.store if file_mark(hello.store) == hello.file else ""


async def _held_words(operations: OperationsProtocol) -> str:
    """What holds the event loops of its nodes, as far as they told the store."""
    try:
        held = [each for each in await operations.status.nodes() if each.load.held_by]
    except PolluxError:
        return ""
    return "".join(f", and the event loop of node {each.id} is held by {each.load.held_by}" for each in held[:1])


EXAMPLE = """write it like --params '{"depth": 2}'"""


@click.command(cls=TeachingCommand)
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

    async def question(operations: OperationsProtocol, late: NodeUnanswered | None = None) -> tuple[Any, Any]:
        accepted = await accepted_by(operations, job_id, given, late or run_id, options)
        run = accepted.run
        if not as_json:
            click.echo(f"{_told(accepted)}{'' if wait else _look(run)}")
        await _say_hints(operations, run)
        return (await follow(operations, run.id, quiet=as_json, wait_ms=wait_ms) if wait else run), accepted

    try:
        run, accepted = ask(existing_store(StoreChoice(config, store)), question)
    except NodeUnanswered as error:
        late = error
        run, accepted = ask(late.store, lambda operations: question(operations, late))
    if as_json:
        print_json({"run": run, "is_new": accepted.is_new, "message": _words(accepted)})
    elif wait:
        print_run(run)
    return exit_code(run) if wait else 0


async def _say_hints(operations: OperationsProtocol, run: Any) -> None:
    with suppress(StoreError, TimeoutError):  # it is accepted, whatever can be found out besides
        async with asyncio.timeout(LATE_S):
            await say_drained(operations)
            for hint in await _hints(operations, run):
                click.echo(clean(hint), err=True)


async def _hints(operations: OperationsProtocol, run: Any) -> list[str]:
    """What whoever hears "is ready" would not expect.  The run is accepted, whatever can be found out of its job."""
    if run.state not in (RunState.HELD, RunState.READY):
        return []
    [job], found = await operations.jobs.jobs_by_id([run.job_id]), []
    if job is not None and not job.declared:
        words = f"nobody declares job {job.id} any more: the run waits until somebody does"
        found.append(f"{words}; `pollux jobs delete {job.id}` takes both away")
    if lack := unserved(run.scheduler_version, await operations.status.nodes()):
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
    return (
        f"run {run.id} of job {run.job_id} is {run.shown_state(now_ms())}{_when(run)}"
        if accepted.is_new
        else _words(accepted)
    )


def _words(accepted: Any) -> str:
    return str(accepted.in_words(revive=f"pollux dead revive {accepted.run.id}"))


def _when(run: Any) -> str:
    """A run that waits for its time."""
    return f", due {ago(run.due_ms, now=now_ms())}" if run.due_ms > now_ms() + 1_000 else ""


def _look(run: Any) -> str:
    return f"; see it with `pollux runs show {run.id} --follow`"
