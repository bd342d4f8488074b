"""Promises of the store on a Redis Cluster: three real primaries; slots that move, nodes that die."""

import asyncio
import os

import pytest
from redis.crc import key_slot

from pollux.errors import StoreBusy, StoreError, StoreRefused
from pollux.model import Done
from pollux.store.contract import Answer
from pollux.store.redis import RedisStore
from pollux.store.redis.address import read_address
from pollux.store.redis.library import KEYS
from pollux.store.redis.topology import route_to
from pollux.testing.conformance.builders import T0, a_run, claim, given, given_jobs, ids, settlement
from tests.acceptance.terminal import Terminal
from tests.conformance.variants import VariantContract
from tests.servers.redis import own_url
from tests.servers.redis_cluster import RedisNodes, again, ask, hears_again, until

pytestmark = pytest.mark.xdist_group("redis cluster")  # one cluster for all of them
PATIENCE_S = 60


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    nodes = RedisNodes(tmp_path_factory.mktemp("nodes"), replicas=1).start()
    yield nodes
    nodes.stop()


@pytest.fixture
def namespace():
    return f"n-{os.urandom(6).hex()}"


@pytest.fixture
async def store(nodes, namespace):
    store = RedisStore(f"{nodes.url}?namespace={namespace}")
    await store.open()
    yield store
    await store.close()


class TestOnACluster(VariantContract):
    """On three primaries."""


class Load:
    """Runs that are enqueued, claimed and settled without a pause, until it is stopped."""

    def __init__(self, store):
        self.store = store
        self.enqueued, self.settled, self.refused, self.errors = [], [], [], []
        self._is_over = False

    async def again(self, call):
        return await again(call, self.errors.append)

    async def write(self):
        while not self._is_over:
            name = f"r{len(self.enqueued)}"
            [answer] = await self.again(lambda name=name: self.store.enqueue([a_run(name)], now_ms=T0))
            assert answer.answer in {Answer.OK, Answer.ALREADY}
            self.enqueued.append(name)

    async def work(self):
        while not self._is_over or len(self.settled) < len(self.enqueued):
            token = os.urandom(6).hex()
            for run in await self.again(lambda token=token: claim(self.store, 5, token=token)):
                [answer] = await self.again(lambda run=run: self.store.settle([settlement(run, Done())], now_ms=T0))
                (self.settled if answer in {Answer.OK, Answer.ALREADY} else self.refused).append(run.id)

    async def during(self, change):
        """What `change` does is done under load; afterwards all that was enqueued is settled, each once."""
        await given_jobs(self.store, "job")
        loops = [asyncio.create_task(loop()) for loop in (self.write, self.work, self.work)]
        try:
            await asyncio.to_thread(until, lambda: len(self.settled) > 20, "it works")
            await asyncio.to_thread(change)
            before = len(self.settled)
            await asyncio.to_thread(until, lambda: len(self.settled) > before + 20, "it goes on")
        finally:
            self._is_over = True
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.gather(*loops)
        assert sorted(self.settled) == sorted(self.enqueued)
        assert self.refused == []


async def test_whoever_gives_up_while_it_asks_for_the_owner_of_our_slot_is_let_go(nodes):
    """At whatever step: a reader that is told to end and goes on would keep a store from closing for half a minute."""
    route, steps = route_to(read_address(nodes.url)), 0
    for _ in range(300):
        route.doubt()
        asking = asyncio.ensure_future(route.find())
        for _ in range(steps):
            await asyncio.sleep(0)
        steps = 0 if asking.done() else steps + 1
        asking.cancel()
        [end] = await asyncio.gather(asking, return_exceptions=True)
        assert steps == 0 or isinstance(end, asyncio.CancelledError), f"after {steps} steps: {end}"


