"""Jobs with hundreds of runs are deleted and moved in parts; the caller may be killed in between."""

import asyncio
import os
import subprocess
import sys
from contextlib import asynccontextmanager
from random import Random

import pytest

from pollux.clock import StoreClock, SystemClock
from pollux.errors import StoreTimeout
from pollux.events import Events
from pollux.model import Arrived, Done, Job, Overlap, Run, RunState
from pollux.runtime.leader import Leader
from pollux.runtime.node import MORE_MS, Pruner
from pollux.store.contract import Answer, JobPut, Pruning, RunFilter, Settlement
from pollux.store.memory import MemoryStore
from pollux.store.redis import RedisStore
from pollux.store.redis.check import check
from pollux.store.redis.verbs import PIECE
from pollux.testing.conformance.builders import a_firing, advance, entries, the_job
from tests.servers.redis import own_url
from tests.store.children import ROOT
from tests.store.test_redis_audit import Cut

T0 = 1_700_000_000_000
PARTS = 5
MANY = PARTS * PIECE + 50
LIVE = (RunState.HELD, RunState.READY, RunState.LEASED)
BIG = Job(id="big", handler="h")
KILLED = """
import asyncio, sys
from pollux.store.redis import RedisStore

async def main():
    store = RedisStore(sys.argv[1])
    await store.open()
    link = store.backend.link()
    run = link.run

    async def stuck(function, **arguments):
        answer = await run(function, **arguments)
        print(function, flush=True)
        await asyncio.sleep(600)  # until we are killed: nothing after the first call is ever asked
        return answer

    link.run = stuck
    await store.delete_jobs(["big"])

asyncio.run(main())
"""


def killed_after_its_first_call(url):
    """Another process deletes the job, and is killed as soon as it was answered; what it was answered to."""
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    child = subprocess.Popen([sys.executable, "-c", KILLED, url], env=env, stdout=subprocess.PIPE, text=True)
    said = child.stdout.readline()
    child.kill()
    child.communicate()
    return said.strip()


@pytest.fixture
async def store():
    store = Cut(own_url("cut-deletes"), deadline_ms=60_000)
    await store.open()
    yield store
    await store.close()


@asynccontextmanager
async def opened_twin(store):
    other = Cut(store.backend.url, deadline_ms=60_000)
    await other.open()
    yield other
    await other.close()


async def crowd(store, job_id="big", many=MANY):
    """Every other run is held at the gate, where nobody would ever claim it."""
    await store.put_jobs([JobPut(Job(id=job_id, handler="h"))])
    runs = [
        Run(f"{job_id}-{n:04}", job_id, T0 + n, visible_ms=T0, gated=True, state=RunState.HELD)
        if n % 2
        else Run(f"{job_id}-{n:04}", job_id, T0 + n, visible_ms=T0)
        for n in range(many)
    ]
    for first in range(0, many, 1_000):
        answers = await store.enqueue(runs[first : first + 1_000])
        assert {each.answer for each in answers} == {Answer.OK}
    return [run.id for run in runs]


async def cut_off(store, *job_ids):
    """The delete is answered once, and never again."""
    store.left = 1
    with pytest.raises(StoreTimeout):
        await store.delete_jobs(job_ids or ["big"])
    store.left = -1
    assert await store.get_jobs(job_ids or ["big"]) == [None] * (len(job_ids) or 1)


async def live_ids(store, job_id="big"):
    page = await store.list_runs(RunFilter(job_id=job_id, states=LIVE), limit=1_000)
    return [run.id for run in page.runs]


async def waiting(store):
    counts = await store.counts()
    return counts.held + counts.ready


async def ends(store):
    """How often the leader is told of the end of each run."""
    told = {}
    for item in (await store.feed(limit=10_000)).items:
        for end in getattr(item.entry, "ends", ()):
            told[end.run_id, end.state] = told.get((end.run_id, end.state), 0) + 1
    return told


def once(ids):
    return {(run_id, RunState.CANCELLED): 1 for run_id in ids}


