"""Connection limits that uvicorn does not have: deadlines for each phase, and numbers of connections.

    phase of a connection                    closed when
    -------------------------------------    --------------------------------------------------------
    connected, or a request has begun        its head is not complete after 10 s, or larger than 16 KB
    a body is received                       not complete after 30 s, or slower than 1 KB/s
    an answer is sent                        no byte is accepted for 30 s
    between two requests                     75 s idle (uvicorn's own timer)
    closing                                  still open after 5 s

There is one timer for all connections: it checks them once a second while there are any.  At the limit the connection
that has been idle longest is closed, so that a thousand idle connections lock no client out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, cast

from pollux.server.auth import Identity
from pollux.server.limits import ApiLimits, address_key
from pollux.server.problems import Problem

END_S = 5.0
LOG_S = 60.0
PIECE_BYTES = 65_536  # written at once
CURES = {
    408: "send the whole request without pauses",
    431: "send fewer or shorter headers",
    503: "close unused connections; `server.connections` is the limit",
}

log = logging.getLogger("pollux")


class Connections:
    """All connections of a server."""

    def __init__(
        self, limits: ApiLimits, *, is_unbounded: Callable[[str], bool], peer_of: Callable[[Any], Identity | None]
    ) -> None:
        self.limits = limits
        self.is_unbounded, self.peer_of = is_unbounded, peer_of
        self.refused = 0  # or closed by a limit
        self._all: dict[Bounded, None] = {}  # the oldest first
        self._by_address: dict[str, int] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._logged, self._log_at = 0, 0.0

    def __len__(self) -> int:
        return len(self._all)

    def enter(self, connection: Bounded) -> bool:
        """Register it; false if a limit is reached and no idle connection can be closed."""
        address = connection.address
        if address and self._by_address.get(address, 0) >= self.limits.per_address:
            self.refused += 1
            return False
        if len(self._all) >= self.limits.connections and not self._make_room():
            self.refused += 1
            return False
        self._all[connection] = None
        if address:
            self._by_address[address] = self._by_address.get(address, 0) + 1
        if self._timer is None:
            self._timer = connection.loop.call_later(self.limits.look_s, self._check_all, connection.loop)
        return True

    def leave(self, connection: Bounded) -> None:
        if connection not in self._all:
            return
        del self._all[connection]
        if connection.address:
            left = self._by_address[connection.address] - 1
            if left:
                self._by_address[connection.address] = left
            else:
                del self._by_address[connection.address]

    def _make_room(self) -> bool:
        for connection in self._all:
            if connection.is_silent():
                self.refused += 1
                connection.transport.abort()
                self.leave(connection)
                return True
        return False

    def _check_all(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for connection in list(self._all):
            if title := connection.overdue(now):
                self.refused += 1
                connection.end(408, title)
        self._log_refusals(now)
        self._timer = loop.call_later(self.limits.look_s, self._check_all, loop) if self._all else None

    def _log_refusals(self, now: float) -> None:
        """Log that limits are applied, at most once a minute, so that a client cannot fill the log."""
        if self.refused > self._logged and now >= self._log_at:
            log.warning(
                "the API refused or ended %d connections: slow, silent or too many", self.refused - self._logged
            )
            self._logged, self._log_at = self.refused, now + LOG_S

    def end_streams(self) -> None:
        """Close connections whose answer has begun: event streams would never end."""
        for connection in list(self._all):
            if not connection.is_silent() and connection.cycle.response_started:
                connection.transport.close()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Joined:
    """A transport that sends all writes of one loop iteration (head and body of an answer) in one piece.

    Each piece is a system call and wakes the client.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._parts: list[bytes] = []
        self._size = 0
        self.abort, self.is_closing = transport.abort, transport.is_closing
        self.pause_reading, self.resume_reading = transport.pause_reading, transport.resume_reading

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._parts:
            self._loop.call_soon(self.flush)
        self._parts.append(data)
        self._size += len(data)
        if self._size >= PIECE_BYTES:
            self.flush()

    def flush(self) -> None:
        parts, self._parts, self._size = self._parts, [], 0
        if parts and not self._transport.is_closing():
            self._transport.write(parts[0] if len(parts) == 1 else b"".join(parts))

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def get_write_buffer_size(self) -> int:
        return self._size + self._transport.get_write_buffer_size()


