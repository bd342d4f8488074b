"""A leader whose plans do not go through must not keep the term from a node that can plan."""

import pytest

from pollux.clock import FakeClock
from pollux.errors import StoreRefused
from pollux.events import Events, TermLost
from pollux.model import Interval, Job
from pollux.registry import Registry
from pollux.runtime.leader import BARRED_TERMS
from pollux.runtime.timekeeper import FAILING_TERMS
from pollux.store.contract import JobPut
from pollux.store.memory import MemoryStore
from tests.runtime.fakes import Heard, Spy, a_crew, settle_down

TTL_MS = 15_000
SLACK_MS = 5_000  # the longest rest of a loop that fails, and a second for the term


class Weak:
    """A store of which this node may not use one table."""

    def __init__(self, inner):
        self.inner, self.is_refused = inner, True

    def __getattr__(self, name):
        return getattr(self.inner, name)

    async def advance(self, term, plan, **options):
        if self.is_refused:
            raise StoreRefused("permission denied for table line; let the owner grant it")
        return await self.inner.advance(term, plan, **options)


@pytest.fixture
async def store():
    clock = FakeClock()
    store = Spy(MemoryStore(clock))
    store.clock = clock
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def weak(store):
    """A node that leads, and cannot write a plan."""
    await store.put_jobs([JobPut(Job(id="tick", handler="none", schedule=Interval(1_000)))])
    runtime = a_crew(Weak(store), Registry(), store.clock, runs=False, events=Events())
    await runtime.start()
    await settle_down()
    assert runtime.leader.term == 1
    yield runtime
    await runtime.stop()


async def test_another_one_leads_after_two_terms_and_what_is_due_fires(store, weak):
    lost = Heard(weak.events, TermLost)
    other = a_crew(store, Registry(), store.clock, node_id="node-2", runs=False)
    await other.start()
    await store.clock.advance(FAILING_TERMS * TTL_MS - SLACK_MS)
    assert (weak.leader.term, other.leader.term) == (1, None), "a passing trouble is no reason"

    await store.clock.advance(2 * SLACK_MS)

    assert (weak.leader.term, other.leader.term) == (None, 2)
    assert other.status().fired > 0
    [said] = lost.all
    assert "no plan went through for" in said.why
    assert "permission denied for table line" in said.why
    await store.clock.advance(3 * BARRED_TERMS * TTL_MS)
    assert other.leader.term == 2, "who stands again finds that another one leads"
    await other.stop()


async def test_where_nobody_else_leads_it_stands_again_and_goes_on_once_it_can(store, weak):
    await store.clock.advance(FAILING_TERMS * TTL_MS + SLACK_MS)
    assert weak.leader.term is None
    weak.store.is_refused = False

    await store.clock.advance(BARRED_TERMS * TTL_MS + SLACK_MS)

    assert weak.leader.term is not None
    assert weak.status().fired > 0


async def test_a_question_that_was_under_way_when_it_stepped_aside_wins_it_nothing(store, weak):
    """The leader asks for its term all the time; an answer that comes later must not bring it back."""
    await weak.leader.yield_term("it cannot plan")
    await store.elect(weak.leader.node_id, ttl_ms=TTL_MS)  # as if it had been answered behind that
    await weak.leader._answered(await store.elect(weak.leader.node_id, ttl_ms=TTL_MS), store.clock.mono_ms())

    assert weak.leader.term is None
    assert (await store.elect("node-2", ttl_ms=TTL_MS)).holder == "node-2"
