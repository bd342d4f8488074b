"""When do we lead, and how long may we believe it?"""

import asyncio

import pytest

from pollux.clock import FakeClock
from pollux.errors import InvalidInput, StoreTimeout
from pollux.events import Events, TermLost, TermWon
from pollux.runtime.leader import Leader
from pollux.store.memory import MemoryStore
from tests.runtime.fakes import Heard, Spy, settle_down


@pytest.fixture
async def store():
    clock = FakeClock()
    store = Spy(MemoryStore(clock))
    store.clock, store.events = clock, Events()
    store.heard = Heard(store.events, TermWon, TermLost)
    await store.open()
    return store


def a_leader(store, node="a", **options):
    return Leader(store, node, clock=store.clock, events=store.events, **options)


async def test_the_first_who_asks_leads_and_renews_every_five_seconds(store):
    leader = a_leader(store)
    rest = await leader.turn()
    assert leader.term == 1
    assert rest.ms == 5_000
    [won] = store.heard.of(TermWon)
    assert (won.node, won.term) == ("a", 1)


async def test_trust_ends_before_the_store_gives_the_term_away(store):
    leader, other = a_leader(store), a_leader(store, "b")
    await leader.turn()
    await store.clock.advance(13_999)
    assert leader.term == 1
    await store.clock.advance(1)
    assert leader.term is None
    await other.turn()
    assert other.term is None, "the store still keeps the term for us"
    await store.clock.advance(1_000)
    await other.turn()
    assert other.term == 2


async def test_trust_is_measured_from_before_the_request(store):
    """A slow answer is old news: the time it took is not trusted."""
    leader, answers = a_leader(store), asyncio.Event()
    store.faults["elect"] = [answers]
    turn = asyncio.ensure_future(leader.turn())
    await store.clock.advance(6_000)
    answers.set()
    rest = await turn
    assert rest.ms == 1
    await store.clock.advance(7_999)
    assert leader.term == 1
    await store.clock.advance(1)
    assert leader.term is None


async def test_trust_does_not_move_with_the_wall_clock(store):
    leader = a_leader(store)
    await leader.turn()
    for jump in (-3_600_000, 7_200_000):
        store.clock.jump(jump)
        assert leader.term == 1
    await store.clock.advance(14_000)
    assert leader.term is None


async def test_who_does_not_lead_asks_again_when_the_term_ends(store):
    leader, other = a_leader(store), a_leader(store, "b")
    await leader.turn()
    rest = await other.turn()
    assert rest.ms == 5_000
    await store.clock.advance(12_000)
    rest = await other.turn()
    assert rest.ms == 3_001
    await store.clock.advance(rest.ms)
    await other.turn()
    assert other.term == 2
    await leader.turn()
    assert leader.term is None
    [lost] = store.heard.of(TermLost)
    assert (lost.node, lost.term) == ("a", 1)
    assert "node b holds term 2" in lost.why


async def test_a_store_that_does_not_answer_costs_the_term_when_trust_ends(store):
    leader = a_leader(store)
    await leader.turn()
    changes = []
    leader.on_change.append(lambda: changes.append(leader.term))
    store.faults["elect"] = [StoreTimeout("no answer")] * 2
    await store.clock.advance(5_000)
    with pytest.raises(StoreTimeout):
        await leader.turn()
    assert leader.term == 1
    await store.clock.advance(9_000)
    with pytest.raises(StoreTimeout):
        await leader.turn()
    assert leader.term is None
    assert changes == [None]
    assert [lost.why for lost in store.heard.of(TermLost)] == ["the store did not answer in time"]


async def test_a_resigned_term_is_free_at_once_and_not_taken_again(store):
    leader, other = a_leader(store), a_leader(store, "b")
    await leader.turn()
    await leader.resign()
    assert leader.term is None
    await leader.turn()
    assert store.count("elect") == 1
    await other.turn()
    assert other.term == 2
    assert store.count("wake") == 1


async def test_a_term_that_is_won_while_resigning_is_given_up(store):
    leader = a_leader(store)
    answers = asyncio.Event()
    store.faults["elect"] = [answers]
    turn = asyncio.ensure_future(leader.turn())
    await settle_down()
    await leader.resign()
    answers.set()
    await turn
    assert leader.term is None
    other = a_leader(store, "b")
    await other.turn()
    assert other.term == 2


async def test_a_hint_asks_at_once_but_not_more_than_twice_a_second(store):
    """A resigning leader rings; whoever hears it need not wait for the next turn."""
    leader, other = a_leader(store), a_leader(store, "b")
    await leader.turn()
    other.start()
    await settle_down()
    await store.clock.advance(1_000)
    await leader.resign()
    for _ in range(20):
        other.hint()
        await settle_down()
    assert other.term == 2
    assert store.count("elect") == 3
    await other.stop()


async def test_a_hint_that_comes_right_after_a_question_is_not_forgotten(store):
    """The bell of a resignation rings once; whoever has just asked in vain must not wait for its next turn."""
    leader, other = a_leader(store), a_leader(store, "b")
    await leader.turn()
    other.start()
    await settle_down()
    await store.clock.advance(10)
    await leader.resign()
    other.hint()
    await settle_down()
    assert other.term is None, "it asks at most twice a second"
    await store.clock.advance(500)
    assert other.term == 2
    await other.stop()


async def test_a_refused_plan_ends_the_term_whatever_the_clock_says(store):
    leader = a_leader(store)
    await leader.turn()
    leader.doubt("fenced")
    assert leader.term is None


@pytest.mark.parametrize(("ttl_ms", "renew_ms"), [(15_000, 7_500), (15_000, 20_000), (15_000, 0)])
async def test_a_pair_that_cannot_work_is_refused(store, ttl_ms, renew_ms):
    with pytest.raises(InvalidInput, match="cannot be kept by renewing it every"):
        a_leader(store, ttl_ms=ttl_ms, renew_ms=renew_ms)
