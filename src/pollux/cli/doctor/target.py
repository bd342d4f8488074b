"""Whom do commands ask from here: the store itself, a node of it on this machine, or a node elsewhere?"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from pollux.cli.doctor.finding import DoctorFinding, fail, of_health, ok
from pollux.cli.options import ask, socket_of
from pollux.cli.target import live_socket, node_url
from pollux.client import address_of
from pollux.config import Config
from pollux.errors import PolluxError

OF_A_NODE = ("polling", "loop", "handlers")  # what a node that is asked tells of itself, as `pollux health` does


class CommandTarget(NamedTuple):
    """Whom commands ask, and what a node that answers tells of itself."""

    findings: list[DoctorFinding]
    seats: int = 0  # of that node


def look_at_way(config: Config | None, store: str | None) -> CommandTarget:
    try:
        url = node_url(store)
        if not url and not store and config is not None:
            url = asyncio.run(live_socket(socket_of(config, config.store), config.store))
        if not url:
            return CommandTarget([ok("asked", "commands ask the store itself")])
        hello, document, nodes = ask(url, _of_node)
    except PolluxError as error:
        what, _, cure = str(error).rpartition("; ")
        return CommandTarget([fail("asked", what or str(error), cure if what else "see --url and POLLUX_URL")])
    seen = f"commands ask {address_of(url).shown}: Pollux {hello.version} on {hello.store}"
    asked = ok("asked", f"{seen}, which knows you as {hello.name} ({hello.role})")
    told = [of_health(found) for found in document["findings"] if found["name"] in OF_A_NODE]
    return CommandTarget([asked, *told], sum(node.seats for node in nodes if node.id == document["node"]))


async def _of_node(node: Any) -> tuple[Any, dict[str, Any], list[Any]]:
    return node.hello, await node.health_document(), await node.nodes()
