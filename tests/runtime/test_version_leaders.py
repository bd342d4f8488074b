"""Two leaders on one store, each of its own version: a job that moves from one to the other is planned once."""

import itertools

import pytest

from pollux.app.declarations import Declared, Registrar
from pollux.clock import FakeClock, StoreClock
from pollux.events import Events, JobsElsewhere
from pollux.model import (
    SCHEDULER_VERSION,
    Cause,
    Done,
    Interval,
    Job,
    JobUpdate,
    Memory,
    Node,
    Outcome,
    Overlap,
    Plan,
    RunState,
    run_of,
)
from pollux.plan import Planner
from pollux.registry import Registry
from pollux.runtime.leader import Leader
from pollux.runtime.timekeeper import Timekeeper
from pollux.store.contract import Answer, JobPut, RunFilter, Settlement
from pollux.store.memory import MemoryStore
from tests.runtime.fakes import Heard

OLD, NEW = SCHEDULER_VERSION, SCHEDULER_VERSION + 1
MINUTE = 60_000


class Deployment:
    """The leader's side of one version: it turns when it is told to."""

    def __init__(self, store, clock):
        self.store, events = store, Events()
        self.leader = Leader(store, f"node-{store.scheduler_version}", clock=clock, events=events)
        self.timekeeper = Timekeeper(store, self.leader, StoreClock(clock, events), Planner, clock=clock, events=events)

    async def turn(self, times=4):
        """Until nothing is left to do at once."""
        await self.leader.turn()
        for _ in range(times):
            self.timekeeper.trigger()
            await self.timekeeper.turn()

    async def work(self):
        """Claim and settle what there is; answers the ids."""
        runs = (await self.store.claim(node="w", token=f"t{self.store.counter()}", limit=99, lease_ms=30_000)).runs
        assert set(await self.store.settle([settled(run, self.store) for run in runs])) <= {Answer.OK}
        return [run.id for run in runs]


def settled(run, store):
    now_ms = store.now_ms()
    return Settlement(run.id, run.token, Done(), Outcome(started_ms=now_ms, ended_ms=now_ms))


class Counted(MemoryStore):
    """With the time, and with tokens to count by."""

    tokens = 0

    def now_ms(self):
        return self.clock.now_ms()

    def counter(self):
        Counted.tokens += 1
        return Counted.tokens

    def of_version(self, number):
        other = Counted(self.clock, scheduler_version=number)
        other.memory = other.backend = self.memory.of_version(number)
        return other


@pytest.fixture
async def clock():
    return FakeClock()


@pytest.fixture
async def old(clock):
    store = Counted(clock)
    await store.open()
    yield Deployment(store, clock)
    await store.close()


@pytest.fixture
def new(old, clock):
    return Deployment(old.store.of_version(NEW), clock)


async def given(deployment, job):
    assert (await deployment.store.put_jobs([JobPut(job)]))[0].answer is Answer.OK
    await deployment.turn()


def every(ms=MINUTE, **options):
    return Job(id="job", handler="h", schedule=Interval(ms), **options)


async def dues(store):
    runs = (await store.list_runs(RunFilter(job_id="job"), limit=1_000)).runs
    return sorted(run.due_ms for run in runs)


async def test_each_leader_plans_its_own_jobs(old, new, clock):
    await given(old, every())
    await new.turn()

    assert await new.work() == []
    assert len(await old.work()) == 1


async def test_a_job_that_goes_to_and_fro_fires_every_due_once(old, new, clock):
    await given(old, every())
    await new.turn()
    for turn in range(30):
        await clock.advance(MINUTE / 3)
        if turn % 4 == 3:
            await old.store.move_jobs(["job"], NEW if turn % 8 == 3 else OLD)
        for deployment in (old, new):
            await deployment.turn()
            await deployment.work()

    fired = (await dues(old.store))[1:]  # the first one came at once
    assert len(fired) >= 8
    assert {after - before for before, after in itertools.pairwise(fired)} == {MINUTE}
    job = (await old.store.get_jobs(["job"]))[0]
    assert job.memory.ended == len(fired) + 1, "every end was learnt, once, by whoever led it"
    assert job.memory.skips == {}


async def test_a_due_is_kept_by_a_move_also_one_that_the_schedule_would_not_give(old, new, clock):
    await given(old, every(10 * MINUTE))
    await old.work()
    [job] = await old.store.get_jobs(["job"])
    term, odd_ms = old.leader.term, clock.now_ms() + 12_345
    await old.store.advance(term, Plan(updates=(JobUpdate("job", job.revision, odd_ms, job.memory),)))
    await new.turn()

    await old.store.move_jobs(["job"], NEW)
    await new.turn()
    assert (await old.store.get_jobs(["job"]))[0].next_due_ms == odd_ms
    await clock.advance(12_345)
    await new.turn()

    assert (await dues(old.store))[-1] == odd_ms


