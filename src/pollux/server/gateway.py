"""ASGI gateway in front of every route: authentication, limits and security headers.

request ─▶ Gateway: size, host, site, load, token, rate, admission ─▶ scope["state"]["identity"] ─▶ route: role ─▶ verbs

Every response passes through it too, and gets the headers that restrict what a browser may do with it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from math import ceil
from typing import TypedDict, Unpack

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from pollux.errors import StoreError
from pollux.server.hosts import Hosts, Proxies, is_foreign_page
from pollux.server.limits import ApiLimits, Failures, Rates, Refusals, address_key
from pollux.server.openapi import OPEN_PAGES
from pollux.server.problems import Problem, problem_of
from pollux.server.request_body import BodyTooLarge, RequestBody, RequestHead, ResponseSender
from pollux.server.roles import Identity
from pollux.server.tokens import TokenCheck

A_ROUND = 8  # requests; a usual one occupies the loop for a fraction of a millisecond
PRESSED_ROUND = 2  # while a run is due or being started


class AdmissionQueue:
    """Requests that wait to begin."""

    def __init__(self, a_round: int = A_ROUND, *, is_pressed: Callable[[], bool] = lambda: False) -> None:
        self._is_pressed, self._a_round = is_pressed, a_round
        self._left = a_round
        self._has_begun = False  # any request, in this iteration
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_turning = False

    async def enter(self) -> None:
        """Return at once if few requests began in this iteration, otherwise when the turn comes."""
        loop = asyncio.get_running_loop()
        if not self._is_turning:
            self._is_turning = True
            self._left = self._room()
            loop.call_soon(self._turn, loop)
        if self._left and not self._waiting:
            self._begin()
            return
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.append(turn)
        await turn

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        """Admit the next batch; stop when an iteration admitted no request."""
        self._is_turning = self._has_begun or bool(self._waiting)
        self._left, self._has_begun = self._room(), False
        while self._waiting and self._left:
            turn = self._waiting.popleft()
            if not turn.done():  # a cancelled request does not count
                turn.set_result(None)
                self._begin()
        if self._is_turning:
            loop.call_soon(self._turn, loop)

    def _begin(self) -> None:
        self._left -= 1
        self._has_begun = True

    def _room(self) -> int:
        return min(self._a_round, PRESSED_ROUND) if self._is_pressed() else self._a_round


LIVE = "/live"
OPEN = frozenset({LIVE, "/ready"}) | OPEN_PAGES  # without a token: probes, and pages that describe the API
CURE = "send a token as a Bearer in the header Authorization; for curl, `pollux token --curl` writes it into a .curlrc"
HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'; base-uri 'none'"),
)


class GatewayOptions(TypedDict, total=False):
    hosts: Hosts
    proxies: Proxies | None
    limits: ApiLimits
    clock: Callable[[], float]


class Gateway:
    """The gateway of one API."""

    def __init__(
        self,
        inside: ASGIApp,
        tokens: TokenCheck,
        refusals: Refusals,
        is_pressed: Callable[[], bool],
        **options: Unpack[GatewayOptions],
    ) -> None:
        self.inside, self.tokens, self._clock = inside, tokens, options.get("clock", time.monotonic)
        self._refusals = refusals
        self._hosts, self._proxies = options.get("hosts") or Hosts("localhost"), options.get("proxies")
        self._limits = options.get("limits") or ApiLimits()
        self._rates = Rates(self._limits.rate, self._limits.burst) if self._limits.rate else None
        rate = self._limits.anonymous_rate
        self._anonymous, self._failures = Rates(rate, 2 * rate), Failures(self._limits.failures_rate)
        self._admission = AdmissionQueue(is_pressed=is_pressed)
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
            if scope["path"] != LIVE:
                await self._admission.enter()
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
            self._believe_proxy(scope, head)
            self._check_origin(scope, head)
        if scope["path"] == LIVE:
            return
        if self.at_work >= self._limits.at_work:
            raise Problem(
                503, "server busy", f"{self.at_work} requests are in progress", cure="try again", retry_after_s=1
            )
        address = address_key(scope["client"][0]) if scope.get("client") else ""
        if scope["path"] in OPEN:
            self._spare(self._anonymous.wait_s(address, self._clock()))
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

    def _believe_proxy(self, scope: Scope, head: RequestHead) -> None:
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
            self._spare((self._failures if token else self._anonymous).wait_s(address, now))
            raise Problem(401, "authentication required", "the request has no valid token", cure=CURE)
        if self._rates is not None and identity.budget:
            self._spare(self._rates.wait_s(identity.budget, now))
        return identity

    def _spare(self, wait_s: float) -> None:
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
