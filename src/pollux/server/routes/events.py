"""Route of this node's events as server-sent events, with resume."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pollux.app import Pollux
from pollux.errors import InvalidInput, did_you_mean
from pollux.server.event_buffer import KINDS, PER_RUN, BufferedEvent, EventBuffer, job_of, plain
from pollux.server.limits import ApiLimits
from pollux.server.problems import Problem
from pollux.server.roles import Role
from pollux.server.routing import RequestContext, Routes
from pollux.server.schemas.jobs import moment
from pollux.server.schemas.runs import Text, given

CLIENTS_MAX = 100
BEAT_S = 15.0
SEND_S = 10.0  # a client that takes nothing for so long is let go
GATHER_S = 0.05  # events of so long go out together
BATCH = 500
STREAM = "text/event-stream"

routes = Routes("events")


_KINDS = "|".join(sorted(KINDS))
Kinds = Annotated[
    str,
    Meta(
        max_length=500,
        description="only these, like run_settled,run_failed",
        extra_json_schema={"pattern": f"^({_KINDS})(,({_KINDS}))*$"},  # an unknown one is told in words
    ),
]
SECONDS_MAX = 3_600


class EventsQuery(Struct, frozen=True, forbid_unknown_fields=True):
    job_id: Annotated[Text, Meta(description="only events of this job")] | UnsetType = UNSET
    kind: Kinds | UnsetType = UNSET
    seconds: (
        Annotated[int, Meta(ge=1, le=SECONDS_MAX, description="end after this time; default: an hour")] | UnsetType
    ) = UNSET


@routes.get("/api/v2/events", Role.VIEWER, answer=str, kind=STREAM)
async def stream(desk: RequestContext, query: EventsQuery) -> Response:
    """Stream the events of this node.

    Each has an id `<node>-<number>`; a client that reconnects with `Last-Event-ID` gets the events since then, and an
    event `missed` if some were dropped.  The stream ends after `seconds`, or after an hour; reconnect, as browsers do.
    """
    kinds = _kinds(given(query.kind))
    ring = ring_of(desk.app, desk.request)
    if ring.listeners >= CLIENTS_MAX:
        raise Problem(503, "too many event clients", f"{CLIENTS_MAX} clients are connected", cure="close some of them")
    if desk.request.method == "HEAD":
        return Response(media_type=STREAM)
    limits: ApiLimits = desk.request.app.state.limits
    seconds = min(given(query.seconds) or SECONDS_MAX, limits.listen_s)
    last = desk.request.headers.get("last-event-id", "")
    return EventStream(ring, desk.app.node_id, last, given(query.job_id), kinds, seconds)


def ring_of(app: Pollux, request: Request) -> EventBuffer:
    """The one ring of this API, made when somebody first listens."""
    state = request.app.state
    if getattr(state, "ring", None) is None or state.ring.is_closed:
        state.ring = EventBuffer(app.events, app.clock)
    ring: EventBuffer = state.ring
    return ring


def _kinds(text: str | None) -> frozenset[str] | None:
    if text is None:
        return None
    words = [word.strip() for word in text.split(",")]
    for word in words:
        if word not in KINDS:
            cure = did_you_mean(word[:60], KINDS).strip("; ") or f"known are {', '.join(sorted(KINDS))}"
            raise InvalidInput(f"{word[:60]!r} is not a kind of event", where="kind", cure=cure)
    return frozenset(words)


class EventStream(Response):
    """One listener."""

    media_type = STREAM

    def __init__(
        self,
        ring: EventBuffer,
        node: str,
        last: str,
        job_id: str | None,
        kinds: frozenset[str] | None,
        seconds: float = SECONDS_MAX,
    ) -> None:
        super().__init__()
        del self.headers["content-length"]
        self.headers["cache-control"] = "no-store"
        self.headers["x-accel-buffering"] = "no"
        self._ring, self._node, self._last, self._job_id, self._kinds = ring, node, last, job_id, kinds
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  Starlette's
        self._ring.join()
        listening = asyncio.ensure_future(_gone(receive))
        telling = asyncio.ensure_future(self._tell(send))
        try:
            await asyncio.wait((listening, telling), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._ring.part()
            for each in (listening, telling):
                each.cancel()
            await asyncio.gather(listening, telling, return_exceptions=True)

    async def _tell(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for part in self._parts():
            async with asyncio.timeout(SEND_S):
                await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def _parts(self) -> AsyncIterator[bytes]:
        ring, until = self._ring, time.monotonic() + self._seconds
        at, missed = self._begin()
        yield b"retry: 2000\n\n" + missed
        while not ring.is_closed and (left := until - time.monotonic()) > 0:
            if at + 1 < ring.first:
                yield self._missed(ring.first - at - 1, "the client read too slowly")
                at = ring.first - 1
            told = ring.after(at, BATCH)
            if told:
                at = told[-1].number
                if part := b"".join(self._line(each) for each in told if self._fits(each)):
                    yield part
                continue
            await ring.wait(at, min(BEAT_S, left))
            if ring.last == at:
                yield b": still here\n\n"
            else:
                await asyncio.sleep(GATHER_S)

    def _begin(self) -> tuple[int, bytes]:
        """Where to go on, and what to say about what is gone."""
        ring = self._ring
        if not self._last:
            return ring.last, b""
        node, _, number = self._last.rpartition("-")
        if node != self._node or not (number.isascii() and number.isdecimal()) or int(number[:18]) > ring.last:
            return ring.last, self._missed(None, "the id is of another node, or of this one before a restart")
        at = int(number)
        if at < ring.runs_since and (self._kinds is None or self._kinds & PER_RUN):
            return at, self._missed(None, "events of runs are not recorded while no client is connected")
        return at, b""

    def _fits(self, told: BufferedEvent) -> bool:
        if self._kinds is not None and told.kind not in self._kinds:
            return False
        return self._job_id is None or job_of(told.event) == self._job_id

    def _line(self, told: BufferedEvent) -> bytes:
        data: dict[str, Any] = {"at": moment(told.at_ms), **plain(told.event)}
        head = f"id: {self._node}-{told.number}\nevent: {told.kind}\ndata: "
        return head.encode() + msgspec.json.encode(data) + b"\n\n"

    def _missed(self, count: int | None, why: str) -> bytes:
        return b"event: missed\ndata: " + msgspec.json.encode({"count": count, "why": why}) + b"\n\n"


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
