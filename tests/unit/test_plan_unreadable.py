"""Records the leader cannot decode: it goes on without them, and nothing else is lost."""

import pytest
from msgspec.structs import replace

from pollux.errors import InvalidInput
from pollux.model import Cron, NotePut, Once, RunState, Spoilt, unreadable_note
from pollux.plan.due_decision import place
from pollux.plan.leader_notes import REBUILD_APART_MS
from pollux.plan.timers import PAGE
from pollux.store.limits import checked_notes
from tests.unit.plan_world import Leader, a_job

JOBS, SCHEDULES, FEED = "leader:jobs:2", "leader:schedules:2", "leader:feed:2"
DAY = 24 * 3_600_000


def fired(world, job_id):
    return len([run for run in world.runs.values() if run.job_id == job_id])


def noted(world, key=JOBS):
    return unreadable_note(world.notes[key]) if key in world.notes else None


def end_all(world):
    for run in world.live():
        if run.state is RunState.READY:
            world.end(run.id)


def test_a_job_that_cannot_be_read_is_left_as_it_is_and_all_others_fire(world, leader):
    world.put(a_job("a"), a_job("b"))
    world.illegible["a"] = "odd"
    before = world.jobs["a"]
    leader.run()

    assert (fired(world, "a"), fired(world, "b")) == (0, 1)
    assert (world.jobs["a"], world.feed) == (before, {})
    assert noted(world).named == {"a": "odd"}


def test_it_goes_on_when_it_is_put_anew(world, leader):
    world.put(a_job("a"), a_job("b"))
    world.illegible["a"] = "odd"
    leader.run()
    del world.illegible["a"]
    world.put(a_job("a", every_ms=30_000))
    leader.run()

    assert fired(world, "a") == 1
    assert noted(world) is None


def test_it_is_looked_at_again_after_a_minute(world, leader):
    world.put(a_job("a"))
    world.illegible["a"] = "odd"
    leader.run()
    assert leader.planner.next_ms() <= world.now_ms + 60_000
    world.now_ms += 59_000
    leader.run()
    del world.illegible["a"]
    leader.run()
    assert fired(world, "a") == 0
    world.now_ms += 1_000
    leader.run()
    assert (fired(world, "a"), noted(world)) == (1, None)


def test_the_next_leader_looks_at_it_first_though_its_entry_is_consumed(world, leader):
    """As while releases change: the old leader has read that it was put, and only the new one can plan it."""
    world.put(a_job("a"))
    world.illegible["a"] = "odd"
    leader.run()
    assert world.feed == {}
    del world.illegible["a"]
    new = Leader(world)
    new.run()
    assert (fired(world, "a"), noted(world)) == (1, None)


def test_more_of_them_than_a_note_can_name_are_found_among_all_jobs(world, leader):
    names = [f"j{n:03}" for n in range(130)]
    world.put(*[a_job(name) for name in names])
    world.illegible = dict.fromkeys(names, "odd")
    leader.run()
    assert (noted(world).count, len(noted(world).named)) == (130, 50)
    world.illegible = {}
    new = Leader(world)
    new.run()
    world.now_ms += 61_000
    new.run()
    assert {name for name in names if not fired(world, name)} == set()
    assert noted(world) is None


@pytest.mark.parametrize(
    "name", [lambda n: f"j{n:03}".ljust(450, "ж"), lambda n: f"j{n:03}" + "y" * 70_000, lambda n: f"j{n:03}\udc80"]
)
def test_names_that_a_note_cannot_hold_stop_nobody_and_their_jobs_are_found_among_all(world, leader, name):
    names = [name(n) for n in range(90)]
    world.put(*[a_job(each) for each in names])
    world.illegible = dict.fromkeys(names, "ж" * 500)
    leader.run()
    [put] = checked_notes([NotePut(JOBS, world.notes[JOBS].value)])
    assert (put.value["count"], len(put.value["named"]) < 90) == (90, True)
    assert ("(and 89 more)" in noted(world).words) == bool(put.value["named"])
    assert noted(world).words
    world.illegible = {}
    new = Leader(world)
    new.run()
    world.now_ms += 61_000
    new.run()
    assert {each for each in names if not fired(world, each)} == set()
    assert noted(world) is None


