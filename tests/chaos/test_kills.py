"""Processes are killed at any moment: nothing is lost, and nothing happens twice."""

import os

from pollux.model import UPDATES_MAX, Cause, Dead, Ended, Fault, Job, Outcome, run_of
from pollux.store.contract import JobPut, Settlement
from tests.chaos.storm import kill_at_random

KILLS = int(os.environ.get("POLLUX_CHAOS_KILLS", "30"))
SEED = int(os.environ.get("POLLUX_CHAOS_SEED", "20261"))
LEASE_MS, LEADER_TTL_MS = 2_000, 3_000  # as in `node.OPTIONS`
SLACK_MS = 10_000  # that a busy machine gets; in virtual time it is none


async def test_kills_under_load_lose_nothing_and_double_nothing(yard):
    await kill_at_random(yard, kills=KILLS, seed=SEED)


async def test_a_killed_worker_s_runs_are_taken_up_by_another_within_the_lease_and_two_seconds(yard, tmp_path):
    gate, names = tmp_path / "gate", ["p0", "p1", "p2"]
    serve, first = yard.serve("runs=0"), yard.worker()
    await yard.is_up(serve, first)
    for name in names:
        await yard.ask("patient", name, file=str(gate))
    await yard.started(first, *names)
    second = yard.worker("lease=60s")  # what it took up stays with it
    await yard.is_up(second)

    assert await yard.kill(first) >= len(names)
    await yard.started(second, *names)
    gate.touch()
    await yard.quiet()
    await yard.stop(serve, second)

    await yard.judge()
    again = [step for step in yard.told().runs if step.pid == second.pid and step.run_id in names]
    assert max(step.at_ns for step in again) - yard.told().kills[0].at_ns <= (LEASE_MS + 2_000 + SLACK_MS) * 1_000_000
    assert {step.fence for step in again} == {2}


async def test_a_killed_leader_is_replaced_within_its_ttl_and_three_seconds(yard):
    """Two nodes plan; the other one fires on, and no due is left out."""
    nodes = [yard.serve(), yard.serve()]
    await yard.is_up(*nodes)
    first_due = await yard.first_dues()
    leader = await yard.leader(*nodes)
    [other] = [node for node in nodes if node is not leader]

    await yard.kill(leader)
    await yard.leader(other)
    await yard.fires_on()
    await yard.stop(other)

    await yard.judge(first_due=first_due)
    won = max(yard.told().terms)
    assert won.at_ns - yard.told().kills[0].at_ns <= (LEADER_TTL_MS + 3_000 + SLACK_MS) * 1_000_000


async def test_leaders_that_die_over_an_entry_of_many_ends_teach_each_job_once(yard):
    """Each is killed when it has written a part of what the entry teaches; the next one reads it again as a whole."""
    store, names = (await yard.eye())._store, [f"learns-{n:03}" for n in range(3 * UPDATES_MAX + 50)]
    jobs = [Job(id=name, handler="hopeless") for name in names]
    await store.put_jobs([JobPut(job) for job in jobs])
    at_ms = (await store.feed(limit=1)).now_ms
    await store.enqueue([run_of(job, at_ms, Cause.ENQUEUED, id=f"run-{job.id}") for job in jobs])
    claimed = await store.claim(node="n", token="t", limit=len(jobs), lease_ms=60_000)
    outcome = Outcome(at_ms, at_ms, fault=Fault.TRANSIENT, error="E")
    await store.settle([Settlement(run.id, run.token, Dead("gave up"), outcome=outcome) for run in claimed.runs])

    leaders = 0
    while any(isinstance(item.entry, Ended) for item in (await store.feed(limit=1_000)).items):
        await yard.died(yard.serve("runs=0", "leader_ttl=1s", "dies=learning"))
        leaders += 1
        assert leaders < 2 * len(names) / UPDATES_MAX + 4, "they learn nothing"

    assert leaders == 4, "the entry was not learnt in parts: the test does not bite"
    memories = [job.memory for job in await store.get_jobs(names)]
    assert {(memory.ended, memory.failures, memory.dead, len(memory.recent)) for memory in memories} == {(1, 1, 1, 1)}
