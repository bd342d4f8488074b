"""Listings by page, and counts."""

from __future__ import annotations

import pytest

from pollux.errors import InvalidInput
from pollux.model import QueueDepth, Run, RunState
from pollux.store.contract import Counts, JobFilter, RunFilter, Store
from pollux.testing.conformance.builders import (
    Contract,
    a_job,
    a_run,
    claim,
    dead_letter,
    finished,
    forget_feed,
    given,
    given_jobs,
    ids,
    leased,
)


async def all_runs(store: Store, where: RunFilter | None = None, *, limit: int = 100) -> list[Run]:
    """Return every page, one after the other."""
    runs: list[Run] = []
    after = None
    for _ in range(100):
        page = await store.list_runs(where, after=after, limit=limit)
        assert len(page.runs) <= limit
        runs += page.runs
        after = page.next
        if after is None:
            return runs
    raise AssertionError("the pages never end")


class ListingContract(Contract):
    async def test_jobs_are_listed_by_id(self, store: Store, t0: int) -> None:
        await given_jobs(store, "b", "a", "c")

        page = await store.list_jobs()

        assert (ids(page.jobs), page.next) == (["a", "b", "c"], None)

    async def test_pages_of_jobs_have_no_gaps_and_no_repeats(self, store: Store, t0: int) -> None:
        await given_jobs(store, *(f"job{n:02}" for n in range(25)))

        for limit in (1, 7, 25, 26):
            seen, after, pages = [], None, 0
            while pages == 0 or after is not None:
                page = await store.list_jobs(after=after, limit=limit)
                seen += ids(page.jobs)
                after, pages = page.next, pages + 1
            assert seen == [f"job{n:02}" for n in range(25)]
            assert pages == -(-25 // limit)

    async def test_jobs_are_found_by_what_they_are(self, store: Store, t0: int) -> None:
        await given_jobs(
            store,
            a_job("one", group="g", target="h1", tags=("x", "y"), source="file:a", handler="http", name="Front Door"),
            a_job("two", group="g", target="h2", tags=("y",), source="api", handler="exec"),
            a_job("three", tags=("xy",), source="api", handler="http"),
        )

        async def found(where: JobFilter) -> list[str]:
            return ids((await store.list_jobs(where)).jobs)

        assert await found(JobFilter(group="g")) == ["one", "two"]
        assert await found(JobFilter(target="h2")) == ["two"]
        assert await found(JobFilter(tag="x")) == ["one"]
        assert await found(JobFilter(source="api")) == ["three", "two"]
        assert await found(JobFilter(handler="http")) == ["one", "three"]
        assert await found(JobFilter(text="Door")) == ["one"]
        assert await found(JobFilter(text="re")) == ["three"]
        assert await found(JobFilter(group="g", handler="http")) == ["one"]
        assert await found(JobFilter(text="%")) == []

    async def test_jobs_are_found_by_priority_source_and_whether_they_are_enabled(self, store: Store, t0: int) -> None:
        await given_jobs(
            store,
            a_job("one", priority=1, source_id="feed-1"),
            a_job("two", enabled=False),
            a_job("three", priority=3, source_id="feed-1", enabled=False),
        )

        async def found(where: JobFilter) -> list[str]:
            return ids((await store.list_jobs(where)).jobs)

        assert await found(JobFilter(priority=1)) == ["one"]
        assert await found(JobFilter(priority=2)) == ["two"]
        assert await found(JobFilter(source_id="feed-1")) == ["one", "three"]
        assert await found(JobFilter(source_id="feed")) == []
        assert await found(JobFilter(source_id="")) == ["two"]
        assert await found(JobFilter(enabled=False)) == ["three", "two"]
        assert await found(JobFilter(enabled=True)) == ["one"]
        assert await found(JobFilter(source_id="feed-1", enabled=False, priority=3)) == ["three"]

    async def test_pages_of_found_jobs_have_no_gaps(self, store: Store, t0: int) -> None:
        await given_jobs(store, *(a_job(f"job{n:02}", group="odd" if n % 2 else "even") for n in range(20)))

        first = await store.list_jobs(JobFilter(group="odd"), limit=6)
        second = await store.list_jobs(JobFilter(group="odd"), after=first.next, limit=6)

        assert ids(first.jobs + second.jobs) == [f"job{n:02}" for n in range(1, 20, 2)]
        assert second.next is None

    async def test_live_runs_come_by_due_time_then_the_finished_newest_first(self, store: Store, t0: int) -> None:
        for n in range(3):
            await finished(store, a_run(f"done{n}", due_ms=t0 - 100 + n), now_ms=t0 + n)
        await given(
            store,
            a_run("c", due_ms=t0 + 30_000),
            a_run("b", due_ms=t0 + 20_000),
            a_run("a", due_ms=t0 + 30_000, gated=True),
        )

        assert ids(await all_runs(store)) == ["b", "a", "c", "done2", "done1", "done0"]

    async def test_pages_of_runs_have_no_gaps_and_no_repeats(self, store: Store, t0: int) -> None:
        for n in range(7):
            await finished(store, a_run(f"done{n}"), now_ms=t0 + n)
        await given(store, *(a_run(f"live{n}", due_ms=t0 + n % 3) for n in range(8)))
        whole = ids(await all_runs(store))
        assert len(set(whole)) == 15

        for limit in (1, 4, 8, 15):
            assert ids(await all_runs(store, limit=limit)) == whole

    async def test_runs_are_found_by_what_they_are(self, store: Store, t0: int) -> None:
        await finished(store, a_run("bad", "one", target="h"), failed=True, now_ms=t0 + 10)
        await dead_letter(store, a_run("dead", "two"), now_ms=t0 + 20)
        await leased(store, a_run("leased", "one", group="g"), now_ms=t0 + 30)
        await given(store, a_run("ready", "two", target="h"), a_run("held", "one", gated=True))

        async def found(**where: object) -> set[str]:
            return set(ids(await all_runs(store, RunFilter(**where))))  # type: ignore[arg-type]

        assert await found(states=(RunState.DEAD,)) == {"dead"}
        assert await found(states=(RunState.READY, RunState.HELD)) == {"ready", "held"}
        assert await found(job_id="one") == {"bad", "leased", "held"}
        assert await found(group="g") == {"leased"}
        assert await found(target="h") == {"bad", "ready"}
        assert await found(failed=True) == {"bad", "dead"}
        assert await found(finished_after_ms=t0 + 10) == {"dead"}
        assert await found(job_id="two", states=(RunState.READY,)) == {"ready"}
        assert await found(job_id="nobody") == set()

    async def test_pages_of_one_jobs_runs_have_no_gaps(self, store: Store, t0: int) -> None:
        for n in range(5):
            await finished(store, a_run(f"mine{n}", "mine"), now_ms=t0 + n)
            await finished(store, a_run(f"other{n}", "other"), now_ms=t0 + n)
        await given(store, a_run("live", "mine", due_ms=t0 + 60_000))

        found = await all_runs(store, RunFilter(job_id="mine"), limit=2)

        assert ids(found) == ["live", "mine4", "mine3", "mine2", "mine1", "mine0"]

    async def test_runs_are_got_by_id_in_the_order_asked(self, store: Store, t0: int) -> None:
        await finished(store, a_run("past"))
        await given(store, a_run("live"))

        got = await store.get_runs(["past", "nobody", "live", "past"])

        assert [run and run.id for run in got] == ["past", None, "live", "past"]

    async def test_jobs_are_got_by_id_in_the_order_asked(self, store: Store, t0: int) -> None:
        await given_jobs(store, "a", "b")

        got = await store.get_jobs(["b", "nobody", "a"])

        assert [job and job.id for job in got] == ["b", None, "a"]

    async def test_counts_tell_how_many_there_are_of_each(self, store: Store, t0: int) -> None:
        await dead_letter(store, a_run("dead"))
        await finished(store, a_run("done"))
        await forget_feed(store)
        await given(store, *(a_run(f"r{n}") for n in range(3)), *(a_run(f"h{n}", gated=True) for n in range(2)))
        await claim(store, 1, now_ms=t0)
        await given(store, a_run("later", due_ms=t0 + 60_000))

        assert await store.counts() == Counts(held=2, ready=3, leased=1, dead=1, feed=1, ends=0, jobs=1)

    async def test_lines_tell_what_could_be_claimed_by_priority_and_since_when(self, store: Store, t0: int) -> None:
        await given(store, a_run("a", priority=1, due_ms=t0), a_run("b", due_ms=t0 - 5), a_run("c", due_ms=t0 - 9))
        await given(store, a_run("g", gated=True, due_ms=t0 - 99), a_run("later", priority=3, due_ms=t0 + 60_000))
        await given(store, a_run("far", due_ms=t0 + 60_000))
        assert await store.lines(now_ms=t0) == (QueueDepth(1, t0), QueueDepth(2, t0 - 9), QueueDepth(0, t0 + 60_000))

        await claim(store, 2, now_ms=t0)

        assert await store.lines(now_ms=t0) == (QueueDepth(0, None), QueueDepth(1, t0 - 5), QueueDepth(0, t0 + 60_000))
        await store.cancel(run_ids=["b"], now_ms=t0)
        assert await store.lines(now_ms=t0) == (
            QueueDepth(0, None),
            QueueDepth(0, t0 + 60_000),
            QueueDepth(0, t0 + 60_000),
        )
        assert [line.ready for line in await store.lines(now_ms=t0 + 60_000)] == [0, 1, 1]

    async def test_lines_before_a_run_count_what_is_claimed_ahead_of_it(self, store: Store, t0: int) -> None:
        """All of a higher priority, of its own what became ready before it, and what came first of the same moment."""
        await given(store, a_run("urgent", priority=1, due_ms=t0), a_run("idle", priority=3, due_ms=t0 - 99))
        await given(store, *(a_run(f"r{n}", due_ms=t0 - 5) for n in range(5)), a_run("old", due_ms=t0 - 9))
        await given(store, a_run("later", due_ms=t0 + 60_000), a_run("held", gated=True, due_ms=t0 - 99))

        async def ahead(run_id: str, now_ms: int = t0) -> list[int]:
            return [line.ready for line in await store.lines(before=run_id, now_ms=now_ms)]

        assert await ahead("urgent") == [0, 0, 0]
        assert await ahead("old") == [1, 0, 0]
        assert [await ahead(f"r{n}") for n in (0, 2, 4)] == [[1, 1, 0], [1, 3, 0], [1, 5, 0]]
        assert await ahead("idle") == [1, 6, 0]
        assert await ahead("later") == await ahead("later", t0 + 60_000) == [1, 6, 0]
        assert [line.first_ms for line in await store.lines(before="r2", now_ms=t0)] == [t0, t0 - 9, t0 - 99]
        assert await ahead("held") == await ahead("no-such-run") == [0, 0, 0]

    async def test_lines_before_a_run_follow_what_is_claimed_and_put_back(self, store: Store, t0: int) -> None:
        await given(store, *(a_run(f"r{n}", due_ms=t0 - 9 + n) for n in range(4)))
        order = ids(await claim(store, 2, now_ms=t0))

        assert order == ["r0", "r1"]
        assert [line.ready for line in await store.lines(before="r3", now_ms=t0)] == [0, 1, 0]
        assert [line.ready for line in await store.lines(before="r0", now_ms=t0)] == [0, 0, 0]

    async def test_lines_before_a_run_are_exact_beyond_what_lines_count(self, store: Store, t0: int) -> None:
        """All together are counted often, to 10,000; those before a run seldom, and to `AHEAD_MAX`."""
        await given_jobs(store, "job")
        for n in range(0, 11_000, 1_000):
            await store.enqueue([a_run(f"r{n + m}", due_ms=t0 - 20_000 + n + m) for m in range(1_000)], now_ms=t0)

        async def ahead(run_id: str) -> int:
            return sum(line.ready for line in await store.lines(before=run_id, now_ms=t0))

        assert [await ahead(run_id) for run_id in ("r0", "r99", "r5000", "r10000")] == [0, 99, 5_000, 10_000]
        assert [await ahead(run_id) for run_id in ("r10001", "r10002", "r10999")] == [10_001, 10_002, 10_999]
        assert sum(line.ready for line in await store.lines(now_ms=t0)) >= 10_001

    async def test_an_empty_store_counts_nothing(self, store: Store, t0: int) -> None:
        assert await store.counts() == Counts(0, 0, 0, 0, 0, 0, 0)
        assert await store.lines(now_ms=t0) == (QueueDepth(0, None),) * 3

    async def test_counts_are_exact_to_ten_thousand(self, store: Store, t0: int) -> None:
        await given_jobs(store, "job")
        for n in range(0, 3_000, 1_000):
            await store.enqueue([a_run(f"r{n + m}") for m in range(1_000)], now_ms=t0)

        assert (await store.counts()).ready == 3_000

    async def test_looking_changes_nothing(self, store: Store, t0: int) -> None:
        await dead_letter(store, a_run("dead"))
        run = await leased(store, a_run("leased"))
        await given(store, a_run("ready"))
        before = (await store.counts(), await all_runs(store), await store.feed(limit=99, now_ms=t0))

        for _ in range(2):
            await store.list_jobs()
            await store.due(before_ms=t0 + 99_999, limit=9)
            await store.notes(now_ms=t0 + 999_999)
            await store.nodes(now_ms=t0 + 999_999)
            await store.get_runs([run.id])
            await store.dump()

        assert (await store.counts(), await all_runs(store), await store.feed(limit=99, now_ms=t0)) == before

    async def test_runs_are_found_by_their_error(self, store: Store, t0: int) -> None:
        await dead_letter(store, a_run("a"), error="ConnectionError: refused by db-1")
        await dead_letter(store, a_run("b"), error="TimeoutError: it ran longer than 5 ms")
        await finished(store, a_run("c"))

        assert ids(await all_runs(store, RunFilter(error="refused"))) == ["a"]
        assert ids(await all_runs(store, RunFilter(error="Error:", states=(RunState.DEAD,)))) == ["b", "a"]
        assert await all_runs(store, RunFilter(error="%")) == []

    @pytest.mark.parametrize("cursor", ["", "x", "live", "live:", "live:x:y", "past:", "past:x", "past:x:y", ":", "7"])
    async def test_a_cursor_that_no_page_answered_is_refused(self, store: Store, t0: int, cursor: str) -> None:
        await finished(store)

        with pytest.raises(InvalidInput, match="next"):
            await store.list_runs(after=cursor)
