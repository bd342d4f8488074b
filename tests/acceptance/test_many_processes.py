"""Any number of `pollux serve` on one store: one plans, the others stand by, all run, also during a deploy."""

import asyncio
import contextlib
import re
import signal
import time

import pytest

from pollux.model import RunState
from pollux.store.contract import PAGE_MAX, RunFilter
from pollux.store.urls import open_store
from tests.acceptance.terminal import SameProcess, eventually, stopped
from tests.chaos.checker import Snapshot, double_outcome, firings
from tests.servers import postgres, redis

TTL_MS = 2_000
SLACK_MS = 7_000  # what a busy machine may add before another one has noticed
SHOP = """
import asyncio
import os
from msgspec.structs import replace
from pollux import Pollux, every

app = Pollux(name="shop", seats=2, lease="2s")
app.options = replace(app.options, beat_ms=300, beat_ttl_ms=1_500)


@app.job(every("200ms"))
async def tick(ctx):
    return os.getpid()
"""
WORK = """

@app.job
async def work(ctx):
    await asyncio.sleep(0.5)
    return os.getpid()
"""
# Two releases of one app: both have `stays`, at another interval; each has a job that the other one has not.
OLD = SHOP.replace('"200ms"', '"1h"').replace("tick", "stays") + "\n\n@app.job\nasync def old(ctx):\n    return 1\n"
NEW = SHOP.replace('"200ms"', '"2h"').replace("tick", "stays") + "\n\n@app.job\nasync def new(ctx):\n    return 2\n"
# And both have one that is due all the time.  Nobody is killed: then no lease runs out, however busy the machine is.
LASTING = ('lease="2s"', 'lease="60s", keep_history=1_000_000')
BEATS = """

@app.job(every("200ms"))
async def beats(ctx):
    with open("beats.txt", "a") as file:
        file.write(f"{ctx.run.due_ms}\\n")
    return ctx.run.due_ms
"""


@pytest.fixture
def pollux(tmp_path):
    return SameProcess(tmp_path)


def url_of(kind, tmp_path):
    match kind:
        case "sqlite":
            return f"sqlite:///{tmp_path}/p.db"
        case "redis":
            return redis.own_url("many")
        case _:
            return postgres.own_url("many")


class Cluster:
    """Processes on one store."""

    def __init__(self, pollux, url, *words):
        self.pollux, self.url, self.words = pollux, url, words
        self.stack = contextlib.ExitStack()

    def serve(self, module="shop", *words):
        """A node whose log goes to a file, so that it never waits for us."""
        log = (self.pollux.folder / f"{module}.log").open("ab")
        self.stack.callback(log.close)
        command = ("serve", "--app", f"{module}:app", "--store", self.url, *self.words, *words)
        return self.stack.enter_context(self.pollux.started(*command, stderr=log))

    def up(self, *processes):
        """Wait until they have started: their jobs are written, or never will be."""
        for process in processes:
            eventually(lambda pid=process.pid: self._has_started(pid), "it has started", process)

    def _has_started(self, pid):
        started = re.compile(rf"node \S+:{pid}:\S+ started on")
        return any(started.search(log.read_text()) for log in self.pollux.folder.glob("*.log"))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stack.close()

    def nodes(self):
        """As `pollux nodes --json` tells; nobody before there is a store."""
        answer = self.pollux("nodes", "--json", "--store", self.url)
        return answer.json if answer.code == 0 else {"nodes": [], "leaders": []}

    def leader(self, count):
        """The node that leads, once so many are there."""
        found = self.nodes()
        by_id = {node["id"]: node for node in found["nodes"]}
        return by_id[found["leaders"][0]] if len(by_id) == count and found["leaders"] else None

    def jobs(self):
        """Interval (of those that have one) and whether anybody declares it, by id."""
        rows = self.pollux.ok("jobs", "--json", "--store", self.url).json["jobs"]
        return {row["id"]: ((row["schedule"] or {}).get("every_ms"), row.get("declared", True)) for row in rows}

    def done(self, job_id):
        return self.pollux.ok("runs", "--job", job_id, "--state", "done", "--json", "--store", self.url).json["runs"]


@pytest.mark.parametrize("kind", ["sqlite", "redis", "postgres"])
def test_a_killed_leader_is_replaced_within_its_ttl_and_all_of_them_run(pollux, tmp_path, kind):
    pollux.write("shop.py", SHOP + WORK)
    words = ("--leader-ttl", f"{TTL_MS}ms", "--leader-renew", "600ms", "--leader-key", "shop-production")
    with Cluster(pollux, url_of(kind, tmp_path), *words) as cluster:
        processes = [cluster.serve() for _ in range(3)]
        first = eventually(lambda: cluster.leader(3), "three nodes, one leads", processes[0])
        for _ in range(9):  # each has two seats
            pollux.ok("enqueue", "work", "--store", cluster.url)
        eventually(lambda: len(cluster.done("work")) == 9, "all is run", processes[0])

        def all_have_run():
            pollux.ok("enqueue", "work", "--store", cluster.url)  # one of them may have stood still until now
            return {run["result"] for run in cluster.done("work")} == {process.pid for process in processes}

        eventually(all_have_run, "each of them runs some", processes[0])
        [killed] = [process for process in processes if process.pid == first["pid"]]
        killed.send_signal(signal.SIGKILL)
        killed_ms = time.time() * 1_000
        killed.wait()

        def successor():
            found = cluster.nodes()
            return next((n for n in found["nodes"] if n["id"] in found["leaders"] and n["id"] != first["id"]), None)

        second = eventually(successor, "another one leads")
        assert second["leads"] > first["leads"]
        assert second["leads_ms"] - killed_ms <= TTL_MS + SLACK_MS
        planned = eventually(
            lambda: [run for run in cluster.done("tick") if run["due_ms"] > second["leads_ms"]], "it plans"
        )
        assert {run["result"] for run in planned} <= {process.pid for process in processes}
        eventually(lambda: _shown_to_people(pollux.ok("nodes", "--store", cluster.url).out, second), "one leads")
        refused = pollux("serve", "--app", "shop:app", "--store", cluster.url, "--leader-key", "staging")
        assert (refused.code, "names the leadership 'shop-production'" in refused.err) == (2, True), refused
        [heir] = [process for process in processes if process.pid == second["pid"]]
        [last] = [process for process in processes if process not in (killed, heir)]
        assert stopped(heir).code == 0
        eventually(lambda: (found := successor()) and found["pid"] == last.pid, "the last one leads")
        assert stopped(last).code == 0


