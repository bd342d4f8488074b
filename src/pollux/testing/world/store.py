"""Shared store of a world, and the network between each node and it.

    node ─ StoreHandle ─ RemoteBackend ──── request ───▶ MemoryBackend ─ StoreAuditor
                              ▲                               │
                              └──────────── answer ───────────┘

The backend is the product's own memory backend, on the store's clock.  A call takes effect at the store, whatever its
caller does meanwhile: it may be frozen, dead, or have stopped waiting.  Faults concern requests, answers and wake-ups,
never what the store does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import Context
from random import Random
from typing import Any

from pollux.errors import PolluxError, StoreError, StoreTimeout
from pollux.model import SCHEDULER_VERSION
from pollux.simulate.engine import at_once
from pollux.store.backend import Backend
from pollux.store.contract import Capabilities
from pollux.store.handle import StoreHandle
from pollux.store.memory.state import SharedState
from pollux.store.memory.store import MemoryBackend
from pollux.store.memory.wakeup import MemoryNotifier, MemoryWaiter
from pollux.testing.faults import SINGLE
from pollux.testing.world.audit import StoreAuditor
from pollux.testing.world.loop import ProcessClock, VirtualProcess, WorldLoop, current_process
from pollux.testing.world.script import Script, WorldFault
from pollux.testing.world.trace import WorldTrace

REQUEST_US = (100, 200, 400, 1_000, 3_000)  # one way
QUICK_US = 2_000  # until a refusal arrives
LATE_BELL_US = 1_500_000
_OUTSIDE = Context()  # of no process: what happens at the store goes on whatever its caller does
REFUSED, LOST = "the connection was refused", "the connection was cut before the answer"
LOCAL = frozenset({"open", "close"})


class SharedStore:
    """The store that all nodes share."""

    def __init__(self, loop: WorldLoop, script: Script, trace: WorldTrace, auditor: StoreAuditor) -> None:
        self.loop, self.trace, self.auditor = loop, trace, auditor
        self.clock = ProcessClock(loop, script.start_ms)
        self.is_away = False
        self.links: dict[VirtualProcess, NetworkLink] = {}
        self.capabilities = Capabilities(
            name="memory", waits=script.stores_wait, durable=True, shared=True, writes_are_cheap=script.writes_are_cheap
        )
        self._seed = script.seed
        self._shared = SharedState()
        self._shared.bells = FaultyNotifier(self)
        self.opened = MemoryBackend(self.clock, SCHEDULER_VERSION, self._shared)
        at_once(self.opened.open())

    def connect(self, process: VirtualProcess, clock: ProcessClock) -> StoreHandle:
        """A handle for a process, over a link of its own."""
        link = self.links[process] = NetworkLink(self, process, Random(f"net {self._seed} {process.name}"))  # noqa: S311
        backend: Any = RemoteBackend(self.opened.twin(), link)
        return StoreHandle(backend, clock=clock)

    def direct(self) -> StoreHandle:
        """A handle without network, for the judge."""
        return StoreHandle(self.opened, clock=self.clock)

    def disconnect(self, process: VirtualProcess) -> None:
        self.links.pop(process, None)

    def heal(self) -> None:
        """End all faults of the network and the store."""
        self.is_away = False
        for link in self.links.values():
            link.heal()


class NetworkLink:
    """The network between one process and the store."""

    def __init__(self, store: SharedStore, process: VirtualProcess, dice: Random) -> None:
        self._store, self.process, self._dice = store, process, dice
        self.requests_lost = self.answers_lost = False  # a partition, one or both ways
        self._faults: list[WorldFault] = []  # of calls, each for so many
        self._left: list[int] = []
        self.wakeup_fault = ""

    def order(self, fault: WorldFault) -> None:
        """Let a fault of calls concern the next ones of its verb."""
        self._faults.append(fault)
        self._left.append(max(1, fault.count))

    def heal(self) -> None:
        self.requests_lost = self.answers_lost = False
        self.wakeup_fault = ""
        self._faults.clear()
        self._left.clear()

    async def call(self, verb: str, call: Callable[..., Coroutine[Any, Any, Any]], args: Any, kwargs: Any) -> Any:
        """One request and its answer."""
        store, loop = self._store, self._store.loop
        fault = self._next_fault(verb)
        kind = "" if fault is None else fault.kind
        if fault is not None:
            store.trace.note(loop.us, self.process.name, f"{verb} is {kind.replace('_', ' ')}")
            store.trace.reach(f"fault {kind}")
        answer: asyncio.Future[Any] = loop.create_future()
        late_us = 0 if fault is None or kind != "late" else fault.ms * 1_000
        request = _Request(verb, call, args, kwargs, answer, kind, 0 if fault is None else fault.ms * 1_000)
        at_us = loop.us + self._dice.choice(REQUEST_US) + late_us
        loop.call_at_us(at_us, self._arrive, request, context=_OUTSIDE)
        return await answer

    def _next_fault(self, verb: str) -> WorldFault | None:
        for place, fault in enumerate(self._faults):
            if fault.verb in (verb, "any"):
                self._left[place] -= 1
                if self._left[place] <= 0:
                    del self._faults[place], self._left[place]
                return fault
        return None

    def _arrive(self, request: _Request) -> None:
        """The request is at the store."""
        store = self._store
        if self.requests_lost or request.kind == "hung":
            return  # its caller hears nothing: the deadline ends the call
        if store.is_away or request.kind == "refused":
            self._answer(request, None, StoreError(REFUSED), QUICK_US)
            return
        value, error = self._take_effect(request)
        if request.kind == "twice":
            value, error = self._take_effect(request)
        if self.answers_lost or request.kind == "hung_done":
            return
        if request.kind == "answer_lost":
            value, error = None, StoreTimeout(LOST)
        late_us = request.late_us if request.kind == "late_answer" else 0
        self._answer(request, value, error, self._dice.choice(REQUEST_US) + late_us)

    def _take_effect(self, request: _Request) -> tuple[Any, BaseException | None]:
        store = self._store
        value, error = None, None
        try:
            value = at_once(request.call(*request.args, **request.kwargs))
        except PolluxError as raised:
            error = raised
        store.auditor.effect(self.process, request.verb, request.args, request.kwargs, value, error)
        return value, error

    def _answer(self, request: _Request, value: Any, error: BaseException | None, after_us: int) -> None:
        loop = self._store.loop
        loop.call_at_us(loop.us + after_us, self._deliver, request.answer, value, error, context=_OUTSIDE)

    def _deliver(self, answer: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
        if answer.done() or self.answers_lost:
            return
        if error is None:
            answer.set_result(value)
        else:
            answer.set_exception(error)


class _Request:
    __slots__ = ("answer", "args", "call", "kind", "kwargs", "late_us", "verb")

    def __init__(
        self, verb: str, call: Any, args: Any, kwargs: Any, answer: asyncio.Future[Any], kind: str, late_us: int
    ) -> None:
        self.verb, self.call, self.args, self.kwargs = verb, call, args, kwargs
        self.answer, self.kind, self.late_us = answer, kind, late_us


class RemoteBackend:
    """The backend as one process sees it: its calls go over the network."""

    def __init__(self, backend: Backend, link: NetworkLink) -> None:
        self._backend, self._link = backend, link
        self.capabilities = link._store.capabilities
        self.version = backend.version
        for name in ("job", "run", "note", "listen"):
            setattr(self, name, getattr(backend, name))

    @property
    def is_open(self) -> bool:
        return self._backend.is_open

    def twin(self) -> RemoteBackend:
        return RemoteBackend(self._backend.twin(), self._link)

    def of_version(self, number: int) -> RemoteBackend:
        return RemoteBackend(self._backend.of_version(number), self._link)

    def __getattr__(self, name: str) -> Any:
        found, link = getattr(self._backend, name), self._link
        if name in LOCAL or (name not in SINGLE and name not in ("read", "write")):
            return found
        verb = SINGLE.get(name)  # None: it is the first argument

        def call(*args: Any, **kwargs: Any) -> Any:
            return link.call(verb or args[0], found, args, kwargs)

        setattr(self, name, call)
        return call


class FaultyNotifier(MemoryNotifier):
    """Wake-ups of waiting calls, which the network may lose, delay or repeat."""

    def __init__(self, store: SharedStore) -> None:
        super().__init__()
        self._store = store
        self._owners: dict[MemoryWaiter, VirtualProcess | None] = {}

    @contextmanager
    def waiter(self, kind: str, node: str, handle: object, version: int) -> Iterator[MemoryWaiter]:
        with super().waiter(kind, node, handle, version) as waiter:
            self._owners[waiter] = current_process()
            try:
                yield waiter
            finally:
                self._owners.pop(waiter, None)

    def ring(self, kind: str, version: int) -> None:
        for waiter in [each for each in self._owners if each.kind == kind and each.version == version]:
            self._ring(waiter)

    def _ring(self, waiter: MemoryWaiter) -> None:
        process = self._owners[waiter]
        link = None if process is None else self._store.links.get(process)
        if link is None:
            waiter.ring()
            return
        if link.answers_lost or link.wakeup_fault == "wakeup_lost":
            return
        loop = self._store.loop
        if link.wakeup_fault == "wakeup_late":
            loop.call_at_us(loop.us + LATE_BELL_US, waiter.ring, context=_OUTSIDE)
            return
        waiter.ring()
        if link.wakeup_fault == "wakeup_twice":
            loop.call_at_us(loop.us + LATE_BELL_US, waiter.ring, context=_OUTSIDE)
