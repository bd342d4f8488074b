"""Where does the API listen, and whom does it trust?  What a configuration says of it."""

from __future__ import annotations

from msgspec import Struct

from pollux.config import Config

PORT = 8060


class ServerOptions(Struct, frozen=True, kw_only=True):
    host: str = "127.0.0.1"
    port: int = PORT  # 0: any that is free
    is_port_given: bool = False  # a port that was asked for must be had; the usual one may be taken by a neighbour


def server_options(config: Config, *, plans: bool) -> ServerOptions | None:
    """None: no API.  A node that only runs has one if its port is named."""
    is_port_given = config.is_given("server.port")
    if not config.server_enabled or not (plans or is_port_given):
        return None
    return ServerOptions(host=config.server_host, port=config.server_port, is_port_given=is_port_given)
