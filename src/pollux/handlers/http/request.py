"""Requests of a poll: prepared once for each job, and the hops that redirects make of it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import aiohttp
from yarl import URL

from pollux.errors import InvalidInput
from pollux.handlers.http.addresses import AddressPolicy, literal
from pollux.handlers.http.errors import RefusedStatus
from pollux.handlers.http.options import HttpOptions, check_url, target_name
from pollux.handlers.http.target_limit import WAIT_S

REDIRECTS = frozenset({301, 302, 303, 307, 308})
MARGIN_MS = 100  # time to report what took so long before the engine cancels the poll
_SAFE_HEADERS = frozenset({"user-agent", "accept", "accept-encoding", "accept-language"})


class HttpRequest:
    """One request; a redirect makes another."""

    __slots__ = ("address", "cleared_by", "content", "headers", "key", "method", "target", "url")

    def __init__(self, url: URL, method: str, headers: dict[str, str], content: bytes | None) -> None:
        self.target = target_name(url)
        self.address = literal(url.raw_host or "")
        if self.address is not None and str(self.address) != url.raw_host:
            url = url.with_host(str(self.address))  # 2130706433 is 127.0.0.1: normalize it before resolvers see it
        self.url, self.method, self.headers, self.content = url, method, headers, content
        self.key = (url.raw_host or "", url.port or 0)
        self.cleared_by: AddressPolicy | None = None  # the policy by which its address was allowed


class PreparedPoll:
    """A poll with every decision made: the request, and what to look for in the response."""

    __slots__ = (
        "expect",
        "hop",
        "is_trusted",
        "job_ms",
        "options",
        "params",
        "recipe",
        "source",
        "timeout",
        "total_ms",
        "wait_s",
    )

    def __init__(
        self,
        params: Mapping[str, Any],
        options: HttpOptions,
        *,
        recipe: str,
        source: str,
        is_trusted: bool,
        job_ms: int,
    ) -> None:
        self.params, self.source, self.job_ms = params, source, job_ms
        self.options, self.recipe, self.is_trusted = options, recipe, is_trusted
        self.expect = options.expect.statuses
        wait_ms = min(int(WAIT_S * 1000), job_ms // 10)  # separate: waiting takes nothing of the server's time
        self.wait_s = wait_ms / 1000
        self.total_ms = min(options.timeout_ms, job_ms - wait_ms - min(MARGIN_MS, job_ms // 10))
        self.timeout = aiohttp.ClientTimeout(total=self.total_ms / 1000, connect=options.connect_ms / 1000)
        self.hop = HttpRequest(options.url, options.method, options.headers, options.content)

    def fits(self, params: Mapping[str, Any], source: str, job_ms: int) -> bool:
        """Whether it was prepared for these params, source and timeout."""
        return self.job_ms == job_ms and self.source == source and self.params == params

    def rest(self, begun: float) -> aiohttp.ClientTimeout:
        """Return the time that is left for a later hop."""
        left = self.total_ms / 1000 - (time.perf_counter() - begun)
        return aiohttp.ClientTimeout(total=max(left, 0.001), connect=self.timeout.connect)


def next_hop(hop: HttpRequest, status: int, location: str) -> HttpRequest:
    """Return the request for a redirect.  Nothing that may be a secret goes to another origin."""
    try:
        if not location:
            raise InvalidInput("it names no host")
        url = hop.url.join(URL(location))
        check_url(url)
    except ValueError:
        raise RefusedStatus(f"{hop.target} redirects to what is no URL") from None
    except InvalidInput as error:
        raise RefusedStatus(f"{hop.target} redirects to what cannot be used: {error.what}") from None
    is_same = url.origin() == hop.url.origin()
    method, content = hop.method, hop.content
    if (status == 303 and method != "HEAD") or (status in {301, 302} and method == "POST"):
        method, content = "GET", None
    if content is not None and not is_same:
        raise RefusedStatus(
            f"{hop.target} redirects a body to another origin, {target_name(url)}; it is not sent there"
        )
    dropped = {"content-type"} if content is None else set()
    headers = {
        name: value
        for name, value in hop.headers.items()
        if name.lower() not in dropped and (is_same or name.lower() in _SAFE_HEADERS)
    }
    return HttpRequest(url, method, headers, content)
