"""Poll client: a place of the target, request, redirects, body, extraction, fingerprint; and the faults of a poll.

Two pools of connections: one for jobs that may reach internal addresses, one for those that may not, so that no job
gets a connection that was checked by another's rights.  Names are resolved once; all answers are checked, and the
connection goes to a checked address.  aiohttp is imported at the first poll, only here and in modules imported here.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
import time
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import aiohttp
import msgspec
from aiohttp.abc import AbstractResolver, ResolveResult

from pollux.errors import Permanent, PolluxError, Transient, system_words
from pollux.handlers.http.addresses import AddressPolicy, address_of, refused_name
from pollux.handlers.http.errors import (
    AnswerTimeout,
    BadAnswer,
    BodyTimeout,
    ConnectTimeout,
    DeniedAddress,
    Interrupted,
    NoSuchHost,
    Refused,
    TlsFailed,
    TooBig,
    TooManyRedirects,
    UnfitParams,
    Untrusted,
    status_fault,
)
from pollux.handlers.http.extract import Extraction, RegexWorker, dig
from pollux.handlers.http.options import HttpOptions
from pollux.handlers.http.request import REDIRECTS, HttpRequest, PreparedPoll, next_hop
from pollux.handlers.http.response import Fingerprint, digest_of, parse_fingerprint, read_body, validator_of
from pollux.handlers.http.target_limit import TargetLimit
from pollux.registry import Observed
from pollux.secrets import HIDDEN
from pollux.units import format_ms, format_size

HEADERS_BYTES_MAX = 64 * 1024
HEADER_BYTES_MAX = 8 * 1024
HEADER_LINES_MAX = 128
KEPT_BODY_MAX = 4 * 1024
KEPT_MARGIN = 16 * 1024
KEPT_VALUE_MAX = 8 * 1024
DNS_TTL_S = 10
CONTEXTS_MAX = 100
KEEP_S = 15.0  # a connection is kept if its host is polled again within this time
HOSTS_MAX = 20_000
TRACEPARENT = "traceparent"
LOOKUP_THREADS_MAX = 64  # started when they are needed
_NUMERIC = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
_NO_COOKIES_KEPT = aiohttp.DummyCookieJar


class HttpResult:
    """The response to a request whose body was read."""

    __slots__ = ("body", "charset", "headers", "hops", "status", "target")

    def __init__(self, response: aiohttp.ClientResponse, body: bytes, target: str, hops: int) -> None:
        self.status, self.headers, self.charset = response.status, response.headers, response.charset
        self.body, self.target, self.hops = body, target, hops


class Resolver(AbstractResolver):
    """Resolver in threads of its own; concurrent lookups of one name share one answer.

    The system's lookup cannot be cancelled: a name whose servers are silent keeps its thread until the system gives up.
    The event loop's own few threads would soon all be taken by dead names, and healthy targets could not be resolved.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(LOOKUP_THREADS_MAX, thread_name_prefix="pollux-names")
        self._under_way: dict[tuple[str, int, int], Future[list[tuple[Any, ...]]]] = {}

    async def resolve(self, host: str, port: int = 0, family: Any = socket.AF_UNSPEC) -> list[ResolveResult]:
        key = (host, port, int(family))
        lookup = self._under_way.get(key)
        if lookup is None:
            look = partial(socket.getaddrinfo, host, port, family, socket.SOCK_STREAM, 0, socket.AI_ADDRCONFIG)
            lookup = self._under_way[key] = self._threads.submit(look)
            forget = partial(asyncio.get_running_loop().call_soon_threadsafe, self._under_way.pop, key, None)
            lookup.add_done_callback(lambda _: _quietly(forget))
        found = await asyncio.shield(asyncio.wrap_future(lookup))
        return [_resolve_result(host, port, each) for each in found]

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


