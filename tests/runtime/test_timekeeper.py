"""Everything due is written, once, and nothing is written in vain."""

import asyncio

import pytest
from msgspec.structs import replace

from pollux.clock import FakeClock, StoreClock
from pollux.errors import StoreError, StoreTimeout
from pollux.events import ClockJumped, Events, FiringSkipped, RunHeld, RunsFired
from pollux.model import Cause, Done, Interval, Job, Node, NotePut, Once, Plan, RunState, run_of
from pollux.plan import Planner
from pollux.runtime.leader import Leader
from pollux.runtime.loop import Rest
from pollux.runtime.timekeeper import Timekeeper
from pollux.store.contract import JobPut
from pollux.store.memory import MemoryStore
from pollux.testing.conformance.builders import T0, a_run, claim, settlement
from pollux.testing.faults import HastyWaits, NoWaits
from tests.runtime.fakes import LOST, Heard, Spy, settle_down

MINUTE = 60_000


class Office:
    """A leader's side of a node: nothing turns unless it is told to."""

    def __init__(self, *, wrap=None, shift_ms=0, **options):
        self.clock, self.events = FakeClock(), Events()
        self.store_clock = Shifted(self.clock, shift_ms)
        memory = MemoryStore(self.store_clock)
        self.store = Spy(wrap(memory) if wrap else memory)
        self.leader = Leader(self.store, "a", clock=self.clock, events=self.events)
        self.time = StoreClock(self.clock, self.events)
        self.planners = []
        self.timekeeper = Timekeeper(
            self.store, self.leader, self.time, self._planner, clock=self.clock, events=self.events, **options
        )

    def _planner(self):
        self.planners.append(Planner())
        return self.planners[-1]

    async def open(self, *jobs, leads=True):
        await self.store.open()
        if jobs:
            await self.store.put_jobs([JobPut(job) for job in jobs])
        if leads:
            await self.leader.turn()
        self.leader.on_change.append(self.timekeeper.wake)
        return self

    async def runs(self):
        return [run.id for run in (await self.store.inner.list_runs()).runs]

    async def quiet(self):
        """Turn until nothing is left to do at once: until the next turn would wait."""
        for _ in range(20):
            waiting = asyncio.ensure_future(self.timekeeper.turn())
            await settle_down()
            if not waiting.done():
                self.timekeeper.interrupt()
                await waiting
                return
            await waiting
        raise AssertionError("it never came to rest")


def every(minutes, id="job", **options):
    return Job(id=id, handler="h", schedule=Interval(minutes * MINUTE), **options)


async def test_without_a_term_it_does_nothing():
    office = await Office().open(every(1), leads=False)
    assert await office.timekeeper.turn() == Rest.STANDBY
    assert {verb for verb, _, _ in office.store.calls} == {"open", "put_jobs"}


async def test_a_new_term_wakes_it_and_a_new_job_fires_at_once():
    office = await Office().open(every(10), leads=False)
    heard = Heard(office.events, RunsFired)
    office.timekeeper.start()
    office.leader.start()
    await settle_down()
    assert len(await office.runs()) == 1
    assert [(event.count, event.late_ms_max) for event in heard.all] == [(1, 0)]
    await office.timekeeper.stop()
    await office.leader.stop()


async def test_an_idle_turn_writes_nothing():
    office = await Office().open(every(10))
    await office.quiet()
    written = office.store.count("advance")
    office.timekeeper.start()
    office.leader.start()
    await office.clock.advance(2 * MINUTE)
    assert office.store.count("advance") == written
    assert office.store.count("feed") < 20
    await office.timekeeper.stop()
    await office.leader.stop()


async def test_a_plan_without_an_answer_is_sent_again_as_it_was():
    office = await Office().open(every(10))
    office.store.faults["advance"] = [LOST, LOST, StoreTimeout("none"), StoreTimeout("none")]
    for _ in range(4):
        with pytest.raises(StoreTimeout):
            await office.timekeeper.turn()
    await office.timekeeper.turn()
    await office.quiet()
    plans = [args[1] for args, _ in office.store.sent("advance")]
    assert all(plan is plans[0] for plan in plans[:5])
    assert len(office.planners) == 1
    assert len(await office.runs()) == 1


async def test_a_fenced_plan_ends_the_term_and_its_memory():
    office = await Office().open(every(10))
    await office.quiet()
    other = await office.store.inner.elect("a", ttl_ms=15_000)
    assert other.number == office.leader.term
    await office.store.inner.resign("a", term=other.number)
    await office.store.inner.elect("b", ttl_ms=15_000)
    await office.store.put_jobs([JobPut(every(5, "new"))])
    before = len(await office.runs())

    assert await office.timekeeper.turn() == Rest.NONE
    assert office.leader.term is None
    assert office.timekeeper.planner is None
    assert len(await office.runs()) == before
    assert office.timekeeper.fenced == 1
    await office.clock.advance(15_001)
    await office.leader.turn()
    office.timekeeper.start()
    await settle_down()
    assert len(office.planners) == 2
    assert any(run.startswith("new@") for run in await office.runs())
    await office.timekeeper.stop()


