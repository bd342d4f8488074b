"""The leader's verbs: read the feed, write a plan."""

from __future__ import annotations

from collections.abc import Sequence

from pollux.model import Advanced, Answer, CancelOrder, End, Firing, JobUpdate, Overlap, Plan
from pollux.store.postgres.notes import write_notes
from pollux.store.postgres.rows import columns, put
from pollux.store.postgres.runs import ask_to_stop, cancel_waiting, insert, key_holder, known_runs
from pollux.store.postgres.sql import Statements
from pollux.store.postgres.transaction import Transaction
from pollux.store.relational.bells import RUNS
from pollux.store.relational.plan import WAITS_BEHIND, Facts
from pollux.store.relational.rows import HELD, LEASED, Row, made_in, memory_json

_advance = Statements("advance")
_cancel = Statements("cancel")
_feed = Statements("feed")


async def feed(tx: Transaction, limit: int, known: Sequence[int]) -> list[Row]:
    """(now, id, body) of the oldest entries; those that are known come without their body."""
    return await tx.rows(_feed.read, limit, known, tx.given_ms, tx.version)


async def advance(tx: Transaction, term: int, plan: Plan, made: Sequence[Row]) -> Advanced:
    """`made` are the rows of the plan's firings."""
    number, holder, now_ms = await tx.one(_advance.term, tx.given_ms, tx.version)
    tx.given_ms = now_ms
    if number != term or not holder:
        return Advanced(Answer.FENCED, now_ms)
    ready, seats = await tx.one(_advance.state, now_ms, tx.version)
    if plan.consumed:
        gone = await tx.rows(_advance.consume, plan.consumed, tx.version)
        tx.tally.feed -= len(gone)
        tx.tally.ends -= sum(row[0] for row in gone)
    facts = await _facts(tx, plan)
    ends: list[tuple[int, End]] = []
    firings = await _Firings(tx, plan.firings, made, facts, ends, now_ms).answers() if plan.firings else ()
    if plan.firings:
        tx.tally.clock_ms = max(now_ms, *[firing.run.visible_ms for firing in plan.firings])
    if plan.releases:
        await _release(tx, [release.run_id for release in plan.releases], now_ms)
    if plan.holds:
        held = {holding.run_id: put(holding.reason) for holding in plan.holds}
        await tx.rows(_advance.hold, list(held), list(held.values()), tx.version)
    if plan.cancels:
        await _cancel_all(tx, plan.cancels, now_ms)
    updates = await _update(tx, plan.updates, facts)
    await write_notes(tx, plan.notes, {})
    tx.tell_ends(ends)
    return Advanced(Answer.OK, now_ms, firings, updates, ready + tx.tally.ready, seats)


async def _facts(tx: Transaction, plan: Plan) -> dict[str, Facts]:
    """Of all jobs that the plan moves; nobody else can change them before this write ends."""
    ids = {firing.run.job_id for firing in plan.firings} | {update.job_id for update in plan.updates}
    if not ids:
        return {}
    return {row[0]: Facts(*list(row)[1:]) for row in await tx.rows(_advance.facts, list(ids), tx.version)}


