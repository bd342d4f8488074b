"""Enqueue without an answer of the node: the run is named, and the store is asked where possible."""

import asyncio

import pytest
from msgspec.structs import replace

from pollux import Pollux
from pollux.app.operations.runs import RunAccepted
from pollux.cli import enqueue
from pollux.cli.enqueue import NodeUnanswered, RunQuestion
from pollux.client import Remote
from pollux.client.rpc_codec import Hello
from pollux.clock import FakeClock
from pollux.errors import StoreTimeout
from pollux.ids import made_ms_of
from pollux.model import Run
from pollux.store.memory import MemoryStore


class Node(Remote):
    """A node as commands see it: what it says of itself, and what it does when it is asked for a run."""

    def __init__(self, answer, store="memory://"):
        self.hello = Hello(version="1", store=store, file="", sealed="", name="ann", role="admin")
        self.answer, self.asked = answer, []
        self.operations = self.runs = self

    async def accept(self, job_id, params, **options):
        self.asked.append(options)
        return await self.answer(job_id, **options)


async def silent(job_id, **options):
    raise StoreTimeout("it did not answer within 120 s: it may have done what was asked")


async def answers(job_id, **options):
    return RunAccepted(Run(options["id"], job_id, 0))


async def home(ctx): ...


async def hangs(job_id, **options):
    await asyncio.Event().wait()


async def test_a_run_has_its_id_before_the_node_is_asked():
    node = Node(answers)
    accepted = await RunQuestion("home", options={"key": "k"}).accepted_by(node)
    assert node.asked == [{"id": accepted.run.id, "key": "k"}]
    assert len(accepted.run.id) == 28


async def test_the_id_begins_with_the_time_of_the_store():
    """As those that the program makes elsewhere: after a clock that was ahead, the leader goes by it."""
    node = Node(answers)
    node.hello = replace(node.hello, now_ms=1_700_000_000_000)
    assert made_ms_of((await RunQuestion("home").accepted_by(node)).run.id) == 1_700_000_000_000

    clock = FakeClock()
    app = Pollux(MemoryStore(clock), clock=clock)
    app.add(app.handler(home))
    await app.open()
    assert made_ms_of((await RunQuestion("home").accepted_by(app)).run.id) == clock.now_ms()
    await app.close()


async def test_a_run_of_which_no_answer_came_is_named_with_how_to_look():
    node = Node(silent)
    with pytest.raises(StoreTimeout) as told:
        await RunQuestion("home").accepted_by(node)
    run_id = node.asked[0]["id"]
    assert str(told.value).startswith(f"run {run_id} of job home may have been accepted: it did not answer")
    assert f"`pollux runs show {run_id}` shows it, and `--id {run_id}` asks for the same run" in str(told.value)


async def test_a_node_that_hangs_is_left_where_its_store_can_be_asked(tmp_path, monkeypatch):
    monkeypatch.setattr(enqueue, "LATE_S", 0.01)
    with pytest.raises(NodeUnanswered) as told:
        await RunQuestion("home", run_id="mine").accepted_by(Node(hangs, "redis://127.0.0.1/0"))
    assert (told.value.store, told.value.run_id) == ("redis://127.0.0.1/0", "mine")


@pytest.mark.parametrize("store", ["memory://", "redis://ann:***@127.0.0.1/0", "sqlite:///gone.db"])
async def test_and_waited_for_where_it_cannot(store, monkeypatch):
    monkeypatch.setattr(enqueue, "LATE_S", 0.01)
    may_answer = asyncio.Event()

    async def late(job_id, **options):
        await may_answer.wait()
        return await answers(job_id, **options)

    node = Node(late, store)
    node.hello = Hello("1", store, "1:2" if store.startswith("sqlite") else "", "", "ann", "admin")
    asked = asyncio.ensure_future(RunQuestion("home", run_id="mine").accepted_by(node))
    asyncio.get_running_loop().call_later(0.1, may_answer.set)
    assert (await asked).run.id == "mine"
