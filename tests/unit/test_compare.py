"""Figures of `compare` for runs that are known to the millisecond."""

import random

import msgspec
import pytest

from pollux import Pollux
from pollux.app.operations import storage
from pollux.app.operations.storage import Percentiles, spread
from pollux.clock import FakeClock
from pollux.errors import InvalidInput, NotFound
from pollux.model import Run, RunState
from pollux.model.leader_notes import HourlyCounts, hour_put
from pollux.units import HOUR_MS, MINUTE_MS

NOW = 1_000 * HOUR_MS
DUE = NOW - 30 * MINUTE_MS
NOTHING = Percentiles(count=0, p50_ms=0, p99_ms=0, max_ms=0)


@pytest.fixture
async def app():
    app = Pollux("memory://", clock=FakeClock(NOW))
    await app.open()
    yield app
    await app.close()


def a_run(name, *, late=0, took=0, version=1, state=RunState.DONE, **fields):
    """One that began so late, and took so long."""
    times = {"due_ms": DUE, "started_ms": DUE + late, "finished_ms": DUE + late + took}
    return Run(id=name, job_id="job", state=state, scheduler_version=version, **times | fields)


async def compared(app, runs, *numbers, since_ms=NOW - HOUR_MS):
    await app.backend.load([("run", msgspec.to_builtins(run)) for run in runs])
    return await app.operations.versions.compare(numbers or (1,), since_ms=since_ms)


async def test_lateness_is_from_due_to_start_and_duration_from_start_to_end(app):
    runs = [a_run(f"r{n}", late=n, took=1_000 * n) for n in random.Random(7).sample(range(1, 201), 200)]

    [one] = await compared(app, runs)

    assert one.late == Percentiles(count=200, p50_ms=100, p99_ms=198, max_ms=200)
    assert one.took == Percentiles(count=200, p50_ms=100_000, p99_ms=198_000, max_ms=200_000)


async def test_each_version_has_the_figures_of_its_own_runs_in_the_order_that_was_asked_for(app):
    old = [a_run(f"old{n}", late=10, took=500) for n in range(4)]
    new = [a_run(f"new{n}", late=3, took=700, version=2) for n in range(2)]

    two, one = await compared(app, old + new, 2, 1)

    assert [(each.version, each.ended, each.kept) for each in (one, two)] == [(1, 4, 4), (2, 2, 2)]
    assert (one.late, one.took) == (Percentiles(4, 10, 10, 10), Percentiles(4, 500, 500, 500))
    assert (two.late, two.took) == (Percentiles(2, 3, 3, 3), Percentiles(2, 700, 700, 700))


async def test_a_run_that_was_tried_again_was_not_late_but_its_last_attempt_took_its_time(app):
    """It began when its retry was due: that says nothing of how late the first attempt was."""
    runs = [a_run("once", late=5, took=20), a_run("again", late=60_000, took=40, attempt=1)]

    [one] = await compared(app, runs)

    assert one.late == Percentiles(1, 5, 5, 5)
    assert one.took == Percentiles(2, 20, 40, 40)


async def test_a_run_that_never_began_has_no_times(app):
    never = a_run("never", state=RunState.CANCELLED, started_ms=None, finished_ms=DUE + 9_000)

    [one] = await compared(app, [never, a_run("ran", late=2, took=3)])

    assert (one.ended, one.cancelled, one.kept) == (2, 1, 2)
    assert (one.late, one.took) == (Percentiles(1, 2, 2, 2), Percentiles(1, 3, 3, 3))


async def test_only_runs_that_never_began_have_no_times_at_all(app):
    never = a_run("never", state=RunState.CANCELLED, started_ms=None, finished_ms=DUE)

    [one] = await compared(app, [never])

    assert (one.late, one.took) == (NOTHING, NOTHING)


async def test_clocks_that_differ_make_no_times_below_nothing(app):
    """Due by the store's clock, begun and ended by the worker's, which was set back meanwhile."""
    [one] = await compared(app, [a_run("r", started_ms=DUE - 50, finished_ms=DUE - 80)])

    assert (one.late, one.took) == (Percentiles(1, 0, 0, 0), Percentiles(1, 0, 0, 0))


