"""Ring buffer of this node's events, read by any number of clients at their own pace.

A slow client costs no memory: it has only a position in the ring, and gets the number of events that it missed.  Events
of single runs are recorded only while a client is connected and two minutes longer, so that a client that reconnects
with its last event id misses nothing.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from pollux import events
from pollux.clock import Clock
from pollux.events import Event, Events
from pollux.secrets import HIDDEN, hide
from pollux.units import MINUTE_MS

KEPT_MAX = 10_000
LINGER_MS = 2 * MINUTE_MS
_PER_RUN = ("RunStarted", "RunSettled", "RunFired", "RunReleased", "RunStopped", "RunHeld", "RunFailed")
_WORD = re.compile(r"(?<!^)(?=[A-Z])")


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
        """The node ends: whoever listens is let go."""
        self.is_closed = True
        if self._ending is not None:
            self._ending.cancel()
        self._rest()
        self._ring()

    def after(self, number: int, limit: int) -> list[BufferedEvent]:
        """Those that came after that one, as far as they are kept."""
        skip = max(0, number + 1 - self.first)
        kept = self._kept
        return [kept[place] for place in range(skip, min(len(kept), skip + limit))]

    async def wait(self, number: int, seconds: float) -> None:
        """Wait until there is an event after that number, or the time is over."""
        if self.last > number or self.is_closed:
            return
        bell = asyncio.Event()
        self._waiting.add(bell)
        try:
            async with asyncio.timeout(seconds):
                await bell.wait()
        except TimeoutError:
            pass
        finally:
            self._waiting.discard(bell)

    def _take(self, word: str, event: Event) -> None:
        self.last += 1
        self._kept.append(BufferedEvent(self.last, word, self._clock.now_ms(), event))
        if self._waiting:
            self._ring()

    def _ring(self) -> None:
        for bell in self._waiting:
            bell.set()


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
