"""Feed intake: ends, arrivals, pauses and nodes; each entry is consumed with its effects."""

import pytest
from msgspec.structs import replace

from pollux.model import Answer, Cause, Interval, Node, Note, NotesChanged, Once, Overlap, RunState
from tests.unit.plan_world import BEHIND, T0, Leader, a_job

MINUTE = 60_000


def states(world):
    return {run.id: run.state for run in world.runs.values()}


def only(world):
    [run] = world.live()
    return run


# ends


def test_ends_teach_their_job_and_move_no_due_time(world, leader):
    world.put(a_job(every_ms=3_600_000))
    leader.run()
    due_ms = world.jobs["a"].next_due_ms
    world.end(f"a@{T0}", failed=True, error="E")
    leader.run()

    job = world.jobs["a"]
    assert (job.memory.ended, job.memory.failures, job.memory.last_error, job.next_due_ms) == (1, 1, "E", due_ms)
    assert world.feed == {}


def test_many_ends_of_one_job_are_one_update(world, leader):
    world.put(a_job(schedule=None))
    for n in range(150):
        world.enqueue("a", f"r{n}")
        world.end(f"r{n}")
    leader.run()

    assert world.jobs["a"].memory.ended == 150
    assert world.advances == 1
    assert len(leader.plans[0].updates) == 1
    assert len(leader.plans[0].consumed) == 151


def test_the_ends_of_many_jobs_are_learnt_a_hundred_in_a_plan(world, leader):
    world.put(*[a_job(f"j{n:03}", schedule=None) for n in range(250)])
    leader.run()
    for job_id in list(world.jobs):
        world.enqueue(job_id, f"r-{job_id}")
        world.end(f"r-{job_id}")
    leader.run()

    assert [len(plan.updates) for plan in leader.plans if plan.updates] == [100, 100, 50]
    assert all(job.memory.ended == 1 for job in world.jobs.values())
    assert world.feed == {}


def test_an_end_beside_a_firing_of_its_job_is_learnt_besides(world, leader):
    """The firing may be overlapped, which is written into the memory as well: both must be counted."""
    world.put(a_job(every_ms=10_000))
    leader.run()
    world.enqueue("a", "asked")
    world.now_ms = world.jobs["a"].next_due_ms
    world.end("asked", failed=True, error="E")
    leader.run()

    job = world.jobs["a"]
    assert job.memory.skips == {"overlap": 1}
    assert job.memory.ended == 1
    assert job.next_due_ms > world.now_ms
    assert world.feed == {}


def test_an_end_of_a_job_that_nobody_remembers_is_learnt_from_the_stored_memory(world):
    leader = Leader(world, idle_max=0)
    world.put(a_job(schedule=None))
    leader.run()
    for n in range(3):
        world.enqueue("a", f"r{n}")
        world.end(f"r{n}")
        leader.run()

    assert world.jobs["a"].memory.ended == 3


def test_a_new_leader_learns_what_the_old_one_had_read_but_not_written(world, leader):
    world.put(a_job(schedule=None))
    world.enqueue("a", "r")
    world.end("r")
    leader.plan()
    leader.rebuild()
    leader.run()

    assert world.jobs["a"].memory.ended == 1


def test_an_entry_that_is_read_again_before_it_is_consumed_counts_once(world, leader):
    world.put(a_job(schedule=None))
    world.enqueue("a", "r")
    world.end("r")
    for _ in range(5):
        leader.read()
    leader.run()

    assert world.jobs["a"].memory.ended == 1


# overlap


def test_a_firing_behind_a_live_run_is_skipped_and_counted(world, leader):
    world.put(a_job(every_ms=10_000))
    leader.go(30_000)

    assert len(world.runs) == 1
    assert world.jobs["a"].memory.skips["overlap"] == len([row for row in leader.skipped() if row[3] == "overlap"])
    assert world.jobs["a"].memory.skips["overlap"] >= 2


