"""Failover to a replica that lacks the last writes: what is lost, which nodes notice, and what goes on.

The replica is cut off before the writes that it shall not get, so the loss is certain.  Then the primary is killed, and
the replica takes its place: its port, as a name or a virtual address would move.
"""

import asyncio
import logging

import pytest

from pollux.errors import StoreTimeout
from pollux.model import Done, Node, NodeSeen, Plan
from pollux.store.contract import Answer, JobPut
from pollux.store.redis import connection
from pollux.store.redis.failover_detection import FailoverDetector
from pollux.testing.conformance.builders import T0, a_firing, a_job, a_run, claim, given, given_jobs, ids, settlement
from tests.servers.ports import free_port
from tests.servers.redis import RedisServer
from tests.servers.redis_cluster import again, ask, until
from tests.servers.redis_pair import Pair

HEARS_S = 50  # and a wait ends after 60 s


@pytest.fixture
def pair(tmp_path):
    pair = Pair(tmp_path)
    yield pair
    pair.stop()


def said(caplog):
    return [record.getMessage() for record in caplog.records if "went back" in record.getMessage()]


async def test_what_the_replica_had_not_got_is_lost_and_that_is_said_once(pair, opened, caplog):
    store, other = await opened(pair.url), await opened(pair.url)
    await given(store, a_run("kept"))
    pair.catch_up()
    pair.cut()
    for name in ("lost-1", "lost-2", "lost-3"):
        await store.enqueue([a_run(name)], now_ms=T0)

    pair.fail_over()
    with caplog.at_level(logging.WARNING, "pollux"):
        counts = await again(store.counts)
        await again(other.counts)

    assert counts.ready == 1
    assert await store.get_runs(["lost-1", "lost-2", "lost-3"]) == [None, None, None]
    [line] = said(caplog)
    assert "about 3 writes that it had acknowledged are gone" in line
    assert "?wait=1" in line
    assert ids(await claim(store)) == ["kept"], "and work goes on"


async def test_a_replica_that_had_got_everything_loses_nothing_and_nothing_is_said(pair, opened, caplog):
    store = await opened(pair.url)
    await given(store, a_run("a"))
    pair.catch_up()

    pair.fail_over()
    with caplog.at_level(logging.WARNING, "pollux"):
        assert (await again(store.counts)).ready == 1

    assert said(caplog) == []


async def test_a_loss_is_noticed_also_after_others_have_written_more_than_was_lost(pair, opened, caplog):
    """Their count has passed ours before we come back; where their server began tells all the same."""
    late = await opened(pair.url)
    await given(late, a_run("kept"))
    pair.catch_up()
    pair.cut()
    await late.enqueue([a_run("lost")], now_ms=T0)
    pair.fail_over()
    early = await opened(pair.url)
    for number in range(10):
        await early.enqueue([a_run(f"new-{number}")], now_ms=T0)

    with caplog.at_level(logging.WARNING, "pollux"):
        await again(late.counts)

    [line] = said(caplog)
    assert "about 1 writes" in line


async def test_a_term_that_was_lost_is_never_given_away_again(pair, opened):
    """The old leader still believes in it; its plans must be refused, whoever leads now."""
    old, new = await opened(pair.url), await opened(pair.url)
    [job] = await given_jobs(old, "job")
    await old.elect("old", ttl_ms=15_000)
    await old.resign("old", term=1)
    pair.catch_up()
    pair.cut()
    lost = await old.elect("old", ttl_ms=15_000)
    assert lost.number == 2

    pair.fail_over()
    won = await again(lambda: new.elect("new", ttl_ms=15_000))

    assert won.holder == "new"
    assert won.number > lost.number
    plan = Plan(firings=(a_firing(job, T0),))
    assert (await again(lambda: old.advance(lost.number, plan, now_ms=T0))).answer is Answer.FENCED
    assert (await new.advance(won.number, plan, now_ms=T0)).answer is Answer.OK


async def test_a_leader_whose_term_the_replica_knew_must_win_it_again(pair, opened):
    """Later terms may be lost between: until somebody is elected on this server nobody leads."""
    store = await opened(pair.url)
    term = await store.elect("one", ttl_ms=15_000)
    pair.catch_up()
    pair.fail_over()

    assert (await again(lambda: store.advance(term.number, Plan()))).answer is Answer.FENCED
    again_won = await store.elect("one", ttl_ms=15_000)
    assert again_won.number > term.number
    assert (await store.advance(again_won.number, Plan())).answer is Answer.OK