def test_a_leader_that_dies_before_it_has_looked_at_all_leaves_the_note_as_it_is(world, leader):
    names = [f"j{n:03}" for n in range(130)]
    world.put(*[a_job(name) for name in names])
    world.illegible = dict.fromkeys(names, "odd")
    leader.run()
    before = world.notes[JOBS]
    new = Leader(world)
    wants = new.planner.wants(world.now_ms)
    new.planner.learn(jobs=[(name, world.read(name)) for name in wants.jobs], all_jobs=([], "j001"))
    world.advance(new.planner.plan(world.now_ms))

    assert world.notes[JOBS] == before


def test_a_look_at_all_jobs_keeps_no_more_of_them_than_may_be_idle(world):
    """Nothing is written while all of them stand as they should, so no plan forgets them either."""
    world.put(*[a_job(f"j{n:03}", schedule=None) for n in range(90)])
    Leader(world).run()
    world.enter(Spoilt("odd"))
    leader = Leader(world, idle_max=10)
    leader.read()

    assert len(leader.planner._term.slots) <= 10


def test_a_page_of_due_jobs_that_nobody_can_read_does_not_hide_those_behind_it(world, leader):
    bad = [a_job(f"bad{n:04}") for n in range(PAGE + 5)]
    world.put(*bad, a_job("good"))
    for job in world.jobs.values():
        due_ms = world.now_ms - (1_000 if job.id == "good" else 2_000)
        world.jobs[job.id] = replace(job, next_due_ms=due_ms, last_due_ms=due_ms - 60_000)
    world.feed.clear()
    world.illegible = {job.id: "odd" for job in bad}
    leader.run()

    assert fired(world, "good") == 1


def test_one_that_was_planned_is_planned_no_more(world, leader):
    """A newer release has put it: what we know of it is not what it is."""
    world.put(a_job("a"), a_job("b"))
    leader.run()
    end_all(world)
    leader.run()
    world.put(replace(a_job("a"), priority=1))
    world.illegible["a"] = "odd"
    leader.run()
    kept = world.jobs["a"]
    for _ in range(3):
        world.now_ms += 60_000
        leader.run()
        end_all(world)
        leader.run()

    assert (fired(world, "a"), world.jobs["a"]) == (1, kept)
    assert fired(world, "b") > 2


def test_its_runs_at_the_gate_say_so_and_go_on_when_it_can_be_read(world, leader):
    world.put(a_job("a", schedule=None, target="host"))
    leader.run()
    world.illegible["a"] = "odd"
    leader.rebuild()
    world.enqueue("a", "r")
    leader.run()
    assert (world.runs["r"].state, world.runs["r"].held_reason) == (RunState.HELD, "the leader cannot read its job")
    assert leader.planner.look(soon_ms=1).held["unreadable"] == 1
    del world.illegible["a"]
    world.now_ms += 60_000
    leader.run()
    assert world.runs["r"].state is RunState.READY


def test_one_that_is_deleted_is_remembered_no_more(world, leader):
    world.put(a_job("a"))
    world.illegible["a"] = "odd"
    leader.run()
    world.delete("a")
    leader.run()
    assert noted(world) is None


def test_ends_of_a_job_that_cannot_be_read_do_not_fill_the_feed(world, leader):
    world.put(a_job("a"))
    leader.run()
    world.illegible["a"] = "odd"
    leader.rebuild()
    end_all(world)
    leader.run()
    assert world.feed == {}


# entries of the feed


def spoil(world):
    """Make every unread entry one that cannot be decoded."""
    for number in world.feed:
        world.feed[number] = Spoilt("cut off", "what")
    return list(world.feed)


