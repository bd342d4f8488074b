"""Unread ends: a job's memory includes its last run before it fires again, and no due time is lost."""

import pytest

from pollux.model import UPDATES_MAX, Cron, Ended, Misfire, Overlap, Release, RunState
from tests.unit.plan_world import T0, Leader, a_job

GUARDED = [Overlap.SKIP, Overlap.QUEUE, Overlap.CANCEL]


def begun(world, leader, *jobs):
    """Each job has a run under way, and is due."""
    world.put(*jobs)
    leader.run()
    world.now_ms = max(world.jobs[job.id].next_due_ms for job in jobs)
    return [world.live(job.id)[0].id for job in jobs]


def learnt_when_made(world, leader, turns=9):
    """How many ends each job had learnt when its second run was made."""
    seen = {}
    for _ in range(turns):
        leader.turn()
        for run in world.runs.values():
            if run.due_ms > T0:
                seen.setdefault(run.id, world.jobs[run.job_id].memory.ended)
    return list(seen.values())


@pytest.mark.parametrize("overlap", GUARDED)
def test_an_end_that_comes_between_reading_and_writing_is_learnt_before_the_job_fires(world, leader, overlap):
    [first] = begun(world, leader, a_job(every_ms=10_000, overlap=overlap))
    due_ms = world.now_ms

    leader.turn(between=lambda: world.end(first))

    assert (len(world.runs), world.jobs["a"].next_due_ms) == (1, due_ms), "it is due still"
    assert leader.reports[-1].fired == 0
    assert leader.planner.left_over, "it turns at once"
    assert learnt_when_made(world, leader) == [1]
    assert (world.jobs["a"].last_due_ms, len(world.runs), world.feed) == (due_ms, 2, {})


@pytest.mark.parametrize("overlap", GUARDED)
def test_an_end_that_was_read_is_learnt_before_the_job_fires(world, leader, overlap):
    [first] = begun(world, leader, a_job(every_ms=10_000, overlap=overlap))
    world.end(first)

    assert learnt_when_made(world, leader) == [1]
    assert len(world.runs) == 2


def test_where_runs_may_overlap_nobody_waits_for_an_end(world, leader):
    [first] = begun(world, leader, a_job(every_ms=10_000, overlap=Overlap.ALLOW))
    world.end(first)
    leader.turn()

    assert len(world.runs) == 2


def test_an_entry_that_is_read_and_not_consumed_keeps_no_job_from_firing(world, leader):
    """Of 250 jobs that ended together a hundred learn in a plan: they need not wait for the others."""
    jobs = [a_job(f"j{n:03}", schedule=None) for n in range(250)]
    world.put(*jobs)
    [first] = begun(world, leader, a_job(every_ms=10_000))
    for job in jobs:
        world.enqueue(job.id, f"r-{job.id}")
    entries = set(world.feed)
    for job in jobs:
        world.end(f"r-{job.id}")
    world.end(first)
    one = [end for feed in sorted(set(world.feed) - entries) for end in world.feed.pop(feed).ends]
    world.enter(Ended(tuple(one)))
    leader.turn()
    leader.turn()

    assert leader.plans[-1].read != (), "the entry is still there"
    assert len(world.live("a")) == 1
    assert world.jobs["a"].memory.ended == 1


def test_a_job_that_ends_without_end_fires_all_the_same(world, leader):
    """Runs that people ask for end in every turn: the due time waits for one of them, not for all."""
    [first] = begun(world, leader, a_job(every_ms=60_000))
    world.end(first)
    for n in range(6):
        world.enqueue("a", f"asked-{n}")
        world.end(f"asked-{n}")
        leader.turn()

    assert len([run for run in world.runs.values() if run.due_ms > T0 and run.id.startswith("a@")]) == 1


def test_a_hundred_jobs_that_wait_for_their_ends_keep_no_other_from_firing(world, leader):
    each_minute = Cron("* * * * *")
    world.put(*[a_job(f"j{n:03}", schedule=each_minute) for n in range(100)])
    world.put(a_job("z", schedule=each_minute, overlap=Overlap.ALLOW))
    leader.go(60_000)
    world.now_ms = world.jobs["z"].next_due_ms

    def all_end():
        for run in world.live():
            world.end(run.id)

    leader.turn(between=all_end)
    leader.read = lambda: leader.planner.wants(world.now_ms)  # it comes no further with the feed
    leader.turn()

    assert len(world.live("z")) == 1


def test_a_missed_due_that_waits_for_its_end_is_not_charged_to_the_pace(world, leader):
    [first] = begun(world, leader, a_job(every_ms=10_000, misfire=Misfire.ONE))
    world.now_ms += 3_600_000
    leader.turn()  # one is chosen, the others are counted
    left = leader.planner._term.catch_up.left(world.now_ms)
    leader.turn(between=lambda: world.end(first))

    assert leader.plans[-1].firings
    assert leader.planner._term.catch_up.left(world.now_ms) == left
    leader.run()
    assert len(world.runs) == 2


def test_the_due_of_a_job_that_was_put_a_moment_ago_survives_the_leader(world, leader):
    """The plan that fires it consumes the entry of its put: the store keeps the due, though nothing was fired."""
    world.put(a_job(schedule=None))
    leader.run()
    world.enqueue("a", "asked")
    world.put(a_job(every_ms=10_000))
    leader.turn(between=lambda: world.end("asked"))
    assert [firing.run.job_id for firing in leader.plans[-1].firings] == ["a"]
    assert "a@" not in " ".join(world.runs)

    successor = Leader(world)
    successor.run()

    assert len([run_id for run_id in world.runs if run_id.startswith("a@")]) == 1


def test_a_release_and_what_the_run_before_it_taught_are_one_write(world, leader):
    """However many other ends were read with it."""
    others = [a_job(f"j{n:03}", schedule=None) for n in range(UPDATES_MAX + 50)]
    world.put(*others, a_job(every_ms=10_000, overlap=Overlap.QUEUE))
    leader.go(20_000)
    first, second = sorted(world.live("a"), key=lambda run: run.due_ms)
    for job in others:
        world.enqueue(job.id, f"r-{job.id}")
        world.end(f"r-{job.id}")
    world.end(first.id)
    while world.runs[second.id].state is RunState.HELD:
        leader.turn()

    assert leader.plans[-1].releases == (Release(second.id, alone=True),)
    assert world.jobs["a"].memory.ended == 1
