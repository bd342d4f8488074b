"""Operations on the whole store: scheduler versions, dump and load, and notes that expire for the HTTP layer.

Versions are deployments that share a store:

serve --scheduler-version 1  ─┐                        ┌─ jobs move --to-version 2, some, then all
serve --scheduler-version 2  ─┴─ compare 1 2 ──────────┴─ migrate finish --from 1
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from pollux.app.operations.context import OperationGroup
from pollux.errors import Conflict, NotFound
from pollux.model import FINISHED, LIVE, Note, NotePut, Run, RunState, Version, check_version
from pollux.model.leader_notes import ENDS, RunCounts, counted_since
from pollux.store.contract import BATCH_MAX, PAGE_MAX, Answer, Counts, DumpPage, JobFilter, Pruning, RunFilter, RunPage
from pollux.store.decoding import as_far
from pollux.units import counted

COMPARED_MAX = 100_000  # finished runs of a version that are looked at
NAMED_MAX = 5
NOTHING = Counts(held=0, ready=0, leased=0, dead=0, feed=0, ends=0, jobs=0)


class Percentiles(Struct, frozen=True):
    """Of many times: half of them are at most the first, 99 of a hundred at most the second."""

    count: int = 0
    p50_ms: int = 0
    p99_ms: int = 0
    max_ms: int = 0


class VersionFigures(Struct, frozen=True):
    """How one version did: of its runs that ended since then.

    Its leaders count them.  The times are of those that the history still has, which is thinned.
    """

    version: int
    jobs: int
    waiting: int  # ready or held, now
    running: int
    unread: int  # ends that its leader has not read: they are not counted yet
    counted_from_ms: int | None  # None: no leader has counted, and only what the history has is known
    ended: int
    failed: int  # of them
    dead: int
    cancelled: int
    kept: int  # of them the history has
    late: Percentiles  # from due to the handler's start
    took: Percentiles
    is_cut: bool  # it has more than are looked at: the newest
    uncounted: int = 0  # of those that it has: ended before a leader counted, as others may have that are gone from it


class VersionRemainder(Struct, frozen=True):
    """What a version still has."""

    jobs: tuple[str, ...] = ()  # the first few, and how many there are
    job_count: int = 0
    runs: tuple[str, ...] = ()
    run_count: int = 0
    nodes: tuple[str, ...] = ()  # that serve it alone

    def __bool__(self) -> bool:
        return bool(self.job_count or self.run_count or self.nodes)


class VersionOperations(OperationGroup):
    """List, compare and finish versions, and move jobs between them."""

    async def list_versions(self) -> list[Version]:
        """Those that are there, with their figures and who leads them."""
        return await self._store.versions()

    async def move_jobs(self, ids: Sequence[str], to: int) -> dict[str, Answer]:
        """Take jobs over into a version, with their due times, their memory and their live runs.

        Nothing fires twice and nothing is missed by it.  Raises `NotFound` for a job that is not there; the others are
        moved.
        """
        check_version(to)
        answers: dict[str, Answer] = {}
        for start in range(0, len(ids), BATCH_MAX):
            batch = list(ids[start : start + BATCH_MAX])
            audit = self._audit.jobs_on_record("move", batch, ahead=f"to version {to}: ")
            answers |= zip(batch, await self._store.move_jobs(batch, to, audit=audit), strict=True)
        missing = [job_id for job_id, answer in answers.items() if answer is Answer.LOST]
        if missing:
            raise NotFound("job", missing[0], cure="`pollux jobs` lists them")
        return answers

    async def compare(self, versions: Sequence[int], *, since_ms: int) -> list[VersionFigures]:
        """How these versions did since then.  One that is finished can be asked for as long as anything tells of it."""
        known = {version.number: version for version in await self._store.versions()}
        notes, _ = await as_far(self._store.notes(ENDS))
        figures = []
        for number in versions:
            counted = counted_since(notes, check_version(number), since_ms, self._clock.now_ms())
            runs, is_cut = await self._ended(number, since_ms)
            if number not in known and counted.from_ms is None and not runs:
                raise NotFound("version", str(number), cure="`pollux migrate` lists them")
            version = known.get(number) or Version(number, NOTHING, 0, "")
            figures.append(_figures(version, counted, runs, is_cut=is_cut))
        return figures

    async def left_in(self, number: int) -> VersionRemainder:
        """What stands against the end of a version."""
        counts = await self._store.of_version(check_version(number)).counts()
        where_jobs = JobFilter(scheduler_version=number)
        jobs, unreadable = await as_far(self._store.list_jobs(where_jobs, limit=NAMED_MAX))
        where = RunFilter(states=tuple(sorted(LIVE)), scheduler_version=number)
        live = counts.held + counts.ready + counts.leased
        runs, spoilt = await as_far(self._store.list_runs(where, limit=NAMED_MAX)) if live else (RunPage((), None), ())
        nodes = [node.id for node in await self._store.nodes() if node.scheduler_version == number]
        return VersionRemainder(
            jobs=(*(job.id for job in jobs.jobs), *(job.name for job in unreadable))[:NAMED_MAX],
            job_count=counts.jobs,
            runs=(*(run.id for run in runs.runs), *(run.name for run in spoilt))[:NAMED_MAX],
            run_count=live,
            nodes=tuple(nodes),
        )

    async def finish_version(self, number: int) -> None:
        """Forget a version that is done.  Raises `Conflict` while anything is left of it, and says what."""
        left = await self.left_in(number)
        if left:
            raise Conflict(_in_words(number, left))
        audit = self._audit.on_record("finish", f"version {number}")
        if await self._store.prune(Pruning(version=number), audit=audit):
            return
        if number not in {version.number for version in await self._store.versions()}:
            raise NotFound("version", str(number), cure="`pollux migrate` lists them")
        raise Conflict(f"version {number} still has a leader, or got something just now; stop it and try again")

    async def _ended(self, number: int, since_ms: int) -> tuple[list[Run], bool]:
        where = RunFilter(states=tuple(sorted(FINISHED)), scheduler_version=number, finished_after_ms=since_ms)
        runs: list[Run] = []
        after: str | None = None
        while True:
            page, _ = await as_far(self._store.list_runs(where, after=after, limit=PAGE_MAX))
            runs += page.runs
            after = page.next
            if after is None:
                return runs, False
            if len(runs) >= COMPARED_MAX:
                return runs[:COMPARED_MAX], True


def _figures(version: Version, counted: RunCounts, runs: Sequence[Run], *, is_cut: bool) -> VersionFigures:
    """What the history has is at least true: also of the time before anybody counted, and of the last seconds."""
    began = [run for run in runs if run.started_ms is not None]
    return VersionFigures(
        version=version.number,
        jobs=version.counts.jobs,
        waiting=version.counts.ready + version.counts.held,
        running=version.counts.leased,
        unread=version.counts.ends,
        counted_from_ms=counted.from_ms,
        ended=max(counted.ended, len(runs)),
        failed=max(counted.failed, sum(run.failed or run.state is RunState.DEAD for run in runs)),
        dead=max(counted.dead, sum(run.state is RunState.DEAD for run in runs)),
        cancelled=max(counted.cancelled, sum(run.state is RunState.CANCELLED for run in runs)),
        kept=len(runs),
        uncounted=sum((run.finished_ms or 0) < (counted.from_ms or 0) for run in runs),
        late=spread([max(0, (run.started_ms or 0) - run.due_ms) for run in began if not run.attempt]),
        took=spread([max(0, (run.finished_ms or 0) - (run.started_ms or 0)) for run in began]),
        is_cut=is_cut,
    )


def spread(times: Sequence[int]) -> Percentiles:
    """By the nearest rank: each is a time that was taken, and of fewer than a hundred the second is the longest."""
    if not times:
        return Percentiles()
    ranked, count = sorted(times), len(times)
    return Percentiles(count, ranked[(50 * count - 1) // 100], ranked[(99 * count - 1) // 100], ranked[-1])


def _in_words(number: int, left: VersionRemainder) -> str:
    words = []
    if left.job_count:
        jobs = _named(left.jobs, left.job_count)
        words.append(
            f"{counted(left.job_count, 'job')} ({jobs}): pollux jobs move --from-version {number} --to-version N"
        )
    if left.run_count:
        runs = _named(left.runs, left.run_count)
        words.append(f"{counted(left.run_count, 'live run')} ({runs}): wait for them or cancel them")
    if left.nodes:
        words.append(f"nodes that serve it ({_named(left.nodes, len(left.nodes))}): stop them")
    return f"version {number} is not done; it still has {'; '.join(words)}"


def _named(names: Sequence[str], count: int) -> str:
    return ", ".join(names[:NAMED_MAX]) + (", ..." if count > NAMED_MAX else "")


class StorageOperations(OperationGroup):
    """Dump and load records; expiring notes that all nodes share, written by compare-and-set."""

    async def dump(self) -> AsyncIterator[DumpPage]:
        """Everything in the store, page by page."""
        after: str | None = None
        while True:
            page = await self._store.dump(after=after)
            yield page
            after = page.next
            if after is None:
                return

    async def load(self, records: Sequence[tuple[str, Any]]) -> int:
        """Write dumped records where there are none of the same id; answers how many were new."""
        new = await self._store.load(records)
        await self._audit.record_loaded(records, new)
        return new

    async def store_now(self) -> int:
        """The store's clock, by which notes expire."""
        return await self._store.now()

    async def kept(self, prefix: str) -> list[Note]:
        """The notes under keys with this prefix."""
        return await self._store.notes(prefix)

    async def keep(self, values: Mapping[str, Any], *, keep_ms: int, revision: int | None = None) -> bool:
        """Write notes that expire after `keep_ms`; true if all were written.  `revision` as in `NotePut`."""
        expires_ms = await self.store_now() + keep_ms
        puts = [NotePut(key, value, revision=revision, expires_ms=expires_ms) for key, value in values.items()]
        return all(answer is Answer.OK for answer in await self._store.put_notes(puts))

    async def forget(self, keys: Sequence[str]) -> None:
        """Delete the notes of these keys."""
        await self._store.put_notes([NotePut(key) for key in keys])
