"""Two deployments on one store, beside each other: each keeps to its own, and jobs go from one to the other."""

import asyncio
import contextlib
import itertools
import random
import time
from collections import Counter, defaultdict

import pytest

from pollux.store.contract import Answer
from pollux.store.urls import open_store
from tests.acceptance.terminal import SameProcess, eventually, stopped
from tests.servers import postgres, redis

KINDS = ("sqlite", "redis", "postgres")
EVERY_MS = 400
MOVES = 16
TICKS = """
import os


def tick(ctx):
    line = f"{ctx.run.job_id} {ctx.run.due_ms} {os.environ.get('SCHEDULER_VERSION', '2')}\\n"
    ledger = os.open("ledger", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(ledger, line.encode())
    os.close(ledger)
"""
# Every due fires, however late: what is missing was lost.
JOB = '  - {{id: j{n}, python: "ticks:tick", interval: {every}ms, overlap: allow, misfire: all, group: {group}}}\n'


@pytest.fixture
def pollux(tmp_path):
    return SameProcess(tmp_path)


def url_of(kind, tmp_path):
    match kind:
        case "sqlite":
            return f"sqlite:///{tmp_path}/p.db"
        case "redis":
            return redis.own_url("versions")
        case _:
            return postgres.own_url("versions")


def write_config(pollux, url, *, count=6, every=EVERY_MS):
    pollux.write("ticks.py", TICKS)
    jobs = "".join(JOB.format(n=n, every=every, group="odd" if n % 2 else "even") for n in range(count))
    pollux.write("p.yaml", f"store: {url}\nleader: {{ttl: 3s, renew: 700ms}}\njobs:\n{jobs}")


@contextlib.contextmanager
def serving(pollux, version, *words, command="serve"):
    """A node of a version; its log goes to a file, so that it never waits for us."""
    with (pollux.folder / f"{command}-{version}.log").open("ab") as log:
        given = (command, "-c", "p.yaml", *words)
        with pollux.started(*given, environ={"SCHEDULER_VERSION": str(version)}, stderr=log, stdout=log) as process:
            yield process


def ledger(pollux):
    """(job, due, version of the node that ran it) in the order in which they ran."""
    path = pollux.folder / "ledger"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(job_id, int(due_ms), version) for job_id, due_ms, version in map(str.split, lines)]


async def move_to_and_fro(url, seed):
    """Half of the jobs at a time, to whichever version, while both plan and run."""
    dice = random.Random(seed)
    store = open_store(url)
    await store.open()
    ids, moved = [f"j{n}" for n in range(6)], 0
    for _ in range(MOVES):
        answers = await store.move_jobs(dice.sample(ids, 3), dice.choice((1, 2)))
        moved += answers.count(Answer.OK)
        await asyncio.sleep(dice.random() * 0.5)
    await store.close()
    return moved


@pytest.mark.parametrize("kind", KINDS)
def test_jobs_that_go_to_and_fro_between_two_deployments_fire_every_due_once(pollux, tmp_path, kind):
    url = url_of(kind, tmp_path)
    write_config(pollux, url)
    with serving(pollux, 1) as old:
        eventually(lambda: len({job_id for job_id, _, _ in ledger(pollux)}) == 6, "all run in version 1", old)
        with serving(pollux, 2) as new:
            eventually(lambda: len(pollux.ok("migrate", "-c", "p.yaml", "--json").json["versions"]) == 2, "both", new)
            moved = asyncio.run(move_to_and_fro(url, seed=kind))
            assert moved > MOVES / 2, "most of them went somewhere"
            eventually(lambda: {version for _, _, version in ledger(pollux)} == {"1", "2"}, "both ran some", new)
            assert stopped(new).code == 0
        assert stopped(old).code == 0

    runs = ledger(pollux)
    twice = [due for due, count in Counter((job_id, due_ms) for job_id, due_ms, _ in runs).items() if count > 1]
    assert twice == []
    dues = defaultdict(list)
    for job_id, due_ms, _ in runs:
        dues[job_id].append(due_ms)
    for job_id, fired in dues.items():
        grid = sorted(fired)[1:]  # the first one comes at once, off the grid
        steps = {after - before for before, after in itertools.pairwise(grid)}
        assert steps == {EVERY_MS}, f"{job_id}: {steps}"


