"""Foreign values in our file: everything else goes on, and what a newer node can read waits for it."""

import apsw
import pytest

from pollux.model import Done, RunState
from pollux.store.contract import Answer
from pollux.store.sqlite.store import SqliteStore
from pollux.testing.conformance.builders import T0, a_run, claim, given_jobs, ids, settlement


@pytest.fixture
async def store(tmp_path):
    """Two jobs, and three runs that wait."""
    opened = SqliteStore(tmp_path / "store.db")
    await opened.open()
    await given_jobs(opened, "job", "other")
    await opened.enqueue([a_run("good"), a_run("bad"), a_run("next", "other")], now_ms=T0)
    yield opened
    await opened.close()


@pytest.fixture
def spoil(tmp_path):
    def spoil(statement, *values):
        connection = apsw.Connection(str(tmp_path / "store.db"))
        connection.set_busy_timeout(60_000)
        found = connection.execute(statement, values).fetchall()
        connection.close()
        return found[0] if found else None

    return spoil


WRONG = [
    "UPDATE runs SET payload = CAST('not json' AS BLOB) WHERE id = 'bad'",
    "UPDATE runs SET cause = 77 WHERE id = 'bad'",
    "UPDATE runs SET fence = 3, tried = CAST('[7]' AS BLOB) WHERE id = 'bad'",
]


@pytest.mark.parametrize("wrong", WRONG, ids=["payload", "cause", "tried"])
@pytest.mark.parametrize("limit", [9, 1])
async def test_a_run_that_cannot_be_read_dies_of_it_and_the_others_are_run(store, spoil, wrong, limit):
    spoil(wrong)
    taken = []
    while runs := await claim(store, limit, token=f"t{len(taken)}", now_ms=T0):
        taken += runs

    assert sorted(ids(taken)) == ["good", "next"]
    counts = await store.counts()
    assert (counts.ready, counts.leased, counts.dead) == (0, 2, 1)
    [error] = spoil("SELECT error FROM runs WHERE id = 'bad'")
    assert "it cannot be read" in error
    assert await store.settle([settlement(run, Done()) for run in taken], now_ms=T0) == [Answer.OK, Answer.OK]


@pytest.mark.parametrize("wrong", WRONG, ids=["payload", "cause", "tried"])
async def test_a_lease_that_was_spoilt_ends_like_any_other(store, spoil, wrong):
    assert len(await claim(store, now_ms=T0)) == 3
    spoil(wrong)
    later = T0 + 60_001

    assert {"good", "next"} <= set(ids(await claim(store, now_ms=later)))
    counts = await store.counts()
    assert (counts.ready, counts.leased + counts.dead) == (0, 3)


async def test_the_runs_of_a_job_that_cannot_be_read_wait_for_a_node_that_can_and_the_others_are_run(store, spoil):
    [whole] = spoil("SELECT definition FROM jobs WHERE id = 'other'")
    spoil("UPDATE jobs SET definition = CAST('what' AS BLOB), revision = 9 WHERE id = 'other'")
    taken = await claim(store, now_ms=T0)

    assert sorted(ids(taken)) == ["bad", "good"]
    await store.settle([settlement(run, Done()) for run in taken], now_ms=T0)
    at_ms = T0
    for rest_ms in (1_000, 2_000, 4_000):
        [run] = await store.get_runs(["next"])
        assert (run.state, run.attempt, run.lease_losses) == (RunState.READY, 0, 0)
        assert rest_ms <= run.visible_ms - at_ms < 2 * rest_ms
        assert "cannot read its job; another one may" in run.progress
        at_ms = run.visible_ms
        assert not await claim(store, now_ms=at_ms)
    spoil("UPDATE jobs SET definition = ?, revision = 10 WHERE id = 'other'", whole)
    [again] = await claim(store, now_ms=T0 + 180_000)
    assert (again.id, again.attempt, again.progress) == ("next", 0, "")