async def findings(store):
    return (await check(store.backend.url, lambda *_: None)).findings


async def lead(store):
    """A leader comes, and does what leaders do beside planning, until it has nothing more to do."""
    clock, events = SystemClock(), Events()
    leader = Leader(store, "leader", clock=clock, events=events)
    time = StoreClock(clock, events)
    leader.on_answer = lambda term: time.learn(term.now_ms)
    await leader.turn()
    pruner = Pruner(store, leader, time, clock=clock, events=events)
    rest = await pruner.turn()
    while rest.ms == MORE_MS:
        rest = await pruner.turn()


async def test_the_leader_ends_what_a_killed_process_left_of_a_deleted_job(store):
    ids = await crowd(store)
    assert await asyncio.to_thread(killed_after_its_first_call, store.backend.url) == "delete_jobs"
    assert await store.get_jobs(["big"]) == [None]
    assert await waiting(store) == MANY - PIECE
    assert await findings(store) == (), "somebody will end them"

    await lead(store)

    assert await live_ids(store) == []
    assert await ends(store) == once(ids)
    assert await findings(store) == ()
    assert await store.prune(Pruning()) == 0


async def test_a_job_that_is_added_again_after_a_cut_delete_has_none_of_the_old_runs(store):
    ids = await crowd(store)
    await cut_off(store)

    [answer] = await store.put_jobs([JobPut(BIG)])
    await store.enqueue([Run("new", "big", T0, visible_ms=T0)])

    assert (answer.answer, answer.revision) == (Answer.OK, 2)
    assert await live_ids(store) == ["new"]
    assert await ends(store) == once(ids)
    claimed = await store.claim(node="n", token="t", limit=9, lease_ms=9_000)
    assert [run.id for run in claimed.runs] == ["new"]
    await lead(store)
    assert await live_ids(store) == ["new"]


@pytest.mark.parametrize("job_id", ["db-replica-lag", "ZOOM-sync", "MISCONF", "NOPERM: DB index", "WRONGTYPE"])
async def test_whatever_words_are_in_its_id_a_job_is_added_again_after_a_cut_delete(store, job_id):
    """The server's refusals have words of their own, and an id may have the same."""
    await crowd(store, job_id, PIECE + 1)
    await cut_off(store, job_id)

    [answer] = await store.put_jobs([JobPut(Job(id=job_id, handler="h"))])

    assert (answer.answer, await live_ids(store, job_id)) == (Answer.OK, [])


async def test_a_job_is_not_added_as_long_as_the_runs_of_the_deleted_one_wait(store):
    """Who adds it is cut off, too: nothing is added, and what waits belongs to nobody."""
    await crowd(store)
    await cut_off(store)
    for calls in (1, 2, 1):
        store.left = calls
        with pytest.raises(StoreTimeout):
            await store.put_jobs([JobPut(BIG), JobPut(Job(id="other", handler="h"))])
        store.left = -1
        assert await store.get_jobs(["big", "other"]) == [None, None]
    assert await waiting(store) == MANY - 2 * PIECE

    answers = await store.put_jobs([JobPut(BIG), JobPut(Job(id="other", handler="h"))])

    assert [each.answer for each in answers] == [Answer.OK] * 2
    assert await waiting(store) == 0


async def test_a_job_that_is_loaded_after_a_cut_delete_has_none_of_the_old_runs(store):
    await crowd(store)
    [job] = await store.get_jobs(["big"])
    page = await store.dump(limit=1_000)
    await cut_off(store)

    assert await store.load([record for record in page.records if record[0] == "job"]) == 1

    assert (await store.get_jobs(["big"]))[0].id == job.id
    assert await live_ids(store) == []