@pytest.mark.parametrize("kind", KINDS)
def test_from_version_1_to_version_2(pollux, tmp_path, kind):
    """The whole way that docs/versions.md tells, with the real program; and the finished version begins again."""
    url = url_of(kind, tmp_path)
    write_config(pollux, url, every=300)
    config = ("-c", "p.yaml")
    there, other = "1", "2"
    with contextlib.ExitStack() as nodes:
        old = nodes.enter_context(serving(pollux, 1))
        eventually(lambda: len(ledger(pollux)) > 6, "it runs", old)
        new = nodes.enter_context(serving(pollux, 2))
        log = pollux.folder / "serve-2.log"
        eventually(lambda: "pollux jobs move j0 --to-version 2" in log.read_text(), "it says whose the jobs are", new)
        tried = pollux.ok("jobs", "move", "--group", "odd", "--to-version", other, "--dry-run", *config)
        assert tried.out.startswith(f"3 jobs would go to version {other}: j1, j3, j5")
        assert pollux.ok("jobs", "move", "--group", "odd", "--to-version", other, "--yes", *config).out.startswith(
            "3 jobs"
        )
        shown = pollux.ok("jobs", *config).out.splitlines()
        assert shown[0].split()[:2] == ["ID", "VERSION"]
        assert {line.split()[0]: line.split()[1] for line in shown[1:]} == {
            f"j{n}": other if n % 2 else there for n in range(6)
        }
        eventually(lambda: ("j1", other) in {(j, v) for j, _, v in ledger(pollux)}, "it runs there", new)
        figures = eventually(lambda: compared(pollux, there, other), "both have runs that ended", new)
        assert [each["jobs"] for each in figures] == [3, 3]
        assert all(each["failed"] == 0 and each["late"]["count"] > 0 for each in figures)
        refused = pollux("migrate", "finish", "--from", there, *config)
        assert refused.code == 1
        assert "3 jobs (j0, j2, j4)" in refused.err
        pollux.ok("jobs", "move", "--from-version", there, "--to-version", other, "--yes", *config)
        refused = pollux("migrate", "finish", "--from", there, *config)
        assert (refused.code, "nodes that serve it" in refused.err) == (1, True), refused
        term = terms(pollux)[1]
        assert stopped(old).code == 0
        eventually(lambda: pollux("migrate", "finish", "--from", there, *config).code == 0, "it is done", new)
        assert list(terms(pollux)) == [int(other)]
        shown = pollux.ok("compare", there, other, *config).out
        assert shown.splitlines()[0].split() == ["VERSION", there, "VERSION", other], "what it did can still be seen"
        assert "counted from" in shown
        begins_again(pollux, nodes.enter_context(serving(pollux, 1)), there, term)


def begins_again(pollux, node, version, term):
    """A version that was finished, with a higher term than before."""
    ran = len(ledger(pollux))
    eventually(lambda: terms(pollux).get(int(version), 0) > term, "it is led, with a higher term", node)
    pollux.ok("jobs", "move", "j0", "--to-version", version, "-c", "p.yaml")
    eventually(lambda: ("j0", version) in {(j, v) for j, _, v in ledger(pollux)[ran:]}, "it runs there again", node)
    assert "was gone" not in (pollux.folder / f"serve-{version}.log").read_text(), "nothing had to be mended"


def terms(pollux):
    """The number of the term by version, of those that are there."""
    versions = pollux.ok("migrate", "--json", "-c", "p.yaml").json["versions"]
    return {version["number"]: version["term"] for version in versions}


def test_a_version_that_was_made_by_mistake_is_named_until_it_is_forgotten(pollux, tmp_path):
    url = url_of("sqlite", tmp_path)
    where = ("--store", url)
    asyncio.run(_put_and_enqueue(url, 2, "home"))
    pollux.ok("jobs", "move", "home", "--to-version", "5", *where)
    back = pollux.ok("jobs", "move", "home", "--to-version", "2", *where)
    cure = "pollux migrate finish --from 5"
    assert f"version 5 has no job, no live run and no node; if it is done: {cure}" in back.err, back
    assert "version 2 has no job" not in back.err, back
    assert cure in pollux.ok("migrate", *where).err
    assert [each["number"] for each in pollux.ok("migrate", "--json", *where).json["versions"]] == [2, 5]
    pollux.ok(*cure.split()[1:], *where)
    assert "finish" not in pollux.ok("migrate", *where).err


def compared(pollux, *versions):
    figures = pollux.ok("compare", *versions, "-c", "p.yaml", "--json").json["versions"]
    return figures if all(each["ended"] for each in figures) else None


async def _put_and_enqueue(url, version, name):
    from pollux.model import Cause, Job, run_of
    from pollux.store.contract import JobPut

    store = open_store(url, scheduler_version=version)
    await store.open()
    job = Job(id=name, handler="ticks:tick")
    assert [answer.answer for answer in await store.put_jobs([JobPut(job)])] == [Answer.OK]
    await store.enqueue([run_of(job, int(time.time() * 1_000), Cause.ENQUEUED)])
    await store.close()
