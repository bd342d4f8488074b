"""`pollux top`: the whole store live, full screen."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from pollux.cli.options import StoreChoice, ask, existing_store, json_option, store_options, ways_to
from pollux.cli.output import now_ms, print_json
from pollux.cli.runner import TeachingCommand
from pollux.errors import InvalidInput, PolluxError, StoreRefused

if TYPE_CHECKING:
    from pollux.app import OperationsProtocol

__all__ = ["top"]


@click.command(cls=TeachingCommand)
@json_option
@store_options
def top(config: str | None, store: str | None, *, as_json: bool) -> None:
    """Watch everything live: nodes, seats, jobs, what runs, what is held and why; act by keyboard.

    Keys: arrows, / filter, s sort, p pause or resume, r run now, c cancel, w why, d dead letters, ? help, q quit.
    It waits for a store that is not there yet, and changes nothing unless a key asks for it.  With --json one look is
    printed instead.

    For example:
      pollux top
      pollux top --store sqlite:///pollux.db
      pollux top --json
    """
    where = StoreChoice(config, store)
    if as_json:
        print_json(ask(existing_store(where), _one_look))
        return
    url, socket = ways_to(where)
    if url.startswith("memory:"):
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
    Top(url, socket=socket).run()


async def _one_look(operations: OperationsProtocol) -> Any:
    from pollux.cli.top.board import look_at

    return await look_at(operations, now_ms())
