"""The leader's verbs: read the feed, write a plan."""

from __future__ import annotations

from collections.abc import Sequence

from pollux.model import Advanced, Answer, End, Firing, JobUpdate, Overlap, Plan
from pollux.store.relational.bells import RUNS
from pollux.store.relational.plan import WAITS_BEHIND, Facts
from pollux.store.relational.rows import HELD, LEASED, Row, made_in, memory_json
from pollux.store.sqlite.nodes import is_current, seats
from pollux.store.sqlite.notes import write_notes
from pollux.store.sqlite.runs import ask_to_stop, cancel_waiting, insert, key_holder, known_runs
from pollux.store.sqlite.sql import Statements, ids_json
from pollux.store.sqlite.transaction import Transaction, feed_numbers

_advance = Statements("advance")
_cancel = Statements("cancel")
_feed = Statements("feed")


def feed(tx: Transaction, limit: int, known: Sequence[int]) -> list[Row]:
    """The oldest entries; those that are known come without their body."""
    return tx.rows(_feed.read, (limit, ids_json(known), *feed_numbers(tx.version)))


def advance(tx: Transaction, term: int, plan: Plan, made: Sequence[Row], now_ms: int) -> Advanced:
    """`made` are the rows of the plan's firings."""
    if not is_current(tx, term):
        return Advanced(Answer.FENCED, now_ms)
    if plan.consumed:
        _consume(tx, plan.consumed)
    ends: list[tuple[int, End]] = []
    firings = _Firings(tx, plan.firings, made, ends, now_ms).answers() if plan.firings else ()
    if plan.firings:
        tx.tally.clock_ms = max(tx.tally.clock_ms, now_ms, *[firing.run.visible_ms for firing in plan.firings])
    if plan.releases:
        _release(tx, [release.run_id for release in plan.releases], now_ms)
    if plan.holds:
        tx.write_many(_advance.hold, [(holding.reason, holding.run_id, tx.version) for holding in plan.holds])
    for order in plan.cancels:
        _cancel_one(tx, order.run_id, order.reason, now_ms)
    updates = _update(tx, plan.updates) if plan.updates else ()
    write_notes(tx, plan.notes, now_ms, {})
    tx.tell_ends(ends)
    return Advanced(Answer.OK, now_ms, firings, updates, tx.tally.ready, seats(tx, now_ms))


def _consume(tx: Transaction, ids: Sequence[int]) -> None:
    gone = tx.rows(_advance.consume, (ids_json(ids), *feed_numbers(tx.version)))
    tx.tally.feed -= len(gone)
    tx.tally.ends -= sum(row[0] for row in gone)


class _Firings:
    """The firings of one plan, in their order; what they write is gathered and written together."""

    def __init__(
        self,
        tx: Transaction,
        firings: Sequence[Firing],
        rows: Sequence[Row],
        ends: list[tuple[int, End]],
        now_ms: int,
    ) -> None:
        self._tx, self._firings, self._rows, self._ends, self._now_ms = tx, firings, rows, ends, now_ms
        ids = ids_json(list({firing.run.job_id for firing in firings}))
        self._facts = {row[0]: Facts(*row[1:]) for row in tx.rows(_advance.facts, (ids, tx.version))}
        self._known = set(known_runs(tx, [firing.run.id for firing in firings]))
        self._made: list[Row] = []
        self._moved: list[Row] = []

    def answers(self) -> tuple[Answer, ...]:
        answers = tuple([self._fire(firing, row) for firing, row in zip(self._firings, self._rows, strict=True)])
        self._write()
        return answers

    def _fire(self, firing: Firing, row: Row) -> Answer:
        run = firing.run
        facts = self._facts.get(run.job_id)
        if facts is None or facts.revision != firing.revision:
            return Answer.STALE
        if run.id in self._known or facts.is_fired(run.due_ms, self._now_ms):
            return Answer.ALREADY
        answer = self._overlap(firing, facts)
        facts.last_due_ms = run.due_ms
        if answer is Answer.OVERLAPPED and firing.if_overlapped is not None:
            self._write()
            memory = firing.if_overlapped
            skipped = (run.due_ms, firing.next_due_ms, memory_json(memory), memory.last_end_ms, facts.n)
            self._tx.write(_advance.skip, skipped)
            return answer
        self._moved.append((run.due_ms, firing.next_due_ms, facts.n))
        if answer is not Answer.OVERLAPPED:
            self._make(row, facts, is_waiting=answer is Answer.WAITS)
        return answer

    def _make(self, row: Row, facts: Facts, *, is_waiting: bool) -> None:
        made = (*row[:10], HELD, WAITS_BEHIND, *row[12:]) if is_waiting else row
        self._made.append(made_in(made, self._tx.version))
        self._known.add(row[0])
        facts.has_live = True

    def _overlap(self, firing: Firing, facts: Facts) -> Answer:
        """ok, waits or overlapped; under CANCEL the previous run is asked to stop, or ends here if it only waited."""
        if firing.run.key is not None:
            self._write()
            if key_holder(self._tx, firing.run.key):
                return Answer.OVERLAPPED
        if not facts.has_live or firing.overlap is Overlap.ALLOW:
            return Answer.OK
        if firing.overlap is Overlap.SKIP:
            return Answer.OVERLAPPED
        self._write()
        is_cancel = firing.overlap is Overlap.CANCEL
        live = self._tx.rows(_advance.live, (firing.run.job_id, -1 if is_cancel else 2))
        if is_cancel:
            self._cancel_previous(live, f"replaced by {firing.run.id}")
        return Answer.WAITS if len(live) == 1 else Answer.OVERLAPPED

    def _cancel_previous(self, live: list[Row], reason: str) -> None:
        for row in live:
            if row[1] == LEASED and not row[8]:
                ask_to_stop(self._tx, row[0], reason)
        if len(live) == 1 and live[0][1] != LEASED:
            self._ends += cancel_waiting(self._tx, live, reason, self._now_ms)

    def _write(self) -> None:
        insert(self._tx, self._made)
        if self._moved:
            self._tx.write_many(_advance.move, self._moved)
        self._made, self._moved = [], []


def _release(tx: Transaction, ids: Sequence[str], now_ms: int) -> None:
    released = tx.write_many(_advance.release, [(now_ms, run_id, tx.version) for run_id in ids])
    if released:
        tx.tally.held -= released
        tx.tally.ready += released
        tx.rings |= RUNS


def _cancel_one(tx: Transaction, run_id: str, reason: str, now_ms: int) -> None:
    """As `cancel`, but the leader need not be told what it did itself."""
    row = tx.row(_cancel.found, (ids_json([run_id]),))
    if row is None or row[1] > LEASED or row[7] != tx.version:
        return
    if row[1] != LEASED:
        cancel_waiting(tx, [row], reason, now_ms)
    elif not row[8]:
        ask_to_stop(tx, row[0], reason)


def _update(tx: Transaction, updates: Sequence[JobUpdate]) -> tuple[Answer, ...]:
    rows = [
        (
            update.next_due_ms,
            update.last_due_ms,
            memory_json(update.memory),
            update.memory.last_end_ms,
            update.job_id,
            update.revision,
            tx.version,
        )
        for update in updates
    ]
    if tx.write_many(_advance.update, rows) == len(rows):
        return (Answer.OK,) * len(rows)
    ids = ids_json(list({update.job_id for update in updates}))
    revisions = {row[0]: row[2] for row in tx.rows(_advance.facts, (ids, tx.version))}
    return tuple(Answer.OK if revisions.get(update.job_id) == update.revision else Answer.STALE for update in updates)
