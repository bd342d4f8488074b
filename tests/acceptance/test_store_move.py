"""`pollux store move`: everything arrives once, whatever cuts it off, and nobody works on both ends."""

import asyncio
import os
import re
from itertools import product

import pytest

from pollux import Pollux
from pollux.app.move import MoveReport
from pollux.cli.store_move import _print_report, _unseal
from pollux.errors import Conflict, StoreMoved, StoreRefused
from pollux.model import DRAIN, Done, Job, Node, Once, Plan, RunState, chained
from pollux.secrets import hide
from pollux.store.contract import Answer, JobPut, Pruning, Settlement
from pollux.store.memory import MemoryStore
from pollux.store.move_marks import marks_of, unseal
from pollux.testing.conformance.builders import T0, a_firing, a_run, an_outcome
from pollux.testing.conformance.records import whole_dump
from tests.acceptance.move_world import carried, fresh, moved, opened, populate, url_of
from tests.acceptance.terminal import SameProcess, Terminal, eventually, stopped

STORES = ("memory", "sqlite", "redis", "postgres")
REAL = ("sqlite", "redis", "postgres")


# between any two


@pytest.mark.parametrize(("source", "target"), [*product(STORES, STORES)])
async def test_everything_arrives_between_any_two_stores(source, target, tmp_path):
    one, two = await opened(url_of(source, tmp_path, "one")), await opened(url_of(target, tmp_path, "two"))
    try:
        term, leased = await populate(one)
        before = carried(await whole_dump(one))

        answer = await moved(one, two, page=4)

        assert carried(await whole_dump(two)) == before
        assert answer.counts == {
            "jobs": 3,
            "live runs": 6,
            "dead letters": 1,
            "finished runs": 3,
            "notes": 2,
            "audit lines": 4,
        }
        [run] = await two.get_runs([leased])
        assert (run.state, run.owner, run.lease_losses, run.attempt, run.fence) == (RunState.READY, "", 0, 0, 1)
        assert (await two.elect("new", ttl_ms=1_000)).number > term
        log = (await two.read_log()).lines
        assert [line.action for line in log] == ["pause"] * 4 + ["move"]
        assert log[4].count == 0, "the number of notes of the write is no number of the move"
        assert log[4].chain == chained(log[4], before=log[3].chain), "the chain goes on"
        [answer] = await two.enqueue([a_run("again", "job0", key=run.key)])
        assert (answer.answer, answer.detail) == (Answer.CONFLICT, leased), "its key is taken there, too"
        [put] = await two.put_jobs([JobPut(Job(id="gone", handler="h"))])
        assert put.revision == 2, "a deleted job is remembered there, too"
    finally:
        await one.close()
        await two.close()


@pytest.mark.parametrize("target", REAL)
async def test_a_once_job_whose_history_is_pruned_does_not_fire_again_in_the_other_store(target, tmp_path):
    """Its code declares it anew when the nodes start there."""
    once = Job(id="once", handler="h", schedule=Once(T0))
    one, two = MemoryStore(), await opened(url_of(target, tmp_path, "two"))
    await one.open()
    try:
        await one.put_jobs([JobPut(once)])
        [job] = await one.get_jobs(["once"])
        term = await one.elect("old", ttl_ms=1, now_ms=T0)
        firing = a_firing(job, T0, next_due_ms=None)
        assert (await one.advance(term.number, Plan(firings=(firing,)), now_ms=T0)).firings == (Answer.OK,)
        [run] = (await one.claim(node="old", token="t", limit=1, lease_ms=9, now_ms=T0)).runs
        await one.settle([Settlement(run.id, run.token, Done())], now_ms=T0)
        await one.prune(Pruning(ids=(run.id,), once_before_ms=T0 + 1))

        await moved(one, two)
        await two.put_jobs([JobPut(once)])

        [job] = await two.get_jobs(["once"])
        assert (job.revision, job.last_due_ms) == (2, T0)
        term = await two.elect("new", ttl_ms=1, now_ms=T0)
        firing = a_firing(job, T0, next_due_ms=None)
        assert (await two.advance(term.number, Plan(firings=(firing,)), now_ms=T0)).firings == (Answer.ALREADY,)
    finally:
        await one.close()
        await two.close()


