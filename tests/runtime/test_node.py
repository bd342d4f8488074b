"""The whole node: all loops together, on a memory store, in virtual time."""

import asyncio
from random import Random

import pytest
from msgspec.structs import replace

from pollux.clock import FakeClock, SystemClock
from pollux.errors import InvalidInput, StoreError, StoreTimeout
from pollux.events import Events, TermWon
from pollux.model import Cause, Interval, Job, NotePut, Once, RunState, drain_key, run_of
from pollux.registry import Registry
from pollux.runtime import NodeRuntime, RuntimeOptions
from pollux.store.contract import JobPut, RunFilter
from pollux.store.memory import MemoryStore
from tests.runtime.fakes import Heard, Spy, a_crew, settle_down

MINUTE = 60_000


@pytest.fixture
async def store():
    clock = FakeClock()
    store = Spy(MemoryStore(clock))
    store.clock = clock
    await store.open()
    yield store
    await store.close()


async def test_an_interval_job_of_ten_minutes_fires_six_times_in_an_hour(store):
    clock, ran = store.clock, []
    registry = Registry()

    async def check(ctx):
        ran.append(ctx.run.due_ms)

    registry.add("check", check)
    start = clock.now_ms() // MINUTE * MINUTE
    job = Job(id="check", handler="check", schedule=Interval(10 * MINUTE, start_ms=start + MINUTE))
    await store.put_jobs([JobPut(job)])
    runtime = a_crew(store, registry, clock)
    await runtime.start()

    for _ in range(60):
        await clock.advance(MINUTE)

    assert ran == [start + MINUTE + n * 10 * MINUTE for n in range(6)]
    done = await store.list_runs(RunFilter(job_id="check", states=(RunState.DONE,)))
    assert [run.due_ms for run in done.runs] == ran[::-1]
    assert runtime.status().fired == 6
    assert runtime.status().start_late.max_ms < 50
    await runtime.stop()


class Works:
    """A handler that works until it is let go, and says what was asked of it."""

    def __init__(self):
        self.started, self.may_end, self.asked = [], asyncio.Event(), []

    async def __call__(self, ctx):
        self.started.append(ctx.run.id)
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.asked.append(ctx.cancel_reason)
            raise
        return "finished"


async def working(store, *ids, work=None, **options):
    work = work or Works()
    registry = Registry()
    registry.add("work", work)
    job = Job(id="work", handler="work")
    await store.put_jobs([JobPut(job)])
    await store.enqueue([run_of(job, store.clock.now_ms(), Cause.ENQUEUED, id=id) for id in ids])
    runtime = a_crew(store, registry, store.clock, **options)
    await runtime.start()
    await settle_down()
    return runtime, work


async def states(store, *ids):
    return [run.state for run in await store.get_runs(ids)]


async def test_draining_lets_handlers_finish_within_the_grace_and_claims_nothing_new(store):
    runtime, work = await working(store, "r1", "r2", seats=1)
    drain = asyncio.ensure_future(runtime.drain())
    await store.clock.advance(20_000)
    assert not drain.done()
    assert runtime.status().is_draining
    [node] = await store.nodes()
    assert (node.draining, node.seats) == (True, 0)
    work.may_end.set()
    await settle_down()
    await drain
    assert await states(store, "r1", "r2") == [RunState.DONE, RunState.READY]
    assert work.started == ["r1"]
    assert await store.nodes() == []
    assert not any(loop.is_alive for loop in runtime.status().loops)


async def test_what_does_not_finish_within_the_grace_goes_back_uncharged(store):
    runtime, work = await working(store, "r1")
    drain = asyncio.ensure_future(runtime.drain())
    await store.clock.advance(24_999)
    assert work.asked == []
    await store.clock.advance(1)
    await drain
    assert work.asked == ["the node is shutting down"]
    [run] = await store.get_runs(["r1"])
    assert run.state is RunState.READY
    assert (run.attempt, run.lease_losses, run.token) == (0, 0, run.token)


async def test_a_handler_that_ignores_the_drain_is_handed_back_all_the_same(store):
    release = asyncio.Event()

    async def deaf(ctx):
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    runtime, _ = await working(store, "r1", work=deaf, grace_ms=1_000)
    drain = asyncio.ensure_future(runtime.drain())
    await store.clock.advance(3_000)
    await drain
    assert await states(store, "r1") == [RunState.READY]
    release.set()
    await settle_down()
    assert await states(store, "r1") == [RunState.READY], "what came after it was handed back counts no more"


async def test_leases_are_renewed_during_the_grace(store):
    runtime, work = await working(store, "r1", grace_ms=120_000)
    drain = asyncio.ensure_future(runtime.drain())
    await store.clock.advance(100_000)
    [run] = await store.get_runs(["r1"])
    assert run.lease_until_ms > store.clock.now_ms()
    assert run.lease_losses == 0
    work.may_end.set()
    await settle_down()
    await drain
    assert await states(store, "r1") == [RunState.DONE]


