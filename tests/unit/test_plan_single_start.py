"""Overlap rules: the planner's part in starting a firing only if no other run of its job is live."""

import pytest
from msgspec.structs import replace

from pollux.model import FIRINGS_MAX, Cause, Node, Overlap, RunState
from tests.unit.plan_world import BEHIND, T0, Leader, World, a_job

WAITING = [Overlap.QUEUE, Overlap.CANCEL]
READY, HELD = RunState.READY, RunState.HELD


@pytest.fixture
def world():
    return World()


@pytest.fixture
def leader(world):
    return Leader(world)


def queued(world, leader, overlap=Overlap.QUEUE, **options):
    """A job whose first firing is live and whose second one waits behind it."""
    world.put(a_job(every_ms=10_000, overlap=overlap, **options))
    leader.go(20_000)
    first, second = sorted(world.live("a"), key=lambda run: run.due_ms)
    assert (second.state, second.held_reason) == (HELD, BEHIND)
    return first.id, second.id


def stands(world, run_id):
    run = world.runs[run_id]
    return run.state, run.held_reason


@pytest.mark.parametrize("overlap", WAITING)
@pytest.mark.parametrize("cause", [Cause.ENQUEUED, Cause.FORCED])
def test_the_end_of_a_run_that_was_asked_for_lets_nobody_begin_beside_the_first(world, leader, overlap, cause):
    first, second = queued(world, leader, overlap)
    world.enqueue("a", "asked", cause)
    leader.run()
    world.end("asked")
    leader.run()
    assert stands(world, second) == (HELD, BEHIND)
    assert world.feed == {}, "the end was learnt all the same"

    world.end(first)
    leader.run()
    assert stands(world, second) == (READY, "")


@pytest.mark.parametrize("new_leader", [False, True])
def test_a_firing_waits_for_the_last_run_that_is_live_whoever_asked_for_it(world, leader, new_leader):
    first, second = queued(world, leader)
    for n in range(3):
        world.enqueue("a", f"asked{n}")
    for run_id in ("asked1", first, "asked0"):
        world.end(run_id)
        if new_leader:
            leader.rebuild()
        leader.run()
        assert stands(world, second) == (HELD, BEHIND)
    world.end("asked2")
    leader.run()

    assert stands(world, second) == (READY, "")
    assert world.feed == {}
    assert len(leader.planner._term.held_runs) == 0


def test_a_retry_of_the_first_is_waited_for_when_a_run_that_was_asked_for_ends(world, leader):
    first, second = queued(world, leader)
    world.enqueue("a", "asked")
    world.end(first, READY, failed=True)
    world.end("asked")
    leader.run()

    assert stands(world, second) == (HELD, BEHIND)


def test_a_firing_meets_several_runs_that_were_asked_for_and_waits_for_all(world, leader):
    world.put(a_job(every_ms=10_000, overlap=Overlap.QUEUE, enabled=False))
    for n in range(3):
        world.enqueue("a", f"asked{n}")
    world.put(a_job(every_ms=10_000, overlap=Overlap.QUEUE))
    leader.go(30_000)
    [waiting] = [run.id for run in world.live() if run.cause is Cause.SCHEDULE]

    for n in range(3):
        assert stands(world, waiting) == (HELD, BEHIND)
        world.end(f"asked{n}")
        leader.run()
    assert stands(world, waiting) == (READY, "")


def test_a_firing_that_a_pause_held_back_waits_for_what_was_forced_meanwhile(world, leader):
    first, second = queued(world, leader)
    world.stop("stop:job:a", reason="")
    world.end(first)
    leader.run()
    assert stands(world, second) == (HELD, "job a is paused (by ada)")
    world.enqueue("a", "forced", Cause.FORCED)

    world.resume("stop:job:a")
    leader.run()
    assert stands(world, second) == (HELD, BEHIND)
    assert (second, BEHIND) in leader.reports[-1].held, "it waits for something else now, and that is told"

    world.end("forced")
    leader.run()
    assert stands(world, second) == (READY, "")


def test_a_firing_that_was_handed_back_before_it_began_waits_for_what_was_forced_meanwhile(world, leader):
    """It was let go, and then the job was paused: the worker gives it back, and somebody forces a run."""
    world.put(a_job(every_ms=3_600_000))
    leader.run()
    [first] = world.live()
    world.stop("stop:job:a")
    world.hold(first.id, "job a is paused")
    world.enqueue("a", "forced", Cause.FORCED)
    leader.run()
    world.resume("stop:job:a")
    leader.go(1_000)
    assert stands(world, first.id) == (HELD, BEHIND)

    world.end("forced")
    leader.run()
    assert stands(world, first.id) == (READY, "")


