"""`health`, `doctor`, `runs` and `jobs` on one store: one count each, one name, and words that filters accept."""

import asyncio
import re
import threading
from collections import Counter

import pytest

from pollux import Permanent, Pollux
from pollux.app.operations.status import STATES
from pollux.cli.runs import STATES as RUN_STATES
from pollux.model import SCHEDULED, Interval, RunState
from tests.acceptance.terminal import PATIENCE_SECONDS, SameProcess

STORE = "sqlite:///p.db"
DAY_MS = 86_400_000
LIVE = {"held", "ready", "leased"}


class Shop:
    """One node with three seats, and jobs that do all that a job can do."""

    def __init__(self, folder):
        self.folder = folder
        self.app = Pollux(f"sqlite:///{folder}/p.db", name="shop", seats=3)
        self.opened = asyncio.Event()
        now_ms = self.app.operations.now_ms()
        begins = {
            "failing": Interval(DAY_MS, start_ms=now_ms + 500),
            "idle": Interval(DAY_MS, start_ms=now_ms + DAY_MS),
        }
        for job_id, handler, options in (
            ("fine", self.fine, {"tags": ("calm",), "group": "front", "target": "db-1"}),
            (
                "failing",
                self.stumble,
                {"retry": {"base": "2d", "max": "2d"}, "tags": ("loud",), "group": "back", "target": "db-2"},
            ),
            ("doomed", self.fail, {"overlap": "allow"}),
            ("retried", self.stumble, {"retry": {"attempts": 5, "base": "1h", "max": "1h"}}),
            ("slow", self.wait, {"overlap": "allow"}),
            ("slower", self.wait, {"overlap": "allow"}),
            ("later", self.fine, {}),
            ("paused", self.fine, {}),
            ("idle", self.fine, {}),
        ):
            self.app.handler(handler, name=job_id)
            self.app.add(job_id, begins.get(job_id), id=job_id, **options)

    async def fine(self, ctx):
        return "done"

    async def fail(self, ctx):
        raise Permanent("it never works")

    async def stumble(self, ctx):
        raise RuntimeError("not this time")

    async def wait(self, ctx):
        await self.opened.wait()

    async def fill(self):
        """Ends first, then what waits: a count that still moves proves nothing."""
        app = self.app
        await app.enqueue("fine", id="fine-1")
        await app.enqueue("doomed", id="doomed-1")
        await app.enqueue("doomed", id="doomed-2")
        await app.enqueue("retried", id="retried-1")
        await app.enqueue("later", id="cancelled-1", delay="1h")
        await app.operations.runs.cancel_runs(["cancelled-1"])
        await self.until(done=2, dead=2, cancelled=1, ready=1)
        await app.pause("paused", reason="a test")
        await app.enqueue("paused", id="held-1")
        await self.until(held=1)
        await app.enqueue("later", id="later-1", delay="1h")
        await app.enqueue("later", id="later-2", delay="2h")
        for number in range(3):
            await app.enqueue("slow" if number else "slower", id=f"slow-{number}")
        await self.until(leased=3)
        await app.enqueue("slow", id="slow-later", delay="3h")
        await app.enqueue("fine", id="ready-1")
        await app.enqueue("slow", id="ready-2")
        await self.until(done=2, dead=2, cancelled=1, held=1, leased=3, ready=6)

    async def until(self, **wanted):
        """Also: the leader has read all ends, which the memory of the jobs is made of."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                found = Counter(run.state.value for run in (await self.app.operations.runs.list_runs(limit=100)).runs)
                is_so = all(found[state] == count for state, count in wanted.items())
                if is_so and not (await self.app.operations.status.counts()).feed:
                    return
                await asyncio.sleep(0.01)


class Told:
    """What the four commands say, for programs."""

    def __init__(self, pollux):
        self.pollux = pollux
        self.health = self.json("health")
        self.findings = {each["name"]: each["seen"] for each in self.health["findings"]}
        self.doctor = {each["about"]: each["seen"] for each in self.json("doctor")["findings"]}
        self.runs = self.json("runs")["runs"]
        self.jobs = {job["id"]: job for job in self.json("jobs")["jobs"]}

    def json(self, *words):
        return self.pollux(*words, "--json", "--store", STORE).json

    def column(self, name, *words):
        """By id, what a column of a table prints."""
        lines = self.pollux.ok(*words, "--store", STORE).out.splitlines()
        begins = [match.start() for match in re.finditer(r"(?:^|(?<=  ))\S", lines[0])]
        heads = [lines[0][begin:].split("  ")[0].strip() for begin in begins]
        at = heads.index(name.upper())
        end = begins[at + 1] if at + 1 < len(begins) else None
        return {line.split()[0]: line[begins[at] : end].strip() for line in lines[1:] if line}


@pytest.fixture(scope="module")
def asked():
    """Run something to its end on an event loop in a thread of its own: commands have loops of their own here."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield lambda call: asyncio.run_coroutine_threadsafe(call, loop).result(PATIENCE_SECONDS)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture(scope="module")
