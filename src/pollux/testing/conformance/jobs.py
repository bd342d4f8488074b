"""Jobs: put, deleted, due; and pruning of history, once-jobs and dead letters."""

from __future__ import annotations

from msgspec.structs import replace

from pollux.model import (
    AuditLine,
    Dead,
    Done,
    Ended,
    Interval,
    JobsDeleted,
    JobsPut,
    JobUpdate,
    Memory,
    Once,
    RunState,
    chained,
)
from pollux.store.contract import Answer, JobAnswer, JobPut, Pruning, RunFilter, Store
from pollux.testing.conformance.builders import (
    Contract,
    a_firing,
    a_job,
    a_memory,
    a_run,
    advance,
    answers,
    claim,
    dead_letter,
    entries,
    finished,
    forget_feed,
    given,
    given_jobs,
    ids,
    leased,
    settlement,
    the_job,
    the_run,
)


class JobsContract(Contract):
    async def test_a_new_job_begins_at_revision_1_without_a_due_time(self, store: Store, t0: int) -> None:
        job = a_job("job", params={"url": "x"}, group="g", target="h", tags=("a", "b"), timeout_ms=5, release=3)

        assert await store.put_jobs([JobPut(job)], now_ms=t0) == [JobAnswer(Answer.OK, "job", 1)]

        assert await the_job(store) == replace(job, revision=1)

    async def test_a_put_brings_only_the_definition(self, store: Store, t0: int) -> None:
        """Due times and memory belong to the leader, the revision to the store."""
        job = a_job("job", revision=77, next_due_ms=t0, last_due_ms=t0, memory=a_memory(9))

        await store.put_jobs([JobPut(job)], now_ms=t0)

        stored = await the_job(store)
        assert (stored.revision, stored.next_due_ms, stored.last_due_ms, stored.memory) == (1, None, None, Memory())

    async def test_a_changed_job_gets_the_next_revision(self, store: Store, t0: int) -> None:
        await given_jobs(store, "job")

        [answer] = await store.put_jobs([JobPut(a_job("job", priority=1))], now_ms=t0)

        assert (answer.answer, answer.revision) == (Answer.OK, 2)
        assert (await the_job(store)).priority == 1

    async def test_the_same_job_again_is_already_there(self, store: Store, t0: int) -> None:
        await given_jobs(store, "job")
        before = await store.counts()

        assert await store.put_jobs([JobPut(a_job("job"))], now_ms=t0) == [JobAnswer(Answer.ALREADY, "job", 1)]
        assert await store.counts() == before

    async def test_a_put_over_a_revision_sent_twice_is_already_there(self, store: Store, t0: int) -> None:
        """After a lost answer the same put must not conflict with its own revision."""
        await given_jobs(store, "job")
        put = JobPut(a_job("job", priority=1), revision=1)
        await store.put_jobs([put], now_ms=t0)

        assert await store.put_jobs([put], now_ms=t0) == [JobAnswer(Answer.ALREADY, "job", 2)]

    async def test_a_put_over_another_revision_conflicts(self, store: Store, t0: int) -> None:
        await given_jobs(store, "job")

        [answer] = await store.put_jobs([JobPut(a_job("job", priority=1), revision=7)], now_ms=t0)

        assert answer.answer is Answer.CONFLICT
        assert "7" in answer.detail
        assert (await the_job(store)).revision == 1

    async def test_a_put_of_a_job_that_must_be_new_conflicts_with_another(self, store: Store, t0: int) -> None:
        assert answers(await store.put_jobs([JobPut(a_job("job"), revision=0)], now_ms=t0)) == [Answer.OK]
        assert answers(await store.put_jobs([JobPut(a_job("job", priority=1), revision=0)], now_ms=t0)) == [
            Answer.CONFLICT
        ]

    async def test_a_put_over_a_revision_of_nothing_conflicts(self, store: Store, t0: int) -> None:
        assert answers(await store.put_jobs([JobPut(a_job("job"), revision=1)], now_ms=t0)) == [Answer.CONFLICT]
        assert await store.get_jobs(["job"]) == [None]

    async def test_an_id_belongs_to_its_source(self, store: Store, t0: int) -> None:
        await given_jobs(store, a_job("job", source="file:pollux.yaml"))

        [answer] = await store.put_jobs([JobPut(a_job("job", source="code:app"))], now_ms=t0)

        assert answer.answer is Answer.CONFLICT
        assert "file:pollux.yaml" in answer.detail
        assert "code:app" in answer.detail
        assert (await the_job(store)).source == "file:pollux.yaml"

    async def test_an_older_release_does_not_overwrite_a_newer_one(self, store: Store, t0: int) -> None:
        await given_jobs(store, a_job("job", release=5))

        given_answers = [
            (await store.put_jobs([JobPut(a_job("job", release=release, priority=1))], now_ms=t0))[0].answer
            for release in (4, 5, 6)
        ]

        assert given_answers == [Answer.CONFLICT, Answer.OK, Answer.OK]

    async def test_a_batch_of_puts_answers_in_order_and_writes_one_entry(self, store: Store, t0: int) -> None:
        await given_jobs(store, "same", "old")
        await forget_feed(store)
        puts = [
            JobPut(a_job("new")),
            JobPut(a_job("same")),
            JobPut(a_job("old", priority=1)),
            JobPut(a_job("no"), revision=3),
        ]

        given_answers = await store.put_jobs(puts, now_ms=t0)

        assert answers(given_answers) == [Answer.OK, Answer.ALREADY, Answer.OK, Answer.CONFLICT]
        assert await entries(store, JobsPut) == [JobsPut(("new", "old"), 1)]

    async def test_a_put_that_writes_nothing_tells_nobody(self, store: Store, t0: int) -> None:
        await given_jobs(store, "job")
        await forget_feed(store)

        await store.put_jobs([JobPut(a_job("job"))], now_ms=t0)

        assert (await store.feed(limit=9)).items == ()

    async def test_a_deleted_job_is_gone_and_the_leader_told(self, store: Store, t0: int) -> None:
        await given_jobs(store, "a", "b")
        await forget_feed(store)

        assert await store.delete_jobs(["a", "nobody"], now_ms=t0) == [Answer.OK, Answer.LOST]

        assert await store.get_jobs(["a"]) == [None]
        assert await entries(store, JobsDeleted) == [JobsDeleted(("a",))]
        assert await entries(store, Ended) == []

    async def test_deleting_twice_is_harmless(self, store: Store, t0: int) -> None:
        await given_jobs(store, "a")
        await store.delete_jobs(["a"], now_ms=t0)
        before = await store.counts()

        assert await store.delete_jobs(["a"], now_ms=t0) == [Answer.LOST]
        assert await store.counts() == before

    async def test_deleting_cancels_the_waiting_runs_in_the_same_write(self, store: Store, t0: int) -> None:
        await given(store, a_run("ready"), a_run("held", gated=True), a_run("other", "other-job"))
        await forget_feed(store)

        await store.delete_jobs(["job"], reason="no longer in the file", now_ms=t0)

        for run_id in ("ready", "held"):
            past = await the_run(store, run_id)
            assert (past.state, past.cancel) == (RunState.CANCELLED, "no longer in the file")
        [entry] = await entries(store, Ended)
        assert sorted((end.run_id, end.state, end.ran) for end in entry.ends) == [
            ("held", RunState.CANCELLED, False),
            ("ready", RunState.CANCELLED, False),
        ]
        assert ids(await claim(store, now_ms=t0)) == ["other"]

    async def test_deleting_lets_a_leased_run_end(self, store: Store, t0: int) -> None:
        run = await leased(store)
        await store.delete_jobs(["job"], now_ms=t0)

        assert (await the_run(store, run.id)).state is RunState.LEASED
        assert await store.settle([settlement(run, Done())], now_ms=t0) == [Answer.OK]

    async def test_deleting_keeps_the_finished_runs(self, store: Store, t0: int) -> None:
        await finished(store, a_run("done"))
        await store.delete_jobs(["job"], now_ms=t0)

        assert (await the_run(store, "done")).state is RunState.DONE

    async def test_a_job_made_anew_counts_its_revisions_on(self, store: Store, t0: int) -> None:
        """A plan computed for the deleted one must be stale for the new one."""
        await given_jobs(store, "job")
        await given_jobs(store, a_job("job", priority=1))
        [old] = await store.get_jobs(["job"])
        assert old is not None
        await advance(store, now_ms=t0, firings=(a_firing(old, t0),))
        await store.delete_jobs(["job"], now_ms=t0)

        [answer] = await store.put_jobs([JobPut(a_job("job"), revision=0)], now_ms=t0)

        assert (answer.answer, answer.revision) == (Answer.OK, 3)
        new = await the_job(store)
        assert (new.last_due_ms, new.next_due_ms, new.memory) == (t0, None, Memory())

    async def test_jobs_survive_closing_and_opening(self, store: Store, t0: int) -> None:
        [job] = await given_jobs(store, a_job("job", params={"a": [1]}, schedule=Interval(5_000)))
        await given_jobs(store, "gone")
        await store.delete_jobs(["gone"], now_ms=t0)
        await store.close()
        await store.open()

        assert await the_job(store) == job
        [again] = await store.put_jobs([JobPut(a_job("gone"))], now_ms=t0)
        assert again.revision == 2


