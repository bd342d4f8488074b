"""`pollux store move`: everything arrives once, whatever cuts it off, and nobody works on both ends."""

import asyncio
import json
import os
import re
from itertools import product

import pytest

from pollux import Pollux
from pollux.app.move import End, Move
from pollux.clock import SystemClock
from pollux.errors import Conflict, StoreMoved, StoreRefused
from pollux.model import DRAIN, AuditLine, Dead, Done, Interval, Job, Node, NotePut, Once, Plan, RunState, chained
from pollux.store.contract import Answer, JobPut, Pruning, Settlement
from pollux.store.guard import Wrapped
from pollux.store.memory import MemoryStore
from pollux.store.open import open_store
from pollux.store.seal import marks_of, unseal
from pollux.testing.conformance.builders import T0, a_failure, a_firing, a_run, an_outcome
from pollux.testing.conformance.records import whole_dump
from tests.acceptance.terminal import SameProcess, Terminal, eventually, stopped
from tests.servers import postgres, redis

STORES = ("memory", "sqlite", "redis", "postgres")
REAL = ("sqlite", "redis", "postgres")


def url_of(kind, folder, what="move"):
    match kind:
        case "memory":
            return "memory://"
        case "sqlite":
            return f"sqlite:///{folder}/{what}.db"
        case "redis":
            return redis.own_url(what)
    return postgres.own_url(what)


async def opened(url):
    store = open_store(url)
    await store.open()
    return store


async def populate(store, *, runs=3):
    """Something of every kind, a lease among it; the term was held by somebody."""
    await store.put_jobs(
        [JobPut(Job(id=f"job{n}", handler="h", schedule=Interval(3_600_000), params={"ä": [n, 1.5]})) for n in range(3)]
    )
    term = await store.elect("old", ttl_ms=1, now_ms=T0)
    made = [a_run(f"r{n:03}", f"job{n % 3}", key=f"k{n}", payload={"n": n}) for n in range(2 * runs + 2)]
    await store.enqueue(
        [*made, a_run("gated", "job1", gated=True), a_run("later", "job2", due_ms=T0 + 10**9)], now_ms=T0
    )
    claimed = (await store.claim(node="old", token="t", limit=runs + 2, lease_ms=10**12, now_ms=T0)).runs
    ends = [Settlement(run.id, run.token, Done(), an_outcome(T0, result={"n": 1})) for run in claimed[:runs]]
    ends.append(Settlement(claimed[runs].id, claimed[runs].token, Dead("enough"), a_failure(T0)))
    await store.settle(ends, now_ms=T0 + 5)
    await store.put_notes([NotePut("n1", {"v": 1}), NotePut("stop:job:job2", {"reason": "x"})], now_ms=T0)
    await store.put_notes([NotePut("ends", 1, expires_ms=10**14)], now_ms=T0)
    await store.log([AuditLine(T0 + n, "ann", "pause", f"job{n}", "why") for n in range(4)])
    await store.put_jobs([JobPut(Job(id="gone", handler="h"))])
    await store.delete_jobs(["gone"])
    return term.number, claimed[runs + 1].id


def a_move(source, target, *, page=1_000, report=lambda _: None):
    return Move(End(source, "one"), End(target, "two"), clock=SystemClock(), report=report, page=page, settle_ms=0)


async def moved(source, target, *, live=False, wait_ms=1_000, **options):
    return await a_move(source, target, **options).run("m", actor="test", live=live, wait_ms=wait_ms)


def carried(records):
    """By kind and id; without what a move adds, and with leases void."""
    found = {}
    for kind, data in records:
        if kind == "term" or (kind == "note" and data["key"].startswith(("move:", DRAIN))):
            continue
        if kind == "log" and data["action"] == "move":
            continue
        void = ("token", "owner", "lease_until_ms") if data.get("state") == "leased" else ()
        is_ready = kind == "run" and data.get("state", "ready") in ("ready", "leased")
        kept = {name: value for name, value in data.items() if name not in void and not (is_ready and name == "state")}
        found[kind, data.get("id") or data.get("key") or data["seq"]] = kept
    return found


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
    with pytest.raises(StoreMoved, match="moved elsewhere: nobody claims here before it is unsealed"):
        await app.resume_workers()
    assert (await app.counts()).jobs == 3, "it can still be looked at"
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
        await asyncio.to_thread(app.blocking.counts)
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


# cut off


class Around(Wrapped):
    """Something in front of a store; each version has its own."""

    def of_version(self, number):
        return type(self)(self.store.of_version(number))


class Cut(Exception):
    """The process is killed here."""


