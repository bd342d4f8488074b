"""Connection of `pollux top` to its store: closed when the store is locked, deleted or replaced, and opened again.

It never creates a store: it waits for one that is not there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from pollux.app import Pollux
from pollux.cli.target import app_at, live_socket
from pollux.client import is_address
from pollux.errors import PolluxError, StoreError, system_words
from pollux.secrets import hide
from pollux.store.urls import lacking

_T = TypeVar("_T")


class StoreConnection:
    """One app on the store, or a node of it, for as long as that answers."""

    def __init__(self, url: str, socket: Path | None = None) -> None:
        self.url, self._socket = url, socket
        self._app: Pollux | None = None

    @property
    def name(self) -> str:
        """The store's URL."""
        return self.url if self._app is None else self._app.store_url

    async def ask(self, question: Callable[[Pollux], Awaitable[_T]]) -> _T:
        """The answer, or `PolluxError`; a store that failed is opened anew for the next question."""
        try:
            return await question(await self._opened())
        except StoreError:
            await self.close()
            raise
        except OSError as error:
            await self.close()
            raise StoreError(f"the store {self.url} does not answer: {system_words(error)}") from error

    async def close(self) -> None:
        app, self._app = self._app, None
        if app is not None:
            with suppress(PolluxError, OSError):
                await app.close()

    async def _opened(self) -> Pollux:
        if self._app is None:
            address = await live_socket(self._socket, self.url) or self.url
            if not is_address(address) and (missing := await lacking(address)):
                words = f"there is no store {hide(address)} yet ({missing})"
                raise StoreError(f"{words}; waiting for it (`pollux serve` makes one)")
            app: Pollux = app_at(address, "top")
            try:
                await app.open()
            except BaseException:
                with suppress(PolluxError, OSError):
                    await app.close()
                raise
            self._app = app
        return self._app