async def test_the_one_left_behind_is_sealed_and_the_new_one_is_open(tmp_path):
    one, two = (f"sqlite:///{tmp_path}/{name}.db" for name in ("one", "two"))
    stores = [await opened(url) for url in (one, two)]
    await populate(stores[0])
    old = await stores[0].elect("old", ttl_ms=600_000, now_ms=T0 + 10**9)
    await moved(*stores)
    assert (await stores[0].advance(old.number, Plan())).answer is Answer.FENCED, "who led it cannot plan any more"
    assert (await stores[0].elect("old", ttl_ms=600_000)).holder != "old"
    for store in stores:
        await store.close()

    with pytest.raises(StoreRefused, match=r"moved to two, on .*; use that one"):
        await Pollux(one).open()
    app = Pollux(one)
    await app.open(sealed=True)
    assert "unseal" in await app.sealed()
    with pytest.raises(StoreMoved, match="moved elsewhere: nodes claim here only after it is unsealed"):
        await app.operations.workers.resume_workers()
    assert (await app.operations.status.counts()).jobs == 3, "it can still be looked at"
    await app.close()
    async with Pollux(two):
        pass


@pytest.mark.parametrize(("source", "target"), [("memory", "redis"), ("redis", "postgres"), ("postgres", "sqlite")])
async def test_all_versions_move_and_the_leader_of_each_is_fenced(source, target, tmp_path):
    one, two = await opened(url_of(source, tmp_path, "one")), await opened(url_of(target, tmp_path, "two"))
    try:
        await populate(one)
        await one.move_jobs(["job0"], 1)
        old = await one.of_version(1).elect("old", ttl_ms=600_000)
        before = carried(await whole_dump(one))

        await moved(one, two, page=4)

        assert carried(await whole_dump(two)) == before
        assert (await one.of_version(1).advance(old.number, Plan())).answer is Answer.FENCED
        assert [job.scheduler_version for job in await two.get_jobs(["job0", "job1"])] == [1, 2]
        assert (await two.of_version(1).elect("new", ttl_ms=1_000)).number > old.number
        assert (await two.of_version(1).counts()).jobs == 1
    finally:
        await one.close()
        await two.close()


async def test_an_app_that_was_open_before_cannot_start_after(tmp_path):
    url = f"sqlite:///{tmp_path}/one.db"
    app = Pollux(url)
    await app.open()
    one, two = await opened(url), MemoryStore()
    await two.open()
    await moved(one, two)

    with pytest.raises(StoreRefused, match="was moved"):
        await app.start()
    with pytest.raises(StoreRefused, match="was moved"):
        await asyncio.to_thread(app.blocking.get_run, "r")
    await app.close()
    await one.close()


async def test_unsealed_it_works_again(tmp_path):
    url = f"sqlite:///{tmp_path}/one.db"
    one, two = await opened(url), MemoryStore()
    await two.open()
    await populate(one)
    await moved(one, two)

    mark = await unseal(one)
    assert mark.other == "two"
    assert await one.notes(DRAIN) == []
    assert (await one.elect("next", ttl_ms=1_000)).holder == "next"
    await one.close()
    async with Pollux(url):
        pass


@pytest.mark.parametrize("kind", REAL)
async def test_an_unseal_is_on_record_in_the_same_write(kind, tmp_path):
    url = url_of(kind, tmp_path, "one")
    one, two = await opened(url), MemoryStore()
    await two.open()
    try:
        await populate(one)
        await moved(one, two)

        await _unseal(url, force=True)

        lines = (await one.read_log()).lines
        assert [(line.action, line.subject, line.detail, line.count) for line in lines[4:]] == [
            ("unseal", hide(url), "it was moved to two, move m", 0)
        ]
        assert lines[4].chain == chained(lines[4], before=lines[3].chain)
    finally:
        await one.close()
        await two.close()


# draining