class Counted(Wrapped):
    """A store that counts its calls with another one, and is killed at one of them: before it, or after it."""

    def __init__(self, store, clock):
        super().__init__(store)
        self.clock = clock

    def of_version(self, number):
        return Counted(self.store.of_version(number), self.clock)

    async def call(self, verb, answer, wait_ms=0):
        self.clock["calls"] += 1
        is_last = self.clock["calls"] == self.clock["at"]
        if is_last and not self.clock["after"]:
            answer.close()
            raise Cut
        value = await answer
        if is_last:
            raise Cut
        return value


async def cut_off(one, two, at, *, after):
    """Begin a move that is killed at its n-th call to a store; was it?"""
    clock = {"calls": 0, "at": at, "after": after}
    try:
        await moved(Counted(one, clock), Counted(two, clock), page=4)
    except Cut:
        return True
    return False


@pytest.mark.parametrize("after", [False, True], ids=["before the call", "after the call"])
async def test_killed_at_any_call_it_is_completed_by_running_it_again(after):
    cuts = 0
    for at in range(1, 1_000):
        one, two = MemoryStore(), MemoryStore()
        await one.open()
        await two.open()
        await populate(one)
        before = carried(await whole_dump(one))
        if not await cut_off(one, two, at, after=after):
            break
        cuts += 1
        is_sealed = (await marks_of(one)).to is not None
        halfway = carried(await whole_dump(two))
        assert not halfway or is_sealed, "nothing leaves a store that somebody may work on"

        answer = await moved(one, two, page=4)

        assert carried(await whole_dump(two)) == before, f"killed at call {at}"
        assert sum(answer.counts.values()) == len(before) - 2, "all but the note that ends, and the deleted job"
        assert [line.seq for line in (await two.read_log()).lines][:4] == [1, 2, 3, 4]
        assert (await marks_of(two)).origin.is_over
    assert cuts > 20


@pytest.mark.parametrize(("source", "target"), [("sqlite", "redis"), ("redis", "postgres"), ("postgres", "sqlite")])
async def test_killed_three_times_on_real_stores(source, target, tmp_path):
    one, two = await opened(url_of(source, tmp_path, "one")), await opened(url_of(target, tmp_path, "two"))
    try:
        await populate(one)
        before = carried(await whole_dump(one))
        assert [await cut_off(one, two, at, after=True) for at in (14, 12, 18)] == [True, True, True]
        await moved(one, two, page=4)
        assert carried(await whole_dump(two)) == before
    finally:
        await one.close()
        await two.close()


async def test_a_program_that_is_killed_goes_on_where_it_was(tmp_path):
    """The real program, SIGKILL between two pages, the same words again."""
    here = Terminal(tmp_path)
    store = await opened(f"sqlite:///{tmp_path}/one.db")
    await store.put_jobs([JobPut(Job(id="job", handler="h"))])
    for start in range(0, 8_000, 1_000):
        await store.enqueue([a_run(f"r{n}") for n in range(start, start + 1_000)])
    await store.close()
    command = ("store", "move", "sqlite:///one.db", "sqlite:///two.db", "--json")
    with here.started(*command) as process:
        for line in process.stdout:
            if json.loads(line)["phase"] == "copying":
                process.kill()
                break
        process.wait()

    lines = [json.loads(line) for line in here.ok(*command).out.splitlines()]

    assert lines[0]["phase"] == "copying"
    assert lines[0]["done"] > 1_000, "it did not begin anew"
    assert lines[-1]["phase"] == "moved"
    assert lines[-1]["counts"]["live runs"] == 8_000
    again = here.ok(*command).out.splitlines()
    assert json.loads(again[-1])["counts"] == lines[-1]["counts"], "once more: all is there already"


# refused


async def fresh(*, filled=False):
    store = MemoryStore()
    await store.open()
    if filled:
        await populate(store)
    return store


async def test_nodes_that_live_are_named():
    one, two = await fresh(filled=True), await fresh()
    for number in range(7):
        await one.beat(Node(f"node-{number}", leads=number == 0), ttl_ms=60_000)

    with pytest.raises(Conflict, match=r"7 nodes live \(node-0 \(leads\), node-1, .* and 2 more\) on one; .*--live"):
        await moved(one, two)
    assert (await marks_of(one)).to is None
    assert await one.notes(DRAIN) == []


async def test_a_target_that_is_not_empty_is_refused():
    one = await fresh(filled=True)
    for spoil in (
        lambda store: store.put_jobs([JobPut(Job(id="theirs", handler="h"))]),
        lambda store: store.put_notes([NotePut("theirs", 1)]),
        lambda store: store.log([AuditLine(1, "a", "b", "c")]),
    ):
        two = await fresh()
        await spoil(two)
        with pytest.raises(Conflict, match="two is not empty: there is a"):
            await moved(one, two)
    assert (await marks_of(one)).to is None, "nothing was begun"


