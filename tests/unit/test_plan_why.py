"""Explanations of why a job or run runs or does not: a sentence for every state."""

import pytest
from msgspec.structs import replace

from pollux.model import (
    AHEAD_MAX,
    Cause,
    Cron,
    Declares,
    Interval,
    Job,
    Memory,
    Node,
    Note,
    Once,
    OnEvent,
    Overlap,
    Run,
    RunState,
    Tried,
)
from pollux.plan import why_job, why_run
from pollux.units import DAY_MS, HOUR_MS, MINUTE_MS

NOW = 1_800_000_000_000
NODE = Node(id="n1", seats=2, busy=0, handlers=("h",), leads=1, beat_ms=NOW)
JOB = Job(id="j", handler="h", schedule=Interval(60_000), next_due_ms=NOW + 20_000, last_due_ms=NOW - 40_000)
RUN = Run("j@1", "j", NOW - 5_000, visible_ms=NOW - 5_000)
PAUSE = Note("stop:job:j", {"reason": "moving", "by": "ada"}, 1, NOW + 90_000)


def job(stops=(), live=None, nodes=(NODE,), ahead=0, failed="", **changes):
    return why_job(replace(JOB, **changes), stops=stops, now_ms=NOW, live=live, nodes=nodes, ahead=ahead, failed=failed)


def run(stops=(), nodes=(NODE,), ahead=0, of=JOB, **changes):
    return why_run(replace(RUN, **changes), of, stops=stops, nodes=nodes, ahead=ahead, now_ms=NOW)


# a job that fails


RETRIED = replace(
    RUN,
    attempt=2,
    visible_ms=NOW + HOUR_MS,
    error="refused",
    tried=(Tried(1, NOW - 9_000, NOW - 8_000, "refused"), Tried(2, NOW - 3_000, NOW - 2_000, "refused")),
    cause=Cause.SCHEDULE,
)


def test_a_job_whose_run_is_tried_again_says_since_when_it_fails():
    """No run of it has ended, so its memory counts no failure."""
    why = job(live=RETRIED, memory=Memory(last_error="refused", last_end_ms=NOW - 2_000, last_error_ms=NOW - 2_000))
    assert why.reason.startswith("it failed 2 times since 8s ago (refused); tried again in 1h")
    assert why.reason.count("refused") == 1
    once = job(live=replace(RETRIED, attempt=1, tried=RETRIED.tried[:1]))
    assert once.reason.startswith("it failed once, 8s ago (refused); tried again in 1h")


def test_a_job_tells_of_a_run_for_later_that_is_tried_again_beside_what_it_waits_for():
    why = job(live=replace(RETRIED, cause=Cause.ENQUEUED))
    assert why.reason == "it is due in 20s; it failed 2 times since 8s ago (refused); tried again in 1h"
    assert why.cure == "see what went wrong: pollux runs show j@1"


def test_a_revived_run_does_not_count_what_was_tried_before():
    revived = replace(RETRIED, attempt=1)
    assert job(live=revived).reason.startswith("it failed once, 2s ago (refused)")


def test_a_job_that_fails_says_how_often_since_when_and_how():
    memory = Memory(failures=12, failing_since_ms=NOW - 3_600_000, last_error="refused", last_end_ms=NOW - 40_000)
    why = job(memory=memory)
    assert why.reason == "it is due in 20s; it fails: 12 times in a row, first 1h ago; the last error: refused"
    assert why.cure == "see what went wrong: pollux runs --job j --failed", "its history is pruned"
    assert job(memory=memory, failed="j@7").cure == "see what went wrong: pollux runs show j@7"
    paused = job(memory=memory, stops=(PAUSE,))
    assert paused.reason.endswith("it fails: 12 times in a row, first 1h ago; the last error: refused")
    assert paused.cure == "pollux resume j", "what holds it up comes first"


