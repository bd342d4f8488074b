"""Was the run accepted?  Its id is made before anybody is asked, so that it can be named whatever is answered.

A run may hold the event loop of the very node that has just accepted it: then its answer comes when the run is over,
or not at all.  A node on this machine whose store can be opened from here is left after a few seconds, and the store is
asked for the same run; the same id again is the same run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from random import SystemRandom
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from pollux.cli.show import clean, now_ms
from pollux.errors import PolluxError, StoreTimeout
from pollux.ids import new_id

if TYPE_CHECKING:
    from pollux.app.accepted import Accepted
    from pollux.client.travel import Hello

LATE_S = 5.0


class Unanswered(Exception):
    """The node that was asked for this run says nothing, and its store can be asked instead."""

    def __init__(self, store: str, run_id: str, *, is_made: bool) -> None:
        self.store, self.run_id, self.is_made = store, run_id, is_made  # is_made: nobody else has this id
        super().__init__(store, run_id)


async def accepted_by(
    app: Any, job_id: str, params: Mapping[str, Any] | None, run: Unanswered | str | None, options: Mapping[str, Any]
) -> Accepted:
    """What was answered; `Unanswered`, or a `StoreTimeout` that names the run.

    The `run` is the id that was given, if any; or what a node has not answered, of which `app` is the store.
    """
    if isinstance(run, Unanswered):
        return await _accepted_in_store(app, job_id, params, run, options)
    asked = run or new_id(await _store_now(app), SystemRandom())
    call = asyncio.ensure_future(app.accept(job_id, params, id=asked, **options))
    try:
        if store := _store_of(getattr(app, "hello", None)):
            await asyncio.wait({call}, timeout=LATE_S)
            if not call.done():
                raise Unanswered(store, asked, is_made=run is None)
        accepted: Accepted = await call
    except StoreTimeout as error:
        raise _unknown(asked, job_id, str(error)) from error
    finally:
        call.cancel()
    return accepted


async def _store_now(app: Any) -> int:
    """The store's time, with which the ids of runs begin; our own where a node could not tell it."""
    hello: Hello | None = getattr(app, "hello", None)
    if hello is None:
        now: int = await app.store_now()
        return now
    return hello.now_ms or now_ms()


async def _accepted_in_store(
    app: Any, job_id: str, params: Mapping[str, Any] | None, late: Unanswered, options: Mapping[str, Any]
) -> Accepted:
    """What the store itself answers to whoever asks for that same run."""
    why = await _held_words(app)
    words = f"the node that was asked did not answer within {LATE_S:.0f} s{why}; its store is asked for the same run"
    click.echo(f"pollux: {clean(words)}", err=True)
    try:
        accepted: Accepted = await app.accept(job_id, params, id=late.run_id, **options)
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
    from pollux.client.travel import file_mark
    from pollux.secrets import MASK

    if hello is None or MASK in hello.store or hello.store.startswith("memory"):
        return ""
    return hello.store if file_mark(hello.store) == hello.file else ""


async def _held_words(app: Any) -> str:
    """What holds the event loops of its nodes, as far as they told the store."""
    try:
        held = [each for each in await app.nodes() if each.load.held_by]
    except PolluxError:
        return ""
    return "".join(f", and the event loop of node {each.id} is held by {each.load.held_by}" for each in held[:1])
