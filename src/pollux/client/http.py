"""HTTP connection to a node, with retries and error mapping.

refused, unknown host, no certificate ─▶ StoreError: the request was not sent
connection lost after sending         ─▶ a read is repeated, otherwise StoreTimeout: it may have been executed
401, another version, not Pollux      ─▶ StoreRefused
429 of the limiter                    ─▶ waits for Retry-After, up to a minute in all, and prints that
503: busy, or its store is down       ─▶ the same for a few seconds: the caller has alternatives
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import aiohttp
import msgspec
from msgspec import Struct

from pollux.client.address import NodeAddress
from pollux.client.rpc_codec import VERSION_HEADER, ErrorRecord, raised
from pollux.errors import PolluxError, StoreBusy, StoreError, StoreRefused, StoreTimeout, system_words
from pollux.version import __version__

CONNECT_S = 5.0
ANSWER_S = 120.0  # the node's own store calls have shorter deadlines
AGAIN = 2  # repetitions of a read
AGAIN_S = 0.2
WAIT_S_MAX = {429: 60.0, 503: 5.0}  # in all, for a limiter, and for a node that is busy
_T = TypeVar("_T")


class ProblemAnswer(Struct, frozen=True):
    """The fields of a problem document that are shown."""

    title: str = ""
    detail: str = ""
    cure: str = ""
    error: ErrorRecord | None = None


class HttpConnection:
    """A connection to one address with one token."""

    def __init__(self, address: NodeAddress, token: str, tell: Callable[[str], None] | None = None) -> None:
        self.address = address
        self._token, self._waited, self._tell = token, 0.0, tell
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def ask(self, method: str, path: str, body: bytes, *, again: bool) -> bytes:
        """The body of the answer, or one of our errors; `again`: the request may be repeated."""
        cuts = 0
        while True:
            try:
                status, headers, answer = await self._sent(method, path, body)
            except _ConnectionCut as cut:
                cuts += 1
                if not again or cuts > AGAIN:
                    raise self._cut_off(str(cut), again=again) from cut.__cause__
                await asyncio.sleep(AGAIN_S * cuts)
                continue
            if status == 200 and VERSION_HEADER in headers:
                return answer
            problem = self._problem(status, headers, answer)
            if problem.error is not None:
                raise raised(problem.error)
            if status not in WAIT_S_MAX or not await self._may_wait(status, headers, problem):
                raise self._refused(status, problem)

    async def lines(self, path: str) -> AsyncIterator[bytes]:
        """Yield the lines of a long answer; the request is not repeated."""
        with self._whole(), self._in_words():
            async with self._request("POST", path, b"") as response:
                if response.status != 200 or VERSION_HEADER not in response.headers:
                    problem = self._problem(response.status, response.headers, await response.read())
                    raise self._refused(response.status, problem) if problem.error is None else raised(problem.error)
                rest = b""
                async for part in response.content.iter_any():
                    *whole, rest = (rest + part).split(b"\n") if b"\n" in part else (rest + part,)
                    for line in whole:
                        yield line

    @contextmanager
    def _whole(self) -> Iterator[None]:
        try:
            yield
        except _ConnectionCut as cut:
            raise self._cut_off(str(cut), again=True) from cut.__cause__

    def cut_short(self) -> StoreError:
        return self._cut_off("the answer was cut short", again=True)

    async def _sent(self, method: str, path: str, body: bytes) -> tuple[int, Any, bytes]:
        with self._in_words():
            async with self._request(method, path, body) as response:
                return response.status, response.headers, await response.read()

    def _request(self, method: str, path: str, body: bytes) -> Any:
        session = self._session or self._opened()
        return session.request(method, f"{self.address.root}{path}", data=body or None, allow_redirects=False)

    @contextmanager
    def _in_words(self) -> Iterator[None]:
        """Map errors of aiohttp to ours; `_ConnectionCut` if the request may have arrived."""
        try:
            yield
        except aiohttp.ClientConnectorCertificateError as error:
            why = getattr(error.certificate_error, "verify_message", "") or error.certificate_error
            cure = "name the certificate of who signed it: SSL_CERT_FILE=/path/to/ca.pem"
            raise StoreError(
                f"{self.address.shown} is refused: its certificate is not trusted ({why}); {cure}"
            ) from error
        except aiohttp.ClientSSLError as error:
            plain = f"http{self.address.root.removeprefix('https')}"
            cure = f"write {plain}, or give the node a certificate (server.tls)"
            raise StoreError(f"{self.address.shown} cannot be reached: no TLS is spoken there; {cure}") from error
        except aiohttp.ClientConnectorDNSError as error:
            raise self._unreachable("unknown host") from error
        except aiohttp.ClientConnectorError as error:
            raise self._unreachable(system_words(error.os_error)) from error
        except aiohttp.ConnectionTimeoutError as error:
            raise self._unreachable(f"no answer within {CONNECT_S:.0f} s") from error
        except aiohttp.ClientPayloadError as error:
            raise _ConnectionCut("the answer was cut off") from error
        except (aiohttp.ClientResponseError, aiohttp.InvalidURL) as error:
            raise self._foreign() from error
        except TimeoutError as error:
            what = f"{self.address.shown} did not answer within {ANSWER_S:.0f} s"
            raise StoreTimeout(f"{what}: it may have done what was asked; look before you repeat it") from error
        except (aiohttp.ClientConnectionError, OSError) as error:
            raise _ConnectionCut(system_words(error)) from error

    def _opened(self) -> aiohttp.ClientSession:
        headers = {VERSION_HEADER: __version__, "Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        connector = aiohttp.UnixConnector(self.address.socket) if self.address.socket else aiohttp.TCPConnector()
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=ANSWER_S)
        self._session = aiohttp.ClientSession(
            connector=connector, timeout=timeout, headers=headers, cookie_jar=aiohttp.DummyCookieJar()
        )
        return self._session

    def read(self, how: Callable[[], _T]) -> _T:
        """The decoded answer; one of another type is not from Pollux."""
        try:
            return how()
        except msgspec.DecodeError as error:
            raise self._foreign() from error

    def _problem(self, status: int, headers: Any, body: bytes) -> ProblemAnswer:
        if headers.get("Content-Type", "").startswith("application/problem+json"):
            try:
                return msgspec.json.decode(body, type=ProblemAnswer)
            except msgspec.DecodeError:
                pass
        if status in WAIT_S_MAX or status in {502, 504}:  # of a proxy in front of it
            return ProblemAnswer("there is no answer", f"status {status}")
        raise self._foreign()

    async def _may_wait(self, status: int, headers: Any, problem: ProblemAnswer) -> bool:
        """Wait for Retry-After, and print that the first time; false if the total would be too long."""
        wait = headers.get("Retry-After", "")
        seconds = float(wait) if wait.isascii() and wait.isdigit() else 1.0
        if self._waited + max(seconds, 0.1) > WAIT_S_MAX[status]:
            return False
        if not self._waited and self._tell is not None:
            why = problem.detail or problem.title
            self._tell(f"{self.address.shown} is busy: {why}; waiting, up to {WAIT_S_MAX[status]:.0f} s")
        self._waited += max(seconds, 0.1)
        await asyncio.sleep(seconds)
        return True

    # errors

    def _unreachable(self, why: str) -> StoreError:
        cure = "see that `pollux serve` runs there, or omit --url and POLLUX_URL to use the store itself"
        return StoreError(f"{self.address.shown} cannot be reached: {why}; {cure}")

    def _cut_off(self, why: str, *, again: bool) -> StoreError:
        words = f"{self.address.shown} closed the connection before it answered ({why})"
        if again:
            tls = "" if self.address.socket or self.address.is_encrypted else ", and write https:// if it speaks TLS"
            return StoreError(f"{words}; see that `pollux serve` runs there{tls}")
        return StoreTimeout(f"{words}: it may have done what was asked; look before you repeat it")

    def _foreign(self) -> StoreRefused:
        what = f"what answers at {self.address.shown} is not Pollux, or not at the beginning of its API"
        return StoreRefused(f"{what}; look at the address: --url or POLLUX_URL")

    def _refused(self, status: int, problem: ProblemAnswer) -> PolluxError:
        words = "; ".join(part for part in (problem.detail or problem.title, problem.cure) if part)
        match status:
            case 401 if self._token:
                what = f"{self.address.shown} refuses the token (it may be revoked, expired or of another store)"
                return StoreRefused(f"{what}; make one there with `pollux token create`, give it by POLLUX_TOKEN")
            case 401:
                what = f"{self.address.shown} requires authentication, and no token was given"
                return StoreRefused(f"{what}; make one there with `pollux token create`, give it by POLLUX_TOKEN")
            case 403:
                return PolluxError(words)
            case 404 if self.address.path:
                what = f"a Pollux answers at {self.address.origin}, but nothing of it under {self.address.path}"
                return StoreRefused(f"{what}; leave the path out: --url {self.address.origin}")
            case 502 | 504:
                what = f"the proxy in front of {self.address.shown} got no answer (status {status})"
                return StoreTimeout(f"{what}: it may have done what was asked; look before you repeat it")
            case 429 | 503:
                return StoreBusy(f"{self.address.shown} is busy: {words}")
            case _:
                return StoreRefused(f"{self.address.shown}: {words}")


class _ConnectionCut(Exception):
    """The connection ended after something was sent."""
