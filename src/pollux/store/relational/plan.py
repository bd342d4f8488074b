"""Decisions of `advance` about the firings of a plan: overlap, and the run before.

The facts are read before, and updated while the firings are processed in their order; the resulting changes are
collected and written together.  It takes more than one round only if a run that this plan makes is ended by it, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from pollux.model import BEHIND_MAX, PREVIOUS_RUN, UNREAD_MAX, Answer, Cause, Firing, Overlap
from pollux.model.leader_notes import CAME_BACK_MS
from pollux.store.relational.feed_entries import jobs_of
from pollux.store.relational.rows import CAUSE_NUMBER, HELD, KEY, LEASED, STATE, Row, made_in, memory_json

ENOUGH = BEHIND_MAX + 1  # live runs of a job that are read, or counted
SCHEDULED = CAUSE_NUMBER[Cause.SCHEDULE]


class JobFacts:
    """Stored state of a job that a firing depends on."""

    __slots__ = ("has_live", "is_unread", "last_due_ms", "n", "revision", "stays")

    def __init__(self, n: int, revision: int, last_due_ms: int | None, has_live: int) -> None:
        self.n, self.revision, self.last_due_ms, self.has_live = n, revision, last_due_ms, bool(has_live)
        self.is_unread = False  # is an end of it in the feed that the plan has not read?
        self.stays = False  # due, for that reason

    def is_fired(self, due_ms: int, now_ms: int) -> bool:
        last_due_ms = self.last_due_ms
        if last_due_ms is None or last_due_ms > now_ms + CAME_BACK_MS:
            return False
        return due_ms <= last_due_ms


class LiveRun(NamedTuple):
    """A live run of a job that fires again; `seq` is 0 for one that this plan makes."""

    seq: int
    state: int
    id: str
    job_id: str
    due_ms: int
    cause: int
    gated: int
    version: int
    cancel: str
    key: str | None
    is_behind: int  # does it wait for the others?


class LiveRuns(NamedTuple):
    """Summary of the live runs of a job that fires again."""

    size: int  # or ENOUGH
    is_behind: int  # does one of them wait for the others?


NO_RUNS = LiveRuns(0, is_behind=False)


class FiringWrites:
    """What is written together: runs that end (with the reason), owners that are asked to stop, runs that are made."""

    __slots__ = ("asked", "ended", "made")

    def __init__(self) -> None:
        self.ended: list[tuple[LiveRun, str]] = []
        self.asked: list[tuple[int, str]] = []
        self.made: list[Row] = []


class JobAdvance(NamedTuple):
    """New due times of a job; the memory only if a skipped firing changed it."""

    last_due_ms: int | None
    next_due_ms: int | None
    has_memory: bool
    memory: bytes | None
    ended_ms: int | None


class Firings:
    """The firings of one plan, in their order."""

    def __init__(
        self,
        version: int,
        facts: dict[str, JobFacts],
        known: Iterable[str],
        keys: Iterable[str],
        live: Iterable[LiveRun],
        crowds: Mapping[str, LiveRuns],
        now_ms: int,
    ) -> None:
        self._version, self._now_ms = version, now_ms
        self._facts, self._known, self._keys = facts, set(known), set(keys)
        self._crowds = crowds
        self._live: dict[str, list[LiveRun]] = {}  # of the jobs that have no summary
        for run in live:
            self._live.setdefault(run.job_id, []).append(run)
        self.rounds = [FiringWrites()]
        self.moved: dict[int, JobAdvance] = {}

    def fire(self, firing: Firing, row: Row) -> Answer:
        """`row` is that of its run."""
        run = firing.run
        facts = self._facts.get(run.job_id)
        if facts is None or facts.revision != firing.revision:
            return Answer.STALE
        if run.id in self._known or facts.is_fired(run.due_ms, self._now_ms):
            return Answer.ALREADY
        answer = Answer.UNREAD if facts.stays else self._overlap(firing, row, facts)
        if answer is Answer.UNREAD:
            self._stay(run.due_ms, facts)
            return answer
        facts.last_due_ms = run.due_ms
        self._move(firing, facts, is_skipped=answer is Answer.OVERLAPPED)
        if answer is not Answer.OVERLAPPED:
            self._make(row, facts, is_waiting=answer is Answer.WAITS)
        return answer

    def _overlap(self, firing: Firing, row: Row, facts: JobFacts) -> Answer:
        """ok, waits, overlapped, unread; under CANCEL those of the schedule are asked to stop, or end here."""
        if row[KEY] is not None and row[KEY] in self._keys:
            return Answer.OVERLAPPED
        if firing.overlap is Overlap.ALLOW:
            return Answer.OK
        if not facts.has_live:
            return Answer.UNREAD if facts.is_unread else Answer.OK
        if firing.overlap is Overlap.SKIP:
            return Answer.OVERLAPPED
        live, crowd = self._live.get(firing.run.job_id, []), self._crowds.get(firing.run.job_id, NO_RUNS)
        size = crowd.size + len(live)
        if not size:  # it ended since the facts were read, and so since the feed was
            return Answer.UNREAD
        waits = size <= BEHIND_MAX and not crowd.is_behind and not any(run.is_behind for run in live)
        if firing.overlap is Overlap.CANCEL:
            self._cancel_previous(live, f"replaced by {firing.run.id}", is_replaced=waits)
        return Answer.WAITS if waits else Answer.OVERLAPPED

    def _cancel_previous(self, live: list[LiveRun], reason: str, *, is_replaced: bool) -> None:
        for n, run in enumerate(live):
            if run.state == LEASED and run.cause == SCHEDULED and not run.cancel:
                self.rounds[-1].asked.append((run.seq, reason))
                live[n] = run._replace(cancel=reason)
        waiting = [run for run in live if run.state != LEASED and run.cause == SCHEDULED] if is_replaced else []
        if not all(run.seq for run in waiting):  # made by this plan: it must be there before it can end
            self.rounds.append(FiringWrites())
        for run in waiting:
            live.remove(run)
            self.rounds[-1].ended.append((run, reason))
            if run.key is not None:
                self._keys.discard(run.key)

    def _move(self, firing: Firing, facts: JobFacts, *, is_skipped: bool) -> None:
        memory = firing.if_overlapped if is_skipped else None
        learnt = self._learnt(facts)
        if memory is not None:
            learnt = (True, memory_json(memory), memory.last_end_ms)
        self.moved[facts.n] = JobAdvance(firing.run.due_ms, firing.next_due_ms, *learnt)

    def _stay(self, due_ms: int, facts: JobFacts) -> None:
        """The job stays due at that time until the feed was read; later firings of it wait for that one."""
        if not facts.stays:
            facts.stays = True
            self.moved[facts.n] = JobAdvance(facts.last_due_ms, due_ms, *self._learnt(facts))

    def _learnt(self, facts: JobFacts) -> tuple[bool, bytes | None, int | None]:
        before = self.moved.get(facts.n)
        return (False, None, None) if before is None else before[2:]

    def _make(self, row: Row, facts: JobFacts, *, is_waiting: bool) -> None:
        made = (*row[:STATE], HELD, PREVIOUS_RUN, *row[STATE + 2 :]) if is_waiting else row
        self.rounds[-1].made.append(made_in(made, self._version))
        self._known.add(row[0])
        facts.has_live = True
        key = row[KEY]
        if key is not None:
            self._keys.add(key)
        run_id, job_id, due_ms, cause = row[:KEY]
        live = self._live.setdefault(job_id, [])
        gated, version = row[STATE - 1], self._version
        live.append(LiveRun(0, made[STATE], run_id, job_id, due_ms, cause, gated, version, "", key, is_waiting))


def keys_of(rows: Sequence[Row]) -> list[str]:
    return [row[KEY] for row in rows if row[KEY] is not None]


def looking_behind(firings: Sequence[Firing], facts: dict[str, JobFacts]) -> tuple[list[str], list[str]]:
    """The jobs whose live runs must be read, and those for which a summary is enough."""
    there = [firing for firing in firings if firing.run.job_id in facts and facts[firing.run.job_id].has_live]
    read = {firing.run.job_id: None for firing in there if firing.overlap is Overlap.CANCEL}
    counted = {firing.run.job_id: None for firing in there if firing.overlap is Overlap.QUEUE}
    return list(read), [job_id for job_id in counted if job_id not in read]


def jobs_that_look(firings: Sequence[Firing], facts: dict[str, JobFacts]) -> set[str]:
    """The jobs for which it matters whether their ends were read: nothing of theirs is live."""
    asked = {firing.run.job_id for firing in firings if firing.overlap is not Overlap.ALLOW}
    return {job_id for job_id in asked if job_id in facts and not facts[job_id].has_live}


def latest(entries: Iterable[tuple[int, int]]) -> list[int]:
    """Of (id, ends), the latest first: those that are looked at."""
    found, seen = [], 0
    for entry_id, ends in entries:
        if seen >= UNREAD_MAX:
            break
        seen += ends
        found.append(entry_id)
    return found


def note_unread(bodies: Iterable[bytes], facts: dict[str, JobFacts]) -> None:
    """Mark the jobs of the ends in these entries, which the plan has not read."""
    for body in bodies:
        for job_id in jobs_of(body):
            there = facts.get(job_id)
            if there is not None:
                there.is_unread = True


class WaitingRun(NamedTuple):
    """A held run that is to begin alone."""

    id: str
    job_id: str
    is_behind: int  # does it wait for others already?
    overlaps: int  # would it be in the way of others itself, once it has begun?
    is_barred: int  # does another run of its job overlap that neither waits so nor is one of these?


def let_alone(
    asked: Iterable[str], held: Iterable[WaitingRun], unread: Iterable[bytes]
) -> tuple[list[str], list[WaitingRun]]:
    """Of runs that are to begin alone, in their order: those that do, and those that wait on."""
    there = {run.id: run for run in held}
    barred = {run.job_id for run in there.values() if run.is_barred}
    barred |= {job_id for body in unread for job_id in jobs_of(body)} if there else set()
    going, staying = list[str](), list[WaitingRun]()
    for run in [there.pop(run_id) for run_id in asked if run_id in there]:
        if run.job_id in barred:
            staying.append(run)
        else:
            going.append(run.id)
            barred |= {run.job_id} if run.overlaps else set()
    return going, staying
