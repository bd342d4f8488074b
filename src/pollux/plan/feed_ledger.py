"""Feed ledger: open feed entries, and the work they leave for jobs and runs.

An entry may be consumed only in the plan that carries the last of its effects; if the leader dies before, its successor
reads the entry again.  So every entry *owes* the effects it has started, each effect is *paid* when it is written (or
needs no write), and an entry that owes nothing is consumed.

When a successor reads an entry again, the memory of some of its jobs includes it already.  So the memory of a job lists
the entries it includes, by their *mark*, while they may be in the feed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from pollux.model import End, Memory

Mark = tuple[int, int]  # of an entry: see `Ended.mark`


class EntryRefs:
    """Number of unpaid effects of each open feed entry."""

    def __init__(self) -> None:
        self._owed: dict[int, int] = {}
        self.marks: dict[int, Mark] = {}
        self._latest = 0

    def __contains__(self, feed: int) -> bool:
        return feed in self._owed

    def __len__(self) -> int:
        return len(self._owed)

    def open(self, mark: Mark) -> None:
        feed = mark[0]
        self._owed[feed] = 0
        self._latest = max(self._latest, feed)
        self.marks[feed] = mark

    def standing(self, marks: tuple[Mark, ...]) -> tuple[Mark, ...]:
        """The marks of entries that may still be in the feed: open ones, and those behind the latest read one."""
        owed, latest = self._owed, self._latest
        return tuple([mark for mark in marks if mark[0] in owed or mark[0] > latest]) if marks else ()

    def owe(self, feed: int, count: int = 1) -> None:
        self._owed[feed] += count

    def pay(self, feeds: Iterable[int]) -> None:
        for feed in feeds:
            self._owed[feed] -= 1

    def settled(self, paid: Iterable[int]) -> tuple[int, ...]:
        """The entries that owe nothing once these are paid."""
        if not self._owed:
            return ()
        paying = Counter(paid)
        return tuple(sorted(feed for feed, owed in self._owed.items() if owed == paying[feed]))

    def others(self, feeds: Collection[int]) -> tuple[int, ...]:
        """The open entries other than these."""
        return () if len(feeds) == len(self._owed) else tuple(sorted(self._owed.keys() - set(feeds)))

    def drop(self, feeds: Iterable[int]) -> None:
        """Remove consumed entries."""
        for feed in feeds:
            self._owed.pop(feed, None)
            self.marks.pop(feed, None)


class JobWork:
    """Pending work of the feed for one job."""

    __slots__ = ("crowd", "ends", "error", "feeds", "is_moved", "is_put", "writes")

    def __init__(self) -> None:
        self.feeds: tuple[int, ...] = ()  # mostly one, shared by the jobs of one put
        self.ends: list[tuple[int, End]] | tuple[tuple[int, End], ...] = ()  # by entry; a shared () while there is none
        self.is_put = False
        self.is_moved = False
        self.crowd = 1
        self.writes = False  # the slot's next due time differs from the stored one
        self.error = ""  # why the job has no next due time, if its schedule is unusable

    def add(self, feed: int, end: End) -> None:
        if isinstance(self.ends, list):
            self.ends.append((feed, end))
        else:
            self.ends = [(feed, end)]

    def leave(self, feed: int) -> None:
        """Drop the ends in entries older than `feed`, by which the job was moved: they moved with it."""
        self.ends = [each for each in self.ends if each[0] > feed]

    def is_idle(self) -> bool:
        """Whether there is nothing to write."""
        return not (self.ends or self.writes or self.error)


class JobSurvey:
    """Scan of all jobs, a page at a time, because of an undecodable entry or a jump back of the clock."""

    __slots__ = ("after", "feeds", "is_ahead")

    def __init__(self) -> None:
        self.after: str | None = None
        self.feeds: list[int] = []
        self.is_ahead = True  # only jobs whose due time is too far ahead


class FeedLedger:
    """Open feed entries, pending work by job, and the reads that entries request."""

    def __init__(self) -> None:
        self.receipts = EntryRefs()
        self.work: dict[str, JobWork] = {}
        self.jobs: dict[str, None] = {}  # to be read
        self.runs: dict[str, list[int]] = {}  # to be read, with the requesting entries
        self.notes: list[int] | None = None  # to be read, with the requesting entries
        self.nodes: list[int] | None = None
        self.survey: JobSurvey | None = None
        self._entry: tuple[int, ...] = ()  # the latest one

    def work_of(self, job_id: str, feed: int | None = None) -> JobWork:
        """The work of a job, which the entry `feed` then owes too."""
        work = self.work.get(job_id)
        if work is None:
            work = self.work[job_id] = JobWork()
        if feed is not None and (not work.feeds or work.feeds[-1] != feed):
            work.feeds = (*work.feeds, feed) if work.feeds else self._alone(feed)
            self.receipts.owe(feed)
        return work

    def _alone(self, feed: int) -> tuple[int, ...]:
        """The tuple of one entry, the same object for all its jobs."""
        if self._entry != (feed,):
            self._entry = (feed,)
        return self._entry

    def ask_run(self, run_id: str, feed: int | None = None) -> None:
        feeds = self.runs.setdefault(run_id, [])
        if feed is not None:
            feeds.append(feed)
            self.receipts.owe(feed)

    def answered(self, run_id: str) -> list[int]:
        """Mark a run as read; returns the entries that requested it."""
        return self.runs.pop(run_id, [])

    def ask_notes(self, feed: int) -> None:
        self.notes = [*(self.notes or ()), feed]
        self.receipts.owe(feed)

    def ask_nodes(self, feed: int | None = None) -> None:
        self.nodes = self.nodes or []
        if feed is not None:
            self.nodes.append(feed)
            self.receipts.owe(feed)

    def ask_all_jobs(self, feed: int | None = None, *, ahead: bool = False) -> None:
        """Request a scan of all jobs from the first one; `ahead`: only of due times that are too far ahead."""
        self.survey = self.survey or JobSurvey()
        self.survey.after = None
        self.survey.is_ahead = self.survey.is_ahead and ahead
        if feed is not None:
            self.survey.feeds.append(feed)
            self.receipts.owe(feed)

    def skip_learnt(self, work: JobWork, memory: Memory) -> None:
        """Drop the ends of entries that the memory includes already; it includes all ends of an entry or none."""
        if work.ends and memory.learnt:
            work.ends = [each for each in work.ends if self.receipts.marks[each[0]] not in memory.learnt]

    def tidy(self) -> None:
        """Replace emptied dicts, which would keep the size of their largest content."""
        if not self.jobs:
            self.jobs = {}
        if not self.work:
            self.work = {}

    def finish(self, job_id: str) -> None:
        """Remove the work of a job, as paid."""
        work = self.work.pop(job_id, None)
        if work is not None:
            self.receipts.pay(work.feeds)
