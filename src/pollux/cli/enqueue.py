"""`pollux enqueue`: one run of a job, now or later, with params of its own.

The id of the run is made before the request, so that an error can name it.  A run may hold the event loop of the very
node that has just accepted it: then its answer comes when the run is over, or not at all.  If the store of that node
can be opened from here, it is asked for the same run after a few seconds; the same id again is the same run.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from random import SystemRandom
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from msgspec.structs import replace

from pollux.cli.completion import job_ids
from pollux.cli.options import json_option, store_options
from pollux.cli.output import ago, clean, notice, now_ms, print_json
from pollux.cli.pause import drain_warnings
from pollux.cli.runner import TeachingCommand
from pollux.cli.runs import exit_code, follow, print_run
from pollux.cli.target import StoreChoice, Target, opened, target_at
from pollux.errors import InvalidInput, PolluxError, StoreError, StoreTimeout
from pollux.ids import new_id
from pollux.model import Run, RunState, unserved
from pollux.secrets import MASK
from pollux.units import duration_ms

if TYPE_CHECKING:
    from pollux.app import OperationsProtocol
    from pollux.app.operations.runs import RunAccepted
    from pollux.client.rpc_codec import Hello


LATE_S = 5.0


class NodeUnanswered(Exception):
    """The node that was asked for this run does not answer, and its store can be asked instead."""

    def __init__(self, store: str, run_id: str, *, is_new_id: bool) -> None:
        self.store, self.run_id, self.is_new_id = store, run_id, is_new_id  # is_new_id: it was made here
        super().__init__(store, run_id)


class RunQuestion(NamedTuple):
    """What is asked for: a run of a job."""

    job_id: str
    params: Mapping[str, Any] | None = None
    run_id: str | None = None  # the id that was given, if any
    options: Mapping[str, Any] = {}

    async def accepted_by(self, target: Target) -> RunAccepted:
        """The answer of a node or a store; `NodeUnanswered`, or a `StoreTimeout` that names the run."""
        from pollux.client import Remote

        hello = target.hello if isinstance(target, Remote) else None
        # Ids of runs begin with the store's time; our own where a node could not read it.
        now = await target.operations.storage.store_now() if hello is None else hello.now_ms or now_ms()
        run_id = self.run_id or new_id(now, SystemRandom())
        call = asyncio.ensure_future(target.operations.runs.accept(self.job_id, self.params, id=run_id, **self.options))
        try:
            if store := _store_of(hello):
                await asyncio.wait({call}, timeout=LATE_S)
                if not call.done():
                    raise NodeUnanswered(store, run_id, is_new_id=self.run_id is None)
            return await call
        except StoreTimeout as error:
            raise _unknown(run_id, self.job_id, str(error)) from error
        finally:
            call.cancel()

    async def accepted_in_store(self, operations: OperationsProtocol, late: NodeUnanswered) -> RunAccepted:
        """The answer of the store itself, for the run that a node was asked for."""
        why = await _held_words(operations)
        words = (
            f"the node that was asked did not answer within {LATE_S:.0f} s{why}; its store is asked for the same run"
        )
        notice(words)
        try:
            accepted = await operations.runs.accept(self.job_id, self.params, id=late.run_id, **self.options)
        except PolluxError as error:
            what = f"the node did not answer{why}, and its store refused: {error}"
            raise _unknown(late.run_id, self.job_id, what) from error
        return replace(accepted, is_new=True) if late.is_new_id else accepted


def _unknown(run_id: str, job_id: str, why: str) -> StoreTimeout:
    if why.startswith(f"run {run_id} "):  # the answer names it
        return StoreTimeout(why)
    cure = f"`pollux runs show {run_id}` shows it, and `--id {run_id}` asks for the same run"
    return StoreTimeout(f"run {run_id} of job {job_id} may have been accepted: {why}; {cure}")


def _store_of(hello: Hello | None) -> str:
    """The store of a node, if that can be opened from here: the very file, or a server that wants no password."""
    from pollux.client.rpc_codec import file_mark

    if hello is None or MASK in hello.store or hello.store.startswith("memory"):
        return ""
    return hello.store if file_mark(hello.store) == hello.file else ""


async def _held_words(operations: OperationsProtocol) -> str:
    """What holds the event loop of a node, according to its last heartbeat."""
    try:
        held = [each for each in await operations.status.nodes() if each.load.blocked_by]
    except PolluxError:
        return ""
    return "".join(f", and the event loop of node {each.id} is blocked by {each.load.blocked_by}" for each in held[:1])


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
@click.option("--timeout", metavar="DURATION", help="With --wait: for at most so long; the run goes on.")
@json_option
@store_options
def enqueue(
    job_id: str,
    pairs: tuple[str, ...],
    params: str | None,
    run_id: str | None,
    timeout: str | None,
    where: StoreChoice,
    *,
    wait: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Ask for a run of a job.  It is on disk when this returns, and runs when a node has a free seat.

    What keeps the run from starting is printed, too: a drain, a job that is no longer declared, or that no node serves
    its version.  A run for later lets the job's own schedule go on.

    A value of KEY=VALUE is JSON if it can be read so, else text: `depth=2` is a number, `depth='"2"'` is not.

    For example:
      pollux enqueue report day=2026-11-30
      pollux enqueue report --params '{"day": "2026-11-30"}' --id report-30 --wait
      pollux enqueue cleanup --delay 10m --priority low
    """
    if timeout is not None and not wait:
        raise InvalidInput("--timeout is about waiting", cure="add --wait, or leave it out")
    wait_ms = None if timeout is None else duration_ms(timeout)
    asked = RunQuestion(job_id, params_of(params, pairs), run_id, options)

    async def followed(operations: OperationsProtocol, accepted: RunAccepted) -> tuple[Run, RunAccepted]:
        run = accepted.run
        if not as_json:
            click.echo(_answer_words(accepted, is_followed=wait))
        await _print_hints(operations, run)
        return (await follow(operations, run.id, quiet=as_json, wait_ms=wait_ms) if wait else run), accepted

    async def enqueued(target: Target) -> tuple[Run, RunAccepted]:
        try:
            return await followed(target.operations, await asked.accepted_by(target))
        except NodeUnanswered as error:
            async with opened(target_at(error.store)) as store:
                accepted = await asked.accepted_in_store(store.operations, error)
                return await followed(store.operations, accepted)

    run, accepted = where.ask_target(enqueued)
    if as_json:
        print_json({"run": run, "is_new": accepted.is_new, "message": _words(accepted)})
    elif wait:
        print_run(run)
    return exit_code(run) if wait else 0


