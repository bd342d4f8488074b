"""`pollux serve` and `pollux worker` on a real Redis: jobs fire, runs settle, and a killed worker's run comes back."""

import signal

import pytest

from tests.acceptance.terminal import Terminal, eventually, stopped
from tests.servers.redis import own_url


@pytest.fixture
def pollux(tmp_path) -> Terminal:
    return Terminal(tmp_path)


def runs(pollux, url, job_id, state="done"):
    answer = pollux("runs", "--job", job_id, "--state", state, "--json", "--store", url)
    return answer.json["runs"] if answer.code == 0 else []


def test_a_schedule_fires_on_redis_and_its_runs_settle(pollux):
    url = own_url("serve")
    pollux.write("p.yaml", 'jobs: [{id: tick, python: "work:fine", interval: 200ms}]')
    with pollux.started("serve", "-c", "p.yaml", "--store", url) as process:
        eventually(lambda: len(runs(pollux, url, "tick")) >= 3, "it fired three times", process)
        assert stopped(process).code == 0
    dues = [run["due_ms"] for run in runs(pollux, url, "tick")]
    assert len(set(dues)) == len(dues)


def test_the_run_of_a_killed_worker_comes_back(pollux):
    url = own_url("serve")
    config = 'pool: {lease: 2s}\njobs: [{id: slow, python: "work:slow", once: true, params: {seconds: %s}}]'
    pollux.write("p.yaml", config % 600)
    with pollux.started("serve", "-c", "p.yaml", "--store", url, "--seats", "1") as first:
        eventually((pollux.folder / "slow.started").exists, "the handler started", first)
        first.send_signal(signal.SIGKILL)
        first.wait()
    pollux.write("p.yaml", config % 0)

    def is_quick() -> bool:
        return pollux("jobs", "show", "slow", "--json", "--store", url).json["job"]["params"] == {"seconds": 0}

    def is_at_work(worker):
        def is_listed() -> bool:
            answer = pollux("nodes", "--json", "--store", url)
            return answer.code == 0 and str(worker.pid) in answer.out

        return is_listed

    with pollux.started("serve", "-c", "p.yaml", "--store", url) as planner:
        eventually(is_quick, "the new definition is written, so that nobody takes 600 s", planner)
        with pollux.started("worker", "-c", "p.yaml", "--store", url) as worker:
            eventually(is_at_work(worker), "the worker is there, and so can be asked to stop", worker)
            [run] = eventually(lambda: runs(pollux, url, "slow"), "another one ran it", planner)
            assert stopped(worker).code == 0
        assert stopped(planner).code == 0
    assert (run["lease_losses"], run["attempt"]) == (1, 1)
