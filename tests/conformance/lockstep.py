"""Lockstep of several stores: every call goes to all, and all must return the same and hold the same."""

import asyncio
from collections import Counter
from typing import NamedTuple

from msgspec.structs import replace

from pollux.model import LIVE, SCHEDULER_VERSION, Arrived, Ended, RunState, may_become
from pollux.store.contract import Advanced, Answer, Claimed, Feed, JobAnswer

LOSSES_MAX = 3
OTHER = SCHEDULER_VERSION + 1  # the version that jobs are moved to, beside the usual one
# One plan may make a run and then cancel it.
TWO_STEPS = {(None, RunState.CANCELLED)}


class Snapshot(NamedTuple):
    """All that can be seen of a store."""

    runs: dict
    jobs: dict
    counts: object
    notes: dict
    feed: tuple

    def live(self):
        return [run for run in self.runs.values() if run.state in LIVE]


class Lockstep:
    """The stores side by side.  `do` answers what the first one said."""

    def __init__(self, *stores):
        self.runner = asyncio.Runner()
        self.stores = stores
        self.beside = [store.of_version(OTHER) for store in stores]
        self.run(self._all("open"))

    def run(self, coro):
        return self.runner.run(coro)

    def close(self):
        self.run(self._all("close"))
        self.runner.close()

    def reopen(self):
        self.run(self._all("close"))
        self.run(self._all("open"))

    def do(self, verb, *args, stores=None, each=None, **options):
        """`each`: the arguments store by store, where a store has numbers of its own."""
        answers = self.run(self._all(verb, *args, stores=stores, each=each, **options))
        for store, answer in zip(self.stores[1:], answers[1:], strict=True):
            name = store.capabilities.name
            assert plain(answer) == plain(answers[0]), f"{verb}: {name} answered {answer}, the first {answers[0]}"
        return answers[0]

    async def _all(self, verb, *args, stores=None, each=None, **options):
        used = stores or self.stores
        given = each or [args] * len(used)
        return [await getattr(store, verb)(*own, **options) for store, own in zip(used, given, strict=True)]

    def look(self, now_ms, *, page=1_000):
        """A snapshot of each, all alike."""
        handles = zip(self.stores, self.beside, strict=True)
        seen = self.run(_side_by_side([_snapshot(*each, now_ms, page) for each in handles]))
        for store, other in zip(self.stores[1:], seen[1:], strict=True):
            for part, mine, first in zip(Snapshot._fields, other, seen[0], strict=True):
                assert mine == first, f"{part} of {store.capabilities.name}: {mine}\nof the first: {first}"
        return seen[0]

    def check_lines(self, seen, now_ms):
        """What could be claimed now, by priority; in each version, as the runs tell it."""
        for version, handles in ((SCHEDULER_VERSION, self.stores), (OTHER, self.beside)):
            lines = self.do("lines", stores=handles, now_ms=now_ms)
            ready = [run for run in seen.live() if run.state is RunState.READY]
            mine = [run for run in ready if run.scheduler_version == version]
            for priority, line in enumerate(lines, start=1):
                times = [run.visible_ms for run in mine if run.priority == priority]
                assert (line.ready, line.first_ms) == (
                    sum(at_ms <= now_ms for at_ms in times),
                    min(times, default=None),
                ), f"the line {priority} of version {version}"


async def _side_by_side(calls):
    return await asyncio.gather(*calls)


async def _snapshot(store, beside, now_ms, page):
    runs = await _pages(store.list_runs, "runs", page)
    jobs = await _pages(store.list_jobs, "jobs", page)
    assert len({run.id for run in runs}) == len(runs), "a page repeats a run"
    notes = {note.key: note.value for note in await store.notes(now_ms=now_ms)}
    feeds = [await handle.feed(limit=1_000, now_ms=now_ms) for handle in (store, beside)]
    return Snapshot(
        {run.id: run for run in runs},
        {job.id: job for job in jobs},
        await store.counts(all_versions=True),
        notes,
        tuple(entry(item.entry) for feed in feeds for item in feed.items),
    )


async def _pages(verb, what, page):
    rows, after = [], None
    while True:
        answer = await verb(after=after, limit=page)
        rows += getattr(answer, what)
        after = answer.next
        if after is None:
            return rows


def plain(answer):
    """The answer without what the contract leaves open: numbers of revisions, wording, order inside an entry."""
    match answer:
        case Claimed():
            return replace(answer, stops_revision=0)
        case Feed():
            return tuple(entry(item.entry) for item in answer.items)
        case [JobAnswer(), *_]:
            return [replace(each, detail="") for each in answer]
        case _:
            return answer


