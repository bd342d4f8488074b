"""`Remote`, a node asked over HTTP: the operations of the app, each by its own name."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import msgspec

from pollux.app.operations.contract import GROUPS, OperationsProtocol
from pollux.client.address import NodeAddress
from pollux.client.rpc_codec import LOOKS, PATH, Hello, verb_of
from pollux.errors import StoreRefused
from pollux.store.contract import DumpPage

if TYPE_CHECKING:
    from pollux.client.http import HttpConnection

LOAD_BYTES = 500_000  # of records in one request


class Remote:
    """A node by its address.  `open` reads its hello; then `operations` asks it.

    `tell` is called with the reason when an answer takes longer than it should.
    """

    def __init__(self, address: NodeAddress, token: str = "", *, tell: Callable[[str], None] | None = None) -> None:
        self.address = address
        from pollux.client.http import HttpConnection  # here: a server reads the verbs, and calls no node

        self._line = HttpConnection(address, token, tell)
        self.operations = remote_operations(self._line)
        self.hello: Hello | None = None  # the answer to `open`

    async def open(self, *, sealed: bool = False) -> None:
        """Read the node's hello.  Raises `StoreError` if no node of ours answers; `sealed` as with an app."""
        body = await self._line.ask("GET", PATH, b"", again=True)
        hello = self.hello = self._line.read(lambda: msgspec.json.decode(body, type=Hello))
        if hello.sealed and not sealed:
            raise StoreRefused(hello.sealed)

    @property
    def store_url(self) -> str:
        """Of the store on which that node works, without a password."""
        return self.address.shown if self.hello is None else self.hello.store

    async def sealed(self) -> str:
        return "" if self.hello is None else self.hello.sealed

    async def close(self) -> None:
        await self._line.close()


def remote_operations(connection: HttpConnection) -> OperationsProtocol:
    """The operations of that node: each group asks for a verb by its name."""
    groups = dict.fromkeys(GROUPS, RemoteGroup(connection)) | {"storage": RemoteStorage(connection)}
    return cast("OperationsProtocol", SimpleNamespace(**groups))


class RemoteGroup:
    """Asks for each verb by its name, which is unique over all groups."""

    def __init__(self, connection: HttpConnection) -> None:
        self._line = connection

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        if name.startswith("_"):
            raise AttributeError(name)
        verb = verb_of(name)

        async def ask(*given: Any, **named: Any) -> Any:
            body = verb.packed(given, named)
            answer = await self._line.ask("POST", f"{PATH}/{name}", body, again=name in LOOKS)
            return self._line.read(lambda: verb.read(answer))

        return ask


class RemoteStorage(RemoteGroup):
    """Dumps and loads travel in pages."""

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
