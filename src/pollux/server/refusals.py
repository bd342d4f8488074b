"""Who was turned away?  All are counted; of tokens that are not good, and of roles that are not enough, the log tells.

A stranger must not be able to fill a log: the same one is told of once a minute, all of them together ten times.  None
of it is in the audit log, which holds what was changed and would lose that for what was not.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any

from starlette.types import Scope

from pollux.events import Events, RequestRefused
from pollux.lines import safe
from pollux.observe.sparing import Sparing
from pollux.server.identity import Identity
from pollux.server.limits import Rates

LINES_A_MINUTE = 10
COUNTED = frozenset({401, 403, 421, 429})
PATH_CHARS_MAX = 200


class Refusals:
    """Of one door.  `counts`, by status, are read by the metrics."""

    def __init__(self, counts: MutableMapping[int, int], events: Events, clock: Callable[[], float]) -> None:
        self.counts, self._events, self._clock = counts, events, clock
        self._sparing, self._lines = Sparing(now=clock), Rates(LINES_A_MINUTE / 60, LINES_A_MINUTE)
        self._untold = 0

    def take(self, status: int, scope: Scope, *, has_token: bool = True) -> None:
        """One more; `has_token` false: nobody claimed to be anybody, which is no attempt at anything."""
        if status not in COUNTED:
            return
        self.counts[status] = self.counts.get(status, 0) + 1
        if status in {401, 403} and has_token:
            self._tell(status, scope)

    def _tell(self, status: int, scope: Scope) -> None:
        identity: Identity | None = scope.get("state", {}).get("identity")
        who = _address(scope) if identity is None else identity.name
        left_out = self._sparing.left_out((status, who))
        if left_out is None:
            return
        if self._lines.wait_s("", self._clock()) > 0:
            self._untold += left_out + 1
            return
        more, self._untold = left_out + self._untold, 0
        self._events.emit(RequestRefused(status, safe(who), _why(status, identity, scope), more))


def _why(status: int, identity: Identity | None, scope: Scope) -> str:
    if status == 401:
        return "the token is not good"  # and no word of what was asked for: a token may stand in it
    if identity is None:
        return "a page of another site sent it"
    return f"{scope['method']} {safe(scope['path'], PATH_CHARS_MAX)} is not for the role {identity.role.word}"


def _address(scope: Scope) -> str:
    client: Any = scope.get("client")
    return str(client[0]) if client else "somebody"