class _Firings:
    """The firings of one plan, in their order; what they write is gathered and written together."""

    def __init__(
        self,
        tx: Transaction,
        firings: Sequence[Firing],
        rows: Sequence[Row],
        facts: dict[str, Facts],
        ends: list[tuple[int, End]],
        now_ms: int,
    ) -> None:
        self._tx, self._firings, self._rows, self._ends, self._now_ms = tx, firings, rows, ends, now_ms
        self._facts = facts
        self._known: set[str] = set()
        self._made: list[Row] = []
        self._moved: dict[int, Row] = {}

    async def answers(self) -> tuple[Answer, ...]:
        self._known = await known_runs(self._tx, [firing.run.id for firing in self._firings])
        answers = [await self._fire(firing, row) for firing, row in zip(self._firings, self._rows, strict=True)]
        await self._write()
        if self._moved:
            await self._tx.rows(_advance.move, *columns(list(self._moved.values()), 6))
        return tuple(answers)

    async def _fire(self, firing: Firing, row: Row) -> Answer:
        run = firing.run
        facts = self._facts.get(run.job_id)
        if facts is None or facts.revision != firing.revision:
            return Answer.STALE
        if run.id in self._known or facts.is_fired(run.due_ms, self._now_ms):
            return Answer.ALREADY
        answer = await self._overlap(firing, facts)
        facts.last_due_ms = run.due_ms
        self._move(firing, facts, is_skipped=answer is Answer.OVERLAPPED)
        if answer is not Answer.OVERLAPPED:
            self._make(row, facts, is_waiting=answer is Answer.WAITS)
        return answer

    def _move(self, firing: Firing, facts: Facts, *, is_skipped: bool) -> None:
        memory = firing.if_overlapped if is_skipped else None
        learnt: Row = (False, None, None)
        if memory is not None:
            learnt = (True, memory_json(memory), memory.last_end_ms)
        elif facts.n in self._moved:
            learnt = self._moved[facts.n][3:]
        self._moved[facts.n] = (facts.n, firing.run.due_ms, firing.next_due_ms, *learnt)

    def _make(self, row: Row, facts: Facts, *, is_waiting: bool) -> None:
        made = (*row[:10], HELD, WAITS_BEHIND, *row[12:]) if is_waiting else row
        self._made.append(made_in(made, self._tx.version))
        self._known.add(row[0])
        facts.has_live = True

    async def _overlap(self, firing: Firing, facts: Facts) -> Answer:
        """ok, waits or overlapped; under CANCEL the previous run is asked to stop, or ends here if it only waited."""
        if firing.run.key is not None:
            await self._write()
            if await key_holder(self._tx, put(firing.run.key)):
                return Answer.OVERLAPPED
        if not facts.has_live or firing.overlap is Overlap.ALLOW:
            return Answer.OK
        if firing.overlap is Overlap.SKIP:
            return Answer.OVERLAPPED
        await self._write()
        is_cancel = firing.overlap is Overlap.CANCEL
        live = await self._tx.rows(_advance.live, firing.run.job_id, None if is_cancel else 2)
        if is_cancel:
            await self._cancel_previous(live, f"replaced by {firing.run.id}")
        if not live:
            return Answer.OK
        return Answer.WAITS if len(live) == 1 else Answer.OVERLAPPED

    async def _cancel_previous(self, live: Sequence[Row], reason: str) -> None:
        asked = [row[0] for row in live if row[1] == LEASED and not row[8]]
        await ask_to_stop(self._tx, asked, [reason] * len(asked))
        if len(live) == 1 and live[0][1] != LEASED:
            self._ends += await cancel_waiting(self._tx, live, [reason], self._now_ms)

    async def _write(self) -> None:
        made, self._made = self._made, []
        await insert(self._tx, made)


async def _release(tx: Transaction, ids: Sequence[str], now_ms: int) -> None:
    released = len(await tx.rows(_advance.release, ids, now_ms, tx.version))
    if released:
        tx.tally.held -= released
        tx.tally.ready += released
        tx.rings |= RUNS


async def _cancel_all(tx: Transaction, orders: Sequence[CancelOrder], now_ms: int) -> None:
    """As `cancel`, but the leader need not be told what it did itself."""
    reasons: dict[str, str] = {}
    for order in orders:
        reasons.setdefault(order.run_id, order.reason)
    found = [row for row in await tx.rows(_cancel.found, list(reasons)) if row[7] == tx.version]
    waiting = [row for row in found if row[1] != LEASED]
    await cancel_waiting(tx, waiting, [reasons[row[2]] for row in waiting], now_ms)
    asked = [row for row in found if row[1] == LEASED and not row[8]]
    await ask_to_stop(tx, [row[0] for row in asked], [reasons[row[2]] for row in asked])


async def _update(tx: Transaction, updates: Sequence[JobUpdate], facts: dict[str, Facts]) -> tuple[Answer, ...]:
    answers = []
    rounds: list[dict[str, Row]] = []  # of a job that comes twice the second is written after the first
    for update in updates:
        there = facts.get(update.job_id)
        is_ours = there is not None and there.revision == update.revision
        answers.append(Answer.OK if is_ours else Answer.STALE)
        if is_ours:
            if not rounds or update.job_id in rounds[-1]:
                rounds.append({})
            learnt = (memory_json(update.memory), update.memory.last_end_ms)
            rounds[-1][update.job_id] = (update.job_id, update.next_due_ms, update.last_due_ms, *learnt)
    for each in rounds:
        await tx.rows(_advance.update, *columns(list(each.values()), 5))
    return tuple(answers)