class GuardedResolver(AbstractResolver):
    """Resolver that returns addresses only if all of them may be reached."""

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
        """Refuse a request to an address that is not allowed.  Names are checked when they are resolved."""
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
        self._used_at: dict[tuple[str, int], float] = {}  # hosts and ports, the longest unused first
        self._regex_worker = RegexWorker()
        self._contexts: dict[str, ssl.SSLContext] = {}

    def set_per_target(self, per_target: int) -> None:
        """Set the number of places: new ones are free at once, surplus ones go when their polls end."""
        self._places.per_target = per_target

    async def close(self) -> None:
        pools, self._pools = self._pools, {}
        for pool in pools.values():
            await pool.session.close()
        await self._resolver.close()
        await self._regex_worker.close()

    async def poll(
        self, prepared: PreparedPoll, fingerprint: str, traceparent: str = "", *, target: str = ""
    ) -> Observed:
        """Do one poll in a place of its target; raise a fault of `errors.py`, or `Postponed` if no place is free."""
        name = target or prepared.hop.target
        place = self._places.of(name)
        await self._places.enter(place, name, timeout_s=prepared.wait_s)
        begun = time.perf_counter()
        try:
            return await self._poll(prepared, fingerprint, traceparent, begun)
        finally:
            self._places.leave(place, time.perf_counter() - begun)

    async def _poll(self, prepared: PreparedPoll, fingerprint: str, traceparent: str, begun: float) -> Observed:
        before = parse_fingerprint(fingerprint) if fingerprint else None
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
        digest = await self._digest(prepared.options, answer, result)
        mark = Fingerprint(prepared.recipe, digest, "" if answer.hops else validator_of(answer.headers))
        return Observed(result, mark.text, changed=before is None or before.digest != digest)

    def _headers(self, prepared: PreparedPoll, before: Fingerprint | None) -> dict[str, str]:
        """Return the headers of the first request; with a validator, if there is one and nothing can be lost by it."""
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
        """Send one request: return its response, or where it redirects to."""
        timeout = prepared.timeout if not hops else prepared.rest(begun)
        if not self._is_in_use(hop.key):
            # not used again in time: no idle sockets by the thousands
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
            raise fault from None  # its own message may hold the URL, and that a secret
        finally:
            if response is not None:
                response.close()  # a response that was read to its end is in the pool already
            self._mark_used(hop.key)

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

    # results

    async def _digest(self, options: HttpOptions, answer: HttpResult, result: dict[str, Any]) -> str:
        """Return the digest of what is compared; put into the result what is kept of it."""
        if options.keeps_body:
            result["body"] = kept_of(answer.body, answer.charset)
        if options.take is not None:
            value = await self._extracted(options.take, answer)
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

    async def _extracted(self, take: Extraction, answer: HttpResult) -> Any:
        if not take.pattern:
            return dig(answer.body, take, answer.target)
        return await self._regex_worker.search(take.pattern, text_of(answer.body, answer.charset), answer.target)

    # shared state

    def _is_in_use(self, host: tuple[str, int]) -> bool:
        """Whether a connection to it will be used again in time."""
        used_at = self._used_at.get(host)
        return used_at is not None and time.perf_counter() - used_at < KEEP_S

    def _mark_used(self, host: tuple[str, int]) -> None:
        self._used_at.pop(host, None)
        if len(self._used_at) >= HOSTS_MAX:
            del self._used_at[next(iter(self._used_at))]
        self._used_at[host] = time.perf_counter()

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
    """Return the beginning of the body; secrets are hidden before the cut: half a secret is one, too."""
    text: str = HIDDEN.hide_in(text_of(body[: KEPT_BODY_MAX + KEPT_MARGIN], charset))
    return text[:KEPT_BODY_MAX]


def text_of(body: bytes, charset: str | None) -> str:
    """Decode the body; undecodable bytes become replacement characters.  Only charsets of texts are accepted."""
    name = (charset or "utf-8").lower()
    try:
        return body.decode(name if name.startswith(_CHARSETS) else "utf-8", "replace")
    except (LookupError, ValueError):
        return body.decode("utf-8", "replace")


def _resolve_result(host: str, port: int, found: tuple[Any, ...]) -> ResolveResult:
    family, _, proto, _, address = found
    scope = f"%{address[3]}" if family == socket.AF_INET6 and len(address) > 3 and address[3] else ""
    return ResolveResult(
        hostname=host, host=f"{address[0]}{scope}", port=port, family=family, proto=proto, flags=_NUMERIC
    )


