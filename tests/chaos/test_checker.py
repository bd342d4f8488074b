"""The checker itself: each rule gets a ledger and a store that break it, and only it."""

import pytest
from msgspec.structs import replace

from pollux.model import Cause, End, Ended, FeedItem, Interval, Job, Memory, Run, RunState
from pollux.schedule import next_due
from tests.chaos.checker import Snapshot, judge, repeats_count, unfinished
from tests.chaos.ledger import Ledger, Told, read

T0 = 1_800_000_000_000
PID, OTHER = 11, 12


def done(run_id: str, *, fence: int = 1, pid: int = PID, **fields) -> Run:
    fields = {"job_id": "plain", "due_ms": T0, "cause": Cause.ENQUEUED, "state": RunState.DONE, **fields}
    return Run(id=run_id, fence=fence, result={"pid": pid, "fence": fence}, **fields)


def accepted(*run_ids: str) -> str:
    return "".join(f"ask {run_id}\nenq {run_id} ok\n" for run_id in run_ids)


def step(kind: str, run_id: str, *, fence: int = 1, attempt: int = 1, pid: int = PID, at: int = 0) -> str:
    return f"{kind} {run_id} {fence} {attempt} {pid} {T0} {at}\n"


def ran(run_id: str, *, fence: int = 1, attempt: int = 1, pid: int = PID, at: int = 0) -> str:
    return "".join(step(kind, run_id, fence=fence, attempt=attempt, pid=pid, at=at) for kind in ("run", "end"))


def broken(text: str, *runs: Run, jobs: tuple[Job, ...] = (), **options) -> dict[str, str]:
    found = judge(Told(text), Snapshot(runs=runs, jobs=jobs), **options)
    return {each.rule: str(each) for each in found}


def ticking(*, skipped: int = 0, dues: int = 4) -> tuple[Job, list[int]]:
    """An interval job that had so many dues, the first of them off its grid."""
    spec = Interval(every_ms=500)
    times = [T0 + 3]
    for _ in range(dues):
        times.append(next_due(spec, "tick", times[-1]))
    memory = Memory(skips={"missed": skipped} if skipped else {})
    return Job(id="tick", handler="tick", schedule=spec, next_due_ms=times[-1], memory=memory), times[:-1]


def fired(due: int) -> Run:
    return Run(id=f"tick@{due}", job_id="tick", due_ms=due, cause=Cause.SCHEDULE)


def test_a_world_in_order_breaks_no_rule():
    parent = done("a", payload={"follow": 1})
    child = done("b", payload={"parent": "a", "slot": 0})
    retried = done("c", fence=3, attempt=2)
    text = accepted("a", "c") + ran("a", at=1) + ran("b", at=2)
    text += "".join(step("run", "c", fence=n, attempt=n, at=n) + step("fail", "c", fence=n, attempt=n) for n in (1, 2))
    text += ran("c", fence=3, attempt=3, at=3)
    job, dues = ticking()

    assert broken(text, parent, child, retried, *map(fired, dues), jobs=(job,)) == {}


def test_an_accepted_run_that_is_gone_is_lost():
    assert "a was accepted and is gone" in broken(accepted("a"))["lost"]


def test_an_accepted_run_that_still_waits_is_not_lost():
    assert broken(accepted("a"), Run(id="a", job_id="plain", due_ms=T0, cause=Cause.ENQUEUED)) == {}


def test_an_unanswered_run_may_be_there_or_not():
    unanswered = "ask a\nenq a unknown\n"
    assert broken(unanswered) == {}
    assert broken(unanswered + ran("a"), done("a")) == {}


@pytest.mark.parametrize(
    ("text", "runs", "said"),
    [
        (ran("x"), [done("x")], "nobody asked"),
        ("ask x\nenq x err\n" + ran("x"), [done("x")], "was refused"),
        ("ask x\n" + ran("x"), [], "ran and is not there"),
    ],
)
def test_a_run_that_nobody_asked_for_is_a_phantom(text, runs, said):
    found = broken(text, *runs)
    assert said in found.pop("phantom")
    assert found == {}


def test_a_run_both_finished_and_live_has_two_outcomes():
    found = broken(accepted("a") + ran("a"), done("a"), replace(done("a"), state=RunState.READY))
    assert "a is there as done, ready" in found["double outcome"]


def test_a_due_that_fired_under_two_ids_is_a_double():
    job, dues = ticking()
    twin = replace(fired(dues[0]), id="another")
    found = broken("", *map(fired, dues), twin, jobs=(job,))
    assert "fired 2 times" in found["double outcome"]


def test_a_success_needs_a_handler_that_reached_its_end():
    found = broken(accepted("a") + step("run", "a"), done("a"))
    assert "no handler of that fence" in found.pop("outcome without an end")
    assert found == {}


def test_the_result_of_a_stale_delivery_must_not_stand():
    """Fence 2 was delivered, but the recorded result is that of fence 1."""
    text = accepted("a") + step("run", "a", fence=1) + step("cut", "a", fence=1) + ran("a", fence=2, pid=OTHER, at=1)
    assert broken(text, done("a", fence=2, pid=OTHER)) == {}
    stale = replace(done("a", fence=2), result={"pid": PID, "fence": 1})
    assert "of another delivery" in broken(text, stale)["outcome without an end"]