def shop(tmp_path_factory, asked):
    shop = Shop(tmp_path_factory.mktemp("shop"))
    asked(shop.app.start())
    try:
        asked(shop.fill())
        yield shop
    finally:
        shop.opened.set()
        asked(shop.app.close())


@pytest.fixture(scope="module")
def told(shop):
    return Told(SameProcess(shop.folder))


def test_runs_are_counted_alike(told):
    by_state = Counter(run["state"] for run in told.runs)
    assert by_state == {"held": 1, "ready": 6, "leased": 3, "done": 2, "dead": 2, "cancelled": 1}

    shown = Counter(told.column("state", "runs").values())
    assert (shown["ready"], shown["scheduled"]) == (2, 4)
    queue = "2 runs ready, 4 scheduled, 1 held, 3 leased"
    assert told.findings["queue"] == queue
    assert told.doctor["ready runs"].startswith(f"{queue};")
    numbers = told.health["queue"]
    assert (numbers["depth"], numbers["held"], numbers["running"]) == (2, by_state["held"], by_state["leased"])
    assert sum(numbers["perPriority"].values()) == numbers["depth"]
    for state, count in (by_state | {"ready": 2, "scheduled": 4}).items():
        assert len(told.json("runs", "--state", state)["runs"]) == count


def test_dead_letters_are_counted_alike(told):
    dead = [run for run in told.runs if run["state"] == "dead"]
    assert len(dead) == len(told.json("dead")["dead"]) == told.health["deadLetter"]["count"] == 2
    assert told.findings["dead"] == told.doctor["dead letters"] == "2 dead letters"
    present = {each["instance"] for each in told.health["instances"] if each["deadLetter"]["present"]}
    assert present == {run["job_id"] for run in dead}
    assert {job_id for job_id, job in told.jobs.items() if job["last"] == "dead"} == present


def test_jobs_are_counted_alike(told):
    count = len(told.jobs)
    assert told.findings["store"] == f"the store answers; {count} jobs"
    assert told.doctor["schema"].endswith(f"; {count} jobs")
    assert {each["instance"] for each in told.health["instances"]} == told.jobs.keys()


def test_a_job_is_at_what_its_runs_are_at(told):
    """Those that run have a leased run, whatever else of them waits; those that wait have a live one."""
    by_job = {job_id: {run["state"] for run in told.runs if run["job_id"] == job_id} & LIVE for job_id in told.jobs}
    states = {job_id: job["state"] for job_id, job in told.jobs.items()}
    assert {job_id for job_id, state in states.items() if state == "running"} == {"slow", "slower"}
    assert {job_id for job_id, live in by_job.items() if "leased" in live} == {"slow", "slower"}
    assert {job_id for job_id, state in states.items() if state == "paused"} == {"paused"}
    assert told.findings["stops"] == "paused: job:paused"
    waiting = {job_id for job_id, live in by_job.items() if live and "leased" not in live} - {"paused"}
    assert {job_id for job_id, state in states.items() if state == "waiting"} == waiting
    now = told.column("now", "jobs")
    assert {job_id for job_id, words in now.items() if words == "running"} == {"slow", "slower"}
    assert now["paused"] == told.jobs["paused"]["held"]


