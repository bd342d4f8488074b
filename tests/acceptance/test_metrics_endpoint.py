"""`pollux serve` and `pollux worker` as Prometheus meets them: real processes, real stores, a port of their own."""

import re
import socket
import urllib.error
import urllib.request
from contextlib import contextmanager

import pytest

from tests.acceptance.terminal import SameProcess, Terminal, eventually, stopped
from tests.runtime.scrape import Scrape

CONFIG = """
store: sqlite:///p.db
server: {enabled: false}
pool: {seats: 2}
metrics: {port: 0}
jobs:
  - {id: tick, python: "work:fine", interval: 200ms, source_id: crm, group: edge}
  - {id: broken, python: "work:refuse", interval: 200ms}
  - {id: asked, python: "work:fine", priority: low}
"""


@pytest.fixture
def pollux(tmp_path) -> Terminal:
    return Terminal(tmp_path)


@contextmanager
def node(pollux: Terminal, *arguments: str, log: str = "log"):
    """A node in a process, and where its metrics are."""
    path = pollux.folder / log
    with path.open("wb") as written, pollux.started(*arguments, stdout=written, stderr=written) as process:

        def place() -> str:
            found = re.search(r"metrics are served on (\S+)", path.read_text())
            return found[1] if found else ""

        yield process, eventually(place, f"the metrics are served: {arguments}", process)


def scrape(place: str) -> Scrape:
    with urllib.request.urlopen(place, timeout=20) as answer:
        assert answer.status == 200
        return Scrape(answer.read().decode())


def test_a_served_file_is_seen_in_its_metrics(pollux):
    pollux.write("p.yaml", CONFIG)
    with node(pollux, "serve", "-c", "p.yaml", "--no-watch") as (process, place):

        def seen():
            got = scrape(place)
            is_there = got.all("scheduler_jobs_executed_total", status="done", source_id="crm")
            is_looked_at = got("scheduler_jobs") == 3  # what the store says may be a second old
            return is_there and is_looked_at and got.all("monitor_poll_errors_total") and got

        got = eventually(seen, "both jobs have run", process)
        assert (got("scheduler_is_leader"), got("scheduler_worker_pool_size")) == (1, 2)
        edge = {"instance": "tick", "instance_type": "edge"}
        assert got("monitor_poll_total", result="success", **edge) >= 1
        assert got("monitor_poll_planned_seconds", **edge) == 0.2
        broken = {"instance": "broken", "instance_type": "work:refuse"}
        assert got("monitor_poll_staleness_seconds", **broken) == -1
        assert got("monitor_poll_errors_total", error_type="permanent", **broken) >= 1
        assert got.samples["process_resident_memory_bytes", ()] > 10_000_000
        assert [dict(labels)["store"] for _, labels in got.all("build_info")] == ["sqlite"]
        assert "it never works" not in got.text, "what a handler says is no label"
        assert stopped(process).code == 0


def test_a_drained_queue_is_seen_by_priority_and_by_every_node_alike(pollux):
    pollux.write("p.yaml", CONFIG)
    at_hand = SameProcess(pollux.folder)
    with (
        node(pollux, "serve", "-c", "p.yaml", "--no-watch") as (process, place),
        node(pollux, "worker", "-c", "p.yaml", "--no-watch", log="worker") as (worker, other),
    ):
        eventually(lambda: scrape(place)("scheduler_nodes") == 2, "both are there", process)
        at_hand.ok("drain", "-c", "p.yaml")
        for _ in range(3):
            at_hand.ok("enqueue", "asked", "-c", "p.yaml")

        def waits():
            got = [scrape(each) for each in (place, other)]
            return all(each("scheduler_queue_depth", priority="low") == 3 for each in got) and got

        first, second = eventually(waits, "three wait", process)
        assert [each("scheduler_is_leader") for each in (first, second)] == [1, 0]
        assert first.all("scheduler_timers")
        assert not second.all("scheduler_timers"), "a worker plans nothing"
        assert [each("scheduler_leaders") for each in (first, second)] == [1, 1]
        at_hand.ok("resume", "--workers", "-c", "p.yaml")
        eventually(lambda: scrape(place)("scheduler_queue_depth", priority="low") == 0, "all are claimed", process)

        def claimed():
            """Each once, and those once more that were claimed while the drain was on its way, and handed back."""
            got = [scrape(each) for each in (place, other)]
            backs = sum(each("scheduler_runs_handed_back_total", to="queue") for each in got)
            return 3 <= sum(each("scheduler_queue_dequeued_total", priority="low") for each in got) <= 3 + backs

        eventually(claimed, "the nodes' own counts add up", process)
        for each in (worker, process):
            assert stopped(each).code == 0


def test_an_older_dashboard_keeps_its_names_and_the_argument_names_the_port(pollux):
    pollux.write("p.yaml", "store: memory://\nserver: {enabled: false}\nmetrics: {prefix: crawler}\n")
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        port = str(held.getsockname()[1])
        refused = pollux("serve", "-c", "p.yaml", "--no-watch", "--metrics-port", port)
    assert refused.code == 2
    assert f"metrics.port: the metrics cannot be served on 127.0.0.1:{port}" in refused.err
    with node(pollux, "serve", "-c", "p.yaml", "--no-watch", "--metrics-port", "0") as (process, place):
        got = scrape(place)
        assert got.samples["crawler_scheduler_worker_pool_size", ()] == 10
        assert "pollux_" not in got.text
        with pytest.raises(urllib.error.HTTPError, match="404"):
            scrape(place.replace("/metrics", "/"))
        assert stopped(process).code == 0


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("metrics: {prefix: a-b}", "cannot be used"),
        ("metrics: {port: 70000}", "0 to 65535"),
        ("health: {staleness: soon}", "is not a duration"),
        ("health: {queue: 1}", "queue_depth"),
    ],
)
def test_a_bad_option_is_refused_with_the_cure(tmp_path, line, said):
    pollux = SameProcess(tmp_path)
    pollux.write("p.yaml", f"store: memory://\n{line}\n")
    answer = pollux("check", "-c", "p.yaml")
    assert answer.code != 0
    assert said in answer.err + answer.out
