"""Which run is next here?  Claim no more runs than there are free seats, and start each at once.

Waiting belongs to the store (`claim(wait_ms=...)`), throttling belongs here: a cycle that found nothing lasts at least
`min_poll_ms`, whatever the store thinks of waiting.  A claim that was not answered is repeated with the same token and
gives the same runs, so none is left behind under a lease that nobody keeps.
"""

from __future__ import annotations

from collections.abc import Callable
from zlib import crc32

from msgspec import Struct

from pollux.events import ClaimsRefused
from pollux.ids import new_id
from pollux.model import ALL_VERSIONS, DRAIN, STOP, Back, Cancelled, Cause, Hold, Job, Node, Note, Run, drain_key
from pollux.plan import stop_of, stop_words
from pollux.runtime.attempt import Attempt, WorkerState
from pollux.runtime.claim_backoff import ClaimBackoff
from pollux.runtime.isolation.parent import is_suspect
from pollux.runtime.loop import Loop, Rest
from pollux.runtime.renewer import margin_ms
from pollux.store.contract import BATCH_MAX, FEED_MAX, LOSSES_MAX, Answer, Claimed, Store
from pollux.store.decoding import stops_as_far

FULL_REST_MS = 1_000
DRAINED_REST_MS = 1_000  # somebody asks all nodes to claim nothing: look so often whether that is over
SLOW_MS = 1_000  # a claim that took longer has waited: its lease began some time in between
SAY_AGAIN_MS = 60_000
NODES_MS = 2_000  # how old our picture of the others may be when we are given what only they can run
SUSPECT_MS = (200, 30_000)  # a suspect that finds no place comes again so much later for each group before it


class ClaimOptions(Struct, frozen=True):
    lease_ms: int = 30_000
    long_poll_ms: int = 30_000
    min_poll_ms: int | None = None  # None: 100 where the store waits, else 1000
    batch: int = BATCH_MAX  # runs in one claim
    losses_max: int = LOSSES_MAX
    feed_max: int = FEED_MAX


