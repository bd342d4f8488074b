"""A second node on the machine: the port that the file names is taken, and nothing happens by halves."""

import os
import socket

import pytest

from pollux.server.sockets import holder_of
from tests.acceptance.terminal import SameProcess, Terminal, eventually, stopped
from tests.servers.ports import free_port

API = {"POLLUX_SERVER": "true"}
STORE = ("--store", "sqlite:///p.db")


@pytest.fixture
def taken():
    """A port that a stranger listens on."""
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        yield stranger.getsockname()[1]


def text(job: str, port: int) -> str:
    jobs = f'[{{id: {job}, python: "work:fine", interval: 1h}}]'
    return f"store: sqlite:///p.db\nserver: {{port: {port}}}\njobs: {jobs}\n"


def ids(here) -> set[str]:
    answer = here("jobs", *STORE, "--json")
    return {job["id"] for job in answer.json["jobs"]} if answer.code == 0 else set()


def nodes_of(here) -> list:
    answer = here("nodes", *STORE, "--json")
    return answer.json["nodes"] if answer.code == 0 else []


def test_a_second_node_is_refused_before_it_changed_anything_and_told_who_has_the_port(tmp_path):
    terminal, here, port = Terminal(tmp_path, fresh=True), SameProcess(tmp_path), free_port()
    here.write("p.yaml", text("a", port))
    here.write("q.yaml", text("b", port))
    with terminal.started("serve", "-c", "p.yaml", "--no-watch", environ=API) as first:
        eventually(lambda: ids(here) == {"a"}, "its job is there", first)
        second = terminal("serve", "-c", "q.yaml", "--no-watch", environ=API)
        assert second.code == 1
        assert f"localhost:{port}: process {first.pid} (pollux serve) listens there" in second.err
        assert "this node was not started, and nothing was changed" in second.err
        assert "--port 0" in second.err
        assert "pollux worker" in second.err
        assert (ids(here), len(nodes_of(here))) == ({"a"}, 1)
        with terminal.started("serve", "-c", "q.yaml", "--no-watch", "--port", "0", environ=API) as cured:
            eventually(lambda: len(nodes_of(here)) == 2, "it lives beside the first", cured)
            assert stopped(cured).code == 0
        assert stopped(first).code == 0


def test_a_worker_whose_own_port_is_taken_is_refused(tmp_path, taken):
    """Named by an argument it is the worker's own; named by the file, which it shares, it is not."""
    here = Terminal(tmp_path)
    here.write("p.yaml", text("a", taken))
    refused = here("worker", "-c", "p.yaml", "--port", str(taken), environ=API)
    assert (refused.code, f"process {os.getpid()} (" in refused.err) == (1, True)
    assert not (tmp_path / "p.db").exists()


def test_a_worker_goes_on_without_the_port_of_the_file_that_it_shares(tmp_path, taken):
    terminal, here = Terminal(tmp_path), SameProcess(tmp_path)
    here.write("p.yaml", text("a", taken))
    with terminal.started("worker", "-c", "p.yaml", "--no-watch", environ=API) as worker:
        eventually(lambda: nodes_of(here), "it lives", worker)
        said = stopped(worker).err
    assert f"the API cannot listen on localhost:{taken} (process {os.getpid()} (" in said
    assert "this node has none" in said


def test_an_address_that_is_not_of_this_machine_is_a_mistake_of_the_config(tmp_path):
    here = Terminal(tmp_path)
    words = ("serve", "--store", "sqlite:///p.db", "--host", "192.0.2.1", "--behind-proxy", "--port", "8060")
    refused = here(*words, environ=API)
    assert (refused.code, "cannot listen on 192.0.2.1:8060" in refused.err) == (2, True)
    assert "none of this machine's addresses" in refused.err
    assert not (tmp_path / "p.db").exists()


def test_who_listens_is_named_by_its_program_and_never_by_its_arguments(taken):
    assert holder_of(taken).startswith(f"process {os.getpid()} (")
    assert holder_of(free_port()) == "another process"
