"""`pollux health`: findings with cures, and an exit code for scripts."""

import asyncio

import pytest

from pollux import Pollux, every
from pollux.model import Cron, Job, Node
from pollux.store.contract import JobPut
from tests.acceptance.terminal import SameProcess, Terminal
from tests.runtime.test_app import until


@pytest.fixture
def pollux(tmp_path):
    return SameProcess(tmp_path)


async def made(pollux: Terminal) -> None:
    app = Pollux(f"sqlite:///{pollux.folder}/p.db")
    app.add("http", every("1h"), id="home", params={"url": "http://127.0.0.1:1/"})
    async with app:
        pass


def test_where_nobody_works_it_says_so_and_exits_with_1(pollux):
    asyncio.run(made(pollux))
    told = pollux("health", "--store", "sqlite:///p.db")
    assert told.code == 1
    [line] = [line for line in told.out.splitlines() if line.startswith("nodes ")]
    assert "unhealthy" in line
    assert "start one: " in line
    assert told.out.endswith("unhealthy: what should run does not\n")
    assert "only that node knows" in told.err
    assert pollux("health", "--store", "sqlite:///p.db", "--json").code == 1


async def test_the_deployment_is_that_which_the_config_names(tmp_path):
    """Two may share a store: a node of version 7 does not make version 2 well, nor the other way round."""
    pollux = Terminal(tmp_path)
    app = Pollux(f"sqlite:///{tmp_path}/p.db", scheduler_version=7)
    async with app:
        for version, is_there in (("7", True), ("2", False)):
            environ = {"POLLUX_SCHEDULER_VERSION": version}
            told = await asyncio.to_thread(pollux, "health", "--store", "sqlite:///p.db", environ=environ)
            [line] = [line for line in told.out.splitlines() if line.startswith("nodes ")]
            assert ("unhealthy" not in line) is is_there, told


def test_without_a_store_nobody_can_be_asked(pollux):
    told = pollux("health", "--store", "sqlite:///nowhere.db")
    assert told.code == 3
    assert "there is no store" in told.err
    assert not told.out


def test_who_calls_it_otherwise_is_told_its_name(pollux):
    told = pollux("status")
    assert told.code == 2
    assert "did you mean `pollux health`?" in told.err


def test_an_empty_store_has_no_jobs_rather_than_no_such_ones(pollux):
    asyncio.run(opened(pollux))
    assert pollux("jobs", "--store", "sqlite:///p.db").err == "there are no jobs\n"
    assert pollux("jobs", "--text", "x", "--store", "sqlite:///p.db").err == "there are no such jobs\n"


def test_a_version_that_is_not_there_is_told_with_where_to_find_them(pollux):
    asyncio.run(opened(pollux))
    for words in (("compare", "2", "7"), ("migrate", "finish", "--from", "42")):
        assert "`pollux migrate` lists them" in pollux(*words, "--store", "sqlite:///p.db").err


async def opened(pollux: Terminal) -> None:
    app = Pollux(f"sqlite:///{pollux.folder}/p.db")
    await app.open()
    await app.close()


def test_before_the_first_start_a_file_that_lies_here_is_what_is_to_be_started(pollux):
    assert "`pollux serve --store sqlite:///p.db`" in pollux("jobs", "--store", "sqlite:///p.db").err
    pollux.write("pollux.yaml", "store: sqlite:///p.db\n")
    assert "`pollux serve -c pollux.yaml`" in pollux("jobs").err


def test_a_job_whose_schedule_the_leader_cannot_use_is_told(pollux):
    """Put by a node that knows its time zone, say: no due time comes, so none is overdue."""

    async def lead() -> None:
        async with Pollux(f"sqlite:///{pollux.folder}/p.db") as app:
            app.handler(len, name="h")
            await app.backend.put_jobs([JobPut(Job(id="mars", handler="h", schedule=Cron("* * * * *", "Mars/Base")))])
            await until(lambda: app.backend.notes("leader:schedules"), "the leader has looked at it")

    asyncio.run(lead())
    where = ("--store", "sqlite:///p.db")
    words = "a schedule cannot be used, and nothing of it is fired: job mars: "
    [line] = [line for line in pollux("health", *where).out.splitlines() if line.startswith("schedules ")]
    assert "degraded" in line
    assert words in line
    [found] = [each for each in pollux("doctor", "--json", *where).json["findings"] if each["about"] == "schedules"]
    assert (found["level"], words in found["seen"]) == ("warn", True)
    assert "its schedule cannot be used: " in pollux.ok("why", "mars", *where).out
    assert pollux("store", "check", *where).code == 0, "the store is sound"


def test_health_doctor_and_runs_count_alike_and_judge_alike(pollux):
    """One count each, in the same words; what health calls unhealthy has failed in doctor, once a node lives."""

    async def fill(*, lives: bool) -> None:
        app = Pollux(f"sqlite:///{pollux.folder}/p.db")
        await app.open()
        if lives:
            await app.backend.beat(Node("n1", seats=1, handlers=("h",), plans=False), ttl_ms=600_000)
        else:
            await app.backend.put_jobs([JobPut(Job(id="home", handler="h"))])
            for delay in (None, None, None, "1h", "1h"):
                await app.enqueue("home", delay=delay)
        await app.close()

    def judged() -> tuple[str, str, int, int]:
        health, doctor = (pollux(word, "--json", "--store", "sqlite:///p.db") for word in ("health", "doctor"))
        [queue] = [each["seen"] for each in health.json["findings"] if each["name"] == "queue"]
        [ready] = [each["seen"] for each in doctor.json["findings"] if each["about"] == "ready runs"]
        return queue, ready, health.code, doctor.code

    asyncio.run(fill(lives=False))
    queue, ready, *codes = judged()
    assert queue == "3 runs ready, 2 scheduled, 0 held, 0 leased"
    assert ready == f"{queue}; none waits long"
    for state, count in (("ready", 3), ("scheduled", 2)):
        listed = pollux("runs", "--state", state, "--json", "--store", "sqlite:///p.db").json["runs"]
        assert len(listed) == count, state
    assert codes == [1, 0], "no node lives: whether one can be started is what doctor is asked for"
    asyncio.run(fill(lives=True))
    assert judged()[2:] == (1, 1), "nobody leads, and no node can"
