"""Options of the API server, from the configuration: addresses, TLS, proxies, first token, socket."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from pollux.config import Config, load_config
from pollux.errors import InvalidInput
from pollux.server.limits import ApiLimits
from pollux.server.sockets import Certificate, refuse_in_the_clear
from pollux.store.local_files import OFF, SOCKET, TOKEN, beside, socket_path, state_folder

PORT = 8060


class ServerOptions(Struct, frozen=True, kw_only=True):
    host: str = "localhost"  # 127.0.0.1 and ::1
    has_port: bool = True  # else it answers on the socket alone, and loads the framework with the first request
    port: int = PORT  # 0: any free one
    is_port_given: bool = False  # a configured port must be free; the default one may be in use
    hosts: tuple[str, ...] = ()  # additional names
    tls: tuple[Path, Path] | None = None  # certificate, key
    proxies: tuple[str, ...] | None = None  # networks whose forwarded headers are trusted; None: no proxy
    token: str = ""  # valid in addition to those in the store
    token_file: Path | None = None  # for the first token; None: none is created
    socket: Path | None = None
    is_socket_given: bool = False
    limits: ApiLimits = ApiLimits()


def server_options(config: Config, *, plans: bool, store_url: str = "") -> ServerOptions | None:
    """The options, or None for no API.  A node that only runs has one if its port is configured.

    A file is shared by nodes: its port belongs to the node that plans, and may be in use where others only run.
    """
    is_port_given = config.is_given("server.port")
    is_in_file = ":" in config.origins.get("server.port", "")
    if not config.server_enabled or not (plans or is_port_given):
        return None
    refuse_in_the_clear(config.server_host, has_tls=bool(config.server_tls), behind_proxy=config.server_behind_proxy)
    url = store_url or config.store
    return ServerOptions(
        host=config.server_host,
        port=config.server_port,
        is_port_given=is_port_given and (plans or not is_in_file),
        hosts=_parts(config.server_hosts),
        tls=_tls(config),
        proxies=_parts(config.server_proxies) if config.server_behind_proxy else None,
        token=_token(config),
        token_file=Path(config.server_token_file).absolute() if config.server_token_file else beside(url, TOKEN),
        socket=socket_path(config.server_socket, url),
        is_socket_given=bool(config.server_socket),
        limits=ApiLimits(
            rate=config.server_rate,
            burst=2 * config.server_rate,
            connections=config.server_connections,
            at_work=config.server_requests,
        ),
    )


def nearby_options(store_url: str, environ: Mapping[str, str]) -> ServerOptions | None:
    """Options of a program that runs an app: a socket for commands on this machine, and no port.

    POLLUX_SERVER=false turns it off, POLLUX_SERVER_SOCKET names it.  All memory stores have the same URL, so the socket
    of such a node is named after its process.
    """
    variables = {name: value for name, value in environ.items() if name in ("POLLUX_SERVER", "POLLUX_SERVER_SOCKET")}
    config = load_config(None, environ=variables, arguments={}, with_jobs=False)
    if not config.server_enabled or config.server_socket == OFF:
        return None
    is_shared = "://" in store_url and not store_url.startswith("memory:")
    has_name = is_shared or bool(config.server_socket)
    path = socket_path(config.server_socket, store_url) if has_name else state_folder() / f"node-{os.getpid()}{SOCKET}"
    return ServerOptions(has_port=False, socket=path, is_socket_given=bool(config.server_socket))


def _parts(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _tls(config: Config) -> tuple[Path, Path] | None:
    """Paths relative to the config file; invalid files are refused here, before the start."""
    if not config.server_tls:
        return None
    origin = config.origins.get("server.tls", "")
    folder = Path(config.path).parent if config.path and ":" in origin else Path()
    cert, key = _parts(config.server_tls)
    files = folder / cert, folder / key
    try:
        Certificate(*files)
    except InvalidInput as error:
        where = f"{origin}: {error.where}" if origin else error.where
        raise InvalidInput(error.what, where=where, cure=error.cure) from error
    return files


def _token(config: Config) -> str:
    is_in_file = ":" in config.origins.get("server.token", "")
    if config.server_token and is_in_file and "server.token" not in config.written:
        raise InvalidInput(
            "the token is in the config file itself",
            where=f"{config.origins['server.token']}: server.token",
            cure="refer to it: ${file:/run/secrets/pollux-token} or ${env:POLLUX_ADMIN_TOKEN}",
        )
    return config.server_token