async def test_a_refused_plan_of_an_older_term_does_not_cost_the_one_that_was_won_meanwhile():
    """The clock leapt: our term ended in the store, and we won the next before the plan of the old one was answered."""
    office = await Office().open(every(10))
    await office.quiet()
    await office.store.inner.resign("a", term=1)
    await office.leader.turn()
    assert office.leader.term == 2

    planner = office.timekeeper.planner
    assert await office.timekeeper._write(1, planner, Plan(notes=(NotePut("x", 1),))) == Rest.NONE
    assert office.leader.term == 2
    assert await office.store.notes("x") == []


@pytest.mark.parametrize("verb", ["feed", "get_jobs", "due", "advance", "notes"])
async def test_any_other_error_throws_the_memory_away_and_nothing_is_lost(verb):
    office = await Office().open(every(10))
    office.store.faults[verb] = [StoreError("broken")]
    office.timekeeper.start()
    await office.clock.advance(5_000)
    assert office.timekeeper.errors == 1
    assert len(office.planners) == 2, "what was half applied is not trusted"
    assert len(await office.runs()) == 1
    await office.timekeeper.stop()


async def test_a_term_that_can_no_longer_be_trusted_is_not_used():
    office = await Office().open(every(1))
    await office.quiet()
    written = office.store.count("advance")
    await office.clock.advance(14_000)
    assert await office.timekeeper.turn() == Rest.STANDBY
    assert office.store.count("advance") == written
    assert office.timekeeper.planner is None


async def test_trigger_ends_the_wait():
    office = await Office().open(every(10))
    await office.quiet()
    office.timekeeper.start()
    await settle_down()
    turns, reads = office.timekeeper.turns, office.store.count("feed")
    office.timekeeper.trigger()
    await settle_down()
    assert office.timekeeper.turns > turns
    assert office.store.count("feed") > reads
    await office.timekeeper.stop()


async def test_what_arrives_ends_the_wait_and_is_released_at_once():
    office = await Office().open(job := every(10, "gated", target="host"))
    await office.store.beat(Node("a", handlers=("h",)), ttl_ms=45_000)
    await office.quiet()
    office.timekeeper.start()
    await office.clock.advance(1_000)
    await office.store.enqueue([run_of(job, office.clock.now_ms(), Cause.ENQUEUED, id="mine")])
    await settle_down()
    [run] = await office.store.inner.get_runs(["mine"])
    assert run.state is RunState.READY
    await office.timekeeper.stop()


async def test_after_a_write_it_rests_twenty_milliseconds_where_writes_are_dear():
    office = await Office(turn_rest_ms=20).open(every(10))
    await office.timekeeper.turn()
    office.store.calls.clear()
    await office.store.put_jobs([JobPut(every(10, "next"))])
    rest = await office.timekeeper.turn()
    while rest == Rest.NONE:
        rest = await office.timekeeper.turn()
    assert rest.ms == 20


@pytest.mark.parametrize(("count", "rest_ms"), [(3, 20), (60, 3)], ids=["a few", "a crowd"])
async def test_where_writes_are_cheap_it_rests_less_only_if_many_fire(count, rest_ms):
    """A turn for each single firing would cost more than it saves."""
    office = await Office().open(*(Job(id=f"{n}", handler="h", schedule=Once()) for n in range(count)))
    rest = await office.timekeeper.turn()
    while rest == Rest.NONE:
        rest = await office.timekeeper.turn()
    assert rest.ms == rest_ms


class DearWrites(Spy):
    """A store whose writes cost a sync each."""

    def __init__(self, store):
        super().__init__(store)
        self.capabilities = replace(store.capabilities, writes_are_cheap=False)


@pytest.mark.parametrize(
    ("count", "rest_ms"), [(3, 20), (60, 50), (900, 20)], ids=["what comes alone", "a thin stream", "a crowd"]
)
async def test_where_writes_are_dear_the_firings_of_a_thin_stream_share_their_turns(count, rest_ms):
    jobs = [Job(id=f"{n}", handler="h", schedule=Once()) for n in range(count)]
    office = await Office(wrap=DearWrites).open(*jobs)
    rest = await office.timekeeper.turn()
    while rest == Rest.NONE:
        rest = await office.timekeeper.turn()
    assert rest.ms == rest_ms


