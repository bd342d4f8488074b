"""Ends are included in a job's memory once, whether a leader dies, a job is put or an answer is lost."""

from functools import reduce
from itertools import count

import pytest
from msgspec.structs import replace

from pollux.model import UPDATES_MAX, Ended, JobsMoved, Memory, Overlap, RunState
from pollux.outcome import learn
from tests.unit.plan_world import T0, Leader, World, a_job

SECOND = 1_000
SECONDS = 4
JOBS = {
    "asked": {"schedule": None},
    "beside": {"every_ms": SECOND, "overlap": Overlap.ALLOW},
    "queued": {"every_ms": SECOND, "overlap": Overlap.QUEUE},
    "skips": {"every_ms": SECOND, "overlap": Overlap.SKIP},
    "slow": {"every_ms": 3 * SECOND, "overlap": Overlap.ALLOW},
}
PLANS_MAX = 60


class Story:
    """Jobs that fire and end for a few seconds.  Plans are numbered; after those that are `killed` another leader goes
    on, between reading and writing of those that are `put` the jobs are, and the answers to those that are `lost` never
    come: the plan is sent again, after the put.
    """

    def __init__(self, *, killed=(), put=(), lost=(), jobs=tuple(JOBS)):
        self.killed, self.put, self.lost, self.put_jobs = killed, put, lost, jobs
        self.world = World()
        self.leader = Leader(self.world)
        self.ends, self.plans, self._puts = [], 0, count(1)

    def play(self):
        self.world.put(*[a_job(job_id, **options) for job_id, options in JOBS.items()])
        for second in range(SECONDS):
            self.world.now_ms = T0 + second * SECOND
            self.world.enqueue("asked", f"asked-{second}")
            self.world.enqueue("slow", f"slow-{second}")
            self._turn()
            self._settle()
        self._rest()
        self._settle()
        self._rest()
        assert self.world.feed == {}, "an entry is never consumed"
        return self

    def memories(self):
        """What each job knows of its ends, and what it should."""
        told = {job_id: [end for end in self.ends if end.job_id == job_id] for job_id in JOBS}
        known = {job_id: replace(self.world.jobs[job_id].memory, skips={}, learnt=()) for job_id in JOBS}
        return known, {job_id: reduce(learn, ends, Memory()) for job_id, ends in told.items()}

    def _settle(self):
        """All that could run ends, in one entry; of the later ones every second fails."""
        self.world.now_ms += 7
        ready = [run.id for run in self.world.live() if run.state is RunState.READY]
        ends = []
        for nth, run_id in enumerate(ready):
            failed = (nth + len(self.ends)) % 2 == 1
            ends.append(self.world.ended(run_id, RunState.DEAD if failed else RunState.DONE, failed=failed, error="E"))
        if ends:
            self.ends += ends
            self.world.enter(Ended(tuple(ends)))

    def _turn(self):
        plan = self.leader.plan()
        if plan.is_empty():
            return self.leader.planner.left_over
        number, self.plans = self.plans, self.plans + 1
        assert self.plans < PLANS_MAX, "it never comes to rest"
        if number in self.put and number not in self.lost:
            self._put()
        answer = self.world.advance(plan)
        if number in self.lost:
            if number in self.put:
                self._put()
            answer = self.world.advance(plan)
        if number in self.killed:
            self.leader = Leader(self.world)
        else:
            self.leader.planner.accept(plan, answer)
        return True

    def _rest(self):
        while self._turn():
            pass

    def _put(self):
        name = f"put {next(self._puts)} times"
        before = {job_id: self.world.jobs[job_id].revision for job_id in self.put_jobs}
        self.world.put(*[replace(self.world.jobs[job_id], name=name) for job_id in self.put_jobs])
        assert all(self.world.jobs[job_id].revision == was + 1 for job_id, was in before.items())


def plans():
    """How many a story has in which nothing happens."""
    return Story().play().plans


def test_each_end_is_learnt_where_nothing_happens():
    known, told = Story().play().memories()

    assert known == told
    assert sum(memory.ended for memory in told.values()) > 3 * SECONDS


def test_each_end_is_learnt_once_whichever_plan_was_the_leaders_last():
    for last in range(plans()):
        known, told = Story(killed={last}).play().memories()
        assert known == told, f"the leader died after plan {last}"