def test_a_firing_that_no_node_could_run_waits_for_what_was_asked_for_before_it_begins(world, leader):
    """Also under skip: it was made when nothing was live."""
    world.beat(Node("n", handlers=()))
    world.put(a_job(every_ms=3_600_000, target="t"))
    leader.run()
    [first] = world.live()
    world.enqueue("a", "asked")
    leader.run()

    world.beat(Node("n", handlers=("h",)))
    leader.run()
    assert stands(world, "asked") == (READY, "")
    assert stands(world, first.id) == (HELD, BEHIND)

    world.end("asked")
    leader.run()
    assert stands(world, first.id) == (READY, "")


def test_a_firing_learns_how_the_one_before_ended_though_another_end_woke_it(world, leader):
    """The first ends after the feed was read and before the plan is written: the plan must not let the second begin."""
    first, second = queued(world, leader)
    world.enqueue("a", "asked")
    leader.run()
    world.end("asked")
    leader.turn(between=lambda: world.end(first))
    assert stands(world, second) == (HELD, BEHIND)

    leader.run()
    assert stands(world, second) == (READY, "")
    assert world.jobs["a"].memory.ended == 2


def test_a_job_whose_runs_may_overlap_from_now_on_goes_on_with_the_next_end(world, leader):
    _, second = queued(world, leader)
    world.enqueue("a", "asked")
    world.put(replace(world.jobs["a"], overlap=Overlap.ALLOW))
    world.end("asked")
    leader.run()

    assert stands(world, second) == (READY, "")


def test_a_new_leader_finds_a_firing_that_waits_for_nobody_any_more(world, leader):
    """Its store was moved or went back, and the end was lost on the way: the job must not stand still for ever."""
    first, second = queued(world, leader)
    world.end(first)
    world.feed.clear()
    leader.rebuild()
    leader.run()

    assert stands(world, second) == (READY, "")


def test_a_firing_that_arrives_waiting_for_nobody_begins(world, leader):
    """As above, where the leader was there before the records."""
    first, second = queued(world, leader)
    world.end(first)
    world.feed.clear()
    world.hold(second, BEHIND)
    world.runs[second] = replace(world.runs[second], fence=0)
    leader.run()

    assert stands(world, second) == (READY, "")


def test_a_release_whose_answer_was_lost_is_made_once(world, leader):
    first, second = queued(world, leader)
    world.end(first)
    leader.turn(lose_answer=True)

    assert stands(world, second) == (READY, "")
    assert leader.reports[-1].released == 1
    assert len(leader.planner._term.held_runs) == 0


def test_an_end_between_a_release_that_waits_and_its_repetition_is_not_lost(world, leader):
    first, second = queued(world, leader)
    world.enqueue("a", "asked")
    world.end("asked")
    plan = leader.plan()
    assert world.advance(plan).waiting == (second,)
    world.end(first, RunState.CANCELLED, ran=False)
    leader.planner.accept(plan, world.advance(plan))
    leader.run()

    assert stands(world, second) == (READY, "")
    assert world.feed == {}


def test_a_run_that_is_not_alone_is_not_counted_as_released(world, leader):
    queued(world, leader)
    world.enqueue("a", "asked")
    world.end("asked")
    leader.turn()

    [release] = leader.plans[-1].releases
    assert release.alone
    assert (leader.reports[-1].released, leader.reports[-1].enqueued) == (0, ())
    assert leader.planner.look(soon_ms=0).held["previous"] == 1


def test_under_skip_a_run_that_was_asked_for_is_an_overlap_like_any(world, leader):
    world.put(a_job(every_ms=10_000))
    leader.run()
    world.end(f"a@{T0}")
    world.enqueue("a", "asked")
    leader.go(30_000)

    assert [run.id for run in world.live()] == ["asked"]
    assert world.jobs["a"].memory.skips["overlap"] >= 2


def test_under_allow_nothing_is_waited_for(world, leader):
    world.put(a_job(every_ms=10_000, overlap=Overlap.ALLOW, target="t"))
    world.enqueue("a", "asked")
    leader.go(30_000)

    assert len([run for run in world.live() if run.state is READY]) >= 3
    assert all(not release.alone for plan in leader.plans for release in plan.releases)


