"""Verbs of delivery: claim (which also takes back lost leases) and renew.

A claim first looks, without a lock and without a transaction; only if something is there does it become a write.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from pollux.model import PROGRESS_CHARS_MAX, End, Job, Run
from pollux.store.contract import Answer, Claimed, Renewal, Renewed, Settlement
from pollux.store.decoding import UNREADABLE, LeasedRow
from pollux.store.relational import rows
from pollux.store.relational.claim import CLAIMS_MAX, LOST_MAX, HandBack, decode_claim, first_of, lose
from pollux.store.relational.feed_entries import JOB_GONE
from pollux.store.relational.jobs import get_jobs
from pollux.store.relational.rows import DEAD, LEASED, READY, Row
from pollux.store.relational.runs import cancel_waiting
from pollux.store.relational.transaction import at_once
from pollux.store.relational.wakeup import RUNS
from pollux.store.sqlite.transaction import SQL, Claims, SqliteTransaction, ids_json
from pollux.store.values import ClaimRequest

SEQ, ID, JOB, DUE, CAUSE, GATED, FENCE = 0, 1, 2, 3, 4, 10, 12  # places in the row of a ready run
WHOLE_FENCE, WHOLE_TOKEN = 17, 18  # and in a whole row


class ClaimedRows(NamedTuple):
    """What a claim leased, as rows: those of a first delivery short, as they were; the others whole, as they are."""

    answer: Answer
    runs: list[Row]
    whole: dict[int, Row]
    jobs: dict[str, Row]
    stops: int
    look_again_ms: int | None
    now_ms: int


def decode(
    found: ClaimedRows, request: ClaimRequest, version: int, job_of: Callable[[Row], Job], hand_back: HandBack
) -> tuple[Claimed, list[Settlement]]:
    """The answer, and the settlements of the runs that cannot be decoded or whose job cannot be."""
    until_ms, whole = found.now_ms + request.lease_ms, found.whole

    def run_of(row: Row) -> Run:
        if row[SEQ] in whole:
            return rows.run(whole[row[SEQ]][1:])
        return rows.leased_run(row, request.token, request.node, until_ms, version)

    def leased(row: Row) -> LeasedRow:
        stored = whole.get(row[SEQ])
        fence, token = (1, f"{request.token}:1") if stored is None else stored[WHOLE_FENCE : WHOLE_TOKEN + 1]
        return LeasedRow(row[ID], token, row[JOB], fence)

    settlements: list[Settlement] = []
    try:
        jobs = {job_id: job_of(row) for job_id, row in found.jobs.items()}
        runs = [run_of(row) for row in found.runs]
    except UNREADABLE:
        by_one = [(leased(row), row) for row in found.runs]
        runs, jobs, settlements = decode_claim(by_one, run_of, found.jobs, job_of, hand_back)
    claimed = Claimed(found.answer, tuple(runs), jobs, found.stops, found.look_again_ms, found.now_ms)
    return claimed, settlements


class _ClaimProbe(NamedTuple):
    visible_ms: tuple[int | None, ...]
    ends_ms: int | None
    is_again: bool
    ends: int
    stops: int
    clock_ms: int

    def first_ms(self, hold_until_ms: int | None) -> int | None:
        """The earliest visible time or lease end; leases not before they may be taken back."""
        return first_of(self.visible_ms, self.ends_ms, hold_until_ms)


def probe(tx: SqliteTransaction, request: ClaimRequest, hold_ms: int) -> ClaimedRows | None:
    """The answer to a claim that has nothing to do; None: it has to write."""
    now_ms = tx.given_ms
    seen = _probe(tx, request.token)
    if seen.is_again or seen.clock_ms > now_ms:
        return None
    if seen.ends > request.feed_max:
        return ClaimedRows(Answer.FULL, [], {}, {}, seen.stops, None, now_ms)
    first_ms = seen.first_ms(now_ms + hold_ms if hold_ms else None)
    if first_ms is not None and first_ms <= now_ms:
        return None
    return ClaimedRows(Answer.OK, [], {}, {}, seen.stops, first_ms, now_ms)


def _probe(tx: SqliteTransaction, token: str) -> _ClaimProbe:
    row = tx.row(SQL["claim.probe"], (tx.version,))
    assert row is not None
    return _ClaimProbe(row[:3], row[3], token in tx.claims, *row[4:])


def claim(tx: SqliteTransaction, request: ClaimRequest, hold_ms: int) -> ClaimedRows:
    """`hold_ms`: for how long no lease may be taken back, because the clock jumped forwards."""
    now_ms = tx.given_ms
    if again := _again(tx, request.token, now_ms):
        whole = {row[SEQ]: row for row in again}
        return ClaimedRows(Answer.OK, again, whole, _jobs_of(tx, again), tx.shared.stops, None, now_ms)
    if tx.counters.ends > request.feed_max:
        return ClaimedRows(Answer.FULL, [], {}, {}, tx.shared.stops, None, now_ms)
    ends = _take_back(tx, request.losses_max, now_ms, can_reclaim=hold_ms == 0)
    runs, jobs = _take(tx, request, ends, now_ms)
    tx.add_ends(ends)
    if runs:
        whole = _whole(tx, [row[SEQ] for row in runs if row[FENCE]])
        return ClaimedRows(Answer.OK, runs, whole, jobs, tx.shared.stops, None, now_ms)
    seen = _probe(tx, request.token)
    first_ms = seen.first_ms(now_ms + hold_ms if hold_ms else None)
    return ClaimedRows(Answer.OK, [], {}, {}, tx.shared.stops, first_ms, now_ms)


def _again(tx: SqliteTransaction, token: str, now_ms: int) -> list[Row]:
    """What the same claim got before, as far as its leases are live."""
    taken = _whole(tx, tx.claims.get(token, ())).values()
    return [row for row in taken if row[18] == f"{token}:{row[17]}" and row[20] > now_ms]


def _whole(tx: SqliteTransaction, seqs: Sequence[int]) -> dict[int, Row]:
    return {row[SEQ]: row for row in tx.rows(SQL["claim.whole"], (ids_json(seqs),))} if seqs else {}


def _jobs_of(tx: SqliteTransaction, runs: Sequence[Row]) -> dict[str, Row]:
    return at_once(get_jobs(tx, list({row[JOB] for row in runs})))


def _take(
    tx: SqliteTransaction, request: ClaimRequest, ends: list[tuple[int, End]], now_ms: int
) -> tuple[list[Row], dict[str, Row]]:
    runs: list[Row] = []
    jobs: dict[str, Row] = {}
    for priority in request.order:
        while len(runs) < request.limit:
            found = tx.rows(SQL["claim.ready"], (tx.version, priority, now_ms, request.limit - len(runs)))
            if not found:
                break
            jobs.update(_jobs_of(tx, found))
            orphans = [row for row in found if row[JOB] not in jobs]
            if not orphans:
                _lease(tx, request, found, now_ms)
                runs += found
                break
            waiting = [
                (row[SEQ], READY, row[ID], row[JOB], row[DUE], row[CAUSE], row[GATED], tx.version) for row in orphans
            ]
            ends += at_once(cancel_waiting(tx, waiting, [JOB_GONE] * len(waiting)))
    if runs:
        _remember(tx.claims, request.token, [row[SEQ] for row in runs])
    return runs, jobs


def _remember(claims: Claims, token: str, seqs: list[int]) -> None:
    """Before the commit is certain: what was not committed is not leased under this token, and not given again."""
    claims[token] = seqs
    if len(claims) > CLAIMS_MAX:
        del claims[next(iter(claims))]


def _lease(tx: SqliteTransaction, request: ClaimRequest, runs: Sequence[Row], now_ms: int) -> None:
    seqs = ids_json([row[SEQ] for row in runs])
    tx.write(SQL["claim.lease"], (request.token, request.node, now_ms + request.lease_ms, request.lease_ms, seqs))
    tx.counters.ready -= len(runs)
    tx.counters.leased += len(runs)
    tx.counters.clock_ms = max(tx.counters.clock_ms, now_ms)


def _take_back(tx: SqliteTransaction, losses_max: int, now_ms: int, *, can_reclaim: bool) -> list[tuple[int, End]]:
    """End the leases that ran out.  All leases are walked only if the clock came back."""
    if now_ms < tx.counters.clock_ms:
        tx.write(SQL["claim.cut"], (now_ms, tx.version))
        tx.write(SQL["claim.show"], (now_ms, tx.counters.clock_ms, tx.version))
        tx.write(SQL["claim.show_leased"], (now_ms, tx.counters.clock_ms, tx.version))
        tx.counters.clock_ms = now_ms
    if not can_reclaim:
        return []
    lost = tx.rows(SQL["claim.lost"], (tx.version, now_ms, LOST_MAX))
    return [(tx.version, _lose(tx, row, losses_max, now_ms)) for row in lost]


def _lose(tx: SqliteTransaction, row: Row, losses_max: int, now_ms: int) -> End:
    """A lease ended without a settlement.  The token is cleared: its owner settles too late."""
    loss = lose(row, losses_max, now_ms)
    tx.counters.leased -= 1
    if loss.state == READY:
        tx.counters.ready += 1
        tx.wakeups |= RUNS
    is_dead = loss.state == DEAD
    tx.shared.dead += is_dead
    finished_ms = None if loss.history_class is None else now_ms
    after = (loss.state, loss.history_class, loss.losses, loss.until_ms, loss.cancel, is_dead, loss.error, loss.error)
    tx.write(SQL["claim.take_back"], (*after, finished_ms, loss.tried, loss.seq))
    return loss.end


async def renew(tx: SqliteTransaction, renewals: Sequence[Renewal], lease_ms: int) -> list[Renewed]:
    now_ms = tx.given_ms
    found = {row[0]: row for row in tx.rows(SQL["renew.found"], (ids_json([renewal.run_id for renewal in renewals]),))}
    answers, extended, progress = [], [], []
    versions: set[int] = set()
    for renewal in renewals:
        row = found.get(renewal.run_id)
        if row is None or row[3] != LEASED or row[2] != renewal.token:
            answers.append(Renewed(Answer.LOST))
        else:
            extended.append((now_ms + lease_ms, lease_ms, row[1]))
            versions.add(row[5])
            if renewal.progress:
                progress.append((renewal.progress[:PROGRESS_CHARS_MAX], row[1]))
            answers.append(Renewed(Answer.OK, row[4]))
    if extended:
        tx.write_many(SQL["renew.extend"], extended)
        if progress:
            tx.write_many(SQL["renew.progress"], progress)
        for counters in [tx.counters_of(version) for version in versions]:
            counters.clock_ms = max(counters.clock_ms, now_ms)
    return answers
