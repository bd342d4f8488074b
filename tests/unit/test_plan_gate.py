"""Gate: the first failing check gives the reason and the key of its cure."""

import pytest
from msgspec.structs import replace

from pollux.model import Cause, Job, Node, Note, Overlap, Run, lease_lost
from pollux.plan import GateState, Held, gate, stop_of, stop_words
from pollux.plan.gate import HeldRuns, begins_alone, handlers_of

JOB = Job(id="j", handler="h", group="g", target="t")
RUN = Run("r", "j", 1, Cause.ENQUEUED, group="g", target="t")


def stops(*keys, expires_ms=None):
    return {key: Note(key, {"reason": "moving", "by": "ada"}, 1, expires_ms) for key in keys}


def test_a_run_that_nothing_forbids_is_ready():
    assert gate(RUN, JOB, GateState()) is None
    assert gate(RUN, JOB, GateState(handlers=frozenset({"h"}), stops=stops("stop:job:other"))) is None


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("stop:all", "everything is paused: moving (by ada)"),
        ("stop:job:j", "job j is paused: moving (by ada)"),
        ("stop:group:g", "group g is paused: moving (by ada)"),
        ("stop:target:t", "target t is paused: moving (by ada)"),
    ],
)
def test_a_pause_holds_and_names_itself(key, words):
    assert gate(RUN, JOB, GateState(stops=stops(key))) == Held(words, key)


def test_the_widest_pause_is_named_first():
    held = gate(RUN, JOB, GateState(stops=stops("stop:target:t", "stop:job:j", "stop:all")))

    assert held.key == "stop:all"


def test_an_expired_pause_holds_nothing():
    state = stops("stop:all", expires_ms=100)

    assert gate(RUN, JOB, GateState(stops=state, now_ms=99)) is not None
    assert gate(RUN, JOB, GateState(stops=state, now_ms=100)) is None


def test_a_pause_of_no_group_and_no_target_concerns_nobody():
    assert stop_of(stops("stop:group:", "stop:target:"), job_id="j") is None


def test_a_pause_without_a_reason_is_a_pause():
    assert stop_words(Note("stop:all", {})) == "everything is paused"
    assert stop_words(Note("stop:target:a:80", True)) == "target a:80 is paused"


def test_a_forced_run_passes_pauses_but_not_a_missing_handler():
    forced = Run("r", "j", 1, Cause.FORCED, group="g", target="t")

    assert gate(forced, JOB, GateState(stops=stops("stop:all"))) is None
    assert gate(forced, JOB, GateState(handlers=frozenset())).key == "handler:h"


@pytest.mark.parametrize("overlap", [Overlap.SKIP, Overlap.QUEUE, Overlap.CANCEL])
def test_a_firing_begins_alone_unless_its_runs_may_overlap(overlap):
    firing = Run("r", "j", 1)

    assert begins_alone(firing, replace(JOB, overlap=overlap))
    assert not begins_alone(firing, replace(JOB, overlap=Overlap.ALLOW))


@pytest.mark.parametrize(
    "run",
    [
        Run("r", "j", 1, Cause.FORCED),
        Run("r", "j", 1, Cause.ENQUEUED),
        Run("r", "j", 1, fence=1, started_ms=5, attempt=1),
        Run("r", "j", 1, fence=1, lease_losses=1, tried=(lease_lost(1, "n", 5),)),
    ],
)
def test_what_somebody_asked_for_and_what_was_begun_waits_for_nobody(run):
    assert not begins_alone(run, JOB)


def test_what_was_handed_back_before_it_began_begins_alone():
    assert begins_alone(Run("r", "j", 1, fence=1), JOB)


def test_a_run_of_a_job_that_nobody_declares_waits_for_somebody():
    undeclared = Job(id="j", handler="h", declared=False)

    assert gate(RUN, undeclared, GateState()) == Held("no node declares it", "declared:j")


def test_a_run_whose_handler_no_living_node_knows_waits_for_one():
    state = GateState(handlers=handlers_of([Node(id="n", handlers=("x", "y"))]))

    assert gate(RUN, JOB, state) == Held("no live node has handler h", "handler:h")
    assert gate(RUN, JOB, GateState(handlers=None)) is None


# held runs


def a_run(id):
    return Run(id, "j", 1, Cause.ENQUEUED)


def test_only_those_who_wait_for_a_key_are_woken_by_it():
    house = HeldRuns()
    for n in range(5):
        house.park(a_run(f"a{n}"), "k")
    house.park(a_run("b"), "other")

    assert house.wake("k", 7) == 5
    assert list(house.to_check) == ["a0", "a1", "a2", "a3", "a4"]
    assert house.to_check["a0"].feeds == [7]
    assert house.wake("k") == 0
    assert [run.id for run in house.waiting("other")] == ["b"]


def test_a_run_stands_in_one_place():
    house = HeldRuns()
    house.park(a_run("r"), "k")
    house.admit_later(a_run("r"), 50)
    house.admit(a_run("r"), [1])
    house.park(a_run("r"), "k2")

    assert len(house) == 1
    assert house.wake("k") == 0
    house.come_due(100)
    assert house.to_check == {}
    assert house.wake("k2") == 1


def test_a_run_that_is_put_off_comes_at_its_latest_time():
    house = HeldRuns()
    house.admit_later(a_run("r"), 50)
    house.admit_later(a_run("r"), 80)
    assert house.next_ms() == 80

    house.come_due(79)
    assert house.to_check == {}
    house.come_due(80)
    assert list(house.to_check) == ["r"]
    assert house.next_ms() is None


def test_a_forgotten_run_answers_the_entries_that_waited_for_it():
    house = HeldRuns()
    house.admit(a_run("r"), [1])
    house.admit(a_run("r"), [2])

    assert house.forget("r") == [1, 2]
    assert house.forget("r") == []
    assert len(house) == 0
    assert not house.is_open
