"""The verb that ends an attempt: all that becomes true with it, or nothing.

Settlements take effect in their order.  The plain end of runs that we claimed ourselves is one statement.  Everything
else is read first, decided, and written together, follow-ups last; settlement by settlement only where the order can be
seen: a follow-up that wants a key which another run of the same call frees, or follow-ups beside dead letters that go.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from operator import itemgetter

from pollux.model import PROGRESS_CHARS_MAX, Done, End, Ended, NotePut, Verdict
from pollux.store.contract import Answer
from pollux.store.postgres.errors import NOT_PLAINLY
from pollux.store.postgres.rows import got, packed, put
from pollux.store.postgres.runs import accept, arrived, look
from pollux.store.postgres.transaction import PostgresTransaction
from pollux.store.relational.notes import add_notes_changed, write_notes
from pollux.store.relational.plan import SCHEDULED, keys_of
from pollux.store.relational.rows import DEAD, DONE, HELD, HISTORY_PLAIN, JOB, LEASED, Row, encode
from pollux.store.relational.settle import (
    FINAL,
    FinishedRow,
    FoundRun,
    PreparedSettlement,
    RetriedRow,
    done,
    final,
    finish,
    hand_back,
    refused,
    takes_letters,
)
from pollux.store.relational.wakeup import FEED, RUNS

KEY_FREED, VERSION = 15, 16  # behind the columns of `FoundRun`: the key, the version, and the time
CLAIMED_VERSION = 9  # the version in a row of the cache
# A run that was asked for is `later` (see the schema) while its retry is far, too.  All its index entries are
# written anew for that, so one whose retry is near stays where it is: few are near at any moment.
NEAR_MS = 10_000
CLAIMED_MAX = 50_000  # runs that a cache remembers


class SettleCache:
    """The runs that a handle claimed, as far as a plain settlement needs them: rows of `FoundRun` by id, and versions.

    With it the whole settlement is one statement, which checks that the leases still hold.  Other runs are read first.
    """

    def __init__(self, most: int = CLAIMED_MAX) -> None:
        self._most = most
        self._held: dict[str, Row] = {}

    def add(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self._held[row[0]] = row
        excess = len(self._held) - self._most
        if excess > 0:  # leases that were not settled here
            for run_id in list(islice(self._held, excess)):
                del self._held[run_id]

    def take(self, items: Sequence[PreparedSettlement]) -> list[Row] | None:
        """What is known of all of them, if each is ours and ends plainly, all in one version; then it is forgotten."""
        rows = [self._held.pop(item.settlement.run_id, None) for item in items]
        found = [row for row, item in zip(rows, items, strict=True) if row is not None and _is_plain(row, item)]
        is_whole = len(found) == len(items) and len({row[-1] for row in found}) == 1
        return found if is_whole else None


def _is_plain(row: Row, item: PreparedSettlement) -> bool:
    settlement = item.settlement
    verdict, outcome = settlement.verdict, settlement.outcome
    return (
        type(verdict) is Done
        and not verdict.clears
        and outcome is not None
        and not outcome.crashed
        and row[2] == settlement.token
        and not (item.follow_ups or item.notes or settlement.progress)
    )


async def settle_plainly(tx: PostgresTransaction, items: Sequence[PreparedSettlement], rows: Sequence[Row]) -> bool:
    """Settle plain ends of runs of which `rows` are known, in one statement; False: not all can be, and none was."""
    ends: list[End] = []
    finished: list[Row] = []
    for row, item in zip(rows, items, strict=True):
        verdict = item.settlement.verdict
        after, end = done(row, item, failed=isinstance(verdict, Done) and verdict.failed, now_ms=0)
        _, history_class, started_ms, finished_ms, failed, changed, error, result, _, _ = after
        finished.append((row[1], row[2], history_class, started_ms, finished_ms, failed, changed, put(error), result))
        ends.append(end)
    finished.sort(key=itemgetter(0))
    version = rows[0][CLAIMED_VERSION]
    tx.counters_of(version)  # whose waiters are woken
    tx.wakeups |= FEED
    try:
        await tx.fetch(
            "settle.done", *packed(finished, (0, 6, 8)), encode(Ended(tuple(ends))), *tx.notification(), version
        )
    except NOT_PLAINLY:
        tx.wakeups = 0
        return False
    return True


async def settle(tx: PostgresTransaction, items: Sequence[PreparedSettlement]) -> list[Answer]:
    jobs = await _standing_jobs(tx, items)
    ids = [item.settlement.run_id for item in items]
    rows = await tx.fetch("settle.found", ids, tx.given_ms)
    found = {row[0]: _found(row) for row in rows}
    now_ms = rows[0][-1] if rows else 0
    tx.given_ms = now_ms or tx.given_ms
    missing = [run_id for run_id in ids if run_id not in found]
    ended = {row[0]: row for row in await tx.fetch("settle.ended", missing)} if missing else {}
    answers, ours = _ours(items, found, ended)
    versions = {row[0]: row[VERSION] for row in rows}
    batch = _PostgresSettle(tx, now_ms, versions, jobs)
    steps = [[each] for each in ours] if _must_step(ours, {row[KEY_FREED] for row in rows}) else [ours]
    for step in steps:
        await batch.settle(step)
    for run, _ in ours:
        tx.counters_of(versions[run.id]).leased -= 1
    await batch.tell()
    return answers


Ours = list[tuple[FoundRun, PreparedSettlement]]


def _found(row: Row) -> FoundRun:
    run = FoundRun._make(row[:KEY_FREED])
    if "\x01" in run.cancel or "\x01" in run.held_reason:
        run = run._replace(cancel=got(run.cancel), held_reason=got(run.held_reason))
    return run


def _ours(
    items: Sequence[PreparedSettlement], found: dict[str, FoundRun], ended: dict[str, Row]
) -> tuple[list[Answer], Ours]:
    """The answers, and those that are settled; of a run that is named twice the first."""
    answers: list[Answer] = []
    ours: dict[str, tuple[FoundRun, PreparedSettlement]] = {}
    for item in items:
        run_id, token = item.settlement.run_id, item.settlement.token
        run = found.get(run_id)
        if run is None or run.state != LEASED or run.token != token:
            answers.append(refused(run or ended.get(run_id), token))
        else:
            answers.append(Answer.ALREADY if run_id in ours else Answer.OK)
            ours.setdefault(run_id, (run, item))
    return answers, list(ours.values())


async def _standing_jobs(tx: PostgresTransaction, items: Sequence[PreparedSettlement]) -> set[str]:
    """The jobs that are there, of runs that may be tried again and of follow-ups; they stay until this write ends."""
    again = [item.settlement.run_id for item in items if not isinstance(item.settlement.verdict, FINAL)]
    wanted = {row[JOB] for item in items for row in item.follow_ups}
    if not (again or wanted):
        return set()
    return {row[0] for row in await tx.fetch("settle.standing", again, list(wanted))}


def _must_step(ours: Ours, freed: set[str | None]) -> bool:
    follow_ups = [row for _, item in ours for row in item.follow_ups]
    has_letters = any(takes_letters(item.settlement.verdict) for _, item in ours)
    return bool(follow_ups) and (has_letters or not freed.isdisjoint(keys_of(follow_ups)))


class _PostgresSettle:
    """What one call has to write and to tell."""

    def __init__(self, tx: PostgresTransaction, now_ms: int, versions: dict[str, int], jobs: set[str]) -> None:
        self.tx, self.now_ms, self.versions, self.jobs = tx, now_ms, versions, jobs
        self.ends: list[tuple[int, End]] = []
        self.arrived: list[tuple[int, str]] = []
        self.notes: dict[str, None] = {}

    async def settle(self, ours: Ours) -> None:
        """What can be written together."""
        writes = _Writes(await self._take_letters(ours))
        follow_ups: list[Row] = []
        note_puts: list[NotePut] = []
        for run, item in ours:
            verdict = final(item.settlement.verdict, run.job_id, run.cancel, self.jobs)
            if isinstance(verdict, FINAL):
                letters = writes.take_letters(run.job_id) if takes_letters(verdict) else 0
                after, end = finish(run, verdict, item, self.now_ms, letters)
                writes.finish(run, after, item)
            else:
                end = self._hand_back(run, verdict, item, writes)
            self.ends.append((self.versions[run.id], end))
            follow_ups += item.follow_ups
            note_puts += item.notes
        await writes.write(self.tx)
        if follow_ups:
            facts = await look(self.tx, follow_ups)
            self.arrived += arrived(follow_ups, await accept(self.tx, follow_ups, facts), facts)
        await write_notes(self.tx, note_puts, self.notes)

    async def _take_letters(self, ours: Ours) -> dict[str, int]:
        """Make history of the dead letters that go; answers how many deaths they counted, by job."""
        ids = {run.job_id for run, item in ours if takes_letters(item.settlement.verdict)}
        gone = await self.tx.fetch("settle.clear_dead_letters", list(ids)) if ids else []
        self.tx.shared.dead -= sum(row[1] for row in gone)
        return {row[0]: row[2] for row in gone}

    def _hand_back(self, run: FoundRun, verdict: Verdict, item: PreparedSettlement, writes: _Writes) -> End:
        after, end = hand_back(run, verdict, item, self.now_ms)
        crashed, progress = _crash_and_progress(item)
        if isinstance(after, RetriedRow):
            is_later = run.cause != SCHEDULED and after.visible_ms > self.now_ms + NEAR_MS
            writes.retried.append((run.seq, *after._replace(error=put(after.error)), crashed, progress, is_later))
        else:
            writes.handed_back.append((run.seq, after.state, put(after.reason), after.visible_ms, progress))
        version = self.versions[run.id]
        if after.state == HELD:
            self.tx.counters_of(version).held += 1
            self.arrived.append((version, run.id))
        else:
            self.tx.counters_of(version).ready += 1
            self.tx.wakeups |= RUNS
        return end

    async def tell(self) -> None:
        self.tx.add_ends(self.ends)
        self.tx.add_arrived(self.arrived)
        await add_notes_changed(self.tx, self.notes)


class _Writes:
    """Rows by statement, and the dead letters that are among them."""

    def __init__(self, letters: dict[str, int]) -> None:
        self._letters = letters
        self._dead = 0  # new dead letters
        self._died: dict[str, list[int]] = {}  # those of the schedule: places in `finished`, by job
        self._finished: list[tuple[int, FinishedRow, Row]] = []
        self.retried: list[Row] = []
        self.handed_back: list[Row] = []

    def finish(self, run: FoundRun, after: FinishedRow, item: PreparedSettlement) -> None:
        self._dead += after.state == DEAD
        if after.state == DEAD and run.cause == SCHEDULED:
            self._died.setdefault(run.job_id, []).append(len(self._finished))
        row = after._replace(error=put(after.error), cancel=put(after.cancel))
        self._finished.append((run.seq, row, _crash_and_progress(item)))

    def take_letters(self, job_id: str) -> int:
        """Take those that were there before, and those of this call so far; answers how many deaths they counted.

        Not of forced and enqueued runs: those stay, to be revived or dropped by hand.
        """
        deaths = self._letters.pop(job_id, 0)
        for place in self._died.pop(job_id, ()):
            seq, after, extra = self._finished[place]
            deaths += after.deaths
            self._dead -= 1
            self._finished[place] = (seq, after._replace(state=DONE, history_class=HISTORY_PLAIN), extra)
        return deaths

    async def write(self, tx: PostgresTransaction) -> None:
        finished = [(seq, *after, *extra) for seq, after, extra in self._finished]
        tx.shared.dead += self._dead
        await tx.write_rows("settle.finish", finished)
        await tx.write_rows("settle.retry", self.retried)
        await tx.write_rows("settle.hand_back", self.handed_back)


def _crash_and_progress(item: PreparedSettlement) -> Row:
    """Besides the outcome: whether the owner's process crashed, and the last progress."""
    outcome = item.settlement.outcome
    is_crashed = outcome is not None and outcome.crashed
    return (int(is_crashed), put(item.settlement.progress[:PROGRESS_CHARS_MAX]))
