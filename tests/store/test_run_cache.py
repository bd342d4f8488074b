"""Cached runs of a handle: it notices that another handle took one, and changes nothing."""

import pytest

from pollux.model import Done, RunState
from pollux.store.contract import Answer
from pollux.store.urls import open_store
from pollux.testing.conformance.builders import LEASE_MS, T0, a_run, an_outcome, claim, given, settlement, the_run
from tests.servers import postgres, redis

LATER = T0 + LEASE_MS


@pytest.fixture(params=["sqlite", "redis", "postgres"])
async def twins(request, tmp_path):
    match request.param:
        case "sqlite":
            url = f"sqlite:///{tmp_path / 'twins.db'}"
        case "redis":
            url = redis.own_url("twins")
        case _:
            url = postgres.own_url("twins")
    one, two = open_store(url), open_store(url)
    await one.open()
    await two.open()
    yield one, two
    await two.close()
    await one.close()


def ends(runs, now_ms):
    return [settlement(run, Done(), outcome=an_outcome(now_ms)) for run in runs]


async def test_a_plain_end_that_comes_after_another_handle_took_the_run_is_lost(twins):
    one, two = twins
    await given(one, a_run("a"), a_run("b"))
    late = await claim(one, 2, now_ms=T0)
    taken = await claim(two, 2, now_ms=LATER)

    assert await one.settle(ends(late, LATER), now_ms=LATER) == [Answer.LOST, Answer.LOST]
    assert {(await the_run(one, run.id)).state for run in taken} == {RunState.LEASED}
    assert await two.settle(ends(taken, LATER), now_ms=LATER) == [Answer.OK, Answer.OK]


async def test_of_many_plain_ends_only_the_one_that_another_handle_took_is_lost(twins):
    one, two = twins
    await given(one, a_run("a"))
    [late] = await claim(one, 1, now_ms=T0)
    [taken] = await claim(two, 1, now_ms=LATER)
    await given(one, a_run("b", due_ms=LATER), now_ms=LATER)
    [new] = await claim(one, 1, now_ms=LATER)

    assert await one.settle(ends([late, new], LATER), now_ms=LATER) == [Answer.LOST, Answer.OK]
    assert (await the_run(one, "a")).token == taken.token


async def test_a_plain_end_of_a_run_that_was_asked_to_stop_stays_an_end(twins):
    one, two = twins
    await given(one, a_run("a"))
    runs = await claim(one, 1, now_ms=T0)
    await two.cancel(run_ids=["a"], reason="no more", now_ms=T0)

    assert await one.settle(ends(runs, T0), now_ms=T0) == [Answer.OK]
    assert (await the_run(one, "a")).state is RunState.DONE