async def test_a_job_that_had_no_due_yet_gets_its_first_in_its_new_version(old, new, clock):
    await old.store.put_jobs([JobPut(every())])
    await old.store.move_jobs(["job"], NEW)

    await old.turn()
    await new.turn()

    assert (await old.work(), len(await new.work())) == ([], 1)


async def test_the_old_leader_forgets_a_moved_job_and_comes_to_rest(old, new, clock):
    await given(old, every(10_000, target="db"))
    await old.store.enqueue(
        [run_of((await old.store.get_jobs(["job"]))[0], clock.now_ms(), Cause.ENQUEUED, id="gated")]
    )
    await old.store.move_jobs(["job"], NEW)

    await old.turn()

    assert (await old.store.counts()).feed == 0, "all of it is consumed"
    assert old.timekeeper.planner.left_over is False
    plans = old.timekeeper.plans
    for _ in range(30):  # in one term, and beyond the job's next due
        await clock.advance(4_000)
        await old.turn()
    assert old.timekeeper.rebuilds == 1
    assert old.timekeeper.plans == plans, "it plans nothing of it any more"


@pytest.mark.parametrize("ends", ["before the move, unread", "after the move", "after the new leader looked"])
async def test_a_run_that_waits_for_the_previous_one_is_released_by_the_new_leader(old, new, clock, ends):
    for deployment, version in ((old, OLD), (new, NEW)):
        node = Node(f"w-{version}", handlers=("h",), scheduler_version=version)
        await deployment.store.beat(node, ttl_ms=3_600_000)
    await given(old, every(overlap=Overlap.QUEUE))
    [first] = (await old.store.claim(node="w", token="t", limit=1, lease_ms=3_600_000)).runs
    await clock.advance(1.5 * MINUTE)  # the second due lies half an interval to one and a half after the first
    await old.turn()
    assert (await old.store.counts()).held == 1
    await new.turn()

    if ends.startswith("before"):
        await old.store.settle([settled(first, old.store)])
    await old.store.move_jobs(["job"], NEW)
    if ends == "after the move":
        await old.store.settle([settled(first, old.store)])
    await new.turn()
    if ends == "after the new leader looked":
        await old.store.settle([settled(first, old.store)])
    await new.turn()

    assert (await new.store.counts()).ready == 1
    assert len(await new.work()) == 1


async def test_a_leader_counts_only_the_nodes_that_serve_it(old, new, clock):
    """A handler that only the other version's node knows is nobody's here."""
    await new.store.beat(Node("theirs", handlers=("h",), scheduler_version=NEW), ttl_ms=60_000)
    await old.store.beat(Node("ours", handlers=(), scheduler_version=OLD), ttl_ms=60_000)
    await given(old, every(target="db"))

    [run] = (await old.store.list_runs(RunFilter(job_id="job"))).runs

    assert run.state is RunState.HELD
    assert "handler" in run.held_reason


# what nodes declare


def declaring(store, *jobs):
    declared = Declared(Registry(), source="code:shop", release=0)
    declared.take_file("file:p.yaml", jobs)
    events = Events()
    heard = Heard(events, JobsElsewhere)
    me = Node("me", scheduler_version=store.scheduler_version, declares=declared.declares())
    return Registrar(store, declared, me, clock=store.clock, events=events, beat_ms=15_000), heard


async def test_a_node_takes_no_declared_job_from_another_version_and_says_so_once(old, new):
    job = Job(id="job", handler="h", source="file:p.yaml")
    await declaring(old.store, job)[0].begin()
    registrar, heard = declaring(new.store, job, Job(id="own", handler="h", source="file:p.yaml"))

    for _ in range(4):
        await registrar.turn()

    jobs = {each.id: each.scheduler_version for each in (await old.store.list_jobs()).jobs}
    assert jobs == {"job": OLD, "own": NEW}
    [said] = heard.of(JobsElsewhere)
    assert (said.count, said.job_id, said.version, said.own) == (1, "job", OLD, NEW)


async def test_a_job_that_is_no_longer_declared_in_one_version_stays_in_the_other(old, new):
    await declaring(old.store, Job(id="theirs", handler="h", source="file:p.yaml"))[0].begin()

    await declaring(new.store, Job(id="ours", handler="h", source="file:p.yaml"))[0].begin()

    assert {each.id for each in (await old.store.list_jobs()).jobs} == {"theirs", "ours"}


async def test_a_moved_job_becomes_what_its_new_deployment_declares(old, new):
    await declaring(old.store, Job(id="job", handler="h", priority=3, source="file:p.yaml"))[0].begin()
    registrar, _ = declaring(new.store, Job(id="job", handler="h", priority=1, source="file:p.yaml"))
    await registrar.begin()
    await old.store.move_jobs(["job"], NEW)

    for _ in range(3):
        await registrar.turn()

    [job] = await old.store.get_jobs(["job"])
    assert (job.priority, job.scheduler_version, job.memory) == (1, NEW, Memory())
