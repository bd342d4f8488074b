"""ASGI gateway in front of every route: host names and proxies, authentication, limits, security headers.

request ─▶ Gateway: size, host, site, load, token, rate ─▶ scope["state"]["identity"] ─▶ route: role ─▶ verbs

A request for an unknown host name may come from a foreign page (DNS rebinding); forwarded headers count only if they
come from a configured proxy.  A body is counted while it is received.  The rest of an unread one is drained for a
moment, so that the answer reaches a client that is still sending.
"""

from __future__ import annotations

import asyncio
import time
from base64 import b64decode
from binascii import Error
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from math import ceil
from typing import TypedDict, Unpack
from urllib.parse import urlsplit

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pollux.app import Pollux
from pollux.errors import StoreError
from pollux.server.auth import Identity, TokenCheck
from pollux.server.limits import ApiLimits, Failures, Rates, Refusals, address_key
from pollux.server.problems import Problem, problem_of
from pollux.server.routes import OPEN_PATHS, Api
from pollux.units import format_size

LIVE = "/live"
CURE = "send a token as a Bearer in the header Authorization; for curl, `pollux token --curl` writes it into a .curlrc"
HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'; base-uri 'none'"),
)
LINGER_S = 2.0
LINGER_BYTES = 4_000_000
SMALL_BYTES = 65_536  # an unread body up to this size is read, so that the connection can be reused
LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
ANY = frozenset({"0.0.0.0", "::"})  # noqa: S104  to be recognised, not to be used
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
Network = IPv4Network | IPv6Network
_READ = frozenset(  # headers that the gateway uses
    {
        *(b"host", b"authorization", b"origin", b"sec-fetch-site", b"content-length", b"transfer-encoding", b"expect"),
        *(b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host"),
    }
)
# Of repeated ones implementations use the first or the last.
_ONCE = frozenset({b"host", b"authorization", b"content-length"})


class Hosts:
    """The host names that this server accepts."""

    def __init__(self, bound: str, names: Iterable[str] = ()) -> None:
        self._is_any = bound in ANY
        self._names = LOCAL | {_bare(name) for name in names} | (set() if self._is_any else {_bare(bound)})

    def knows(self, host: str, came_in_on: str) -> bool:
        """`came_in_on`: the local address of the connection; unlike a name, an address cannot be forged."""
        name = _bare(host_of(host))
        return name in self._names or (self._is_any and name == came_in_on.lower())


class Proxies:
    """Networks of proxies whose forwarded headers are trusted."""

    def __init__(self, networks: Iterable[str]) -> None:
        self._networks: tuple[Network, ...] = tuple(ip_network(text) for text in networks)

    def has(self, address: str) -> bool:
        try:
            found = ip_address(address.partition("%")[0])
        except ValueError:
            return False
        return any(found.version == network.version and found in network for network in self._networks)

    def client_of(self, address: str, forwarded_for: str) -> str:
        """The last forwarded address that is not a trusted proxy; the ones before it can be forged."""
        for each in reversed([part.strip() for part in forwarded_for.split(",")]):
            if not _is_address(each):
                return address
            address = each
            if not self.has(each):
                return address
        return address


def host_of(authority: str) -> str:
    """The host of `host`, `host:port`, `[::1]:port`."""
    if authority.startswith("["):
        return authority[1:].partition("]")[0]
    return authority.partition(":")[0]


def is_foreign_page(method: str, host: str, *, site: str, origin: str) -> bool:
    """Did a page of another origin send it?  Decided by fetch metadata, otherwise by `Origin`."""
    if method in SAFE:
        return False
    if site:
        return site not in {"same-origin", "none"}
    if origin:
        return _authority(origin) != host.lower()
    return False  # not a browser: current ones send at least one of them


def _authority(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _bare(name: str) -> str:
    return name.lower().removesuffix(".").strip("[]")


def _is_address(text: str) -> bool:
    try:
        ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return True


class RequestHead:
    """The headers that the gateway needs, read once, and the size of all."""

    __slots__ = ("is_ambiguous", "size", "values")

    def __init__(self, scope: Scope) -> None:
        self.values: dict[bytes, str] = {}
        self.size = len(scope.get("raw_path") or b"") + len(scope.get("query_string", b""))
        self.is_ambiguous = False
        for name, value in scope["headers"]:
            self.size += len(name) + len(value) + 4
            if name in _READ:
                text = value.decode("latin-1")
                if name in self.values:
                    self.is_ambiguous = self.is_ambiguous or name in _ONCE
                    text = f"{self.values[name]}, {text}"
                self.values[name] = text
        if b"transfer-encoding" in self.values and b"content-length" in self.values:
            self.is_ambiguous = True  # request smuggling: two different ends of the body

    def __getitem__(self, name: bytes) -> str:
        return self.values.get(name, "")

    @property
    def token(self) -> str:
        """The token, sent as `Bearer` or as the password of `Basic`, as from a .netrc."""
        kind, _, rest = self[b"authorization"].partition(" ")
        match kind.lower():
            case "bearer":
                return rest.strip()
            case "basic":
                try:
                    return b64decode(rest.strip(), validate=True).decode("latin-1").partition(":")[2]
                except (Error, ValueError):
                    return ""
        return ""

    @property
    def body_length(self) -> int | None:
        """Length of the body: 0 if there is none, None if it is chunked."""
        if b"transfer-encoding" in self.values:
            return None
        length = self[b"content-length"].strip()
        return int(length) if length.isascii() and length.isdecimal() and len(length) < 19 else 0


class BodyTooLarge(Problem):
    """Raised to the reader of the body; the gateway answers with it in any case."""

    def __init__(self, limit: int) -> None:
        cure = "split it into several requests; a batch may be larger than a single job"
        super().__init__(413, "request body too large", f"the limit is {format_size(limit)}", cure=cure)


class RequestBody:
    """The body of one request, with its limit."""

    def __init__(self, receive: Receive, head: RequestHead, limit: int) -> None:
        self._receive, self.limit = receive, limit
        self.length = head.body_length
        self.is_whole = self.length == 0
        self.is_too_big = (self.length or 0) > limit
        self._waits = "100-continue" in head[b"expect"].lower()  # the client waits for `100 Continue`
        self._taken = 0

    async def receive(self) -> Message:
        if self.is_too_big:
            raise BodyTooLarge(self.limit)
        message = await self._receive()
        self._waits = False
        if message["type"] == "http.request":
            self._taken += len(message.get("body", b""))
            self.is_whole = self.is_whole or not message.get("more_body", False)
            if self._taken > self.limit:
                self.is_too_big = True
                raise BodyTooLarge(self.limit)
        return message

    async def finish(self) -> bool:
        """Before an answer begins: read a small rest, and return whether the body is complete."""
        if not self.is_whole and not self._waits and 0 < (self.length or 0) <= SMALL_BYTES:
            await self._let_run_out(SMALL_BYTES)
        return self.is_whole

    async def linger(self) -> None:
        """After an answer: drain the body for a moment, as a client that is still sending does not read."""
        if not self.is_whole and not self._waits:
            await self._let_run_out(LINGER_BYTES)

    async def _let_run_out(self, most: int) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                while not self.is_whole and most > 0:
                    message = await self._receive()
                    if message["type"] != "http.request":
                        return
                    most -= len(message.get("body", b""))
                    self.is_whole = not message.get("more_body", False)


class ResponseSender:
    """Sends the answer, with the headers of every answer, after the request was read."""

    def __init__(self, send: Send, body: RequestBody, headers: Sequence[tuple[bytes, bytes]]) -> None:
        self._send, self._body, self._headers = send, body, headers
        self.has_begun = False
        self.status = 0  # until it has begun
        self._has_to_linger = False

    async def send(self, message: Message) -> None:
        """Send a message of a route; drop it if the request body is too large."""
        if self._body.is_too_big and not self.has_begun:
            return
        if message["type"] == "http.response.start":
            await self._begin(message)
        elif self._has_to_linger and not message.get("more_body", False):
            await self._send({**message, "more_body": True})
            await self._body.linger()
            await self._send({"type": "http.response.body", "body": b""})
        else:
            await self._send(message)

    async def refuse(self, problem: Problem, scope: Scope, headers: dict[str, str]) -> None:
        """Send the problem instead of an answer of the route."""
        self._body.is_too_big = False
        await problem.response(headers)(scope, self._body.receive, self.send)

    async def _begin(self, message: Message) -> None:
        self.has_begun, self.status = True, message["status"]
        headers = list(message.get("headers", ()))
        there = {name for name, _ in headers}
        headers += [pair for pair in self._headers if pair[0] not in there]
        if not await self._body.finish():
            self._has_to_linger = True
            headers.append((b"connection", b"close"))
        await self._send({**message, "headers": headers})


class GatewayOptions(TypedDict, total=False):
    hosts: Hosts
    proxies: Proxies | None
    limits: ApiLimits
    clock: Callable[[], float]


class Gateway:
    """The gateway of one API."""

    def __init__(
        self, inside: ASGIApp, tokens: TokenCheck, refusals: Refusals, **options: Unpack[GatewayOptions]
    ) -> None:
        self.inside, self.tokens, self._clock = inside, tokens, options.get("clock", time.monotonic)
        self._refusals = refusals
        self._hosts, self._proxies = options.get("hosts") or Hosts("localhost"), options.get("proxies")
        self._limits = options.get("limits") or ApiLimits()
        self._rates = Rates(self._limits.rate, self._limits.burst) if self._limits.rate else None
        rate = self._limits.anonymous_rate
        self._anonymous, self._failures = Rates(rate, 2 * rate), Failures(self._limits.failures_rate)
        self.at_work = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise AssertionError(f"unexpected scope {scope['type']}")  # uvicorn runs with ws and lifespan off
        head = RequestHead(scope)
        body = RequestBody(receive, head, self._limits.body_bytes)
        leaving = ResponseSender(send, body, HEADERS)
        try:
            await self._admit(scope, head, body)
        except Problem as problem:
            self._refusals.take(problem.status, scope, has_token=bool(head.token) or problem.status != 401)
            await leaving.refuse(problem, scope, _headers_of(problem))
            return
        self.at_work += 1
        try:
            await self.inside(scope, body.receive, leaving.send)
        except (BodyTooLarge, ClientDisconnect):
            pass  # answered below; or the client has disconnected
        finally:
            self.at_work -= 1
        if leaving.status == 403:  # by the route: the role is too low
            self._refusals.take(403, scope)
        if body.is_too_big and not leaving.has_begun:
            await leaving.refuse(BodyTooLarge(body.limit), scope, {})

    async def _admit(self, scope: Scope, head: RequestHead, body: RequestBody) -> None:
        """Authenticate the request and set its identity, or raise a `Problem`."""
        self._check_shape(head)
        state = scope.setdefault("state", {})
        peer: Identity | None = state.get("peer")  # of the unix socket, by the credentials of the operating system
        if peer is None:
            self._apply_proxy_headers(scope, head)
            self._check_origin(scope, head)
        if scope["path"] == LIVE:
            return
        if self.at_work >= self._limits.at_work:
            raise Problem(
                503, "server busy", f"{self.at_work} requests are in progress", cure="try again", retry_after_s=1
            )
        address = address_key(scope["client"][0]) if scope.get("client") else ""
        if scope["path"] in OPEN_PATHS:
            self._limit(self._anonymous.wait_s(address, self._clock()))
            return
        state["identity"] = peer or await self._identify(head.token, address)
        if body.is_too_big:
            raise BodyTooLarge(body.limit)

    def _check_shape(self, head: RequestHead) -> None:
        if head.is_ambiguous:
            cure = "send each of these headers once, and only one of the two lengths"
            what = "Host, Authorization or Content-Length is repeated, or Transfer-Encoding contradicts Content-Length"
            raise Problem(400, "ambiguous request", what, cure=cure)
        if head.size > self._limits.head_bytes:
            most = f"request line and headers may have at most {self._limits.head_bytes} bytes"
            raise Problem(431, "request headers too large", most, cure="send fewer or shorter headers")

    def _apply_proxy_headers(self, scope: Scope, head: RequestHead) -> None:
        client = scope.get("client")
        if self._proxies is None or client is None or not self._proxies.has(client[0]):
            return
        if head[b"x-forwarded-for"]:
            scope["client"] = (self._proxies.client_of(client[0], head[b"x-forwarded-for"]), 0)
        if head[b"x-forwarded-proto"] in {"http", "https"}:
            scope["scheme"] = head[b"x-forwarded-proto"]
        if head[b"x-forwarded-host"]:
            head.values[b"host"] = head[b"x-forwarded-host"].rpartition(",")[2].strip()

    def _check_origin(self, scope: Scope, head: RequestHead) -> None:
        host, server = head[b"host"], scope.get("server")
        if not self._hosts.knows(host, server[0] if server else ""):
            raise Problem(
                421,
                "unknown host",
                f"the request is for {host[:100]!r}" if host else "the request names no host",
                cure="use localhost or 127.0.0.1, or add the name to server.hosts",
            )
        if is_foreign_page(scope["method"], host, site=head[b"sec-fetch-site"], origin=head[b"origin"]):
            cure = "send it from /api/v2/docs, or from a program"
            what = "only pages of this server may send requests that change something"
            raise Problem(403, "cross-site request refused", what, cure=cure)

    async def _identify(self, token: str, address: str) -> Identity:
        try:
            identity = await self.tokens.identify(token) if token else None
        except StoreError as error:
            raise problem_of(error) from error
        now = self._clock()
        if identity is None:
            self._limit((self._failures if token else self._anonymous).wait_s(address, now))
            raise Problem(401, "authentication required", "the request has no valid token", cure=CURE)
        if self._rates is not None and identity.budget:
            self._limit(self._rates.wait_s(identity.budget, now))
        return identity

    def _limit(self, wait_s: float) -> None:
        if wait_s > 0:
            cure = f"wait {ceil(wait_s)} s; `server.rate` is the limit of each token"
            raise Problem(429, "too many requests", "the rate limit is exceeded", cure=cure, retry_after_s=ceil(wait_s))


def _headers_of(problem: Problem) -> dict[str, str]:
    match problem.status:
        case 401:
            return {"WWW-Authenticate": "Bearer"}
        case 429 | 503:
            return {"Retry-After": str(problem.more.get("retry_after_s", 1))}
    return {}


def make_api(app: Pollux, tokens: TokenCheck, **options: Unpack[GatewayOptions]) -> ASGIApp:
    """The HTTP API of an app: all routes behind a gateway."""
    refusals = Refusals(app.watch.refused, app.events, options.get("clock", time.monotonic))
    return Gateway(Api(app, options.get("limits") or ApiLimits()), tokens, refusals, **options)