class Bounded(asyncio.Protocol):
    """Mixin for a protocol of uvicorn (httptools or h11) that enforces the limits."""

    registry: Connections
    loop: asyncio.AbstractEventLoop  # uvicorn's, as all up to `cycle`
    transport: Joined
    flow: Any
    client: tuple[str, int] | None
    app_state: dict[str, Any]
    cycle: Any  # the request that is being answered, or was answered last
    address: str  # "": not counted
    begun: float  # when the phase it is in began
    head_bytes: int
    body_bytes: int
    stalled: float | None
    ending: float | None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast("asyncio.Transport", Joined(cast("asyncio.Transport", transport), self.loop)))
        self.begun = self.loop.time()
        self.head_bytes = self.body_bytes = 0
        self.stalled = self.ending = None
        peer = self.registry.peer_of(transport)
        if peer is not None:
            self.app_state = {**self.app_state, "peer": peer}
        host = self.client[0] if self.client else ""
        self.address = "" if not host or self.registry.is_unbounded(host) else address_key(host)
        if not self.registry.enter(self):
            self.end(503, "too many connections")

    def connection_lost(self, exc: Exception | None) -> None:
        self.registry.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.ending is not None:
            return
        before = self.cycle
        was_waiting = before is None or before.response_complete
        if was_waiting and not self.head_bytes and before is not None:
            self.begun = self.loop.time()
        super().data_received(data)
        if self.cycle is not before:
            self.begun, self.head_bytes, self.body_bytes = self.loop.time(), 0, len(data)
        elif was_waiting:
            self.head_bytes += len(data)
            if self.head_bytes > self.registry.limits.head_bytes:
                self.end(431, "request headers too large")
        else:
            self.body_bytes += len(data)

    def resume_writing(self) -> None:
        self.stalled = None
        super().resume_writing()

    def is_silent(self) -> bool:
        """Is no request in progress?"""
        return self.cycle is None or bool(self.cycle.response_complete)

    def overdue(self, now: float) -> str:
        """The title of the deadline that it missed, or nothing."""
        if self.ending is not None or self.transport.is_closing():
            self.ending = now if self.ending is None else self.ending
            return "connection close timeout" if now - self.ending > END_S else ""
        if self.transport.get_write_buffer_size() == 0:
            self.stalled = None
        elif self.stalled is None:
            self.stalled = now
        elif now - self.stalled > self.registry.limits.stalled_s:
            return "response read timeout"
        return self._overdue_request(now - self.begun)

    def _overdue_request(self, took: float) -> str:
        if self.is_silent():
            is_due = self.cycle is None or self.head_bytes  # else it is idle between two requests
            return "request timeout" if is_due and took > self.registry.limits.head_s else ""
        if not self.cycle.more_body or self.flow.read_paused:
            return ""
        is_slow = took > self.registry.limits.body_begin_s and self.body_bytes < took * self.registry.limits.body_rate
        return "request body timeout" if is_slow or took > self.registry.limits.body_s else ""

    def end(self, status: int, title: str) -> None:
        """Send a problem document, if no answer is in progress, and close."""
        is_answered = self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete
        if self.ending is not None or is_answered or self.transport.get_write_buffer_size():
            self.transport.abort()
            return
        self.ending = self.loop.time()
        self.transport.write(_answer(status, title))
        self.transport.close()


def bounded(protocol: type[asyncio.Protocol], registry: Connections) -> Any:
    """A subclass of that protocol with the limits of `registry`."""
    return type(f"Bounded{protocol.__name__}", (Bounded, protocol), {"registry": registry})


def _answer(status: int, title: str) -> bytes:
    response = Problem(status, title, cure=CURES[status]).response({"Connection": "close"})
    lines = [f"HTTP/1.1 {status} {title.title()}".encode()]
    lines += [name + b": " + value for name, value in response.raw_headers]
    return b"\r\n".join([*lines, b"", bytes(response.body)])
