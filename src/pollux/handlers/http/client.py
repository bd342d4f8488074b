"""How is one poll done?  Prepared once for each job, then: a place, request, redirects, body, what was taken, its mark.

Two pools of connections: one for jobs that may talk to inside addresses, one for those that may not, so that nobody
gets a connection that was judged by another's rights.  Names are resolved once; all answers are judged, and the
connection goes to what was judged.  aiohttp is imported here and beside, at the first poll, by nobody else.
"""

from __future__ import annotations

import ssl
import time
from typing import Any

import aiohttp
import msgspec
from aiohttp.abc import AbstractResolver, ResolveResult

from pollux.handlers.http.addresses import AddressPolicy, address_of, refused_name
from pollux.handlers.http.body import read_body
from pollux.handlers.http.classify import fault_of
from pollux.handlers.http.errors import DeniedAddress, TooBig, TooManyRedirects, UnfitParams, status_fault
from pollux.handlers.http.extract import Extraction, dig
from pollux.handlers.http.fingerprint import Fingerprint, digest_of, read_mark, validator_of
from pollux.handlers.http.options import HttpOptions
from pollux.handlers.http.regex_worker import RegexWorker
from pollux.handlers.http.request import REDIRECTS, HttpRequest, PreparedPoll, next_hop
from pollux.handlers.http.resolver import Resolver
from pollux.handlers.http.target_limit import TargetLimit
from pollux.registry import Observed
from pollux.secrets import HIDDEN
from pollux.units import format_size

HEADERS_BYTES_MAX = 64 * 1024
HEADER_BYTES_MAX = 8 * 1024
HEADER_LINES_MAX = 128
KEPT_BODY_MAX = 4 * 1024
KEPT_MARGIN = 16 * 1024
KEPT_VALUE_MAX = 8 * 1024
DNS_TTL_S = 10
CONTEXTS_MAX = 100
KEEP_S = 15.0  # a connection is worth keeping if its host is asked again within this time
HOSTS_MAX = 20_000
TRACEPARENT = "traceparent"
_NO_COOKIES_KEPT = aiohttp.DummyCookieJar


class HttpResult:
    """What came of a request whose body was read."""

    __slots__ = ("body", "charset", "headers", "hops", "status", "target")

    def __init__(self, response: aiohttp.ClientResponse, body: bytes, target: str, hops: int) -> None:
        self.status, self.headers, self.charset = response.status, response.headers, response.charset
        self.body, self.target, self.hops = body, target, hops


class GuardedResolver(AbstractResolver):
    """Resolves a name, and answers only if all of its addresses may be reached."""

    def __init__(self, policy: AddressPolicy, inner: AbstractResolver) -> None:
        self._policy, self._inner = policy, inner

    async def resolve(self, host: str, port: int = 0, family: Any = 0) -> list[ResolveResult]:
        found = await self._inner.resolve(host, port, family)
        for each in found:
            refusal = self._policy.refusal(address_of(each["host"]))
            if refusal:
                raise DeniedAddress(f"{host}: {refusal}")
        return found

    async def close(self) -> None:
        await self._inner.close()


class HttpConnections:
    """The connections that jobs with the same rights share."""

    def __init__(self, policy: AddressPolicy, resolver: AbstractResolver) -> None:
        self.policy = policy
        connector = aiohttp.TCPConnector(
            resolver=GuardedResolver(policy, resolver), limit=0, ttl_dns_cache=DNS_TTL_S, enable_cleanup_closed=False
        )
        self.session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=_NO_COOKIES_KEPT(),
            auto_decompress=False,
            trust_env=False,
            max_line_size=HEADER_BYTES_MAX,
            max_field_size=HEADER_BYTES_MAX,
            max_headers=HEADER_LINES_MAX,
        )

    def check(self, hop: HttpRequest) -> None:
        """May it go there?  Names are judged when they are resolved."""
        if hop.cleared_by is self.policy:
            return
        refusal = refused_name(hop.key[0]) if hop.address is None else self.policy.refusal(hop.address)
        if refusal:
            raise DeniedAddress(refusal)
        hop.cleared_by = self.policy


