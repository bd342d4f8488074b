"""Replicas that confirm a write with `?wait=1`: whichever server is promoted has all that was answered."""

import asyncio
import logging

import pytest
from redis.exceptions import ConnectionError as Unreachable

from pollux.errors import StoreTimeout
from pollux.store.contract import Answer
from pollux.store.redis import connection, replicas, topology
from pollux.store.redis.replicas import GRACE_S, Replicas
from pollux.testing.conformance.builders import T0, a_run, given_jobs
from tests.servers.ports import nobodys_port
from tests.servers.redis import RedisServer
from tests.servers.redis_cluster import again, ask, until
from tests.servers.redis_pair import Pair
from tests.servers.redis_sentinel import follow


@pytest.fixture
def pair(tmp_path):
    pair = Pair(tmp_path)
    yield pair
    pair.stop()


@pytest.fixture
def third(tmp_path):
    """One more server, which follows nobody yet."""
    (tmp_path / "third").mkdir()
    server = RedisServer(tmp_path / "third").start()
    yield server
    server.stop()


@pytest.fixture
def impatient(monkeypatch):
    """What no replica confirms is told soon."""
    monkeypatch.setattr(connection, "WAIT_MS", 300)


async def opened_beside_two(opened, pair, third):
    """A store whose primary has two replicas in step, both of which it knows."""
    follow(third, pair.primary)
    store = await opened(f"{pair.url}?wait=1")

    async def both_confirm():
        await given_jobs(store, "job")
        if store.backend.link()._replicas.needed != 2:
            raise StoreTimeout("not yet looked")

    await again(both_confirm)
    return store


async def enqueued(store, run_id):
    [answer] = await store.enqueue([a_run(run_id)], now_ms=T0)
    return answer.answer


async def test_a_third_server_that_is_promoted_has_all_that_was_answered(pair, third, opened, impatient):
    """It got nothing more before it took the place of its primary; the other replica had got everything."""
    store = await opened_beside_two(opened, pair, third)
    assert await again(lambda: enqueued(store, "kept")) is Answer.OK
    with nobodys_port() as nowhere:
        ask(third, "REPLICAOF", "127.0.0.1", nowhere)
        until(lambda: "connected_slaves:1" in str(ask(pair.primary, "INFO", "replication")), "it is gone")
        with pytest.raises(StoreTimeout, match=r"1 of 2 replicas confirmed it .* may have been promoted"):
            await enqueued(store, "late")
        pair.primary.kill()
        second, pair.replica = pair.replica, third
        pair.promote()
        follow(second, third)
        assert await again(lambda: enqueued(store, "late")) is Answer.OK, "the same ids again"

    assert [run.id for run in await again(lambda: store.get_runs(["kept", "late"]))] == ["kept", "late"]
    assert store.backend.link().homes.lost == 0
    second.stop()


async def test_writes_go_on_without_a_replica_that_stays_away(pair, third, opened, impatient, monkeypatch):
    store = await opened_beside_two(opened, pair, third)
    monkeypatch.setattr(replicas, "GRACE_S", 0.0)
    third.kill()
    met = []

    assert await again(lambda: enqueued(store, "a"), met.append) in (Answer.OK, Answer.ALREADY)

    assert [str(error) for error in met if "of 2 replicas confirmed" not in str(error)] == []
    assert met, "its word was waited for once more"


async def test_who_writes_seldom_is_not_refused_for_a_replica_that_left_long_ago(
    pair, third, opened, impatient, monkeypatch
):
    """The look at who follows comes before that write: behind it, it would come too late."""
    store = await opened_beside_two(opened, pair, third)
    known = store.backend.link()._replicas
    third.kill()
    until(lambda: "connected_slaves:1" in str(ask(pair.primary, "INFO", "replication")), "it is gone")
    await asyncio.gather(*(store.counts() for _ in range(4)))  # new connections: each looks when it greets
    assert known._fewer_since is not None
    assert known.needed == 2
    monkeypatch.setattr(replicas, "GRACE_S", 0.0)  # it is long ago

    assert await enqueued(store, "seldom") is Answer.OK

    assert known.needed == 1


