"""The leader's term: when a node leads, and how long it trusts the term."""

import asyncio

import pytest

from pollux.clock import FakeClock
from pollux.errors import InvalidInput, StoreTimeout
from pollux.events import Events, TermLost, TermWon
from pollux.runtime.leader import Leader
from pollux.simulate import VirtualClock, VirtualTime
from pollux.store.memory import MemoryStore
from pollux.testing.faults import FaultyStore
from tests.runtime.fakes import LOST, Heard, Spy, settle_down


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


@pytest.mark.parametrize("since", [None, 999, 1_000, 1_700])
async def test_who_was_not_listening_long_before_it_asked_asks_again_within_a_second(store, since):
    """A bell that rang in between was not heard."""
    leader, other = a_leader(store), a_leader(store, "b")
    await leader.turn()
    await store.clock.advance(2_000)
    other.listening_since = lambda: None if since is None else store.clock.mono_ms() - since

    rest = await other.turn()

    assert rest.ms == (5_000 if since is not None and since >= 1_000 else 950)


async def test_the_second_is_counted_from_the_question_but_a_slow_store_is_not_asked_on_and_on(store):
    leader, other = a_leader(store), a_leader(store, "b")
    await leader.turn()
    other.listening_since = lambda: None
    for took_ms, rests_ms in ((300, 650), (2_000, 475)):
        store.faults["elect"] = [answers := asyncio.Event()]
        turn = asyncio.ensure_future(other.turn())
        await store.clock.advance(took_ms)
        answers.set()

        assert (await turn).ms == rests_ms


async def test_who_stops_listening_while_it_rests_does_not_rest_for_long(store):
    """However often it begins and ends to listen, it asks about once a second."""
    leader, other = a_leader(store), a_leader(store, "b")
    await leader.turn()
    await store.clock.advance(2_000)
    since = 0.0
    other.listening_since = lambda: since
    other.start()
    await settle_down()
    await store.clock.advance(2_000)
    await leader.resign()
    since = store.clock.mono_ms()
    other.listening_ended()
    await settle_down()

    assert other.term == 2


async def test_who_listens_with_gaps_asks_about_once_a_second(store):
    leader, other = a_leader(store), a_leader(store, "b")
    await leader.turn()
    await store.clock.advance(1_000)
    other.listening_since = store.clock.mono_ms
    other.start()
    for _ in range(80):
        await store.clock.advance(50)
        other.listening_ended()
    assert 4 <= store.count("elect") - 1 <= 5
    await other.stop()


async def test_a_refused_plan_ends_the_term_whatever_the_clock_says(store):
    leader = a_leader(store)
    await leader.turn()
    leader.drop_term("fenced")
    assert leader.term is None


async def test_a_term_that_is_refused_again_and_again_is_asked_for_at_most_twice_a_second(store):
    """A store that elects us and fences us at the same time is out of its mind: that must not become a storm."""
    leader = a_leader(store)
    leader.on_change.append(lambda: leader.term and leader.wins < 50 and leader.drop_term("fenced"))
    leader.start()
    for _ in range(40):
        await store.clock.advance(100)
    assert 7 <= store.count("elect") <= 9
    await leader.stop()


async def test_who_looked_while_trust_had_lapsed_is_told_when_it_is_back(store):
    """The term is still ours, under the same number; whoever rests because we seemed to lead no more must hear it."""
    leader, told = a_leader(store), []
    await leader.turn()
    leader.on_change.append(lambda: told.append(leader.term))
    await store.clock.advance(14_500)
    assert leader.term is None
    await leader.turn()
    assert told == [1]
    await store.clock.advance(5_000)
    await leader.turn()
    assert told == [1], "an ordinary renewal is no news"


async def test_since_when_we_lead_is_told_by_the_clock_of_the_store(store):
    leader = a_leader(store)
    await leader.turn()
    won_ms = store.clock.now_ms()
    await store.clock.advance(5_000)
    await leader.turn()
    assert leader.since_ms == won_ms


async def test_a_term_that_was_won_without_our_hearing_of_it_is_given_up(store):
    """The answer was lost, and then we leave: nobody shall wait for the end of a term that nobody holds."""
    leader, other = a_leader(store), a_leader(store, "b")
    store.faults["elect"] = [LOST]
    with pytest.raises(StoreTimeout):
        await leader.turn()
    await leader.resign()
    await other.turn()
    assert other.term is not None


async def test_who_heard_that_another_leads_has_nothing_to_give_up(store):
    leader, other = a_leader(store), a_leader(store, "b")
    await leader.turn()
    await other.turn()
    await other.resign()
    assert (store.count("elect"), store.count("resign")) == (2, 0)


