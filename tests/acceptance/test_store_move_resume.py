"""A move that is cut off anywhere is completed by running it again."""

import asyncio
import json

import pytest

from pollux import Pollux
from pollux.errors import Conflict
from pollux.model import DRAIN, Done, Job, Node, NotePut, RunState
from pollux.store.contract import JobPut
from pollux.store.memory import MemoryStore
from pollux.store.move_marks import MOVED_TO, MoveMark, begin_filling, mark_put, marks_of, seal
from pollux.testing.conformance.builders import a_run, settlement
from pollux.testing.conformance.records import whole_dump
from tests.acceptance.move_world import carried, cut_off, moved, opened, populate, url_of
from tests.acceptance.terminal import SameProcess, Terminal
from tests.chaos.yard import wait_until


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


async def with_a_node():
    """A store on which a node lives, and something waits; and an empty one."""
    one, two = MemoryStore(), MemoryStore()
    await one.open()
    await two.open()
    await one.put_jobs([JobPut(Job(id="job", handler="h"))])
    await one.beat(Node(id="lives", seats=1), ttl_ms=600_000)
    await one.enqueue([a_run("a", "job", due_ms=0)])
    return one, two


@pytest.mark.parametrize("after", [False, True], ids=["before the call", "after the call"])
async def test_killed_at_any_call_whoever_hears_of_the_move_claims_nothing(after):
    cuts = 0
    for at in range(1, 1_000):
        one, two = await with_a_node()
        if not await cut_off(one, two, at, after=after, live=True):
            break
        if (await marks_of(one)).to is not None:
            cuts += 1
            [drain] = await one.notes(DRAIN)
            assert drain.expires_ms is None, f"killed at call {at}: after a while its workers go on"
        await moved(one, two, live=True)
        assert [run.state for run in await two.get_runs(["a"])] == [RunState.READY]
    assert cuts > 10


async def test_what_a_living_node_runs_ends_before_a_move_goes_on():
    """It claimed in the moment of the seal; in the copy it would be ready, and run again."""
    one, two = await with_a_node()
    await seal(one, MoveMark("m", "two", 1))
    [run] = (await one.claim(node="lives", token="t", limit=1, lease_ms=600_000)).runs

    words = r"1 still run after .*: a on lives; nothing more was moved, and no node claims here; wait longer"
    with pytest.raises(Conflict, match=words):
        await moved(one, two, wait_ms=20)
    assert await whole_dump(two) == []
    going_on = asyncio.ensure_future(moved(one, two, wait_ms=60_000))
    await asyncio.sleep(0.05)
    assert not going_on.done()
    await one.settle([settlement(run, Done())])
    await going_on
    assert [run.state for run in await two.get_runs(["a"])] == [RunState.DONE]


async def test_a_leader_that_the_move_left_its_term_gives_it_up(tmp_path):
    """The move was killed between its two steps: nobody claims any more, and the term is not yet taken."""
    url = f"sqlite:///{tmp_path}/one.db"
    store = await opened(url)
    async with Pollux(url, runs=False) as app:

        async def leads():
            return app.runtime.leader.term is not None

        async def does_not_lead():
            return app.runtime.leader.term is None

        await wait_until(leads, "a leader")
        await store.put_notes([mark_put(MOVED_TO, MoveMark("m", "two", 1)), NotePut(DRAIN, {"by": "move"})])
        await store.wake()
        await wait_until(does_not_lead, "it gives its term up")
    await store.close()


@pytest.mark.parametrize("kind", ["sqlite", "redis", "postgres"])
async def test_a_check_tells_that_a_store_holds_only_a_part(kind, tmp_path):
    here, url = SameProcess(tmp_path), url_of(kind, tmp_path, "part")
    two = await opened(url)
    assert (await asyncio.to_thread(here.ok, "store", "check", "--store", url)).out.startswith("ok: ")
    await begin_filling(two, MoveMark("m", "redis://there", 1))
    await two.close()

    told = await asyncio.to_thread(here, "store", "check", "--store", url)
    assert told.code == 1
    assert "move: a move fills this store, and it holds only a part (1)" in told.out
    assert "from redis://there, since 1970-01-01" in told.out
    assert told.err == "complete the move that fills it, or delete what came: `pollux store drop`\n"
