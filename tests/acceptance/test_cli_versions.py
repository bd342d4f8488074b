"""A job in a version that nobody serves: it is said at the move, in the list, and by `pollux why`.

And a version that is not done: what it still has is named.
"""

import asyncio
import time

import msgspec
import pytest
from msgspec.structs import replace

from pollux import Pollux, every
from pollux.model import Cause, Done, Job, Node, Outcome, Run, RunState, run_of
from pollux.model.leader_notes import HourlyCounts, hour_put
from pollux.store.contract import Answer, JobPut, Settlement
from pollux.store.urls import open_store
from pollux.units import HOUR_MS, MINUTE_MS
from tests.acceptance.api_world import eventually
from tests.acceptance.terminal import SameProcess

WHERE = ("--store", "sqlite:///p.db")
SAID = "no node serves version 99"
CURE = (
    "start one: pollux serve --scheduler-version 99; or move what is there to a version that is served: "
    "pollux jobs move --from-version 99 --to-version 3"
)
FINISH = ("migrate", "finish", "--from", "5", *WHERE)
LEFT = "version 99 has no job, no live run and no node; if it is done: pollux migrate finish --from 99"


@pytest.fixture
def pollux(tmp_path, monkeypatch):
    """A store with a job, and a node of version 3 that seems alive."""
    monkeypatch.setattr("pollux.app.declarations.program_words", lambda: "")  # cures would name how pytest was started
    url = f"sqlite:///{tmp_path}/p.db"

    async def made():
        app = Pollux(url, scheduler_version=3)
        app.add("http", every("1h"), id="quick", params={"url": "http://127.0.0.1:1/"})
        async with app:
            pass
        store = open_store(url)
        await store.open()
        await store.beat(Node("n1", seats=3, handlers=("http",), scheduler_version=3), ttl_ms=3_600_000)
        await store.close()

    asyncio.run(made())
    return SameProcess(tmp_path)


def test_a_move_to_a_version_that_nobody_serves_is_warned_of(pollux):
    assert pollux.ok("jobs", "move", "quick", "--to-version", "99", *WHERE).err == f"pollux: {SAID}; {CURE}\n"
    shown = pollux.ok("why", "quick", "--json", *WHERE).json["why"]
    assert (shown["answer"], shown["cure"]) == ("stranded", CURE)
    assert SAID in shown["reason"]
    assert SAID in pollux.ok("jobs", *WHERE).out
    said = pollux.ok("jobs", "move", "quick", "--to-version", "3", *WHERE).err
    assert said == f"pollux: {LEFT}\n", "what the mistake has left behind is named"
    assert SAID not in pollux.ok("jobs", *WHERE).out


def test_nothing_goes_from_a_version_that_nobody_knows(pollux):
    refused = pollux("jobs", "move", "--from-version", "9", "--to-version", "3", "--yes", *WHERE)
    assert (refused.code, refused.out) == (pollux("compare", "3", "9", *WHERE).code, "")
    assert refused.code != 0
    assert "version" in refused.err
    assert "`pollux migrate` lists them" in refused.err
    pollux.ok("jobs", "move", "quick", "--to-version", "99", *WHERE)
    gone = pollux.ok("jobs", "move", "--from-version", "3", "--to-version", "99", "--yes", *WHERE)
    assert gone.out == "0 jobs moved to version 99\n", "one that has no job left is there all the same"


def test_health_and_doctor_tell_of_a_version_beside_it_that_nobody_leads(pollux):
    """The node of version 3 says that it leads; the job that went to version 99 stands still."""
    environ = {"POLLUX_SCHEDULER_VERSION": "3"}
    before = pollux("health", "--json", *WHERE, environ=environ).json["findings"]
    assert "versions" not in {finding["name"] for finding in before}
    pollux.ok("jobs", "move", "quick", "--to-version", "99", *WHERE)
    told = pollux("health", "--json", *WHERE, environ=environ)
    findings = {finding["name"]: finding for finding in told.json["findings"]}
    assert (told.code, told.json["status"]) == (1, "unhealthy")
    assert findings["versions"]["level"] == "unhealthy"
    assert findings["versions"]["seen"].startswith("version 99 (1 job): no leader, and no node can lead")
    assert "pollux serve --scheduler-version 99 " in findings["versions"]["cure"]
    assert findings["store"]["seen"] == "the store answers; 0 jobs in version 3, 1 in others"
    doctor = {finding["about"]: finding for finding in pollux("doctor", "--json", *WHERE).json["findings"]}
    assert "pollux serve --scheduler-version 99 " in doctor["leader of 99"]["cure"]


def test_where_no_node_lives_doctor_names_how_to_start_one_of_each_version_that_has_jobs(tmp_path):
    async def made():
        for number in (1, 2):
            store = open_store(f"sqlite:///{tmp_path}/p.db", scheduler_version=number)
            await store.open()
            await store.put_jobs([JobPut(Job(id=f"job{number}", handler="http"))])
            await store.close()

    asyncio.run(made())
    doctor = {each["about"]: each for each in SameProcess(tmp_path)("doctor", "--json", *WHERE).json["findings"]}
    assert doctor["leader"]["cure"] == "start one: pollux serve --scheduler-version 1, and pollux serve"
    assert doctor["records"]["seen"] == "no job is unreadable", "there is no leader who could read any"