@pytest.mark.parametrize(
    ("ttl_ms", "renew_ms", "what"),
    [
        (15_000, 6_001, "leaves a leader of 15s no second try"),
        (15_000, 20_000, "leaves a leader of 15s no second try"),
        (15_000, 249, "shorter than a store may take to answer"),
        (15_000, 0, "shorter than a store may take to answer"),
        (600, 250, "leaves a leader of 600ms no second try"),
    ],
)
async def test_a_pair_that_cannot_work_is_refused(store, ttl_ms, renew_ms, what):
    with pytest.raises(InvalidInput, match=what):
        a_leader(store, ttl_ms=ttl_ms, renew_ms=renew_ms)


async def test_the_tightest_pairs_that_work_are_taken(store):
    for ttl_ms, renew_ms in ((15_000, 6_000), (625, 250), (3_600_000, 250)):
        leader = a_leader(store, ttl_ms=ttl_ms, renew_ms=renew_ms)
        # A renewal that hangs for its whole time leaves a second one some time before trust ends.
        assert 0 <= leader.margin_ms < ttl_ms - 2 * renew_ms


# a store that hangs, in virtual time


class World:
    """Leaders on one memory store, on a loop whose time is virtual; what hangs there hangs for ever."""

    def __init__(self) -> None:
        self.time = VirtualTime(asyncio.get_running_loop())
        self.clock = VirtualClock(self.time, 1_000_000)
        self.memory = MemoryStore(self.clock)
        self.never = asyncio.Event()
        self.leaders: list[Leader] = []

    async def leader(self, node):
        """A leader with a line of its own to the store, which can be cut."""
        line, events = FaultyStore(self.memory), Events()
        leader = Leader(line, node, clock=self.clock, events=events)
        leader.line, leader.heard = line, Heard(events, TermWon, TermLost)
        leader.start()
        self.leaders.append(leader)
        await asyncio.sleep(0.001)
        return leader

    async def __aenter__(self):
        self.time.install()
        await self.memory.open()
        return self

    async def __aexit__(self, *_):
        self.never.set()
        for leader in self.leaders:
            await leader.stop()
        self.time.restore()


async def test_one_question_that_hangs_costs_nothing():
    async with World() as world:
        leader = await world.leader("a")
        leader.line.delay("elect", world.never)
        for _ in range(300):
            await asyncio.sleep(0.1)
            assert leader.term == 1
        assert leader.line.struck == ["elect"]
        assert leader.errors == 1


async def test_a_store_that_hangs_ends_trust_on_time_and_never_wedges_the_loop():
    async with World() as world:
        leader = await world.leader("a")
        leader.line.delay("elect", world.never, times=1_000)
        await asyncio.sleep(13.99)
        assert leader.term == 1
        await asyncio.sleep(0.02)
        assert leader.term is None, "trust ends a second before the term, whatever the question under way does"
        await asyncio.sleep(2)
        assert [lost.why for lost in leader.heard.of(TermLost)] == ["the store did not answer in time"]
        before = leader.turns
        await asyncio.sleep(60)
        assert leader.turns - before >= 7, "each question is given up after 5 s, the rest is 3 s at most"
        leader.line.mend()
        await asyncio.sleep(9)
        assert leader.term == 2


async def test_a_cut_off_leader_is_replaced_when_its_term_ends_and_never_beside_it():
    """The whole point: at no instant do two of them believe that they lead."""
    async with World() as world:
        leaders = [await world.leader(node) for node in "abc"]
        [first] = [leader for leader in leaders if leader.term]
        first.line.delay("elect", world.never, times=1_000)
        cut = world.time.time()
        while not any(leader.term for leader in leaders if leader is not first):
            assert sum(leader.term is not None for leader in leaders) <= 1
            await asyncio.sleep(0.01)
        assert first.term is None
        assert 10 <= world.time.time() - cut <= 15.1, "within the ttl, counted from its last renewal"
        first.line.mend()
        await asyncio.sleep(30)
        assert [leader.term for leader in leaders].count(2) == 1


async def test_answers_that_are_always_lost_leave_nobody_believing():
    """The term is taken each time, and nobody hears of it: the others wait, and nobody plans on a guess."""
    async with World() as world:
        leader = await world.leader("a")
        leader.line.lose_answer("elect", times=1_000)
        await asyncio.sleep(20)
        assert leader.term is None
        leader.line.mend()
        await asyncio.sleep(4)
        assert leader.term == 1, "the store kept it for us all along"
        assert [won.term for won in leader.heard.of(TermWon)] == [1, 1]