def test_a_job_that_failed_once_says_so_and_one_that_succeeded_since_does_not():
    once = Memory(failures=1, failing_since_ms=NOW - 5_000, last_error="refused")
    assert job(memory=once).reason == "it is due in 20s; its last run failed 5s ago: refused"
    asked = job(schedule=None, next_due_ms=None, memory=once)
    assert asked.reason == "it has no schedule and runs when asked; its last run failed 5s ago: refused"
    mended = Memory(last_error="refused", last_error_ms=NOW - 50_000, last_success_ms=NOW - 5_000)
    assert job(memory=mended).reason == "it is due in 20s"


# who leads


def test_a_job_that_is_overdue_while_nobody_leads_says_that_and_what_helps():
    worker = replace(NODE, leads=0, plans=False)
    why = job(next_due_ms=NOW - 65_000, nodes=(worker,))
    assert (why.answer, why.is_held) == ("stranded", True)
    assert why.reason == "it was due 1m5s ago, and no leader, and no node can lead: nothing is planned"
    assert why.cure.startswith("start one that can: pollux serve")
    standby = replace(NODE, id="n2", leads=0)
    assert job(next_due_ms=NOW - 65_000, nodes=(worker, standby)).cure.startswith("n2 can lead")
    assert job(next_due_ms=NOW - 65_000).reason.endswith("missed due times are made up for step by step")


# versions


def test_where_no_node_serves_the_version_it_says_so_and_which_is_served():
    cure = (
        "start one: pollux serve --scheduler-version 99; or move what is there to a version that is served: "
        "pollux jobs move --from-version 99 --to-version 3"
    )
    node = replace(NODE, scheduler_version=3)
    why = job(nodes=(node,), scheduler_version=99)
    assert (why.answer, why.reason) == ("stranded", "no node serves version 99: it is neither fired nor run")
    assert (why.cure, why.is_held) == (cure, True)
    assert job(nodes=(node,), scheduler_version=99, next_due_ms=None, last_due_ms=None).answer == "stranded"
    for state in (RunState.READY, RunState.HELD):
        why = run(nodes=(node,), scheduler_version=99, state=state)
        assert (why.answer, why.reason, why.cure) == ("stranded", "it waits, but no node serves version 99", cure)


def test_a_version_whose_leader_was_killed_is_started_by_its_number_or_moved():
    """A plain `pollux serve` would be of another version, and cure nothing."""
    killed = replace(NODE, leads=0, leads_ms=NOW - 90_000, scheduler_version=1)
    why = job(nodes=(killed, replace(NODE, id="n2")), scheduler_version=1, next_due_ms=NOW - 65_000)
    assert why.cure == (
        "start one that can: pollux serve --scheduler-version 1 (pollux worker and --no-plans never lead); "
        "or move what is there: pollux jobs move --from-version 1 --to-version 2"
    )
    for why in (job(nodes=(), scheduler_version=1), run(nodes=(), scheduler_version=1)):
        assert why.cure == "start a node: pollux serve --scheduler-version 1"
    assert job(nodes=()).cure == "start a node: pollux serve"


@pytest.mark.parametrize("schedule", [None, OnEvent()])
def test_of_a_job_that_is_never_due_no_due_times_are_told(schedule):
    for changes in ({"declared": False, "source": "code:shop"}, {"enabled": False}):
        assert "due times" in job(**changes).reason
        assert "due times" not in job(schedule=schedule, next_due_ms=None, **changes).reason


def test_a_node_of_another_version_does_not_count():
    """It has seats and the handler, but no run of this version ever comes to it."""
    others = (replace(NODE, scheduler_version=3), replace(NODE, id="n2", busy=2))
    assert run(nodes=others).reason.startswith("it is ready, but all 2 seats are busy")
    assert job(nodes=(replace(NODE, scheduler_version=3), replace(NODE, id="n2", handlers=()))).answer == "stranded"


# jobs


def test_a_job_waits_for_its_time_and_says_when():
    why = job()

    assert (why.answer, why.reason, why.expected_ms) == ("waits", "it is due in 20s", NOW + 20_000)
    assert not why.is_held


