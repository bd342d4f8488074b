"""A pause, a live run or the most overdue job that cannot be read: it is named, and hides nothing else.

On each store with a real server or file, written into by hand.
"""

import asyncio
import time

import pytest

from pollux.cli.doctor.deployment import judge
from pollux.cli.top import board
from pollux.cli.top.screen import Top
from pollux.model import JobUpdate, Memory, Plan, RunState
from pollux.store.contract import RunFilter
from pollux.store.decoding import CONTENT_UNREADABLE
from tests.acceptance.api_world import api_of
from tests.acceptance.terminal import SameProcess
from tests.acceptance.test_unreadable_job import a_job, an_app, of_a_newer_release
from tests.store.test_leader_unreadable_records import InPostgres, InRedis, InSqlite

MINUTE = 60_000


@pytest.fixture(params=[InSqlite, InPostgres, InRedis], ids=["sqlite", "postgres", "redis"])
def hand(request, tmp_path):
    return request.param(tmp_path)


@pytest.fixture
async def app(hand):
    app = an_app(hand.url)
    await app.open()
    await app.put_jobs([a_job(name) for name in ("w", "x", "y")])
    yield app
    await app.close()


@pytest.fixture
def pollux(hand, tmp_path):
    terminal = SameProcess(tmp_path)

    async def ask(*words, code=0):
        answer = await asyncio.to_thread(terminal, *words, "--store", hand.url)
        assert answer.code == code, answer
        return answer

    return ask


async def make_due(app, **minutes_ago):
    """As a leader gives each its due, which then is gone."""
    now_ms, term = int(time.time() * 1000), await app.backend.elect("l", ttl_ms=60_000)
    dues = {job_id: now_ms - ago * MINUTE for job_id, ago in minutes_ago.items()}
    jobs = await app.backend.get_jobs(list(dues))
    updates = tuple(JobUpdate(job.id, job.revision, dues[job.id], Memory(), None) for job in jobs)
    await app.backend.advance(term.number, Plan(updates=updates))
    await app.backend.resign("l", term=term.number)
    return dues


# what is due


async def test_a_job_that_is_due_is_told_beside_more_overdue_ones_that_cannot_be_read(app, hand):
    await make_due(app, x=30, y=20, w=10)
    for name in ("x", "y"):
        await of_a_newer_release(hand, name)

    assert [job.id for job in await app.operations.status.overdue()] == ["w"]
    assert [job.id for job in await app.operations.status.overdue(limit=2)] == ["w"]
    [due] = [finding for finding in (await app.operations.status.health()).findings if finding.name == "due"]
    assert "not fired: job w for" in due.seen, due
    assert [job.id for job in (await hand.inside()).due] == ["w"]


async def test_what_cannot_be_read_is_not_missed_by_the_doctor_for_ever(app, hand):
    """Nobody here fires it: that is told under records, and a due time that nobody can mend is none that is missed."""
    await make_due(app, x=30)
    await of_a_newer_release(hand, "x")

    inside = await hand.inside()
    assert inside.due == ()
    now_ms = int(time.time() * 1000)
    [seen] = [finding.seen for finding in judge(inside, now_ms, lag_ms=1_000) if finding.about == "due times"]
    assert seen == "none is missed"
    assert await app.operations.status.overdue() == []


async def test_ninety_that_cannot_be_read_are_passed_over_in_a_few_calls(app, hand):
    many = [f"b{number:03}" for number in range(90)]
    await app.put_jobs([a_job(name) for name in many])
    await make_due(app, w=10, **dict.fromkeys(many, 20))
    for name in many:
        await of_a_newer_release(hand, name)
    before = app.backend.call_stats["due"].calls

    assert [job.id for job in await app.operations.status.overdue()] == ["w"]
    assert app.backend.call_stats["due"].calls - before <= 2


# a pause


async def test_a_pause_that_cannot_be_read_stands_and_hides_no_job(app, hand):
    await app.pause("x", reason="night")
    await hand.spoil_note("stop:job:x")

    assert [(stop.key, stop.value) for stop in await app.operations.pauses.stops()] == [
        ("stop:job:x", {"reason": CONTENT_UNREADABLE})
    ]
    assert (await app.why("w")).answer != "paused"
    assert ((await app.why("x")).answer, CONTENT_UNREADABLE in (await app.why("x")).reason) == ("paused", True)
    rows = (await app.operations.listing.job_rows()).rows
    assert [(row.job.id, row.state == "paused") for row in rows] == [("w", False), ("x", True), ("y", False)]
    assert [row.job.id for row in (await app.operations.listing.job_rows(state="paused")).rows] == ["x"]
    assert ((await app.operations.listing.job_row("w")).state, (await app.operations.listing.job_row("x")).state) == (
        "active",
        "paused",
    )
    assert [row.job.id for row in (await app.operations.status.overview()).rows] == ["w", "x", "y"]
    assert (await app.watch.deployment()).stops == (("job:x", CONTENT_UNREADABLE),)
    assert [note.key for note in (await hand.inside()).stops] == ["stop:job:x"]
    assert await app.resume("x")
    assert await app.operations.pauses.stops() == []


async def test_the_api_and_the_command_line_tell_of_such_a_pause(app, hand, pollux):
    await app.pause("x", reason="night")
    await hand.spoil_note("stop:job:x")
    ask = api_of(app)

    [stop] = (await ask.ok("GET", "/api/v2/stops"))["stops"]
    assert (stop["name"], stop["reason"]) == ("x", CONTENT_UNREADABLE)
    assert [job["id"] for job in (await ask.ok("GET", "/api/v2/jobs"))["jobs"]] == ["w", "x", "y"]
    assert [line.split()[0] for line in (await pollux("jobs")).out.splitlines()[1:]] == ["w", "x", "y"]
    assert CONTENT_UNREADABLE in (await pollux("why", "x")).out
    assert "x" in (await pollux("resume")).out


