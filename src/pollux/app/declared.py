"""Which jobs do this process's code and files declare, and how does the store come to agree?  By a diff, per source."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from pollux.declare import job_of
from pollux.errors import Conflict, InvalidInput
from pollux.model import Isolate, Job, Schedule
from pollux.plan import Diff, reconcile
from pollux.registry import Registry
from pollux.runtime.child import check_place
from pollux.store.contract import BATCH_MAX, PAGE_MAX, Answer, JobFilter, JobPut, Store


class Declared:
    """Jobs by source.  Code declares under one source of its own; each file under another."""

    def __init__(self, registry: Registry, *, source: str, release: int) -> None:
        self._registry, self._code, self._release = registry, source, release
        self._by_source: dict[str, dict[str, Job]] = {}

    def add(
        self,
        handler: Callable[..., Any] | str,
        schedule: Schedule | None,
        *,
        id: str | None,
        params: dict[str, Any] | None,
        **options: Any,
    ) -> Job:
        """A job of a registered handler, declared by code."""
        name = self._handler_name(handler)
        known = self._registry.get(name)
        if options.get("timeout") is None and known is not None and known.timeout_ms is not None:
            options["timeout"] = known.timeout_ms / 1000
        job = job_of(
            id=id or name,
            handler=name,
            schedule=schedule,
            params=params,
            source=self._code,
            release=self._release,
            **options,
        )
        job = self._registry.adopt(job)
        if known is not None and job.isolate is Isolate.PROCESS:
            check_place(known, is_whole=False)
        self._take(self._code, [job])
        return job

    def take_file(self, source: str, jobs: Sequence[Job]) -> None:
        """All jobs of a file, in place of what it declared before."""
        self._by_source[source] = {}
        self._take(source, jobs)

    def jobs(self) -> list[Job]:
        return [job for jobs in self._by_source.values() for job in jobs.values()]

    def code_sources(self) -> tuple[str, ...]:
        return tuple(source for source in self._by_source if source.startswith("code:"))

    async def diff(self, store: Store) -> list[Diff]:
        """What writing would change, source by source; raises `Conflict` if an id belongs to another source."""
        diffs = []
        for source, jobs in self._by_source.items():
            stored = await _stored(store, source)
            known = {job.id for job in stored}
            others = [job_id for job_id in jobs if job_id not in known]
            owners: dict[str, str] = {}
            for start in range(0, len(others), PAGE_MAX):
                found = await store.get_jobs(others[start : start + PAGE_MAX])
                owners |= {job.id: job.source for job in found if job is not None}
            diffs.append(reconcile(stored, list(jobs.values()), source, owners=owners))
        return diffs

    async def write(self, store: Store) -> list[Diff]:
        """Make the store agree: add, change, and take away within our own sources; answers what was different.

        A code job that this process no longer declares is left alone while another living node of the same source may
        still declare it, and marked undeclared (its due times are skipped) otherwise.
        """
        written = []
        for diff in await self.diff(store):
            await _put(store, [*diff.add, *(new for _, new in diff.change)])
            for start in range(0, len(diff.remove), BATCH_MAX):
                ids = [job.id for job in diff.remove[start : start + BATCH_MAX]]
                await store.delete_jobs(ids, reason=f"no longer in {diff.source}")
            left = diff.undeclare and any(diff.source in node.sources for node in await store.nodes())
            done = msgspec.structs.replace(diff, undeclare=()) if left else diff
            await _put(store, [msgspec.structs.replace(job, declared=False) for job in done.undeclare])
            written += [] if done.is_empty else [done]
        return written

    def _handler_name(self, handler: Callable[..., Any] | str) -> str:
        if isinstance(handler, str):
            if (refusal := self._registry.refusal(handler)) is not None:
                raise refusal
            if self._registry.get(handler) is None:
                raise InvalidInput(f"no handler is called {handler!r}", cure="register it with @app.handler first")
            return handler
        known = self._registry.of(handler)
        if known is None:
            raise InvalidInput(f"{handler!r} is no handler", cure="decorate it with @app.handler or @app.job first")
        return known.name

    def _take(self, source: str, jobs: Iterable[Job]) -> None:
        for job in jobs:
            for other, declared in self._by_source.items():
                if job.id in declared:
                    where = "twice" if other == source else f"in {other} and in {source}"
                    raise InvalidInput(f"job {job.id!r} is declared {where}", cure="give one of them another id")
            self._by_source.setdefault(source, {})[job.id] = job
        self._registry.know(self._by_source.get(source, {}).values())


async def _stored(store: Store, source: str) -> list[Job]:
    jobs: list[Job] = []
    after: str | None = None
    while True:
        page = await store.list_jobs(JobFilter(source=source), after=after, limit=PAGE_MAX)
        jobs += page.jobs
        after = page.next
        if after is None:
            return jobs


async def _put(store: Store, jobs: Sequence[Job]) -> None:
    for start in range(0, len(jobs), BATCH_MAX):
        answers = await store.put_jobs([JobPut(job) for job in jobs[start : start + BATCH_MAX]])
        refused = [answer for answer in answers if answer.answer not in (Answer.OK, Answer.ALREADY)]
        if refused:
            raise Conflict("; ".join(f"job {answer.id!r}: {answer.detail}" for answer in refused[:20]))