def test_a_follow_up_twice_is_seen():
    children = [done(name, payload={"parent": "a", "slot": 0}) for name in ("b", "c")]
    found = broken(accepted("a") + ran("a") + ran("b") + ran("c"), done("a", payload={"follow": 1}), *children)
    assert "follow-up 0 of a is there 2 times" in found.pop("follow-ups")
    assert found == {}


def test_a_follow_up_of_a_run_that_is_not_done_is_seen():
    parent = Run(id="a", job_id="plain", due_ms=T0, cause=Cause.ENQUEUED, payload={"follow": 1})
    found = broken(accepted("a") + ran("b"), parent, done("b", payload={"parent": "a", "slot": 0}))
    assert "a has a follow-up and is not done" in found.pop("follow-ups")
    assert found == {}


def test_a_done_run_without_its_follow_up_is_seen():
    found = broken(accepted("a") + ran("a"), done("a", payload={"follow": 2}))
    assert "a is done without its follow-up 1" in found.pop("follow-ups")
    assert found == {}


def test_a_due_that_neither_fired_nor_was_counted_is_missing():
    job, dues = ticking()
    found = broken("", *map(fired, dues[:1] + dues[2:]), jobs=(job,))
    assert f"not fired: [{dues[1]}]" in found.pop("firings")
    assert found == {}


def test_a_due_that_was_counted_as_skipped_is_in_order():
    job, dues = ticking(skipped=1)
    assert broken("", *map(fired, dues[:1] + dues[2:]), jobs=(job,)) == {}


def test_a_due_both_fired_and_counted_is_one_too_many():
    job, dues = ticking(skipped=1)
    assert "1 were recorded as skipped" in broken("", *map(fired, dues), jobs=(job,))["firings"]


def test_a_firing_off_the_grid_is_seen():
    job, dues = ticking()
    found = broken("", *map(fired, [*dues, dues[-1] + 1]), jobs=(job,))
    assert "which is no due of it" in found.pop("off the grid")
    assert found == {}


def test_a_next_due_off_the_grid_is_seen():
    job, dues = ticking()
    found = broken("", *map(fired, dues), jobs=(replace(job, next_due_ms=job.next_due_ms - 1),))
    assert "is next due at" in found.pop("off the grid")
    assert found == {}


def test_a_firing_before_it_is_due_is_seen():
    job, dues = ticking()
    found = broken("", *map(fired, [*dues, job.next_due_ms]), jobs=(job,))
    assert "which is no due between its first and its next one" in found.pop("firings")
    assert found == {}


def test_firings_before_the_first_due_are_on_the_grid_if_the_first_is_known():
    """The clock was set back: what is on the grid is no stray, also before the one due that is off it."""
    job, dues = ticking()
    earlier = dues[1] - 10 * 500
    found = broken("", *map(fired, [earlier, *dues]), jobs=(job,), first_due={"tick": dues[0]})
    assert list(found) == ["firings"]
    assert "off the grid" in broken("", *map(fired, [earlier, *dues]), jobs=(job,))


def test_a_first_due_that_never_fired_is_missing_if_it_is_known():
    job, dues = ticking()
    assert "firings" not in broken("", *map(fired, dues[1:]), jobs=(job,))
    assert "firings" in broken("", *map(fired, dues[1:]), jobs=(job,), first_due={"tick": dues[0]})


def test_a_recurring_job_that_stopped_is_seen():
    job, dues = ticking()
    found = broken("", *map(fired, dues), jobs=(replace(job, next_due_ms=None),))
    assert "fired 4 times and is next due at None" in found.pop("off the grid")
    assert found == {}


def test_a_recurring_job_that_never_fired_is_seen():
    assert "fired 0 times" in broken("", jobs=(ticking()[0],))["off the grid"]


TWICE = accepted("a") + step("run", "a", at=1) + ran("a", fence=2, pid=OTHER, at=9)


@pytest.mark.parametrize(
    "reason", [f"kill {PID} 1 5\n", f"lost a {PID}\n", step("cut", "a", at=5)], ids=["kill", "lost", "cut"]
)
def test_a_handler_may_start_again_for_a_reason(reason):
    told = Told(TWICE + reason)
    assert judge(told, Snapshot(runs=(done("a", fence=2, pid=OTHER),), jobs=())) == []
    assert repeats_count(told) == 1


@pytest.mark.parametrize(("lost", "is_excused"), [(f"lost a {PID}\n", True), (f"lost b {PID}\n", False), ("", False)])
def test_who_stood_still_before_its_first_step_may_come_second(lost, is_excused):
    late = accepted("a") + ran("a", fence=2, pid=OTHER, at=1) + step("run", "a", at=9)
    assert ("repeats" not in broken(late + lost, done("a", fence=2, pid=OTHER))) == is_excused


