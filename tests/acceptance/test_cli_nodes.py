"""`pollux nodes`: how many seats are taken now, who was not heard of lately, and who is about to leave."""

import asyncio

import apsw
import pytest

from pollux import Pollux
from pollux.app.operations import status
from pollux.cli.status import _leads, _seats, _seen
from pollux.model import Job, Node
from pollux.store.move_marks import MoveMark, seal
from tests.acceptance.api_world import api_of
from tests.acceptance.terminal import SameProcess

NOW = 1_790_000_000_000


async def busy(app):
    """One node with four seats, whose last beat was before it claimed a run."""
    await app.put_jobs([Job(id="a", handler="h"), Job(id="b", handler="h")])
    await app._store.beat(Node(id="n1", seats=4, handlers=("h",)), ttl_ms=60_000)
    await app._store.beat(Node(id="n2", seats=4, busy=3, handlers=("h",)), ttl_ms=60_000)
    await app.enqueue("a")
    await app.enqueue("b")
    assert (await app._store.claim(node="n1", token="t", limit=1, lease_ms=60_000)).runs


async def fill(url, deed):
    app = Pollux(url, actor="test")
    await app.open()
    try:
        await deed(app)
    finally:
        await app.close()


def test_taken_seats_are_those_of_now_and_not_of_the_last_beat(tmp_path):
    asyncio.run(fill(f"sqlite:///{tmp_path}/p.db", busy))
    pollux = SameProcess(tmp_path)
    nodes = pollux.ok("nodes", "--json", "--store", "sqlite:///p.db").json["nodes"]
    assert {node["id"]: node["busy"] for node in nodes} == {"n1": 1, "n2": 0}
    shown = pollux.ok("nodes", "--store", "sqlite:///p.db").out
    assert [line.split()[0] for line in shown.splitlines() if " 1/4 " in line] == ["n1"]
    assert [line.split()[0] for line in shown.splitlines() if " 0/4 " in line] == ["n2"]


async def test_the_api_tells_the_same():
    async def asked(app):
        await busy(app)
        told = (await api_of(app).ok("GET", "/api/v2/nodes"))["nodes"]
        assert {node["id"]: node["busy"] for node in told} == {"n1": 1, "n2": 0}

    await fill("memory://", asked)


AS_THEY_SAID = {"n1": 0, "n2": 3}


async def test_a_run_that_cannot_be_read_hides_no_node(tmp_path):
    path = tmp_path / "p.db"

    async def asked(app):
        await busy(app)
        connection = apsw.Connection(str(path))
        connection.execute("UPDATE runs SET payload = x'ff' WHERE owner = 'n1'")
        connection.close()
        assert (await app.operations.runs.list_runs()).unreadable, "the test does not bite"
        told = (await api_of(app).ok("GET", "/api/v2/nodes"))["nodes"]
        assert {node["id"]: node["busy"] for node in told} == AS_THEY_SAID

    await fill(f"sqlite:///{path}", asked)


async def test_many_leases_are_not_read_to_count_them(monkeypatch):
    monkeypatch.setattr(status, "LEASES_MAX", 1)

    async def asked(app):
        await busy(app)
        assert {node.id: node.busy for node in await status.nodes_now(app.operations)} == {"n1": 1, "n2": 0}
        assert (await app._store.claim(node="n1", token="u", limit=1, lease_ms=60_000)).runs
        monkeypatch.setattr(app.operations.runs, "list_runs", None)  # nobody asks for them
        assert {node.id: node.busy for node in await status.nodes_now(app.operations)} == AS_THEY_SAID

    await fill("memory://", asked)


@pytest.mark.parametrize(
    ("node", "says"),
    [
        (Node("n", seats=4, busy=1), "1/4"),
        (Node("n", seats=4, busy=1, draining=True), "1/4 draining"),
        (Node("n", seats=0, busy=1, draining=True), "1 draining"),
        (Node("n", seats=0, busy=0, draining=True), "- draining"),
        (Node("n", seats=0), "-"),
    ],
)
def test_seats_are_told_as_they_are(node, says):
    assert _seats(node) == says


@pytest.mark.parametrize(("age_ms", "says"), [(0, "now"), (14_000, "14s ago"), (21_000, "silent 21s")])
def test_whoever_misses_a_beat_is_silent(age_ms, says):
    assert _seen(Node("n", beat_ms=NOW - age_ms), NOW) == says


async def sealed(app):
    """It was moved elsewhere; a node that knows of nothing lives there all the same."""
    await app._store.beat(Node(id="n1", seats=4), ttl_ms=60_000)
    await seal(app._store, MoveMark("m", "redis://there", 1, ended_ms=2))


def test_on_a_store_that_was_moved_elsewhere_nobody_stands_by(tmp_path):
    asyncio.run(fill(f"sqlite:///{tmp_path}/p.db", sealed))
    told = SameProcess(tmp_path).ok("nodes", "--store", "sqlite:///p.db")
    assert "standby" not in told.out
    assert "was moved to redis://there" in told.err
    assert _leads(Node(id="w", plans=False), NOW, is_sealed=True) == "worker"
    assert _leads(Node(id="n1"), NOW, is_sealed=False) == "standby"
