"""Edge values: unusual ones are returned unchanged, too large ones are refused as a whole."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from pollux.errors import InvalidInput
from pollux.model import (
    Cron,
    Done,
    Holding,
    Interval,
    JobUpdate,
    NotePut,
    Once,
    OnEvent,
    Plan,
    Release,
    Retry,
    RunState,
)
from pollux.store.contract import (
    BATCH_MAX,
    PAGE_MAX,
    PAYLOAD_BYTES_MAX,
    RESULT_BYTES_MAX,
    Answer,
    JobPut,
    Settlement,
    Store,
)
from pollux.testing.conformance.builders import (
    Contract,
    a_firing,
    a_job,
    a_memory,
    a_run,
    an_outcome,
    answers,
    claim,
    finished,
    given,
    given_jobs,
    ids,
    leading,
    leased,
    settlement,
    the_job,
    the_run,
)

ODD = "näïve 𝄞 ' \" ; -- \\ % _ \t\n \x00 end"
NESTED = {"a": [1, 2.5, None, True, {"b": {"c": ODD}}], ODD: "", "": 0, "big": 2**53, "small": -1e-300}


class OddDataContract(Contract):
    async def test_numbers_beyond_64_bits_come_back_as_they_were(self, store: Store, t0: int) -> None:
        big = {"up": 2**70, "down": -(2**70)}
        await given_jobs(store, a_job("job", params=big))
        run = await leased(store, a_run("a", payload=big))

        outcome = an_outcome(result=big)
        assert await store.settle([Settlement("a", run.token, Done(), outcome)], now_ms=t0) == [Answer.OK]

        ended = await the_run(store, "a")
        assert (ended.state, ended.payload, ended.result) == (RunState.DONE, big, big)
        assert (await the_job(store)).params == big

    async def test_an_odd_payload_comes_back_as_it_went_in(self, store: Store, t0: int) -> None:
        await given(store, a_run("a", payload=NESTED))

        assert (await the_run(store, "a")).payload == NESTED

    async def test_odd_params_come_back_as_they_went_in(self, store: Store, t0: int) -> None:
        await given_jobs(store, a_job("job", params=NESTED, name=ODD, group=ODD, tags=("a", ODD)))

        job = await the_job(store)
        assert (job.params, job.name, job.group, job.tags) == (NESTED, ODD, ODD, ("a", ODD))

    async def test_every_schedule_comes_back_as_it_went_in(self, store: Store, t0: int) -> None:
        schedules = [
            None,
            Interval(30_000, start_ms=t0, spread=False),
            Cron("0 6 * * *", tz="Europe/Berlin"),
            Once(t0),
            Once(),
            OnEvent(),
        ]
        jobs = [a_job(f"job{n}", schedule=schedule, retry=Retry(3, factor=1.5)) for n, schedule in enumerate(schedules)]

        await given_jobs(store, *jobs)

        stored = await store.get_jobs(ids(jobs))
        assert [job and job.schedule for job in stored] == schedules
        assert all(job is not None and job.retry == Retry(3, factor=1.5) for job in stored)

    async def test_an_odd_result_and_error_come_back_as_they_went_in(self, store: Store, t0: int) -> None:
        run = await leased(store)
        outcome = an_outcome(t0, result=NESTED, error=ODD)

        await store.settle([settlement(run, Done(failed=True), outcome=outcome)], now_ms=t0)

        past = await the_run(store, run.id)
        assert (past.result, past.error) == (NESTED, ODD)

    async def test_a_result_may_be_false_or_nothing(self, store: Store, t0: int) -> None:
        for run_id, result in (("a", False), ("b", 0), ("c", ""), ("d", []), ("e", None)):
            assert (await finished(store, a_run(run_id), result=result)).result == result

    async def test_an_empty_payload_is_not_a_missing_one(self, store: Store, t0: int) -> None:
        await given(store, a_run("empty", payload={}), a_run("none", payload=None))

        assert (await the_run(store, "empty")).payload == {}
        assert (await the_run(store, "none")).payload is None

    async def test_an_odd_key_is_as_unique_as_any(self, store: Store, t0: int) -> None:
        await given(store, a_run("a", key=ODD))

        assert answers(await store.enqueue([a_run("b", key=ODD), a_run("c", key=ODD + " ")], now_ms=t0)) == [
            Answer.CONFLICT,
            Answer.OK,
        ]

    async def test_an_empty_key_is_a_key(self, store: Store, t0: int) -> None:
        await given(store, a_run("a", key=""))

        assert answers(await store.enqueue([a_run("b", key=""), a_run("c", key=None)], now_ms=t0)) == [
            Answer.CONFLICT,
            Answer.OK,
        ]

    async def test_ids_that_look_alike_are_kept_apart(self, store: Store, t0: int) -> None:
        alike = ["a", "A", "a ", "á", "a%", "a_", "1", "01", "1.0"]
        await given(store, *(a_run(run_id, due_ms=t0 + n) for n, run_id in enumerate(alike)))

        assert ids(await claim(store, 99, now_ms=t0 + 99)) == alike

    async def test_a_changed_payload_of_the_caller_changes_nothing(self, store: Store, t0: int) -> None:
        payload = {"list": [1]}
        await given(store, a_run("a", payload=payload))

        payload["list"].append(2)

        assert (await the_run(store, "a")).payload == {"list": [1]}

    async def test_far_times_are_kept_exactly(self, store: Store, t0: int) -> None:
        far = 253_402_300_799_999
        await given(store, a_run("far", due_ms=far), a_run("old", due_ms=-1))

        assert (await the_run(store, "far")).due_ms == far
        assert ids(await claim(store, now_ms=t0)) == ["old"]

    async def test_what_json_makes_of_a_value_is_what_is_kept(self, store: Store, t0: int) -> None:
        """A tuple is returned as a list by every store, and the same put again is no change."""
        job = a_job("job", params={"pair": (1, 2)})
        await given_jobs(store, job)

        assert (await the_job(store)).params == {"pair": [1, 2]}
        assert answers(await store.put_jobs([JobPut(job)], now_ms=t0)) == [Answer.ALREADY]


class LimitsContract(Contract):
    async def test_a_batch_that_is_too_long_is_refused_whole(self, store: Store, t0: int) -> None:
        await given_jobs(store, "job")

        with pytest.raises(InvalidInput, match=r"1,001 .*1,000"):
            await store.enqueue([a_run(f"r{n}") for n in range(BATCH_MAX + 1)], now_ms=t0)

        assert (await store.counts()).ready == 0

    async def test_a_full_batch_is_taken(self, store: Store, t0: int) -> None:
        await given_jobs(store, "job")

        assert set(answers(await store.enqueue([a_run(f"r{n}") for n in range(BATCH_MAX)], now_ms=t0))) == {Answer.OK}

    async def test_a_payload_that_is_too_big_is_refused_and_nothing_with_it(self, store: Store, t0: int) -> None:
        await given_jobs(store, "job")
        big = a_run("big", payload={"x": "x" * PAYLOAD_BYTES_MAX})

        with pytest.raises(InvalidInput, match="'big'"):
            await store.enqueue([a_run("a"), big], now_ms=t0)

        assert await store.get_runs(["a", "big"]) == [None, None]

    async def test_a_payload_that_is_no_json_is_refused(self, store: Store, t0: int) -> None:
        await given_jobs(store, "job")

        with pytest.raises(InvalidInput, match="JSON"):
            await store.enqueue([a_run("a"), a_run("b", payload={"x": object()})], now_ms=t0)

        assert await store.get_runs(["a"]) == [None]

    async def test_a_result_that_is_too_big_is_refused_and_the_lease_stands(self, store: Store, t0: int) -> None:
        run = await leased(store)
        big = an_outcome(t0, result="x" * RESULT_BYTES_MAX)

        with pytest.raises(InvalidInput, match=repr(run.id)):
            await store.settle([settlement(run, Done(), outcome=big)], now_ms=t0)

        assert await the_run(store, run.id) == run
        assert await store.settle([settlement(run, Done())], now_ms=t0) == [Answer.OK]

    async def test_a_refused_batch_of_settlements_settles_nobody(self, store: Store, t0: int) -> None:
        await given(store, a_run("a"), a_run("b"))
        a, b = await claim(store, now_ms=t0)
        bad = Settlement(b.id, b.token, Done(), an_outcome(t0, result=object()))

        with pytest.raises(InvalidInput):
            await store.settle([settlement(a, Done()), bad], now_ms=t0)

        assert (await store.counts()).leased == 2

    async def test_an_outcome_of_another_kind_is_refused_and_no_lease_of_its_batch_falls(
        self, store: Store, t0: int
    ) -> None:
        """It could be written but not decoded: neither the run nor its entry in the feed."""
        await given(store, a_run("a"), a_run("b"))
        a, b = await claim(store, now_ms=t0)
        odd: list[tuple[str, Any]] = [
            ("changed", 3),
            ("changed", "yes"),
            ("fingerprint", None),
            ("error", 7),
            ("started_ms", 1.5),
            ("ended_ms", 1.5),
            ("crashed", 1),
            ("progress", 5),
        ]
        for field, value in odd:
            part = {field: value}
            outcome = an_outcome(t0) if field == "progress" else replace(an_outcome(t0), **part)
            bad = Settlement(b.id, b.token, Done(), outcome, **(part if field == "progress" else {}))
            with pytest.raises(InvalidInput, match=f"'b' cannot be recorded: .*{field}"):
                await store.settle([settlement(a, Done()), bad], now_ms=t0)

        assert await store.get_runs(["a", "b"]) == [a, b]
        assert await store.settle([settlement(a, Done()), settlement(b, Done())], now_ms=t0) == [Answer.OK] * 2

    async def test_a_note_that_is_too_big_is_refused(self, store: Store, t0: int) -> None:
        with pytest.raises(InvalidInput, match="'big'"):
            await store.put_notes([NotePut("small", 1), NotePut("big", "x" * 64_001)], now_ms=t0)

        assert await store.notes(now_ms=t0) == []

    async def test_a_plan_that_is_too_big_is_refused_whole(self, store: Store, t0: int) -> None:
        [job] = await given_jobs(store, "job")
        term = await leading(store)
        plans = [
            Plan(firings=(a_firing(job, t0),), releases=tuple(Release(str(n)) for n in range(100))),
            Plan(firings=(a_firing(job, t0),), updates=(JobUpdate("job", 1, None, a_memory()),) * 101),
            Plan(firings=(a_firing(job, t0),), notes=tuple(NotePut(str(n), 1) for n in range(51))),
        ]
        for plan in plans:
            with pytest.raises(InvalidInput):
                await store.advance(term, plan, now_ms=t0)

        assert await the_job(store) == job

    async def test_a_plan_at_its_limits_is_written(self, store: Store, t0: int) -> None:
        jobs = await given_jobs(store, *(f"job{n}" for n in range(100)))
        term = await leading(store)
        plan = Plan(
            firings=tuple(a_firing(job, t0) for job in jobs),
            holds=tuple(Holding(str(n), "x") for n in range(100)),
            updates=tuple(JobUpdate(job.id, 1, t0 + 5, a_memory()) for job in jobs),
            notes=tuple(NotePut(f"n{n}", n) for n in range(50)),
        )

        advanced = await store.advance(term, plan, now_ms=t0)

        assert set(advanced.firings + advanced.updates) == {Answer.OK}
        assert (await store.counts()).ready == 100
        assert len(await store.notes(now_ms=t0)) == 50

    async def test_a_priority_that_does_not_exist_is_refused(self, store: Store, t0: int) -> None:
        await given_jobs(store, "job")
        for priority in (0, 4):
            with pytest.raises(InvalidInput, match=f"priority {priority}"):
                await store.enqueue([a_run("a", priority=priority)], now_ms=t0)
            with pytest.raises(InvalidInput, match=f"priority {priority}"):
                await store.put_jobs([JobPut(a_job("x", priority=priority))], now_ms=t0)

        assert await store.get_runs(["a"]) == [None]

    async def test_a_run_that_was_delivered_before_cannot_be_enqueued(self, store: Store, t0: int) -> None:
        await given_jobs(store, "job")
        for run in (
            a_run("a", state=RunState.LEASED),
            a_run("a", state=RunState.DONE),
            a_run("a", fence=3, token="t:3"),
        ):
            with pytest.raises(InvalidInput, match="'a'"):
                await store.enqueue([run], now_ms=t0)

    async def test_a_page_has_at_most_a_thousand_rows(self, store: Store, t0: int) -> None:
        for n in range(0, 1_100, 550):
            await given_jobs(store, *(f"job{m:04}" for m in range(n, n + 550)))

        page = await store.list_jobs(limit=5_000)

        assert (len(page.jobs), page.next) == (PAGE_MAX, "job0999")
        with pytest.raises(InvalidInput):
            await store.list_jobs(limit=0)