def _shown_to_people(table, leader):
    lines = [line for line in table.splitlines() if "term" in line]
    assert len(lines) <= 1, "whoever died believed in its term to the end, but does not lead"
    words = rf"{re.escape(leader['id'])} .* term {leader['leads']}, \w+ .*code:shop \(2 jobs\)"
    return any(re.search(words, line) for line in lines)


@pytest.mark.parametrize("kind", ["sqlite", "redis", "postgres"])
def test_a_rolling_deploy_with_restarts_ends_with_what_the_new_release_declares(pollux, tmp_path, kind):
    """And all along a job that both releases have fires once for each of its due times."""
    pollux.write("one.py", OLD.replace(*LASTING) + BEATS)
    pollux.write("two.py", NEW.replace(*LASTING) + BEATS)
    with Cluster(pollux, url_of(kind, tmp_path)) as cluster:
        olds = [cluster.serve("one", "--release", "1") for _ in range(2)]
        cluster.up(*olds)
        always = {"beats": (200, True)}
        assert cluster.jobs() == {"stays": (3_600_000, True), "old": (None, True)} | always
        _fires_on(pollux)

        new = cluster.serve("two", "--release", "2")
        cluster.up(new)
        both = {"stays": (7_200_000, True), "old": (None, True), "new": (None, True)} | always
        assert cluster.jobs() == both
        _fires_on(pollux)
        for job_id in ("old", "new"):  # whoever claims it: in the end a node has it that knows the handler
            pollux.ok("enqueue", job_id, "--store", cluster.url)
            eventually(lambda job_id=job_id: cluster.done(job_id), f"{job_id} is run", new)

        assert stopped(olds.pop()).code == 0
        _fires_on(pollux)
        olds.append(cluster.serve("one", "--release", "1"))
        cluster.up(olds[-1])
        assert cluster.jobs() == both, "it put nothing back, and took nothing away"

        newer = []
        for old in olds:
            newer.append(cluster.serve("two", "--release", "2"))
            cluster.up(newer[-1])
            assert cluster.jobs() == both
            assert stopped(old).code == 0
            _fires_on(pollux)
        eventually(lambda: not cluster.jobs()["old"][1], "the job of the old release is retired")
        assert cluster.jobs() == {**both, "old": (None, False)}
        for process in (new, *newer):
            assert stopped(process).code == 0
        _each_due_time_fired_once(pollux, cluster.url)
    said = (pollux.folder / "one.log").read_text()
    assert "code:shop: release 2 is known, this node has release 1 and changes no job" in said


def _fires_on(pollux):
    """Twice, so that one of them is due only now."""
    file = pollux.folder / "beats.txt"

    def fired():
        return len(file.read_text().splitlines()) if file.exists() else 0

    before = fired()
    eventually(lambda: fired() >= before + 2, "it fires on")


def _each_due_time_fired_once(pollux, url):
    """Or was counted as skipped; and each run of it was run once."""
    runs, job = asyncio.run(_all_beats(url))
    assert double_outcome(Snapshot(runs, (job,))) == []
    assert firings(Snapshot(runs, (job,)), {}) == []
    ran = sorted(map(int, (pollux.folder / "beats.txt").read_text().split()))
    assert ran == sorted(run.due_ms for run in runs if run.state is RunState.DONE)


async def _all_beats(url):
    store, runs, after = open_store(url), [], None
    await store.open()
    try:
        while True:
            page = await store.list_runs(RunFilter(job_id="beats"), after=after, limit=PAGE_MAX)
            runs, after = [*runs, *page.runs], page.next
            if after is None:
                break
        return tuple(runs), (await store.get_jobs(["beats"]))[0]
    finally:
        await store.close()


def test_a_node_of_an_old_release_that_comes_last_changes_nothing(pollux, tmp_path):
    """The other order, on the store that is asked least often here."""
    pollux.write("one.py", OLD)
    pollux.write("two.py", NEW)
    with Cluster(pollux, url_of("postgres", tmp_path)) as cluster:
        new = cluster.serve("two", "--release", "2")
        cluster.up(new)
        wanted = {"stays": (7_200_000, True), "new": (None, True)}
        assert cluster.jobs() == wanted
        old = cluster.serve("one", "--release", "1")
        cluster.up(old)
        assert cluster.jobs() == wanted
        assert stopped(new).code == 0
        eventually(lambda: cluster.leader(1), "the old one alone", old)
        assert cluster.jobs() == wanted, "the newer release is gone, but known"
        marks = {(d["release"], d["jobs"]) for node in cluster.nodes()["nodes"] for d in node["declares"]}
        assert marks == {(1, 2)}
        assert stopped(old).code == 0
