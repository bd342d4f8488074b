"""Drained workers: whoever looks, or asks for a run, is told by whom, since when, and what ends it."""

import re

import pytest

from pollux.model import Drained
from tests.acceptance.api_world import eventually as soon
from tests.acceptance.api_world import served
from tests.acceptance.terminal import SameProcess, Terminal, eventually, stopped

WHERE = ("-c", "p.yaml")
CONFIG = """
store: sqlite:///p.db
jobs:
  - {id: tick, python: "work:fine", interval: 1s}
  - {id: rare, python: "work:fine", interval: 30d, start: "2199-01-01T00:00:00Z"}
  - {id: asked, python: "work:fine"}
"""
WORDS = r"all workers are drained by cli:\S+ since 20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ \(database moves\)"
ENDS = "`pollux resume --workers` ends it"


@pytest.fixture
def here(tmp_path) -> SameProcess:
    pollux = SameProcess(tmp_path)
    pollux.write("p.yaml", CONFIG)
    return pollux


def test_whoever_looks_or_asks_for_a_run_is_told_of_the_drain(here):
    terminal = Terminal(here.folder)
    with terminal.started("serve", *WHERE, "--no-server", "--no-watch") as process:
        eventually(lambda: here("nodes", *WHERE, "--json").code == 0, "the store is there", process)
        eventually(lambda: here.ok("runs", *WHERE, "--state", "done", "--json").json["runs"], "it runs", process)
        here.ok("drain", "--wait", "--reason", "database moves", *WHERE)
        eventually(lambda: here.ok("nodes", *WHERE, "--json").json["nodes"][0]["draining"], "it heard", process)
        eventually(lambda: here.ok("runs", *WHERE, "--state", "ready", "--json").json["runs"], "one waits", process)

        nodes = here.ok("nodes", *WHERE)
        assert re.search(rf"^{WORDS}: nothing is claimed; {ENDS}$", nodes.err, re.MULTILINE)
        assert [each["reason"] for each in here.ok("nodes", *WHERE, "--json").json["drained"]] == ["database moves"]

        why = here.ok("why", "tick", *WHERE, "--json").json["why"]
        waits = "; this one run waits, due times after it are skipped and counted until it has run"
        assert re.fullmatch(rf"it is ready, but {WORDS}{waits}", why["reason"])
        assert (why["answer"], why["cure"]) == ("drained", "pollux resume --workers")
        assert re.search(rf"it is due in \S+, and its run will wait: {WORDS}", here.ok("why", "rare", *WHERE).out)
        shown = here.ok("jobs", "show", "tick", *WHERE).out
        assert re.search(WORDS, shown)
        assert re.search(r"^cure +pollux resume --workers$", shown, re.MULTILINE)

        for words in (("jobs", "run", "asked"), ("enqueue", "asked")):
            asked = here.ok(*words, *WHERE)
            assert re.search(rf"^{WORDS}: the run waits; {ENDS}$", asked.err, re.MULTILINE), words
        [workers] = [each for each in here("doctor", *WHERE, "--json").json["findings"] if each["about"] == "workers"]
        assert re.fullmatch(f"{WORDS}: nothing is claimed", workers["seen"])
        assert (workers["level"], workers["cure"]) == ("warn", "pollux resume --workers")

        skips = here.ok("jobs", "show", "tick", *WHERE, "--json").json["job"]["memory"]["skips"]
        eventually(
            lambda: here.ok("jobs", "show", "tick", *WHERE, "--json").json["job"]["memory"]["skips"] != skips,
            "due times after the one that waits are skipped and counted",
            process,
        )
        assert len(here.ok("runs", *WHERE, "--job", "tick", "--state", "ready", "--json").json["runs"]) == 1
        here.ok("resume", "--workers", *WHERE)
        eventually(lambda: not here.ok("runs", *WHERE, "--state", "ready", "--json").json["runs"], "all ran", process)
        for words in (("nodes",), ("jobs", "run", "asked"), ("why", "rare")):
            assert "drained" not in "".join(here.ok(*words, *WHERE)[1:])
        assert stopped(process).code == 0


async def test_the_api_says_so_in_health_and_in_the_answer_to_a_forced_run():
    async with served() as api:
        await api.ok("PUT", "/api/v2/jobs/home", {"handler": "fine"})
        assert (await api.ok("POST", "/api/v2/jobs/home/force-run"))["message"] == "the job runs now"
        await api.ok("POST", "/api/v2/scheduler/drain", {"reason": "database moves"})

        async def heard():
            return api.app.runtime.dispatcher.is_drained

        await soon(heard, "the node has heard")
        told = (await api.ok("POST", "/api/v2/jobs/home/force-run", {"anyway": True}))["message"]
        words = r"all workers are drained by token:admin since 20\S+Z \(database moves\)"
        assert re.fullmatch(rf"the run waits: {words}; POST /api/v2/scheduler/resume ends it", told)

        async def finding():
            found = (await api.ok("GET", "/api/v2/scheduler/health"))["findings"]
            return next((each for each in found if each["name"] == "stops" and each["level"] != "healthy"), None)

        stops = await soon(finding, "health tells of it")
        assert re.fullmatch(words, stops["seen"])
        assert stops["cure"] == "pollux resume --workers"


def test_a_drain_is_told_with_what_is_known_of_it():
    assert str(Drained(None)) == "all workers are drained"
    assert str(Drained("n1", by="ann")) == "node n1 is drained by ann"
    assert Drained("n1").ends == "`pollux resume --workers --node n1` ends it"
    assert Drained(None, expires_ms=1).ends == "it ends by itself when that is over"