async def test_a_target_on_which_nodes_live_is_refused():
    one, two = await fresh(filled=True), await fresh()
    await two.beat(Node("early"), ttl_ms=60_000)
    with pytest.raises(Conflict, match=r"1 node lives \(early\) on two; start nodes there when the move is over"):
        await moved(one, two)


async def test_a_part_of_another_move_is_refused():
    one, two, three = await fresh(filled=True), await fresh(), await fresh(filled=True)
    assert await cut_off(three, two, 14, after=True)
    with pytest.raises(Conflict, match="a part of another move, from one"):
        await moved(one, two)


async def test_a_second_goal_is_refused_until_the_first_move_is_given_up():
    one, two, three = await fresh(filled=True), await fresh(), await fresh()
    assert await cut_off(one, two, 14, after=True)
    with pytest.raises(Conflict, match=r"a move of one to two was begun on .*unseal"):
        await Move(End(one, "one"), End(three, "three"), clock=SystemClock(), report=print).run(
            "x", actor="", live=False, wait_ms=0
        )
    await unseal(one)
    answer = await Move(End(one, "one"), End(three, "three"), clock=SystemClock(), report=lambda _: None).run(
        "x", actor="", live=False, wait_ms=0
    )
    assert answer.counts["jobs"] == 3


async def test_what_was_moved_is_not_moved_to_another_place():
    one, two, three = await fresh(filled=True), await fresh(), await fresh()
    await moved(one, two)
    with pytest.raises(Conflict, match=r"one was moved to two on .*; move from there"):
        await moved(one, three)
    with pytest.raises(Conflict, match="was moved to two, so nobody works on it"):
        await Move(End(three, "three"), End(one, "one"), clock=SystemClock(), report=print).run(
            "x", actor="", live=False, wait_ms=0
        )
    await moved(two, three)
    assert (await three.counts()).jobs == 3, "on from there it goes"


async def test_the_same_store_under_two_names_is_found_and_left_as_it_was():
    one = await fresh()
    with pytest.raises(Conflict, match="are the same store"):
        await moved(one, one)
    assert (await marks_of(one)).to is None


async def test_what_comes_meanwhile_is_carried_too():
    """An app that still enqueues: seen by the counts, and fetched in another pass."""
    one, two = await fresh(filled=True), await fresh()
    late = [a_run(f"late{n}", "job0") for n in range(3)]

    class Busy(Around):
        async def dump(self, **options):
            page = await self.store.dump(**options)
            if late and page.next is None:
                await self.store.enqueue([late.pop()])
            return page

    with pytest.raises(Conflict, match="somebody still writes to one"):
        await moved(Busy(one), two)
    answer = await moved(Busy(one), two)
    assert late == []
    assert answer.counts["live runs"] == 9
    assert (await two.counts()).ready == (await one.counts()).ready + (await one.counts()).leased


async def test_a_copy_that_is_not_what_was_carried_is_said():
    one, two = await fresh(filled=True), await fresh()

    class Forgetful(Around):
        """It spoils what it is given."""

        async def load(self, records):
            spoilt = [(k, d | {"detail": "never mind"} if k == "log" and d["seq"] == 2 else d) for k, d in records]
            return await self.store.load(spoilt)

    with pytest.raises(Conflict, match="two does not hold what one does: other audit lines"):
        await moved(one, Forgetful(two))
    assert not (await marks_of(two)).origin.is_over
    with pytest.raises(StoreRefused, match=r"is being moved to two, since .*complete that"):
        await Pollux(one).open()
    with pytest.raises(StoreRefused, match="is being filled from one"):
        await Pollux(two).open()


# draining


async def test_a_live_move_waits_for_what_runs_and_gives_up_in_time():
    one, two = await fresh(filled=True), await fresh()
    await one.beat(Node("n"), ttl_ms=600_000)
    await one.enqueue([a_run("long", "job0", priority=1)])
    [run] = (await one.claim(node="n", token="x", limit=1, lease_ms=600_000)).runs

    with pytest.raises(Conflict, match=r"there still run .*long on n.*; nothing was moved, and the nodes go on"):
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
        assert "nothing was changed: nobody works on this store any more" in refused.err
    assert here.ok("store", "dump", "-", *where).out == before, "whoever looks changes nothing"
    refused = here("store", "unseal", "sqlite:///one.db")
    assert (refused.code, "add --force" in refused.err) == (1, True)
    assert "can be used again" in here.ok("store", "unseal", "sqlite:///one.db", "--force").out
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
