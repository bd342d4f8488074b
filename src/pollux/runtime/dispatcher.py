"""Claim loop: claims no more runs than there are free seats, and starts each at once.

Waiting belongs to the store (`claim(wait_ms=...)`), throttling belongs here: a cycle that found nothing lasts at least
`min_poll_ms`, even if the store does not wait.  A claim that got no answer is repeated with the same token and returns
the same runs, so none is left leased without an owner.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from zlib import crc32

from pollux.clock import Clock
from pollux.events import ClaimsRefused
from pollux.ids import new_id
from pollux.model import DRAIN, STOP, Back, Cancelled, Cause, Hold, Job, Node, Note, Run, drain_key
from pollux.plan import stop_of, stop_words
from pollux.runtime.attempt import Attempt, WorkerState
from pollux.runtime.isolation import SUSPECTS_MAX, is_suspect
from pollux.runtime.loop import Loop, Rest
from pollux.runtime.options import RuntimeOptions
from pollux.runtime.renewer import margin_ms
from pollux.store.contract import Answer, Claimed, Store
from pollux.store.decoding import readable_stops

FULL_REST_MS = 1_000
DRAINED_REST_MS = 1_000  # poll interval while nothing may be claimed
SLOW_MS = 1_000  # a claim that took longer has waited: its lease began some time in between
REPORT_AGAIN_MS = 60_000
NODES_MS = 2_000  # maximum age of the list of nodes, when runs without a handler here arrive
SUSPECT_MS = (200, 30_000)  # delay of a suspect without a slot, for each group of suspects before it; maximum
POLLING_MS = 30_000  # how long to poll after a run without a handler here
POLL_MS = (500.0, 2_000.0)  # between two polls: at first, at most
POLL_MAX = 100  # runs in one poll


class ClaimBackoff:
    """Poll instead of waiting, after a claim returned runs without a handler here.

    A claim cannot ask for handlers.  Where nodes have different code (a deploy is under way, or two apps share a
    store) a node that always waits in the store may be woken first every time, and the node that has the handler
    never is.  So a node that received such a run polls for a while:

        waits in the store ── a run without a handler here ──▶ polls every 0.5 s, up to 2 s while all are like that
                ▲                                                     │
                └──────────────── none for half a minute ─────────────┘

    A poll claims more than there are seats, so that runs with a handler are found behind those without.
    """

    def __init__(self, *, clock: Clock, dice: Random) -> None:
        self._clock, self._dice = clock, dice
        self._until = 0.0
        self._empty_polls = 0  # polls in a row that found nothing to run here
        self._is_full = False

    @property
    def is_polling(self) -> bool:
        return self._clock.mono_ms() < self._until

    def limit(self, free: int) -> int:
        """Return how many runs to claim."""
        return max(free, POLL_MAX) if self.is_polling else free

    def record(self, *, seated: int, limit: int, claimed: int, others_can: bool) -> None:
        """Record the result of a claim; `others_can`: some of its runs only another living node can run."""
        if others_can:
            self._until = self._clock.mono_ms() + POLLING_MS
        self._empty_polls = self._empty_polls + 1 if others_can and not seated else 0
        self._is_full = claimed >= limit

    def rest_ms(self, usual_ms: float) -> float:
        """Return how long to wait after a poll that found nothing to run here."""
        if not self.is_polling or (self._empty_polls and self._is_full):  # more runs may follow
            return usual_ms
        least, most = POLL_MS
        rest_ms = min(most, least * 2.0 ** min(8, max(0, self._empty_polls - 1)))
        return max(usual_ms, rest_ms * self._dice.uniform(0.75, 1.25))


class Dispatcher(Loop):
    """Keep the pool filled with claimed runs."""

    def __init__(
        self, store: Store, worker: WorkerState, node_id: str, *, options: RuntimeOptions | None = None
    ) -> None:
        super().__init__("dispatcher", clock=worker.clock, events=worker.events)
        self.store, self.worker, self.node_id = store, worker, node_id
        self.options = options or RuntimeOptions()
        self.waits = store.capabilities.waits
        self.is_signalled = store.capabilities.rings
        self.on_empty_wait: Callable[[], None] | None = None
        self.on_listen_end: Callable[[], None] | None = None  # called when a wait that hears signals has ended
        self.listening_since: float | None = None  # None: not waiting, or signals are not received in time
        self.on_settings_changed: Callable[[], None] | None = None  # called when a stop or a setting has changed
        self.claims = 0
        self.claimed = 0
        self.handed_back = 0
        self.dequeued = [0] * 4  # claimed, by priority
        # Two processes forked from one have the same random state: the hash of the node id keeps their tokens apart.
        self._token_suffix = f"{crc32(node_id.encode()):08x}"
        self._token: str | None = None
        self._stops: dict[str, Note] = {}
        self._stops_revision: int | None = None
        self._own_drain = drain_key(node_id)
        self._drains: list[object] = []  # values of the drain notes in force
        self._must_read_stops = True  # before the first claim, too
        self.answered_at: float | None = None  # when a claim last returned, with the revision of the stops
        self._refused_at: float | None = None
        self.backoff = ClaimBackoff(clock=worker.clock, dice=worker.dice)
        self._unknown_handlers: set[str] = set()  # handlers of the latest claim that are not registered here
        self._other_handlers: set[str] = set()  # handlers of living nodes, at most `NODES_MS` old
        self._other_handlers_read_at: float | None = None
        self._suspects_sent_back = 0  # suspects handed back since the last one was started

    @property
    def is_drained(self) -> bool:
        """Whether all nodes, or this one, were asked to claim nothing."""
        return bool(self._drains)

    @property
    def min_poll_ms(self) -> int:
        usual = 100 if self.waits else 1_000
        return usual if self.options.min_poll_ms is None else self.options.min_poll_ms

    def reread_stops(self) -> None:
        """Read the stops before the next claim: one of them has changed."""
        self._must_read_stops = True
        self.wake()

    async def turn(self) -> Rest:
        if self.is_drained or self._must_read_stops:
            await self._read_stops()
            if self.is_drained:
                await self.hand_back_unanswered()  # or the runs of an interrupted claim would stay leased, and idle
                return Rest(DRAINED_REST_MS)
        free = self._free()
        if free == 0 and self._token is None:
            return Rest.UNTIL_WOKEN  # a freed seat, room in the backlog or `resume` wakes it
        begun = self.clock.mono_ms()
        limit, waits = self.backoff.limit(free), self.waits and not self.backoff.is_polling
        waits = waits and not self.errors_in_a_row  # after an error: find out at once whether the store is back
        claimed = await self._claim(max(1, limit), wait_ms=self.options.long_poll_ms if waits and free else 0)
        if claimed is None:
            return Rest.NONE  # another turn was requested
        answered = self.answered_at = self.clock.mono_ms()
        self.worker.time.learn(claimed.now_ms, asked=begun, answered=answered)
        if claimed.answer is Answer.FULL:
            return self._refused()
        await self._refresh_stops(claimed.stops_revision)
        if claimed.runs:
            self._token = None
            self._unknown_handlers.clear()
            seated = self._seat_all(claimed, begun, answered)
            others_can = bool(self._unknown_handlers) and await self._others_have_handlers()
            self.backoff.record(seated=seated, limit=limit, claimed=len(claimed.runs), others_can=others_can)
            if not seated:
                return Rest(self.backoff.rest_ms(self.min_poll_ms))  # nothing to run here: let other nodes claim first
            return Rest.NONE if self._free() else Rest.UNTIL_WOKEN
        self._token = None
        return self._rest_of_empty(begun, answered)

    async def _others_have_handlers(self) -> bool:
        """Whether a living node has one of the missing handlers; else there is no reason to back off."""
        now = self.clock.mono_ms()
        if self._other_handlers_read_at is None or now - self._other_handlers_read_at >= NODES_MS:
            peers = [node for node in await self.store.nodes() if self._is_peer(node)]
            self._other_handlers = {name for node in peers for name in node.handlers}
            self._other_handlers_read_at = now
        return not self._unknown_handlers.isdisjoint(self._other_handlers)

    def _is_peer(self, node: Node) -> bool:
        """Whether both claim from the same version."""
        return node.serves(self.store.scheduler_version)

    async def hand_back_unanswered(self) -> None:
        """Return runs that a claim without an answer may have leased to this node, and claim no more."""
        if self._token is None:
            return
        claimed = await self.store.claim(
            node=self.node_id, token=self._token, limit=1, lease_ms=self.options.lease_ms, wait_ms=0
        )
        self._token = None
        for run in claimed.runs:
            self._attempt(run, claimed.jobs.get(run.job_id), float("inf"), float("inf")).hand_back(Back())

    def _free(self) -> int:
        if self.is_stopping or not self.worker.settler.has_room:
            return 0
        return min(self.worker.pool.free, self.options.batch)

    async def _claim(self, limit: int, *, wait_ms: int) -> Claimed | None:
        """Claim; None: interrupted.  The token is kept until its claim is answered and its runs are seated."""
        options = self.options
        if self._token is None:
            self._token = f"{new_id(self.worker.time.now_ms(), self.worker.dice)}.{self._token_suffix}"
            self.claims += 1
        first = 3 if self.claims % 16 == 0 else 2 if self.claims % 8 == 0 else 1
        call = self.store.claim(
            node=self.node_id,
            token=self._token,
            limit=limit,
            lease_ms=options.lease_ms,
            first=first,
            losses_max=options.losses_max,
            feed_max=options.feed_max,
            wait_ms=0 if self.is_woken else wait_ms,
        )
        if self.is_woken or not wait_ms or not self.is_signalled:
            return await self.interruptible(call)
        self.listening_since = self.clock.mono_ms()
        try:
            return await self.interruptible(call)
        finally:
            self.listening_since = None
            if self.on_listen_end is not None:
                self.on_listen_end()

    def _refused(self) -> Rest:
        """Rest because the feed is full: the leader has not read the ends of runs, and more would not help it."""
        self._token = None
        now = self.clock.mono_ms()
        if self._refused_at is None or now - self._refused_at >= REPORT_AGAIN_MS:
            self._refused_at = now
            self.events.emit(ClaimsRefused(self.node_id, f"more than {self.options.feed_max} ends are unread"))
        return Rest(FULL_REST_MS)

    def _rest_of_empty(self, begun: float, answered: float) -> Rest:
        elapsed = answered - begun
        if self.backoff.is_polling:
            self.backoff.record(seated=0, limit=1, claimed=0, others_can=False)
            return Rest(self.backoff.rest_ms(self.min_poll_ms))
        if self.waits and elapsed < self.options.long_poll_ms and self.on_empty_wait is not None:
            self.on_empty_wait()
        return Rest(self.min_poll_ms - elapsed) if elapsed < self.min_poll_ms else Rest.NONE

    async def _refresh_stops(self, revision: int) -> None:
        if revision == self._stops_revision:
            return
        await self._read_stops()
        if self.on_settings_changed is not None:
            self.on_settings_changed()
        self._stops_revision = revision

    async def _read_stops(self) -> None:
        self._must_read_stops = False
        stops, _ = await readable_stops(self.store.notes(STOP))
        self._stops = {note.key: note for note in stops}
        drains = [self._stops[key].value for key in (DRAIN, self._own_drain) if key in self._stops]
        before, self._drains = self._drains, drains
        if (
            drains != before and self.on_settings_changed is not None
        ):  # a claim does not report that one drain replaced another
            self.on_settings_changed()

    def _stop_of(self, run: Run) -> Note | None:
        """Return the stop that forbids this run; none forbids a forced run."""
        if run.cause is Cause.FORCED:
            return None
        now_ms = self.worker.time.now_ms()
        return stop_of(self._stops, job_id=run.job_id, group=run.group, target=run.target, now_ms=now_ms)

    def _seat_all(self, claimed: Claimed, begun: float, answered: float) -> int:
        """Start every run at once, or hand it back; return how many started."""
        lease_ms = self.options.lease_ms
        margin = margin_ms(lease_ms)
        has_waited = answered - begun > SLOW_MS
        since, seated = answered if has_waited else begun, 0
        now_ms, mono_ms = self.worker.time.now_ms(), self.clock.mono_ms()
        for run in claimed.runs:
            held = self.worker.leases.get(run.id)
            if held is not None and held.token == run.token:
                continue  # the same delivery a second time
            end = since + run.lease_until_ms - claimed.now_ms
            if has_waited:  # or the process was suspended: by the store's time the lease may be over
                end = min(end, mono_ms + run.lease_until_ms - now_ms)
            # After a wait the start of the lease is unknown: trust it, and renew within a second.
            renew_at = answered + min(1_000.0, lease_ms / 3) if has_waited else end - lease_ms * 2 / 3
            job = claimed.jobs.get(run.job_id)
            attempt = self._attempt(run, job, end - margin, renew_at)
            seated += self._seat(attempt, now_ms, mono_ms, is_deleted=job is None)
        self.claimed += len(claimed.runs)
        for run in claimed.runs:
            self.dequeued[run.priority] += 1
        return seated

    def _attempt(self, run: Run, job: Job | None, trust_until: float, renew_at: float) -> Attempt:
        known = job if job is not None else Job(id=run.job_id, handler="")
        return Attempt(self.worker, run, known, trust_until, renew_at)

    def _seat(self, attempt: Attempt, now_ms: int, mono_ms: float, *, is_deleted: bool) -> bool:
        run, job = attempt.run, attempt.job
        verdict: Cancelled | Hold | Back
        if is_deleted:
            verdict = Cancelled("its job was deleted")
        elif self._stops and (stop := self._stop_of(run)) is not None:
            verdict = Hold(stop_words(stop))
        elif (handler := self.worker.registry.get(job.handler)) is None:
            self._unknown_handlers.add(job.handler)
            refusal = self.worker.registry.refusal(job.handler)
            verdict = Hold(f"handler {job.handler} is not known here" if refusal is None else str(refusal))
        elif len(self.worker.suspects) >= SUSPECTS_MAX and is_suspect(handler, job, run):
            verdict = Back(self.worker.time.now_ms() + self._suspect_delay_ms())  # no slot for suspects is free
        elif self.is_drained or attempt.trust_until <= mono_ms or (seat := self.worker.pool.try_seat()) is None:
            verdict = Back()  # the claim began before the drain, or the process was suspended
        else:
            attempt.begin(handler, seat, now_ms, mono_ms)
            self._suspects_sent_back = 0 if attempt in self.worker.suspects else self._suspects_sent_back
            return True
        self.handed_back += 1
        attempt.hand_back(verdict)
        return False

    def _suspect_delay_ms(self) -> int:
        """Return the delay of a suspect that found no slot: as many come back at a time as there are slots."""
        groups = 1 + self._suspects_sent_back // SUSPECTS_MAX
        self._suspects_sent_back += 1
        step_ms, most_ms = SUSPECT_MS
        return min(most_ms, step_ms * groups)