async def test_a_second_drain_does_not_wait_for_the_grace(store):
    runtime, work = await working(store, "r1")
    first = asyncio.ensure_future(runtime.drain())
    await store.clock.advance(1_000)
    assert not first.done()
    await runtime.drain()
    await first
    assert work.asked == ["the node is shutting down"]
    assert await states(store, "r1") == [RunState.READY]


async def test_draining_gives_the_term_away_within_a_second(store):
    runtime, work = await working(store, "r1")
    other = a_crew(store, Registry(), store.clock, node_id="node-2")
    await other.start()
    await store.clock.advance(2_000)
    assert runtime.status().term == 1
    assert other.status().term is None
    drain = asyncio.ensure_future(runtime.drain())
    await store.clock.advance(1_000)
    assert other.status().term == 2
    await store.put_jobs([JobPut(Job(id="now", handler="work", schedule=Once()))])
    await store.clock.advance(100)
    assert other.status().fired == 1, "the new leader is at work at once"
    work.may_end.set()
    await settle_down()
    await drain
    await other.stop()


@pytest.mark.parametrize("options", [{"seats": 1}, {"runs": False}])
async def test_a_node_that_hears_no_bell_takes_a_term_that_is_given_away_within_a_second(store, options):
    """All its seats are taken, or it never claims: so it does not wait where it would be rung."""
    leader = a_crew(store, Registry(), store.clock, runs=False)
    await leader.start()
    await settle_down()
    other, _ = await working(store, "a", node_id="node-2", **options)
    assert (leader.leader.term, other.pool.busy) == (1, options.get("seats", 0))
    await store.clock.advance(7_500)
    await leader.stop()
    assert other.leader.term is None

    await store.clock.advance(1_000)

    assert other.leader.term == 2
    await other.stop()


@pytest.mark.parametrize("phase_ms", [0, 300, 600, 900])
async def test_where_a_bell_is_heard_late_a_term_that_is_given_away_is_taken_within_a_second_all_the_same(
    store, phase_ms
):
    """A store that asks now and then whether anybody wrote: whoever waits there does not rely on being rung."""
    store.capabilities = replace(store.capabilities, rings=False)
    store.faults["wake"] = [StoreTimeout("it is heard too late")]
    leader = a_crew(store, Registry(), store.clock, runs=False)
    await leader.start()
    await settle_down()
    other = a_crew(store, Registry(), store.clock, node_id="node-2")
    await other.start()
    await store.clock.advance(7_500 + phase_ms)
    await leader.stop()
    assert other.leader.term is None

    await store.clock.advance(1_000)

    assert other.leader.term == 2
    await other.stop()


async def test_a_bell_that_rings_between_two_claims_is_missed_for_a_second_at_most(store):
    """The node had waited for long, got a run, and is about to wait again."""
    leader = a_crew(store, Registry(), store.clock, runs=False)
    await leader.start()
    await settle_down()
    other, work = await working(store, node_id="node-2")
    work.may_end.set()
    [job] = await store.get_jobs(["work"])
    await store.clock.advance(7_500)
    store.faults["claim"] = [sent := asyncio.Event()]
    await store.enqueue([run_of(job, store.clock.now_ms(), Cause.ENQUEUED, id="a")])
    await settle_down()
    assert work.started == ["a"]
    await leader.stop()
    sent.set()
    await settle_down()
    assert other.leader.term is None

    await store.clock.advance(1_000)

    assert other.leader.term == 2
    await other.stop()


async def test_a_dead_leader_is_replaced_within_its_term_and_three_seconds(store):
    runtime, _ = await working(store)
    other = a_crew(store, Registry(), store.clock, node_id="node-2")
    await other.start()
    await store.clock.advance(6_000)
    await runtime.leader.stop()
    await store.clock.advance(18_000)
    assert runtime.status().term is None
    assert other.status().term == 2
    await other.stop()
    await runtime.stop()


async def test_a_store_that_is_down_does_not_keep_a_node_from_leaving(store):
    runtime, work = await working(store, "r1", grace_ms=1_000)
    down = StoreError("down")
    for verb in ("settle", "resign", "leave", "renew", "beat", "claim", "feed", "elect"):
        store.faults[verb] = [down] * 1_000
    drain = asyncio.ensure_future(runtime.drain())
    await store.clock.advance(10_000)
    await drain
    assert work.asked == ["the node is shutting down"]
    for verb in store.faults:
        store.faults[verb].clear()


async def test_a_cancel_request_rings_the_owner(store):
    """It need not wait for the next renewal: the bell ends the wait in claim, and the leases are looked at."""
    runtime, work = await working(store, "r1")
    await store.clock.advance(2_000)
    await store.cancel(run_ids=["r1"], reason="ann said so")
    await store.clock.advance(1_000)
    assert work.asked == ["ann said so"]
    assert await states(store, "r1") == [RunState.CANCELLED]
    await runtime.stop()


async def test_an_idle_node_costs_less_than_one_call_a_second(store):
    runtime, _ = await working(store)
    await store.clock.advance(60_000)
    store.calls.clear()
    await store.clock.advance(600_000)
    assert len(store.calls) < 600
    assert store.count("advance") == 0
    await runtime.stop()