async def test_what_was_remembered_of_lost_writes_is_forgotten(pair, opened):
    """Feed entries and job revisions are numbered; after a loss the same number may be another one's."""
    store = await opened(pair.url)
    await given_jobs(store, "job")
    pair.catch_up()
    pair.cut()
    await store.put_jobs([JobPut(a_job("job", name="lost"))], now_ms=T0)
    await store.beat(Node("lost"), ttl_ms=30_000)
    [lost] = await store.get_jobs(["job"])
    before = (await store.feed(limit=99)).items

    pair.fail_over()
    other = await opened(pair.url)
    await other.put_jobs([JobPut(a_job("job", name="other"))], now_ms=T0)
    await other.beat(Node("other"), ttl_ms=30_000)

    items = (await again(lambda: store.feed(limit=99))).items
    assert ids(items) == ids(before)
    assert (before[-1].entry, items[-1].entry) == (NodeSeen("lost"), NodeSeen("other"))
    [job] = await store.get_jobs(["job"])
    assert job.revision == lost.revision
    assert (lost.name, job.name) == ("lost", "other")


@pytest.mark.usefixtures("only_rings")
async def test_a_waiting_worker_hears_the_new_server_though_its_bell_stands_behind(pair, opened):
    """Rings go by the server's clock, and the lost ones may lie ahead: a worker must neither be deaf nor spin."""
    store = await opened(pair.url)
    await given_jobs(store, "job")
    pair.catch_up()
    pair.cut()
    bell, ahead = "pollux:bell:runs", 32_503_680_000_000
    ask(pair.primary, "XADD", bell, f"{ahead}-1", "kind", "runs")

    async def waits():
        while not (claimed := await store.claim(node="n", token="t", limit=1, lease_ms=30_000, wait_ms=60_000)).runs:
            pass  # at the new server all come back once: nobody knows whether they were asked to
        return claimed.runs

    waiting = asyncio.create_task(again(waits))
    await asyncio.to_thread(until, lambda: "cmd=xread" in str(ask(pair.primary, "CLIENT", "LIST")), "it waits")
    pair.fail_over()
    await asyncio.to_thread(until, lambda: "cmd=xread" in str(ask(pair.replica, "CLIENT", "LIST")), "it waits there")
    await (await opened(pair.url)).enqueue([a_run("new", due_ms=0)])

    async with asyncio.timeout(HEARS_S):
        assert ids(await waiting) == ["new"]
    stats = str(ask(pair.replica, "INFO", "commandstats"))
    calls = sum(int(line.split("calls=")[1].split(",")[0]) for line in stats.splitlines() if "cmdstat_eval" in line)
    assert calls < 60, "it looked again and again"


@pytest.mark.usefixtures("only_rings")
async def test_a_waiting_worker_moves_along_when_its_address_leads_to_another_server(pair, opened):
    """The old server lives on, and its connection is well; the first call that finds the new one tells the ear."""
    store = await opened(pair.url)
    await given_jobs(store, "job")
    pair.catch_up()
    old = pair.primary
    waiting = asyncio.create_task(store.claim(node="n", token="t", limit=1, lease_ms=30_000, wait_ms=60_000))
    await asyncio.to_thread(until, lambda: "cmd=xread" in str(ask(old, "CLIENT", "LIST")), "it waits")
    old.port = free_port()
    ask(pair.primary_at(pair.port), "CONFIG", "SET", "port", old.port)
    pair.promote()
    for line in str(ask(old, "CLIENT", "LIST")).splitlines():
        if "cmd=xread" not in line and "cmd=client" not in line:
            ask(old, "CLIENT", "KILL", "ID", line.partition(" ")[0].partition("=")[2])

    await again(store.counts)
    await (await opened(pair.url)).enqueue([a_run("new", due_ms=0)])

    async with asyncio.timeout(HEARS_S):
        assert ids((await waiting).runs) == ["new"]


