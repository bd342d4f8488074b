"""Processes behind a connection pooler are killed: nothing is lost or done twice.  `pollux serve` and `pollux worker`.

There is no LISTEN there: waits poll, and two statements may use two connections.
"""

import pytest

from pollux.store.postgres.address import read_address
from tests.chaos.checker import unfinished
from tests.chaos.node import INTERVALS
from tests.chaos.yard import started, wait_until
from tests.faults.backends import POSTGRES
from tests.faults.yard import FarYard
from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgres import own_url, shared_url

LOAD = 300
SEATS = 4  # of each, as in `node.OPTIONS`
LEASE_S, LEADER_TTL_S = 2.0, 3.0
SLACK_S = 10.0  # that a busy machine gets; in virtual time it is none


class PooledYard(FarYard):
    """Its nodes are what an operator starts."""

    def serve(self, *words):
        return self._command("serve", *words)

    def worker(self, *words):
        return self._command("worker", *words)

    def _command(self, *words):
        told = {"POLLUX_STORE": self.store, "CHAOS_LEDGER": str(self.ledger.path), "POLLUX_SERVER": "false"}
        command = ["-m", "pollux", *words, "--app", "tests.chaos.served:app", "--no-watch"]
        self.processes.append(started(command, self.folder / f"{words[0]}-{len(self.processes)}.log", told))
        return self.processes[-1]


@pytest.fixture
async def far_yard(tmp_path):
    bouncer = PgBouncer(shared_url()).start()
    yard = PooledYard(tmp_path, POSTGRES, bouncer.url(f"schema={read_address(own_url('pooled')).schema}"))
    try:
        yield yard
    finally:
        await yard.close()
        bouncer.stop()


async def test_a_leader_and_a_worker_that_are_killed_at_once_leave_nothing_undone_and_nothing_done_twice(
    far_yard, tmp_path
):
    yard, gate = far_yard, tmp_path / "gate"
    serves, workers = [yard.serve(), yard.serve()], [yard.worker(), yard.worker()]
    await yard.is_up(*serves, *workers)
    first_due = await yard.first_dues()
    client = yard.client(seed=11, count=LOAD, seconds=6)
    patient = [f"p{n}" for n in range(3 * SEATS)]  # more than those that serve can seat: workers have some
    for name in patient:
        await yard.ask("patient", name, file=str(gate))
    first = await _started(yard, patient)
    leader = await yard.leader(*serves)
    [heir] = [node for node in serves if node is not leader]
    worker = next(node for node in workers if node.pid in first.values())

    assert await yard.kill(leader, worker) > 0
    gate.touch()
    await yard.leader(heir)
    new = [yard.serve(), yard.worker()]
    await yard.is_up(*new)
    await yard.fires_on()
    assert await client.exit_code() == 0, client.said()
    await yard.quiet()
    await yard.stop(heir, *new, *(node for node in workers if node is not worker))

    await yard.finish()
    store = await yard.judge(first_due=first_due)
    assert unfinished(store, but=list(INTERVALS)) == []
    told = yard.told()
    killed_ns = told.kills[0].at_ns
    assert len(told.asked) == LOAD + len(patient)
    lost = {run_id for run_id, pid in first.items() if pid in (leader.pid, worker.pid)}
    again = [step for step in told.runs if step.run_id in lost and step.pid not in (leader.pid, worker.pid)]
    assert {step.run_id for step in again} == lost
    assert max(step.at_ns for step in again) - killed_ns <= (LEASE_S + 2 + SLACK_S) * 1e9
    assert max(told.terms).at_ns - killed_ns <= (LEADER_TTL_S + 3 + SLACK_S) * 1e9


async def _started(yard, run_ids):
    """Who runs each of them, once all are run."""

    async def look():
        found = {step.run_id: step.pid for step in yard.told().runs if step.run_id in run_ids}
        return found if len(found) == len(run_ids) else {}

    return await wait_until(look, "the start of all that wait")