@pytest.mark.parametrize("jobs", [1, 15])
def test_a_job_that_a_spoilt_entry_reported_is_found_among_all(world, leader, jobs):
    world.put(*[a_job(f"j{n}") for n in range(jobs)])
    numbers = spoil(world)
    leader.run()

    assert [fired(world, f"j{n}") for n in range(jobs)] == [1] * jobs
    assert world.feed == {}
    assert noted(world, FEED).named == {str(number): "cut off" for number in numbers}
    assert noted(world, FEED).texts == {str(number): "what" for number in numbers}


def test_it_is_consumed_at_once_and_the_note_requests_the_scan_until_all_that_it_found_is_written(world, leader):
    world.put(*[a_job(f"j{n}") for n in range(250)])
    spoil(world)
    assert leader.turn()
    assert world.feed == {}
    while any(job.next_due_ms is None for job in world.jobs.values()):
        assert noted(world, FEED).requests_scan
        assert leader.turn() or leader.planner.left_over
    leader.run()
    assert not noted(world, FEED).requests_scan


@pytest.mark.parametrize("turns", [1, 5, 40])
def test_a_leader_that_dies_during_the_scan_leaves_it_to_the_next_one(world, leader, turns):
    world.put(*[a_job(f"j{n}") for n in range(250)])
    spoil(world)
    for _ in range(turns):
        leader.turn()
    Leader(world).run()
    assert all(job.next_due_ms is not None for job in world.jobs.values())
    assert not noted(world, FEED).requests_scan


def test_one_that_comes_during_a_scan_does_not_restart_it_and_is_followed_by_another(world, leader):
    world.put(*[a_job(f"j{n:03}") for n in range(250)])
    spoil(world)
    for _ in range(10):
        leader.turn()
    rebuilds = leader.rebuilds
    world.put(a_job("a"))  # before all that the scan has still to read
    spoil(world)
    leader.run()
    assert (leader.rebuilds, world.feed, fired(world, "a")) == (rebuilds, {}, 0)
    assert {job.id for job in world.jobs.values() if job.next_due_ms is None} == {"a"}
    assert leader.planner.next_ms() <= world.now_ms + REBUILD_APART_MS
    world.now_ms += REBUILD_APART_MS
    leader.run()
    assert (leader.rebuilds, fired(world, "a")) == (rebuilds + 1, 1)
    assert not noted(world, FEED).requests_scan


def test_a_stream_of_them_rebuilds_the_planner_once_in_some_seconds_and_keeps_no_job_from_firing(world, leader):
    world.put(a_job("a", every_ms=1_000))
    rebuilds = leader.rebuilds
    for _ in range(100):
        world.enter(Spoilt("odd"))
        leader.run()
        assert world.feed == {}
        end_all(world)
        world.now_ms += 100
    assert leader.rebuilds == rebuilds + 2
    assert fired(world, "a") >= 9


def test_jobs_that_had_their_due_keep_it(world, leader):
    world.put(a_job("a"), a_job("c", schedule=Cron("0 3 * * *")), a_job("o", schedule=Once()))
    leader.run()
    end_all(world)
    leader.run()
    before = dict(world.jobs)
    world.enter(Spoilt("odd"))
    leader.run()

    assert world.jobs == before
    assert (len(world.runs), world.feed) == (2, {})


def test_a_schedule_that_was_changed_in_a_spoilt_entry_holds(world, leader):
    world.put(a_job("a", every_ms=DAY))
    leader.run()
    end_all(world)
    leader.run()
    world.put(a_job("a", every_ms=1_000))
    spoil(world)
    leader.run()
    assert world.jobs["a"].next_due_ms <= world.now_ms + 2_000


def test_the_latest_entries_are_kept_and_all_are_counted(world, leader):
    for n in range(3):
        for _ in range(9):
            world.enter(Spoilt(f"odd {n}"))
        leader.run()
    assert (noted(world, FEED).count, len(noted(world, FEED).named)) == (27, 20)
    assert world.notes[FEED].expires_ms == world.now_ms + 7 * DAY


# schedules that cannot be used