class DueContract(Contract):
    async def given_due(self, store: Store, t0: int, **dues: int | None) -> None:
        jobs = await given_jobs(store, *dues)
        updates = tuple(JobUpdate(job.id, job.revision, dues[job.id], a_memory()) for job in jobs)
        await advance(store, now_ms=t0, updates=updates)

    async def test_due_jobs_come_by_due_time_and_id(self, store: Store, t0: int) -> None:
        await self.given_due(store, t0, c=t0 + 5, b=t0 + 5, a=t0 + 9, d=t0 - 7_000)

        assert ids(await store.due(before_ms=t0 + 10, limit=9)) == ["d", "b", "c", "a"]

    async def test_the_end_of_the_window_is_not_in_it(self, store: Store, t0: int) -> None:
        await self.given_due(store, t0, a=t0 + 5, b=t0 + 6)

        assert ids(await store.due(before_ms=t0 + 6, limit=9)) == ["a"]

    async def test_due_jobs_are_read_on_from_a_pair(self, store: Store, t0: int) -> None:
        await self.given_due(store, t0, **{f"j{n}": t0 + 1_000 * (n // 3) for n in range(10)})
        seen: list[str] = []
        after = None
        while page := await store.due(after=after, before_ms=t0 + 60_000, limit=4):
            seen += ids(page)
            assert page[-1].next_due_ms is not None
            after = (page[-1].next_due_ms, page[-1].id)

        assert seen == [f"j{n}" for n in range(10)]

    async def test_a_job_without_a_next_due_is_never_due(self, store: Store, t0: int) -> None:
        await given_jobs(store, "new")
        await self.given_due(store, t0, spent=None)

        assert await store.due(before_ms=t0 + 10**9, limit=9) == []

    async def test_a_disabled_job_is_never_due(self, store: Store, t0: int) -> None:
        await self.given_due(store, t0, a=t0, b=t0)
        assert ids(await store.due(before_ms=t0 + 1, limit=9)) == ["a", "b"]
        await given_jobs(store, a_job("a", enabled=False))
        assert ids(await store.due(before_ms=t0 + 1, limit=9)) == ["b"]

        await given_jobs(store, a_job("a", enabled=True, name="back"))
        assert ids(await store.due(before_ms=t0 + 1, limit=9)) == ["a", "b"]

    async def test_a_fired_job_moves_to_its_next_due(self, store: Store, t0: int) -> None:
        await self.given_due(store, t0, a=t0, b=t0 + 500)
        job = await the_job(store, "a")
        await advance(store, now_ms=t0, firings=(a_firing(job, t0, next_due_ms=t0 + 900),))

        due = await store.due(before_ms=t0 + 1_000, limit=9)

        assert [(job.id, job.next_due_ms) for job in due] == [("b", t0 + 500), ("a", t0 + 900)]

    async def test_a_deleted_job_is_never_due(self, store: Store, t0: int) -> None:
        await self.given_due(store, t0, a=t0, b=t0)
        await store.delete_jobs(["a"], now_ms=t0)

        assert ids(await store.due(before_ms=t0 + 1, limit=9)) == ["b"]


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
