"""Fault injection: wrappers of a store that fail, stall and hurry on request.

faulty = FaultyStore(store)
faulty.fail("settle", StoreBusy("locked"))             # the next settle does nothing and raises
faulty.lose_answer("advance", times=2)                 # the next two take effect, but their answer is lost
faulty.delay("claim", gate)                            # the next claim begins when the event is set

A wrapper is a handle over the backend of the wrapped store, behind `InterceptedBackend`: deadlines, counts and waits of
the handle are those of the product, and meet the faults.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from pollux.errors import InvalidInput, StoreError, StoreTimeout
from pollux.model import Answer
from pollux.store.backend import Backend, BackendWaiter, Look
from pollux.store.contract import Capabilities, Claimed
from pollux.store.handle import VERBS, StoreHandle

T = TypeVar("T")


Call = Callable[[str, Coroutine[Any, Any, Any]], Awaitable[Any]]
SINGLE = {  # primitives that are a verb, and which; `read` and `write` name theirs
    **{verb: verb for verb in ("open", "close", "feed", "advance", "enqueue", "claim", "settle", "prune", "now")},
    "problems": "problems",
    "enqueue_in": "enqueue",
    "get_runs_in": "get_runs",
}


class InterceptedBackend:
    """A backend whose calls go through a function, which gets the verb and the call, not yet begun."""

    def __init__(self, backend: Backend, call: Call) -> None:
        self.backend, self._call = backend, call
        self.capabilities: Capabilities = backend.capabilities

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.backend, name)
        if name in SINGLE:
            return lambda *args, **kwargs: self._call(SINGLE[name], found(*args, **kwargs))
        if name in ("read", "write"):
            return lambda verb, *args, **kwargs: self._call(verb, found(verb, *args, **kwargs))
        return found


class Wrapped(StoreHandle):
    """A handle in front of the backend of another one: every call goes through `call`, which a subclass overrides."""

    def __init__(self, store: StoreHandle) -> None:
        backend: Any = InterceptedBackend(store.backend, self.call)
        super().__init__(backend, clock=store.clock, deadline_ms=store.deadline_ms)
        self.store = store

    async def call(self, verb: str, answer: Coroutine[Any, Any, T]) -> T:
        """Let one call through; `answer` is the call itself, not yet begun."""
        return await answer

    def twin(self) -> StoreHandle:
        """Return a twin of the wrapped store, with nothing in front of it."""
        return self.store.twin()

    def of_version(self, number: int) -> StoreHandle:
        return self.store.of_version(number)


class CallFault(Struct):
    """A fault of one call."""

    error: Exception | None = None  # raised instead of the call
    lost: Exception | None = None  # raised after the call took effect
    gate: asyncio.Event | None = None  # the call begins when it is set


class FaultyStore(Wrapped):
    """Each fault affects one call of its verb, in the order in which they were added; then calls work again.

    Twins and handles of other versions have no faults.
    """

    def __init__(self, store: StoreHandle) -> None:
        super().__init__(store)
        self._faults: defaultdict[str, deque[CallFault]] = defaultdict(deque)
        self.calls: list[str] = []  # a call that waits once, however often it looks
        self.struck: list[str] = []

    async def _call(self, verb: str, answer: Coroutine[Any, Any, T], wait_ms: int = 0) -> T:
        self.calls.append(verb)
        return await super()._call(verb, answer, wait_ms)

    def fail(self, verb: str, error: Exception | None = None, *, times: int = 1) -> None:
        """Make the next calls do nothing and raise."""
        self._order(verb, CallFault(error=error or StoreError(f"{verb} does not work just now")), times)

    def lose_answer(self, verb: str, error: Exception | None = None, *, times: int = 1) -> None:
        """Make the next calls take effect and lose their answer."""
        self._order(
            verb, CallFault(lost=error or StoreTimeout(f"no answer to {verb}; it may have taken effect")), times
        )

    def delay(self, verb: str, gate: asyncio.Event, *, times: int = 1) -> None:
        """Delay the next calls until the event is set."""
        self._order(verb, CallFault(gate=gate), times)

    def mend(self) -> None:
        """Remove the faults that have not occurred yet."""
        self._faults.clear()

    def _order(self, verb: str, fault: CallFault, times: int) -> None:
        if verb not in VERBS:
            raise InvalidInput(f"a store has no verb {verb!r}", cure=f"use one of {', '.join(VERBS)}")
        self._faults[verb].extend([fault] * times)

    async def call(self, verb: str, answer: Coroutine[Any, Any, T]) -> T:
        waiting = self._faults.get(verb)
        if not waiting:
            return await answer
        fault = waiting.popleft()
        self.struck.append(verb)
        try:
            if fault.gate is not None:
                await fault.gate.wait()
            if fault.error is not None:
                raise fault.error
        except BaseException:
            answer.close()  # it never began
            raise
        given = await answer
        if fault.lost is not None:
            raise fault.lost
        return given


class NoWaits(Wrapped):
    """A store that cannot wait: waits return at once."""

    def __init__(self, store: StoreHandle) -> None:
        super().__init__(store)
        self.backend.capabilities = replace(store.capabilities, waits=False)

    def twin(self) -> StoreHandle:
        return type(self)(self.store.twin())

    def of_version(self, number: int) -> StoreHandle:
        return type(self)(self.store.of_version(number))


class HastyWaits(NoWaits):
    """A store that claims to wait and does not: a caller that relies on it alone would spin."""

    def __init__(self, store: StoreHandle) -> None:
        super().__init__(store)
        backend: Any = self.backend
        backend.capabilities = store.capabilities
        backend.listen = lambda request, *, is_live: _hasty(store.backend.listen(request, is_live=is_live))
        self.empty_claims = 0

    async def call(self, verb: str, answer: Coroutine[Any, Any, T]) -> T:
        found = await super().call(verb, answer)
        if isinstance(found, Look) and isinstance(found.found, Claimed):
            self.empty_claims += found.found.answer is Answer.OK and not found.found.runs
        return found


class HastyWaiter:
    """A waiter that does not rest: the wait ends with what was found first."""

    is_over = False

    def begin(self) -> None: ...

    async def rest(self, look: Look[Any], left_ms: float) -> Any:
        return look.found


@contextmanager
def _hasty(listening: AbstractContextManager[BackendWaiter]) -> Iterator[HastyWaiter]:
    with listening:
        yield HastyWaiter()