async def test_a_live_move_waits_for_what_runs_and_gives_up_in_time():
    one, two = await fresh(filled=True), await fresh()
    await one.beat(Node("n"), ttl_ms=600_000)
    await one.enqueue([a_run("long", "job0", priority=1)])
    [run] = (await one.claim(node="n", token="x", limit=1, lease_ms=600_000)).runs

    with pytest.raises(Conflict, match=r"2 still run after .*long on n.*; nothing was moved, and the nodes go on"):
        await moved(one, two, live=True, wait_ms=1)
    assert await one.notes(DRAIN) == [], "they go on"
    assert (await marks_of(one)).to is None

    steps = []

    async def ends_soon(step):
        await one.settle([Settlement(run.id, run.token, Done(), an_outcome(T0))])

    def report(step):
        steps.append(step)
        if len(steps) == 1:
            asyncio.get_running_loop().create_task(ends_soon(step))

    await unleased(one)
    answer = await moved(one, two, live=True, wait_ms=60_000, report=report)
    assert [step.phase for step in steps][:2] == ["draining", "draining"]
    assert (steps[0].done, answer.nodes) == (1, ("n",))
    assert (await two.get_runs(["long"]))[0].state is RunState.DONE


async def test_a_live_move_does_not_wait_for_a_leader_that_was_killed(monkeypatch):
    """Its last beat is there for a while; the ends that it had not read go over unread."""
    monkeypatch.setattr("pollux.app.move.LEADER_MS", 600_000)
    one, two = await fresh(filled=True), await fresh()
    await unleased(one)
    await one.beat(Node("killed", leads=1), ttl_ms=600_000)
    assert (await one.counts()).ends

    async with asyncio.timeout(60):
        answer = await moved(one, two, live=True)
    assert answer.nodes == ("killed",)


async def unleased(store):
    """The lease that `populate` left ends; nobody claims it again."""
    [held] = [run for run in (await store.list_runs(limit=99)).runs if run.owner == "old"]
    await store.settle([Settlement(held.id, held.token, Done(), an_outcome(T0))])


WORK = """\
jobs:
  - {id: slow, python: "mine:slow"}
  - {id: tick, python: "work:fine", interval: 300ms}
  - {id: hourly, python: "work:fine", interval: 1h}
"""
MINE = """\
import asyncio

async def slow(ctx):
    with open("ran.txt", "a") as file:
        print(ctx.run.id, file=file, flush=True)
    await asyncio.sleep(0.7)
"""


@pytest.mark.parametrize(("source", "target"), [("sqlite", "redis"), ("redis", "postgres"), ("postgres", "sqlite")])
def test_a_live_house_moves(source, target, tmp_path):
    """A node that works is asked to drain: what runs ends there, what waits is run in the new place, nothing twice."""
    here = SameProcess(tmp_path)
    one, two = url_of(source, tmp_path, "one"), url_of(target, tmp_path, "two")
    here.write("p.yaml", WORK)
    here.write("mine.py", MINE)
    serve = ("serve", "-c", "p.yaml", "--no-watch", "--seats", "1", "--store")
    with here.started(*serve, one) as process:
        eventually(lambda: done(here, one), "the node works", process)
        ids = [here.ok("enqueue", "slow", "--store", one, "--json").json["run"]["id"] for _ in range(3)]
        eventually((tmp_path / "ran.txt").exists, "one of them runs", process)

        refused = here("store", "move", one, two)
        assert refused.code == 1
        assert f":{process.pid}:" in refused.err
        said = here.ok("store", "move", one, two, "--live")

        assert "counted on both sides, and equal" in said.out
        assert f":{process.pid}:" in said.out, "the node that still waits there is named"
        before = done(here, one)
        assert stopped(process).code == 0
    assert done(here, one) == before, "nothing ran there any more"
    again = here(*serve, one)
    assert again.code == 3
    assert "this store was moved to" in again.err
    assert "was moved to" in here.ok("jobs", "--store", one).err, "who looks is told"
    assert done(here, two) == before, "its history is there"
    with here.started(*serve, two) as process:
        eventually(lambda: set(ids) <= done(here, two), "the rest is run in the new place", process)
        assert stopped(process).code == 0
    assert sorted((tmp_path / "ran.txt").read_text().split()) == sorted(ids), "each ran once, here or there"
    assert before <= done(here, two)
    assert "pollux:pollux@" not in said.out + said.err + again.err + refused.err, "no password is shown"


def done(here, store):
    answer = here("runs", "--state", "done", "--limit", "1000", "--json", "--store", store)
    return {run["id"] for run in answer.json["runs"]} if answer.code == 0 else set()


# the command