@pytest.fixture
def lacking(monkeypatch):
    """Jobs whose time zone the machine of the leader does not know."""
    ids = set()

    def place_here(job, *args, **options):
        if job.id in ids:
            raise InvalidInput("there is no time zone 'Mars/Base'")
        return place(job, *args, **options)

    monkeypatch.setattr("pollux.plan.planner.place", place_here)
    return ids


def test_a_schedule_that_cannot_be_used_is_named_until_it_is_mended(world, leader):
    world.put(a_job("a", schedule=Cron("* * * * *", tz="Mars/Base")), a_job("b"))
    leader.run()

    assert (fired(world, "a"), fired(world, "b"), world.feed) == (0, 1, {})
    assert (list(noted(world, SCHEDULES).named), noted(world)) == (["a"], None)
    assert "Mars/Base" in noted(world, SCHEDULES).words
    world.put(replace(world.jobs["a"], schedule=Cron("* * * * *")))
    leader.run()
    assert noted(world, SCHEDULES) is None


def test_it_is_tried_again_after_a_minute_and_written_once(world, leader, lacking):
    lacking.add("a")
    world.put(a_job("a"))
    leader.run()
    written = world.advances
    for _ in range(3):
        assert leader.planner.next_ms() <= world.now_ms + 60_000
        world.now_ms += 60_000
        leader.run()
    assert (world.advances, fired(world, "a")) == (written, 0)
    lacking.clear()
    world.now_ms += 60_000
    leader.run()
    assert (fired(world, "a"), noted(world, SCHEDULES)) == (1, None)


def test_the_next_leader_tries_it_first(world, leader, lacking):
    """On a machine that knows the zone, say: nobody has to put the job anew."""
    lacking.add("a")
    world.put(a_job("a"), a_job("b"))
    leader.run()
    written = world.advances
    Leader(world).run()
    assert world.advances == written, "what the store says already is not written again"
    lacking.clear()
    Leader(world).run()
    assert (fired(world, "a"), noted(world, SCHEDULES)) == (1, None)


def test_more_of_them_than_a_note_can_name_are_found_among_all_jobs_too(world, leader, lacking):
    names = [f"j{n:03}" for n in range(130)]
    lacking.update(names)
    world.put(*[a_job(name) for name in names])
    leader.run()
    assert (noted(world, SCHEDULES).count, len(noted(world, SCHEDULES).named)) == (130, 50)
    lacking.clear()
    new = Leader(world)
    new.run()
    world.now_ms += 61_000
    new.run()
    assert {name for name in names if not fired(world, name)} == set()
    assert noted(world, SCHEDULES) is None


def test_a_schedule_that_turns_bad_when_it_is_due_is_named_at_once(world, leader):
    world.put(a_job("a", every_ms=10_000))
    leader.run()
    end_all(world)
    world.jobs["a"] = replace(world.jobs["a"], schedule=Cron("no such line"))
    leader.rebuild()
    leader.go(11_000)

    assert world.jobs["a"].next_due_ms is None
    assert list(noted(world, SCHEDULES).named) == ["a"]


def test_it_is_named_no_more_once_it_is_gone_disabled_or_retired(world, leader):
    bad = Cron("no such line")
    world.put(a_job("a", schedule=bad), a_job("b", schedule=bad), a_job("c", schedule=bad))
    leader.run()
    assert sorted(noted(world, SCHEDULES).named) == ["a", "b", "c"]
    world.delete("a")
    world.put(replace(world.jobs["b"], enabled=False))
    leader.run()
    assert list(noted(world, SCHEDULES).named) == ["c"]
    world.put(replace(world.jobs["c"], declared=False))
    leader.run()
    assert noted(world, SCHEDULES) is None


def test_what_somebody_asks_of_it_runs(world, leader):
    world.put(a_job("a", schedule=Cron("no such line")))
    leader.run()
    world.enqueue("a", "asked")
    world.hold("asked", "looked at")
    leader.run()
    world.now_ms += 1_000
    leader.run()
    assert world.runs["asked"].state is RunState.READY
