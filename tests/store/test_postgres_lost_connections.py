"""Lost connections of every kind, under every verb: the call recovers, or its answer is unknown.

An unknown answer is said as such, and the repeat with the same ids tells what had happened.
"""

import asyncio

import asyncpg
import pytest

from pollux.errors import StoreError
from pollux.model import AuditLine, Done, Node, NotePut, Outcome, Plan
from pollux.store.contract import Answer, Pruning
from pollux.store.postgres.address import read_address
from pollux.store.postgres.store import PostgresStore
from pollux.testing.conformance.builders import a_run, given_jobs, ids, renewal, settlement
from tests.servers.postgres import own_url, shared_url

CUT = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pollux' AND query LIKE $1"


@pytest.fixture
async def plain():
    connection = await asyncpg.connect(shared_url())
    yield connection
    await connection.close()


@pytest.fixture
async def url():
    return own_url("cut")


@pytest.fixture
async def store(url):
    opened = PostgresStore(url)
    await opened.open()
    yield opened
    await opened.close()


async def cut(plain, url, what="%"):
    """End the connections whose last statement was of this schema; answers how many."""
    return len(await plain.fetch(CUT.replace("LIKE $1", "LIKE $1 AND query LIKE $2"), f'%"{schema_of(url)}"%', what))


async def cut_idle(plain, store, url):
    """All that lie idle in the pool; the next call finds one of them dead."""
    async with asyncio.timeout(60):
        await store.counts()  # so that a connection's last statement names the schema
        while not await cut(plain, url):  # who has answered may not yet say that it is idle
            await asyncio.sleep(0.01)
            await store.counts()


def schema_of(url):
    return read_address(url).schema


async def test_every_verb_goes_on_after_its_idle_connections_were_cut(plain, store, url):
    """A connection that died while it lay idle is replaced, and the call does not notice."""
    await given_jobs(store, "job")
    await store.enqueue([a_run("a", due_ms=0), a_run("b", due_ms=0)])

    async def after_a_cut(call):
        await cut_idle(plain, store, url)
        return await call()

    term = await after_a_cut(lambda: store.elect("n", ttl_ms=60_000))
    assert await after_a_cut(lambda: store.put_notes([NotePut("k", 1)])) == [Answer.OK]
    claimed = await after_a_cut(lambda: store.claim(node="n", token="t", limit=1, lease_ms=60_000))
    [run] = claimed.runs
    assert (await after_a_cut(lambda: store.renew([renewal(run)], lease_ms=60_000)))[0].answer is Answer.OK
    assert await after_a_cut(lambda: store.settle([settlement(run, Done(), outcome=Outcome(1, 2))])) == [Answer.OK]
    assert (await after_a_cut(lambda: store.enqueue([a_run("c")])))[0].answer is Answer.OK
    assert (await after_a_cut(lambda: store.cancel(run_ids=["c"])))[0].answer is Answer.OK
    assert (await after_a_cut(lambda: store.advance(term.number, Plan()))).answer is Answer.OK
    assert (await after_a_cut(lambda: store.get_runs(["b"])))[0] is not None
    assert await after_a_cut(lambda: store.prune(Pruning(ids=("c",)))) == 1
    await after_a_cut(lambda: store.beat(Node("n"), ttl_ms=60_000))
    await after_a_cut(lambda: store.log([AuditLine(1, "me", "did", "it")]))
    assert (await after_a_cut(store.list_runs)).runs
    assert (await after_a_cut(lambda: store.feed(limit=10))).items
    assert (await after_a_cut(store.dump)).records


async def held(plain, url, table="jobs"):
    """A transaction in which somebody holds a table that every write of it must wait for."""
    await plain.execute("BEGIN")
    await plain.execute(f"LOCK TABLE {schema_of(url)}.{table} IN ACCESS EXCLUSIVE MODE")


