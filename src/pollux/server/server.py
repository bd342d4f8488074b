"""API server of a node: its options, uvicorn on the engine's event loop, its sockets, and the first token.

uvicorn runs without its signal handlers and its clock, which would wake ten times a second for a date header; it only
accepts and answers.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from pollux.app import Pollux
from pollux.app.process import has_started
from pollux.config import Config, load_config
from pollux.errors import Conflict, InvalidInput
from pollux.secrets import hide
from pollux.server.auth import Identity, Role, TokenCheck
from pollux.server.limits import ApiLimits
from pollux.server.sockets import (
    HANDSHAKE_S,
    Certificate,
    UnixSocket,
    holder_of,
    is_loopback,
    listen,
    peer_of,
    refuse_in_the_clear,
)
from pollux.store.local_files import OFF, SOCKET, TOKEN, AnnouncedNode, announce, beside, socket_path, state_folder

if TYPE_CHECKING:
    import uvicorn

    from pollux.server.connections import Connections


log = logging.getLogger("pollux")

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


async def make_first_token(app: Pollux, file: Path) -> str:
    """An admin token for a store that never had one, written to a file of its owner alone (0600); otherwise nothing."""
    if not await app.operations.tokens.needs_first_token():
        return ""
    draft = file.with_name(f"{file.name}.{os.getpid()}.new")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft.unlink(missing_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        log.warning(
            "the first token cannot be written to %s (%s), so none was created; cure: name another place with "
            "server.token_file, or `pollux token create --role admin`",
            file,
            error.strerror,
        )
        return ""
    with os.fdopen(descriptor, "w") as out:
        token = await app.operations.as_actor("server").tokens.first_token()
        if token is not None:
            out.write(f"{token.secret}\n")
    if token is None:
        with suppress(OSError):
            draft.unlink()
        return ""
    draft.replace(file)
    log.info("first start: an admin token was created in %s", file)
    return token.secret


NOT_STARTED = "this node was not started, and nothing was changed"
PORT_CURE = "--port 0 (any that is free), --port N, --no-server; or `pollux worker`, which needs none"
HOST_CURE = "that is none of this machine's addresses: --host 127.0.0.1 (this machine alone), or one of its own"
END_S = 5  # for requests in progress at the end
TAKE_OVER_S = 5.0  # between two checks whether the socket is still ours, or has become free


class ApiServer:
    """API server of one app, from `start` to `stop`."""

    def __init__(self, app: Pollux, options: ServerOptions) -> None:
        self.app, self.options, self.tokens = app, options, TokenCheck(app)
        self.port = 0  # until it listens
        self.first_token = ""  # made by this start
        self.socket: UnixSocket | None = None  # while it listens there
        self._may_have_socket = True  # until the path turns out to be unusable
        self._certificate: Certificate | None = None
        self._listeners: list[socket.socket] | None = None  # once the port is bound; empty: another process has it
        self._sockets: list[socket.socket] = []
        self._uvicorn: uvicorn.Server | None = None
        self.connections: Connections | None = None  # while it answers
        self._protocol: Any = None
        self._unix_server: asyncio.Server | None = None  # accepts on the unix socket
        self._announced: Path | None = None  # the file that announces the socket
        self._unwatch: Callable[[], object] | None = None  # until the first request on the socket
        self._loading: asyncio.Task[None] | None = None  # loads the framework
        self._takeover: asyncio.Task[None] | None = None  # takes the socket over, and checks that it is still ours

    def take_port(self) -> list[socket.socket]:
        """Bind the port.  Called first, so that a node without its configured port changes nothing."""
        options = self.options
        if not options.has_port:
            self._listeners = []
            return self._listeners
        refuse_in_the_clear(options.host, has_tls=bool(options.tls), behind_proxy=options.proxies is not None)
        if self._listeners is None:
            self._listeners = self._listen()
        return self._listeners

    async def start(self) -> bool:
        """Start to answer; false if the default port is in use, which is logged and does not stop the engine."""
        options = self.options
        if options.token:
            self.tokens.trust(options.token, Identity("token:server.token", Role.ADMIN, "server.token"))
        self._certificate = None if options.tls is None else Certificate(*options.tls)
        try:
            listeners = self.take_port()
            unix_socket = self._open_socket()
            if unix_socket is not None and not options.has_port:
                self._answer_on_demand(unix_socket)
            elif self._sockets:
                if options.token_file is not None and not options.token:
                    self.first_token = await make_first_token(self.app, options.token_file)
                await self._answer(listeners, unix_socket)
        except BaseException:
            await self.stop()
            raise
        if options.socket is not None and self._may_have_socket:  # last, as it answers as well
            self._takeover = asyncio.create_task(self._take_over(options.socket), name="pollux socket")
        if listeners:
            log.info("the API is at %s, with a page to try it: %s/api/v2/docs", self.url, self.url)
        return bool(listeners)

    @property
    def url(self) -> str:
        """URL for a browser on this machine; empty if it listens on no port."""
        host = "localhost" if is_loopback(self.options.host) else self.options.host
        place = f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"
        return f"http{'s' if self.options.tls else ''}://{place}" if self.port else ""

    def _listen(self) -> list[socket.socket]:
        options, where = self.options, f"{self.options.host}:{self.options.port}"
        try:
            found = listen(options.host, options.port)
        except OSError as error:
            is_taken = error.errno == errno.EADDRINUSE
            why = f"{holder_of(options.port)} listens there" if is_taken else error.strerror
            if not options.is_port_given:
                log.warning("the API cannot listen on %s (%s): this node has none; cure: --port 0 or N", where, why)
                return []
            if is_taken:
                raise Conflict(f"the API cannot listen on {where}: {why}; {NOT_STARTED}", cure=PORT_CURE) from error
            is_elsewhere = error.errno == errno.EADDRNOTAVAIL
            cure = HOST_CURE if is_elsewhere else PORT_CURE
            raise InvalidInput(f"the API cannot listen on {where}: {why}", cure=cure) from error
        self.port = found[0].getsockname()[1]
        self._sockets += found
        return found

    def _open_socket(self) -> socket.socket | None:
        if self.options.socket is None:
            return None
        try:
            return self._take_socket(self.options.socket)
        except InvalidInput as error:
            if self.options.is_socket_given:
                raise
            log.warning("no socket for commands on this machine: %s", error)
            self._may_have_socket = False
            return None

    def _take_socket(self, path: Path) -> socket.socket | None:
        unix_socket = UnixSocket(path)
        found = unix_socket.listen()
        if found is not None:
            self.socket = unix_socket
            self._sockets.append(found)
            node = AnnouncedNode(os.getpid(), hide(str(path)), hide(self.app.store_url), self.app.options.seats)
            self._announced = announce(node)
        return found

    def _answer_on_demand(self, unix_socket: socket.socket) -> None:
        """Load the framework, in a thread, with the first connection: most programs never get one."""
        loop = asyncio.get_running_loop()

        def on_connection() -> None:
            loop.remove_reader(unix_socket)
            self._loading = loop.create_task(self._load_and_answer(unix_socket), name="pollux socket, first time")

        loop.add_reader(unix_socket, on_connection)
        self._unwatch = partial(loop.remove_reader, unix_socket)

    async def _load_and_answer(self, unix_socket: socket.socket) -> None:
        try:
            await asyncio.to_thread(_import_framework)
            await self._answer([], unix_socket)
        except Exception as error:  # noqa: BLE001  a background task; the engine goes on without
            log.warning("no socket for commands on this machine: %s", error)
            self._may_have_socket = False
            self._close_unix_socket()

    async def _answer(self, listeners: list[socket.socket], unix_socket: socket.socket | None) -> None:
        import uvicorn  # here: a node without an API has no use for the framework

        from pollux.server.connections import Connections, bounded
        from pollux.server.gateway import Hosts, Proxies, make_api

        logging.getLogger("uvicorn.error").setLevel(
            logging.ERROR
        )  # malformed requests of strangers are not worth a line
        options = self.options
        proxies = None if options.proxies is None else Proxies(options.proxies)
        limits = msgspec.structs.replace(options.limits, connections=_affordable(options.limits))
        config = uvicorn.Config(
            make_api(self.app, self.tokens, hosts=Hosts(options.host, options.hosts), proxies=proxies, limits=limits),
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            server_header=False,
            date_header=False,
            proxy_headers=False,  # the gateway knows the trusted proxies
            timeout_keep_alive=int(limits.keep_alive_s),
            timeout_graceful_shutdown=END_S,
            h11_max_incomplete_event_size=limits.head_bytes,
        )
        config.load()
        self.connections = Connections(
            limits,
            is_unbounded=lambda address: is_loopback(address) or (proxies is not None and proxies.has(address)),
            peer_of=self._peer_of,
        )
        self._protocol = bounded(config.http_protocol_class, self.connections)
        self._uvicorn = uvicorn.Server(config)
        self._uvicorn.lifespan = config.lifespan_class(config)
        await self._accept(self._uvicorn, listeners, unix_socket)

    async def _accept(
        self, server: uvicorn.Server, listeners: list[socket.socket], unix_socket: socket.socket | None
    ) -> None:
        """As uvicorn's own startup, but with TLS on the port and not on the unix socket."""
        loop, server.servers = asyncio.get_running_loop(), []
        protocol = self._protocol_factory(server)
        context = None if self._certificate is None else self._certificate.context
        for each in listeners:
            encrypted: dict[str, Any] = {} if context is None else {"ssl_handshake_timeout": HANDSHAKE_S}
            server.servers.append(await loop.create_server(protocol, sock=each, ssl=context, **encrypted))
        if unix_socket is not None:
            await self._accept_unix(server, unix_socket)
        server.started = True

    async def _accept_unix(self, server: uvicorn.Server, unix_socket: socket.socket) -> None:
        self._unix_server = await asyncio.get_running_loop().create_unix_server(
            self._protocol_factory(server), sock=unix_socket
        )
        server.servers.append(self._unix_server)

    def _protocol_factory(self, server: uvicorn.Server) -> Callable[[], Any]:
        return lambda: self._protocol(config=server.config, server_state=server.server_state, app_state={})

    async def _take_over(self, path: Path) -> None:
        """Take the unix socket over when the node that has it ends, so that commands on this machine find this one.

        Also restore our own if its file was removed or replaced.
        """
        last_error = ""
        while True:
            await asyncio.sleep(TAKE_OVER_S)
            if not self._may_have_socket:
                return
            if self.socket is not None and self.socket.is_there():
                continue
            self._close_unix_socket()
            try:
                found = self._take_socket(path)
                if found is not None and self._uvicorn is None and not self.options.has_port:
                    self._answer_on_demand(found)
                elif found is not None and self._uvicorn is None:
                    await self._answer([], found)
                elif found is not None and self._uvicorn is not None:
                    await self._accept_unix(self._uvicorn, found)
                last_error = ""
            except Exception as error:  # noqa: BLE001  a background task; a socket that does not answer is given up
                self._close_unix_socket()
                if str(error) != last_error:
                    last_error = str(error)
                    log.warning("no socket for commands on this machine: %s", last_error)

    def _close_unix_socket(self) -> None:
        """Close the unix socket, and remove its file if it is ours."""
        unix_socket, self.socket = self.socket, None
        if unix_socket is None:
            return
        self._remove_files(unix_socket)
        if self._unix_server is not None:
            self._unix_server.close()
            if self._uvicorn is not None:
                self._uvicorn.servers.remove(self._unix_server)
            self._unix_server = None
        for each in [each for each in self._sockets if each.family == socket.AF_UNIX]:
            each.close()
            self._sockets.remove(each)

    def _remove_files(self, unix_socket: UnixSocket) -> None:
        """Remove the file and the announcement of the socket."""
        unix_socket.remove()
        if self._announced is not None:
            self._announced.unlink(missing_ok=True)
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None

    def _peer_of(self, transport: Any) -> Identity | None:
        if self._certificate is not None:
            self._certificate.look()
        return peer_of(transport)

    async def stop(self) -> None:
        if self._takeover is not None:
            self._takeover.cancel()
            await asyncio.wait([self._takeover])
            self._takeover = None
        if self.socket is not None:
            self._remove_files(self.socket)
            self.socket = None
        if self._loading is not None:
            self._loading.cancel()
            await asyncio.wait([self._loading])
        self._unix_server = None
        if self.connections is not None:
            self.connections.end_streams()
        if self._uvicorn is not None:
            await self._uvicorn.shutdown()
            self._uvicorn = None
        for each in self._sockets:
            each.close()
        self._sockets, self._listeners = [], None
        if self.connections is not None:
            self.connections.close()
        await self.tokens.close()