async def rest_after(office, ends, *, at_a_time=10):
    """How long it rests after so many runs, which somebody asked for, ended, in entries of that many each."""
    store = office.store.inner
    await store.enqueue([a_run(f"r{n}", "asked") for n in range(ends)])
    runs = await claim(store, ends)
    for n in range(0, ends, at_a_time):
        await store.settle([settlement(run, Done(failed=False)) for run in runs[n : n + at_a_time]])
    rest = await office.timekeeper.turn()
    while rest == Rest.NONE:
        rest = await office.timekeeper.turn()
    return rest.ms


@pytest.mark.parametrize(
    ("ends", "at_a_time", "rest_ms"),
    [(49, 10, 20), (50, 10, 100), (100, 1, 20)],
    ids=["a few ends", "a rush of ends", "more than were read"],
)
async def test_where_writes_are_dear_nobody_waits_for_the_books_of_a_rush(ends, at_a_time, rest_ms):
    office = await Office(wrap=DearWrites).open(Job(id="asked", handler="h"))
    await office.quiet()
    assert await rest_after(office, ends, at_a_time=at_a_time) == rest_ms


@pytest.mark.parametrize(("due_in_ms", "rest_ms"), [(60, 60), (5, 20)])
async def test_the_rest_after_a_rush_does_not_oversleep_a_due_time(due_in_ms, rest_ms):
    soon = Job(id="soon", handler="h", schedule=Once(at_ms=T0 + due_in_ms))
    office = await Office(wrap=DearWrites).open(Job(id="asked", handler="h"), soon)
    await office.quiet()
    assert await rest_after(office, 50) == rest_ms


async def rest_after_puts(office, count):
    """How long it rests after so many jobs, none of which is due soon, were added one by one."""
    for n in range(count):
        await office.store.inner.put_jobs([JobPut(Job(id=f"new{n}", handler="h", schedule=Once(at_ms=T0 + MINUTE)))])
    rest = await office.timekeeper.turn()
    while rest == Rest.NONE:
        rest = await office.timekeeper.turn()
    return rest.ms


@pytest.mark.parametrize(
    ("puts", "rest_ms"), [(9, 20), (10, 50), (100, 20)], ids=["a few puts", "a rush of puts", "more than were read"]
)
async def test_where_writes_are_dear_jobs_that_are_added_in_a_rush_share_their_turns(puts, rest_ms):
    office = await Office(wrap=DearWrites).open(Job(id="asked", handler="h"))
    await office.quiet()
    assert await rest_after_puts(office, puts) == rest_ms


async def test_where_writes_are_cheap_a_rush_of_puts_is_as_usual():
    office = await Office().open(Job(id="asked", handler="h"))
    await office.quiet()
    assert await rest_after_puts(office, 10) == 20


@pytest.mark.parametrize(("due_in_ms", "rest_ms"), [(30, 30), (5, 20)])
async def test_the_rest_after_a_rush_of_puts_does_not_oversleep_a_due_time(due_in_ms, rest_ms):
    soon = Job(id="soon", handler="h", schedule=Once(at_ms=T0 + due_in_ms))
    office = await Office(wrap=DearWrites).open(Job(id="asked", handler="h"), soon)
    await office.quiet()
    assert await rest_after_puts(office, 10) == rest_ms


async def test_a_burst_of_puts_is_learned_in_few_turns_and_what_is_due_meanwhile_is_fired_in_time():
    """Five hundred a second for a second, and a job that is due in the middle of it."""
    due_ms = T0 + 512
    soon = Job(id="soon", handler="h", schedule=Once(at_ms=due_ms))
    office = await Office(wrap=DearWrites).open(soon)
    office.leader.start()
    office.timekeeper.start()
    await settle_down()
    plans = office.timekeeper.plans
    for n in range(500):
        await office.store.inner.put_jobs([JobPut(Job(id=f"n{n}", handler="h", schedule=Once(at_ms=T0 + MINUTE)))])
        await office.clock.advance(2)

    assert office.timekeeper.plans - plans <= 1_000 / 50 + 10
    [run] = (await office.store.inner.list_runs()).runs
    assert (run.job_id, run.due_ms) == ("soon", due_ms)
    assert office.timekeeper.late.seen().sum_ms <= 20
    await office.timekeeper.stop()
    await office.leader.stop()


async def test_a_rush_with_a_firing_in_it_is_no_mere_bookkeeping():
    due = Job(id="due", handler="h", schedule=Once())
    office = await Office(wrap=DearWrites).open(Job(id="asked", handler="h"))
    await office.quiet()
    await office.store.inner.put_jobs([JobPut(due)])
    assert await rest_after(office, 50) == 20


