"""Live settings, drains and asked turns from the command line, and what `pollux config` says of them."""

import os
import re

import pytest

from pollux.config.settings import OPTIONS, flag
from tests.acceptance.terminal import SameProcess, Terminal, eventually, stopped

WHERE = ("-c", "p.yaml")
CONFIG = """
store: sqlite:///p.db
pool: {seats: 4}
jobs:
  - {id: slow, python: "work:slow", params: {seconds: 600}}
  - {id: fine, python: "work:fine"}
"""


@pytest.fixture
def pollux(tmp_path) -> SameProcess:
    here = SameProcess(tmp_path)
    here.write("p.yaml", CONFIG)
    return here


@pytest.fixture
def stocked(pollux) -> SameProcess:
    """With a store that nobody works on."""
    (pollux.folder / "p.db").touch()
    pollux.ok("reload", *WHERE)
    return pollux


def told(pollux, *arguments, **options):
    found = pollux.ok("config", *WHERE, *arguments, "--json", **options).json["options"]
    return {option["option"]: option for option in found}


def test_the_config_says_what_is_live_by_whom_and_who_overrules_it(stocked):
    assert told(stocked)["pool.seats"]["origin"] == "p.yaml:3"
    assert "pool.seats is 50 for all nodes" in stocked.ok("set", "pool.seats", "50", *WHERE).out
    live = told(stocked)["pool.seats"]
    assert (live["value"], live["live"]) == ("50", "")
    assert re.fullmatch(r"live \(by cli:\S+, 20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ\)", live["origin"])
    for overruled, origin in (
        (told(stocked, environ={"POLLUX_SEATS": "9"}), "environment POLLUX_SEATS"),
        (told(stocked, "--seats", "9"), "argument"),
    ):
        seats = overruled["pool.seats"]
        assert (seats["value"], seats["origin"]) == ("9", origin)
        assert seats["live"].startswith("50, live (by cli:")
    said = stocked.ok("config", *WHERE, "--seats", "9")
    assert "pool.seats: argument overrules what is set for all nodes: 50, live (by cli:" in said.err
    assert "pool.seats is unset" in stocked.ok("set", "--unset", "pool.seats", *WHERE).out
    assert told(stocked)["pool.seats"]["origin"] == "p.yaml:3"


def test_settings_are_listed_refused_and_audited(stocked):
    stocked.ok("set", "pool.grace", "5s", *WHERE)
    stocked.ok("set", "history.keep", "9", *WHERE)
    [grace, keep] = sorted(stocked.ok("set", *WHERE, "--json").json["settings"], key=lambda each: each["value"])
    assert (grace["path"], grace["value"], keep["path"], keep["value"]) == ("pool.grace", "5s", "history.keep", "9")
    for words, code, says in (
        (("leader.ttl", "20s"), 2, "change it in the file and restart"),
        (("pool.seats", "none"), 2, "give a whole number"),
        (("pool.seets", "5"), 2, 'did you mean "pool.seats"'),
        (("pool.seats",), 2, "an option has a value, or is unset"),
        (("--unset",), 2, "say what to unset"),
    ):
        answer = stocked("set", *words, *WHERE)
        assert (answer.code, says in answer.err) == (code, True), answer
    assert "not set for all nodes" in stocked.ok("set", "--unset", "pool.seats", *WHERE).out
    lines = stocked.ok("audit", *WHERE, "--json").json["lines"]
    assert [(line["action"], line["subject"], line["detail"]) for line in lines if line["action"] == "set"] == [
        ("set", "pool.grace", "5s"),
        ("set", "history.keep", "9"),
    ]


def test_whatever_a_file_can_say_an_argument_can_say(pollux):
    """Every option of the table under the name of its variable."""
    assert pollux.ok("config", *WHERE, "--grace", "7s", "--history-keep", "5", "--no-plans", "--only-set").code == 0
    options = told(pollux, "--grace", "7s", "--history-keep", "5", "--no-plans")
    assert [options[path]["value"] for path in ("pool.grace", "history.keep", "plans")] == ["7s", "5", "false"]
    for option in OPTIONS:
        name = option.argument.replace("_", "-")
        argument = (f"--{name}",) if option.read is flag else (f"--{name}", "")
        for command in ("config", "serve"):
            said = pollux(command, *argument, "--help")
            assert said.code == 0, (command, argument, said.err)


def test_workers_are_drained_and_resumed_and_it_is_told(stocked):
    assert stocked.ok("resume", *WHERE).out == "nothing is stopped\n"
    assert "nothing runs" in stocked.ok("drain", "--wait", "--reason", "database moves", *WHERE).out
    stocked.ok("pause", "slow", "--reason", "too slow", *WHERE)
    lines = stocked.ok("resume", *WHERE).out.splitlines()
    assert re.match(r"job slow +too slow +cli:\S+ +pollux resume slow +until resumed", lines[1])
    assert re.match(r"all workers +database moves +cli:\S+ +pollux resume --workers +until resumed", lines[2])
    assert [each["node"] for each in stocked.ok("resume", *WHERE, "--json").json["drained"]] == [None]
    stocked.ok("resume", "slow", *WHERE)
    assert stocked.ok("resume", "--workers", *WHERE).out == "all workers: claims go on\n"
    assert stocked.ok("resume", "--workers", *WHERE).out == "all workers: there was no drain\n"
    assert stocked("drain", "--node", "nobody", *WHERE).code == 1
    assert stocked("resume", "--node", "x", *WHERE).code == 2
    assert stocked("resume", "--workers", "slow", *WHERE).code == 2
    actions = [line["action"] for line in stocked.ok("audit", *WHERE, "--json").json["lines"]]
    assert actions == ["reload", "drain", "pause", "resume", "resume"]