class HttpClient:
    """All polls of a process."""

    def __init__(
        self,
        inside: AddressPolicy,
        outside: AddressPolicy,
        *,
        per_target: int,
        resolver: AbstractResolver | None = None,
    ):
        self._policies = {True: inside, False: outside}
        self._pools: dict[bool, HttpConnections] = {}
        self._resolver = resolver or Resolver()
        self._places = TargetLimit(per_target=per_target)
        self._asked_at: dict[tuple[str, int], float] = {}  # hosts and ports, the longest unasked first
        self._matcher = RegexWorker()
        self._contexts: dict[str, ssl.SSLContext] = {}

    def set_per_target(self, per_target: int) -> None:
        """More are let in as others leave; fewer as soon as those have left who are too many."""
        self._places.per_target = per_target

    async def close(self) -> None:
        pools, self._pools = self._pools, {}
        for pool in pools.values():
            await pool.session.close()
        await self._resolver.close()
        await self._matcher.close()

    async def poll(
        self, prepared: PreparedPoll, fingerprint: str, traceparent: str = "", *, target: str = ""
    ) -> Observed:
        """One poll in a place of its target; raises a fault of `faults.py`, or `Postponed` if no place became free."""
        name = target or prepared.hop.target
        place = self._places.of(name)
        await self._places.enter(place, name, patience_s=prepared.patience_s)
        begun = time.perf_counter()
        try:
            return await self._poll(prepared, fingerprint, traceparent, begun)
        finally:
            self._places.leave(place, time.perf_counter() - begun)

    async def _poll(self, prepared: PreparedPoll, fingerprint: str, traceparent: str, begun: float) -> Observed:
        before = read_mark(fingerprint) if fingerprint else None
        if before is not None and before.recipe != prepared.recipe:
            before = None
        headers = self._headers(prepared, before)
        if traceparent and not any(own.lower() == TRACEPARENT for own in headers):
            headers = {**headers, TRACEPARENT: traceparent}
        answer = await self._follow(prepared, headers, begun)
        if answer.status not in prepared.expect:
            words, later = prepared.options.expect.words, answer.headers.get("Retry-After")
            raise status_fault(answer.status, answer.target, words, later)
        result: dict[str, Any] = {"status": answer.status, "ms": round((time.perf_counter() - begun) * 1000, 1)}
        if answer.hops:
            result["redirects"] = answer.hops
        if answer.status == 304 and before is not None:
            return Observed(result, before.text, changed=False)
        result["bytes"] = len(answer.body)
        digest = await self._compared(prepared.options, answer, result)
        mark = Fingerprint(prepared.recipe, digest, "" if answer.hops else validator_of(answer.headers))
        return Observed(result, mark.text, changed=before is None or before.digest != digest)

    def _headers(self, prepared: PreparedPoll, before: Fingerprint | None) -> dict[str, str]:
        """What is sent first; with a validator, if there is one and nothing can be lost by it."""
        hop, headers = prepared.hop, prepared.hop.headers
        if before is None or not before.validator or not prepared.options.is_conditional:
            return headers
        if hop.method in {"GET", "HEAD"} and 304 in prepared.expect:
            name, value = before.header()
            if not any(own.lower() == name.lower() for own in headers):
                return {**headers, name: value}
        return headers

    # requests

    async def _follow(self, prepared: PreparedPoll, headers: dict[str, str], begun: float) -> HttpResult:
        pool, hop, hops = self._pool(is_trusted=prepared.is_trusted), prepared.hop, 0
        while True:
            pool.check(hop)
            answer = await self._ask(pool, prepared, hop, headers, begun, hops)
            if isinstance(answer, HttpResult):
                return answer
            hop, headers, hops = answer, answer.headers, hops + 1
            if hops > prepared.options.redirects:
                raise TooManyRedirects(f"{prepared.hop.target} redirects more than {prepared.options.redirects} times")

    async def _ask(
        self,
        pool: HttpConnections,
        prepared: PreparedPoll,
        hop: HttpRequest,
        headers: dict[str, str],
        begun: float,
        hops: int,
    ) -> HttpResult | HttpRequest:
        """One request: the answer, or where it redirects to."""
        timeout = prepared.timeout if not hops else prepared.rest(begun)
        if not self._is_asked_often(hop.key):
            # nobody will use it again in time: no idle sockets by the thousands
            headers = {**headers, "Connection": "close"}
        response: aiohttp.ClientResponse | None = None
        try:
            response = await pool.session.request(
                hop.method,
                hop.url,
                headers=headers,
                data=hop.content,
                timeout=timeout,
                ssl=self._tls(prepared.options),
                allow_redirects=False,
            )
            return await self._read(response, prepared, hop, hops)
        except Exception as error:
            fault = fault_of(error, prepared, hop, is_begun=response is not None)
            if fault is None or fault is error:
                raise
            raise fault from None  # its own words may hold the URL, and that a secret
        finally:
            if response is not None:
                response.close()  # what was read to its end is in the pool already
            self._was_asked(hop.key)

    async def _read(
        self, response: aiohttp.ClientResponse, prepared: PreparedPoll, hop: HttpRequest, hops: int
    ) -> HttpResult | HttpRequest:
        options, status = prepared.options, response.status
        if len(response.raw_headers) > HEADERS_BYTES_MAX // HEADER_BYTES_MAX:
            _check_headers(response, hop.target)
        if status in REDIRECTS and options.redirects and status not in prepared.expect:
            return next_hop(hop, status, response.headers.get("Location", ""))
        if hop.method == "HEAD" or status in {204, 304}:
            return HttpResult(response, b"", hop.target, hops)
        body = await read_body(
            response.content,
            encoding=response.headers.get("Content-Encoding", ""),
            announced=response.headers.get("Content-Length"),
            size_max=options.size_max,
            target=hop.target,
        )
        return HttpResult(response, body, hop.target, hops)

    # what was seen

    async def _compared(self, options: HttpOptions, answer: HttpResult, result: dict[str, Any]) -> str:
        """The digest of what is compared; puts into the result what is kept of it."""
        if options.keeps_body:
            result["body"] = kept_of(answer.body, answer.charset)
        if options.take is not None:
            value = await self._taken(options.take, answer)
            encoded = msgspec.json.encode(value, order="deterministic")
            if len(encoded) <= KEPT_VALUE_MAX:
                result["value"] = value
            else:
                result["value_size"] = format_size(len(encoded))
            return digest_of(b"value", encoded)
        if options.method == "HEAD":
            names = ("ETag", "Last-Modified", "Content-Length")
            return digest_of(b"head", *(answer.headers.get(name, "").encode("utf-8", "replace") for name in names))
        return digest_of(b"body", str(answer.status).encode(), answer.body)

    async def _taken(self, take: Extraction, answer: HttpResult) -> Any:
        if not take.pattern:
            return dig(answer.body, take, answer.target)
        return await self._matcher.search(take.pattern, text_of(answer.body, answer.charset), answer.target)

    # what is shared

    def _is_asked_often(self, host: tuple[str, int]) -> bool:
        """Will a connection to it be used again in time?"""
        asked_at = self._asked_at.get(host)
        return asked_at is not None and time.perf_counter() - asked_at < KEEP_S

    def _was_asked(self, host: tuple[str, int]) -> None:
        self._asked_at.pop(host, None)
        if len(self._asked_at) >= HOSTS_MAX:
            del self._asked_at[next(iter(self._asked_at))]
        self._asked_at[host] = time.perf_counter()

    def _pool(self, *, is_trusted: bool) -> HttpConnections:
        pool = self._pools.get(is_trusted)
        if pool is None:
            pool = self._pools[is_trusted] = HttpConnections(self._policies[is_trusted], self._resolver)
        return pool

    def _tls(self, options: HttpOptions) -> bool | ssl.SSLContext:
        return self._context(options.ca) if options.ca and options.verify else options.verify

    def _context(self, path: str) -> ssl.SSLContext:
        context = self._contexts.get(path)
        if context is None:
            try:
                context = ssl.create_default_context(cafile=path)
            except (OSError, ValueError) as error:
                raise UnfitParams(
                    f"ca: the file cannot be used: {getattr(error, 'strerror', None) or error}"
                ) from error
            if len(self._contexts) >= CONTEXTS_MAX:
                self._contexts.clear()
            self._contexts[path] = context
        return context


def _check_headers(response: aiohttp.ClientResponse, target: str) -> None:
    if sum(len(name) + len(value) for name, value in response.raw_headers) > HEADERS_BYTES_MAX:
        raise TooBig(f"{target} sent more than {format_size(HEADERS_BYTES_MAX)} of headers")


_CHARSETS = ("utf", "us-ascii", "ascii", "iso-8859", "iso8859", "latin", "windows-125", "cp125", "koi8", "gb", "big5",
             "shift_jis", "euc")  # fmt: skip


def kept_of(body: bytes, charset: str | None) -> str:
    """The beginning of the body; secrets are hidden before it is cut: half a secret is one, too."""
    text: str = HIDDEN.hide_in(text_of(body[: KEPT_BODY_MAX + KEPT_MARGIN], charset))
    return text[:KEPT_BODY_MAX]


def text_of(body: bytes, charset: str | None) -> str:
    """The body as text; what cannot be read becomes a mark of its own.  Only charsets of texts are believed."""
    name = (charset or "utf-8").lower()
    try:
        return body.decode(name if name.startswith(_CHARSETS) else "utf-8", "replace")
    except (LookupError, ValueError):
        return body.decode("utf-8", "replace")
