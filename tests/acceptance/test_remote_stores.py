"""The command line over the API on servers: every command says the same as on the store itself, there as on SQLite.

One deployment for each store, and all commands in turn: what they are is told in `remote_world`.
"""

import pytest

from tests.acceptance.remote_world import (
    LOOKS,
    check_changes,
    check_forecast,
    check_live_screen,
    check_look,
    check_simulation,
    inhabited,
)
from tests.acceptance.terminal import SameProcess, eventually
from tests.servers import postgres, redis

OWN_URL = {"redis": redis.own_url, "postgres": postgres.own_url}


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=pytest.mark.xdist_group(f"remote {name}")) for name in OWN_URL]
)
def house(request, tmp_path_factory):
    with inhabited(tmp_path_factory.mktemp("far"), OWN_URL[request.param]("remote")) as made:
        yield made


def test_every_look_says_the_same_each_way(house):
    for words in LOOKS:
        check_look(house, words)


def test_changes_say_the_same_each_way(house):
    check_changes(house)


def test_what_lies_ahead_is_told_the_same_each_way(house):
    check_live_screen(house)
    check_forecast(house)
    check_simulation(house)


@pytest.mark.parametrize("is_in_code", [False, True])
def test_commands_and_a_node_that_requires_durability_mean_the_same_store(tmp_path_factory, is_in_code):
    """Whether the file, the code or the environment names the store: they find the node."""
    folder = tmp_path_factory.mktemp("near")  # the name of a socket is short
    server = redis.RedisServer(folder, "--appendonly", "yes").start()
    pollux = SameProcess(folder)
    pollux.write("durable_app.py", f'from pollux import Pollux\n\napp = Pollux("{server.url}")\n')
    named = "app: durable_app:app" if is_in_code else f"store: {server.url}"
    pollux.write("pollux.yaml", f"{named}\ndurability: required\n")
    pollux.write("plain.yaml", f"{named}\n")
    try:
        with pollux.started("serve", "--no-watch", "--port", "0", environ={"POLLUX_SERVER": "true"}) as process:
            for words in (("-c", "pollux.yaml"), ("-c", "plain.yaml")):
                eventually(
                    lambda words=words: "a node is asked" in pollux("jobs", "--verbose", *words).err,
                    f"the node is found with {words}",
                    process,
                )
            pollux.write("plain.yaml", "jobs: []\n")
            here = {"POLLUX_STORE": server.url}
            assert "a node is asked" in pollux.ok("jobs", "--verbose", "-c", "plain.yaml", environ=here).err
        if is_in_code:
            assert "durability=required" in pollux.ok("jobs", "--verbose").err, "alone it asks for it as well"
    finally:
        server.stop()