def test_without_a_leader_nobody_plans_now(stocked):
    answer = stocked("trigger", *WHERE)
    assert (answer.code, "no node leads" in answer.err) == (1, True)


def test_a_running_node_is_steered_from_outside_and_keeps_it_over_a_restart(tmp_path):
    """Through the store alone: the node has no API."""
    terminal, here = Terminal(tmp_path), SameProcess(tmp_path)
    here.write("p.yaml", CONFIG)
    store = ("--store", "sqlite:///p.db")
    serve = ("serve", *WHERE, "--no-server", "--no-watch")
    environ = {"SCHEDULER_CB_THRESHOLD": "5", "SCHEDULER_CB_TIMEOUT": "60s"}
    with terminal.started(*serve, environ=environ) as process:
        eventually((tmp_path / "p.db").exists, "there is a store", process)
        eventually(lambda: leader(here, store), "it leads", process)
        here.ok("set", "pool.seats", "7", *store)
        eventually(lambda: leader(here, store)["seats"] == 7, "it has seven seats", process)
        answer = here.ok("trigger", *store, "--json").json["triggered"]
        assert answer["answered"] == [leader(here, store)["id"]]
        here.ok("enqueue", "slow", *store)
        eventually((tmp_path / "slow.started").exists, "the slow one runs", process)
        node = leader(here, store)["id"]
        assert "1 run still going on" in here.ok("drain", "--node", node, *store).out
        eventually(lambda: leader(here, store)["draining"], "it is drained", process)
        run = here.ok("enqueue", "fine", *store, "--json").json["run"]["id"]
        assert here.ok("resume", "--workers", "--node", node, *store).code == 0
        eventually(lambda: state(here, run, store) == "done", "it goes on", process)
        here.ok("drain", *store)
        eventually(lambda: leader(here, store)["draining"], "all are drained", process)
        here.ok("runs", "cancel", slow_run(here, store), *store)
        assert "nothing runs" in here.ok("drain", "--wait", *store).out
        said = stopped(process)
    assert said.code == 0
    [line] = [line for line in said.err.splitlines() if "SCHEDULER_CB_" in line]
    assert "WARNING without effect: SCHEDULER_CB_THRESHOLD, SCHEDULER_CB_TIMEOUT (there are no circuit" in line
    run = here.ok("enqueue", "fine", *store, "--json").json["run"]["id"]
    with terminal.started(*serve) as process:
        eventually(lambda: leader(here, store) and leader(here, store)["draining"], "over a restart", process)
        assert (leader(here, store)["seats"], state(here, run, store)) == (7, "ready")
        assert here.ok("why", run, *store, "--json").json["why"]["cure"] == "pollux resume --workers"
        here.ok("resume", "--workers", *store)
        eventually(lambda: state(here, run, store) == "done", "it goes on", process)
        assert stopped(process).code == 0


def leader(here, store):
    answer = here("nodes", "--json", *store)
    nodes = answer.json["nodes"] if answer.code == 0 else []
    return next((node for node in nodes if node["leads"]), None)


def state(here, run_id, store):
    return here.ok("runs", "show", run_id, "--json", *store).json["run"]["state"]


def slow_run(here, store):
    return here.ok("runs", "--job", "slow", "--state", "leased", "--json", *store).json["runs"][0]["id"]


def test_an_old_switch_has_the_api_and_the_workers_and_plans_nothing(tmp_path):
    """On its usual port, which nobody has named; of an address of our own, for others may be tested beside us."""
    terminal, here = Terminal(tmp_path), SameProcess(tmp_path)
    here.write("p.yaml", CONFIG)
    (tmp_path / "p.db").touch()
    here.ok("reload", *WHERE)
    host = f"127.{os.getpid() >> 8 & 255}.{os.getpid() & 255}.8"
    environ = {"SCHEDULER_V2_ENABLED": "false", "SCHEDULER_WORKER_POOL_SIZE": "6", "POLLUX_SERVER": "true"}
    store = ("--store", "sqlite:///p.db")
    with terminal.started("serve", *WHERE, "--host", host, "--no-watch", environ=environ) as process:
        eventually((tmp_path / "p.db.token").exists, "there is a token", process)
        with_it = {"POLLUX_URL": f"http://{host}:8060", "POLLUX_TOKEN": "@p.db.token"}
        run = eventually(lambda: asked_by(here, with_it), "the API answers", process)
        eventually(lambda: state(here, run, store) == "done", "it runs", process)
        [node] = here.ok("nodes", "--json", environ=with_it).json["nodes"]
        assert (node["leads"], node["seats"]) == (0, 6)
        health = here("health", "--json", environ=with_it).json
        assert (health["is_leader"], health["leader"], health["running"]) == (False, None, True)
        assert here("trigger", environ=with_it).code == 1
        assert stopped(process).code == 0


def asked_by(here, with_it):
    answer = here("enqueue", "fine", "--json", environ=with_it)
    return answer.json["run"]["id"] if answer.code == 0 else ""
