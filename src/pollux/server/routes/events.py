"""Server-sent events of this node, with resume: their ring buffer, read by any number of clients at their own pace.

A slow client costs no memory: it has only a position in the buffer, and gets the number of events that it missed.
Events of single runs are recorded only while a client is connected and two minutes longer, so that a client that
reconnects with its last event id misses nothing.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pollux import events
from pollux.clock import Clock
from pollux.errors import InvalidInput, did_you_mean
from pollux.events import Event, Events
from pollux.secrets import HIDDEN, hide
from pollux.server.auth import Role
from pollux.server.problems import Problem
from pollux.server.routing import RequestContext, Routes
from pollux.server.schemas.jobs import moment
from pollux.server.schemas.runs import Text, or_none
from pollux.units import MINUTE_MS

KEPT_MAX = 10_000
LINGER_MS = 2 * MINUTE_MS
_PER_RUN = ("RunStarted", "RunSettled", "RunFired", "RunReleased", "RunStopped", "RunHeld", "RunFailed")
_WORD = re.compile(r"(?<!^)(?=[A-Z])")
CLIENTS_MAX = 100
BEAT_S = 15.0
SEND_S = 10.0  # a client that reads nothing for so long is disconnected
GATHER_S = 0.05  # events of so long go out together
BATCH = 500
STREAM = "text/event-stream"


class BufferedEvent(NamedTuple):
    number: int
    kind: str
    at_ms: int
    event: Event


def _kinds() -> dict[str, type[Event]]:
    found = {}
    for value in vars(events).values():
        if isinstance(value, type) and issubclass(value, Event) and value is not Event:
            found[_WORD.sub("_", value.__name__).lower()] = value
    return found


KINDS = _kinds()  # run_started -> RunStarted
PER_RUN = frozenset(word for word, kind in KINDS.items() if kind.__name__ in _PER_RUN)


class EventBuffer:
    """The latest events of one node, numbered from 1."""

    def __init__(self, bus: Events, clock: Clock) -> None:
        self._bus, self._clock = bus, clock
        self._kept: deque[BufferedEvent] = deque(maxlen=KEPT_MAX)
        self._leave: list[Callable[[], None]] = []  # unsubscribe from the events of runs
        self._waiting: set[asyncio.Event] = set()
        self._ending: asyncio.TimerHandle | None = None
        self.last = 0
        self.runs_since = 0  # events of runs are complete after this number
        self.listeners = 0
        self.is_closed = False
        for word, kind in KINDS.items():
            if word not in PER_RUN:
                bus.listen(kind, lambda event, word=word: self._take(word, event))  # type: ignore[misc]
        bus.listen(events.NodeStopped, lambda _: self.close())

    @property
    def first(self) -> int:
        return self._kept[0].number if self._kept else self.last + 1

    def join(self) -> None:
        """Count one more client, and record the events of runs."""
        self.listeners += 1
        if self._ending is not None:
            self._ending.cancel()
            self._ending = None
        if not self._leave:
            self.runs_since = self.last
            for word in sorted(PER_RUN):
                taken = self._bus.listen(KINDS[word], lambda event, word=word: self._take(word, event))  # type: ignore[misc]
                self._leave.append(taken)

    def part(self) -> None:
        self.listeners -= 1
        if not self.listeners and self._leave and not self.is_closed:
            self._ending = asyncio.get_running_loop().call_later(LINGER_MS / 1000, self._rest)

    def _rest(self) -> None:
        leave, self._leave, self._ending = self._leave, [], None
        for each in leave:
            each()

    def close(self) -> None:
        """End all streams, as the node ends."""
        self.is_closed = True
        if self._ending is not None:
            self._ending.cancel()
        self._rest()
        self._wake()

    def after(self, number: int, limit: int) -> list[BufferedEvent]:
        """The events after that number, as far as they are kept."""
        skip = max(0, number + 1 - self.first)
        kept = self._kept
        return [kept[place] for place in range(skip, min(len(kept), skip + limit))]

    async def wait(self, number: int, seconds: float) -> None:
        """Wait until there is an event after that number, or the time is over."""
        if self.last > number or self.is_closed:
            return
        waiter = asyncio.Event()
        self._waiting.add(waiter)
        try:
            async with asyncio.timeout(seconds):
                await waiter.wait()
        except TimeoutError:
            pass
        finally:
            self._waiting.discard(waiter)

    def _take(self, word: str, event: Event) -> None:
        self.last += 1
        self._kept.append(BufferedEvent(self.last, word, self._clock.now_ms(), event))
        if self._waiting:
            self._wake()

    def _wake(self) -> None:
        for waiter in self._waiting:
            waiter.set()


def job_of(event: Event) -> str:
    return str(getattr(event, "job_id", ""))


def plain(event: Event) -> dict[str, Any]:
    """The fields of an event, without secrets."""
    return {name: _shown(getattr(event, name)) for name in event.__struct_fields__}


def _shown(value: Any) -> Any:
    if isinstance(value, BaseException):
        return hide(f"{type(value).__name__}: {value}")
    if isinstance(value, str):
        return hide(value)
    if value is None or isinstance(value, int | float | bool):
        return value
    if isinstance(value, tuple | list):
        return [_shown(each) for each in value]
    return HIDDEN.hide_in(str(value))


routes = Routes("events")


_KINDS = "|".join(sorted(KINDS))
Kinds = Annotated[
    str,
    Meta(
        max_length=500,
        description="only these, like run_settled,run_failed",
        extra_json_schema={"pattern": f"^({_KINDS})(,({_KINDS}))*$"},  # the route names an unknown one
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
async def stream(context: RequestContext, query: EventsQuery) -> Response:
    """Stream the events of this node.

    Each has an id `<node>-<number>`; a client that reconnects with `Last-Event-ID` gets the events since then, and an
    event `missed` if some were dropped.  The stream ends after `seconds`, or after an hour; reconnect, as browsers do.
    """
    kinds = _chosen(or_none(query.kind))
    buffer = _buffer_of(context)
    if buffer.listeners >= CLIENTS_MAX:
        raise Problem(503, "too many event clients", f"{CLIENTS_MAX} clients are connected", cure="close some of them")
    if context.request.method == "HEAD":
        return Response(media_type=STREAM)
    seconds = min(or_none(query.seconds) or SECONDS_MAX, context.request.app.limits.listen_s)
    last = context.request.headers.get("last-event-id", "")
    return EventStream(buffer, context.app.node_id, last, or_none(query.job_id), kinds, seconds)


def _buffer_of(context: RequestContext) -> EventBuffer:
    """The buffer of this API, made for the first client."""
    api, app = context.request.app, context.app
    if api.events is None or api.events.is_closed:
        api.events = EventBuffer(app.events, app.clock)
    buffer: EventBuffer = api.events
    return buffer


def _chosen(text: str | None) -> frozenset[str] | None:
    if text is None:
        return None
    words = [word.strip() for word in text.split(",")]
    for word in words:
        if word not in KINDS:
            cure = did_you_mean(word[:60], KINDS).strip("; ") or f"known are {', '.join(sorted(KINDS))}"
            raise InvalidInput(f"{word[:60]!r} is not a kind of event", where="kind", cure=cure)
    return frozenset(words)


class EventStream(Response):
    """The answer to one client."""

    media_type = STREAM

    def __init__(
        self,
        buffer: EventBuffer,
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
        self._buffer, self._node, self._last, self._job_id, self._kinds = buffer, node, last, job_id, kinds
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  Starlette's
        self._buffer.join()
        disconnected = asyncio.ensure_future(_gone(receive))
        sending = asyncio.ensure_future(self._send_parts(send))
        try:
            await asyncio.wait((disconnected, sending), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._buffer.part()
            for each in (disconnected, sending):
                each.cancel()
            await asyncio.gather(disconnected, sending, return_exceptions=True)

    async def _send_parts(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for part in self._parts():
            async with asyncio.timeout(SEND_S):
                await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def _parts(self) -> AsyncIterator[bytes]:
        buffer, until = self._buffer, time.monotonic() + self._seconds
        at, missed = self._begin()
        yield b"retry: 2000\n\n" + missed
        while not buffer.is_closed and (left := until - time.monotonic()) > 0:
            if at + 1 < buffer.first:
                yield self._missed(buffer.first - at - 1, "the client read too slowly")
                at = buffer.first - 1
            found = buffer.after(at, BATCH)
            if found:
                at = found[-1].number
                if part := b"".join(self._line(each) for each in found if self._fits(each)):
                    yield part
                continue
            await buffer.wait(at, min(BEAT_S, left))
            if buffer.last == at:
                yield b": still here\n\n"
            else:
                await asyncio.sleep(GATHER_S)

    def _begin(self) -> tuple[int, bytes]:
        """The number to continue after, and a message about events that are lost."""
        buffer = self._buffer
        if not self._last:
            return buffer.last, b""
        node, _, number = self._last.rpartition("-")
        if node != self._node or not (number.isascii() and number.isdecimal()) or int(number[:18]) > buffer.last:
            return buffer.last, self._missed(None, "the id is of another node, or of this one before a restart")
        at = int(number)
        if at < buffer.runs_since and (self._kinds is None or self._kinds & PER_RUN):
            return at, self._missed(None, "events of runs are not recorded while no client is connected")
        return at, b""

    def _fits(self, each: BufferedEvent) -> bool:
        if self._kinds is not None and each.kind not in self._kinds:
            return False
        return self._job_id is None or job_of(each.event) == self._job_id

    def _line(self, each: BufferedEvent) -> bytes:
        data: dict[str, Any] = {"at": moment(each.at_ms), **plain(each.event)}
        head = f"id: {self._node}-{each.number}\nevent: {each.kind}\ndata: "
        return head.encode() + msgspec.json.encode(data) + b"\n\n"

    def _missed(self, count: int | None, why: str) -> bytes:
        return b"event: missed\ndata: " + msgspec.json.encode({"count": count, "why": why}) + b"\n\n"


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
