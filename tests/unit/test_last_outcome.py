"""Last outcome of a job, in one word that never hides a failure."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollux import Pollux, once
from pollux.app.operations.status import last_outcome
from pollux.model import Cause, End, Job, Memory, Retry, RunState
from pollux.outcome import learn

T = 1_800_000_000_000
DONE, DEAD, READY, CANCELLED = RunState.DONE, RunState.DEAD, RunState.READY, RunState.CANCELLED


def end(at, state=DONE, **options):
    return End(f"j@{at}", "j", state, Cause.SCHEDULE, T + at, T + at, 5, **options)


def failed(at, state=DONE):
    return end(at, state, failed=True, error="E")


def word_after(*ends):
    memory = Memory()
    for each in ends:
        memory = learn(memory, each)
    return last_outcome(Job(id="j", handler="h", memory=memory))


@pytest.mark.parametrize(
    ("ends", "word"),
    [
        ((), ""),
        ((end(1),), "ok"),
        ((end(1, changed=True),), "changed"),
        ((end(1, changed=True), end(2)), "ok"),
        ((failed(1, READY),), "retrying"),
        ((failed(1, RunState.HELD),), "retrying"),
        ((end(1), failed(2, READY)), "retrying"),
        ((failed(1, READY), end(2)), "ok"),
        ((failed(1),), "failed"),
        ((failed(1), failed(2, READY)), "failed"),
        ((failed(1, READY), failed(2, DEAD)), "dead"),
        ((end(1, CANCELLED),), "cancelled"),
        ((end(1), end(2, CANCELLED)), "cancelled"),
        ((end(1, CANCELLED, ran=False),), ""),
    ],
)
def test_the_word_tells_what_came_to_its_end_last(ends, word):
    assert word_after(*ends) == word


@given(
    st.lists(
        st.builds(
            lambda at, state, is_failed, ran: end(at, state, failed=is_failed, ran=ran),
            st.integers(0, 9),
            st.sampled_from([DONE, DEAD, READY, CANCELLED]),
            st.booleans(),
            st.booleans(),
        ),
        max_size=8,
    )
)
def test_without_a_success_it_is_never_ok(ends):
    has_success = any(each.state is DONE and not each.failed and each.ran for each in ends)
    assert has_success or word_after(*ends) not in {"ok", "changed"}


async def test_a_job_that_only_ever_failed_is_retrying_and_then_dead():
    app = Pollux("memory://")

    async def broken(ctx):
        raise RuntimeError("nobody listens")

    app.handler(broken, name="broken")
    app.add("broken", once(), id="first", retry=Retry(attempts_max=4, base_ms=3_600_000, max_ms=3_600_000))
    app.add("broken", once(), id="last", retry=Retry(attempts_max=1))

    async def words():
        return {row.job.id: row.last for row in (await app.operations.status.overview()).rows}

    async with app, asyncio.timeout(60):
        while await words() != {"first": "retrying", "last": "dead"}:
            assert not {"ok", "changed"} & set((await words()).values())
            await asyncio.sleep(0.01)