@pytest.mark.parametrize("is_new", [True, False], ids=["a new leader", "it arrives"])
def test_a_firing_that_waits_is_let_go_by_the_next_end_though_the_clock_went_back(world, leader, is_new):
    first, second = queued(world, leader)
    world.now_ms -= 3_600_000
    if is_new:
        leader.rebuild()
    else:
        world.hold(second, BEHIND)
    leader.run()
    assert stands(world, second) == (HELD, BEHIND)

    world.end(first)
    leader.run()
    assert stands(world, second) == (READY, "")


def test_of_two_firings_that_wait_the_older_one_goes_first(world, leader):
    """In whichever order they came to the gate: what was loaded or moved comes as it likes."""
    first, second = queued(world, leader)
    world.runs["older"] = replace(world.runs[second], id="older", due_ms=world.runs[second].due_ms - 1)
    world.hold("older", BEHIND)
    leader.run()

    world.end(first)
    leader.run()
    assert (stands(world, "older"), stands(world, second)) == ((READY, ""), (HELD, BEHIND))


@pytest.mark.parametrize(("older", "newer"), ["xy", "yx"])
def test_of_firings_that_come_back_together_the_oldest_goes_first(world, leader, older, newer):
    """In whichever order they come."""
    first, second = queued(world, leader)
    due_ms = world.runs[second].due_ms
    del world.runs[second]
    for name, at_ms in ((older, due_ms - 1), (newer, due_ms)):
        world.runs[name] = replace(world.runs[first], id=name, due_ms=at_ms, visible_ms=at_ms)
        world.hold(name, "job a is paused")
    world.end(first)
    leader.go(1_000)

    assert (stands(world, older), stands(world, newer)) == ((READY, ""), (HELD, BEHIND))


def test_a_firing_whose_wake_was_lost_is_asked_about_when_the_next_one_is_due(world, leader):
    """The end before it was told where nobody reads, or never: its job must not stand still until a new term."""
    first, second = queued(world, leader)
    world.end(first)
    world.feed.clear()
    leader.run()
    assert stands(world, second) == (HELD, BEHIND)

    leader.go(10_000)
    assert stands(world, second) == (READY, "")


def test_a_firing_that_waits_is_asked_about_once_a_due(world, leader):
    _, second = queued(world, leader)
    before = len(leader.plans)

    leader.go(30_000)

    asked = [release.run_id for plan in leader.plans[before:] for release in plan.releases]
    assert asked == [second] * 3
    assert stands(world, second) == (HELD, BEHIND)
    assert leader.reports[-1].held == (), "it waits as before: nothing to tell"


def test_it_is_asked_about_in_the_plan_of_the_due_time_and_no_other_follows(world, leader):
    _, second = queued(world, leader)
    before = len(leader.plans)

    leader.go(30_000)

    plans = leader.plans[before:]
    assert [(len(plan.firings), [each.run_id for each in plan.releases]) for plan in plans] == [(1, [second])] * 3
    assert all(release.alone for plan in plans for release in plan.releases)


def test_firings_are_not_kept_waiting_by_those_that_are_asked_about(world, leader):
    """A plan that is full of them asks in the next one."""
    world.put(*[a_job(f"j{n}", every_ms=10_000, overlap=Overlap.QUEUE) for n in range(FIRINGS_MAX)])
    leader.go(40_000)
    assert leader.planner.look(soon_ms=0).held["previous"] == FIRINGS_MAX
    for job in world.jobs.values():
        world.jobs[job.id] = replace(job, next_due_ms=world.now_ms + 60_000)
    leader.rebuild()
    leader.run()
    for run in world.live():
        if run.state is READY:
            world.end(run.id)
    world.feed.clear()
    before = len(leader.plans)
    world.now_ms += 60_000
    leader.run()

    assert [(len(plan.firings), len(plan.releases)) for plan in leader.plans[before:]] == [
        (FIRINGS_MAX, 0),
        (0, FIRINGS_MAX),
    ]
    assert {run.state for run in world.live()} == {READY}


def test_where_nobody_waits_a_firing_that_overlaps_asks_nothing(world, leader):
    world.put(a_job(every_ms=10_000))
    leader.go(50_000)

    assert world.jobs["a"].memory.skips["overlap"] >= 4
    assert not any(plan.releases for plan in leader.plans)