def test_each_end_is_learnt_once_though_every_leader_writes_but_one_plan():
    known, told = Story(killed=range(plans())).play().memories()

    assert known == told


@pytest.mark.parametrize("jobs", [tuple(JOBS), ("asked",), ("beside",), ("skips", "queued")], ids=",".join)
def test_each_end_is_learnt_once_though_its_job_is_put_between_reading_and_writing(jobs):
    """Whoever writes next: the same leader, or one that knows what is in the store and no more."""
    for number in range(plans()):
        for killed in ((), {number}, {number, number + 1}):
            known, told = Story(put={number}, killed=killed, jobs=jobs).play().memories()
            assert known == told, f"put before plan {number} was written, leaders died after {killed}"


@pytest.mark.parametrize("jobs", [tuple(JOBS), ("asked",), ("beside",), ("skips", "queued")], ids=",".join)
def test_each_end_is_learnt_once_though_its_job_is_put_between_a_plan_and_its_repetition(jobs):
    for number in range(plans()):
        for killed in ((), {number}, {number + 1}):
            known, told = Story(put={number}, lost={number}, killed=killed, jobs=jobs).play().memories()
            assert known == told, f"put after plan {number}, of which the answer was lost; leaders died after {killed}"


def test_each_end_is_learnt_once_though_two_leaders_die_at_any_distance():
    number = plans()
    for first in range(number):
        for second in range(first + 1, number + 2):
            known, told = Story(killed={first, second}, put={first}).play().memories()
            assert known == told, f"leaders died after plans {first} and {second}"


@pytest.mark.parametrize("plans_written", [1, 2, 3])
def test_an_entry_of_more_jobs_than_a_plan_updates_is_learnt_once(world, leader, plans_written):
    """The leader dies while the entry is half learnt."""
    names = [f"j{n:03}" for n in range(2 * UPDATES_MAX + 50)]
    world.put(*[a_job(name, schedule=None) for name in names])
    leader.run()
    for name in names:
        world.enqueue(name, f"r-{name}")
    world.enter(Ended(tuple(world.ended(f"r-{name}", RunState.DEAD, failed=True) for name in names)))
    for _ in range(plans_written):
        leader.turn()
    leader.rebuild()
    leader.run()

    assert {(job.memory.ended, job.memory.failures, job.memory.dead) for job in world.jobs.values()} == {(1, 1, 1)}
    assert world.feed == {}


def test_what_a_job_has_learnt_from_is_forgotten_with_the_entry(world, leader):
    """Or its memory would grow with every end."""
    world.put(a_job(schedule=None))
    for n in range(5):
        world.enqueue("a", f"r{n}")
        world.end(f"r{n}")
        leader.run()
        leader.rebuild()

    assert world.jobs["a"].memory.ended == 5
    assert len(world.jobs["a"].memory.learnt) == 1


def test_an_entry_that_only_bears_the_number_of_another_is_learnt(world, leader):
    """Numbers begin anew where a store was moved or restored: the job remembers those of the old one."""
    world.put(a_job(schedule=None))
    world.enqueue("a", "r0")
    world.end("r0")
    leader.run()
    [(number, _)] = world.jobs["a"].memory.learnt
    world.now_ms += SECOND
    world.enqueue("a", "r1")
    world.feed[number] = Ended((world.ended("r1"),))
    leader.rebuild()
    leader.run()

    assert world.jobs["a"].memory.ended == 2


def test_the_ends_of_a_job_that_left_and_came_back_are_learnt_from_the_entry_that_it_brought(world, leader):
    """`move_jobs` takes them along: what they stood in is left to the other jobs."""
    world.put(a_job(schedule=None), a_job("b", schedule=None))
    leader.run()
    for job_id in ("a", "b"):
        world.enqueue(job_id, f"r-{job_id}")
    ends = [world.ended(f"r-{job_id}") for job_id in ("a", "b")]
    world.enter(Ended(tuple(ends)))
    world.jobs["a"] = replace(world.jobs["a"], revision=3)
    for _ in range(2):
        world.enter(JobsMoved(("a",)))
    world.enter(Ended((ends[0],)))
    leader.run()

    assert {job_id: job.memory.ended for job_id, job in world.jobs.items()} == {"a": 1, "b": 1}
    assert world.feed == {}
