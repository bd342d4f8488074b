"""Real processes that share a PostgreSQL store: one plans, others run, and nothing is lost with one that dies."""

import signal

import pytest

from tests.acceptance.terminal import Terminal, eventually, stopped
from tests.servers.postgres import own_url

JOBS = """
store: %s
pool: {lease: 2s, seats: 4}
jobs:
  - {id: often, python: "work:fine", interval: 500ms}
  - {id: slow, python: "work:slow", once: true, params: {seconds: %s}}
"""


@pytest.fixture
def pollux(tmp_path) -> Terminal:
    return Terminal(tmp_path)


def runs_of(pollux, job_id, state) -> list:
    answer = pollux("runs", "--job", job_id, "--state", state, "--json", "-c", "p.yaml")
    return answer.json["runs"] if answer.code == 0 else []


def test_serve_fires_and_settles(pollux):
    pollux.write("p.yaml", JOBS % (own_url("serve"), 0.1))
    with pollux.started("serve", "-c", "p.yaml") as process:
        eventually(lambda: len(runs_of(pollux, "often", "done")) >= 2, "two firings are done", process)
        answer = stopped(process)
    assert answer.code == 0
    assert (pollux.folder / "slow.ended").exists()


def test_the_run_of_a_worker_that_was_killed_comes_back(pollux):
    url = own_url("killed")
    pollux.write("p.yaml", JOBS % (url, 600))
    (pollux.folder / "w.yaml").write_text((pollux.folder / "p.yaml").read_text())
    with pollux.started("serve", "-c", "p.yaml") as serve:
        eventually((pollux.folder / "slow.started").exists, "the handler started", serve)
        [run] = runs_of(pollux, "slow", "leased")
        serve.send_signal(signal.SIGKILL)
        serve.wait()
    (pollux.folder / "slow.started").unlink()

    with pollux.started("worker", "-c", "w.yaml") as worker:
        eventually((pollux.folder / "slow.started").exists, "another worker took it over", worker)
        [again] = runs_of(pollux, "slow", "leased")

    assert (again["id"], again["lease_losses"]) == (run["id"], 1)
    assert again["owner"] != run["owner"]