async def cut_when_waiting(url):
    """End whoever of ours waits for a lock."""
    other = await asyncpg.connect(shared_url())
    try:
        for _ in range(6_000):
            gone = await other.fetch(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pollux' "
                "AND wait_event_type = 'Lock' AND query LIKE $1",
                f'%"{schema_of(url)}"%',
            )
            if gone:
                return
            await asyncio.sleep(0.01)
        raise AssertionError("nobody waits for the lock")
    finally:
        await other.close()


@pytest.mark.parametrize("verb", ["enqueue", "settle", "renew", "claim"])
async def test_a_call_that_is_cut_in_the_middle_says_so_and_its_repeat_is_right(plain, store, url, verb):
    """It has either taken effect or not; with the same ids the repeat ends in the same state as one call alone."""
    await given_jobs(store, "job")
    await store.enqueue([a_run("a", due_ms=0)])
    run = None
    if verb in ("settle", "renew"):
        [run] = (await store.claim(node="n", token="first", limit=1, lease_ms=60_000)).runs
    calls = {
        "enqueue": lambda: store.enqueue([a_run("new")]),
        "settle": lambda: store.settle([settlement(run, Done(), outcome=Outcome(1, 2))]),
        "renew": lambda: store.renew([renewal(run)], lease_ms=60_000),
        "claim": lambda: store.claim(node="n", token="again", limit=1, lease_ms=60_000),
    }
    await held(plain, url, "counters")  # the last thing that a write touches
    under_way = asyncio.ensure_future(calls[verb]())
    await cut_when_waiting(url)
    await plain.execute("ROLLBACK")
    [answers] = await asyncio.gather(under_way, return_exceptions=True)
    if isinstance(answers, Exception):
        assert isinstance(answers, StoreError)
        assert "may have taken effect; repeat it" in str(answers)
        answers = await calls[verb]()

    match verb:
        case "enqueue":
            assert answers[0].answer in (Answer.OK, Answer.ALREADY)
            assert (await store.get_runs(["new"]))[0] is not None
        case "settle":
            assert answers[0] in (Answer.OK, Answer.ALREADY)
            assert (await store.counts()).leased == 0
        case "renew":
            assert answers[0].answer is Answer.OK
        case "claim":
            assert ids(answers.runs) == ["a"]
            assert (await store.counts()).leased == 1


async def test_the_connection_that_listens_is_made_anew_and_hears_again(plain, store, url, monkeypatch):
    monkeypatch.setattr("pollux.store.postgres.wakeup.LOOK_AGAIN_MS", 600_000)
    await given_jobs(store, "job")
    other = PostgresStore(url)
    await other.open()

    def claimed(token):
        return asyncio.ensure_future(store.claim(node="n", token=token, limit=1, lease_ms=60_000, wait_ms=600_000))

    for nth in range(2):
        waiting = claimed(f"v{nth}")
        pid = await listener(plain, url)
        await plain.execute(f"SELECT pg_terminate_backend({pid})")
        for _ in range(6_000):
            if (new_pid := await listener(plain, url)) != pid:
                break
            await asyncio.sleep(0.01)
        assert new_pid != pid
        assert (await asyncio.wait_for(waiting, 60)).runs == (), "all may have been called back meanwhile"
        waiting = claimed(f"w{nth}")
        await asyncio.sleep(0)
        await other.enqueue([a_run(f"r{nth}", due_ms=0)])
        assert ids((await asyncio.wait_for(waiting, 60)).runs) == [f"r{nth}"], "by the bell: nobody looks by himself"
    await other.close()


async def listener(plain, url):
    """The server's process behind the connection of this schema that listens."""
    for _ in range(6_000):
        found = await plain.fetchval(
            "SELECT pid FROM pg_stat_activity WHERE application_name = 'pollux' AND query LIKE $1 AND state = 'idle'",
            f"LISTEN %pollux_{schema_of(url)}%",
        )
        if found:
            return found
        await asyncio.sleep(0.01)
    raise AssertionError("nobody listens")
