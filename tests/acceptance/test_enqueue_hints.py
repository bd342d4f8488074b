"""Whoever asks for a run hears what they would not expect: that nothing will run it, or what it stops meanwhile."""

import asyncio

import pytest

from pollux import Pollux, every
from tests.acceptance.terminal import SameProcess

STORE = "sqlite:///p.db"
WHERE = ("--store", STORE)


async def work(ctx):
    """A handler of the tests."""


def release(folder, number, *names, version=2, overlap="skip"):
    app = Pollux(f"sqlite:///{folder}/p.db", name="shop", release=number, scheduler_version=version, runs=False)
    for name in names:
        app.handler(work, name=name)
        app.add(name, every("1h"), id=name, overlap=overlap)
    return app


def started(app):
    """Its jobs are in the store; nobody lives any more."""

    async def once():
        async with app:
            pass

    asyncio.run(once())


@pytest.fixture
def pollux(tmp_path):
    return SameProcess(tmp_path)


def test_of_a_job_that_nobody_declares_any_more(pollux):
    started(release(pollux.folder, 1, "stock", "old"))
    started(release(pollux.folder, 2, "stock"))
    asked = pollux.ok("enqueue", "old", *WHERE)
    assert "of job old is " in asked.out
    assert asked.err == (
        "job old is no longer declared: the run waits until it is declared again; "
        "`pollux jobs delete old` deletes both\n"
    )
    assert pollux.ok("enqueue", "stock", *WHERE).err == ""


async def test_of_a_job_in_a_version_that_no_node_serves(pollux):
    await asyncio.to_thread(started, release(pollux.folder, 1, "stock", version=3))
    async with release(pollux.folder, 1, "other"):
        asked = await asyncio.to_thread(pollux.ok, "enqueue", "stock", *WHERE)
        served = await asyncio.to_thread(pollux.ok, "enqueue", "other", *WHERE)
    assert asked.err.startswith("no node serves version 3: the run waits; start one: ")
    assert served.err == ""


def test_nothing_is_said_of_a_run_for_later_which_lets_the_schedule_go_on(pollux):
    started(release(pollux.folder, 1, "stock"))
    assert pollux.ok("enqueue", "stock", "--delay", "1h", *WHERE).err == ""