@pytest.mark.parametrize("overlap", [Overlap.QUEUE, Overlap.CANCEL])
@pytest.mark.parametrize("end", [RunState.DONE, RunState.DEAD, RunState.CANCELLED])
@pytest.mark.parametrize("new_leader", [False, True])
def test_a_queued_firing_is_released_when_the_previous_run_ends(world, leader, overlap, end, new_leader):
    world.put(a_job(every_ms=10_000, overlap=overlap))
    leader.go(30_000)
    first, second = sorted(world.live(), key=lambda run: run.due_ms)
    assert (second.state, second.held_reason) == (RunState.HELD, BEHIND)
    assert world.jobs["a"].memory.skips["overlap"] >= 1
    assert leader.reports[-1].held == () or leader.reports[-1].held[0][1] == BEHIND

    if new_leader:
        leader.rebuild()
        leader.run()
    world.end(first.id, end, ran=end is not RunState.CANCELLED)
    leader.run()
    assert world.runs[second.id].state is RunState.READY
    assert world.feed == {}


def test_a_retry_of_the_previous_run_releases_nobody(world, leader):
    world.put(a_job(every_ms=10_000, overlap=Overlap.QUEUE))
    leader.go(20_000)
    first, second = sorted(world.live(), key=lambda run: run.due_ms)
    world.end(first.id, RunState.READY, failed=True)
    leader.run()

    assert world.runs[second.id].state is RunState.HELD


def test_a_queued_firing_that_is_cancelled_is_forgotten(world, leader):
    world.put(a_job(every_ms=10_000, overlap=Overlap.QUEUE))
    leader.go(20_000)
    _, second = sorted(world.live(), key=lambda run: run.due_ms)
    world.end(second.id, RunState.CANCELLED, ran=False)
    leader.run()

    assert len(leader.planner._term.held_runs) == 0


def test_the_release_and_the_end_that_caused_it_are_one_write(world, leader):
    """Or a leader that dies between them leaves a run behind a run that is gone."""
    world.put(a_job(every_ms=10_000, overlap=Overlap.QUEUE))
    leader.go(20_000)
    first, second = sorted(world.live(), key=lambda run: run.due_ms)
    world.end(first.id, RunState.CANCELLED, ran=False)
    [entry] = world.feed
    leader.turn()

    assert leader.plans[-1].consumed == (entry,)
    assert [release.run_id for release in leader.plans[-1].releases] == [second.id]


def test_an_end_is_not_consumed_before_the_run_behind_it_is_released(world, leader):
    world.put(a_job(every_ms=10_000, overlap=Overlap.QUEUE), a_job("t", schedule=None, target="t"))
    leader.go(20_000)
    first, second = sorted(world.live("a"), key=lambda run: run.due_ms)
    world.stop("stop:target:t")
    for n in range(250):
        world.enqueue("t", f"r{n:03}")
    for _ in range(5):
        leader.run()
    world.resume("stop:target:t")
    leader.turn()
    assert len(leader.plans[-1].releases) == 100
    world.end(first.id, RunState.CANCELLED, ran=False)
    entry = max(world.feed)
    leader.turn()
    assert len(leader.plans[-1].releases) == 100
    assert second.id not in {release.run_id for release in leader.plans[-1].releases}

    assert entry in world.feed
    leader.rebuild()
    leader.run()
    assert world.runs[second.id].state is RunState.READY
    assert world.feed == {}


def test_an_end_between_a_plan_and_its_repetition_releases_the_run_behind_it(world, leader):
    """The answer "waits" is lost, the previous run ends, the repeated plan is answered "already"."""
    world.put(a_job(every_ms=10_000, overlap=Overlap.QUEUE))
    leader.run()
    world.now_ms = world.jobs["a"].next_due_ms
    plan = leader.plan()
    assert world.advance(plan).firings == (Answer.WAITS,)
    world.end(f"a@{T0}", RunState.CANCELLED, ran=False)
    again = world.advance(plan)
    assert again.firings == (Answer.ALREADY,)
    leader.planner.accept(plan, again)
    leader.run()

    assert only(world).state is RunState.READY
    assert world.feed == {}


