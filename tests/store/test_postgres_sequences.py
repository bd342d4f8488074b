"""Sequences after rows were written by hand under the very numbers that come next.

By hand, or brought from elsewhere without the sequences, which no replication takes along.  Ours go on behind them: no
verb fails for it, and none says that it did what it did not.
"""

import asyncpg
import pytest

from pollux.errors import StoreBusy
from pollux.model import Done, Ended, Outcome, RunState
from pollux.store.contract import Answer, JobPut
from pollux.store.postgres.store import PostgresStore
from pollux.store.postgres.transaction import TransactionRetry
from pollux.testing.conformance.builders import T0, a_job, a_run, answers, claim, given_jobs, ids, settlement
from tests.servers.postgres import own_url, shared_url

ENTRY = b"\x82\xa4type\xa5ended"  # and nothing behind it
FEW_AND_MANY = (1, 300)  # a single one is passed by the next try, whoever makes it
ROWS = {
    "feed": "(id, version, ends, body) OVERRIDING SYSTEM VALUE SELECT n, 2, 0, $1",
    "claims": "(n, token, part, seqs) OVERRIDING SYSTEM VALUE SELECT n, 'by hand ' || n, 1, '{{}}'",
    "tombs": "(n, id, revision) OVERRIDING SYSTEM VALUE SELECT n, 'tomb ' || n, 1",
    "jobs": "(n, id, revision, release, source, handler, name, grp, target, tags, enabled, once, definition) "
    "OVERRIDING SYSTEM VALUE SELECT n, 'by hand ' || n, 1, 0, '', 'h', '', '', '', '', true, false, '{{}}'",
    "queue": "(seq, job_id, priority, due_ms, state, visible_ms, held_reason) SELECT n, 'job', 2, 0, 0, 0, ''",
    "history": "SELECT n, 'by hand ' || n, 'job', 0, 2, NULL, NULL, 2, '', '', false, 3, '', 0, 0, 0, 0, 1, '', '', 0, "
    "'', 0, 0, false, NULL, '', NULL, 1, '', NULL, '', 0, 2",
    "runs": "(seq, id, job_id, due_ms, cause, priority, grp, target, gated) "
    "SELECT n, 'by hand ' || n, 'job', 0, 2, 2, '', '', false",
}
SEQUENCE = {"feed": "feed_id_seq", "queue": "run_seq", "runs": "run_seq", "history": "run_seq"}


@pytest.fixture
async def store():
    store = PostgresStore(own_url("numbers"))
    await store.open()
    await given_jobs(store, "job")
    yield store
    await store.close()


@pytest.fixture
async def psql():
    connection = await asyncpg.connect(shared_url())
    yield connection
    await connection.close()


@pytest.fixture
def take(store, psql):
    """Somebody takes the next numbers of a table, which its sequence does not know of."""

    async def take(table, many):
        schema = store.backend.address.schema
        name = f"{schema}.{SEQUENCE.get(table, f'{table}_n_seq')}"
        step = 1_000 if name.endswith("run_seq") else 1
        last, is_called = await psql.fetchrow(f"SELECT last_value, is_called FROM {name}")
        first = last + step * is_called
        numbers = f"generate_series({first}, {first + step * (many - 1)}, {step}) AS n"
        values = [ENTRY] if table == "feed" else []
        await psql.execute(f"INSERT INTO {schema}.{table} {ROWS[table].format()} FROM {numbers}", *values)

    return take


def done(run):
    return settlement(run, Done(), outcome=Outcome(T0, T0 + 1))


async def ends(store):
    """The ends that the leader reads, in their order; what cannot be read stands beside them."""
    entries = [item.entry for item in (await store.feed(limit=1_000)).items]
    return [end.run_id for entry in entries if isinstance(entry, Ended) for end in entry.ends]


@pytest.mark.parametrize("many", FEW_AND_MANY)
async def test_a_plain_settlement_goes_behind_an_entry_that_has_its_number(store, take, many):
    await store.enqueue([a_run("a"), a_run("b")], now_ms=T0)
    first, second = await claim(store)
    await take("feed", many)

    assert await store.settle([done(first)], now_ms=T0) == [Answer.OK]
    assert await store.settle([done(second)], now_ms=T0) == [Answer.OK]
    assert [run.state for run in await store.get_runs(["a", "b"])] == [RunState.DONE] * 2
    assert await ends(store) == ["a", "b"]


