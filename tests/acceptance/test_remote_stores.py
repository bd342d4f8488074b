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