# pauses


@pytest.mark.parametrize("key", ["stop:all", "stop:job:a", "stop:group:g", "stop:target:t"])
def test_due_times_in_a_pause_are_skipped_and_counted(world, leader, key):
    world.put(a_job(every_ms=10_000, group="g", target="t"), a_job("b", every_ms=10_000))
    leader.run()
    for run in world.live():
        world.end(run.id)
    world.stop(key)
    leader.go(MINUTE)

    job = world.jobs["a"]
    assert len([run for run in world.runs.values() if run.job_id == "a"]) == 1
    assert job.memory.skips["paused"] >= 4
    assert world.now_ms < job.next_due_ms <= world.now_ms + 10_000
    assert (len([run for run in world.runs.values() if run.job_id == "b"]) == 1) is (key == "stop:all")

    world.resume(key)
    leader.run()
    assert len([run for run in world.runs.values() if run.job_id == "a"]) == 1
    leader.go(10_000)
    assert len([run for run in world.runs.values() if run.job_id == "a"]) == 2


def test_runs_that_were_asked_for_are_held_by_a_pause_and_released_by_its_end(world, leader):
    world.put(a_job(schedule=None, target="t"))
    world.stop("stop:target:t", reason="cable work")
    world.enqueue("a", "r")
    leader.run()
    assert (only(world).state, only(world).held_reason) == (RunState.HELD, "target t is paused: cable work (by ada)")

    leader.go(10 * MINUTE)
    assert only(world).state is RunState.HELD
    world.resume("stop:target:t")
    leader.run()
    assert only(world).state is RunState.READY
    assert world.feed == {}
    assert sum(report.released for report in leader.reports) == 1


def test_a_forced_run_passes_a_pause(world, leader):
    world.put(a_job(schedule=None, target="t"))
    world.stop("stop:all")
    world.enqueue("a", "r", Cause.FORCED)
    leader.run()

    assert only(world).state is RunState.READY


def test_a_pause_that_expires_ends_by_itself_on_time(world, leader):
    world.put(a_job(schedule=None, target="t"))
    world.stop("stop:all", expires_ms=T0 + 7_000)
    world.enqueue("a", "r")
    leader.run()
    assert leader.planner.next_ms() == T0 + 7_000

    leader.go(6_999)
    assert only(world).state is RunState.HELD
    leader.go(1)
    assert only(world).state is RunState.READY


def test_a_once_job_waits_for_the_end_of_a_pause(world, leader):
    world.stop("stop:job:a")
    world.put(a_job(schedule=Once()))
    leader.go(MINUTE)
    assert (only(world).state, only(world).due_ms) == (RunState.HELD, T0)
    assert "paused" in only(world).held_reason
    assert world.jobs["a"].memory.skips == {}

    world.resume("stop:job:a")
    leader.run()
    assert only(world).state is RunState.READY


def test_a_pause_that_is_worded_anew_is_told_anew(world, leader):
    world.put(a_job(schedule=None, target="t"))
    world.stop("stop:all", reason="one")
    world.enqueue("a", "r")
    leader.run()
    world.stop("stop:all", reason="two")
    leader.run()

    assert only(world).held_reason == "everything is paused: two (by ada)"


def test_a_run_held_by_two_pauses_waits_for_both(world, leader):
    world.put(a_job(schedule=None, target="t"))
    world.stop("stop:all")
    world.stop("stop:target:t")
    world.enqueue("a", "r")
    leader.run()
    world.resume("stop:all")
    leader.run()
    assert "target t is paused" in only(world).held_reason
    world.resume("stop:target:t")
    leader.run()
    assert only(world).state is RunState.READY


