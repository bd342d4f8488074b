"""A job in a version that nobody serves: it is said at the move, in the list, and by `pollux why`."""

import asyncio

import pytest

from pollux import Pollux, every
from pollux.model import Node
from pollux.store.open import open_store
from tests.acceptance.terminal import SameProcess

WHERE = ("--store", "sqlite:///p.db")
SAID = "no node serves version 99"
CURE = "start one with `--scheduler-version 99`, or move what is there to version 3, which is served"


@pytest.fixture
def pollux(tmp_path):
    """A store with a job, and a node of version 3 that seems alive."""
    url = f"sqlite:///{tmp_path}/p.db"

    async def made():
        app = Pollux(url, scheduler_version=3)
        app.add("http", every("1h"), id="quick", params={"url": "http://127.0.0.1:1/"})
        async with app:
            pass
        store = open_store(url)
        await store.open()
        await store.beat(Node("n1", seats=3, handlers=("http",), scheduler_version=3), ttl_ms=3_600_000)
        await store.close()

    asyncio.run(made())
    return SameProcess(tmp_path)


def test_a_move_to_a_version_that_nobody_serves_is_warned_of(pollux):
    assert pollux.ok("jobs", "move", "quick", "--to-version", "99", *WHERE).err == f"pollux: {SAID}; {CURE}\n"
    shown = pollux.ok("why", "quick", "--json", *WHERE).json["why"]
    assert (shown["answer"], shown["cure"]) == ("stranded", CURE)
    assert SAID in shown["reason"]
    assert SAID in pollux.ok("jobs", *WHERE).out
    assert pollux.ok("jobs", "move", "quick", "--to-version", "3", *WHERE).err == ""
    assert SAID not in pollux.ok("jobs", *WHERE).out