@pytest.mark.parametrize("many", FEW_AND_MANY)
async def test_what_else_tells_the_leader_goes_behind_it_too(store, take, many):
    await take("feed", many)

    assert answers(await store.enqueue([a_run("a", gated=True)], now_ms=T0)) == [Answer.OK]
    await take("feed", many)
    assert answers(await store.cancel(run_ids=["a"], now_ms=T0)) == [Answer.OK]
    assert await ends(store) == ["a"]


async def test_in_a_transaction_of_the_users_own_the_next_try_goes_behind_it(store, take, psql):
    await take("feed", 300)

    async with psql.transaction():
        with pytest.raises(StoreBusy, match="nothing was changed; try again"):
            await store.enqueue_in(psql, [a_run("a", gated=True)])
        assert answers(await store.enqueue_in(psql, [a_run("a", gated=True)])) == [Answer.OK]
    assert (await store.counts()).held == 1


@pytest.mark.parametrize("many", FEW_AND_MANY)
async def test_a_claim_goes_behind_claims_that_have_its_number(store, take, many):
    await store.enqueue([a_run("a")], now_ms=T0)
    await take("claims", many)

    assert ids(await claim(store)) == ["a"]


@pytest.mark.parametrize("many", FEW_AND_MANY)
async def test_a_job_that_was_put_is_there_although_others_have_its_number(store, take, many):
    await take("jobs", many)

    [answer] = await store.put_jobs([JobPut(a_job("new"))])
    assert answer.answer is Answer.OK
    [job] = await store.get_jobs(["new"])
    assert job is not None


@pytest.mark.parametrize("many", FEW_AND_MANY)
async def test_a_job_can_be_deleted_although_others_have_the_number_of_its_tomb(store, take, many):
    await take("tombs", many)

    assert await store.delete_jobs(["job"], now_ms=T0) == [Answer.OK]
    assert await store.get_jobs(["job"]) == [None]


@pytest.mark.parametrize("many", FEW_AND_MANY)
@pytest.mark.parametrize("table", ["queue", "runs"])
@pytest.mark.parametrize("key", [None, "k"], ids=["plain", "with a key"])
async def test_a_run_gets_a_number_that_nobody_has(store, take, table, many, key):
    """In the queue alone, or a whole run."""
    await take("queue", many)
    if table == "runs":
        await take("runs", many)

    assert answers(await store.enqueue([a_run("a", key=key)], now_ms=T0)) == [Answer.OK]
    assert ids(await claim(store)) == ["a"]


async def test_a_run_that_cannot_end_for_its_number_is_the_only_one(store, take):
    """A finished one has it, which nobody sees before.  The next ones go behind all of them."""
    await take("history", 300)
    await store.enqueue([a_run("a")], now_ms=T0)
    [stuck] = await claim(store)
    with pytest.raises(asyncpg.UniqueViolationError):
        await store.settle([done(stuck)], now_ms=T0)

    await store.enqueue([a_run("b")], now_ms=T0)
    [run] = await claim(store)
    assert await store.settle([done(run)], now_ms=T0) == [Answer.OK]


async def test_runs_of_a_copy_that_came_without_its_sequences_get_numbers_behind_all_others(store, psql):
    """As after a failover to a logical replica; whoever opens it sees to that."""
    await store.enqueue([a_run(f"old{n}") for n in range(5)], now_ms=T0)
    assert await store.settle([done(run) for run in await claim(store)], now_ms=T0) == [Answer.OK] * 5
    await store.close()
    sequence = f"{store.backend.address.schema}.run_seq"
    await psql.execute(f"SELECT setval('{sequence}', 1, false)")

    await store.open()
    await store.enqueue([a_run("new")], now_ms=T0)
    assert await store.settle([done(run) for run in await claim(store)], now_ms=T0) == [Answer.OK]
    last = await psql.fetchval(f"SELECT last_value FROM {sequence}")
    await store.close()
    await store.open()
    assert await psql.fetchval(f"SELECT last_value FROM {sequence}") == last, "where nothing is behind it stays"


async def test_others_that_are_always_quicker_are_told_of_as_a_busy_store(store):
    """Not as a fault of what was asked: then a settlement would be given up that can be written next time."""

    async def beaten(tx):
        raise TransactionRetry

    with pytest.raises(StoreBusy, match="others were quicker again and again; nothing was changed; try again"):
        await store.backend._write(None, beaten)