def test_five_hundred_held_runs_are_released_in_plans_of_a_hundred_and_the_entry_goes_with_the_last(world, leader):
    world.put(a_job(schedule=None, target="t"))
    world.stop("stop:all")
    for n in range(500):
        world.enqueue("a", f"r{n:03}")
    for _ in range(10):
        leader.run()
    world.resume("stop:all")
    [entry] = world.feed
    plans = len(leader.plans)
    leader.run()

    after = leader.plans[plans:]
    assert [len(plan.releases) for plan in after] == [100] * 5
    assert [plan.consumed for plan in after] == [(), (), (), (), (entry,)]


def test_releases_and_firings_share_a_plan(world, leader):
    world.put(a_job("t", schedule=None, target="t"))
    world.stop("stop:target:t")
    for n in range(200):
        world.enqueue("t", f"r{n:03}")
    for _ in range(10):
        leader.run()
    world.resume("stop:target:t")
    world.put(*[a_job(f"j{n:03}", schedule=Interval(3_600_000, spread=False)) for n in range(200)])
    leader.turn()

    assert len(leader.plans[-1].releases) == 50
    assert len(leader.plans[-1].firings) == 50
    leader.run()
    assert all(run.state is RunState.READY for run in world.live())


def test_notes_that_are_no_pauses_are_consumed_unread(world, leader):
    world.notes["capacity:db"] = Note("capacity:db", 4)
    world.enter(NotesChanged(("capacity:db",)))
    leader.turn()

    assert world.feed == {}


# declared


def test_due_times_of_a_job_that_nobody_declares_are_skipped_until_somebody_does(world, leader):
    world.put(a_job(every_ms=10_000))
    leader.run()
    world.end(f"a@{T0}")
    world.put(replace(world.jobs["a"], declared=False))
    leader.go(MINUTE)
    assert len(world.runs) == 1
    assert world.jobs["a"].memory.skips["undeclared"] >= 4

    world.put(replace(world.jobs["a"], declared=True))
    leader.go(10_000)
    assert len(world.runs) == 2


def test_a_once_job_that_nobody_declares_waits_for_somebody(world, leader):
    world.put(a_job(schedule=Once(), declared=False))
    leader.run()
    assert only(world).held_reason == "no node declares it"
    world.put(replace(world.jobs["a"], declared=True))
    leader.run()

    assert only(world).state is RunState.READY
    assert world.feed == {}


def test_a_waiting_firing_of_a_job_that_is_retired_ends_cancelled(world, leader):
    """Whatever it waited for: a handler that only the old code knew will not come."""
    world.put(a_job(every_ms=10_000, handler="rare", target="t"))
    leader.run()
    assert only(world).held_reason == "no live node has handler rare"
    world.put(replace(world.jobs["a"], declared=False))
    leader.run()

    run = world.runs[f"a@{T0}"]
    assert (run.state, run.cancel) == (RunState.CANCELLED, "no node declares its job any more")
    assert len(leader.planner._term.held_runs) == 0
    assert world.feed == {}


def test_a_firing_that_a_worker_hands_back_after_its_job_was_retired_ends_cancelled(world, leader):
    world.put(a_job(every_ms=10_000))
    leader.run()
    world.put(replace(world.jobs["a"], declared=False))
    leader.run()
    world.hold(only(world).id, "handler h is not known here")
    leader.go(1_000)

    assert states(world) == {f"a@{T0}": RunState.CANCELLED}
    assert world.feed == {}


def test_what_somebody_asked_for_waits_until_a_retired_job_is_declared_again(world, leader):
    world.put(a_job(schedule=None, handler="rare", target="t"))
    world.enqueue("a", "r")
    leader.run()
    world.put(replace(world.jobs["a"], declared=False))
    leader.run()
    assert (only(world).state, only(world).held_reason) == (RunState.HELD, "no node declares it")
    world.beat(Node(id="m", seats=1, handlers=("rare",)))
    world.put(replace(world.jobs["a"], declared=True))
    leader.run()

    assert only(world).state is RunState.READY
    assert world.feed == {}


# the gate


