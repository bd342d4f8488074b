"""Beats of nodes, and pruning by the leader's node."""

import pytest

from pollux.clock import FakeClock, StoreClock
from pollux.errors import InvalidInput, StoreError
from pollux.events import Events
from pollux.model import Node
from pollux.runtime.leader import Leader
from pollux.runtime.loop import Rest
from pollux.runtime.node import Heartbeat, Pruner, check_key
from pollux.runtime.options import RuntimeOptions
from pollux.store.memory import MemoryStore
from tests.runtime.fakes import Spy


@pytest.fixture
async def store():
    clock = FakeClock()
    store = Spy(MemoryStore(clock))
    store.clock, store.events = clock, Events()
    await store.open()
    return store


async def test_a_node_beats_every_fifteen_seconds_and_is_gone_after_three_missed_beats(store):
    seats = [4]
    beat = Heartbeat(store, lambda: Node("a", seats=seats[0]), clock=store.clock, events=store.events)
    assert beat.name == "heartbeat"
    beat.start()
    await store.clock.advance(60_000)
    assert store.count("beat") == 5
    seats[0] = 9
    await store.clock.advance(15_000)
    assert [node.seats for node in await store.nodes()] == [9]
    store.faults["beat"] = [StoreError("down")] * 100
    await store.clock.advance(46_000)
    assert await store.nodes() == []
    await beat.stop()


def test_a_node_without_a_name_for_the_leadership_is_told_so():
    with pytest.raises(
        InvalidInput, match="node b on this store names no leadership, this one names the leadership 'shop'"
    ):
        check_key(Node("a", key="shop"), [Node("b")])
    check_key(Node("a", key="shop"), [Node("b", key="shop")])


def a_pruner(store, leader, *, limit=1_000, **options):
    time = StoreClock(store.clock, store.events)
    options = RuntimeOptions(**options)
    return Pruner(store, leader, time, clock=store.clock, events=store.events, options=options, limit=limit)


async def test_only_the_leaders_node_prunes(store):
    leader = Leader(store, "a", clock=store.clock, events=store.events)
    pruner = a_pruner(store, leader)
    assert await pruner.turn() == Rest.STANDBY
    assert store.count("prune") == 0
    await leader.turn()
    assert (await pruner.turn()).ms == 60_000
    assert store.count("prune") == 1


async def test_what_may_go_is_told_in_times_of_the_store(store):
    leader = Leader(store, "a", clock=store.clock, events=store.events)
    await leader.turn()
    await a_pruner(store, leader, keep_per_job=5).turn()
    [((what,), _)] = store.sent("prune")
    now_ms = store.clock.now_ms()
    assert what.unchanged_before_ms == now_ms - 120_000
    assert what.finished_before_ms == what.once_before_ms == now_ms - 7 * 86_400_000
    assert (what.keep_per_job, what.limit) == (5, 1_000)
    assert what.dead_before_ms == now_ms - 90 * 86_400_000
    assert (what.dead_max, what.log_max) == (10_000, 100_000)


async def test_while_there_is_more_it_goes_on_soon(store):
    leader = Leader(store, "a", clock=store.clock, events=store.events)
    await leader.turn()
    pruner = a_pruner(store, leader, limit=3)

    async def prune(what):
        return 3

    store.inner.prune = prune
    assert (await pruner.turn()).ms == 100
    assert pruner.pruned == 3
