"""How does the API live beside the engine?  uvicorn on the engine's own event loop, without its signals and its clock.

uvicorn's own loop would wake ten times a second for a date header; here it only accepts and answers.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from pollux.app import Pollux
from pollux.errors import InvalidInput
from pollux.server.options import ServerOptions
from pollux.server.tokens import Tokens

if TYPE_CHECKING:
    import uvicorn

BACKLOG = 1_024
END_S = 5  # requests under way at the end have this long

log = logging.getLogger("pollux")


class Server:
    """The API of one app, from `start` to `stop`."""

    def __init__(self, app: Pollux, options: ServerOptions) -> None:
        self.app, self.options, self.tokens = app, options, Tokens()
        self.port = 0  # once it listens
        self._sockets: list[socket.socket] = []
        self._uvicorn: uvicorn.Server | None = None

    async def start(self) -> bool:
        """Listen; false if the usual port is taken by a neighbour, which is said and does not stop the engine."""
        try:
            self._sockets = [_listen(self.options.host, self.options.port)]
        except OSError as error:
            where = f"{self.options.host}:{self.options.port}"
            if self.options.is_port_given:
                raise InvalidInput(f"the API cannot listen on {where}: {error.strerror}", cure="--port N") from error
            log.warning("the API cannot listen on %s (%s): this node has none; cure: --port N", where, error.strerror)
            return False
        self.port = self._sockets[0].getsockname()[1]
        await self._answer()
        return True

    async def _answer(self) -> None:
        import uvicorn  # here: a node without an API has no use for the framework

        from pollux.server.api import make_api

        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
        config = uvicorn.Config(
            make_api(self.app, self.tokens),
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            date_header=False,
            timeout_graceful_shutdown=END_S,
        )
        config.load()
        self._uvicorn = uvicorn.Server(config)
        self._uvicorn.lifespan = config.lifespan_class(config)
        await self._uvicorn.startup(sockets=self._sockets)

    async def stop(self) -> None:
        if self._uvicorn is not None:
            await self._uvicorn.shutdown(sockets=self._sockets)
            self._uvicorn = None


@asynccontextmanager
async def served(app: Pollux, options: ServerOptions | None) -> AsyncIterator[Server | None]:
    """The app started, with its API beside it (None: without); while it drains the API still answers."""
    server = None if options is None else Server(app, options)
    try:
        await app.start()
        if server is not None:
            await server.start()
        yield server
    finally:
        await app.drain()
        if server is not None:
            await server.stop()
        await app.close()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener
