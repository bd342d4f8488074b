"""Operations on the whole store: scheduler versions, dump and load, and expiring notes for the HTTP layer.

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
from pollux.store.decoding import readable_part
from pollux.units import counted

COMPARED_MAX = 100_000  # finished runs of a version that are read
NAMED_MAX = 5
NOTHING = Counts(held=0, ready=0, leased=0, dead=0, feed=0, ends=0, jobs=0)


class Percentiles(Struct, frozen=True):
    """Percentiles of durations."""

    count: int = 0
    p50_ms: int = 0
    p99_ms: int = 0
    max_ms: int = 0


class VersionFigures(Struct, frozen=True):
    """Figures of one version, over its runs that ended since then.

    Its leaders count the runs.  The times cover those that the history still has, which is thinned.
    """

    version: int
    jobs: int
    waiting: int  # ready or held, now
    running: int
    unread: int  # ends that its leader has not counted yet
    counted_from_ms: int | None  # None: no leader has counted, so only the history is known
    ended: int
    failed: int  # of those
    dead: int
    cancelled: int
    kept: int  # of those, in the history
    late: Percentiles  # from due to the handler's start
    took: Percentiles
    is_cut: bool  # the history has more than were read: these are the newest
    uncounted: int = 0  # of those in the history, ended before leaders began to count; others may be pruned


class VersionRemainder(Struct, frozen=True):
    """What is left of a version: the first few of each kind, and their numbers."""

    jobs: tuple[str, ...] = ()
    job_count: int = 0
    runs: tuple[str, ...] = ()
    run_count: int = 0
    nodes: tuple[str, ...] = ()  # that serve it alone

    def __bool__(self) -> bool:
        return bool(self.job_count or self.run_count or self.nodes)


class VersionOperations(OperationGroup):
    """List, compare and finish versions, and move jobs between them."""

    async def list_versions(self) -> list[Version]:
        """All versions, with their counts and leaders."""
        return await self._store.versions()

    async def move_jobs(self, ids: Sequence[str], to: int) -> dict[str, Answer]:
        """Move jobs to another version, with their due times, memory and live runs.

        No firing is doubled or missed.  Raises `NotFound` for a missing job; the others are moved.
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
        """Figures of these versions since then; also of a finished one, while its runs or counts are stored."""
        known = {version.number: version for version in await self._store.versions()}
        notes, _ = await readable_part(self._store.notes(ENDS))
        figures = []
        for number in versions:
            counted = counted_since(notes, check_version(number), since_ms, self._clock.now_ms())
            runs, is_cut = await self._ended(number, since_ms)
            if number not in known and counted.from_ms is None and not runs:
                raise NotFound("version", str(number), cure="`pollux migrate` lists them")
            version = known.get(number) or Version(number, NOTHING, 0, "")
            figures.append(_figures(version, counted, runs, is_cut=is_cut))
        return figures

    async def _left_in(self, number: int) -> VersionRemainder:
        """What is left of a version, which keeps it from being finished."""
        counts = await self._store.of_version(check_version(number)).counts()
        where_jobs = JobFilter(scheduler_version=number)
        jobs, unreadable = await readable_part(self._store.list_jobs(where_jobs, limit=NAMED_MAX))
        where = RunFilter(states=tuple(sorted(LIVE)), scheduler_version=number)
        live = counts.held + counts.ready + counts.leased
        runs, spoilt = (
            await readable_part(self._store.list_runs(where, limit=NAMED_MAX)) if live else (RunPage((), None), ())
        )
        nodes = [node.id for node in await self._store.nodes() if node.scheduler_version == number]
        return VersionRemainder(
            jobs=(*(job.id for job in jobs.jobs), *(job.name for job in unreadable))[:NAMED_MAX],
            job_count=counts.jobs,
            runs=(*(run.id for run in runs.runs), *(run.name for run in spoilt))[:NAMED_MAX],
            run_count=live,
            nodes=tuple(nodes),
        )

    async def finish_version(self, number: int) -> None:
        """Delete a version.  Raises `Conflict` with what is left of it, if anything is."""
        left = await self._left_in(number)
        if left:
            raise Conflict(_in_words(number, left))
        audit = self._audit.on_record("finish", f"version {number}")
        if await self._store.prune(Pruning(version=number), audit=audit):
            return
        if number not in {version.number for version in await self._store.versions()}:
            raise NotFound("version", str(number), cure="`pollux migrate` lists them")
        raise Conflict(f"version {number} still has a leader, or got a job or run just now; stop it and try again")

    async def _ended(self, number: int, since_ms: int) -> tuple[list[Run], bool]:
        where = RunFilter(states=tuple(sorted(FINISHED)), scheduler_version=number, finished_after_ms=since_ms)
        runs: list[Run] = []
        after: str | None = None
        while True:
            page, _ = await readable_part(self._store.list_runs(where, after=after, limit=PAGE_MAX))
            runs += page.runs
            after = page.next
            if after is None:
                return runs, False
            if len(runs) >= COMPARED_MAX:
                return runs[:COMPARED_MAX], True


def _figures(version: Version, counted: RunCounts, runs: Sequence[Run], *, is_cut: bool) -> VersionFigures:
    """The counts are at least those of the history, which covers also runs that leaders have not counted."""
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
    """Percentiles by the nearest rank."""
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
    return f"version {number} is not finished; it still has {'; '.join(words)}"


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
        """Write dumped records, except those whose id exists; returns how many were new."""
        new = await self._store.load(records)
        await self._audit.record_loaded(records, new)
        return new

    async def store_now(self) -> int:
        """The time of the store's clock."""
        return await self._store.now()

    async def list_notes(self, prefix: str) -> list[Note]:
        """The notes whose keys have this prefix."""
        return await self._store.notes(prefix)

    async def put_notes(self, values: Mapping[str, Any], *, ttl_ms: int, revision: int | None = None) -> bool:
        """Write notes that expire after `ttl_ms`; true if all were written.  `revision` as in `NotePut`."""
        expires_ms = await self.store_now() + ttl_ms
        puts = [NotePut(key, value, revision=revision, expires_ms=expires_ms) for key, value in values.items()]
        return all(answer is Answer.OK for answer in await self._store.put_notes(puts))

    async def delete_notes(self, keys: Sequence[str]) -> None:
        """Delete the notes of these keys."""
        await self._store.put_notes([NotePut(key) for key in keys])