def test_jobs_that_fail_are_the_same_ones_with_the_same_count(told):
    """A job fails by runs that ended so, or by the attempts of a live run that is tried again."""
    status = {each["instance"]: each["pollStatus"] for each in told.health["instances"]}
    failing = {job_id for job_id, job in told.jobs.items() if job["memory"]["failures"]}
    assert (
        failing == {job_id for job_id, each in status.items() if each["consecutiveFailures"]} == {"failing", "doomed"}
    )
    retried = {run["job_id"] for run in told.runs if run["state"] in LIVE and run["attempt"] > 1}
    assert retried == {"retried"}
    assert failing | retried == {job_id for job_id, job in told.jobs.items() if job["failing"]}
    for job_id in failing:
        assert told.jobs[job_id]["memory"]["failures"] == status[job_id]["consecutiveFailures"]
    ended = Counter(run["job_id"] for run in told.json("runs", "--failed")["runs"] if run["state"] not in LIVE)
    assert ended == {job_id: told.jobs[job_id]["memory"]["failures"] for job_id in failing}


def test_every_word_of_a_column_is_accepted_by_its_filter(told):
    """And answers those in whose line it is printed."""
    for column, option in (("state", "--state"), ("job", "--job")):
        printed = told.column(column, "runs")
        assert len(printed) == len(told.runs)
        for word in set(printed.values()):
            found = told.column(column, "runs", option, word)
            meant = {word, "failed"} if word == "done" else {word}  # one that failed is done, too
            assert found == {run_id: each for run_id, each in printed.items() if each in meant}, (option, word)
    assert set(told.column("state", "runs").values()) >= {
        "scheduled",
        "held",
        "ready",
        "leased",
        "done",
        "failed",
        "dead",
        "cancelled",
    }
    printed = told.column("job", "dead")
    for word in set(printed.values()):
        assert told.column("job", "dead", "--job", word) == {i: each for i, each in printed.items() if each == word}
    for name in ("group", "target", "source"):
        for word in {job[name] for job in told.jobs.values()} - {""}:
            found = {job["id"] for job in told.json("jobs", f"--{name}", word)["jobs"]}
            assert found == {job_id for job_id, job in told.jobs.items() if job[name] == word}, (name, word)
    for tag in ("calm", "loud"):
        assert {job["id"] for job in told.json("jobs", "--tag", tag)["jobs"]} == {
            job_id for job_id, job in told.jobs.items() if tag in job["tags"]
        }


def test_every_state_of_a_job_is_a_filter_of_the_list_that_has_it(shop, told, asked):
    """The API filters by it; what is told of a job there is what the command tells."""
    told_by_state = {state: {i for i, job in told.jobs.items() if job["state"] == state} for state in STATES}
    for state, wanted in told_by_state.items():
        assert {row.job.id for row in asked(shop.app.operations.listing.job_rows(state=state)).rows} == wanted, state
    assert sum(map(len, told_by_state.values())) == len(told.jobs), "each has one of them"


def test_since_when_a_job_fails_is_told_alike(shop, told, asked):
    """Also of one whose first run is tried again, and has not ended."""
    rows = {row.job.id: row.failing_since_ms for row in asked(shop.app.operations.listing.job_rows()).rows}
    assert {job_id for job_id, since_ms in rows.items() if since_ms} == {"failing", "doomed", "retried"}
    assert (
        rows["retried"]
        == next(
            run for run in asked(shop.app.operations.runs.list_runs(limit=100)).runs if run.id == "retried-1"
        ).failing_since_ms
    )
    for job_id in ("failing", "doomed", "retried"):
        shown = told.pollux.ok("jobs", "show", job_id, "--store", STORE).out
        assert ("failing since" in shown) is True


def test_the_states_of_a_run_are_those_that_there_are():
    assert set(RUN_STATES) == {state.value for state in RunState} | {SCHEDULED}