async def test_a_drain_that_cannot_be_read_stands_and_can_be_ended(app, hand):
    await app.operations.workers.drain_workers()
    await hand.spoil_note("stop:claims")

    assert [(each.node, each.reason) for each in await app.operations.workers.drained_workers()] == [
        (None, CONTENT_UNREADABLE)
    ]
    assert [each.node for each in (await app.watch.deployment()).drained] == [None]
    assert await app.operations.workers.resume_workers()
    assert await app.operations.workers.drained_workers() == []


# a live run


@pytest.fixture
async def spoilt(app, hand):
    await app.enqueue("x", id="bad")
    await app.enqueue("y", id="good")
    await hand.spoil_run("bad")


async def test_a_run_that_cannot_be_read_hides_no_job_and_no_run(app, spoilt):
    page = await app.operations.runs.list_runs()
    assert ([run.id for run in page.runs], [run.name for run in page.unreadable]) == (["good"], ["bad"])
    rows = await app.operations.listing.job_rows()
    assert [(row.job.id, row.state) for row in rows.rows] == [("w", "active"), ("x", "active"), ("y", "waiting")]
    assert [run.name for run in rows.unreadable_runs] == ["bad"]
    assert [row.job.id for row in (await app.operations.listing.job_rows(state="waiting")).rows] == ["y"]
    for name, state in (("w", "active"), ("x", "active"), ("y", "waiting")):
        assert (await app.operations.listing.job_row(name)).state == state
    assert [row.job.id for row in (await app.operations.status.overview()).rows] == ["w", "x", "y"]


async def test_why_names_the_run_that_cannot_be_read(app, spoilt):
    of_job, of_run = await app.why("x"), await app.why("bad")

    assert "its run bad cannot be read here (" in of_job.reason
    assert (of_run.answer, of_run.reason.startswith("it cannot be read here (")) == ("unreadable", True)
    assert "pollux runs cancel bad" in of_run.cure
    assert "cannot be read" not in (await app.why("y")).reason
    [answer] = await app.operations.runs.cancel_runs(["bad"])
    assert answer.answer.value == "ok", "what the cure says can be done"


async def test_the_api_lists_the_others_and_names_the_run(app, spoilt):
    ask = api_of(app)
    for path in ("/api/v2/runs", "/api/v2/jobs/x/runs"):
        listed = await ask.ok("GET", path)
        assert [run["id"] for run in listed["runs"]] == (["good"] if path == "/api/v2/runs" else [])
        assert [each["id"] for each in listed["unreadable"]] == ["bad"], path
    jobs = await ask.ok("GET", "/api/v2/jobs")
    assert [job["id"] for job in jobs["jobs"]] == ["w", "x", "y"]
    assert [each["id"] for each in jobs["unreadable_runs"]] == ["bad"]
    assert (await ask.ok("GET", "/api/v2/jobs/w"))["id"] == "w"
    assert "unreadable" not in await ask.ok("GET", "/api/v2/jobs/y/runs")


async def test_the_command_line_lists_the_others_and_names_the_run(app, pollux, spoilt):
    named = "run bad cannot be read here ("
    for words in (("jobs",), ("runs",)):
        listed = await pollux(*words)
        assert named in listed.err, words
    assert [each["id"] for each in (await pollux("runs", "--json")).json["unreadable"]] == ["bad"]
    assert [each["id"] for each in (await pollux("jobs", "--json")).json["unreadable_runs"]] == ["bad"]
    assert named in (await pollux("jobs", "show", "x")).err
    assert named in (await pollux("runs", "cancel", "--all", "--yes")).err
    assert (await app.operations.runs.list_runs(RunFilter(states=(RunState.READY,)))).runs == ()


async def test_the_live_screen_goes_on_beside_such_a_run(app, hand, spoilt):
    screen = Top(hand.url)
    await screen._read(app.operations)
    assert list(screen.rows) == ["w", "x", "y"]
    assert (await board.look_at(app.operations, int(time.time() * 1000))).counts.ready == 2


# running


async def test_who_runs_many_jobs_is_told_of_each(app, hand, pollux):
    await of_a_newer_release(hand, "x")

    answer = await pollux("jobs", "run", "w", "x", "y", "--json", code=1)

    assert [run["job_id"] for run in answer.json["runs"]] == ["w", "y"]
    [refused] = answer.json["refused"]
    assert (refused["id"], "cannot be read" in refused["why"]) == ("x", True)
    assert {run.job_id for run in (await app.operations.runs.list_runs()).runs} == {"w", "y"}


# pages


async def test_what_cannot_be_read_is_named_on_one_page_alone(app, hand):
    for number, name in enumerate(("w", "x", "y")):
        for turn in range(2):
            await app.enqueue(name, id=f"{name}{turn}", at=f"2090-01-01T00:00:0{2 * number + turn}Z")
    for run_id in ("w1", "x1", "y0"):
        await hand.spoil_run(run_id)
    await of_a_newer_release(hand, "x")

    for ask, kind, readable, spoilt in (
        (app.operations.jobs.list_jobs, "jobs", ["w", "y"], ["x"]),
        (app.operations.runs.list_runs, "runs", ["w0", "x0", "y1"], ["w1", "x1", "y0"]),
    ):
        for limit in (1, 2, 10):
            found, named, after = [], [], None
            for _ in range(10):
                page = await ask(after=after, limit=limit)
                found += [each.id for each in getattr(page, kind)]
                named += [each.name for each in page.unreadable]
                after = page.next
                if after is None:
                    break
            assert (found, named) == (readable, spoilt), (kind, limit)
