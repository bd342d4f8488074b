"""`pollux top`: the whole store live, full screen."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from pollux.cli.options import json_option, store_options
from pollux.cli.output import now_ms, print_json
from pollux.cli.runner import TeachingCommand
from pollux.cli.target import StoreChoice, place_of_target
from pollux.errors import InvalidInput, PolluxError, StoreRefused

if TYPE_CHECKING:
    from pollux.app import OperationsProtocol
    from pollux.cli.top.board import StoreSummary

__all__ = ["top"]


@click.command(cls=TeachingCommand)
@json_option
@store_options
def top(where: StoreChoice, *, as_json: bool) -> None:
    """Watch everything live: nodes, seats, jobs, what runs, what is held and why; act by keyboard.

    Keys: arrows, / filter, s sort, p pause or resume, r run now, c cancel, w why, d dead letters, ? help, q quit.
    It waits for a store that is not there yet, and changes nothing unless a key asks for it.  With --json one snapshot
    is printed instead.

    For example:
      pollux top
      pollux top --store sqlite:///pollux.db
      pollux top --json
    """
    if as_json:
        print_json(where.ask(_snapshot))
        return
    place = place_of_target(where)
    if place.url.startswith("memory:"):
        raise StoreRefused("a memory store lives inside the one process that made it; `pollux serve --watch` shows it")
    if not (sys.stdout.isatty() and sys.stdin.isatty()):
        raise InvalidInput("top needs a terminal", cure="use `pollux top --json`, or `pollux jobs`")
    try:
        from pollux.cli.top.screen import Top
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "textual":
            raise
        raise PolluxError(
            'pollux top needs textual, which is not installed; pip install "pollux-scheduler[tui]"'
        ) from error
    Top(place.url, socket=place.socket).run()


async def _snapshot(operations: OperationsProtocol) -> StoreSummary:
    from pollux.cli.top.board import look_at

    return await look_at(operations, now_ms())