async def test_a_run_is_counted_by_how_it_ended(app):
    runs = [
        *(a_run(f"done{n}") for n in range(7)),
        *(a_run(f"failed{n}", failed=True) for n in range(2)),
        *(a_run(f"dead{n}", state=RunState.DEAD, failed=True) for n in range(3)),
        a_run("lost", state=RunState.DEAD, started_ms=None),
        *(a_run(f"cancelled{n}", state=RunState.CANCELLED) for n in range(5)),
    ]

    [one] = await compared(app, runs)

    assert (one.ended, one.failed, one.dead, one.cancelled, one.kept) == (18, 6, 4, 5, 18)
    assert (one.counted_from_ms, one.is_cut) == (None, False)


async def test_what_ended_before_is_left_out(app):
    since = DUE + 100
    runs = [a_run("before", late=1, took=98), a_run("after", late=7, took=94)]

    [one] = await compared(app, runs, since_ms=since)

    assert (one.ended, one.late, one.took) == (1, Percentiles(1, 7, 7, 7), Percentiles(1, 94, 94, 94))


async def test_what_the_leaders_counted_is_told_where_the_history_has_less(app):
    hour = NOW // HOUR_MS - 1
    told = HourlyCounts(1, hour, hour * HOUR_MS, {hour * 60 + 40: (90, 8, 6, 4), hour * 60 + 1: (1_000, 0, 0, 0)})
    await app.backend.put_notes([hour_put(told)])

    [one] = await compared(app, [a_run("kept", late=3, took=4, failed=True)], since_ms=hour * HOUR_MS + 2 * MINUTE_MS)

    assert (one.ended, one.failed, one.dead, one.cancelled, one.kept) == (90, 8, 6, 4, 1)
    assert one.counted_from_ms == hour * HOUR_MS + 2 * MINUTE_MS
    assert (one.late, one.took) == (Percentiles(1, 3, 3, 3), Percentiles(1, 4, 4, 4))


async def test_of_too_many_runs_the_newest_are_looked_at(app, monkeypatch):
    monkeypatch.setattr(storage, "PAGE_MAX", 4)
    monkeypatch.setattr(storage, "COMPARED_MAX", 10)
    runs = [a_run(f"r{n:02}", took=n) for n in range(1, 21)]

    [one] = await compared(app, runs)

    assert (one.kept, one.is_cut) == (10, True)
    assert one.took == Percentiles(count=10, p50_ms=15, p99_ms=20, max_ms=20)


async def test_a_version_that_nobody_knows_is_named(app):
    with pytest.raises(NotFound, match="9") as refused:
        await compared(app, [a_run("r")], 1, 9)
    assert "pollux migrate" in str(refused.value)
    with pytest.raises(InvalidInput, match="0 is no version"):
        await app.operations.versions.compare((0,), since_ms=0)


@pytest.mark.parametrize(
    ("times", "told"),
    [
        ([], NOTHING),
        ([8], Percentiles(1, 8, 8, 8)),
        ([9, 4], Percentiles(2, 4, 9, 9)),
        ([9, 4, 6], Percentiles(3, 6, 9, 9)),
        ([*[5] * 98, 900], Percentiles(99, 5, 900, 900)),
        ([*[5] * 99, 900], Percentiles(100, 5, 5, 900)),
        (range(100), Percentiles(100, 49, 98, 99)),
        (range(101), Percentiles(101, 50, 99, 100)),
        ([*[5] * 989, *[70] * 10, 900], Percentiles(1_000, 5, 70, 900)),
        ([*[5] * 990, *[70] * 9, 900], Percentiles(1_000, 5, 5, 900)),
    ],
)
def test_half_of_the_times_are_at_most_the_first_and_99_of_100_at_most_the_second(times, told):
    times = random.Random(3).sample(list(times), len(times))

    assert spread(times) == told
