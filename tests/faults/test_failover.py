"""The server of running nodes dies, and its replica takes over.  Real nodes, judged by the ledger."""

import asyncio

import pytest

from tests.chaos.checker import double_outcome, terms, unfinished
from tests.chaos.node import INTERVALS
from tests.chaos.yard import wait_until
from tests.faults.backends import REDIS
from tests.faults.pressure import Pressure
from tests.faults.yard import FarYard
from tests.servers.redis_cluster import again
from tests.servers.redis_pair import Pair

pytestmark = pytest.mark.xdist_group("against time on redis")  # as all tests with nodes


@pytest.fixture
def pair(tmp_path):
    pair = Pair(tmp_path, "--appendonly", "yes", "--appendfsync", "no")  # no disk is proved here
    yield pair
    pair.stop()


@pytest.fixture
async def runtime(tmp_path, pair, request):
    """Two that plan and one that only runs, on what the pair serves."""
    yard = FarYard(tmp_path, REDIS, f"{pair.url}?namespace=runtime{request.param}")
    nodes = [yard.serve(), yard.serve(), yard.worker()]
    try:
        await yard.is_up(*nodes)
        yield yard, nodes
    finally:
        await yard.close()


@pytest.mark.parametrize("runtime", ["&wait=1"], ids=["wait=1"], indirect=True)
async def test_a_failover_under_load_with_wait_loses_nothing_and_doubles_nothing(runtime, pair):
    """The very same processes go on by themselves, at least at 70 % of their pace."""
    yard, nodes = runtime
    pressure, first_due = Pressure(yard), await yard.first_dues()
    async with pressure.on():
        usual = await pressure.usual()
        await asyncio.to_thread(pair.fail_over)
        await asyncio.to_thread(pair.renew)  # without a replica nothing is confirmed, and so nothing counts
        print(await pressure.works_again(usual))
    await yard.fires_on()
    await yard.quiet()
    await yard.stop(*nodes)

    await yard.finish()
    store = await yard.judge(first_due=first_due)
    assert unfinished(store, but=list(INTERVALS)) == []
    assert len(yard.told().asked) >= 100, "that was no load"
    assert not any("went back" in node.said() for node in nodes)


@pytest.mark.parametrize("runtime", [""], ids=["no wait"], indirect=True)
async def test_without_wait_only_what_the_replica_had_not_got_is_gone_and_that_is_said(runtime, pair):
    """Nobody is wedged: the very same processes plan and run on."""
    yard, nodes = runtime
    names = {when: [f"{when}{n}" for n in range(20)] for when in ("early", "late", "after")}
    await yard.first_dues()
    await ask_for(yard, names["early"])
    await asyncio.to_thread(pair.catch_up)
    await asyncio.to_thread(pair.cut)
    await ask_for(yard, names["late"])
    await all_know_of(yard, nodes, names["late"])
    await asyncio.to_thread(pair.fail_over)
    await ask_for(yard, names["after"])
    await yard.fires_on()
    await yard.quiet()
    await yard.stop(*nodes)

    await yard.finish()
    there = {run.id for run in await yard.runs()}
    missing = {run_id for answered in names.values() for run_id in answered if run_id not in there}
    assert missing == set(names["late"]), "the replica had all but these, or knew of one that it had not got"
    assert [node.pid for node in nodes if "writes that it had acknowledged are gone" not in node.said()] == []
    assert await yard.integrity() == "ok"
    told = yard.told()
    assert terms(told) == []
    assert [won.term for won in sorted(told.terms, key=lambda won: won.at_ns)] == sorted(won.term for won in told.terms)
    assert double_outcome(await yard.snapshot()) == []
    assert {step.run_id for step in told.ends} >= {*names["early"], *names["after"]}


async def all_know_of(yard, nodes, late):
    """Each of them runs one: who heard nothing from the server meanwhile could not tell that it went back."""

    async def look():
        await ask_for(yard, [f"late{len(late)}"])
        late.append(f"late{len(late)}")
        return {node.pid for node in nodes} <= {step.pid for step in yard.told().runs if step.run_id in late}

    await wait_until(look, "a late run on every node")


async def ask_for(yard, run_ids):
    """Also while there is no server: the same ids until they are answered."""
    for run_id in run_ids:
        await again(lambda run_id=run_id: yard.ask("plain", run_id))