async def test_a_replica_in_its_first_synchronisation_confirms_nothing(tmp_path, third, opened, impatient):
    """Until it has everything no write is called done; then the same ids are answered, and are there."""
    (tmp_path / "one").mkdir()
    primary = RedisServer(tmp_path / "one", "--repl-diskless-sync-delay", "3600").start()
    try:
        store = await opened(f"{primary.url}?wait=1")
        begin_synchronisation(third, primary)
        with pytest.raises(StoreTimeout, match=r"0 of 1 replicas confirmed it .* see that a replica follows"):
            await given_jobs(store, "job")
        ask(primary, "CONFIG", "SET", "repl-diskless-sync-delay", 0)
        await again(lambda: given_jobs(store, "job"))
        assert await again(lambda: enqueued(store, "a")) in (Answer.OK, Answer.ALREADY)
        port = primary.port
    finally:
        primary.stop()
    ask(third, "REPLICAOF", "NO", "ONE")
    ask(third, "CONFIG", "SET", "port", port)
    third.port = port
    assert [run.id for run in await again(lambda: store.get_runs(["a"]))] == ["a"]


async def test_a_replica_in_its_first_synchronisation_is_not_waited_for(pair, third, opened, caplog):
    """Those in step confirm; whoever promotes it all the same loses everything, and that is said."""
    ask(pair.primary, "CONFIG", "SET", "repl-diskless-sync-delay", 3600)
    begin_synchronisation(third, pair.primary)
    store = await opened(f"{pair.url}?wait=1")
    await again(lambda: given_jobs(store, "job"))
    assert await again(lambda: enqueued(store, "a")) in (Answer.OK, Answer.ALREADY)
    assert "state=wait_bgsave" in str(ask(pair.primary, "INFO", "replication"))

    pair.primary.kill()
    second, pair.replica = pair.replica, third
    pair.promote()
    with caplog.at_level(logging.WARNING, "pollux"):
        assert (await again(store.counts)).jobs == 0
    second.stop()
    assert caplog.text.count("that it had acknowledged are gone") == 1


def begin_synchronisation(replica, primary):
    ask(replica, "REPLICAOF", "127.0.0.1", primary.port)
    until(lambda: f"port={replica.port},state=wait_bgsave" in str(ask(primary, "INFO", "replication")), "it waits")


IN_STEP, LATE, NEW = (f"ip=h,port=1,state={told}" for told in ("online,lag=1", "online,lag=3", "wait_bgsave,lag=0"))


def told(*said, primary="p"):
    """What a primary tells of its replicas."""
    return {"master_replid": primary, **{f"slave{number}": each for number, each in enumerate(said)}}


def test_every_replica_in_step_is_needed_and_at_least_as_many_as_the_url_names():
    known = Replicas(1)
    assert known.needed == 1
    known.see(told(IN_STEP, IN_STEP, LATE, NEW), 0.0)
    assert known.needed == 2
    known.see(told(IN_STEP, IN_STEP, IN_STEP), 0.5)
    assert known.needed == 3, "more count at once"


def test_one_that_left_is_needed_for_as_long_as_it_may_have_been_promoted():
    known = Replicas(1)
    known.see(told(IN_STEP, IN_STEP), 0.0)
    known.see(told(IN_STEP, LATE), 5.0)
    known.see(told(IN_STEP), 5.0 + GRACE_S - 0.1)
    assert known.needed == 2
    known.see(told(IN_STEP), 5.0 + GRACE_S)
    assert known.needed == 1


def test_one_that_comes_back_leaves_anew():
    known = Replicas(1)
    known.see(told(IN_STEP, IN_STEP), 0.0)
    known.see(told(IN_STEP), 1.0)
    known.see(told(IN_STEP, IN_STEP), 2.0)
    known.see(told(IN_STEP), 3.0)
    known.see(told(IN_STEP), 3.0 + GRACE_S - 0.1)
    assert known.needed == 2


def test_another_primary_has_its_own_replicas():
    known = Replicas(1)
    known.see(told(IN_STEP, IN_STEP), 0.0)
    known.see(told(primary="q"), 0.1)
    assert known.needed == 1


def test_who_follows_is_asked_once_a_second():
    known = Replicas(1)
    assert known.is_unseen(0.0)
    known.see(told(), 0.0)
    assert not known.is_unseen(0.9)
    assert known.is_unseen(1.0)


def test_a_server_that_the_sentinels_are_about_to_replace_gets_no_new_connection():
    """Only the sentinel that leads the failover knows; the others still name the old primary in good faith."""
    old, new = ("h", 2), ("h", 1)
    with pytest.raises(Unreachable, match=r"replace h:2, and have named no other yet"):
        topology._primary_of(
            [
                topology.SentinelAnswer(7, old, False),
                topology.SentinelAnswer(7, old, True),
                topology.SentinelAnswer(7, old, False),
            ]
        )
    assert topology._primary_of([topology.SentinelAnswer(7, old, True), topology.SentinelAnswer(8, new, False)]) == new
