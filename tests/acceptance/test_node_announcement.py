"""Commands in a folder from which a node runs: what its announcement is used for, and what it is not."""

import asyncio
import contextlib
import os
import socket

import pytest

from pollux import Pollux
from pollux.secrets import MASK, hide
from pollux.store.local_files import AnnouncedNode, announce
from tests.acceptance.terminal import SameProcess
from tests.servers import redis


@pytest.fixture
def pollux(tmp_path):
    return SameProcess(tmp_path)


@pytest.fixture
def impatient(monkeypatch):
    """What waits for a node here waits for one that never answers: a short limit shows the same."""
    for module in ("target", "config"):
        monkeypatch.setattr(f"pollux.cli.{module}.HELLO_S", 0.1)


@pytest.fixture
def announced(pollux, monkeypatch):
    """Announce a node of this process on a store; its socket is there, and silent."""

    def a_node(store: str, seats: int = 0, at: str = "silent.sock") -> None:
        monkeypatch.setenv("XDG_STATE_HOME", str(pollux.folder / "state"))
        with contextlib.chdir(pollux.folder):
            node = AnnouncedNode(os.getpid(), str(pollux.folder / at), hide(store), seats)
            assert announce(node) is not None

    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(pollux.folder / "silent.sock"))
        yield a_node