async def test_runs_that_are_leased_are_passed_over_and_may_end(store):
    """There are more of them than one call looks at, and all of them are due before those that wait."""
    many = PIECE + 100
    await store.put_jobs([JobPut(BIG)])
    await store.enqueue([Run(f"l{n:03}", "big", T0 - 1, visible_ms=T0) for n in range(many)])
    claimed = await store.claim(node="n", token="t", limit=many, lease_ms=9_000)
    assert len(claimed.runs) == many
    ids = await crowd(store)
    await cut_off(store)
    assert await waiting(store) == MANY

    assert await store.prune(Pruning(limit=10_000)) == MANY + 100

    assert (await waiting(store), (await store.counts()).leased) == (0, many)
    assert await ends(store) == once(ids)
    settled = await store.settle([Settlement(run.id, run.token, Done()) for run in claimed.runs])
    assert set(settled) == {Answer.OK}
    assert await live_ids(store) == []


async def test_what_several_deletes_left_ends_in_pieces_of_bounded_size(store):
    dice = Random(5)
    jobs = [f"job-{n}" for n in range(8)]
    ids = [run_id for job_id in jobs for run_id in await crowd(store, job_id, dice.choice([1, 120, PIECE, 2 * PIECE]))]
    await cut_off(store, *jobs)
    left = await waiting(store)
    assert left == len(ids) - PIECE

    ended = [await store.prune(Pruning(limit=300)) for _ in range(left // 300 + 1)]

    assert ended == [300] * (left // 300) + [left % 300]
    assert (await waiting(store), await ends(store)) == (0, once(ids))
    assert await findings(store) == ()


@pytest.mark.parametrize("makes", [RedisStore, MemoryStore])
async def test_what_is_dumped_after_a_cut_delete_loads_without_its_runs(store, makes):
    """Nobody would end them there: what was noted of them stays here."""
    await crowd(store)
    await cut_off(store)

    records = await dumped(store)

    assert (await waiting(store), await noted(store)) == (0, 0)
    other = makes(own_url("loaded")) if makes is RedisStore else makes()
    await other.open()
    await loaded(other, records)
    assert (await waiting(other), len(await live_ids(other))) == (0, 0)
    await other.close()


async def test_what_is_dumped_after_a_cut_move_has_all_its_runs_where_the_job_is(store):
    await crowd(store)
    await cut_move(store)

    records = await dumped(store)

    assert {data.get("scheduler_version") for kind, data in records if kind == "run"} == {3}
    assert await noted(store) == 0


async def dumped(store):
    page = await store.dump()
    records = list(page.records)
    while page.next is not None:
        page = await store.dump(after=page.next)
        records += page.records
    return records


async def loaded(store, records):
    for first in range(0, len(records), 1_000):
        await store.load(records[first : first + 1_000])


async def cut_move(store, to=3):
    store.left = 1
    with pytest.raises(StoreTimeout):
        await store.move_jobs(["big"], to)
    store.left = -1


async def noted(store):
    return await store.backend.link()._over(lambda line: line.ask("HLEN", f"{store.backend.address.prefix}:unfinished"))


async def test_the_leader_brings_what_a_cut_move_left_behind(store):
    await crowd(store)
    await cut_move(store)
    assert (await waiting(store), await waiting(store.of_version(3))) == (MANY - PIECE, PIECE)
    assert await findings(store) == (), "somebody will bring them"

    await lead(store)

    assert (await waiting(store), await waiting(store.of_version(3))) == (0, MANY)
    assert (await findings(store), await noted(store)) == ((), 0)


@pytest.mark.parametrize("by", ["the leader", "the same move"])
async def test_a_firing_that_waits_for_what_a_cut_move_left_is_looked_at_when_that_is_brought(store, by):
    """Those it waits for may have ended before: that was told in the old version, where it does not wait."""
    await store.put_jobs([JobPut(BIG)])
    await store.enqueue([Run(f"r{n:03}", "big", T0 + n, visible_ms=T0) for n in range(PIECE + 9)])
    await cut_move(store)
    there = store.of_version(3)
    firing = a_firing(await the_job(there, "big"), T0 + MANY, overlap=Overlap.QUEUE)
    assert (await advance(there, now_ms=T0, firings=(firing,))).firings == (Answer.WAITS,)
    for each, many in ((there, PIECE), (store, 9)):
        runs = (await each.claim(node="n", token=f"t{many}", limit=many, lease_ms=9_000)).runs
        assert len(await each.settle([Settlement(run.id, run.token, Done()) for run in runs])) == many
    assert await entries(there, Arrived) == []

    await (lead(store) if by == "the leader" else store.move_jobs(["big"], 3))

    assert await entries(there, Arrived) == [Arrived((firing.run.id,))]
    assert await noted(store) == 0


async def test_a_job_that_is_moved_on_after_a_cut_move_takes_all_its_runs_along(store):
    await crowd(store)
    await cut_move(store, 3)

    assert await store.move_jobs(["big"], 4) == [Answer.OK]
    await lead(store)

    assert [await waiting(store.of_version(version)) for version in (2, 3, 4)] == [0, 0, MANY]
    assert (await findings(store), await noted(store)) == ((), 0)


async def test_a_move_that_goes_on_after_another_was_cut_off_leaves_what_that_one_noted(store):
    """It has lost the job to the other one, whose runs are still to be brought."""
    await crowd(store)

    async def moved_on(verb, arguments):
        if verb == "move_jobs" and arguments["after"]:
            store.meanwhile = None
            await cut_move(other, 4)

    async with opened_twin(store) as other:
        store.meanwhile = moved_on
        assert await store.move_jobs(["big"], 3) == [Answer.OK]
    assert await noted(store) == 1
    await lead(store)

    assert [await waiting(store.of_version(version)) for version in (2, 3, 4)] == [0, 0, MANY]
    assert (await findings(store), await noted(store)) == ((), 0)


async def test_a_job_that_is_deleted_after_a_cut_move_ends_in_both_versions(store):
    ids = await crowd(store)
    await cut_move(store)

    assert await store.delete_jobs(["big"]) == [Answer.OK]

    assert (await waiting(store), await waiting(store.of_version(3)), await noted(store)) == (0, 0, 0)
    assert await ends(store) | await ends(store.of_version(3)) == once(ids)
    assert await findings(store) == ()


async def test_what_stands_there_and_is_not_ours_to_finish_goes(store):
    await store.put_jobs([JobPut(BIG)])
    await store.backend.link()._over(
        lambda line: line.ask("HSET", f"{store.backend.address.prefix}:unfinished", "big", "nonsense")
    )

    assert await store.prune(Pruning()) == 0

    assert await noted(store) == 0
    assert len(await store.get_jobs(["big"])) == 1


async def test_an_older_release_that_was_cut_off_is_finished_when_the_delete_is_asked_for_again(store):
    """It has noted nothing."""
    await crowd(store)
    await cut_off(store)
    await store.backend.link()._over(lambda line: line.ask("DEL", f"{store.backend.address.prefix}:unfinished"))
    [finding] = await findings(store)
    assert finding.rule == "orphans"

    assert await store.delete_jobs(["big"]) == [Answer.LOST]

    assert await waiting(store) == 0
    assert await findings(store) == ()


async def test_a_job_that_an_older_release_added_again_keeps_what_came_since(store):
    """It does not look at the note."""
    await crowd(store)
    await cut_off(store)
    key = f"{store.backend.address.prefix}:unfinished"
    note = await store.backend.link()._over(lambda line: line.ask("HGET", key, "big"))
    await store.backend.link()._over(lambda line: line.ask("DEL", key))
    await store.put_jobs([JobPut(BIG)])
    await store.backend.link()._over(lambda line: line.ask("HSET", key, "big", note))
    await store.enqueue([Run("new", "big", T0 + MANY, visible_ms=T0)])

    await lead(store)

    assert (await live_ids(store), await noted(store)) == (["new"], 0)


async def test_a_delete_in_one_call_leaves_no_note(store):
    await crowd(store, many=PIECE)
    store.sent = 0

    await store.delete_jobs(["big"])

    assert (store.sent, await waiting(store), await noted(store)) == (1, 0, 0)