async def test_a_node_that_hangs_is_passed_over_and_asked_last_from_then_on(nodes, namespace):
    """It takes connections and says nothing, as a machine that is stuck does; the others know who owns our slot."""
    asked = []
    hung = await asyncio.start_server(lambda _, writer: asked.append(writer), "127.0.0.1", 0)
    address = f"127.0.0.1:{hung.sockets[0].getsockname()[1]}"
    store = RedisStore(f"{nodes.url.replace('://', f'://{address},')}?namespace={namespace}")
    try:
        await store.open()
        assert len(asked) == 1
        await store.backend.link()._doubt()
        await given(store, a_run("a"))
        assert ids(await claim(store, 1)) == ["a"]
        assert len(asked) == 1

        waiting = asyncio.create_task(store.claim(node="n", token="t", limit=1, lease_ms=30_000, wait_ms=60_000))
        await hears_again(store.backend.runs_listener)
        await given(store, a_run("b", due_ms=0))
        assert ids((await waiting).runs) == ["b"]
    finally:
        await store.close()
        for writer in asked:
            writer.close()
        hung.close()


async def test_all_keys_of_a_namespace_are_in_one_slot_and_other_namespaces_elsewhere(nodes, namespace, store):
    await given(store, a_run("a", key="k"), a_run("b"))
    await claim(store, 1)
    await store.elect("n", ttl_ms=9_000)

    owner = nodes.owner(f"{{pollux:{namespace}}}:meta")
    slot = nodes.slot(f"{{pollux:{namespace}}}:meta")
    ours = ask(owner, "CLUSTER", "GETKEYSINSLOT", slot, 1_000)
    everywhere = [key for node in nodes.primaries for key in ask(node, "KEYS", f"*{namespace}*")]
    assert {f"{{pollux:{namespace}}}:{name}" for name in ("meta", "run:a", "jobs:normal", "keys")} <= set(ours)
    assert sorted(ours) == sorted(everywhere)
    assert len({key_slot(b"{pollux:%d}:" % number) % 3 for number in range(20)}) > 1


async def test_a_slot_that_moves_under_load_is_followed_and_nothing_is_lost_or_doubled(nodes, namespace, store):
    key = f"{{pollux:{namespace}}}:meta"
    source = nodes.owner(key)
    target = next(node for node in nodes.primaries if node is not source)
    load = Load(store)

    await load.during(lambda: nodes.migrate(nodes.slot(key), target))

    assert nodes.owner(key) is target
    assert load.errors == [], "nobody sees more of it than a pause"


async def test_while_a_slot_is_on_its_way_nothing_is_half_done(nodes, namespace, opened):
    """Some keys are here, some there: a script would fail in the midst.  So the call waits, or is refused whole."""
    store = await opened(f"{nodes.url}?namespace={namespace}", deadline_ms=2_000)
    await given(store, a_run("a"), a_run("b"))
    key = f"{{pollux:{namespace}}}:meta"
    source = nodes.owner(key)
    target = next(node for node in nodes.primaries if node is not source)
    slot = nodes.slot(key)
    refusals = []

    def between():
        for call in (store.enqueue([a_run("new")], now_ms=T0), claim(store)):
            with pytest.raises(StoreBusy, match="nothing was changed") as refused:
                asyncio.run_coroutine_threadsafe(call, loop).result(PATIENCE_S)
            refusals.append(refused.value)

    loop = asyncio.get_running_loop()
    await asyncio.to_thread(nodes.migrate, slot, target, between=between)

    assert len(refusals) >= 4, "it was asked while keys were on both sides"
    counts = await again(store.counts)
    assert (counts.ready, counts.leased) == (2, 0)
    assert await store.get_runs(["new"]) == [None]
    assert sorted(ids(await claim(store))) == ["a", "b"]


async def test_a_slot_that_begins_to_move_stops_calls_also_when_every_named_key_is_still_there(
    nodes, namespace, opened
):
    """The keys of single runs are made inside the scripts: the first that is not there would end one halfway."""
    store = await opened(f"{nodes.url}?namespace={namespace}", deadline_ms=2_000)
    await given(store, a_run("a"))
    prefix = f"{{pollux:{namespace}}}"
    slot = nodes.slot(prefix)
    source = nodes.owner(prefix)
    for name in KEYS:
        if not ask(source, "EXISTS", f"{prefix}:{name}"):
            ask(source, "ZADD", f"{prefix}:{name}", 0, "x")
    target = next(node for node in nodes.primaries if node is not source)
    nodes.begin_migration(slot, target)
    try:
        with pytest.raises(StoreBusy, match="nothing was changed"):
            await store.enqueue([a_run("new")], now_ms=T0)
    finally:
        for node in (source, target):
            ask(node, "CLUSTER", "SETSLOT", slot, "STABLE")
    assert await again(lambda: store.get_runs(["new"])) == [None]