async def test_with_wait_nothing_that_was_answered_is_lost(pair, opened):
    store = await opened(f"{pair.url}?wait=1")
    await given_jobs(store, "job")
    answered = []

    async def write(first):
        for number in range(first, first + 200, 4):
            await store.enqueue([a_run(f"r{number}")], now_ms=T0)
            answered.append(f"r{number}")

    writers = [asyncio.create_task(write(first)) for first in range(4)]
    await asyncio.to_thread(until, lambda: len(answered) >= 60, "some are written")
    pair.primary.kill()
    await asyncio.gather(*writers, return_exceptions=True)
    pair.promote()
    found = await again(lambda: store.get_runs(answered))

    assert 60 <= len(answered) < 200
    assert [name for name, run in zip(answered, found, strict=True) if run is None] == []


async def test_with_wait_a_write_without_its_replica_is_not_called_done(pair, opened, monkeypatch):
    """Nor is its repetition, though the server then knows the run already."""
    store = await opened(f"{pair.url}?wait=1")
    await given_jobs(store, "job")
    monkeypatch.setattr(connection, "WAIT_MS", 100)
    pair.cut()
    until(lambda: "connected_slaves:0" in str(ask(pair.primary, "INFO", "replication")), "it is gone")

    for _ in range(2):
        with pytest.raises(StoreTimeout, match=r"0 of 1 replicas confirmed it within 100 ms: it may have taken effect"):
            await store.enqueue([a_run("a")], now_ms=T0)
    assert (await store.counts()).ready == 1, "reading needs no replica"
    pair.mend()

    assert [each.answer for each in await again(lambda: store.enqueue([a_run("a")], now_ms=T0))] == [Answer.ALREADY]
    pair.fail_over()
    assert [run.id for run in await again(lambda: store.get_runs(["a"]))] == ["a"]


async def test_a_server_that_comes_back_without_its_last_writes_is_found_out(tmp_path, opened, caplog):
    """It has no append-only file: what came after the last snapshot is gone."""
    server = RedisServer(tmp_path).start()
    try:
        store = await opened(server.url)
        await given(store, a_run("kept"))
        ask(server, "SAVE")
        term = await store.elect("one", ttl_ms=15_000)
        [run] = await claim(store)
        server.kill()
        server.start()

        with caplog.at_level(logging.WARNING, "pollux"):
            assert (await again(store.counts)).ready == 1

        [line] = said(caplog)
        assert "about 2 writes" in line
        assert await store.settle([settlement(run, Done())], now_ms=T0) == [Answer.LOST]
        assert (await store.elect("two", ttl_ms=15_000)).number > term.number
    finally:
        server.stop()


async def test_keys_that_are_deleted_under_a_living_connection_are_missed(pair, opened, caplog):
    store = await opened(pair.url)
    await given(store, a_run("a"))
    term = await store.elect("one", ttl_ms=15_000)
    ask(pair.primary, "FLUSHALL")

    with caplog.at_level(logging.WARNING, "pollux"):
        won = await store.elect("two", ttl_ms=15_000)
        await given(store, a_run("b"))

    assert len(said(caplog)) == 1
    assert won.number > term.number
    assert ids(await claim(store)) == ["b"]


async def test_a_term_that_somebody_was_told_of_is_not_given_to_another_who_was_not(pair, opened):
    """All keys are gone, and the next leader begins at one; until the old leader comes and tells what it was told."""
    old, new = await opened(pair.url), await opened(pair.url)
    for _ in range(3):
        term = await old.elect("old", ttl_ms=15_000)
        await old.resign("old", term=term.number)
    told = await old.elect("old", ttl_ms=15_000)
    ask(pair.primary, "FLUSHALL")
    assert (await new.elect("new", ttl_ms=15_000)).number == 1

    again_won = await old.elect("old", ttl_ms=15_000)

    assert again_won.number > told.number
    assert (await old.advance(told.number, Plan())).answer is Answer.FENCED
    assert (await new.advance(1, Plan())).answer is Answer.FENCED


def test_writes_to_a_server_that_was_left_behind_count_as_lost():
    """It lived on, cut off, and took writes from an old connection after another had taken its place."""
    homes = FailoverDetector("redis://somewhere")
    old = homes.arrive("aa:0", 10)
    homes.arrive("aa:0 bb:10", 11)
    assert homes.lost == 0

    homes.hear(old, 12)
    homes.hear(old, 13)

    assert (homes.lost, homes.count) == (3, 11)


def test_a_server_that_leads_for_the_second_time_is_another_home():
    homes = FailoverDetector("redis://elsewhere")
    homes.arrive("aa:0", 100)
    homes.arrive("aa:0 bb:90 aa:95", 96)

    assert (homes.home, homes.lost) == ("aa:95", 10)