def _quietly(forget: Any) -> None:
    try:
        forget()
    except RuntimeError:  # that loop is closed
        return


_CERTIFICATE = {  # numbers of OpenSSL
    9: "it is not valid yet",
    10: "it has expired",
    18: "it is self-signed",
    19: "its chain ends in a certificate that is not trusted",
    20: "its issuer is not trusted",
    21: "its issuer is not trusted",
    62: "it is of another name",
    64: "it is of another address",
}


def fault_of(error: Exception, prepared: PreparedPoll, hop: HttpRequest, *, is_begun: bool) -> Exception | None:
    """Return the fault for an exception of a poll; None for an exception that is not about the poll."""
    if isinstance(error, PolluxError):
        return error
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return ConnectTimeout(f"no connection to {hop.target} within {format_ms(prepared.options.connect_ms)}")
    if isinstance(error, asyncio.TimeoutError):
        within = format_ms(prepared.total_ms)
        if is_begun:
            return BodyTimeout(f"the answer of {hop.target} did not end within {within}")
        return AnswerTimeout(f"{hop.target} did not answer within {within}")
    return _connecting(error, hop.target) or _answering(error, hop.target)


def _connecting(error: Exception, target: str) -> Exception | None:
    match error:
        case aiohttp.ClientConnectorCertificateError():
            return Untrusted(f"the certificate of {target} is not trusted: {_certificate_words(error)}")
        case aiohttp.ClientConnectorSSLError() | ssl.SSLError():
            return TlsFailed(f"no secure connection to {target}: {_tls_words(error)}")
        case aiohttp.ClientConnectorDNSError():
            words = error.os_error.strerror or error.os_error
            return NoSuchHost(f"the name of {target} could not be resolved: {words}")
        case aiohttp.ClientConnectorError():
            return Refused(f"no connection to {target}: {_system_words(error.os_error)}")
    return None


def _answering(error: Exception, target: str) -> Exception | None:
    match error:
        case aiohttp.ClientResponseError():
            return _bad_answer(error, target)
        case aiohttp.ClientPayloadError():
            return Interrupted(f"the answer of {target} is broken: {_payload_words(error)}")
        case aiohttp.ClientConnectionError() | ConnectionError():
            return Interrupted(f"{target} ended the connection before its answer was complete")
        case aiohttp.InvalidURL():
            return Permanent(f"{target} cannot be asked: the URL is no good")
        case aiohttp.ClientError() | OSError():
            return Transient(f"{target}: {type(error).__name__}")
    return None


def _bad_answer(error: aiohttp.ClientResponseError, target: str) -> Exception:
    words = error.message.lower()
    if "got more than" in words or "too long" in words or "too large" in words or "too many" in words:
        return TooBig(f"{target} sent headers that are too big or too many")
    return BadAnswer(f"{target} answered something that is not HTTP")


def _payload_words(error: aiohttp.ClientPayloadError) -> str:
    words = str(error)
    if "TransferEncoding" in words or "chunk" in words.lower():
        return "its chunks are invalid or end too early"
    return "it is shorter than announced" if "ContentLength" in words else "it ended too early"


def _certificate_words(error: aiohttp.ClientConnectorCertificateError) -> str:
    reason = error.certificate_error
    if isinstance(reason, ssl.SSLCertVerificationError):
        return _CERTIFICATE.get(reason.verify_code, reason.verify_message)
    return type(reason).__name__


def _tls_words(error: BaseException) -> str:
    inner = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    reason = getattr(inner, "reason", None)
    if reason == "WRONG_VERSION_NUMBER":
        return "it does not speak TLS on this port"
    return str(reason).replace("_", " ").lower() if reason else "the handshake did not end well"


def _system_words(error: OSError) -> str:
    """Return the error of the last address that was tried."""
    if isinstance(error, ConnectionRefusedError):
        return "refused"
    if error.errno in {errno.EMFILE, errno.ENFILE}:
        return "this process has too many open files; raise `ulimit -n`"
    return system_words(error)
