"""What became of it?  The finished runs, in the order in which they finished.

A run is found by its id, a job's runs by the job; both ways go over a number that each finished run gets.  Rows that
left are skipped where they are met, and swept out once they are the greater part.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from itertools import count

from msgspec import Struct

from pollux.model import Run, RunState

DEAD, DONE = RunState.DEAD, RunState.DONE
SWEEP_MIN = 1_000


class Finished(Struct, gc=False):
    seq: int
    run: Run


class Past:
    def __init__(self) -> None:
        self._rows: dict[str, Finished] = {}
        self._seqs: array[int] = array("q")
        self._ids: list[str] = []
        self._of_job: dict[str, array[int]] = {}
        self._grown: set[str] = set()  # jobs with more finished runs than when they were last trimmed
        self._trimmed_to: int | None = None
        self._dead_of: dict[str, list[str]] = {}
        self._count = count(1)
        self.dead = 0

    def __contains__(self, run_id: str) -> bool:
        return run_id in self._rows

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, run_id: str) -> Run | None:
        row = self._rows.get(run_id)
        return None if row is None else row.run

    def add(self, run: Run) -> None:
        seq = next(self._count)
        self._rows[run.id] = Finished(seq, run)
        self._seqs.append(seq)
        self._ids.append(run.id)
        of_job = self._of_job.get(run.job_id)
        if of_job is None:
            of_job = self._of_job[run.job_id] = array("q")
        of_job.append(seq)
        self._grown.add(run.job_id)
        if run.state is DEAD:
            self.dead += 1
            self._dead_of.setdefault(run.job_id, []).append(run.id)

    def remove(self, run_id: str) -> Run:
        row = self._rows.pop(run_id)
        if row.run.state is DEAD:
            self.dead -= 1
            letters = self._dead_of[row.run.job_id]
            letters.remove(run_id)
            if not letters:
                del self._dead_of[row.run.job_id]
        if len(self._ids) > 2 * len(self._rows) + SWEEP_MIN:
            self._sweep()
        return row.run

    def dead_letters(self, job_id: str) -> list[Run]:
        return [self._rows[run_id].run for run_id in self._dead_of.get(job_id, ())]

    def newest_first(self, *, job_id: str | None = None, before: int | None = None) -> Iterator[tuple[int, Run]]:
        """Runs and their numbers, those below `before`."""
        seqs = self._seqs if job_id is None else self._of_job.get(job_id, array("q"))
        for place in range(len(seqs) if before is None else bisect_left(seqs, before), 0, -1):
            row = self._at(seqs[place - 1])
            if row is not None:
                yield row.seq, row.run

    def oldest_first(self, *, after: int = 0) -> Iterator[tuple[int, Run]]:
        for place in range(bisect_left(self._seqs, after + 1), len(self._seqs)):
            row = self._rows.get(self._ids[place])
            if row is not None and row.seq == self._seqs[place]:
                yield row.seq, row.run

    def beyond(self, keep: int, *, limit: int) -> list[str]:
        """All but the newest `keep` of each job, dead letters apart."""
        if self._trimmed_to is None or keep < self._trimmed_to:
            self._grown = set(self._of_job)
        self._trimmed_to = keep
        excess: list[str] = []
        for job_id in list(self._grown):
            excess += self._excess(job_id, keep)
            if len(excess) > limit:  # this job is looked at again
                break
            self._grown.discard(job_id)
        return excess[:limit]

    def _at(self, seq: int) -> Finished | None:
        row = self._rows.get(self._ids[bisect_left(self._seqs, seq)])
        return row if row is not None and row.seq == seq else None

    def _excess(self, job_id: str, keep: int) -> list[str]:
        if len(self._of_job[job_id]) <= keep:
            return []
        self._forget_left(job_id)
        return [run.id for _, run in self.newest_first(job_id=job_id) if run.state is not DEAD][keep:]

    def _forget_left(self, job_id: str) -> None:
        left = array("q", (seq for seq in self._of_job[job_id] if self._at(seq) is not None))
        if left:
            self._of_job[job_id] = left
        else:
            del self._of_job[job_id]
            self._grown.discard(job_id)

    def _sweep(self) -> None:
        for job_id in list(self._of_job):
            self._forget_left(job_id)
        standing = list(self.oldest_first())
        self._seqs = array("q", (seq for seq, _ in standing))
        self._ids = [run.id for _, run in standing]
