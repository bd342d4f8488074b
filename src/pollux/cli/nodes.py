"""`pollux nodes`: the processes that live on a store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pollux.cli.options import StoreChoice, ask_target, existing_store, json_option, store_options
from pollux.cli.output import ago, full, now_ms, print_json, print_table, span
from pollux.cli.runner import TeachingCommand
from pollux.model import Declares, Drained, Node, role_of
from pollux.units import counted

if TYPE_CHECKING:
    from pollux.cli.target import Target
    from pollux.model import StartCommand

SILENT_MS = 20_000  # nodes beat every 15 s


@click.command(cls=TeachingCommand)
@json_option
@store_options
def nodes(config: str | None, store: str | None, *, as_json: bool) -> None:
    """List the processes that live on this store: seats, handlers, which code they have, and which of them leads.

    Each is the leader (of its term, and since when), on standby (it takes over when the leader goes), a worker, which
    never leads, or silent: it led, its term has ended, and it was not heard of since.

    SERVES is the scheduler version that it plans or runs for, POLLUX the release of the program itself.
    What a node declares is told by source: its release, and how many jobs.  With --json each source has a mark, too:
    nodes of one release whose marks differ have different code.

    For example:
      pollux nodes
      pollux nodes --json
    """
    url = existing_store(StoreChoice(config, store))
    found, drained, is_sealed = ask_target(url, _who_is_there)
    if as_json:
        rows = [full(node) | {"role": role_of(node)} for node in found]
        print_json({"nodes": rows, "leaders": [node.id for node in found if node.leads], "drained": drained})
        return
    now = now_ms()
    print_table(
        ("id", "host", "pid", "seats", "leads", "handlers", "declares", "serves", "started", "seen", "pollux"),
        (
            (
                node.id,
                node.host,
                str(node.pid),
                _seats(node),
                _leads(node, now, is_sealed=is_sealed),
                str(len(node.handlers)),
                ", ".join(_declared(source) for source in node.declares),
                str(node.scheduler_version),
                ago(node.started_ms, now=now),
                _seen(node, now),
                node.version,
            )
            for node in found
        ),
    )
    if not found:
        click.echo(f"nobody is there; start one with {_how(url)}", err=True)
    for each in drained:
        click.echo(f"{each}: nothing is claimed; {each.ends}", err=True)


async def _who_is_there(target: Target) -> tuple[list[Node], list[Drained], bool]:
    from pollux.app.operations.status import nodes_now

    operations = target.operations
    return await nodes_now(operations), await operations.workers.drained_workers(), bool(await target.sealed())


def _how(url: str) -> str:
    """What starts a node of this store, as far as the store tells."""
    from pollux.app import Pollux
    from pollux.app.process import starts_of
    from pollux.client import is_address

    async def question(target: Target) -> tuple[StartCommand, ...]:
        assert isinstance(target, Pollux), "a store's URL"
        return await starts_of(target.backend)

    starts = () if is_address(url) else ask_target(url, question)
    return " or ".join(dict.fromkeys(map(str, starts))) or "`pollux serve`"


def _seats(node: Node) -> str:
    """`1/4`; one that was told to end gives its seats away, and only waits for those who sit."""
    taken = f"{node.busy}/{node.seats}" if node.seats else str(node.busy or "-")
    return f"{taken} draining" if node.draining else taken


def _leads(node: Node, now: int, *, is_sealed: bool) -> str:
    """`term 3, 5m`, or its role.  Where the store was moved elsewhere nobody takes over."""
    if node.leads:
        return f"term {node.leads}, {span(now - node.leads_ms)}"
    role = role_of(node)
    return "-" if is_sealed and role == "standby" else role


def _seen(node: Node, now: int) -> str:
    """When it was last heard of; whoever misses a beat may be gone, and what it runs waits for its leases to end."""
    silent_ms = now - node.beat_ms
    return f"silent {span(silent_ms)}" if silent_ms > SILENT_MS else ago(node.beat_ms, now=now)


def _declared(source: Declares) -> str:
    """`code:shop release 7 (3 jobs)`"""
    release = f" release {source.release}" if source.release else ""
    return f"{source.source}{release} ({counted(source.jobs, 'job')})"
