"""What can be asked of a node that runs elsewhere?  The same verbs as of a store that is opened here."""

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
    """A node by its address.  `open` says hello; then every verb of the app can be asked, by its own name.

    `tell` hears why it takes longer than it should; by default nobody does.
    """

    def __init__(self, address: NodeAddress, token: str = "", *, tell: Callable[[str], None] | None = None) -> None:
        self.address = address
        self.hello: Hello | None = None
        from pollux.client.http import HttpConnection  # here: a server knows the verbs, and calls nobody

        self._line = HttpConnection(address, token, tell)

    async def open(self, *, sealed: bool = False) -> None:
        """Who is there?  Raises `StoreError` if nobody is, or somebody else; `sealed` as with an app."""
        body = await self._line.ask("GET", PATH, b"", again=True)
        self.hello = self._line.read(lambda: msgspec.json.decode(body, type=Hello))
        if self.hello.sealed and not sealed:
            raise StoreRefused(self.hello.sealed)

    @property
    def store_url(self) -> str:
        """Of the store on which that node works, without a password."""
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
        """Everything in the store, page by page."""
        verb = verb_of("dump")
        async for line in self._line.lines(f"{PATH}/dump"):
            page: DumpPage = self._line.read(partial(verb.read, line))
            yield page
            if page.next is None:
                return
        raise self._line.cut_short()

    async def load(self, records: Sequence[tuple[str, Any]]) -> int:
        """Write dumped records where there are none of the same id, as many at once as fit into a request."""
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
