"""Checker of the chaos tests: a pure function over the ledger and the store's content at the end.

It never uses the product's own counters: handlers and clients wrote the ledger, the store is read through a fresh
handle.  Each rule returns sentences; an empty list means that it holds.  `test_checker.py` feeds each rule a ledger
that breaks it.

What the checker expects of the load: a run whose payload (or job) says `follow: n` makes n follow-ups when it
succeeds, whose payload names `parent` and `slot`; handlers return `{"pid": ..., "fence": ...}`; only `fail` lines are
charged failures.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from pollux.model import FINISHED, Cause, Ended, FeedItem, Interval, Job, Run, RunState
from pollux.schedule import next_due
from tests.chaos.ledger import Told

SHOWN_MAX = 5
GRID_MAX = 100_000
TEACHING = frozenset({RunState.DONE, RunState.DEAD})


class Snapshot(Struct, frozen=True):
    """All that the store holds: every run, live or finished, as often as it was listed, every job, and the feed."""

    runs: tuple[Run, ...]
    jobs: tuple[Job, ...]
    feed: tuple[FeedItem, ...] | None = None  # None: not read


class Broken(Struct, frozen=True):
    """A rule that does not hold, with the first few offenders."""

    rule: str
    count: int
    shown: tuple[str, ...]

    def __str__(self) -> str:
        more = f" (and {self.count - len(self.shown)} more)" if self.count > len(self.shown) else ""
        return f"{self.rule}: {self.count}{more}\n  " + "\n  ".join(self.shown)


def judge(told: Told, store: Snapshot, *, first_due: Mapping[str, int] | None = None) -> list[Broken]:
    """Every promise that was broken.  `first_due`: the first due of each interval job, where its grid begins."""
    rules = {
        "lost": lost(told, store),
        "phantom": phantom(told, store),
        "double outcome": double_outcome(store),
        "outcome without an end": outcome_without_end(told, store),
        "follow-ups": follow_ups(store),
        "off the grid": off_the_grid(store, first_due or {}),
        "firings": firings(store, first_due or {}),
        "repeats": repeats(told),
        "one fence twice": one_fence_twice(told),
        "charges": charges(told, store),
        "learnt": learnt(store),
        "terms": terms(told),
    }
    return [Broken(rule, len(said), tuple(said[:SHOWN_MAX])) for rule, said in rules.items() if said]


def lost(told: Told, store: Snapshot) -> list[str]:
    """What was accepted is finished or still there."""
    there = {run.id for run in store.runs}
    accepted = {run_id for run_id, answers in told.answers.items() if "ok" in answers}
    return [f"{run_id} was accepted and is gone" for run_id in sorted(accepted - there)]


def phantom(told: Told, store: Snapshot) -> list[str]:
    """Every run was asked for, fired by a schedule, or followed up by a run; what was refused is not there."""
    there = {run.id: run for run in store.runs}
    refused = {run_id for run_id, answers in told.answers.items() if answers == {"err"}}
    said = [f"{run_id} was refused and is there" for run_id in sorted(refused & there.keys())]
    for run in there.values():
        is_known = run.id in told.asked or run.cause is Cause.SCHEDULE or _parent(run) in there
        if not is_known:
            said.append(f"{run.id} is there and nobody asked for it")
    ran = {step.run_id for step in told.runs}
    return said + [f"{run_id} ran and is not there" for run_id in sorted(ran - there.keys())]


def double_outcome(store: Snapshot) -> list[str]:
    """A run is there once: live or finished, with one outcome."""
    states: dict[str, list[str]] = defaultdict(list)
    for run in store.runs:
        states[run.id].append(str(run.state))
    said = [f"{run_id} is there as {', '.join(found)}" for run_id, found in states.items() if len(found) > 1]
    fired = Counter((run.job_id, run.due_ms) for run in store.runs if run.cause is Cause.SCHEDULE)
    return said + [f"job {job} fired {n} times for due {due}" for (job, due), n in fired.items() if n > 1]


def outcome_without_end(told: Told, store: Snapshot) -> list[str]:
    """A success is that of the last delivery: its handler reached the end, and its result is the recorded one."""
    ends = {(step.run_id, step.fence, step.pid) for step in told.ends}
    ended = {(run_id, fence) for run_id, fence, _ in ends}
    said = []
    for run in store.runs:
        if run.state is not RunState.DONE or run.failed:
            continue
        if (run.id, run.fence) not in ended:
            said.append(f"{run.id} is done at fence {run.fence}, but no handler of that fence reached its end")
            continue
        result = run.result if isinstance(run.result, dict) else {}
        if result.get("fence") != run.fence or (run.id, run.fence, result.get("pid")) not in ends:
            said.append(f"{run.id} is done at fence {run.fence}, but its result is of another delivery: {run.result}")
    return said


def follow_ups(store: Snapshot) -> list[str]:
    """A follow-up is there, and there once, exactly if its parent is done."""
    children: Counter[tuple[str, int]] = Counter()
    for run in store.runs:
        parent = _parent(run)
        if parent is not None:
            children[parent, run.payload["slot"] if run.payload else 0] += 1
    said = [f"follow-up {slot} of {parent} is there {n} times" for (parent, slot), n in children.items() if n > 1]
    succeeded = {run.id: run for run in store.runs if run.state is RunState.DONE and not run.failed}
    said += [f"{parent} has a follow-up and is not done" for parent, _ in children if parent not in succeeded]
    follows = {job.id: job.params.get("follow", 0) for job in store.jobs}
    for run in succeeded.values():
        wanted = (run.payload or {}).get("follow", follows.get(run.job_id, 0))
        said += [f"{run.id} is done without its follow-up {n}" for n in range(wanted) if (run.id, n) not in children]
    return said


def off_the_grid(store: Snapshot, first_due: Mapping[str, int]) -> list[str]:
    """An interval job fires on, and only at its first due and at instants of its grid; whatever the clock did."""
    said = []
    for job, fired in _fired(store):
        if not fired or job.next_due_ms is None:
            said.append(f"job {job.id} fired {len(fired)} times and is next due at {job.next_due_ms}")
            continue
        first = first_due.get(job.id, min(fired))
        strays = sorted(due for due in fired - {first} if not _is_on_grid(job, due))
        said += [f"job {job.id} fired at {due}, which is no due of it" for due in strays]
        if job.next_due_ms != first and not _is_on_grid(job, job.next_due_ms):
            said.append(f"job {job.id} is next due at {job.next_due_ms}, which is no due of it")
    return said


def firings(store: Snapshot, first_due: Mapping[str, int]) -> list[str]:
    """Every due of an interval job up to its next one fired once or was counted as skipped, and none beyond it fired.

    Only while the clock is not set back: dues of an hour that is lived twice fire after they were counted as skipped.
    """
    said = []
    for job, fired in _fired(store):
        if fired and job.next_due_ms is not None:
            said += _firings_of(job, fired, first_due.get(job.id, min(fired)))
    return said


def _fired(store: Snapshot) -> list[tuple[Job, set[int]]]:
    fired: dict[str, set[int]] = defaultdict(set)
    for run in store.runs:
        if run.cause is Cause.SCHEDULE:
            fired[run.job_id].add(run.due_ms)
    return [(job, fired[job.id]) for job in store.jobs if isinstance(job.schedule, Interval)]


def _firings_of(job: Job, fired: set[int], first: int) -> list[str]:
    grid = _grid(job, first)
    early = sorted(due for due in fired - grid if _is_on_grid(job, due))
    said = [f"job {job.id} fired at {due}, which is no due between its first and its next one" for due in early]
    skipped = sum(job.memory.skips.values())
    if len(fired & grid) + skipped != len(grid):
        said.append(
            f"job {job.id} had {len(grid)} dues, of which {len(fired & grid)} fired and {skipped} were recorded as "
            f"skipped {job.memory.skips}; not fired: {sorted(grid - fired)[:SHOWN_MAX]}"
        )
    return said


def _is_on_grid(job: Job, due: int) -> bool:
    assert isinstance(job.schedule, Interval)
    return next_due(job.schedule, job.id, due - job.schedule.every_ms) == due


def _grid(job: Job, first: int) -> set[int]:
    assert job.schedule is not None
    assert job.next_due_ms is not None
    dues: set[int] = set()
    due: int | None = first
    while due is not None and due < job.next_due_ms:
        dues.add(due)
        assert len(dues) <= GRID_MAX, f"job {job.id}: more dues than a test can have"
        due = next_due(job.schedule, job.id, due)
    return dues


def repeats(told: Told) -> list[str]:
    """A handler starts again only after a failure, a kill, a cut or a lost lease, and per kill no more than it held."""
    ended_by: dict[tuple[str, int], str] = {(step.run_id, step.fence): "fail" for step in told.fails}
    ended_by |= {(step.run_id, step.fence): "cut" for step in told.cuts}
    killed = {kill.pid: kill for kill in told.kills}
    leases_lost = set(told.lost)
    said, charged = [], Counter[int]()
    for run_id, steps in _starts(told).items():
        for before, after in itertools.pairwise(steps):
            if (run_id, before.fence) in ended_by or (run_id, before.pid) in leases_lost:
                continue
            if after.fence < before.fence and (run_id, after.pid) in leases_lost:
                continue  # it stood still before its first step, and the other came first
            if before.pid in killed and killed[before.pid].at_ns >= before.at_ns:
                charged[before.pid] += 1
            else:
                said.append(f"{run_id} started again (fence {after.fence}) though nothing happened to {before}")
    for pid, count in charged.items():
        if count > killed[pid].in_flight:
            said.append(f"pid {pid} held {killed[pid].in_flight} leases when it was killed; {count} runs started again")
    return said


def repeats_count(told: Told) -> int:
    """How many starts were not the first of their attempt."""
    return len(told.runs) - len({(step.run_id, step.attempt) for step in told.runs})


def one_fence_twice(told: Told) -> list[str]:
    """A fence is one delivery: no two handlers ever run under the same one."""
    said = []
    for run_id, steps in _starts(told).items():
        fences = Counter(step.fence for step in steps)
        said += [f"{run_id} was started {n} times under fence {fence}" for fence, n in fences.items() if n > 1]
    return said


def charges(told: Told, store: Snapshot) -> list[str]:
    """`attempt` counts the failures, and nothing else: no kill, no drain, no lost lease."""
    failed: dict[str, set[int]] = defaultdict(set)
    for step in told.fails:
        failed[step.run_id].add(step.attempt)
    said = []
    for run in store.runs:
        seen = len(failed[run.id])
        if run.attempt > seen or (run.state is RunState.DONE and run.attempt != seen):
            said.append(f"{run.id} is charged with {run.attempt} failures and had {seen}")
    return said


def learnt(store: Snapshot) -> list[str]:
    """Every end has taught its job once, or is still to be read."""
    if store.feed is None:
        return []
    ended = Counter(run.job_id for run in store.runs if run.state in TEACHING)
    said = []
    for job in store.jobs:
        entries = [item for item in store.feed if isinstance(item.entry, Ended)]
        unread = [item.entry for item in entries if item.entry.mark(item.id) not in job.memory.learnt]
        left = sum(end.job_id == job.id and end.state in TEACHING for entry in unread for end in entry.ends)
        if job.memory.ended + left != ended[job.id]:
            seen = f"has learnt {job.memory.ended} ends, and {left} are unread"
            said.append(f"job {job.id} {seen}: {ended[job.id]} runs of it ended")
    return said


def terms(told: Told) -> list[str]:
    """A term is one node's."""
    won: dict[int, set[int]] = defaultdict(set)
    for each in told.terms:
        won[each.term].add(each.pid)
    return [f"term {term} was won by {sorted(pids)}" for term, pids in won.items() if len(pids) > 1]


def unfinished(store: Snapshot, *, but: Sequence[str] = ()) -> list[Run]:
    """Runs that have not ended, those of the named jobs apart."""
    return [run for run in store.runs if run.state not in FINISHED and run.job_id not in but]


def _starts(told: Told) -> Mapping[str, Sequence[Any]]:
    starts: dict[str, list[Any]] = defaultdict(list)
    for step in told.runs:
        starts[step.run_id].append(step)
    return {run_id: sorted(steps, key=lambda step: step.at_ns) for run_id, steps in starts.items()}


def _parent(run: Run) -> str | None:
    return (run.payload or {}).get("parent")