def test_a_gated_firing_of_the_leader_is_let_through_at_once(world, leader):
    world.put(a_job(target="t"))
    leader.turn()

    assert (only(world).state, only(world).gated, only(world).held_reason) == (RunState.READY, True, "")


def test_a_gated_run_that_arrives_is_released(world, leader):
    world.put(a_job(schedule=None, target="t"))
    world.enqueue("a", "r")
    leader.run()

    assert only(world).state is RunState.READY
    assert world.feed == {}


def test_a_run_that_arrives_before_its_time_is_looked_at_then(world, leader):
    world.put(a_job(schedule=None, target="t"))
    world.enqueue("a", "r")
    world.runs["r"] = replace(world.runs["r"], visible_ms=T0 + 5_000)
    leader.run()
    assert leader.planner.next_ms() == T0 + 5_000
    assert world.feed == {}

    world.stop("stop:all")
    leader.go(6_000)
    assert "everything is paused" in only(world).held_reason


def test_a_run_that_ended_before_it_was_looked_at_is_left_alone(world, leader):
    world.put(a_job(schedule=None, target="t"))
    world.enqueue("a", "r")
    world.end("r", RunState.CANCELLED, ran=False)
    leader.run()

    assert world.runs["r"].state is RunState.CANCELLED
    assert len(leader.planner._term.held_runs) == 0
    assert world.feed == {}


def test_a_run_of_a_job_that_is_gone_is_forgotten(world, leader):
    world.put(a_job(schedule=None, target="t"))
    leader.run()
    world.enqueue("a", "r")
    world.delete("a")
    leader.run()

    assert len(leader.planner._term.held_runs) == 0
    assert world.feed == {}


def test_a_run_whose_handler_nobody_knows_is_parked_until_a_node_knows_it(world, leader):
    world.put(a_job(schedule=None, handler="rare", target="t"))
    world.enqueue("a", "r")
    leader.run()
    assert only(world).held_reason == "no live node has handler rare"

    writes = world.advances
    leader.go(10 * MINUTE)
    assert world.advances == writes
    world.beat(Node(id="m", seats=1, handlers=("rare",)))
    leader.run()
    assert only(world).state is RunState.READY
    assert world.feed == {}


def test_a_run_that_a_node_handed_back_is_not_thrown_at_it_again_at_once(world, leader):
    """Another node may know the handler; the one that does not would claim it again and again."""
    world.put(a_job(schedule=None))
    world.enqueue("a", "r")
    leader.run()
    world.hold("r", "handler h is not known here")
    leader.run()
    assert only(world).state is RunState.HELD
    leader.go(1_000)
    assert only(world).state is RunState.READY


def test_a_run_handed_back_by_a_pause_is_parked_under_it(world, leader):
    world.put(a_job(schedule=None))
    world.enqueue("a", "r")
    leader.run()
    world.stop("stop:job:a")
    world.hold("r", "paused")
    leader.go(5_000)
    assert only(world).held_reason == "job a is paused: moving (by ada)"
    world.resume("stop:job:a")
    leader.run()
    assert only(world).state is RunState.READY


# a term begins


def test_a_new_leader_looks_at_every_held_run_once(world, leader):
    world.put(a_job(schedule=None, target="t"), a_job("b", schedule=None, target="u"))
    world.stop("stop:target:t")
    world.enqueue("a", "r")
    world.enqueue("b", "s")
    leader.run()
    leader.rebuild()
    leader.run()
    assert states(world) == {"r": RunState.HELD, "s": RunState.READY}

    writes = world.advances
    leader.rebuild()
    leader.run()
    assert world.advances == writes
    world.resume("stop:target:t")
    leader.run()
    assert world.runs["r"].state is RunState.READY


def test_a_pause_that_ended_while_nobody_led_holds_nothing(world, leader):
    world.put(a_job(schedule=None, target="t"))
    world.stop("stop:all")
    world.enqueue("a", "r")
    leader.run()
    world.resume("stop:all")
    leader.rebuild()
    world.feed.clear()
    leader.run()

    assert only(world).state is RunState.READY
