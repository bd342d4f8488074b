"""State of the memory store: the rows, and the operations that keep their indexes consistent.

A live run is in exactly one place of one version: held (counted), ready (in the queue of its priority) or leased
(in `leased`, with the length of its lease).  A finished run is in `history`.  All verbs move runs by `admit`,
`put_back`, `lease` and `finish` of the version it is in, and jobs between versions by `take_job`.

Queues are heaps; an entry is valid if its run is still ready and visible at the entry's time, otherwise it is
removed when it reaches the top.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Mapping
from heapq import heapify, heappop, heappush
from itertools import count
from threading import Lock

from msgspec import Struct
from msgspec.structs import replace

from pollux.model import Arrived, AuditLine, Cause, End, Ended, Entry, Job, Node, Note, Run, RunState
from pollux.store.memory.history import FinishedRuns
from pollux.store.memory.job_runs import JobRuns
from pollux.store.memory.rows import StoredJobFields, job_of, packed, packed_memory, shared
from pollux.store.memory.wakeup import MemoryNotifier

BUCKET_MS = 1_000


class DueIndex:
    """Ids of enabled jobs with a next due, readable in order of (next due, id) from any position."""

    def __init__(self, jobs: Mapping[str, StoredJobFields]) -> None:
        self._jobs = jobs
        self._buckets: dict[int, dict[str, None]] = {}  # dicts, which take half the memory of sets
        self._numbers: list[int] = []  # sorted bucket numbers
        self._read: tuple[int, list[tuple[int, str]]] | None = (
            None  # the last bucket read, sorted, maybe with removed ids
        )

    def add(self, job_id: str, due_ms: int) -> None:
        number = due_ms // BUCKET_MS
        bucket = self._buckets.get(number)
        if bucket is None:
            bucket = self._buckets[number] = {}
            insort(self._numbers, number)
        bucket[job_id] = None
        if self._read is not None and self._read[0] == number:
            self._read = None

    def remove(self, job_id: str, due_ms: int) -> None:
        number = due_ms // BUCKET_MS
        bucket = self._buckets[number]
        del bucket[job_id]
        if not bucket:
            del self._buckets[number]
            del self._numbers[bisect_left(self._numbers, number)]

    def read(self, after: tuple[int, str] | None, before_ms: int) -> Iterator[str]:
        """Ids after the pair `after` and due before `before_ms`, in order."""
        first = 0 if after is None else bisect_left(self._numbers, after[0] // BUCKET_MS)
        for place in range(first, bisect_right(self._numbers, before_ms // BUCKET_MS)):
            bucket, order = self._buckets[self._numbers[place]], self._order(self._numbers[place])
            start = 0 if after is None else bisect_right(order, after)
            for due_ms, job_id in order[start : bisect_left(order, (before_ms, ""))]:
                if job_id in bucket and self._jobs[job_id].next_due_ms == due_ms:  # its due may have changed
                    yield job_id

    def _order(self, number: int) -> list[tuple[int, str]]:
        """The sorted bucket, cached for the next read."""
        if self._read is None or self._read[0] != number:
            due = ((self._jobs[job_id].next_due_ms, job_id) for job_id in self._buckets[number])
            self._read = number, sorted((due_ms, job_id) for due_ms, job_id in due if due_ms is not None)
        return self._read[1]


HELD, READY, LEASED = RunState.HELD, RunState.READY, RunState.LEASED
DONE, DEAD, CANCELLED = RunState.DONE, RunState.DEAD, RunState.CANCELLED
JOB_GONE = "its job was deleted"
GONE_MAX = 100_000  # deleted jobs whose revision and last due are remembered
STALE_MIN = 1_000
LinePlace = tuple[int, int, str]  # visible time, number, id: the order of a queue


class DeletedJob(Struct, frozen=True):
    """Tombstone of a deleted job."""

    revision: int
    last_due_ms: int | None
    place: int = 0  # in the order of deletion


class HeldTerm(Struct, frozen=True):
    number: int = 0
    holder: str = ""
    until_ms: int = 0
    ttl_ms: int = 0


class LivingNode(Struct, frozen=True):
    node: Node
    until_ms: int


class FeedWrites:
    """Feed entries of one call, by version."""

    __slots__ = ("arrived", "ends")

    def __init__(self) -> None:
        self.ends: dict[int, list[End]] = {}
        self.arrived: dict[int, list[str]] = {}

    def end(self, run: Run, end: End) -> None:
        self.ends.setdefault(run.scheduler_version, []).append(end)

    def arrive(self, run: Run) -> None:
        self.arrived.setdefault(run.scheduler_version, []).append(run.id)


class SharedState:
    """State shared by all versions."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.bells = MemoryNotifier()
        self.rung: dict[tuple[str, int], None] = {}  # kinds of wake-ups of this call, with their versions
        self.asked: dict[str, None] = {}  # owners of leased runs with a new cancel request
        self.states: dict[int, VersionState] = {}

        self.jobs: dict[str, StoredJobFields] = {}
        self.gone: dict[str, DeletedJob] = {}
        self.job_ids: list[str] | None = None  # sorted; None: to be rebuilt
        self.spent: dict[str, None] = {}  # once-jobs that have fired

        self.live: dict[str, Run] = {}
        self.job_runs = JobRuns(self.live)
        self.keys: dict[str, str] = {}
        self.claims: dict[str, list[str]] = {}  # claim token -> runs
        self.settled: dict[str, str] = {}  # run -> the token of the last settlement that put it back
        self.history = FinishedRuns(self.jobs)
        self.seq = count(1)

        self.notes: dict[str, Note] = {}
        self.note_keys: list[str] | None = None
        self.expiring: list[tuple[int, str]] = []
        self.note_revision = 0
        self.stops_revision = 0

        self.nodes: dict[str, LivingNode] = {}
        self.log: list[AuditLine] = []

    def state(self, version: int) -> VersionState:
        found = self.states.get(version)
        if found is None:
            found = self.states[version] = VersionState(self, version)
        return found


