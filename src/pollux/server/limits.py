"""Limits of the API: rates, sizes and times, and the counting and logging of refused requests.

Memory is bounded: only the latest clients are remembered, and a forgotten one gains no more than a short wait would
have given.  Every refusal is counted; wrong tokens and too low roles are logged, the same client once a minute and ten
lines a minute in all, so that a client cannot fill the log.  None is in the audit log, which records changes.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from ipaddress import IPv6Address, ip_address
from typing import Any

from msgspec import Struct
from starlette.types import Scope

from pollux.events import Events, RequestRefused
from pollux.log_format import safe
from pollux.observe.logs import LogThrottle
from pollux.server.auth import Identity

KEYS_MAX = 10_000
FAILURES_RATE = 5.0  # wrong tokens a second, of one address; then it has to wait
PENALTY_MAX_S = 60.0
FORGIVEN_S = 300.0  # without another wrong token
BODY_MAX = 1_000_000  # bytes, of most routes
BATCH_BODY_MAX = 10_000_000


class ApiLimits(Struct, frozen=True, kw_only=True):
    """Limits of one client, and of all together."""

    rate: float = 50.0  # requests a second of one token; 0: unlimited
    burst: float = 100.0
    anonymous_rate: float = 10.0  # requests a second without a valid token, of one address; twice as many at once
    failures_rate: float = FAILURES_RATE
    at_work: int = 256  # requests at the same time
    connections: int = 1_000
    per_address: int = 64  # connections, off the machine itself
    head_bytes: int = 16_384  # request line and headers
    head_s: float = 10.0
    body_bytes: int = BATCH_BODY_MAX  # of any route; most allow less
    body_s: float = 30.0
    body_rate: float = 1_024.0  # bytes a second at least,
    body_begin_s: float = 5.0  # after this long
    keep_alive_s: float = 75.0
    stalled_s: float = 30.0  # a client that does not read its answer
    listen_s: float = 3_600.0  # of an event stream; a client reconnects with a token that is still valid
    look_s: float = 1.0  # between two checks of all connections


class Rates:
    """Rate limiter with a burst, for each key."""

    def __init__(self, rate: float, burst: float, *, keys_max: int = KEYS_MAX) -> None:
        self._every = 1.0 / rate
        self._depth = burst * self._every
        self._keys_max = keys_max
        self._full_at: dict[str, float] = {}  # when its full burst is available again; the last used key is last

    def wait_s(self, key: str, now: float) -> float:
        """0 and the request is counted, or how long to wait."""
        full_at = max(self._full_at.pop(key, now), now) + self._every
        over = full_at - now - self._depth
        self._full_at[key] = full_at - self._every if over > 1e-9 else full_at
        if len(self._full_at) > self._keys_max:
            del self._full_at[next(iter(self._full_at))]
        return max(over, 0.0) if over > 1e-9 else 0.0

    def __len__(self) -> int:
        return len(self._full_at)


class Penalty(Struct):
    until: float = 0.0
    strikes: int = 0
    last: float = 0.0


class Failures:
    """Rate limiter of wrong tokens: a few a second, then a penalty for the address that doubles each time."""

    def __init__(self, rate: float = FAILURES_RATE, *, keys_max: int = KEYS_MAX) -> None:
        self._rates = Rates(rate, rate, keys_max=keys_max)
        self._keys_max = keys_max
        self._penalties: dict[str, Penalty] = {}

    def wait_s(self, key: str, now: float) -> float:
        """0 and the failure is counted, or how long the address has to wait."""
        penalty = self._penalties.pop(key, None) or Penalty()
        if now - penalty.last > FORGIVEN_S:
            penalty = Penalty()
        penalty.last = now
        if now >= penalty.until and self._rates.wait_s(key, now):
            penalty.until = now + min(PENALTY_MAX_S, 2.0**penalty.strikes)
            penalty.strikes = min(penalty.strikes + 1, 10)
        self._penalties[key] = penalty
        if len(self._penalties) > self._keys_max:
            del self._penalties[next(iter(self._penalties))]
        return max(penalty.until - now, 0.0)

    def __len__(self) -> int:
        return len(self._penalties)


def address_key(address: str) -> str:
    """The key of an address for rate limits: an IPv6 customer has a whole /64."""
    if ":" not in address:
        return address
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, IPv6Address) and found.ipv4_mapped is None and not found.is_loopback:
        return f"{int(found) >> 64:016x}::/64"
    return str(found)


LINES_A_MINUTE = 10
COUNTED = frozenset({401, 403, 421, 429})
PATH_CHARS_MAX = 200


class Refusals:
    """Refused requests of one gateway.  `counts`, by status, are read by the metrics."""

    def __init__(self, counts: MutableMapping[int, int], events: Events, clock: Callable[[], float]) -> None:
        self.counts, self._events, self._clock = counts, events, clock
        self._throttle, self._lines = LogThrottle(now=clock), Rates(LINES_A_MINUTE / 60, LINES_A_MINUTE)
        self._unlogged = 0

    def take(self, status: int, scope: Scope, *, has_token: bool = True) -> None:
        """Count one.  Without a token it is not logged: it is no attempt at guessing one."""
        if status not in COUNTED:
            return
        self.counts[status] = self.counts.get(status, 0) + 1
        if status in {401, 403} and has_token:
            self._log(status, scope)

    def _log(self, status: int, scope: Scope) -> None:
        identity: Identity | None = scope.get("state", {}).get("identity")
        who = _address(scope) if identity is None else identity.name
        left_out = self._throttle.left_out((status, who))
        if left_out is None:
            return
        if self._lines.wait_s("", self._clock()) > 0:
            self._unlogged += left_out + 1
            return
        more, self._unlogged = left_out + self._unlogged, 0
        self._events.emit(RequestRefused(status, safe(who), _why(status, identity, scope), more))


def _why(status: int, identity: Identity | None, scope: Scope) -> str:
    if status == 401:
        return "the token is invalid"  # without the path: it may contain a token
    if identity is None:
        return "a cross-site request"
    return f"{scope['method']} {safe(scope['path'], PATH_CHARS_MAX)} is not allowed for the role {identity.role.word}"


def _address(scope: Scope) -> str:
    client: Any = scope.get("client")
    return str(client[0]) if client else "unknown"
