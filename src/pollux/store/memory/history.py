"""Finished runs, in the order in which they finished.

Each run has a number.  Besides the packed rows there are five columns, one entry per number, oldest first, so that
pruning and paging unpack nothing.  A job's runs are linked by their numbers, from the newest to the oldest.  Entries of
removed rows are skipped, and the columns are compacted once such entries are the majority.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from itertools import islice

from msgspec.structs import replace

from pollux.model import Run, RunState
from pollux.store.memory.rows import HistoryChain, StoredJobFields, packed_run, run_from

DEAD, DONE = RunState.DEAD, RunState.DONE
SWEEP_MIN = 1_000
PATIENCE = 1_000  # consecutive entries that are too young, after which pruning stops: entries are nearly in time order

LEFT, PLAIN, UNCHANGED, FAILED, DEAD_LETTER = range(5)
NUMBER = 8  # bytes of the number before a packed row


class FinishedRuns:
    def __init__(self, jobs: Mapping[str, StoredJobFields]) -> None:
        self._jobs = jobs
        self._orphans: dict[str, HistoryChain] = {}  # of deleted jobs
        self._rows: dict[str, bytes] = {}
        self._numbers: array[int] = array("q")
        self._ids: list[str] = []
        self._times: array[int] = array("q")
        self._kinds = bytearray()
        self._older: array[int] = array("q")  # number of the same job's previous run
        self._first = 0  # all entries before this place are removed
        self._last = 0
        self._dead_of: dict[str, list[str]] = {}
        self._crowded: set[str] = set()  # jobs with more runs than the last pruning kept
        self._kept: int | None = None
        self.dead = 0

    def __contains__(self, run_id: str) -> bool:
        return run_id in self._rows

    def get(self, run_id: str) -> Run | None:
        data = self._rows.get(run_id)
        return None if data is None else run_from(data[NUMBER:])

    def add(self, run: Run) -> None:
        self._last = number = self._last + 1
        self._rows[run.id] = number.to_bytes(NUMBER, "big") + packed_run(run)
        chain = self._chain(run.job_id)
        self._numbers.append(number)
        self._ids.append(run.id)
        self._times.append(run.finished_ms or 0)
        self._kinds.append(_kind(run))
        self._older.append(chain.newest if chain.kept else 0)
        chain.newest = number
        chain.kept += 1
        if self._kept is not None and chain.kept > self._kept:
            self._crowded.add(run.job_id)
        if run.state is DEAD:
            self.dead += 1
            self._dead_of.setdefault(run.job_id, []).append(run.id)

    def remove(self, run_id: str) -> Run:
        data = self._rows.pop(run_id)
        run = run_from(data[NUMBER:])
        self._kinds[self._place(int.from_bytes(data[:NUMBER], "big"))] = LEFT
        self._chain(run.job_id).kept -= 1
        if run.state is DEAD:
            self._leave_dead(run)
        if len(self._ids) > 2 * len(self._rows) + SWEEP_MIN:
            self._sweep()
        return run

    def end_dead_letter(self, run_id: str) -> None:
        """Turn a replaced or cleared dead letter into an ordinary failed run, at the same place."""
        data = self._rows[run_id]
        run = replace(run_from(data[NUMBER:]), state=DONE)
        self._rows[run_id] = data[:NUMBER] + packed_run(run)
        self._kinds[self._place(int.from_bytes(data[:NUMBER], "big"))] = _kind(run)
        self._leave_dead(run)

    def orphan(self, job_id: str, row: StoredJobFields) -> None:
        """Keep the finished runs of a deleted job."""
        if row.kept:
            self._orphans[job_id] = HistoryChain(row.newest, row.kept)

    def adopt(self, job_id: str, row: StoredJobFields) -> None:
        """Attach the finished runs of a deleted job to a new job of its id."""
        chain = self._orphans.pop(job_id, None)
        if chain is not None:
            row.newest, row.kept = chain.newest, chain.kept

    def dead_letters(self, job_id: str) -> list[Run]:
        return [run_from(self._rows[run_id][NUMBER:]) for run_id in self._dead_of.get(job_id, ())]

    def has_dead_letters(self, job_id: str) -> bool:
        return job_id in self._dead_of

    def has_since(self, job_id: str, since_ms: int) -> bool:
        """Whether the newest run of a job finished at or after `since_ms`."""
        newest = next((place for place in self._places_of(job_id) if self._kinds[place] != LEFT), None)
        return newest is not None and self._times[newest] >= since_ms

    # reading

    def newest_first(self, *, job_id: str | None = None, before: int | None = None) -> Iterator[tuple[int, Run]]:
        """Runs with their numbers, only those below `before`."""
        places = self._places_of(job_id) if job_id is not None else range(len(self._ids) - 1, self._first - 1, -1)
        for place in places:
            if self._kinds[place] != LEFT and (before is None or self._numbers[place] < before):
                yield self._numbers[place], self._run(place)

    def oldest_first(self, *, after: int = 0) -> Iterator[tuple[int, Run]]:
        for place in range(max(self._first, self._place(after + 1)), len(self._ids)):
            if self._kinds[place] != LEFT:
                yield self._numbers[place], self._run(place)

    def older_than(self, before_ms: int, kinds: frozenset[int], *, limit: int) -> list[str]:
        """Ids of the oldest runs of those kinds that finished before `before_ms`."""
        old: list[str] = []
        young = 0
        for place in range(self._first_present(), len(self._ids)):
            if len(old) >= limit or young >= PATIENCE:
                break
            if self._times[place] >= before_ms:
                young += 1
            else:
                young = 0
                if self._kinds[place] in kinds:
                    old.append(self._ids[place])
        return old

    def oldest(self, kinds: frozenset[int], *, limit: int) -> list[str]:
        """Ids of the oldest runs of those kinds."""
        places = (place for place in range(self._first_present(), len(self._ids)) if self._kinds[place] in kinds)
        return [self._ids[place] for place in islice(places, max(0, limit))]

    def beyond(self, keep: int, *, limit: int) -> list[str]:
        """Ids of all but each job's newest `keep` failed runs and newest `keep` others, without dead letters."""
        if self._kept is None or keep < self._kept:
            chains: dict[str, HistoryChain] = {**self._jobs, **self._orphans}
            self._crowded = {job_id for job_id, chain in chains.items() if chain.kept > keep}
        self._kept = keep
        excess: list[str] = []
        for job_id in list(self._crowded):
            present = [place for place in self._places_of(job_id) if self._kinds[place] not in {LEFT, DEAD_LETTER}]
            failed = [self._ids[place] for place in present if self._kinds[place] == FAILED]
            excess += [self._ids[place] for place in present if self._kinds[place] != FAILED][keep:] + failed[keep:]
            if len(excess) > limit:
                break  # this job stays in the set for the next call
            self._crowded.discard(job_id)
        return excess[:limit]

    # columns

    def _leave_dead(self, run: Run) -> None:
        self.dead -= 1
        letters = self._dead_of[run.job_id]
        letters.remove(run.id)
        if not letters:
            del self._dead_of[run.job_id]

    def _chain(self, job_id: str) -> HistoryChain:
        chain = self._jobs.get(job_id)
        return chain if chain is not None else self._orphans.setdefault(job_id, HistoryChain())

    def _place(self, number: int) -> int:
        return bisect_left(self._numbers, number)

    def _run(self, place: int) -> Run:
        return run_from(self._rows[self._ids[place]][NUMBER:])

    def _places_of(self, job_id: str) -> Iterator[int]:
        """Places of a job's runs, newest first, including removed ones."""
        chain = self._jobs.get(job_id) or self._orphans.get(job_id)
        number = chain.newest if chain is not None and chain.kept else 0
        while number:
            place = self._place(number)
            yield place
            number = self._older[place]

    def _first_present(self) -> int:
        """Place of the oldest entry that is not removed."""
        while self._first < len(self._kinds) and self._kinds[self._first] == LEFT:
            self._first += 1
        return self._first

    def _sweep(self) -> None:
        """Rebuild the columns without removed entries."""
        present = [place for place, kind in enumerate(self._kinds) if kind != LEFT]
        jobs = [self._run(place).job_id for place in present]
        self._ids = [self._ids[place] for place in present]
        self._numbers = array("q", (self._numbers[place] for place in present))
        self._times = array("q", (self._times[place] for place in present))
        self._kinds = bytearray(self._kinds[place] for place in present)
        self._older = array("q")
        newest: dict[str, int] = {}
        for job_id, number in zip(jobs, self._numbers, strict=True):
            self._older.append(newest.get(job_id, 0))
            newest[job_id] = number
        self._orphans = {job_id: chain for job_id, chain in self._orphans.items() if chain.kept}
        for job_id, number in newest.items():
            self._chain(job_id).newest = number
        self._first = 0


def _kind(run: Run) -> int:
    if run.state is DEAD:
        return DEAD_LETTER
    if run.failed:
        return FAILED
    return UNCHANGED if run.state is DONE and run.changed is False else PLAIN
