"""Learning from ends: none leaves the feed before its job has learnt it, and none is learnt twice."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pollux.model import Done, Ended, FeedItem, Firing, JobUpdate, NotePut, Overlap, Release
from pollux.store.contract import Answer, Store
from pollux.testing.conformance.builders import (
    a_firing,
    a_job,
    a_memory,
    a_run,
    advance,
    an_outcome,
    claim,
    entries,
    forget_feed,
    given,
    given_jobs,
    settlement,
    the_job,
    the_run,
)
from pollux.testing.conformance.contract import Contract
from pollux.testing.conformance.versions import another, moved

MINUTE = 60_000


async def ended_together(store: Store, *job_ids: str, now_ms: int) -> FeedItem:
    """End one run of each job, all in one entry, which alone is in the feed."""
    await given(store, *[a_run(f"run-{job_id}", job_id) for job_id in job_ids])
    runs = await claim(store, limit=len(job_ids), now_ms=now_ms)
    await forget_feed(store)
    outcome = an_outcome(now_ms)
    assert set(await store.settle([settlement(run, Done(), outcome=outcome) for run in runs], now_ms=now_ms)) == {
        Answer.OK
    }
    [item] = (await store.feed(limit=9)).items
    return item


def mark(item: FeedItem) -> tuple[int, int]:
    assert isinstance(item.entry, Ended)
    return item.entry.mark(item.id)


async def learnt(store: Store, job_id: str, *items: FeedItem, **fields: int) -> JobUpdate:
    """Return the write of a leader that has just read the job, and these entries."""
    job = await the_job(store, job_id)
    memory = a_memory(job.memory.ended + len(items), learnt=tuple(map(mark, items)))
    return JobUpdate(job_id, fields.pop("revision", job.revision), job.next_due_ms, memory)


async def left(store: Store, kind: type = Ended) -> list[int]:
    return [item.id for item in (await store.feed(limit=1_000)).items if isinstance(item.entry, kind)]


class LearntContract(Contract):
    async def test_a_job_remembers_the_entries_that_it_has_learnt_from(self, store: Store, t0: int) -> None:
        [job] = await given_jobs(store, "job")
        memory = a_memory(learnt=((7, t0), (1 << 52, t0 + 1)))

        await advance(store, now_ms=t0, updates=(JobUpdate("job", job.revision, None, memory),))

        assert (await the_job(store)).memory == memory

    @pytest.mark.parametrize("beside", ["alone", "a note", "a firing"])
    async def test_an_entry_stays_as_long_as_a_job_that_was_to_learn_from_it_is_stale(
        self, store: Store, t0: int, beside: str
    ) -> None:
        """Or its end would be lost with a leader that dies before the next plan."""
        await given_jobs(store, "fires")
        item = await ended_together(store, "a", "b", now_ms=t0)
        updates = (await learnt(store, "a", item), await learnt(store, "b", item))
        await given_jobs(store, a_job("b", priority=1))
        firings = (a_firing(await the_job(store, "fires"), t0),) if beside == "a firing" else ()
        notes = (NotePut("note", 1),) if beside == "a note" else ()

        told = await advance(store, now_ms=t0, consumed=(item.id,), updates=updates, firings=firings, notes=notes)

        assert (told.answer, told.updates) == (Answer.OK, (Answer.OK, Answer.STALE))
        assert [(await the_job(store, job_id)).memory.ended for job_id in ("a", "b")] == [1, 0]
        assert await left(store) == [item.id]
        assert (await store.counts()).ends == 2
        assert await entries(store, Ended) == [item.entry]

        again = await learnt(store, "b", item)
        assert (await advance(store, now_ms=t0, consumed=(item.id,), updates=(again,))).updates == (Answer.OK,)
        assert await left(store) == []
        assert (await store.counts()).ends == 0

    @pytest.mark.parametrize("fate", ["deleted", "moved"])
    async def test_an_entry_stays_for_a_job_that_is_not_here_any_more(self, store: Store, t0: int, fate: str) -> None:
        """The leader reads what became of it, and consumes the entry then."""
        item = await ended_together(store, "a", "b", now_ms=t0)
        update = await learnt(store, "b", item)
        if fate == "deleted":
            await store.delete_jobs(["b"], now_ms=t0)
        else:
            await moved(store, "b")

        told = await advance(store, now_ms=t0, consumed=(item.id,), updates=(update,))

        assert told.updates == (Answer.STALE,)
        assert await left(store) == [item.id]

    async def test_an_entry_goes_though_a_job_is_stale_that_did_not_learn_from_it(self, store: Store, t0: int) -> None:
        item = await ended_together(store, "a", "b", now_ms=t0)
        update, stale = await learnt(store, "a", item), await learnt(store, "b", revision=99)

        told = await advance(store, now_ms=t0, consumed=(item.id,), updates=(update, stale))

        assert told.updates == (Answer.OK, Answer.STALE)
        assert await left(store) == []

    async def test_of_several_entries_only_those_of_stale_jobs_stay(self, store: Store, t0: int) -> None:
        items = await self._two_entries(store, t0)
        updates = (await learnt(store, "a", *items), await learnt(store, "b", items[1], revision=99))

        await advance(store, now_ms=t0, consumed=tuple(item.id for item in items), updates=updates)

        assert await left(store) == [items[1].id]
        assert (await store.counts()).ends == 2

    async def test_an_entry_that_is_not_consumed_stays_whatever_was_learnt_from_it(self, store: Store, t0: int) -> None:
        items = await self._two_entries(store, t0)

        await advance(store, now_ms=t0, consumed=(items[0].id,), updates=(await learnt(store, "a", *items),))

        assert await left(store) == [items[1].id]

    @pytest.mark.parametrize("overlap", [Overlap.SKIP, Overlap.QUEUE, Overlap.CANCEL])
    async def test_a_firing_does_not_wait_for_an_entry_that_stays_because_another_job_is_stale(
        self, store: Store, t0: int, overlap: Overlap
    ) -> None:
        """The plan has read it: its own job has learnt all it had to."""
        item = await ended_together(store, "a", "b", now_ms=t0)
        stale = await learnt(store, "b", item, revision=99)

        fires: Firing = a_firing(await the_job(store, "a"), t0 + MINUTE, overlap=overlap)
        told = await advance(store, now_ms=t0 + MINUTE, consumed=(item.id,), updates=(stale,), firings=(fires,))

        assert (told.firings, told.updates) == ((Answer.OK,), (Answer.STALE,))
        assert await left(store) == [item.id]

    async def test_a_firing_that_begins_alone_does_not_wait_for_it_either(self, store: Store, t0: int) -> None:
        item = await ended_together(store, "a", "b", now_ms=t0)
        stale = await learnt(store, "b", item, revision=99)
        await given(store, a_run("held", "a", gated=True))

        told = await advance(
            store, now_ms=t0, consumed=(item.id,), updates=(stale,), releases=(Release("held", alone=True),)
        )

        assert told.waiting == ()
        assert (await the_run(store, "held")).held_reason == ""

    async def test_ends_that_a_job_has_learnt_do_not_go_along_with_it(self, store: Store, t0: int) -> None:
        """Their entry is still there for another job; in the new version they would be learnt again."""
        item = await ended_together(store, "job", "other", now_ms=t0)
        await advance(store, now_ms=t0, updates=(await learnt(store, "job", item),))

        await moved(store, "job")
        assert await entries(another(store), Ended) == []
        assert (await another(store).counts()).ends == 0

        await moved(store, "other")
        [told] = await entries(another(store), Ended)
        assert [end.run_id for end in told.ends] == ["run-other"]

    async def test_ends_in_an_entry_that_only_bears_the_number_of_a_learnt_one_go_along(
        self, store: Store, t0: int
    ) -> None:
        """Numbers begin again in another version, and where a store was restored."""
        item = await ended_together(store, "job", now_ms=t0)
        job = await the_job(store)
        elsewhere = a_memory(learnt=((item.id, t0 - MINUTE), (item.id + 1, t0)))
        await advance(store, now_ms=t0, updates=(JobUpdate("job", job.revision, None, elsewhere),))

        await moved(store, "job")

        [told] = await entries(another(store), Ended)
        assert [end.run_id for end in told.ends] == ["run-job"]

    async def _two_entries(self, store: Store, t0: int) -> Sequence[FeedItem]:
        """Of the same jobs: one end in the first, two in the second."""
        await given(store, a_run("first", "a"), a_run("second", "a"), a_run("third", "b"))
        runs = {run.id: run for run in await claim(store, now_ms=t0)}
        await forget_feed(store)
        for some in (["first"], ["second", "third"]):
            ends = [settlement(runs[run_id], Done(), outcome=an_outcome(t0)) for run_id in some]
            await store.settle(ends, now_ms=t0)
        return (await store.feed(limit=9)).items
