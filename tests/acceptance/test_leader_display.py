"""The leader was killed and only workers live: every command says so at once, and what helps."""

import asyncio
import time

import pytest

from pollux import Pollux
from pollux.cli.doctor.finding import FAIL, OK
from pollux.model import Interval, Job, JobUpdate, Memory, Node, Plan
from pollux.store.contract import JobPut
from pollux.store.urls import open_store
from tests.acceptance.api_world import served
from tests.acceptance.terminal import SameProcess
from tests.http_world import until
from tests.servers import postgres
from tests.servers.redis import own_url

LATE_MS = 30_000


@pytest.fixture(params=["sqlite", "redis", "postgres"])
def url(request, tmp_path):
    match request.param:
        case "redis":
            return own_url("leads")
        case "postgres":
            return postgres.own_url("leads")
    return f"sqlite:///{tmp_path}/p.db"


@pytest.fixture
def pollux(tmp_path):
    (tmp_path / "house").mkdir()
    return SameProcess(tmp_path / "house")


async def fill(url, *, is_led=False, standby=False):
    """A job that is overdue; a leader whose term has ended or stands; a worker; a standby if one is wished for."""
    store = open_store(url)
    await store.open()
    term = await store.elect("killed", ttl_ms=600_000)
    [put] = await store.put_jobs([JobPut(Job(id="tick", handler="h", schedule=Interval(3_600_000)))])
    due_ms = int(time.time() * 1000) - LATE_MS
    update = JobUpdate("tick", put.revision, due_ms, Memory())
    assert (await store.advance(term.number, Plan(updates=(update,)))).answer.value == "ok"
    await store.beat(Node("killed", seats=1, leads=term.number, handlers=("h",)), ttl_ms=600_000)
    await store.beat(Node("w", seats=2, plans=False, handlers=("h",)), ttl_ms=600_000)
    if standby:
        await store.beat(Node("spare", seats=2, handlers=("h",)), ttl_ms=600_000)
    if not is_led:
        await store.resign("killed", term=term.number)
    await store.close()


def of(findings, name, key):
    return next(finding for finding in findings if finding[key] == name)


def test_where_the_term_is_over_no_command_names_a_leader(pollux, url):
    asyncio.run(fill(url))
    told = pollux.ok("nodes", "--json", "--store", url).json
    assert (told["leaders"], {node["role"] for node in told["nodes"]}) == ([], {"silent", "worker"})
    shown = pollux.ok("nodes", "--store", url).out
    assert "term 1" not in shown
    health = pollux("health", "--json", "--store", url).json
    leader = of(health["findings"], "leader", "name")
    assert (leader["level"], leader["seen"]) == ("unhealthy", "no leader, and no node can lead: nothing is planned")
    assert "pollux serve" in leader["cure"]
    assert (health["leader"], health["term"]) == (None, None)
    due = of(health["findings"], "due", "name")
    assert due["seen"].startswith("nothing is due for longer than its schedule allows (the longest: tick, 3")
    doctor = pollux("doctor", "--json", "--store", url).json["findings"]
    leader = of(doctor, "leader", "about")
    assert (leader["level"], "pollux serve" in leader["cure"]) == (FAIL, True), "as health has it"
    assert "none is due for longer than its schedule allows; one was due 3" in of(doctor, "due times", "about")["seen"]
    why = pollux("why", "tick", "--json", "--store", url).json["why"]
    assert (why["answer"], "no leader" in why["reason"]) == ("stranded", True)


def test_where_the_term_stands_its_node_leads_and_a_standby_is_told(pollux, url):
    asyncio.run(fill(url, is_led=True, standby=True))
    told = pollux.ok("nodes", "--json", "--store", url).json
    roles = {node["id"]: node["role"] for node in told["nodes"]}
    assert (told["leaders"], roles) == (["killed"], {"killed": "leader", "spare": "standby", "w": "worker"})
    lines = {line.split()[0]: line for line in pollux.ok("nodes", "--store", url).out.splitlines()[1:]}
    assert "term 1" in lines["killed"]
    assert "standby" in lines["spare"]
    assert "worker" in lines["w"]
    leader = of(pollux("health", "--json", "--store", url).json["findings"], "leader", "name")
    assert (leader["level"], leader["seen"]) == ("healthy", "killed leads, term 1; 1 on standby")
    leader = of(pollux("doctor", "--json", "--store", url).json["findings"], "leader", "about")
    assert (leader["level"], leader["seen"]) == (OK, "killed leads, term 1; 1 on standby; 3 nodes")


async def test_the_live_table_and_a_trigger_judge_by_the_term_too(tmp_path):
    url = f"sqlite:///{tmp_path}/p.db"
    await fill(url)
    app = Pollux(url)
    await app.open()
    assert (await app.operations.status.overview()).leader == ""
    assert (await app.operations.workers.trigger()).leaders == ()
    await app.close()


async def test_the_api_tells_each_node_s_role_by_the_term():
    async with served(runs=False) as client:
        store = client.app.backend
        await store.beat(Node("killed", leads=7), ttl_ms=600_000)
        await store.beat(Node("w", plans=False), ttl_ms=600_000)
        [own] = [node.id for node in await client.app.operations.status.nodes() if node.id not in {"killed", "w"}]

        async def led():
            told = (await client("GET", "/api/v2/nodes")).json
            return told if told["leader"] is not None else None

        told = await until(led)
    assert told["leader"] == own
    roles = {node["id"]: (node["role"], node["is_leader"]) for node in told["nodes"]}
    assert roles == {own: ("leader", True), "killed": ("silent", False), "w": ("worker", False)}