def test_the_words_of_the_command(tmp_path):
    here = SameProcess(tmp_path)
    asyncio.run(_make(f"sqlite:///{tmp_path}/one.db"))
    moved = here.ok("store", "move", "sqlite:///one.db", "sqlite:///two.db")
    assert moved.out.startswith("moved sqlite:///one.db to sqlite:///two.db in ")
    assert "3 jobs, 6 live runs, 1 dead letter, 3 finished runs, 2 notes, 4 audit lines" in moved.out
    where = ("--store", "sqlite:///one.db")
    before = here.ok("store", "dump", "-", *where).out
    [job] = here.ok("jobs", "--limit", "1", "--json", *where).json["jobs"]
    for words in (
        ("enqueue", job["id"]),
        ("pause", job["id"]),
        ("drain",),
        ("resume", "--workers"),
        ("set", "pool.seats", "9"),
    ):
        refused = here(*words, *where)
        assert refused.code == 3, words
        assert "was moved to sqlite:///two.db" in refused.err
        assert "nothing was changed: this store is not in use any more" in refused.err
    assert here.ok("store", "dump", "-", *where).out == before, "whoever looks changes nothing"
    refused = here("store", "unseal", "sqlite:///one.db")
    assert (refused.code, "add --force" in refused.err) == (1, True)
    assert "can be used again" in here.ok("store", "unseal", "sqlite:///one.db", "--force").out
    line = here.ok("audit", "--json", *where).json["lines"][-1]
    assert (line["action"], line["subject"]) == ("unseal", "sqlite:///one.db")
    assert line["detail"].startswith("it was moved to sqlite:///two.db, move ")
    assert here("store", "unseal", "sqlite:///one.db").code == 1
    assert "seal" in here("store", "unseal", "sqlite:///two.db").err


def test_on_a_terminal_it_shows_how_far_it_is(tmp_path):
    asyncio.run(_make(f"sqlite:///{tmp_path}/one.db"))
    here = Terminal(tmp_path)
    screen, end = os.openpty()
    try:
        command = ("store", "move", "sqlite:///one.db", "sqlite:///two.db")
        with here.started(*command, environ={"TERM": "xterm"}, stderr=end) as process:
            os.close(end)
            shown = read_all(screen)
            assert process.wait(60) == 0
    finally:
        os.close(screen)
    assert "copying: 19 records" in shown or "counting: 19 of 19" in shown, shown


def read_all(screen):
    shown = b""
    while True:
        try:
            part = os.read(screen, 65_536)
        except OSError:  # nobody writes to it any more
            part = b""
        if not part:
            return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode(errors="replace"))
        shown += part


async def _make(url):
    store = await opened(url)
    await populate(store)
    await store.close()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("memory://", "sqlite:///two.db"), 2, "name another store"),
        (("sqlite:///one.db", "memory://"), 2, "name another store"),
        (("sqlite:///none.db", "sqlite:///two.db"), 3, "there is no store"),
        (("sqlite:///one.db", "sqlite:///one.db"), 2, "the same store"),
        (("sqlite:///one.db", "nonsense://x"), 2, "names no store"),
        (("sqlite:///one.db", "redis://:hunter2222@127.0.0.1:1/0"), 3, "cannot be reached"),
        (("sqlite:///one.db", "postgresql://me:hunter2222@127.0.0.1:1/x"), 3, "cannot be reached"),
        (("sqlite:///one.db", "sqlite:///two.db", "--wait", "soon"), 2, "soon"),
    ],
)
def test_what_cannot_be_moved_is_said_with_the_cure(tmp_path, arguments, code, said):
    here = SameProcess(tmp_path)
    asyncio.run(_make(f"sqlite:///{tmp_path}/one.db"))
    answer = here("store", "move", *arguments)
    assert answer.code == code, answer
    assert said in answer.err
    assert "hunter2222" not in answer.err + answer.out


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        (("a",), "1 node is left there (a), and does nothing; start it on the other store"),
        (("a", "b"), "2 nodes are left there (a, b), and do nothing; start them on the other store"),
        ((), "no node can serve it any more"),
    ],
)
def test_nodes_that_are_left_on_the_old_store_are_told(nodes, said, capsys):
    _print_report(MoveReport("m", "one", "two", {"jobs": 1}, 0, 1_000, nodes))
    assert capsys.readouterr().out.splitlines()[-1].endswith(said)
