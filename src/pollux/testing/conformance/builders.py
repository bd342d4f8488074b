"""Base of all groups, and builders of jobs, runs and settlements with defaults for what a test does not test."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import count
from typing import Any, Protocol, TypeVar

import pytest
from msgspec import json

from pollux.model import (
    AT_THE_GATE,
    Cause,
    Dead,
    Done,
    End,
    Ended,
    Fault,
    Firing,
    Interval,
    Job,
    Memory,
    Outcome,
    Overlap,
    Plan,
    Release,
    RetryAt,
    Run,
    RunState,
    Verdict,
)
from pollux.store.contract import Advanced, Answer, JobPut, Renewal, RunsAlike, Settlement, Store

T0 = 1_800_000_000_000
LEASE_MS = 30_000
_tokens = count(1)
E = TypeVar("E")


class Contract:
    """Base of all groups; a subclass has a fixture `store` that yields an opened, empty store and closes it."""

    @pytest.fixture
    def t0(self) -> int:
        return T0


class _Named(Protocol):
    @property
    def id(self) -> str: ...


def a_job(id: str = "job", **fields: Any) -> Job:
    """Return a job that is polled every minute, unless `fields` change it."""
    fields.setdefault("handler", "poll")
    fields.setdefault("schedule", Interval(60_000))
    return Job(id=id, **fields)


def a_run(id: str = "a", job_id: str = "job", *, due_ms: int = T0, **fields: Any) -> Run:
    """Return a ready run, visible when it is due; a gated one is held."""
    fields.setdefault("visible_ms", due_ms)
    fields.setdefault("cause", Cause.ENQUEUED)
    if fields.get("gated"):
        fields.setdefault("state", RunState.HELD)
    if fields.get("state") is RunState.HELD:
        fields.setdefault("held_reason", AT_THE_GATE)
    return Run(id, job_id, due_ms, **fields)


def runs_alike(payloads: Mapping[str, Any], **fields: Any) -> RunsAlike:
    """Return runs by their ids, each with its payload."""
    bodies = [None if payload is None else json.encode(payload) for payload in payloads.values()]
    return RunsAlike(a_run("one", **fields), list(payloads), bodies)


def ids(things: Iterable[_Named]) -> list[str]:
    return [thing.id for thing in things]


def answers(given: Iterable[Any]) -> list[Answer]:
    return [each.answer for each in given]


def an_outcome(now_ms: int = T0, **fields: Any) -> Outcome:
    """Return an attempt of a tenth of a second."""
    fields.setdefault("started_ms", now_ms - 100)
    fields.setdefault("ended_ms", now_ms)
    return Outcome(**fields)


def a_failure(now_ms: int = T0, error: str = "ConnectionError: refused", *, traceback: str = "") -> Outcome:
    return an_outcome(now_ms, fault=Fault.TRANSIENT, error=error, traceback=traceback)


def settlement(run: Run, verdict: Verdict, **fields: Any) -> Settlement:
    return Settlement(run.id, run.token, verdict, **fields)


def renewal(run: Run) -> Renewal:
    return Renewal(run.id, run.token)


def a_firing(job: Job, due_ms: int, **fields: Any) -> Firing:
    """Return the scheduled firing of a job for a due time, one minute before the next."""
    fields.setdefault("next_due_ms", due_ms + 60_000)
    fields.setdefault("overlap", Overlap.ALLOW)
    fields.setdefault("revision", job.revision)
    run = a_run(f"{job.id}@{due_ms}", job.id, due_ms=due_ms, cause=Cause.SCHEDULE, **fields.pop("run", {}))
    return Firing(run, **fields)


async def given_jobs(store: Store, *jobs: Job | str) -> list[Job]:
    """Put these jobs; a bare id stands for a default one."""
    wanted = [a_job(job) if isinstance(job, str) else job for job in jobs]
    for answer in await store.put_jobs([JobPut(job) for job in wanted], now_ms=T0):
        assert answer.answer in {Answer.OK, Answer.ALREADY}, answer
    return [job for job in await store.get_jobs(ids(wanted)) if job is not None]


async def given(store: Store, *runs: Run, now_ms: int = T0) -> None:
    """Put the jobs of these runs, and enqueue the runs."""
    stored = await store.get_jobs(sorted({run.job_id for run in runs}))
    missing = {run.job_id for run in runs} - {job.id for job in stored if job is not None}
    await given_jobs(store, *sorted(missing))
    for answer in await store.enqueue(runs, now_ms=now_ms):
        assert answer.answer is Answer.OK, answer


async def claim(store: Store, limit: int = 9, *, now_ms: int = T0, **fields: Any) -> tuple[Run, ...]:
    """Claim with a new token; return the runs."""
    fields.setdefault("token", f"t{next(_tokens)}")
    fields.setdefault("node", "node-1")
    fields.setdefault("lease_ms", LEASE_MS)
    return (await store.claim(limit=limit, now_ms=now_ms, **fields)).runs


async def leased(store: Store, run: Run | None = None, *, now_ms: int = T0, **fields: Any) -> Run:
    """Enqueue and claim one run."""
    run = run or a_run()
    await given(store, run, now_ms=now_ms)
    if run.state is RunState.HELD:
        await release(store, run.id, now_ms=now_ms)
    claimed = await claim(store, now_ms=now_ms, **fields)
    assert ids(claimed) == [run.id], f"claimed {ids(claimed)}"
    return claimed[0]


async def dead_letter(
    store: Store, run: Run | None = None, *, now_ms: int = T0, error: str = "ValueError: 42", **fields: Any
) -> Run:
    """Return a run settled as dead."""
    held = await leased(store, run, now_ms=now_ms)
    outcome = a_failure(now_ms, error)
    verdict = Dead("gave up", **fields)
    assert await store.settle([settlement(held, verdict, outcome=outcome)], now_ms=now_ms) == [Answer.OK]
    return await the_run(store, held.id)


async def finished(store: Store, run: Run | None = None, *, now_ms: int = T0, **outcome: Any) -> Run:
    """Return a run settled as done."""
    held = await leased(store, run, now_ms=now_ms)
    failed = outcome.pop("failed", False)
    ends = settlement(held, Done(failed=failed), outcome=an_outcome(now_ms, **outcome))
    assert await store.settle([ends], now_ms=now_ms) == [Answer.OK]
    return await the_run(store, held.id)


async def retried(store: Store, run: Run, at_ms: int, *, now_ms: int = T0) -> Run:
    ends = settlement(run, RetryAt(at_ms), outcome=a_failure(now_ms))
    assert await store.settle([ends], now_ms=now_ms) == [Answer.OK]
    return await the_run(store, run.id)


async def the_run(store: Store, run_id: str) -> Run:
    [run] = await store.get_runs([run_id])
    assert run is not None, f"run {run_id} is not there"
    return run


async def the_job(store: Store, job_id: str = "job") -> Job:
    [job] = await store.get_jobs([job_id])
    assert job is not None, f"job {job_id} is not there"
    return job


async def leading(store: Store, node: str = "leader", *, now_ms: int = T0) -> int:
    term = await store.elect(node, ttl_ms=3_600_000, now_ms=now_ms)
    assert term.holder == node
    return term.number


async def advance(store: Store, *, now_ms: int = T0, **parts: Any) -> Advanced:
    """Write a plan as the leader."""
    return await store.advance(await leading(store, now_ms=now_ms), Plan(**parts), now_ms=now_ms)


async def release(store: Store, *run_ids: str, now_ms: int = T0) -> None:
    wanted = tuple(Release(run_id) for run_id in run_ids)
    assert (await advance(store, now_ms=now_ms, releases=wanted)).answer is Answer.OK


async def entries(store: Store, kind: type[E]) -> list[E]:
    """Return the feed's entries of that kind, in order."""
    feed = await store.feed(limit=1_000)
    return [item.entry for item in feed.items if isinstance(item.entry, kind)]


async def last_ends(store: Store) -> tuple[End, ...]:
    """Return the ends of the newest `Ended` entry."""
    return (await entries(store, Ended))[-1].ends


async def forget_feed(store: Store, *, now_ms: int = T0) -> None:
    """Consume the whole feed as the leader."""
    feed = await store.feed(limit=10_000)
    await advance(store, now_ms=now_ms, consumed=tuple(ids_of(feed.items)))


def ids_of(items: Iterable[Any]) -> list[int]:
    return [item.id for item in items]


def a_memory(ended: int = 1, **fields: Any) -> Memory:
    return Memory(ended=ended, **fields)
