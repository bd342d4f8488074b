"""Whom do commands ask from here: the store itself, a node of it on this machine, or a node elsewhere?"""

from __future__ import annotations

import asyncio
from typing import Any

from pollux.cli.doctor.finding import Finding, fail, ok
from pollux.cli.options import ask, socket_of
from pollux.cli.way import live_socket, node_url
from pollux.client import address_of
from pollux.config import Config
from pollux.errors import PolluxError


def look_at_way(config: Config | None, store: str | None) -> Finding:
    try:
        url = node_url(store)
        if not url and not store and config is not None:
            url = asyncio.run(live_socket(socket_of(config, config.store), config.store))
        if not url:
            return ok("asked", "commands ask the store itself")
        hello = ask(url, _hello)
    except PolluxError as error:
        what, _, cure = str(error).rpartition("; ")
        return fail("asked", what or str(error), cure if what else "see --url and POLLUX_URL")
    seen = f"commands ask {address_of(url).shown}: Pollux {hello.version} on {hello.store}"
    return ok("asked", f"{seen}, which knows you as {hello.name} ({hello.role})")


async def _hello(node: Any) -> Any:
    return node.hello
