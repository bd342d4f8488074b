"""Planner statistics, compared with a full count."""

from hypothesis import given
from hypothesis import strategies as some

from pollux.model import Interval, Job, Run, RunState
from pollux.plan import Planner
from pollux.plan.gate import HeldRuns
from pollux.plan.timers import Timers

KEYS = ("stop:all", "stop:target:db", "previous:a", "handler:x")


@given(some.lists(some.tuples(some.integers(0, 30), some.integers(0, 100)), max_size=80), some.integers(0, 110))
def test_what_is_due_before_a_time_is_counted_as_a_walk_over_all_would(puts, at_ms):
    timers = Timers()
    for job, due_ms in puts:
        timers.put(f"j{job}", due_ms, anyway=True)
    latest = dict(puts)
    assert timers.count_before(at_ms, 1_000) == sum(due_ms < at_ms for due_ms in latest.values())


def test_what_is_due_soon_is_counted_to_a_limit_and_costs_no_more():
    timers = Timers()
    for number in range(5_000):
        timers.put(f"j{number}", number, anyway=True)
    assert timers.count_before(10_000, 1_000) == 1_000
    assert timers.count_before(0, 1_000) == 0


STEPS = some.tuples(
    some.sampled_from(["park", "wake", "forget", "admit", "later"]), some.integers(0, 5), some.sampled_from(KEYS)
)


@given(some.lists(STEPS, max_size=60))
def test_what_is_parked_is_counted_by_kind_whatever_happens_at_the_gate(steps):
    house, parked = HeldRuns(), {}
    for what, number, key in steps:
        run = Run(id=f"r{number}", job_id="a", due_ms=0, state=RunState.HELD)
        match what:
            case "park":
                house.park(run, key)
                parked[run.id] = key
            case "wake":
                house.wake(key)
                parked = {run_id: at for run_id, at in parked.items() if at != key}
            case "forget":
                house.forget(run.id)
                parked.pop(run.id, None)
            case "admit":
                house.admit(run, ())
                parked.pop(run.id, None)
            case "later":
                house.admit_later(run, 5)
                parked.pop(run.id, None)
    kinds = [key.partition(":")[0] for key in parked.values()]
    assert {kind: count for kind, count in house.held.items() if count} == {kind: kinds.count(kind) for kind in kinds}


def test_a_planner_tells_its_timers_and_what_is_due_soon():
    planner = Planner()
    planner.begin(0, notes=[], held=[], nodes=[], ready=0)
    wants = planner.wants(0)
    assert wants.timers is not None
    schedule = Interval(every_ms=60_000)
    dues = (1_000, 11_999, 12_000, 50_000)
    timers = [
        Job(
            id=f"j{due_ms}", handler="h", schedule=schedule, revision=1, next_due_ms=due_ms, last_due_ms=due_ms - 60_000
        )
        for due_ms in dues
    ]
    planner.learn(timers=timers)
    looked = planner.look(soon_ms=12_000)
    assert (looked.timers, looked.due_soon, looked.late) == (4, 2, 0)
    assert looked.held == {"gate": 0, "later": 0}
