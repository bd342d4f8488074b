"""How is a name looked up without making others wait?  In threads of our own, and a name that is stuck keeps one only.

The system's lookup cannot be cancelled: a name whose servers are silent keeps its thread until the system gives up.
The event loop's own few threads would soon all be kept by dead names, and healthy targets could not be found.
"""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from aiohttp.abc import AbstractResolver, ResolveResult

THREADS_MAX = 64  # made when they are needed
_NUMERIC = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV

Key = tuple[str, int, int]
Found = list[tuple[Any, ...]]


class Resolver(AbstractResolver):
    """Looks names up; whoever asks for one that is being looked up waits for the same answer."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="pollux-names")
        self._under_way: dict[Key, Future[Found]] = {}

    async def resolve(self, host: str, port: int = 0, family: Any = socket.AF_UNSPEC) -> list[ResolveResult]:
        key = (host, port, int(family))
        lookup = self._under_way.get(key)
        if lookup is None:
            look = partial(socket.getaddrinfo, host, port, family, socket.SOCK_STREAM, 0, socket.AI_ADDRCONFIG)
            lookup = self._under_way[key] = self._threads.submit(look)
            forget = partial(asyncio.get_running_loop().call_soon_threadsafe, self._under_way.pop, key, None)
            lookup.add_done_callback(lambda _: _quietly(forget))
        found = await asyncio.shield(asyncio.wrap_future(lookup))
        return [_answer(host, port, each) for each in found]

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _answer(host: str, port: int, found: tuple[Any, ...]) -> ResolveResult:
    family, _, proto, _, address = found
    scope = f"%{address[3]}" if family == socket.AF_INET6 and len(address) > 3 and address[3] else ""
    return ResolveResult(
        hostname=host, host=f"{address[0]}{scope}", port=port, family=family, proto=proto, flags=_NUMERIC
    )


def _quietly(forget: Any) -> None:
    try:
        forget()
    except RuntimeError:  # that loop is closed: nobody will ask again
        return
