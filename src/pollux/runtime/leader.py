"""Leader election loop.  One node plans at a time; the others wait for its term to end.

    sent ──────────── answered ───────────────────── trust ends ── margin ── the term is free in the store
      └─────────────────────────── ttl ────────────────────────────────────────▶

Trust is measured from *before* the request on the monotonic clock, so that neither a slow answer nor a clock that is
set extends it beyond the term in the store.  The store's fence (`advance(term, ...)`) decides in the end; trust only
avoids writes that would be refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from pollux.clock import Clock
from pollux.events import Events, TermLost, TermWon
from pollux.model import Term, check_term
from pollux.runtime.loop import Loop, Rest, bounded
from pollux.store.contract import Store

MARGIN_MS = 1_000
HINTS_APART_MS = 500  # a resigned term is taken within a second, also by a node that has just asked
LISTENING_MS = 1_000  # a node that has waited for so long is assumed to receive signals
BARRED_TERMS = 2  # for so many terms a node that could not plan is no candidate, so that another one can
UNSIGNALLED_MS = 950  # election interval of a node that may miss signals, or get them late


class Leader(Loop):
    """Take the term when it is free, renew it, and stop trusting it before it ends in the store."""

    def __init__(
        self,
        store: Store,
        node_id: str,
        *,
        clock: Clock,
        events: Events,
        ttl_ms: int = 15_000,
        renew_ms: int = 5_000,
        margin_ms: int = MARGIN_MS,
    ) -> None:
        super().__init__("leader", clock=clock, events=events)
        check_term(ttl_ms=ttl_ms, renew_ms=renew_ms)
        self.store, self.node_id = store, node_id
        self.ttl_ms, self.renew_ms = ttl_ms, renew_ms
        self.margin_ms = min(margin_ms, (ttl_ms - 2 * renew_ms) // 2)
        self.seen: Term | None = None  # as of the last election
        self.attempts = self.wins = self.losses = 0
        self.since_ms = 0  # when our latest term was won, by the store's clock
        self.on_change: list[Callable[[], None]] = []
        self.on_answer: Callable[[Term], None] | None = None
        self.listening_since: Callable[[], float | None] = lambda: -math.inf  # always, where the store signals
        self._term: int | None = None
        self._trust_until = 0.0
        self.asked_at: float | None = None  # when the last election was sent, on the monotonic clock
        self._is_hinted = False
        self._waits_for_signal = False  # long rests, because a signal will end them
        self._is_asking = False
        self._is_unsure = False  # an election was sent and not answered
        self.has_resigned = False
        self._barred_until = -math.inf

    @property
    def term(self) -> int | None:
        """The number of our term, as long as it can be trusted."""
        return self._term if self._term is not None and self.clock.mono_ms() < self._trust_until else None

    async def turn(self) -> Rest:
        if self.has_resigned:
            return Rest.UNTIL_WOKEN
        if (barred_ms := self._barred_ms()) > 0:
            return Rest(barred_ms)
        if self._is_hinted and (early_ms := self._early_ms()) > 0:
            return Rest(early_ms)
        self._is_hinted = False
        self._is_asking = self._is_unsure = True
        sent = self.asked_at = self.clock.mono_ms()
        self.attempts += 1
        try:
            # One election that hangs must leave time for another before trust ends.
            ask = self.store.elect(self.node_id, ttl_ms=self.ttl_ms)
            term = await bounded(ask, self.renew_ms, what="elect")
        except Exception:
            if self._term is not None and self.term is None:
                self._lose("the store did not answer in time")
            raise
        finally:
            self._is_asking = False
        return await self._answered(term, sent)

    async def _answered(self, term: Term, sent: float) -> Rest:
        self.seen, self._is_unsure = term, False
        if self.on_answer is not None:
            self.on_answer(term)
        if self.has_resigned or self._barred_ms() > 0:  # while the election was under way
            await self._give_up(term)
            return Rest.UNTIL_WOKEN if self.has_resigned else Rest(max(1.0, self._barred_ms()))
        if term.holder != self.node_id:
            self._lose(f"node {term.holder} holds term {term.number}")
            return Rest(min(self._rest_ms(sent), max(1, term.until_ms - term.now_ms + 1)))
        is_trusted, self._trust_until = self.term is not None, sent + self.ttl_ms - self.margin_ms
        self._keep(term, is_trusted=is_trusted)
        return Rest(max(1.0, sent + self.renew_ms - self.clock.mono_ms()))

    def _rest_ms(self, sent: float) -> float:
        """Return how long to wait for a signal: short unless this node listened before the election, and still does."""
        since = self.listening_since()
        self._waits_for_signal = since is not None and since + LISTENING_MS <= sent
        interval_ms = self.renew_ms if self._waits_for_signal else min(self.renew_ms, UNSIGNALLED_MS)
        return max(interval_ms / 2, sent + interval_ms - self.clock.mono_ms())  # limits calls to a slow store

    def listening_ended(self) -> None:
        """Listening has ended for the moment: a signal sent now is missed."""
        if self._waits_for_signal:
            self._waits_for_signal = False
            self.hint()

    def hint(self) -> None:
        """The store sent a signal: if another node leads, the term may be free.

        Asks at most twice a second; an early hint is deferred, not dropped: it may be the only one.
        """
        if self.has_resigned or self._is_hinted or self._term is not None:
            return
        self._is_hinted = True
        self.nudge()

    def _early_ms(self) -> float:
        """Return how long to wait before a hint may start an election."""
        return 0.0 if self.asked_at is None else self.asked_at + HINTS_APART_MS - self.clock.mono_ms()

    def drop_term(self, why: str) -> None:
        """Drop the term before its trust ends, because the store refused it."""
        self._is_hinted = True  # asked again, but at most twice a second
        self._lose(why)
        self.nudge()

    async def yield_term(self, why: str) -> None:
        """Give up a term in which this node cannot plan; it is a candidate again after `BARRED_TERMS` terms."""
        term, self._barred_until = self._term, self.clock.mono_ms() + BARRED_TERMS * self.ttl_ms
        self._lose(why)
        if term is not None:
            await self._give_up(Term(term, self.node_id, 0, 0))

    def _barred_ms(self) -> float:
        return self._barred_until - self.clock.mono_ms()

    async def resign(self) -> None:
        """Give the term up for good and wake the waiting candidates."""
        self.has_resigned = True
        term, is_unsure = self._term, self._is_unsure and not self._is_asking
        self._lose("it resigned", resigned=True)
        if is_unsure:  # the interrupted election may have won a term: free it now, not at its end
            await self._give_up(await self.store.elect(self.node_id, ttl_ms=self.ttl_ms))
        elif term is not None:
            await self._give_up(Term(term, self.node_id, 0, 0))

    async def _give_up(self, term: Term) -> None:
        if term.holder == self.node_id:
            await self.store.resign(self.node_id, term=term.number)
            await self.store.wake()

    def _keep(self, term: Term, *, is_trusted: bool) -> None:
        if self._term == term.number:
            if not is_trusted:  # readers saw no term meanwhile
                self._notify()
            return
        if self._term is not None:
            self._lose(f"term {term.number} took its place")
        self._term, self.since_ms = term.number, term.now_ms
        self.wins += 1
        self.events.emit(TermWon(self.node_id, term.number))
        self._notify()

    def _lose(self, why: str, *, resigned: bool = False) -> None:
        term, self._term = self._term, None
        if term is not None:
            self.losses += not resigned
            self.events.emit(TermLost(self.node_id, term, why, resigned))
            self._notify()

    def _notify(self) -> None:
        for listener in self.on_change:
            listener()
