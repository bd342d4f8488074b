"""Fault injection: wrappers of a store that fail, stall and hurry on request.

faulty = FaultyStore(store)
faulty.fail("settle", StoreBusy("locked"))             # the next settle does nothing and raises
faulty.lose_answer("advance", times=2)                 # the next two take effect, but their answer is lost
faulty.delay("claim", gate)                            # the next claim begins when the event is set
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Coroutine
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from pollux.errors import InvalidInput, StoreError, StoreTimeout
from pollux.model import Answer
from pollux.store.contract import FEED_MAX, LOSSES_MAX, Claimed, Feed, Store
from pollux.store.guard import VERBS, Wrapped

T = TypeVar("T")


class CallFault(Struct):
    """A fault of one call."""

    error: Exception | None = None  # raised instead of the call
    lost: Exception | None = None  # raised after the call took effect
    gate: asyncio.Event | None = None  # the call begins when it is set


class FaultyStore(Wrapped):
    """Each fault affects one call of its verb, in the order in which they were added; then calls work again."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._faults: defaultdict[str, deque[CallFault]] = defaultdict(deque)
        self.calls: list[str] = []
        self.struck: list[str] = []

    def twin(self) -> Store:
        """Return a twin of the wrapped store, with faults of its own."""
        return self.store.twin()

    def of_version(self, number: int) -> Store:
        """Return a handle of another version of the wrapped store, with faults of its own."""
        return self.store.of_version(number)

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

    async def call(self, verb: str, answer: Coroutine[Any, Any, T], wait_ms: int = 0) -> T:
        self.calls.append(verb)
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

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.capabilities = replace(store.capabilities, waits=False)

    def twin(self) -> Store:
        return NoWaits(self.store.twin())

    def of_version(self, number: int) -> Store:
        return NoWaits(self.store.of_version(number))

    async def feed(self, *, limit: int, wait_ms: int = 0, now_ms: int | None = None) -> Feed:
        return await super().feed(limit=limit, now_ms=now_ms)

    async def claim(
        self,
        *,
        node: str,
        token: str,
        limit: int,
        lease_ms: int,
        first: int = 1,
        losses_max: int = LOSSES_MAX,
        feed_max: int = FEED_MAX,
        wait_ms: int = 0,
        now_ms: int | None = None,
    ) -> Claimed:
        return await super().claim(
            node=node,
            token=token,
            limit=limit,
            lease_ms=lease_ms,
            first=first,
            losses_max=losses_max,
            feed_max=feed_max,
            now_ms=now_ms,
        )


class HastyWaits(NoWaits):
    """A store that claims to wait and does not: a caller that relies on it alone would spin."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.capabilities = store.capabilities
        self.empty_claims = 0

    def twin(self) -> Store:
        return HastyWaits(self.store.twin())

    def of_version(self, number: int) -> Store:
        return HastyWaits(self.store.of_version(number))

    async def call(self, verb: str, answer: Coroutine[Any, Any, T], wait_ms: int = 0) -> T:
        given = await super().call(verb, answer, wait_ms)
        if isinstance(given, Claimed) and given.answer is Answer.OK and not given.runs:
            self.empty_claims += 1
        return given
