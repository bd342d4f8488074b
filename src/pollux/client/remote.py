"""Remote access to a node: the verbs of the app over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from pollux.client.address import NodeAddress
from pollux.client.rpc_codec import LOOKS, PATH, Hello, verb_of
from pollux.errors import StoreRefused
from pollux.store.contract import DumpPage

LOAD_BYTES = 500_000  # of records in one request


class Remote:
    """A node by its address.  After `open` every verb of the app can be called by its name.

    `tell` gets the reason of a delay as text.
    """

    def __init__(self, address: NodeAddress, token: str = "", *, tell: Callable[[str], None] | None = None) -> None:
        self.address = address
        self.hello: Hello | None = None
        from pollux.client.http import HttpConnection  # here: the server imports this package, but not the client

        self._line = HttpConnection(address, token, tell)

    async def open(self, *, sealed: bool = False) -> None:
        """Connect and check what answers; `StoreError` if it is no node.  `sealed`: also if its store was moved."""
        body = await self._line.ask("GET", PATH, b"", again=True)
        self.hello = self._line.read(lambda: msgspec.json.decode(body, type=Hello))
        if self.hello.sealed and not sealed:
            raise StoreRefused(self.hello.sealed)

    @property
    def store_url(self) -> str:
        """URL of the store of that node, without a password."""
        return self.address.shown if self.hello is None else self.hello.store

    async def sealed(self) -> str:
        return "" if self.hello is None else self.hello.sealed

    async def close(self) -> None:
        await self._line.close()

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        if name.startswith("_"):
            raise AttributeError(name)
        verb = verb_of(name)

        async def ask(*given: Any, **named: Any) -> Any:
            body = verb.packed(given, named)
            answer = await self._line.ask("POST", f"{PATH}/{name}", body, again=name in LOOKS)
            return self._line.read(lambda: verb.read(answer))

        return ask

    async def dump(self) -> AsyncIterator[DumpPage]:
        """Yield the whole content of the store, page by page."""
        verb = verb_of("dump")
        async for line in self._line.lines(f"{PATH}/dump"):
            page: DumpPage = self._line.read(partial(verb.read, line))
            yield page
            if page.next is None:
                return
        raise self._line.cut_short()

    async def load(self, records: Sequence[tuple[str, Any]]) -> int:
        """Write dumped records whose id does not exist yet, in requests of limited size."""
        verb, new = verb_of("load"), 0
        for batch in _in_portions(records):
            body = verb.packed((batch,), {})
            answer = await self._line.ask("POST", f"{PATH}/load", body, again=True)  # twice changes nothing
            new += int(verb.read(answer))
        return new


def _in_portions(records: Sequence[tuple[str, Any]]) -> list[list[tuple[str, Any]]]:
    portions: list[list[tuple[str, Any]]] = []
    room = 0
    for record in records:
        size = len(msgspec.json.encode(record))
        if not portions or size > room:
            portions.append([])
            room = LOAD_BYTES
        portions[-1].append(record)
        room -= size
    return portions