@pytest.mark.parametrize(
    ("ms", "words"), [(158_321, "it is due in 2m38s"), (1_099, "it is due in 1s"), (266, "it is due in 266ms")]
)
def test_a_wait_is_told_without_milliseconds_from_a_second_on(ms, words):
    assert job(next_due_ms=NOW + ms, schedule=Interval(HOUR_MS)).reason == words


def test_a_due_time_further_ahead_than_the_schedule_allows_is_told_with_its_reason():
    why = job(next_due_ms=NOW + DAY_MS, last_due_ms=NOW + DAY_MS - 60_000)
    assert why.reason == (
        "it is due in 1d, further ahead than its schedule allows: it was planned by a clock that was set back "
        "since; the leader corrects it"
    )
    assert "pollux nodes" in why.cure


def test_a_retry_that_was_planned_by_a_clock_that_came_back_says_so():
    tried = (Tried(1, NOW + DAY_MS - 10, NOW + DAY_MS, "no answer"),)
    why = run(visible_ms=NOW + DAY_MS + 5_000, attempt=1, error="no answer", tried=tried)
    assert "planned by a clock that was set back" in why.reason
    near = (Tried(1, NOW - 10, NOW, "no answer"),)
    assert "set back" not in run(visible_ms=NOW + 5_000, attempt=1, error="no answer", tried=near).reason


@pytest.mark.parametrize(
    ("changes", "answer", "words"),
    [
        ({"next_due_ms": NOW - 10}, "due", "it is due now"),
        ({"next_due_ms": NOW - 65_000}, "due", "it was due 1m5s ago"),
        ({"enabled": False, "next_due_ms": None}, "disabled", "it is disabled"),
        ({"declared": False}, "undeclared", "no node declares it"),
        ({"schedule": None, "next_due_ms": None}, "waits", "runs when asked"),
        ({"schedule": OnEvent(), "next_due_ms": None}, "waits", "fires on events only"),
        ({"schedule": Once(), "next_due_ms": None, "last_due_ms": NOW}, "done", "a once-job fires once per id"),
        ({"schedule": Once(), "next_due_ms": None, "last_due_ms": None}, "waits", "not planned it yet"),
        ({"next_due_ms": None, "last_due_ms": None}, "waits", "not planned it yet"),
    ],
)
def test_a_job_says_why_it_does_not_run(changes, answer, words):
    why = job(**changes)

    assert why.answer == answer
    assert words in why.reason


@pytest.mark.parametrize("schedule", [Once(), Interval(MINUTE_MS)])
def test_a_job_that_was_put_just_now_says_how_to_start_a_node_where_none_lives(schedule):
    why = job(schedule=schedule, next_due_ms=None, last_due_ms=None, nodes=())

    assert (why.answer, why.cure) == ("stranded", "start a node: pollux serve")
    assert "see that a node leads" in job(schedule=schedule, next_due_ms=None, last_due_ms=None).cure


def test_a_job_with_a_bad_schedule_says_what_is_bad():
    memory = Memory(last_error="InvalidInput: no such line", skips={"broken": 1})
    why = job(schedule=Cron("no such line"), next_due_ms=None, memory=memory)

    assert why.is_held
    assert why.reason == "its schedule cannot be used: InvalidInput: no such line"
    assert why.cure


def test_a_paused_job_says_by_whom_and_until_when():
    why = job(stops=[PAUSE])

    assert why.answer == "paused"
    assert why.reason.startswith("job j is paused: moving (by ada)")
    assert why.is_held