@pytest.mark.usefixtures("only_rings")
async def test_a_waiting_worker_hears_the_ring_at_the_slots_new_owner(nodes, namespace, store):
    await given_jobs(store, "job")
    key = f"{{pollux:{namespace}}}:meta"
    source = nodes.owner(key)
    target = next(node for node in nodes.primaries if node is not source)
    waiting = asyncio.create_task(
        again(lambda: store.claim(node="n", token="t", limit=1, lease_ms=30_000, wait_ms=60_000))
    )
    await asyncio.to_thread(until, lambda: "cmd=xread" in str(ask(source, "CLIENT", "LIST")), "it waits")
    await asyncio.to_thread(nodes.migrate, nodes.slot(key), target)
    await asyncio.to_thread(until, lambda: "cmd=xread" in str(ask(target, "CLIENT", "LIST")), "it waits there")

    await store.enqueue([a_run("a", due_ms=0)])

    async with asyncio.timeout(50):
        assert ids((await waiting).runs) == ["a"]


async def test_a_primary_is_killed_and_its_replica_takes_over_under_load(nodes):
    """With `wait=1` nothing that was answered is lost; who waits for a ring gets it from the new primary."""
    primary = next(node for node in nodes.primaries if "connected_slaves:1" in str(ask(node, "INFO", "replication")))
    name = next(name for name in map(str, range(99)) if nodes.owner(f"{{pollux:{name}}}:meta") is primary)
    store = RedisStore(f"{nodes.url}?namespace={name}&wait=1")
    await store.open()
    replica = nodes.replica_of(primary)

    def fail():
        primary.kill()
        until(lambda: "role:master" in str(ask(replica, "INFO", "replication")), "the replica leads")
        primary.start()
        until(lambda: "master_link_status:up" in str(ask(primary, "INFO", "replication")), "the old one follows it")

    try:
        await Load(store).during(fail)
        assert store.backend.link().homes.lost == 0
    finally:
        await store.close()


async def test_a_cluster_behind_a_plain_url_is_refused_with_the_cure(nodes):
    store = RedisStore(f"redis://127.0.0.1:{nodes.nodes[0].port}/0")
    with pytest.raises(StoreRefused, match=r"part of a cluster; use redis\+cluster://"):
        await store.open()


def test_doctor_names_the_right_url_of_a_cluster(nodes, tmp_path):
    """Also where it is pointed elsewhere before it can ask what server that is."""
    node = nodes.nodes[0]
    away = next(name for name in map(str, range(99)) if nodes.owner(f"pollux:{name}:meta") is not node)
    answer = Terminal(tmp_path)("doctor", "--store", f"redis://127.0.0.1:{node.port}/0?namespace={away}")
    assert answer.code == 1
    assert "use redis+cluster://host:port" in answer.out


async def test_a_plain_server_behind_a_clusters_url_is_refused_with_the_cure():
    place = own_url("x").partition("://")[2].partition("/")[0]
    store = RedisStore(f"redis+cluster://{place}")
    with pytest.raises(StoreRefused, match="is no cluster; use redis://host:port/0"):
        await store.open()


async def test_one_node_of_the_cluster_is_enough_to_find_the_others(nodes, namespace):
    for node in nodes.nodes:
        store = RedisStore(f"redis+cluster://127.0.0.1:{node.port}?namespace={namespace}")
        await store.open()
        assert (await store.counts()).ready == 0
        await store.close()


async def test_nodes_that_do_not_answer_are_passed_over(nodes, namespace):
    alive = nodes.nodes[1].port
    store = RedisStore(f"redis+cluster://127.0.0.1:1,127.0.0.1:2,127.0.0.1:{alive}?namespace={namespace}")
    await store.open()
    await store.close()
    with pytest.raises(StoreError, match="cannot be reached"):
        await RedisStore(f"redis+cluster://127.0.0.1:1,127.0.0.1:2?namespace={namespace}").open()