class Dispatcher(Loop):
    """Keep the pool fed."""

    def __init__(self, store: Store, kit: WorkerState, node_id: str, *, options: ClaimOptions | None = None) -> None:
        super().__init__("dispatcher", clock=kit.clock, events=kit.events)
        self.store, self.kit, self.node_id = store, kit, node_id
        self.options = options or ClaimOptions()
        self.waits = store.capabilities.waits
        self.is_rung = store.capabilities.rings
        self.on_bell: Callable[[], None] | None = None
        self.on_deaf: Callable[[], None] | None = None  # a wait is over, in which bells were heard
        self.listens_since: float | None = None  # none: we do not wait, or hear no bell in time
        self.on_steered: Callable[[], None] | None = None  # a stop or a setting has changed
        self.claims = 0
        self.claimed = 0
        self.handed_back = 0
        self.dequeued = [0] * 4  # claimed, by priority
        # Two processes forked from one carry the same dice: the node's mark keeps their tokens apart.
        self._mark = f"{crc32(node_id.encode()):08x}"
        self._token: str | None = None
        self._stops: dict[str, Note] = {}
        self._stops_revision: int | None = None
        self._own_drain = drain_key(node_id)
        self._drains: list[object] = []  # what is said of them
        self._must_look = True  # before the first claim, too
        self.heard_at: float | None = None  # when a claim was last answered, and told of what steers
        self._refused_at: float | None = None
        self.manners = ClaimBackoff(clock=kit.clock, dice=kit.dice)
        self._strangers: set[str] = set()  # handlers of the latest claim that are not known here
        self._elsewhere: set[str] = set()  # handlers of living nodes, as of some time ago
        self._elsewhere_at: float | None = None
        self._crowd = 0  # suspects sent away since the last one was let in

    @property
    def is_drained(self) -> bool:
        """Were all nodes, or was this one, asked to claim nothing?"""
        return bool(self._drains)

    @property
    def min_poll_ms(self) -> int:
        usual = 100 if self.waits else 1_000
        return usual if self.options.min_poll_ms is None else self.options.min_poll_ms

    def heed(self) -> None:
        """Look at the stops before the next claim: one of them has changed."""
        self._must_look = True
        self.wake()

    async def turn(self) -> Rest:
        if self.is_drained or self._must_look:
            await self._look_at_stops()
            if self.is_drained:
                await self.hand_back_unanswered()  # or what an interrupted claim took would stay ours, and idle
                return Rest(DRAINED_REST_MS)
        free = self._free()
        if free == 0 and self._token is None:
            return Rest.UNTIL_WOKEN  # a freed seat, room in the backlog or `resume` rings
        begun = self.clock.mono_ms()
        asked, waits = self.manners.limit(free), self.waits and not self.manners.is_polite
        waits = waits and not self.errors_in_a_row  # whether the store is back is to be known at once
        claimed = await self._claim(max(1, asked), wait_ms=self.options.long_poll_ms if waits and free else 0)
        if claimed is None:
            return Rest.NONE  # somebody wants a turn now
        heard = self.heard_at = self.clock.mono_ms()
        self.kit.time.learn(claimed.now_ms, asked=begun, heard=heard)
        if claimed.answer is Answer.FULL:
            return self._refused()
        await self._refresh_stops(claimed.stops_revision)
        if claimed.runs:
            self._token = None
            self._strangers.clear()
            seated = self._seat_all(claimed, begun, heard)
            lets = bool(self._strangers) and await self._others_know()
            self.manners.saw(seated=seated, asked=asked, given=len(claimed.runs), lets_others=lets)
            if not seated:
                return Rest(self.manners.rest_ms(self.min_poll_ms))  # nothing for us: let others have a look first
            return Rest.NONE if self._free() else Rest.UNTIL_WOKEN
        self._token = None
        return self._rest_of_empty(begun, heard)

    async def _others_know(self) -> bool:
        """Has a living node one of the handlers that we have not?  Else nobody is to be let go first."""
        now = self.clock.mono_ms()
        if self._elsewhere_at is None or now - self._elsewhere_at >= NODES_MS:
            near = [node for node in await self.store.nodes() if self._is_near(node)]
            self._elsewhere = {name for node in near for name in node.handlers}
            self._elsewhere_at = now
        return not self._strangers.isdisjoint(self._elsewhere)

    def _is_near(self, node: Node) -> bool:
        """May it be given what we are given?  A node of another version never is."""
        version = self.store.scheduler_version
        return version == ALL_VERSIONS or node.serves(version)

    async def hand_back_unanswered(self) -> None:
        """Claim no more: runs that a claim without an answer may have left to us go back."""
        if self._token is None:
            return
        claimed = await self.store.claim(
            node=self.node_id, token=self._token, limit=1, lease_ms=self.options.lease_ms, wait_ms=0
        )
        self._token = None
        for run in claimed.runs:
            self._attempt(run, claimed.jobs.get(run.job_id), float("inf"), float("inf")).hand_back(Back())

    # claiming

    def _free(self) -> int:
        if self.is_stopping or not self.kit.settler.has_room:
            return 0
        return min(self.kit.pool.free, self.options.batch)

    async def _claim(self, limit: int, *, wait_ms: int) -> Claimed | None:
        """None: interrupted.  The token stays until its claim is answered and its runs are seated."""
        options = self.options
        if self._token is None:
            self._token = f"{new_id(self.kit.time.now_ms(), self.kit.dice)}.{self._mark}"
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
        if self.is_woken or not wait_ms or not self.is_rung:
            return await self.interruptible(call)
        self.listens_since = self.clock.mono_ms()
        try:
            return await self.interruptible(call)
        finally:
            self.listens_since = None
            if self.on_deaf is not None:
                self.on_deaf()

    def _refused(self) -> Rest:
        """The leader is too far behind with the ends of runs; more ends would not help it."""
        self._token = None
        now = self.clock.mono_ms()
        if self._refused_at is None or now - self._refused_at >= SAY_AGAIN_MS:
            self._refused_at = now
            self.events.emit(ClaimsRefused(self.node_id, f"more than {self.options.feed_max} ends are unread"))
        return Rest(FULL_REST_MS)

    def _rest_of_empty(self, begun: float, heard: float) -> Rest:
        elapsed = heard - begun
        if self.manners.is_polite:
            self.manners.saw(seated=0, asked=1, given=0, lets_others=False)
            return Rest(self.manners.rest_ms(self.min_poll_ms))
        if self.waits and elapsed < self.options.long_poll_ms and self.on_bell is not None:
            self.on_bell()
        return Rest(self.min_poll_ms - elapsed) if elapsed < self.min_poll_ms else Rest.NONE

    # stops

    async def _refresh_stops(self, revision: int) -> None:
        if revision == self._stops_revision:
            return
        await self._look_at_stops()
        if self.on_steered is not None:
            self.on_steered()
        self._stops_revision = revision

    async def _look_at_stops(self) -> None:
        self._must_look = False
        stops, _ = await stops_as_far(self.store.notes(STOP))
        self._stops = {note.key: note for note in stops}
        drains = [self._stops[key].value for key in (DRAIN, self._own_drain) if key in self._stops]
        before, self._drains = self._drains, drains
        if drains != before and self.on_steered is not None:  # no claim would tell that one drain became another
            self.on_steered()

    def _stop_of(self, run: Run) -> Note | None:
        """The stop that forbids this run; a forced one is forbidden by none."""
        if run.cause is Cause.FORCED:
            return None
        now_ms = self.kit.time.now_ms()
        return stop_of(self._stops, job_id=run.job_id, group=run.group, target=run.target, now_ms=now_ms)

    # seating

    def _seat_all(self, claimed: Claimed, begun: float, heard: float) -> int:
        """Start every run at once, or hand it back; answers how many started."""
        lease_ms = self.options.lease_ms
        margin = margin_ms(lease_ms)
        has_waited = heard - begun > SLOW_MS
        since, seated = heard if has_waited else begun, 0
        now_ms, mono_ms = self.kit.time.now_ms(), self.clock.mono_ms()
        for run in claimed.runs:
            held = self.kit.leases.get(run.id)
            if held is not None and held.token == run.token:
                continue  # the same delivery a second time
            end = since + run.lease_until_ms - claimed.now_ms
            if has_waited:  # or stood still meanwhile: by the store's time, as we know it, the lease may be over
                end = min(end, mono_ms + run.lease_until_ms - now_ms)
            # After a wait nobody knows when the lease began: trust it, and make sure within a second.
            renew_at = heard + min(1_000.0, lease_ms / 3) if has_waited else end - lease_ms * 2 / 3
            job = claimed.jobs.get(run.job_id)
            attempt = self._attempt(run, job, end - margin, renew_at)
            seated += self._seat(attempt, now_ms, mono_ms, is_gone=job is None)
        self.claimed += len(claimed.runs)
        for run in claimed.runs:
            self.dequeued[run.priority] += 1
        return seated

    def _attempt(self, run: Run, job: Job | None, trust_until: float, renew_at: float) -> Attempt:
        known = job if job is not None else Job(id=run.job_id, handler="")
        return Attempt(self.kit, run, known, trust_until, renew_at)

    def _seat(self, attempt: Attempt, now_ms: int, mono_ms: float, *, is_gone: bool) -> bool:
        run, job = attempt.run, attempt.job
        verdict: Cancelled | Hold | Back
        if is_gone:
            verdict = Cancelled("its job was deleted")
        elif self._stops and (stop := self._stop_of(run)) is not None:
            verdict = Hold(stop_words(stop))
        elif (handler := self.kit.registry.get(job.handler)) is None:
            self._strangers.add(job.handler)
            refusal = self.kit.registry.refusal(job.handler)
            verdict = Hold(f"handler {job.handler} is not known here" if refusal is None else str(refusal))
        elif len(self.kit.suspects) >= self.kit.suspects_max and is_suspect(handler, job, run):
            verdict = Back(self.kit.time.now_ms() + self._turn_ms())  # only some are tried at a time
        elif self.is_drained or attempt.trust_until <= mono_ms or (seat := self.kit.pool.try_seat(run)) is None:
            verdict = Back()  # of a claim that had begun before we were asked to claim nothing, or stood still
        else:
            attempt.begin(handler, seat, now_ms, mono_ms)
            self._crowd = 0 if attempt in self.kit.suspects else self._crowd
            return True
        self.handed_back += 1
        attempt.hand_back(verdict)
        return False

    def _turn_ms(self) -> int:
        """How long a suspect waits for its turn: they come back as many at a time as are tried, not all at once."""
        groups = 1 + self._crowd // self.kit.suspects_max
        self._crowd += 1
        step_ms, most_ms = SUSPECT_MS
        return min(most_ms, step_ms * groups)