class VersionState:
    """State of one version, with references to the shared state."""

    def __init__(self, house: SharedState, version: int) -> None:
        self.house, self.version = house, version
        self.is_there = False  # the version was used, and not pruned since
        self.jobs, self.gone, self.spent = house.jobs, house.gone, house.spent
        self.live, self.job_runs, self.keys = house.live, house.job_runs, house.keys
        self.claims, self.settled, self.history = house.claims, house.settled, house.history
        self.notes, self.expiring, self.nodes, self.log = house.notes, house.expiring, house.nodes, house.log

        self.job_count = 0
        self.due = DueIndex(self.jobs)
        self.lines: tuple[list[LinePlace], ...] = ([], [], [])
        self.leased: dict[str, int] = {}  # run -> length of its lease
        self.first_end_ms = 0  # no lease ends before this time
        self.last_grant_ms = 0  # no lease was granted or renewed after this time
        self.clock_ms = 0  # the latest time of a granted lease or a firing
        self.held = 0
        self.ready = 0
        self._stale = 0

        self.entries: dict[int, Entry] = {}
        self.ends = 0
        self._entry_ids = count(1)
        self.leadership = HeldTerm()

    def of(self, version: int) -> VersionState:
        return self if version == self.version else self.house.state(version)

    def home(self, run: Run) -> VersionState:
        """The version of a run."""
        return self.of(run.scheduler_version)

    def there(self) -> list[VersionState]:
        """The existing versions, by number."""
        return [state for _, state in sorted(self.house.states.items()) if state.is_there]

    def tell_all(self, entry: Entry) -> None:
        """Write an entry to the feed of every existing version, and of this one, which may get its first leader."""
        for state in self.there():
            state.tell(entry)
        if not self.is_there:
            self.tell(entry)

    # jobs

    def job(self, job_id: str) -> Job | None:
        row = self.jobs.get(job_id)
        return None if row is None else job_of(job_id, row)

    def add_job(self, job: Job) -> None:
        """Add a job with its due times and memory."""
        row = StoredJobFields(
            packed=packed(job),
            schedule=shared(job.schedule),
            revision=job.revision,
            enabled=job.enabled,
            version=self.version,
        )
        self.jobs[job.id] = row
        self.job_count += 1
        self.is_there = True
        self.house.job_ids = None
        self.history.adopt(job.id, row)
        self.move_job(job.id, row, job.next_due_ms, job.last_due_ms)
        row.memory = packed_memory(job.memory)

    def redefine_job(self, job: Job, row: StoredJobFields) -> None:
        """Replace the definition; due times and memory stay."""
        next_due_ms = row.next_due_ms
        self.move_job(job.id, row, None, row.last_due_ms)
        row.packed, row.schedule, row.enabled = packed(job), shared(job.schedule), job.enabled
        row.revision += 1
        self.move_job(job.id, row, next_due_ms, row.last_due_ms)

    def take_job(self, job_id: str, row: StoredJobFields) -> None:
        """Move a job from another version to this one, with its due times, memory and live runs."""
        old, next_due_ms = self.of(row.version), row.next_due_ms
        old.move_job(job_id, row, None, row.last_due_ms)
        row.version = self.version
        row.revision += 1
        self.move_job(job_id, row, next_due_ms, row.last_due_ms)
        old.job_count -= 1
        self.job_count += 1
        self.is_there = True
        self.last_grant_ms = max(self.last_grant_ms, old.last_grant_ms)
        self.clock_ms = max(self.clock_ms, old.clock_ms)
        self.take_runs(job_id)

    def take_runs(self, job_id: str) -> None:
        """Move the job's live runs to this version; one that outlived a deleted job of its id may be in another."""
        for run in [self.live[run_id] for run_id in self.job_runs.of(job_id)]:
            home = self.home(run)
            if home is not self:
                self._take_run(home, run)

    def _take_run(self, old: VersionState, run: Run) -> None:
        self.last_grant_ms = max(self.last_grant_ms, old.last_grant_ms)
        self.clock_ms = max(self.clock_ms, old.clock_ms)
        lease_ms = old.leased.get(run.id)
        old.step_out(run)
        run = replace(run, scheduler_version=self.version)
        if lease_ms is None:
            self.stand(run)
            return
        self.live[run.id] = run
        self.leased[run.id] = lease_ms
        is_first = len(self.leased) == 1
        self.first_end_ms = run.lease_until_ms if is_first else min(self.first_end_ms, run.lease_until_ms)

    def move_job(self, job_id: str, row: StoredJobFields, next_due_ms: int | None, last_due_ms: int | None) -> None:
        if row.next_due_ms != next_due_ms:
            if row.enabled and row.next_due_ms is not None:
                self.due.remove(job_id, row.next_due_ms)
            row.next_due_ms = next_due_ms
            if row.enabled and next_due_ms is not None:
                self.due.add(job_id, next_due_ms)
        row.last_due_ms = last_due_ms
        if row.is_once and row.is_spent:
            self.spent[job_id] = None

    def drop_job(self, job_id: str) -> StoredJobFields:
        row = self.jobs[job_id]
        home = self.of(row.version)
        home.move_job(job_id, row, None, row.last_due_ms)
        del self.jobs[job_id]
        home.job_count -= 1
        self.history.orphan(job_id, row)
        self.spent.pop(job_id, None)
        self.house.job_ids = None
        return row

    def sorted_ids(self) -> list[str]:
        if self.house.job_ids is None:
            self.house.job_ids = sorted(self.jobs)
        return self.house.job_ids

    # runs

    def knows(self, run_id: str) -> bool:
        return run_id in self.live or run_id in self.history

    def admit(self, run: Run, now_ms: int) -> Run:
        """Add a live run, held or ready, in the version of its job."""
        row = self.jobs.get(run.job_id)
        if row is not None and row.version != run.scheduler_version:
            run = replace(run, scheduler_version=row.version)
        if run.key is not None:
            self.keys[run.key] = run.id
        self.job_runs.add(run, now_ms)
        self.home(run).stand(run)
        return run

    def put_back(self, run: Run, now_ms: int) -> None:
        """Make a live run held or ready."""
        home = self.home(run)
        home.step_out(self.live[run.id])
        home.stand(run)
        self.job_runs.move(run, now_ms)

    def lease(self, run: Run, lease_ms: int, now_ms: int) -> None:
        """Make a run leased that was just removed from its queue."""
        self.ready -= 1
        self.live[run.id] = run
        self.leased[run.id] = lease_ms
        self.job_runs.move(run, now_ms)

    def finish(self, run: Run) -> None:
        """Make a live run finished."""
        self.home(run).step_out(self.live.pop(run.id))
        if run.key is not None and self.keys.get(run.key) == run.id:
            del self.keys[run.key]
        self.job_runs.remove(run)
        self.history.add(run)

    def forget(self, run_id: str) -> None:
        """Remove a finished run."""
        self.history.remove(run_id)
        self.settled.pop(run_id, None)

    def stand(self, run: Run) -> None:
        """Add a held or ready run to this version."""
        self.live[run.id] = run
        if run.state is READY:
            self.ready += 1
            heappush(self.lines[run.priority - 1], (run.visible_ms, next(self.house.seq), run.id))
            self.house.rung["runs", self.version] = None
        else:
            self.held += 1

    def step_out(self, run: Run) -> None:
        """Remove a live run from its place in this version."""
        if run.state is LEASED:
            del self.leased[run.id]
        elif run.state is HELD:
            self.held -= 1
        else:
            self.ready -= 1
            self._stale += 1  # its entry in the queue is stale now
            if self._stale > STALE_MIN and self._stale > self.ready:
                self._close_ranks()

    def _close_ranks(self) -> None:
        for line in self.lines:
            line[:] = [entry for entry in line if self.stands(entry)]
            heapify(line)
        self._stale = 0

    def stands(self, entry: LinePlace) -> bool:
        """Whether the run of an entry is still ready and visible at the entry's time."""
        run = self.live.get(entry[2])
        return (
            run is not None
            and run.state is READY
            and run.visible_ms == entry[0]
            and run.scheduler_version == self.version
        )

    def first_in_line(self, priority: int) -> int | None:
        """The earliest visible time of the ready runs of a priority."""
        line = self.lines[priority - 1]
        while line and not self.stands(line[0]):
            heappop(line)
        return line[0][0] if line else None

    def place_of(self, run: Run) -> LinePlace:
        """Place of a ready run of this version in its queue."""
        return min(place for place in self.lines[run.priority - 1] if place[2] == run.id and self.stands(place))

    def ready_before(self, priority: int, end: LinePlace, limit: int) -> int:
        """Number of ready runs before a place, counted up to the limit; reads only the top of the heap."""
        line, places = self.lines[priority - 1], [0]
        found: set[str] = set()  # a run may have two equal entries
        while places and len(found) < limit:
            place = places.pop()
            if place < len(line) and line[place] < end:
                if self.stands(line[place]):
                    found.add(line[place][2])
                places += (2 * place + 1, 2 * place + 2)
        return len(found)

    def show(self, now_ms: int) -> None:
        """After the clock was set back: runs that were visible stay visible, in their order, also leased ones."""
        back_ms = self.clock_ms - now_ms
        for run in [self.live[run_id] for run_id in self.leased]:
            if now_ms < run.visible_ms <= self.clock_ms:
                self.live[run.id] = replace(run, visible_ms=run.visible_ms - back_ms)
        for line in self.lines:
            for visible_ms, seq, run_id in [e for e in line if now_ms < e[0] <= self.clock_ms and self.stands(e)]:
                run = self.live[run_id] = replace(self.live[run_id], visible_ms=visible_ms - back_ms)
                self.job_runs.move(run, now_ms)
                self._stale += 1
                heappush(line, (visible_ms - back_ms, seq, run_id))
        self.clock_ms = now_ms

    def cancel_waiting(self, run: Run, reason: str, now_ms: int) -> End:
        """Cancel a held or ready run."""
        why = reason or "cancelled"
        self.finish(replace(run, state=CANCELLED, held_reason="", cancel=why, finished_ms=now_ms))
        return end_of(run, CANCELLED, now_ms, error=why)

    def ask_to_stop(self, run: Run, reason: str) -> bool:
        """Store a cancel request with a leased run; false if it has one already."""
        if run.cancel:
            return False
        self.live[run.id] = replace(run, cancel=reason or "cancelled")
        self.house.asked[run.owner] = None
        return True

    # feed

    def tell(self, entry: Entry) -> None:
        self.entries[next(self._entry_ids)] = entry
        if type(entry) is Ended:
            self.ends += len(entry.ends)
        self.house.rung["feed", self.version] = None

    def tell_told(self, told: FeedWrites) -> None:
        """Write one entry of each kind to the feed of each version of `told`."""
        for version, ends in told.ends.items():
            self.of(version).tell(Ended(tuple(ends)))
        for version, run_ids in told.arrived.items():
            self.of(version).tell(Arrived(tuple(run_ids)))

    def consume(self, entry_id: int) -> None:
        entry = self.entries.pop(entry_id, None)
        if type(entry) is Ended:
            self.ends -= len(entry.ends)


def end_of(run: Run, state: RunState, now_ms: int, *, failed: bool = False, error: str = "") -> End:
    """The end of an attempt in which no handler code completed."""
    cause: Cause = run.cause
    return End(
        run.id, run.job_id, state, cause, run.due_ms, now_ms, failed=failed, error=error, gated=run.gated, ran=False
    )
