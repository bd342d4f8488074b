"""Planning loop of the leader: one read of the feed, a pure plan, one write.

    trusted? ─▶ feed (waits until an entry comes or a job is due) ─▶ apply ─▶ learn ─▶ plan ─▶ advance ─▶ accept
        │                                                                                        │
        └─ no: drop the planner                          no answer: the same plan again ◀────────┤
                                                         fenced, or any error: drop it  ◀────────┘

The planner's memory counts only once its plan is answered.  A dropped planner is rebuilt from the store, so a mistake
here costs reads and never a firing.  An idle turn writes nothing.

A feed entry that cannot be decoded may report anything.  So the planner is dropped after the plan that consumed it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from pollux.clock import Clock, StoreClock
from pollux.errors import PolluxError, StoreBusy, StoreTimeout, Unreadable
from pollux.events import (
    Events,
    FiringSkipped,
    PlanFenced,
    RecordUnreadable,
    RunFired,
    RunHeld,
    RunReleased,
    RunsFired,
    RunStopped,
)
from pollux.model import (
    STOP,
    Advanced,
    Answer,
    Ended,
    FeedItem,
    Job,
    JobsPut,
    Node,
    Note,
    NotesChanged,
    Plan,
    Run,
    RunState,
    Spoilt,
)
from pollux.outcome import describe
from pollux.plan import Planner, PlanReport, ReadRequest, UnreportedCounts
from pollux.runtime.leader import Leader
from pollux.runtime.loop import Loop, Rest
from pollux.runtime.stats import Lateness, PlanStats
from pollux.secrets import hide
from pollux.store.contract import BATCH_MAX, PAGE_MAX, RunFilter, Store
from pollux.store.decoding import readable_part, readable_stops
from pollux.units import format_ms

Rests = tuple[tuple[float, float], ...]

FEED_LIMIT = 100  # entries in one read; each may hold a hundred ends
WAIT_MAX_MS = 30_000
SHORT_POLL_MS = 1_000  # where the store cannot wait
MIN_POLL_MS = 100  # an empty turn lasts at least this long, even if the store does not wait
TURN_REST_MS = 20
REST_USUAL_MAX_MS = 50
# Rest by the average number of firings a turn.  Many firings fill a turn; at a low rate several share one turn where
# each costs a commit; a single firing is not delayed.
RESTS_CHEAP: Rests = ((1.5, 3), (0.0, TURN_REST_MS))
RESTS_DEAR: Rests = ((16.0, TURN_REST_MS), (2.0, REST_USUAL_MAX_MS), (0.0, TURN_REST_MS))
AVERAGE_WEIGHT = 0.1
MANY_ENDS = 50  # a turn that did nothing but read so many ends: the next one is not urgent
MANY_ENDS_REST_MS = 100
MANY_PUTS = 10  # a turn that did nothing but set so many jobs due: others are being added, and share the next
LEARN_ROUNDS_MAX = 8
REPORTED_MAX = 10_000  # unreadable records that are remembered; beyond it all may be reported again
FRUITLESS_MAX = 200
FAILING_TERMS = 2  # a leader that fails to plan for so long gives up its term
T = TypeVar("T", Job, Run)


class Timekeeper(Loop):
    """Fire what is due, as long as the term can be trusted."""

    def __init__(
        self,
        store: Store,
        leader: Leader,
        time: StoreClock,
        make_planner: Callable[[], Planner],
        *,
        clock: Clock,
        events: Events,
        turn_rest_ms: float | None = None,
        wait_max_ms: int = WAIT_MAX_MS,
    ) -> None:
        super().__init__("timekeeper", clock=clock, events=events)
        self.store, self.leader, self.time, self.make_planner = store, leader, time, make_planner
        usual = RESTS_CHEAP if store.capabilities.writes_are_cheap else RESTS_DEAR
        self.rests: Rests = usual if turn_rest_ms is None else ((0.0, turn_rest_ms),)
        self.wait_max_ms = wait_max_ms
        self.waits = store.capabilities.waits
        self.late = Lateness()  # from due to written
        self.planned = PlanStats()
        self.fired = 0
        self.skipped = 0
        self.released = 0
        self.plans = 0
        self.rebuilds = 0
        self.fenced = 0  # plans refused because the term had ended
        self._term: int | None = None
        self.planner: Planner | None = None
        self._unanswered: Plan | None = None
        self._unreported: UnreportedCounts | None = None  # of the dropped planner
        self._is_triggered = False
        self._waiters: list[asyncio.Future[None]] = []  # waiting for the end of the next turn
        self.on_notes: Callable[[tuple[str, ...]], None] | None = None  # called with the keys of changed notes
        self._firings_average = 0.0  # moving average of firings a turn
        self._ends = self._puts = 0  # read in this turn; 0 if there may be more
        self._fruitless = 0  # turns in a row that had something to do and did nothing
        self._reported: dict[tuple[str, str], str] = {}  # unreadable records that were reported, and why
        self._failing_since: float | None = None  # every turn has failed since then

    def trigger(self) -> None:
        """Start a turn now, without any rest."""
        self._is_triggered = True
        self.wake()

    async def turned(self) -> None:
        """Start a turn now, and return when it is over, even if it fails."""
        over = asyncio.get_running_loop().create_future()
        self._waiters.append(over)
        self.trigger()
        await over

    async def turn(self) -> Rest:
        waiters, self._waiters = self._waiters, []
        try:
            rest = await self._turn()
            self._failing_since = None
        except Exception as error:
            await self._resign_if_failing(error)
            raise
        else:
            return rest
        finally:
            for waiter in waiters:
                if not waiter.done():  # the caller may have given up
                    waiter.set_result(None)

    async def _turn(self) -> Rest:
        term = self.leader.term
        if term is None:
            self._forget()
            return Rest.STANDBY
        try:
            return await self._lead(term)
        except (StoreTimeout, StoreBusy):
            if self._unanswered is None:
                self._forget()
            raise
        except BaseException:
            self._forget()
            raise

    async def _resign_if_failing(self, error: Exception) -> None:
        """Give up the term if every turn has failed for `FAILING_TERMS`: another node may be able to plan."""
        now = self.clock.mono_ms()
        if self._failing_since is None:
            self._failing_since = now
        failing_ms = now - self._failing_since
        if failing_ms >= FAILING_TERMS * self.leader.ttl_ms and self.leader.term is not None:
            self._failing_since = None
            why = f"no plan went through for {format_ms(round(failing_ms))}: {describe(error, hide)}"
            with suppress(PolluxError):  # else the term ends by itself
                await self.leader.yield_term(why)

    async def _lead(self, term: int) -> Rest:
        planner = await self._planner_of(term)
        if self._unanswered is not None:
            return await self._write(term, planner, self._unanswered)
        begun = self.clock.mono_ms()
        await self._read_feed(planner)
        await self._learn(planner)
        plan = planner.plan(self.time.now_ms())
        if plan.is_empty():
            return self._rest_of_idle(planner, begun)
        if self.leader.term != term:  # it ended while we waited
            self._forget()
            return Rest.NONE
        self._fruitless = 0
        return await self._write(term, planner, plan)

    async def flush_counts(self) -> None:
        """Write the counts not yet reported, before the term is given up.  The loop has stopped."""
        planner, term = self.planner, self.leader.term
        if planner is None or term is None or term != self._term or self._unanswered is not None:
            return
        plan = planner.unreported()
        if not plan.is_empty():
            await self.store.advance(term, plan)
            self.planner = self._unreported = None

    async def _planner_of(self, term: int) -> Planner:
        """Return the planner of this term; a new one is built from the store."""
        planner = self.planner if self._term == term else None
        if planner is not None and (self._unanswered or not planner.is_outdated(self.time.now_ms())):
            return planner
        self._forget()
        planner = self.make_planner()
        notes, nodes, counts = await self._notes(), await self._nodes(), await self.store.counts()
        held = await self._held()
        planner.begin(
            self.time.now_ms(), notes=notes, held=held, nodes=nodes, ready=counts.ready, left=self._unreported
        )
        await self._learn(planner, scans=False)
        if self.on_notes is not None:
            self.on_notes(tuple(note.key for note in notes))
        self.planner, self._term, self._unreported = planner, term, None
        self._is_triggered = True  # what is due is due now
        self.rebuilds += 1
        return planner

    async def _held(self) -> list[Run]:
        held: list[Run] = []
        after: str | None = ""
        while after is not None:
            runs, after = await self._waiting(after, RunState.HELD)
            held += runs
        return held

    async def _waiting(self, after: str, *states: RunState) -> tuple[list[Run], str | None]:
        """Return a page of the runs in these states (default: held or ready) and the cursor of the next page."""
        states = states or (RunState.HELD, RunState.READY)
        where = RunFilter(states=states, scheduler_version=self.store.scheduler_version)
        page, unreadable = await readable_part(self.store.list_runs(where, after=after or None, limit=PAGE_MAX))
        self._report("run", unreadable)
        return list(page.runs), page.next

    async def _read_feed(self, planner: Planner) -> None:
        """Apply new entries."""
        wait_ms = self._wait_ms(planner)
        self._is_triggered, self._ends, self._puts = False, 0, 0
        sent = self.clock.mono_ms()
        feed = await self.interruptible(self.store.feed(limit=FEED_LIMIT, wait_ms=wait_ms))
        if feed is None:
            return  # another turn was requested; the entries are still there
        self.time.learn(feed.now_ms, sent=sent)
        unreadable: list[Unreadable] = []
        for item in feed.items:
            planner.apply(item)
            if isinstance(item.entry, NotesChanged) and self.on_notes is not None:
                self.on_notes(item.entry.keys)
            elif isinstance(item.entry, Spoilt):
                unreadable.append(Unreadable(str(item.id), f"{item.entry.why}: {item.entry.text}"))
        self._report("entry", unreadable)
        if len(feed.items) < FEED_LIMIT:
            self._ends = sum([len(item.entry.ends) for item in feed.items if isinstance(item.entry, Ended)])
            self._puts = sum([len(item.entry.ids) for item in feed.items if isinstance(item.entry, JobsPut)])
        if self.events.wants(RunStopped):
            self._emit_stopped(feed.items)

    def _wait_ms(self, planner: Planner) -> int:
        if not self.waits or self.is_woken or self._is_triggered or planner.left_over:
            return 0
        if self.time.now_ms() < planner.seen_ms:
            return 0  # another node saw the clock jump back: plan before waiting by it
        left_ms = self._until_due(planner)
        return self.wait_max_ms if left_ms is None else max(0, min(self.wait_max_ms, math.ceil(left_ms)))

    def _until_due(self, planner: Planner) -> float | None:
        next_ms = planner.next_ms()
        return None if next_ms is None else next_ms - self.time.now_ms()

    async def _learn(self, planner: Planner, *, scans: bool = True) -> None:
        """Read what the planner asks for, in batches; what it learns may make it ask again."""
        for number in range(LEARN_ROUNDS_MAX):
            wants = planner.wants(self.time.now_ms(), scans=scans and number == 0)
            if not wants:
                return
            planner.learn(
                jobs=await self._jobs(wants),
                runs=await self._runs(wants),
                timers=None if wants.timers is None else await self._timers(wants),
                notes=await self._notes(STOP) if wants.notes else None,
                nodes=await self._nodes() if wants.nodes else None,
                all_jobs=None if wants.all_jobs is None else await self._all_jobs(wants.all_jobs),
                waiting_runs=None if wants.waiting_runs is None else await self._waiting(wants.waiting_runs),
            )

    async def _notes(self, prefix: str = "") -> list[Note]:
        notes, unreadable = await readable_stops(self.store.notes(prefix))
        self._report("note", unreadable)
        return notes

    async def _nodes(self) -> list[Node]:
        """Return the nodes of this version."""
        return [node for node in await self.store.nodes() if node.serves(self.store.scheduler_version)]

    async def _jobs(self, wants: ReadRequest) -> list[tuple[str, Job | Unreadable | None]]:
        ids = list(wants.jobs)
        found: list[tuple[str, Job | Unreadable | None]] = []
        for start in range(0, len(ids), BATCH_MAX):
            some = ids[start : start + BATCH_MAX]
            jobs, illegible = await readable_part(self.store.get_jobs(some))
            unreadable = {each.name: each for each in self._unreadable_jobs(illegible)}
            found += [
                (name, unreadable.get(name) or self._own_version(job)) for name, job in zip(some, jobs, strict=True)
            ]
        return found

    async def _all_jobs(self, after: str) -> tuple[list[Job | Unreadable], str | None]:
        """Return a page and the cursor of the next one.

        Other versions' jobs are read along, or a call might have to skip many.
        """
        page, unreadable = await readable_part(self.store.list_jobs(after=after or None, limit=PAGE_MAX))
        jobs = [job for job in page.jobs if self._own_version(job)]
        return [*jobs, *self._unreadable_jobs(unreadable)], page.next

    def _unreadable_jobs(self, unreadable: Sequence[Unreadable]) -> list[Unreadable]:
        unreadable_here = [each for each in unreadable if each.version in (None, self.store.scheduler_version)]
        self._report("job", unreadable_here)
        return unreadable_here

    async def _runs(self, wants: ReadRequest) -> list[tuple[str, Run | None]]:
        ids = list(wants.runs)
        found: list[tuple[str, Run | None]] = []
        for start in range(0, len(ids), BATCH_MAX):
            some = ids[start : start + BATCH_MAX]
            runs, unreadable = await readable_part(self.store.get_runs(some))
            self._report("run", unreadable)
            found += zip(some, map(self._own_version, runs), strict=True)
        return found

    def _own_version(self, found: T | None) -> T | None:
        """Return None for a record of another version."""
        return found if found is not None and found.scheduler_version == self.store.scheduler_version else None

    async def _timers(self, wants: ReadRequest) -> list[Job | Unreadable]:
        assert wants.timers is not None
        window = wants.timers
        due = self.store.due(after=window.after, before_ms=window.before_ms, limit=window.limit)
        jobs, unreadable = await readable_part(due)
        return [*jobs, *self._unreadable_jobs(unreadable)]

    def _report(self, kind: str, unreadable: Sequence[Unreadable]) -> None:
        """Report unreadable records once, those of one call together, until their error changes."""
        new = [each for each in unreadable if self._reported.get((kind, each.name)) != each.why]
        if not new:
            return
        if len(self._reported) >= REPORTED_MAX:
            self._reported.clear()
        self._reported |= {(kind, each.name): each.why for each in new}
        self.events.emit(RecordUnreadable(kind, new[0].name, new[0].why, len(new) - 1))

    async def _write(self, term: int, planner: Planner, plan: Plan) -> Rest:
        is_again, self._unanswered = self._unanswered is not None, plan
        asked = self.clock.mono_ms()
        advanced = await self.store.advance(term, plan)
        if advanced.answer is not Answer.OK and advanced.answer is not Answer.ALREADY:
            self._unanswered = plan if is_again else None  # it may have been written although no answer came
            self._forget()
            self.fenced += 1
            self.events.emit(PlanFenced(self.leader.node_id, term))
            if self.leader.term == term:  # and not a later one, won while the answer was under way
                self.leader.drop_term(f"the store answered {advanced.answer} to our plan")
            return Rest.NONE
        self._unanswered = None
        self.time.learn(advanced.now_ms, asked=asked)
        report = planner.accept(plan, advanced)
        self.plans += 1
        self._firings_average += AVERAGE_WEIGHT * (len(plan.firings) - self._firings_average)
        self._emit_fired(plan, advanced, report)
        return self._rest_of_busy(planner, plan, asked)

    def _emit_fired(self, plan: Plan, advanced: Advanced, report: PlanReport) -> None:
        for firing, answer in zip(plan.firings, advanced.firings, strict=True):
            if answer is Answer.OK or answer is Answer.WAITS:
                self.late.add(advanced.now_ms - firing.run.due_ms)
        self.planned.add(plan, report)
        self.fired += report.fired
        self.released += report.released
        if report.fired:
            self.events.emit(RunsFired(report.fired, report.late_ms_max))
        if self.events.wants(RunFired):
            self._emit_each(plan, advanced)
        for job_id, due_ms, count, reason in report.skipped:
            self.skipped += count
            self.events.emit(FiringSkipped(job_id, due_ms, count, reason))
        for run_id, reason in report.held:
            self.events.emit(RunHeld(run_id, reason))

    def _emit_each(self, plan: Plan, advanced: Advanced) -> None:
        for firing, answer in zip(plan.firings, advanced.firings, strict=True):
            if answer is Answer.OK or answer is Answer.WAITS:
                self.events.emit(RunFired(firing.run.id, firing.run.job_id, firing.run.due_ms, advanced.now_ms))
        waiting = set(advanced.waiting)
        for release in plan.releases:
            if release.run_id not in waiting:
                self.events.emit(RunReleased(release.run_id))

    def _emit_stopped(self, items: Sequence[FeedItem]) -> None:
        ended = (item.entry for item in items if isinstance(item.entry, Ended))
        for end in (end for entry in ended for end in entry.ends if not end.ran):
            self.events.emit(RunStopped(end.run_id, end.job_id, end.state.value, end.error, end.due_ms, end.ended_ms))

    def _rest_of_busy(self, planner: Planner, plan: Plan, asked: float) -> Rest:
        """Rest counted from write to write, so that a slow disk does not delay firings beyond its own time."""
        if planner.left_over or self._is_triggered or self.is_woken:
            return Rest.NONE
        left_ms = self._until_due(planner)
        usual_ms = rest_ms = next(ms for firings, ms in self.rests if self._firings_average >= firings)
        if self.rests is RESTS_DEAR and not plan.moves_runs:
            rest_ms = max(usual_ms, self._rest_after_reads())
        if left_ms is not None and rest_ms > min(usual_ms, REST_USUAL_MAX_MS):
            # A due time is not missed, but a stream of them must not become a stream of writes.
            rest_ms = min(rest_ms, max(TURN_REST_MS, left_ms))
        return Rest(max(rest_ms / 4, rest_ms - (self.clock.mono_ms() - asked)))

    def _rest_after_reads(self) -> float:
        """Return the rest after a turn that only read what others did: the next one is not urgent."""
        if self._ends >= MANY_ENDS:
            return MANY_ENDS_REST_MS
        return REST_USUAL_MAX_MS if self._puts >= MANY_PUTS else 0

    def _rest_of_idle(self, planner: Planner, begun: float) -> Rest:
        if planner.left_over:  # it reads on; a planner that makes no progress must not spin
            self._fruitless += 1
            return Rest.NONE if self._fruitless < FRUITLESS_MAX else Rest(MIN_POLL_MS)
        self._fruitless = 0
        least_ms = MIN_POLL_MS if self.waits else SHORT_POLL_MS
        rest_ms = least_ms - (self.clock.mono_ms() - begun)
        if rest_ms <= 0:
            return Rest.NONE
        left_ms = self._until_due(planner)
        return Rest(rest_ms if left_ms is None else max(1.0, min(rest_ms, left_ms)))

    def _forget(self) -> None:
        """Drop the planner, but keep its unreported counts for the next one."""
        if self.planner is not None:
            self._unreported = self.planner.leave(self._unanswered)
        self.planner = self._term = self._unanswered = None
