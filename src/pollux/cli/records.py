"""`pollux nodes` and `pollux audit`: who is there, and who changed what?"""

from __future__ import annotations

from collections import deque
from typing import Any

import click

from pollux.cli.commands import Taught
from pollux.cli.options import Where, ask, existing_store, json_option, store_options
from pollux.cli.show import ago, moment, now_ms, print_json, print_more, print_table

LOG_PAGE = 1_000


@click.command(cls=Taught)
@json_option
@store_options
def nodes(config: str | None, store: str | None, *, as_json: bool) -> None:
    """List the processes that live on this store, their seats, and which of them leads.

    For example:
      pollux nodes --json
    """
    found = ask(existing_store(Where(config, store)), lambda app: app.nodes())
    if as_json:
        print_json({"nodes": found})
        return
    now = now_ms()
    print_table(
        ("id", "host", "pid", "seats", "leads", "handlers", "started", "seen", "version"),
        (
            (
                node.id,
                node.host,
                str(node.pid),
                f"{node.busy}/{node.seats}" + (" draining" if node.draining else ""),
                f"term {node.leads}" if node.leads else "",
                str(len(node.handlers)),
                ago(node.started_ms, now=now),
                ago(node.beat_ms, now=now),
                node.version,
            )
            for node in found
        ),
    )
    if not found:
        click.echo("nobody is there; start one with `pollux serve`", err=True)


@click.command(cls=Taught)
@click.option("--after", type=click.IntRange(0), help="Only lines after this number; without it the newest.")
@click.option("--limit", type=click.IntRange(1, 1_000), default=50, show_default=True, help="Lines at most.")
@json_option
@store_options
def audit(after: int | None, limit: int, config: str | None, store: str | None, *, as_json: bool) -> None:
    """Show who changed what by hand or by API, oldest first.

    For example:
      pollux audit --limit 10
      pollux audit --after 120 --json
    """
    lines, cursor = ask(existing_store(Where(config, store)), lambda app: _lines(app, after, limit))
    if as_json:
        print_json({"lines": lines, "next": cursor})
        return
    print_table(
        ("no", "when", "who", "did", "to", "detail"),
        ((str(line.seq), moment(line.at_ms), line.actor, line.action, line.subject, line.detail) for line in lines),
    )
    print_more(cursor)


async def _lines(app: Any, after: int | None, limit: int) -> tuple[list[Any], int | None]:
    """A page after a number, or the newest lines: the log can be read forwards only."""
    if after is not None:
        page = await app.audit(after=after, limit=limit)
        return list(page.lines), page.next
    newest: deque[Any] = deque(maxlen=limit)
    cursor: int | None = 0
    while cursor is not None:
        page = await app.audit(after=cursor, limit=LOG_PAGE)
        newest.extend(page.lines)
        cursor = page.next
    return list(newest), None
