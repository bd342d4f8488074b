"""Claims that are pipelined behind a wait: a wake-up returns leased runs, and no other caller loses any."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest
from redis import exceptions

from pollux.model import Answer, RunState
from pollux.store.redis import RedisStore, wakeup
from pollux.store.redis import store as backend
from pollux.store.redis.connection import BlockingConnection
from pollux.store.redis.library import library
from pollux.store.values import Claimed, ClaimRequest
from pollux.testing.conformance.builders import LEASE_MS, a_run, given, given_jobs, ids, the_run
from tests.servers.redis import own_url

WAIT_MS, PATIENCE_S = 60_000, 60
QUICK_S = 15  # less than a wait that got no answer


@pytest.fixture
async def store():
    store = RedisStore(own_url("offers"))
    await store.open()
    await given_jobs(store, "job")
    yield store
    await store.close()


@pytest.fixture
def looks(store, monkeypatch):
    """How often the store was asked for runs over its own connections."""
    link, called = store.backend.link(), []
    run_raw = link.run_raw

    async def told(verb, **arguments):
        if verb == "claim":
            called.append(arguments["token"])
        return await run_raw(verb, **arguments)

    monkeypatch.setattr(link, "run_raw", told)
    return called


def waiting(store, token="t", node="n", wait_ms=WAIT_MS):
    return asyncio.ensure_future(store.claim(node=node, token=token, limit=9, lease_ms=LEASE_MS, wait_ms=wait_ms))


async def asleep(store, *, offers=True):
    """The server has what goes with the wait; false: only the wait."""
    async with asyncio.timeout(PATIENCE_S):
        ear = store.backend.runs_listener
        while ear._connection._asked is None or (ear._offered is None) == offers:  # noqa: ASYNC110  it rings no bell
            await asyncio.sleep(0.005)
    await store.counts()  # over another connection, and after it


async def within(call):
    async with asyncio.timeout(PATIENCE_S):
        return await call


async def test_what_rings_soon_comes_with_the_ring(store, looks):
    for n in range(3):
        claim = waiting(store, f"t{n}")
        await asleep(store)
        await store.enqueue([a_run(f"r{n}", due_ms=0)])

        claimed = await within(claim)

        assert (ids(claimed.runs), claimed.runs[0].token) == ([f"r{n}"], f"t{n}:1")
        assert claimed.jobs["job"].id == "job"
    assert looks == ["t0", "t1", "t2"], "one look each, before the wait"


async def test_an_offer_is_good_for_a_moment_only(store, looks, monkeypatch):
    """A waiter that hangs, or that nobody can reach any more, takes nothing away from the others."""
    monkeypatch.setattr(backend, "OFFER_MS", -1)
    claim = waiting(store)
    await asleep(store)

    await store.enqueue([a_run("r", due_ms=0)])

    assert ids((await within(claim)).runs) == ["r"]
    assert looks == ["t", "t"]


async def test_whoever_may_leave_by_itself_before_that_moment_is_over_offers_nothing(store, monkeypatch):
    """Or what the server takes for it just then would be leased to nobody."""
    monkeypatch.setattr(backend, "OFFER_MS", WAIT_MS)
    claim = waiting(store)
    await asleep(store, offers=False)

    await store.enqueue([a_run("r", due_ms=0)])

    assert ids((await within(claim)).runs) == ["r"]


async def test_an_offer_takes_any_run_but_no_lost_lease(store, looks):
    """The clock may have jumped since the look, and then all leases seem to have ended."""
    await given(store, a_run("lost", due_ms=0))
    await store.claim(node="m", token="u", limit=1, lease_ms=1)
    await asyncio.sleep(0.01)
    looks.clear()
    [request, _] = await offered(store)

    await store.enqueue([a_run("r", due_ms=0, key="k")])

    found = store.backend.decoded((await store.backend.link()._over(lambda line: line.send(request, 1)))[0][0])
    assert ids(found.claimed.runs) == ["r"]


async def offered(store):
    """A claim as it goes with a wait, after a look that found nothing."""
    request = ClaimRequest("n", "t", 9, LEASE_MS, 1, 10, 100_000)
    looked = Claimed(Answer.OK, (), {}, 0, None, await store.now())
    return store.backend.offer(request, looked), request


async def test_whoever_stops_waiting_takes_its_offer_back(store):
    for n in range(20):
        claim = waiting(store, f"t{n}")
        await asleep(store)
        claim.cancel()
        await asyncio.gather(claim, return_exceptions=True)

        await store.enqueue([a_run(f"r{n}", due_ms=0)])

        assert (await the_run(store, f"r{n}")).state is RunState.READY
        assert ids((await store.claim(node="m", token=f"u{n}", limit=9, lease_ms=LEASE_MS)).runs) == [f"r{n}"]


def enqueued_elsewhere(url, run):
    """In a loop of its own, while ours stands still."""

    async def enqueue():
        other = RedisStore(url)
        await other.open()
        try:
            await other.enqueue([run])
        finally:
            await other.close()

    with ThreadPoolExecutor(1) as elsewhere:
        elsewhere.submit(asyncio.run, enqueue()).result(PATIENCE_S)


async def test_an_offer_is_taken_back_at_once(store):
    """Not with the next turn of the loop: what is sent before it, by whomever, must not be taken for nobody."""
    claim = waiting(store)
    await asleep(store)
    [waiter] = store.backend.runs_listener._waiters

    store.backend.runs_listener.dismiss(waiter)
    enqueued_elsewhere(store.backend.url, a_run("r", due_ms=0))

    assert (await the_run(store, "r")).state is RunState.READY
    claim.cancel()
    await asyncio.gather(claim, return_exceptions=True)


async def test_whoever_waited_long_enough_leaves_the_connection_as_it_is(store, monkeypatch):
    monkeypatch.setattr(wakeup, "OFFER_MS", 0)
    monkeypatch.setattr(backend, "OFFER_MS", -1)
    claim = waiting(store)
    await asleep(store)
    asked = store.backend.runs_listener._connection._asked
    claim.cancel()
    await asyncio.gather(claim, return_exceptions=True)

    claim = waiting(store, "u")
    await asleep(store, offers=False)

    assert store.backend.runs_listener._connection._asked is asked
    await store.enqueue([a_run("r", due_ms=0)])
    assert ids((await within(claim)).runs) == ["r"]


async def test_an_offer_whose_answer_was_lost_is_answered_by_its_token(store, looks, monkeypatch):
    listener = store.backend.runs_listener._connection
    ask = listener.ask

    async def lossy(*command, tell=None, **options):
        await ask(*command, **options)
        raise exceptions.ConnectionError("lost on the way")

    monkeypatch.setattr(listener, "ask", lossy)
    claim = waiting(store)
    await asleep(store)
    await store.enqueue([a_run("r", due_ms=0)])

    [run] = (await within(claim)).runs

    assert (run.id, run.fence, run.token) == ("r", 1, "t:1")
    assert looks == ["t", "t"]


async def test_a_ring_for_somebody_else_leaves_the_waiter_where_it_is(store, looks):
    await given(store, a_run("other", due_ms=0))
    await store.claim(node="m", token="u", limit=1, lease_ms=LEASE_MS)
    looks.clear()
    claim = waiting(store)
    await asleep(store)

    await store.cancel(run_ids=["other"])  # rings for node m
    await asleep(store, offers=False)
    assert not claim.done()
    await store.enqueue([a_run("r", due_ms=0)])

    assert ids((await within(claim)).runs) == ["r"]


async def test_a_server_that_forgot_the_functions_gets_them_again(store, looks, redis):
    for n in range(3):
        claim = waiting(store, f"t{n}")
        await asleep(store)
        if n == 1:
            await redis.execute_command("FUNCTION", "DELETE", library().name)
        await store.enqueue([a_run(f"r{n}", due_ms=0)])
        assert ids((await within(claim)).runs) == [f"r{n}"]
    assert looks == ["t0", "t1", "t2"], "the write that rings loads them before"


async def test_of_two_who_wait_each_gets_what_it_may(store):
    one, two = waiting(store, "one"), waiting(store, "two", node="m")
    await asleep(store)

    await store.enqueue([a_run("a", due_ms=0)])
    done, left = await asyncio.wait({one, two}, timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
    assert [ids(claim.result().runs) for claim in done] == [["a"]]
    await store.enqueue([a_run("b", due_ms=0)])

    assert ids((await within(left.pop())).runs) == ["b"]


async def test_closing_while_the_server_has_an_offer_takes_nothing(store):
    other = RedisStore(store.backend.url)
    await other.open()
    try:
        claim = waiting(other)
        await asleep(other)
        await other.close()
        await asyncio.gather(claim, return_exceptions=True)

        await store.enqueue([a_run("r", due_ms=0)])

        assert (await the_run(store, "r")).state is RunState.READY
    finally:
        await other.close()


async def test_with_replicas_to_confirm_nothing_goes_with_the_wait():
    store = RedisStore(f"{own_url('offers')}&wait=1")
    assert store.backend.offer(ClaimRequest("n", "t", 9, LEASE_MS, 1, 10, 100_000), None) is None


async def test_a_foreign_entry_of_the_bell_is_passed_over(store, only_rings, redis, monkeypatch):
    monkeypatch.setattr(backend, "OFFER_MS", WAIT_MS)
    claim = waiting(store)
    await asleep(store, offers=False)
    listener = store.backend.runs_listener
    entry = await redis.xadd(f"{store.backend.address.prefix}:bell:runs", {b"kind": b"\xff", b"node": b"\xfe"})
    async with asyncio.timeout(QUICK_S):
        while listener._place != wakeup.place_of(entry.decode()):  # noqa: ASYNC110  it rings no bell
            await asyncio.sleep(0.005)

        await store.enqueue([a_run("r", due_ms=0)])

        assert ids((await claim).runs) == ["r"]


async def test_a_wait_whose_answer_cannot_be_read_fails_at_once(store):
    def refuse(answers):
        raise ValueError("no such kind")

    connection = BlockingConnection(store.backend.address)
    async with asyncio.timeout(QUICK_S):
        with pytest.raises(exceptions.InvalidResponse, match="no such kind"):
            await connection.ask("PING", within_s=PATIENCE_S, tell=refuse)
        assert await connection.ask("PING", within_s=PATIENCE_S) == b"PONG"
    await connection.close()
