"""Runs that are requested from a terminal, with params in every form."""

import asyncio
import re

import pytest

from pollux import Pollux
from pollux.model import Dead, Job
from pollux.store.contract import Settlement
from tests.acceptance.terminal import SameProcess, Terminal

WHERE = ("--store", "sqlite:///p.db")


@pytest.fixture
async def pollux(tmp_path) -> Terminal:
    """A store with a job; nobody works on it."""
    app = Pollux(f"sqlite:///{tmp_path}/p.db")
    await app.open()
    await app.put_jobs([Job(id="report", handler="h", params={"day": 1})])
    await app.close()
    return SameProcess(tmp_path)


@pytest.mark.parametrize(
    ("given", "payload"),
    [
        ((), None),
        (("depth=2",), {"depth": 2}),
        (("depth=two", "on=true", "none=null", "text=a=b", "empty="),
         {"depth": "two", "on": True, "none": None, "text": "a=b", "empty": ""}),
        (('depth="2"',), {"depth": "2"}),
        (("list=[1, 2]",), {"list": [1, 2]}),
        (("--params", '{"a": {"b": 1}}'), {"a": {"b": 1}}),
        (("--params", '{"a": 1}', "b=2"), {"a": 1, "b": 2}),
    ],
)  # fmt: skip
def test_params_are_an_object_or_pairs(pollux, given, payload):
    run = pollux.ok("enqueue", "report", *given, "--json", *WHERE).json["run"]
    assert (run["job_id"], run["cause"], run["payload"], run["state"]) == ("report", "enqueued", payload, "ready")


@pytest.mark.parametrize(
    ("given", "what"),
    [
        (("depth",), "'depth' is no param"),
        (("=2",), "'=2' is no param"),
        (("a=1", "a=2"), "'a' was given twice"),
        (("--params", '{"a": 1}', "a=2"), "'a' was given twice"),
        (("--params", "{"), "--params is no JSON"),
        (("--params", "[1]"), "--params is no JSON object"),
        (("--params", "[" * 100_000), "--params is no JSON"),
        (("--delay", "soon"), "is not a duration"),
        (("--at", "noon"), "is not a moment"),
        (("--at", "2030-01-01T00:00:00Z", "--delay", "1s"), "both given"),
        (("--priority", "top"), "'high'"),
        (("--id", "a b"), "run id"),
        (("--timeout", "5s"), "add --wait"),
        (("--wait", "--timeout", "soon"), "is not a duration"),
    ],
)
def test_what_cannot_be_meant_is_bad_usage(pollux, given, what):
    answer = pollux("enqueue", "report", *given, *WHERE)
    assert (answer.code, answer.out) == (2, ""), answer
    assert what in answer.err
    assert pollux.ok("runs", "--json", *WHERE).json["runs"] == []


def test_a_run_says_when_and_where_to_look(pollux):
    said = pollux.ok("enqueue", "report", "--delay", "10m", "--id", "r1", *WHERE).out
    assert re.fullmatch(
        r"run r1 of job report is scheduled, due in 9m\d+s; see it with `pollux runs show r1 --follow`\n", said
    )


def test_the_same_id_is_the_same_run_and_a_key_allows_one(pollux):
    first = pollux.ok("enqueue", "report", "a=1", "--id", "r1", "--key", "k", "--json", *WHERE).json["run"]
    again = pollux.ok("enqueue", "report", "a=2", "--id", "r1", "--key", "k", "--json", *WHERE).json["run"]
    assert (first["payload"], again["payload"]) == ({"a": 1}, {"a": 1})
    answer = pollux("enqueue", "report", "--key", "k", *WHERE)
    assert answer.code == 1
    assert "its key is taken by the live run r1" in answer.err


async def a_dead_run(folder):
    app = Pollux(f"sqlite:///{folder}/p.db")
    await app.open()
    await app.enqueue("report", id="d1")
    claimed = await app._store.claim(node="n", token="t", limit=1, lease_ms=60_000)
    await app._store.settle([Settlement("d1", claimed.runs[0].token, Dead("it never works"))])
    await app.close()


def test_a_dead_run_that_is_asked_for_again_says_what_was_dropped_and_how_to_revive_it(pollux):
    asyncio.run(a_dead_run(pollux.folder))
    said = pollux.ok("enqueue", "report", "a=2", "--id", "d1", *WHERE).out
    words = "run d1 exists already and is dead; its params were kept, and what was sent now was dropped"
    assert said.startswith(f"{words}; to run it again: pollux dead revive d1; see it with")
    told = pollux.ok("enqueue", "report", "--id", "d1", "--json", *WHERE).json
    assert (told["is_new"], told["run"]["state"]) == (False, "dead")
    assert told["message"] == "run d1 exists already and is dead; to run it again: pollux dead revive d1"
    pollux.ok("dead", "revive", "d1", *WHERE)
    assert pollux.ok("enqueue", "report", "--id", "d1", "--json", *WHERE).json["run"]["state"] == "ready"


def test_who_asked_is_on_record_once(pollux):
    environ = {"LOGNAME": "ann"}
    for _ in range(2):
        pollux.ok("enqueue", "report", "depth=2", "password=hunter22", "--id", "r1", *WHERE, environ=environ)
    lines = pollux.ok("audit", "--json", *WHERE).json["lines"]
    told = [(line["actor"], line["subject"], line["detail"]) for line in lines if line["action"] == "enqueue"]
    assert told == [("cli:ann", "report", "run r1; params.depth 2; params.password ***")]


def test_options_reach_the_run(pollux):
    given = ("--priority", "high", "--at", "2030-01-01T00:00:00Z")
    run = pollux.ok("enqueue", "report", *given, "--json", *WHERE).json["run"]
    assert (run["priority"], run["due_ms"]) == (1, 1_893_456_000_000)


def test_waiting_where_nobody_works_ends_by_its_timeout_and_says_why_not(pollux):
    answer = pollux("enqueue", "report", "--wait", "--timeout", "1ms", "--id", "r1", *WHERE)
    assert answer.code == 1
    assert "run r1 is still ready after 1ms; it goes on" in answer.err
    assert "`pollux why r1` explains it" in answer.err


def test_a_job_that_is_not_there_is_exit_code_one(pollux):
    assert pollux("enqueue", "nobody", *WHERE).code == 1