@pytest.mark.parametrize("reason", ["", f"kill {PID} 1 0\n"], ids=["nothing happened", "killed before it started"])
def test_a_handler_that_starts_again_without_a_reason_is_seen(reason):
    found = broken(TWICE + reason, done("a", fence=2, pid=OTHER))
    assert "though nothing happened" in found.pop("repeats")
    assert found == {}


def test_a_kill_excuses_no_more_repeats_than_it_held_leases():
    text = TWICE + TWICE.replace(" a", " b") + f"kill {PID} 1 5\n"
    found = broken(text, *(done(name, fence=2, pid=OTHER) for name in "ab"))
    assert "2 runs started again" in found.pop("repeats")
    assert found == {}


def test_two_handlers_under_one_fence_are_seen():
    text = accepted("a") + step("run", "a", at=1) + f"kill {PID} 1 2\n" + ran("a", pid=OTHER, at=3)
    found = broken(text, done("a", pid=OTHER))
    assert "2 times under fence 1" in found.pop("one fence twice")
    assert found == {}


@pytest.mark.parametrize("charged", [1, 3])
def test_an_attempt_is_charged_for_failures_only(charged):
    text = accepted("a") + "".join(
        step("run", "a", fence=n, attempt=n, at=n) + step("fail", "a", fence=n, attempt=n) for n in (1, 2)
    )
    found = broken(text + ran("a", fence=3, attempt=3, at=3), done("a", fence=3, attempt=charged))
    assert f"charged with {charged} failures and had 2" in found.pop("charges")
    assert found == {}


def test_a_failure_whose_outcome_was_lost_with_its_worker_is_charged_once():
    text = accepted("a") + f"kill {PID} 1 5\n"
    text += step("run", "a", at=1) + step("fail", "a", at=1)
    text += step("run", "a", fence=2, pid=OTHER, at=6) + step("fail", "a", fence=2, pid=OTHER, at=6)
    text += ran("a", fence=3, attempt=2, pid=OTHER, at=7)
    assert broken(text, done("a", fence=3, pid=OTHER, attempt=1)) == {}


def test_a_term_with_two_leaders_is_seen():
    assert broken(f"term 1 {PID} 1\nterm 2 {OTHER} 2\n") == {}
    assert f"term 1 was won by [{PID}, {OTHER}]" in broken(f"term 1 {PID} 1\nterm 1 {OTHER} 2\n")["terms"]


def test_unfinished_runs_are_named_but_for_some_jobs():
    live = Run(id="a", job_id="plain", due_ms=T0)
    world = Snapshot(runs=(live, done("b"), replace(live, id="c", job_id="tick")), jobs=())
    assert [run.id for run in unfinished(world, but=["tick"])] == ["a"]


@pytest.mark.parametrize(("ended", "word"), [(1, "has learnt 1 ends, and 1 are unread"), (3, "has learnt 3 ends")])
def test_an_end_that_was_not_learnt_or_learnt_twice(ended, word):
    """Two are in the memory, one of which is in the feed, too; a third is in the feed alone."""
    runs = [done(run_id) for run_id in "abc"]
    entries = [Ended((End(run.id, "plain", RunState.DONE, Cause.ENQUEUED, T0, T0),)) for run in runs[1:]]
    feed = tuple(FeedItem(number, entry) for number, entry in enumerate(entries, 7))
    text = accepted("a", "b", "c") + "".join(map(ran, "abc"))

    def found(ended):
        job = Job(id="plain", handler="h", memory=Memory(ended=ended, learnt=((7, T0),)))
        return {each.rule: str(each) for each in judge(Told(text), Snapshot(tuple(runs), (job,), feed))}

    assert found(2) == {}
    assert list(found(ended)) == ["learnt"]
    assert word in found(ended)["learnt"]


def test_what_is_written_is_read_back(tmp_path):
    ledger = Ledger(tmp_path / "ledger")
    ledger.write("ask", "a")
    ledger.handler("run", "a", 2, 1, T0)
    ledger.write("kill", PID, 3, 7)
    told = read(ledger.path)
    ledger.close()

    assert told.asked == {"a"}
    assert (told.runs[0].run_id, told.runs[0].fence, told.runs[0].due_ms) == ("a", 2, T0)
    assert told.kills[0].in_flight == 3


def test_a_line_that_a_kill_cut_off_counts_as_not_written_and_spoils_no_other(tmp_path):
    ledger = Ledger(tmp_path / "ledger")
    ledger.handler("run", "a", 2, 1, T0)
    ledger.handler("fail", "a", 2, 1, T0)
    whole = ledger.path.read_bytes()
    for length in range(whole.index(b"fail") + 1, whole.rindex(b";")):
        ledger.path.write_bytes(whole[:length])
        ledger.write("ask", "b")
        told = read(ledger.path)
        assert (len(told.runs), told.fails, told.asked) == (1, [], {"b"})
    ledger.close()


def test_a_torn_line_is_not_taken_for_the_truth():
    with pytest.raises(ValueError, match="not a line of a ledger"):
        Told("enq a\n")
