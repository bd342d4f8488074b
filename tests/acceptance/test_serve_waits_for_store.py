"""`pollux serve` and `pollux worker` before their server is there: they wait, say so, and go on by themselves."""

import contextlib
import re
import signal

import pytest

from tests.acceptance.terminal import SameProcess, Terminal, eventually, stopped
from tests.servers.postgres import QUICK, PostgresServer
from tests.servers.redis import RedisServer

CONFIG = """
server: {enabled: false}
pool: {seats: 2}
jobs:
  - {id: tick, python: "work:fine", interval: 200ms}
"""
WAITS = "trying again until it answers, Ctrl-C stops"


class Node:
    """One process with its log."""

    def __init__(self, stack, pollux, *words):
        self.log = pollux.folder / f"{words[0]}.log"
        written = stack.enter_context(self.log.open("wb"))
        self.process = stack.enter_context(pollux.started(*words, stdout=written, stderr=written))

    def says(self, words):
        eventually(lambda: words in self.log.read_text(), f"it says {words!r}", self.process)


@pytest.fixture(params=["redis", "postgres"])
def server(request, tmp_path):
    """One that has an address, and is not there yet; and its URL."""
    if request.param == "redis":
        (tmp_path / "redis").mkdir()
        server = RedisServer(tmp_path / "redis")
        url = server.url
    else:
        server = PostgresServer(*QUICK)
        url = server.url()
    yield server, url
    server.stop()


@pytest.fixture
def pollux(tmp_path):
    pollux = Terminal(tmp_path)
    pollux.write("p.yaml", CONFIG)
    return pollux


def test_nodes_that_start_before_their_server_wait_for_it_and_go_on(pollux, server):
    server, url = server
    with contextlib.ExitStack() as stack:
        words = ("-c", "p.yaml", "--no-watch", "--store", url)
        nodes = [Node(stack, pollux, command, *words) for command in ("serve", "worker")]
        for node in nodes:
            node.says("cannot be reached (Connection refused)")
            node.says(WAITS)
            assert node.log.read_text().count(WAITS) == 1, "it does not say so with each look"
        server.start()
        here = SameProcess(pollux.folder)

        def ran():
            answer = here("runs", "--state", "done", "--store", url, "--json")
            return answer.code == 0 and answer.json["runs"]

        eventually(ran, "the job runs")
        eventually(lambda: len(here.ok("nodes", "--store", url, "--json").json["nodes"]) == 2, "both are there")
        assert [stopped(node.process).code for node in nodes] == [0, 0]


@pytest.mark.parametrize("watch", ["--watch", "--no-watch"])
def test_who_waits_for_a_server_is_stopped_as_always(pollux, server, watch):
    _, url = server
    with contextlib.ExitStack() as stack:
        node = Node(stack, pollux, "serve", "-c", "p.yaml", watch, "--store", url)
        node.says(WAITS)
        assert stopped(node.process, signal.SIGINT).code == 0
        assert not {"Traceback", "draining"} & set(re.findall(r"\w+", node.log.read_text()))


def test_what_does_not_become_better_by_waiting_ends_the_process(pollux, server):
    """A server that does not let us in, or a mistake of our own: nobody waits for that."""
    server, url = server
    server.start()
    others = url.replace("redis://", "redis://:wrong@") if url.startswith("redis") else f"{url}_none"
    answer = pollux("serve", "-c", "p.yaml", "--no-watch", "--store", others)
    assert answer.code == 3
    assert WAITS not in answer.err
