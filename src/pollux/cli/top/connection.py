"""Connection of `pollux top` to its store: closed when the store is locked, deleted or replaced, and opened again.

It never creates a store: it waits for one that is not there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pollux.cli.target import app_at, live_socket
from pollux.client import is_address
from pollux.errors import PolluxError, StoreError, system_words
from pollux.secrets import hide
from pollux.store.urls import lacking

if TYPE_CHECKING:
    from pollux.app import OperationsProtocol
    from pollux.cli.target import Target

_T = TypeVar("_T")


class StoreConnection:
    """The store, or a node of it, for as long as that answers."""

    def __init__(self, url: str, socket: Path | None = None) -> None:
        self.url, self._socket = url, socket
        self._target: Target | None = None

    @property
    def name(self) -> str:
        """The store's URL."""
        return self.url if self._target is None else self._target.store_url

    async def ask(self, question: Callable[[OperationsProtocol], Awaitable[_T]]) -> _T:
        """The answer, or `PolluxError`; a store that failed is opened anew for the next question."""
        try:
            return await question((await self._opened()).operations)
        except StoreError:
            await self.close()
            raise
        except OSError as error:
            await self.close()
            raise StoreError(f"the store {self.url} does not answer: {system_words(error)}") from error

    async def close(self) -> None:
        target, self._target = self._target, None
        if target is not None:
            with suppress(PolluxError, OSError):
                await target.close()

    async def _opened(self) -> Target:
        if self._target is None:
            address = await live_socket(self._socket, self.url) or self.url
            if not is_address(address) and (missing := await lacking(address)):
                words = f"there is no store {hide(address)} yet ({missing})"
                raise StoreError(f"{words}; waiting for it (`pollux serve` makes one)")
            target = app_at(address, "top")
            try:
                await target.open()
            except BaseException:
                with suppress(PolluxError, OSError):
                    await target.close()
                raise
            self._target = target
        return self._target