def entry(value):
    match value:
        case Ended():
            return Ended(tuple(sorted(value.ends, key=lambda end: end.run_id)))
        case Arrived():
            return Arrived(tuple(sorted(value.run_ids)))
        case _:
            return value


class Ledger:
    """What must be true whatever happened; it remembers what a store may forget."""

    def __init__(self):
        self.fences: dict[str, int] = {}
        self.tokens: set[tuple[str, str]] = set()
        self.accepted: set[str] = set()
        self.removed: set[str] = set()
        self.fired: set[tuple[str, int]] = set()
        self.terms: dict[int, str] = {}
        self.latest_ms = 0  # that any clock ever showed

    def delivered(self, runs):
        """I3: tokens never repeat, and the fence rises by one with each delivery."""
        for run in runs:
            assert (run.id, run.token) not in self.tokens, f"token {run.token} was used before"
            assert run.fence == self.fences.get(run.id, 0) + 1, f"fence of {run.id} jumped to {run.fence}"
            self.tokens.add((run.id, run.token))
            self.fences[run.id] = run.fence

    def elected(self, term):
        """I11: one holder per term; terms never fall."""
        assert self.terms.setdefault(term.number, term.holder) == term.holder
        assert term.number == max(self.terms)

    def advanced(self, firings, answer: Advanced, *, can_forget):
        """I12, I15: a due time is accepted once, over deletions and restarts.

        Only when the clock came back and the run was pruned meanwhile does nobody know any more (`can_forget`).
        """
        for firing, given in zip(firings, answer.firings, strict=True):
            if given in {Answer.OK, Answer.WAITS}:
                self.accepted.add(firing.run.id)
            if given in {Answer.OK, Answer.WAITS, Answer.OVERLAPPED} and not can_forget:
                due = (firing.run.job_id, firing.run.due_ms)
                assert due not in self.fired, f"{due} was fired twice"
                self.fired.add(due)

    def check(self, before: Snapshot, after: Snapshot, lease_max_ms):
        self._check_places(after)
        self._check_conservation(before, after)
        self._check_changes(before, after)
        for run in after.live():
            self._check_live(run, after)
        if after.counts.leased:
            longest = max(run.lease_until_ms for run in after.live() if run.state is RunState.LEASED)
            assert longest <= self.latest_ms + lease_max_ms, "I9: a lease lasts longer than it was given for"

    def _check_places(self, after):
        """I1: every run stands in one place, and the counters agree with the rows."""
        states = Counter(run.state for run in after.runs.values())
        counts = after.counts
        assert (counts.held, counts.ready, counts.leased, counts.dead) == tuple(
            states[state] for state in (RunState.HELD, RunState.READY, RunState.LEASED, RunState.DEAD)
        )
        ends = sum(len(each.ends) for each in after.feed if isinstance(each, Ended))
        assert (counts.jobs, counts.feed, counts.ends) == (len(after.jobs), len(after.feed), ends)

    def _check_conservation(self, before, after):
        """I2: what was accepted is there, unless it was removed on purpose."""
        gone = set(before.runs) - set(after.runs)
        assert gone <= self.removed, f"lost: {gone - self.removed}"
        for run_id in gone:
            self.fences.pop(run_id, None)  # an id that was pruned may come again, as new
        new = set(after.runs) - set(before.runs)
        assert new <= self.accepted, f"from nowhere: {new - self.accepted}"

    def _check_changes(self, before, after):
        for run_id, run in after.runs.items():
            old = before.runs.get(run_id)
            was, now = (old.state if old else None), run.state
            if was is not now:
                is_two_steps = (was, now) in TWO_STEPS
                assert is_two_steps or may_become(was, now), f"{run_id}: {was} became {now}"
            if old is not None and run_id not in self.removed:  # nor made anew under the same id
                assert run.fence >= old.fence, f"I3: the fence of {run_id} fell"
                assert run.payload == old.payload, f"I16: {run_id} lost its payload"
        for job_id, job in after.jobs.items():
            old_job = before.jobs.get(job_id)
            assert old_job is None or job.revision >= old_job.revision

    def _check_live(self, run, after):
        assert run.lease_losses < LOSSES_MAX, "I6: too many losses, and still alive"
        has_reason = bool(run.held_reason)
        assert has_reason == (run.state is RunState.HELD), "held always says why, others never"
        assert (run.state is RunState.LEASED) == bool(run.owner)
        if run.state is not RunState.LEASED:
            assert run.job_id in after.jobs, "a waiting run without a job"
        if run.key is not None:
            holders = [other.id for other in after.live() if other.key == run.key]
            assert holders == [run.id], f"I8: key {run.key} is held by {holders}"