async def at_work(url, *names):
    """Runs of version 5 that a worker has; their job is gone."""
    store = open_store(url, scheduler_version=5)
    await store.open()
    job = Job(id="gone", handler="http")
    await store.put_jobs([JobPut(job)])
    await store.enqueue([run_of(job, 0, Cause.ENQUEUED, id=name) for name in names])
    claimed = await store.claim(node="w", token="t", limit=99, lease_ms=3_600_000)
    await store.delete_jobs(["gone"])
    await store.close()
    return claimed.runs


async def settled(url, runs):
    store = open_store(url, scheduler_version=5)
    await store.open()
    answers = await store.settle([Settlement(run.id, run.token, Done(), Outcome(1, 2)) for run in runs])
    await store.close()
    return answers


def test_a_version_with_a_live_run_is_not_finished_and_the_run_is_named(pollux, tmp_path):
    url = f"sqlite:///{tmp_path}/p.db"
    [run] = asyncio.run(at_work(url, "r1"))

    refused = pollux(*FINISH)

    said = "version 5 is not finished; it still has 1 live run (r1): wait for them or cancel them"
    assert (refused.code, refused.out) == (1, "")
    assert said in refused.err
    assert 5 in [each["number"] for each in pollux.ok("migrate", "--json", *WHERE).json["versions"]]
    assert asyncio.run(settled(url, [run])) == [Answer.OK]
    assert pollux.ok(*FINISH).out == "version 5 is done; its history stays\n"
    assert 5 not in [each["number"] for each in pollux.ok("migrate", "--json", *WHERE).json["versions"]]


def test_of_many_live_runs_the_first_few_are_named(pollux, tmp_path):
    asyncio.run(at_work(f"sqlite:///{tmp_path}/p.db", *(f"r{n}" for n in range(1, 8))))

    assert "7 live runs (r1, r2, r3, r4, r5, ...): wait for them or cancel them" in pollux(*FINISH).err


def test_all_that_a_version_still_has_is_named_at_once(pollux, tmp_path):
    async def put():
        store = open_store(f"sqlite:///{tmp_path}/p.db", scheduler_version=5)
        await store.open()
        job = Job(id="old", handler="http")
        await store.put_jobs([JobPut(job)])
        await store.enqueue([run_of(job, 0, Cause.ENQUEUED, id="r1")])
        await store.beat(Node("n5", scheduler_version=5), ttl_ms=3_600_000)
        await store.close()

    asyncio.run(put())

    said = pollux(*FINISH).err
    for words in (
        "1 job (old): pollux jobs move --from-version 5 --to-version N",
        "1 live run (r1): wait",
        "nodes that serve it (n5): stop them",
    ):
        assert words in said


async def test_a_trigger_names_the_versions_whose_leaders_have_answered(pollux, tmp_path):
    url = f"sqlite:///{tmp_path}/two.db"
    where = ("trigger", "--store", url)
    async with Pollux(url, runs=False, scheduler_version=1) as old:
        await eventually(lambda: leading(old, 1), "one leads")
        alone = (await asyncio.to_thread(pollux.ok, *where)).out
        assert alone.endswith(f"skipped ({old.node_id})\n"), "where there is one version it is not named"
        async with Pollux(url, runs=False, scheduler_version=2) as new:
            await eventually(lambda: leading(old, 2), "both lead")
            said = (await asyncio.to_thread(pollux.ok, *where)).out
    assert said.endswith(f"({old.node_id} of version 1, {new.node_id} of version 2)\n")


async def leading(app, count):
    return len([node for node in await app.operations.status.nodes() if node.leads]) == count


async def counted(url, *, ended_ms):
    """A leader of version 3 has counted since a minute ago; a run ended at that time."""
    app = Pollux(url, scheduler_version=3)
    await app.open()
    now_ms = int(time.time() * 1000)
    hour = now_ms // HOUR_MS
    await app.backend.put_notes(
        [hour_put(HourlyCounts(3, hour, now_ms - MINUTE_MS, {now_ms // MINUTE_MS: (1, 0, 0, 0)}))]
    )
    run = Run(id="r", job_id="quick", state=RunState.DONE, scheduler_version=3, due_ms=now_ms - ended_ms)
    run = replace(run, started_ms=run.due_ms, finished_ms=run.due_ms)
    await app.backend.load([("run", msgspec.to_builtins(run))])
    await app.close()


@pytest.mark.parametrize(("ended_ms", "is_said"), [(0, False), (5 * MINUTE_MS, True)], ids=["new", "older"])
def test_what_was_not_counted_is_said_only_where_something_ended_before(pollux, tmp_path, ended_ms, is_said):
    """A store that was made after the moment that was asked for lacks nothing."""
    asyncio.run(counted(f"sqlite:///{tmp_path}/p.db", ended_ms=ended_ms))
    told = pollux.ok("compare", "3", "3", "--since", "1h", *WHERE)
    assert ("is counted only as far as the history still has it" in told.err) is is_said