async def test_a_node_that_only_runs_never_leads_and_one_that_only_plans_never_claims(store):
    runner, _ = await working(store, plans=False)
    planner = a_crew(store, Registry(), store.clock, node_id="node-2", runs=False)
    await planner.start()
    await store.clock.advance(20_000)
    assert runner.status().term is None
    assert planner.status().term == 1
    assert {sent["node"] for _, sent in store.sent("claim")} == {"node-1"}
    seats = {node.id: (node.seats, node.leads, node.plans) for node in await store.nodes()}
    assert seats == {"node-1": (10, 0, False), "node-2": (0, 1, True)}
    await runner.stop()
    await planner.stop()


@pytest.mark.parametrize("node", [None, "node-1"])
async def test_claims_can_be_stopped_and_go_on(store, node):
    runtime, work = await working(store)
    await store.put_notes([NotePut(drain_key(node), {})])
    runtime.reread_stops()
    await settle_down()
    [job] = await store.get_jobs(["work"])
    await store.enqueue([run_of(job, store.clock.now_ms(), Cause.ENQUEUED, id="r1")])
    await store.clock.advance(10_000)
    assert work.started == []
    assert runtime.status().is_paused
    [seen] = await store.nodes()
    assert seen.draining, "others see it"
    await store.put_notes([NotePut(drain_key(node))])
    runtime.reread_stops()
    await settle_down()
    [seen] = await store.nodes()
    assert not seen.draining
    assert work.started == ["r1"]
    await runtime.stop()


async def test_the_pool_can_be_resized_while_it_works(store):
    runtime, work = await working(store, "r1", "r2", "r3", seats=1)
    assert work.started == ["r1"]
    runtime.retune(RuntimeOptions(seats=3))
    await settle_down()
    assert work.started == ["r1", "r2", "r3"]
    [node] = await store.nodes()
    assert node.seats == 3
    await runtime.stop()


async def test_progress_is_what_running_handlers_said_last(store):
    go = asyncio.Event()

    async def tell(ctx):
        ctx.progress(3, of=10)
        await go.wait()

    runtime, _ = await working(store, "r1", work=tell)
    assert runtime.progress() == {"work": "30% (3 of 10)"}
    go.set()
    await settle_down()
    assert runtime.progress() == {}
    await runtime.stop()


async def test_a_run_whose_worker_vanished_is_run_by_another_within_its_lease_and_two_seconds(store):
    runtime, work = await working(store, "r1", plans=False)
    other_work = Works()
    registry = Registry()
    registry.add("work", other_work)
    other = a_crew(store, registry, store.clock, node_id="node-2", plans=False)
    for loop in (runtime.dispatcher, runtime.settler, runtime.timeouts, runtime.beat):
        await loop.stop()
    await runtime.renewer.stop()
    await other.start()
    await store.clock.advance(29_000)
    assert other_work.started == []
    await store.clock.advance(3_000)
    assert other_work.started == ["r1"]
    other_work.may_end.set()
    await settle_down()
    [run] = await store.get_runs(["r1"])
    assert (run.state, run.fence, run.lease_losses) == (RunState.DONE, 2, 1)
    work.may_end.set()
    await settle_down()
    await other.stop()


async def test_two_nodes_never_run_the_same_run(store):
    ran = []

    async def note(ctx):
        ran.append(ctx.run.id)

    runtime, _ = await working(store, work=note, seats=3)
    registry = Registry()
    registry.add("work", note)
    other = a_crew(store, registry, store.clock, node_id="node-2", seats=3)
    await other.start()
    [job] = await store.get_jobs(["work"])
    for batch in range(20):
        ids = [f"{batch}-{n}" for n in range(10)]
        await store.enqueue([run_of(job, store.clock.now_ms(), Cause.ENQUEUED, id=id) for id in ids])
        await store.clock.advance(50)
    await store.clock.advance(1_000)
    assert len(ran) == len(set(ran)) == 200
    assert runtime.status().claimed + other.status().claimed == 200
    await runtime.stop()
    await other.stop()


@pytest.mark.parametrize(
    "options",
    [
        {"seats": 0},
        {"lease_ms": 10},
        {"leader_ttl_ms": 10_000},
        {"grace_ms": -1},
        {"beat_ttl_ms": 20_000},
        {"keep_per_job": 0},
    ],
)
def test_options_that_cannot_work_are_refused_where_they_are_made(options):
    with pytest.raises(InvalidInput):
        RuntimeOptions(**options)


async def test_with_real_clocks_and_threads_a_node_starts_works_and_leaves():
    clock, store, registry, events = SystemClock(), MemoryStore(), Registry(), Events()
    await store.open()
    won = Heard(events, TermWon)
    ran = asyncio.Event()

    async def check(ctx):
        ran.set()

    registry.add("check", check)
    await store.put_jobs([JobPut(Job(id="check", handler="check", schedule=Interval(1_000)))])
    runtime = NodeRuntime(store, registry, clock=clock, events=events, dice=Random(2), node_id="node-1")
    await runtime.start()
    async with asyncio.timeout(60):
        await ran.wait()
    await runtime.drain()
    assert len(won.all) == 1
    assert (await store.counts()).leased == 0
    await store.close()