async def test_a_due_time_is_not_overslept_in_the_rest():
    office = await Office(turn_rest_ms=1_000).open(
        Job(id="now", handler="h", schedule=Once()), Job(id="soon", handler="h", schedule=Once(at_ms=1_800_000_000_300))
    )
    rest = await office.timekeeper.turn()
    while rest == Rest.NONE:
        rest = await office.timekeeper.turn()
    assert rest.ms == 300


async def test_a_store_that_returns_too_early_is_not_asked_in_a_hot_loop():
    office = await Office(wrap=HastyWaits).open(every(10))
    office.timekeeper.start()
    office.leader.start()
    await office.clock.advance(MINUTE)
    assert office.store.count("feed") <= 640
    await office.timekeeper.stop()
    await office.leader.stop()


async def test_a_store_that_cannot_wait_is_asked_once_a_second_and_fires_in_time():
    office = await Office(wrap=NoWaits).open(every(1))
    office.timekeeper.start()
    office.leader.start()
    await office.clock.advance(3 * MINUTE)
    assert office.store.count("feed") <= 200
    assert len(await office.runs()) == 1, "nobody runs it, and it overlaps by skip"
    assert office.timekeeper.late.seen().max_ms <= 5
    await office.timekeeper.stop()
    await office.leader.stop()


async def test_skipped_firings_and_held_runs_are_told():
    office = await Office().open(every(1, target="host"))
    heard = Heard(office.events, FiringSkipped, RunHeld)
    await office.store.put_notes([NotePut("stop:target:host", {"reason": "moving"})])
    office.timekeeper.start()
    office.leader.start()
    await office.clock.advance(3 * MINUTE)
    reasons = {event.reason for event in heard.of(FiringSkipped)}
    assert reasons == {"paused"}
    assert office.timekeeper.skipped >= 2
    await office.timekeeper.stop()
    await office.leader.stop()


class Shifted:
    """A machine whose wall clock goes otherwise."""

    def __init__(self, clock, shift_ms):
        self.clock, self.shift_ms = clock, shift_ms
        self.mono_ms, self.wait = clock.mono_ms, clock.wait

    def now_ms(self):
        return self.clock.now_ms() + self.shift_ms


async def test_the_stores_clock_counts_not_ours():
    """The store's machine is an hour ahead: a job that is due there is due."""
    office = Office(shift_ms=3_600_000)
    due_ms = office.clock.now_ms() + 3_600_000 + 10_000
    await office.open(Job(id="soon", handler="h", schedule=Once(at_ms=due_ms)))
    office.timekeeper.start()
    office.leader.start()
    await office.clock.advance(9_990)
    assert await office.runs() == []
    await office.clock.advance(11)
    assert await office.runs() == [f"soon@{due_ms}"]
    assert office.timekeeper.late.seen().max_ms <= 2
    await office.timekeeper.stop()
    await office.leader.stop()


async def test_a_jump_of_the_stores_clock_is_told_and_followed():
    office = Office(shift_ms=0)
    due_ms = office.clock.now_ms() + 100_000
    await office.open(Job(id="soon", handler="h", schedule=Once(at_ms=due_ms)))
    heard = Heard(office.events, ClockJumped)
    office.timekeeper.start()
    office.leader.start()
    await office.clock.advance(1_000)
    office.store_clock.shift_ms = 100_000
    await office.clock.advance(31_000)
    assert [event.by_ms for event in heard.all] == [100_000]
    assert await office.runs() == [f"soon@{due_ms}"]
    await office.timekeeper.stop()
    await office.leader.stop()


async def test_a_jump_of_our_own_wall_clock_changes_nothing():
    office = Office(shift_ms=0)
    due_ms = office.clock.now_ms() + 10_000
    await office.open(Job(id="soon", handler="h", schedule=Once(at_ms=due_ms)))
    heard = Heard(office.events, ClockJumped)
    office.timekeeper.start()
    office.leader.start()
    await office.clock.advance(1_000)
    office.clock.jump(3_600_000)
    office.store_clock.shift_ms = -3_600_000
    await office.clock.advance(8_900)
    assert await office.runs() == []
    await office.clock.advance(101)
    assert await office.runs() == [f"soon@{due_ms}"]
    assert heard.all == []
    await office.timekeeper.stop()
    await office.leader.stop()


async def test_a_clock_that_came_back_as_another_loop_heard_is_looked_at_before_it_is_waited_by():
    """The dispatcher learns of the leap first: by the new time the next due seems an hour away."""
    office = await Office().open(every(1))
    await office.quiet()
    office.clock.jump(-60 * MINUTE)
    back_ms = office.clock.now_ms()
    office.time.learn(back_ms)  # by somebody else's call
    turn = asyncio.ensure_future(office.timekeeper.turn())
    await settle_down()
    assert turn.done(), "it waits for an hour that is lived twice"
    await turn
    assert office.planners[-1].seen_ms == back_ms
