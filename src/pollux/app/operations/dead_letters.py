"""Operations on dead letters: let them run again, or delete them; by id, by job or by filter."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from pollux.app.operations.audit import filter_words
from pollux.app.operations.context import OperationGroup
from pollux.model import RunState
from pollux.registry import job_id_of
from pollux.store.contract import Pruning, RunAnswer, RunFilter

REVIVE_PAGE = 500


class DeadLetterOperations(OperationGroup):
    """Revive and drop runs that are dead."""

    async def revive(self, run_ids: Sequence[str] | None = None, *, job: object = None) -> list[RunAnswer]:
        """Let dead letters run again: these, those of a job, or (neither given) all."""
        return await self._revive_each(self._dead(run_ids, job), self._chosen_by(run_ids, job))

    async def drop(self, run_ids: Sequence[str] | None = None, *, job: object = None) -> int:
        """Forget dead letters for good: these, those of a job, or all."""
        return await self._drop_each(self._dead(run_ids, job), self._chosen_by(run_ids, job))

    async def revive_where(self, where: RunFilter) -> list[RunAnswer]:
        """Let all dead letters run again that the filter means."""
        return await self._revive_each(self._dead_where(where), filter_words(where))

    async def drop_where(self, where: RunFilter) -> int:
        """Forget all dead letters for good that the filter means."""
        return await self._drop_each(self._dead_where(where), filter_words(where))

    async def _dead(self, run_ids: Sequence[str] | None, job: object) -> AsyncIterator[list[str]]:
        """Batches of ids of dead letters: those given, those of a job, or all."""
        if run_ids is not None:
            for start in range(0, len(run_ids), REVIVE_PAGE):
                yield list(run_ids[start : start + REVIVE_PAGE])
            return
        async for ids in self._dead_where(_dead_of(job)):
            yield ids

    async def _dead_where(self, where: RunFilter) -> AsyncIterator[list[str]]:
        after: str | None = None
        while True:
            page = await self._store.list_runs(where, after=after, limit=REVIVE_PAGE)
            if page.runs:
                yield [run.id for run in page.runs]
            after = page.next
            if after is None:
                return

    async def _revive_each(self, dead: AsyncIterator[list[str]], by: str) -> list[RunAnswer]:
        answers: list[RunAnswer] = []
        async for ids in dead:
            answers += await self._store.revive(ids, audit=self._audit.runs_on_record("revive", "dead letters", by))
        return answers

    async def _drop_each(self, dead: AsyncIterator[list[str]], by: str) -> int:
        dropped = 0
        async for ids in dead:
            named = Pruning(ids=tuple(ids), limit=len(ids))
            dropped += await self._store.prune(named, audit=self._audit.drops_on_record(ids, by))
        return dropped

    def _chosen_by(self, run_ids: Sequence[str] | None, job: object) -> str:
        return "" if run_ids is not None else filter_words(_dead_of(job))


def _dead_of(job: object) -> RunFilter:
    return RunFilter(states=(RunState.DEAD,), job_id=None if job is None else job_id_of(job))