async def _print_hints(operations: OperationsProtocol, run: Run) -> None:
    with suppress(StoreError, TimeoutError):  # it is accepted all the same
        async with asyncio.timeout(LATE_S):
            for words in await drain_warnings(operations):
                click.echo(words, err=True)
            for words in await _hints(operations, run):
                click.echo(clean(words), err=True)


async def _hints(operations: OperationsProtocol, run: Run) -> list[str]:
    """What keeps a run that is ready from starting."""
    if run.state not in (RunState.HELD, RunState.READY):
        return []
    [job], found = await operations.jobs.jobs_by_id([run.job_id]), []
    if job is not None and not job.declared:
        words = f"job {job.id} is no longer declared: the run waits until it is declared again"
        found.append(f"{words}; `pollux jobs delete {job.id}` deletes both")
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


def _answer_words(accepted: RunAccepted, *, is_followed: bool) -> str:
    run, now = accepted.run, now_ms()
    due = f", due {ago(run.due_ms, now=now)}" if run.due_ms > now + 1_000 else ""
    words = f"run {run.id} of job {run.job_id} is {run.shown_state(now)}{due}" if accepted.is_new else _words(accepted)
    return words if is_followed else f"{words}; see it with `pollux runs show {run.id} --follow`"


def _words(accepted: RunAccepted) -> str:
    return str(accepted.in_words(revive=f"pollux dead revive {accepted.run.id}"))