@asynccontextmanager
async def served(
    app: Pollux,
    options: ServerOptions | None,
    *,
    stop: asyncio.Event,
    say: Callable[[str], None] = log.warning,
    replace: bool = False,
) -> AsyncIterator[ApiServer | None]:
    """Run the app with its API (None: without); the API answers until the app has drained.

    A store that does not answer yet is waited for, as whole deployments start at once; nothing is started if `stop` is
    set before.
    """
    server = None if options is None else ApiServer(app, options)
    try:
        if server is not None:
            server.take_port()
            if server.options.has_port:
                _import_framework()
        if await has_started(app, stop, say, replace=replace) and server is not None:
            await server.start()
        yield server
    finally:
        await app.drain()
        if server is not None:
            await server.stop()
        await app.close()


def _import_framework() -> None:
    """Import the framework before the engine starts: its loops would stall for the imports, and its calls time out."""
    for name in (
        "pollux.server.gateway",
        "pollux.server.connections",
        "uvicorn.protocols.http.auto",
        "uvicorn.lifespan.off",
    ):
        import_module(name)


def _affordable(limits: ApiLimits) -> int:
    """The limit of connections, at most half of the files that this process may open: the engine needs the rest."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limits.connections if soft == resource.RLIM_INFINITY else max(2, min(limits.connections, soft // 2))
