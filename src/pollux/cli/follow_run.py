"""Changes of one run, line by line, until it ends."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import click

from pollux.cli.command_table import FAILED, OK
from pollux.cli.output import clean, moment, now_ms, shortened
from pollux.errors import PolluxError
from pollux.units import format_ms

if TYPE_CHECKING:
    from pollux.app import OperationsProtocol

LOOK_SECONDS = 0.5
SAYS_MAX = 200


async def follow(
    operations: OperationsProtocol, run_id: str, *, quiet: bool = False, wait_ms: int | None = None
) -> Any:
    """Tell every change on stderr until the run is over; answers the run."""
    told = ""
    began = time.monotonic()
    while True:
        run = await operations.runs.get_run(run_id)
        if not quiet and (news := state_words(run)) != told:
            told = news
            click.echo(f"{moment(now_ms())}  {told}", err=True)
        if run.is_finished:
            return run
        if wait_ms is not None and (time.monotonic() - began) * 1000 >= wait_ms:
            raise PolluxError(
                f"run {run_id} is still {run.shown_state(now_ms())} after {format_ms(wait_ms)}; it goes on: "
                f"`pollux runs show {run_id} --follow` waits on, `pollux why {run_id}` says why"
            )
        await asyncio.sleep(LOOK_SECONDS)


def state_words(run: Any) -> str:
    """Where a run stands, in a line."""
    state = run.shown_state(now_ms())
    match state:
        case "scheduled" if not run.attempt:
            words = f"scheduled: {moment(run.visible_ms)}"
        case "held":
            words = f"held: {run.held_reason}"
        case "scheduled" | "ready" if run.attempt:
            words = f"waits for attempt {run.attempt + 1} ({moment(run.visible_ms)}): {run.error}"
        case "leased":
            again = f" (attempt {run.attempt + 1})" if run.attempt else ""
            words = f"runs on {run.owner}{again}{f': {run.progress}' if run.progress else ''}"
        case "done" if run.failed:
            words = f"failed: {run.error}"
        case "dead":
            words = f"dead: {run.error}"
        case "cancelled":
            words = f"cancelled: {run.cancel}"
        case _:
            words = state
    return shortened(clean(words), SAYS_MAX)


def exit_code(run: Any) -> int:
    """0 if the run is done and did not fail."""
    return OK if run.state.value == "done" and not run.failed else FAILED