@pytest.mark.parametrize(
    ("changes", "expected_ms"),
    [
        ({"next_due_ms": NOW + 8_000_000}, NOW + 8_000_000),  # the pause is over by then
        ({"schedule": Cron("0 0 * * *"), "next_due_ms": NOW + 60_000}, (NOW // 86_400_000 + 1) * 86_400_000),
        ({"schedule": Once(NOW + 30_000), "next_due_ms": NOW + 30_000}, NOW + 90_000),
        ({"schedule": None, "next_due_ms": None}, None),
        ({"schedule": Cron("no such line"), "next_due_ms": NOW + 60_000}, None),
    ],
)
def test_a_paused_job_is_expected_at_its_first_due_time_after_the_pause(changes, expected_ms):
    """Those that fall into the pause are skipped; a moment that comes once waits for its end."""
    assert job(stops=[PAUSE], **changes).expected_ms == expected_ms


def test_the_due_times_of_an_interval_in_a_pause_are_not_expected():
    expected_ms = job(stops=[PAUSE]).expected_ms
    assert NOW + 90_000 <= expected_ms < NOW + 150_000


def test_a_pause_that_is_over_pauses_nobody():
    assert job(stops=[replace(PAUSE, expires_ms=NOW)]).answer == "waits"


def test_a_job_that_nobody_can_run_says_so():
    assert job(nodes=()).reason == "no live node: it is neither fired nor run"
    assert job(nodes=[Node(id="m", handlers=("x",))]).reason == "no live node has handler h"
    assert job(nodes=()).is_held


def test_a_running_job_says_where_and_what_becomes_of_its_due_times():
    leased = replace(RUN, state=RunState.LEASED, owner="n1", fence=1, lease_until_ms=NOW + 1)
    why = job(live=leased)

    assert why.answer == "running"
    assert why.reason == "node n1 runs it, delivery 1; due times meanwhile are skipped and counted"


DRAINED = "all workers are drained by ann since 2027-01-15T08:00:00Z (database moves)"
DRAIN = Note("stop:claims", {"reason": "database moves", "by": "ann", "at_ms": NOW + 7})


def test_a_job_of_drained_workers_says_by_whom_since_when_and_what_ends_it():
    why = job(stops=[DRAIN])

    assert (why.answer, why.reason) == ("drained", f"it is due in 20s, and its run will wait: {DRAINED}")
    assert (why.cure, why.expected_ms, why.is_held) == ("pollux resume --workers", None, True)


@pytest.mark.parametrize(
    ("overlap", "words"),
    [
        ("skip", "; this one run waits, due times after it are skipped and counted until it has run"),
        ("queue", "; one due time meanwhile waits for it"),
        ("cancel", "; the next due time cancels it"),
        ("allow", "; due times after it wait with it"),
    ],
)
def test_a_job_whose_run_waits_for_drained_workers_says_what_becomes_of_its_due_times(overlap, words):
    why = job(stops=[DRAIN], live=RUN, overlap=Overlap(overlap))

    assert (why.answer, why.reason) == ("drained", f"it is ready, but {DRAINED}{words}")


def test_what_somebody_asked_for_is_waited_for_also_where_due_times_cancel():
    why = job(live=replace(RUN, cause=Cause.FORCED), overlap=Overlap.CANCEL)

    assert why.reason.endswith("; one due time meanwhile waits for it")


def test_a_drain_that_has_run_out_drains_nobody():
    assert job(stops=[replace(DRAIN, expires_ms=NOW)]).answer == "waits"
    moving = job(stops=[replace(DRAIN, expires_ms=NOW + 1)])
    assert (moving.answer, moving.cure) == ("drained", "it ends by itself when that is over")


def test_a_run_says_so_if_each_node_that_could_run_it_is_drained():
    own = Note("stop:claims:n1", {"by": "ann", "at_ms": NOW})
    other = Node(id="n2", seats=1, handlers=("x",))
    why = run(stops=[own], nodes=[NODE, other])

    assert (why.answer, why.cure) == ("drained", "pollux resume --workers --node n1")
    assert why.reason == "it is ready, but node n1 is drained by ann since 2027-01-15T08:00:00Z"
    assert run(stops=[own], nodes=[NODE, replace(NODE, id="n3")]).answer == "ready"


def test_a_job_of_code_that_is_gone_says_so_and_how_to_take_it_away():
    others = [Node(id="m", handlers=("x",), declares=(Declares("code:other"),))]
    why = job(nodes=others, source="code:shop")

    assert why.answer == "stranded"
    assert why.cure == "no node of code:shop is alive: start one, or delete the job: pollux jobs delete j"
    assert job(nodes=others, source="code:other").cure == "start a node that has it"
    assert job(nodes=others).cure == "start a node that has it", "one of the API has no node of its own"


def test_a_retired_job_and_what_waits_of_it_say_so_and_how_to_end_it():
    """Its app lives, in a newer release: to start one would not help."""
    newer = [replace(NODE, handlers=("x",), declares=(Declares("code:shop", 8),))]
    retired = replace(JOB, source="code:shop", release=8, declared=False)
    cure = "declare it again, in a release that is not older; or delete it with its waiting runs: pollux jobs delete j"
    why = job(nodes=newer, source="code:shop", release=8, declared=False)
    assert (why.answer, why.cure) == ("undeclared", cure)
    assert why.reason.startswith("no node declares it: code:shop has no such job since release 8")
    why = run(nodes=newer, of=retired, state=RunState.HELD, held_reason="no live node has handler h")
    words = "no node declares it: code:shop has no such job since release 8; it waits until one does"
    assert (why.answer, why.reason, why.cure) == ("held", words, cure)
    why = run(nodes=newer, of=retired, state=RunState.READY)
    assert (why.answer, why.cure) == ("stranded", cure)


def test_a_job_whose_run_is_held_tells_the_reason_of_the_run():
    held = replace(RUN, state=RunState.HELD, held_reason="waits for the previous run")

    assert job(live=held).reason == "waits for the previous run"
    assert job(live=held).is_held


# runs


def test_a_held_run_tells_its_reason():
    why = run(state=RunState.HELD, held_reason="waits for the previous run")

    assert (why.answer, why.reason, why.is_held) == ("held", "waits for the previous run", True)


def test_a_run_at_the_gate_is_looked_at_next():
    assert "the leader checks it next" in run(state=RunState.HELD, held_reason="at the gate").reason


def test_a_run_held_by_a_pause_tells_the_pause_as_it_is_now():
    why = run(state=RunState.HELD, held_reason="at the gate", stops=[PAUSE])

    assert (why.answer, why.reason) == ("paused", "job j is paused: moving (by ada)")
    assert why.expected_ms == NOW + 90_000
    assert run(state=RunState.HELD, held_reason="at the gate", stops=[PAUSE], cause=Cause.FORCED).answer == "held"


def test_a_run_held_for_its_handler_names_it():
    why = run(state=RunState.HELD, held_reason="at the gate", nodes=[Node(id="m")])

    assert why.reason == "no live node has handler h"


def test_a_run_that_is_tried_again_later_says_when_and_after_what():
    why = run(visible_ms=NOW + 10_000, attempt=2, error="E")

    assert (why.answer, why.expected_ms) == ("waits", NOW + 10_000)
    assert why.reason == "it failed 2 times (E); tried again in 10s"
    assert run(visible_ms=NOW + 10_000, state=RunState.HELD).reason == "its time comes in 10s"


def test_a_run_that_was_handed_back_for_a_while_says_why():
    why = run(visible_ms=NOW + 10_000, progress="node n cannot read its job; another one may")

    assert (why.answer, why.expected_ms) == ("waits", NOW + 10_000)
    assert why.reason == "its time comes in 10s; last progress: node n cannot read its job; another one may"


def test_a_ready_run_says_whom_it_waits_for():
    assert run().reason == "it is ready and will be claimed next"
    assert "all 2 seats are busy" in run(nodes=[replace(NODE, busy=2)]).reason
    assert run(nodes=()).reason == "it is ready, but no node lives"
    assert run(nodes=[Node(id="m", handlers=("x",))]).reason == "it is ready, but no live node has handler h"
    assert run(nodes=[replace(NODE, draining=True)]).reason == "it is ready, but every live node drains"
    assert run(nodes=[Node(id="m")], of=replace(JOB, source="code:shop")).cure.endswith("pollux jobs delete j")
    assert run(nodes=()).is_held
    assert not run().is_held


@pytest.mark.parametrize("ask", [run, lambda of=JOB, **changes: job(live=RUN, memory=of.memory, **changes)])
def test_a_ready_run_and_its_job_say_how_many_are_ahead_and_when_it_may_start(ask):
    taught = replace(JOB, memory=Memory(duration_ms=3_000))
    why = ask(ahead=99, of=taught)
    assert why.reason.startswith("it is ready; 99 runs are ahead of it")
    assert why.expected_ms == NOW + 49 * 3_000, "two seats, three seconds each"
    assert "higher priority" in why.cure
    assert ask(ahead=45_000, of=taught).reason.startswith("it is ready; 45,000 runs are ahead of it")
    assert ask(ahead=45_000, of=taught).expected_ms == NOW + 22_500 * 3_000
    assert ask(ahead=AHEAD_MAX, of=taught).expected_ms == NOW + 50_000 * 3_000
    assert ask(ahead=99).expected_ms is None, "how long a run takes is not known yet"
    busy = ask(ahead=99, nodes=[replace(NODE, busy=2)], of=taught)
    assert busy.reason.startswith("it is ready, but all 2 seats are busy; 99 runs are ahead of it")
    assert busy.expected_ms == NOW + 50 * 3_000
    assert ask(ahead=1).reason.startswith("it is ready and will be claimed next; 1 run is ahead of it")


@pytest.mark.parametrize("ahead", [AHEAD_MAX + 1, 450_000])
def test_beyond_a_hundred_thousand_ahead_no_start_is_expected(ahead):
    """Most stores count to one more and no further."""
    taught = replace(JOB, memory=Memory(duration_ms=3_000))
    for why in (run(ahead=ahead, of=taught), job(live=RUN, ahead=ahead, memory=taught.memory)):
        assert why.reason.startswith("it is ready; more than 100,000 runs are ahead of it")
        assert why.expected_ms is None


def test_what_is_ahead_of_a_run_and_was_not_counted_is_not_told():
    assert run(ahead=None).reason == "it is ready"
    assert run(ahead=None).expected_ms is None


def test_a_running_run_says_who_runs_it_and_how_the_attempts_before_went():
    """Not for how long: what a run has of times is of the attempt before, and that one was not this one."""
    leased = {"state": RunState.LEASED, "owner": "n1", "fence": 2, "lease_until_ms": NOW + 1}
    again = leased | {"attempt": 1, "started_ms": NOW - 61_000, "finished_ms": NOW - 60_000, "error": "E"}

    assert run(**leased).reason == "node n1 runs it, delivery 2"
    assert run(**again).reason == "node n1 runs it, delivery 2; it failed once before: E"
    assert run(**again | {"attempt": 3}).reason == "node n1 runs it, delivery 2; it failed 3 times before, the last: E"
    assert "asked to stop: enough" in run(**leased, cancel="enough").reason
    assert "its lease is over" in run(**{**leased, "lease_until_ms": NOW}).reason


@pytest.mark.parametrize(
    ("changes", "answer", "words"),
    [
        ({"state": RunState.DONE, "finished_ms": NOW - 2_000}, "done", "it is done, 2s ago"),
        (
            {"state": RunState.DONE, "failed": True, "error": "E"},
            "failed",
            "it failed: E; it is not tried again, its job fires anew",
        ),
        ({"state": RunState.DEAD, "error": "E"}, "dead", "it is a dead letter: E"),
        ({"state": RunState.CANCELLED, "cancel": "enough"}, "cancelled", "it was cancelled: enough"),
    ],
)
def test_a_finished_run_says_how_it_ended(changes, answer, words):
    why = run(**changes)

    assert (why.answer, why.reason) == (answer, words)
    assert not why.is_held


@pytest.mark.parametrize("state", list(RunState))
@pytest.mark.parametrize("owner", [JOB, None])
@pytest.mark.parametrize("nodes", [(), (NODE,)])
def test_there_is_an_answer_in_words_for_everything(state, owner, nodes):
    why = run(state=state, of=owner, nodes=nodes, ahead=None)

    assert why.answer
    assert len(why.reason) >= 10