@pytest.fixture
def server():
    """A port on which connections are counted, and never answered."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        yield listening


def connections(listening):
    count = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            listening.accept()[0].close()
            count += 1
    return count


@pytest.mark.parametrize("kind", ["redis", "postgresql"])
def test_doctor_asks_no_server_of_which_the_password_is_masked(pollux, announced, server, kind):
    """The announcement keeps no password: asking with the mask would be a failed login, and a wrong finding."""
    address = f"127.0.0.1:{server.getsockname()[1]}"
    announced(f"{kind}://ann:a-password@{address}/0")

    told = pollux("doctor", "--json").json["findings"]

    assert connections(server) == 0
    assert not [each for each in told if MASK in each["seen"] or address in each["seen"]], told
    assert "the defaults count" in next(each["seen"] for each in told if each["about"] == "config")


def test_doctor_asks_a_server_that_needs_no_password(pollux, announced):
    """The other side: without a mask the store of the node is the one that is looked at."""
    url = redis.own_url("announced")
    announced(url)

    told = {each["about"]: each["seen"] for each in pollux("doctor", "--json").json["findings"]}

    assert url in told["config"]
    assert "server clock" in told, "it answered"


def made(folder, name="pollux.db"):
    """A store, by default of the usual name."""

    async def make():
        app = Pollux(f"sqlite:///{folder}/{name}")
        await app.open()
        await app.close()

    asyncio.run(make())


def test_a_silent_node_on_this_very_store_is_no_node_on_another_one(pollux, announced):
    made(pollux.folder)
    announced("sqlite:///pollux.db")

    told = pollux.ok("jobs")

    assert "another store" not in told.err, told.err


def test_a_node_on_another_store_is_hinted_at(pollux, announced):
    made(pollux.folder)
    announced("sqlite:///shop.db")

    told = pollux.ok("jobs")

    assert "a node here works on another store" in told.err
    assert "sqlite:///shop.db" in told.err


@pytest.fixture
def blocked(pollux, impatient):
    """A socket of this name on which connections wait: the loop of whoever listens there is busy."""
    with contextlib.ExitStack() as stack:

        def at(name: str) -> str:
            listening = stack.enter_context(socket.socket(socket.AF_UNIX))
            listening.bind(str(pollux.folder / name))
            listening.listen()
            return name

        yield at


def options(told):
    return {each["option"]: (each["value"], each["origin"]) for each in told.json["options"]}


def test_config_beside_a_node_that_does_not_answer_shows_what_is_known_of_it(pollux, announced, blocked):
    made(pollux.folder)
    announced("sqlite:///pollux.db", 7, blocked("pollux.db.sock"))

    told = pollux.ok("config", "--json")

    origin = f"node of pid {os.getpid()}, as it started"
    assert options(told)["pool.seats"] == ("7", origin)
    assert options(told)["store"] == ("sqlite:///pollux.db", origin)
    assert f"the node of pid {os.getpid()} on sqlite:///pollux.db does not answer" in told.err
    assert "all else is what a start here would take" in told.err


def test_config_beside_such_a_node_on_another_store_does_not_wait_for_it_either(pollux, announced, blocked):
    announced("sqlite:///shop.db", 7, blocked("shop.db.sock"))

    told = pollux.ok("config", "--json")

    assert options(told)["pool.seats"][0] == "7"
    assert options(told)["store"][0] == "sqlite:///shop.db"
    assert f"the node of pid {os.getpid()} on sqlite:///shop.db does not answer" in told.err


def test_config_of_a_file_says_that_the_node_beside_it_does_not_answer(pollux, announced, blocked):
    """What the file says is shown: whether the node goes by this text, it cannot tell."""
    made(pollux.folder)
    pollux.write("pollux.yaml", "pool: {seats: 5}\n")
    announced("sqlite:///pollux.db", 7, blocked("pollux.db.sock"))

    told = pollux.ok("config", "--json")

    assert options(told)["pool.seats"] == ("5", "pollux.yaml:1")
    assert f"the node of pid {os.getpid()} on sqlite:///pollux.db does not answer" in told.err
    assert "it started with 7 seats" in told.err


def test_config_of_a_start_says_nothing_of_a_node(pollux, announced, blocked):
    made(pollux.folder)
    announced("sqlite:///pollux.db", 7, blocked("pollux.db.sock"))

    told = pollux.ok("config", "--json", "--seats", "3")

    assert options(told)["pool.seats"] == ("3", "argument")
    assert "does not answer" not in told.err


def test_config_says_nothing_of_a_node_of_another_store_beside_the_usual_one(pollux, announced, blocked):
    made(pollux.folder)
    announced("sqlite:///shop.db", 7, blocked("shop.db.sock"))

    told = pollux.ok("config", "--json")

    assert options(told)["pool.seats"] == ("10", "default")
    assert "does not answer" not in told.err


@pytest.fixture
def held(pollux, monkeypatch):
    """Announce a node whose event loop is blocked: the kernel takes the connections, and nobody answers."""
    monkeypatch.setattr("pollux.client.http.ANSWER_S", 20.0)  # whoever waits for an answer fails, rather than hangs
    with socket.socket(socket.AF_UNIX) as silent, contextlib.chdir(pollux.folder):
        silent.bind("held.sock")
        silent.listen()
        monkeypatch.setenv("XDG_STATE_HOME", str(pollux.folder / "state"))

        def a_node(store: str) -> None:
            assert announce(AnnouncedNode(os.getpid(), str(pollux.folder / "held.sock"), hide(store))) is not None

        yield a_node


@pytest.mark.parametrize("command", [("jobs",), ("health",), ("runs",), ("config", "--json")])
def test_a_node_that_hangs_and_is_known_by_its_announcement_alone_is_left_for_its_store(
    pollux, held, impatient, command
):
    made(pollux.folder, "shop.db")
    held("sqlite:///shop.db")

    told = pollux(*command)

    assert told.code == (1 if command == ("health",) else 0), told  # of a store without a node health says so


def test_that_store_is_the_one_that_is_asked(pollux, held, impatient):
    made(pollux.folder, "shop.db")
    held("sqlite:///shop.db")

    assert "the store itself is asked: sqlite:///shop.db" in pollux.ok("jobs", "--verbose").err


@pytest.mark.parametrize("store", ["memory://", "redis://ann:a-password@127.0.0.1:1/0", "sqlite:///gone.db"])
def test_a_node_that_hangs_on_a_store_that_cannot_be_opened_here_is_named(pollux, held, store):
    held(store)

    told = pollux("jobs", environ={"POLLUX_STORE": store} if store.startswith("memory") else None)

    assert told.code == 3
    assert f"pid {os.getpid()} on {hide(store)}" in told.err
    assert "did not answer within 2 s; a handler may hold its event loop" in told.err
