"""Pruning: what is deleted, and what stays in any case."""

from __future__ import annotations

from pollux.model import AuditLine, Dead, Done, JobUpdate, Once, RunState, chained
from pollux.store.contract import Answer, Pruning, RunFilter, Store
from pollux.testing.conformance.builders import (
    a_firing,
    a_job,
    a_memory,
    a_run,
    advance,
    claim,
    dead_letter,
    finished,
    given,
    given_jobs,
    ids,
    leased,
    settlement,
    the_run,
)
from pollux.testing.conformance.contract import Contract


class PruneContract(Contract):
    async def test_named_finished_runs_go(self, store: Store, t0: int) -> None:
        await finished(store, a_run("done"))
        await dead_letter(store, a_run("dead"))
        await finished(store, a_run("other"))

        assert await store.prune(Pruning(ids=("done", "dead", "nobody"))) == 2

        assert [run and run.id for run in await store.get_runs(["done", "dead", "other"])] == [None, None, "other"]
        assert (await store.counts()).dead == 0

    async def test_live_runs_never_go(self, store: Store, t0: int) -> None:
        await leased(store, a_run("leased"))
        await given(store, a_run("ready"), a_run("held", gated=True))
        everything = Pruning(
            ids=("leased", "ready", "held"),
            unchanged_before_ms=t0 + 10**9,
            finished_before_ms=t0 + 10**9,
            keep_per_job=0,
            once_before_ms=t0 + 10**9,
        )

        assert await store.prune(everything) == 0
        assert None not in await store.get_runs(["leased", "ready", "held"])

    async def test_unchanged_polls_go_when_they_are_old(self, store: Store, t0: int) -> None:
        await finished(store, a_run("old"), changed=False, now_ms=t0)
        await finished(store, a_run("young"), changed=False, now_ms=t0 + 1_000)

        assert await store.prune(Pruning(unchanged_before_ms=t0 + 1_000)) == 1
        assert [run and run.id for run in await store.get_runs(["old", "young"])] == [None, "young"]

    async def test_polls_that_changed_failed_or_do_not_know_stay(self, store: Store, t0: int) -> None:
        await finished(store, a_run("changed"), changed=True)
        await finished(store, a_run("unknown"), changed=None)
        await finished(store, a_run("failed"), changed=False, failed=True)
        await dead_letter(store, a_run("dead"))

        assert await store.prune(Pruning(unchanged_before_ms=t0 + 10**9)) == 0

    async def test_old_finished_runs_go_but_not_the_dead(self, store: Store, t0: int) -> None:
        await finished(store, a_run("done"), now_ms=t0)
        await given(store, a_run("cancelled"))
        await store.cancel(run_ids=["cancelled"], now_ms=t0)
        await dead_letter(store, a_run("dead"), now_ms=t0)
        await finished(store, a_run("young"), now_ms=t0 + 1_000)

        assert await store.prune(Pruning(finished_before_ms=t0 + 1_000)) == 2

        left = await store.get_runs(["done", "cancelled", "dead", "young"])
        assert [run and run.id for run in left] == [None, None, "dead", "young"]

    async def test_the_newest_of_each_job_are_kept(self, store: Store, t0: int) -> None:
        for n in range(5):
            await finished(store, a_run(f"a{n}", "one"), now_ms=t0 + n)
        for n in range(2):
            await finished(store, a_run(f"b{n}", "two"), now_ms=t0 + n)

        assert await store.prune(Pruning(keep_per_job=2)) == 3

        left = await store.get_runs(["a0", "a1", "a2", "a3", "a4", "b0", "b1"])
        assert [run and run.id for run in left] == [None, None, None, "a3", "a4", "b0", "b1"]
        assert await store.prune(Pruning(keep_per_job=2)) == 0
        assert await store.prune(Pruning(keep_per_job=1)) == 2

    async def test_those_that_failed_are_counted_by_themselves(self, store: Store, t0: int) -> None:
        """Repeated successes do not push out failures."""
        for n in range(3):
            await finished(store, a_run(f"bad{n}"), failed=True, now_ms=t0 + n)
        for n in range(5):
            await finished(store, a_run(f"good{n}"), now_ms=t0 + 10 + n)

        assert await store.prune(Pruning(keep_per_job=2)) == 4

        left = await store.list_runs(RunFilter(job_id="job"))
        assert ids(left.runs) == ["good4", "good3", "bad2", "bad1"]
        assert await store.prune(Pruning(keep_per_job=2)) == 0
        assert await store.prune(Pruning(keep_per_job=0, limit=3)) == 3
        assert await store.prune(Pruning(keep_per_job=0)) == 1

    async def test_dead_letters_do_not_count_among_the_newest(self, store: Store, t0: int) -> None:
        await dead_letter(store, a_run("dead"), now_ms=t0)
        await finished(store, a_run("done"), now_ms=t0 + 1)

        assert await store.prune(Pruning(keep_per_job=1)) == 0
        assert await store.prune(Pruning(keep_per_job=0)) == 1
        assert (await the_run(store, "dead")).state is RunState.DEAD

    async def test_one_call_removes_no_more_than_its_limit(self, store: Store, t0: int) -> None:
        for n in range(5):
            await finished(store, a_run(f"r{n}"), now_ms=t0)

        removed = [await store.prune(Pruning(finished_before_ms=t0 + 1, limit=2)) for _ in range(4)]

        assert removed == [2, 2, 1, 0]

    async def test_a_once_job_that_ended_goes(self, store: Store, t0: int) -> None:
        [job] = await given_jobs(store, a_job("once", schedule=Once(t0)))
        await advance(store, now_ms=t0, firings=(a_firing(job, t0, next_due_ms=None),))
        [run] = await claim(store, now_ms=t0)
        assert await store.prune(Pruning(once_before_ms=t0 + 999)) == 0, "it still runs"

        await store.settle([settlement(run, Done())], now_ms=t0)
        await advance(store, now_ms=t0, updates=(JobUpdate("once", 1, None, a_memory(last_end_ms=t0)),))

        assert await store.prune(Pruning(once_before_ms=t0)) == 0, "not old enough"
        assert await store.prune(Pruning(once_before_ms=t0 + 1)) == 1
        assert await store.get_jobs(["once"]) == [None]

    async def test_a_once_job_that_was_pruned_and_is_put_again_has_fired_already(self, store: Store, t0: int) -> None:
        [job] = await given_jobs(store, a_job("once", schedule=Once(t0)))
        await advance(store, now_ms=t0, firings=(a_firing(job, t0, next_due_ms=None),))
        [run] = await claim(store, now_ms=t0)
        await store.settle([settlement(run, Done())], now_ms=t0)
        await advance(store, now_ms=t0, updates=(JobUpdate("once", 1, None, a_memory(last_end_ms=t0)),))
        assert await store.prune(Pruning(finished_before_ms=t0 + 1, once_before_ms=t0 + 1)) == 2

        [again] = await given_jobs(store, a_job("once", schedule=Once(t0)))

        assert (again.last_due_ms, again.revision) == (t0, 2)
        [answer] = (await advance(store, now_ms=t0, firings=(a_firing(again, t0, next_due_ms=None),))).firings
        assert answer is Answer.ALREADY

    async def test_a_once_job_with_a_dead_letter_stays_so_that_it_can_be_revived(self, store: Store, t0: int) -> None:
        [job] = await given_jobs(store, a_job("once", schedule=Once(t0)))
        await advance(store, now_ms=t0, firings=(a_firing(job, t0, next_due_ms=None),))
        [run] = await claim(store, now_ms=t0)
        await store.settle([settlement(run, Dead("x"))], now_ms=t0)
        await advance(store, now_ms=t0, updates=(JobUpdate("once", 1, None, a_memory(last_end_ms=t0)),))

        assert await store.prune(Pruning(once_before_ms=t0 + 10**9)) == 0
        assert [answer.answer for answer in await store.revive([run.id], now_ms=t0)] == [Answer.OK]

    async def test_a_once_job_whose_run_was_cancelled_while_it_waited_goes(self, store: Store, t0: int) -> None:
        """It has no outcome to learn from: it ended when it was due."""
        [job] = await given_jobs(store, a_job("once", schedule=Once(t0)))
        await advance(store, now_ms=t0, firings=(a_firing(job, t0, next_due_ms=None),))
        assert await store.prune(Pruning(once_before_ms=t0 + 1)) == 0, "it still waits"
        await store.cancel(job_id="once", now_ms=t0 + 50)

        assert await store.prune(Pruning(once_before_ms=t0 + 50)) == 0, "it was cancelled just now"
        assert await store.prune(Pruning(once_before_ms=t0 + 51)) == 1
        assert await store.get_jobs(["once"]) == [None]

    async def test_dead_letters_go_when_they_are_old(self, store: Store, t0: int) -> None:
        await dead_letter(store, a_run("old"), now_ms=t0)
        await dead_letter(store, a_run("young"), now_ms=t0 + 1_000)
        await finished(store, a_run("done"), now_ms=t0)

        assert await store.prune(Pruning(dead_before_ms=t0 + 1_000)) == 1

        left = await store.get_runs(["old", "young", "done"])
        assert [run and run.id for run in left] == [None, "young", "done"]
        assert (await store.counts()).dead == 1

    async def test_the_newest_dead_letters_are_kept(self, store: Store, t0: int) -> None:
        for n in range(5):
            await dead_letter(store, a_run(f"d{n}", f"job{n % 2}"), now_ms=t0 + n)
            await finished(store, a_run(f"r{n}", f"job{n % 2}"), now_ms=t0 + n)

        assert await store.prune(Pruning(dead_max=5)) == 0
        assert await store.prune(Pruning(dead_max=2, limit=2)) == 2
        assert await store.prune(Pruning(dead_max=2)) == 1

        left = await store.get_runs([f"d{n}" for n in range(5)])
        assert [run and run.id for run in left] == [None, None, None, "d3", "d4"]
        assert None not in await store.get_runs([f"r{n}" for n in range(5)])
        assert (await store.counts()).dead == 2

    async def test_old_lines_of_the_audit_log_go(self, store: Store, t0: int) -> None:
        await store.log([AuditLine(t0, "a", "do", str(n)) for n in range(6)])

        assert await store.prune(Pruning(log_max=6)) == 0
        assert await store.prune(Pruning(log_max=3, limit=2)) == 2
        assert await store.prune(Pruning(log_max=3)) == 1

        assert [line.seq for line in (await store.read_log()).lines] == [4, 5, 6]
        assert [line.seq for line in (await store.read_log(after=2)).lines] == [4, 5, 6]

    async def test_the_numbers_and_the_chain_of_the_log_go_on_after_pruning(self, store: Store, t0: int) -> None:
        await store.log([AuditLine(t0, "a", "do", str(n)) for n in range(3)])
        assert await store.prune(Pruning(log_max=0)) == 2, "the last line stays: the next is chained to it"
        await store.log([AuditLine(t0, "a", "do", "next")])

        old, new = (await store.read_log()).lines
        assert (old.seq, new.seq, new.chain) == (3, 4, chained(new, before=old.chain))

    async def test_jobs_that_are_not_once_or_have_not_fired_stay(self, store: Store, t0: int) -> None:
        await given_jobs(store, "interval", a_job("later", schedule=Once(t0 + 10**8)), a_job("asked", schedule=None))

        assert await store.prune(Pruning(once_before_ms=t0 + 10**9)) == 0

    async def test_a_pruned_run_is_told_of_no_more(self, store: Store, t0: int) -> None:
        run = await finished(store)
        await store.prune(Pruning(ids=(run.id,)))

        assert await store.settle([settlement(run, Done())], now_ms=t0) == [Answer.LOST]
        assert (await store.list_runs()).runs == ()
