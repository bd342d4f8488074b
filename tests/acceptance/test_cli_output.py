"""All that is asked of a store from a second terminal: tables for people, JSON for machines, exit codes for scripts."""

import re
import shutil
import stat

import pytest

from pollux.cli import runs
from tests.acceptance.terminal import SameProcess, Terminal, eventually, stopped

pytestmark = pytest.mark.xdist_group("cli asking")  # so that their past is made once
CONFIG = """\
store: sqlite:///p.db
jobs:
  - {id: ok/1, name: The first, python: "work:fine", interval: 1h, group: edge, tags: [fast], params: {word: one}}
  - {id: ok/2, python: "work:fine", interval: 1h, group: edge, target: db-1}
  - {id: cron, python: "work:fine", cron: "0 5 * * *", tz: Europe/Berlin}
  - {id: broken, python: "work:refuse", interval: 1h}
  - {id: asked, python: "work:fine"}
"""
WHERE = ("-c", "p.yaml")


@pytest.fixture(scope="module")
def past(tmp_path_factory):
    """A folder with a store in which something happened; nothing runs on it any more."""
    pollux = Terminal(tmp_path_factory.mktemp("past"))
    pollux.write("p.yaml", CONFIG)
    with pollux.started("serve", *WHERE) as process:
        eventually((pollux.folder / "p.db").exists, "the store is there", process)
        eventually(lambda: pollux("runs", *WHERE, "--json").code == 0, "the store answers", process)

        def ended() -> bool:
            runs = pollux.ok("runs", *WHERE, "--json").json["runs"]
            states = sorted(run["state"] for run in runs)
            learnt = [job["memory"]["ended"] for job in pollux.ok("jobs", *WHERE, "--json").json["jobs"]]
            return states == ["dead", "done", "done"] and sum(learnt) == 3

        eventually(ended, "all ended and were learnt from", process)
        assert stopped(process).code == 0
    return pollux.folder


@pytest.fixture
def pollux(past, tmp_path) -> Terminal:
    """The same past for every test, each in a folder of its own; a process for each command would take minutes."""
    shutil.copytree(past, tmp_path / "here")
    return SameProcess(tmp_path / "here")


LOOKS = [
    ("jobs",), ("jobs", "show", "ok/1"), ("runs",), ("runs", "--failed"), ("dead",), ("why", "ok/1"), ("nodes",),
    ("audit",),
]  # fmt: skip


@pytest.mark.parametrize("command", LOOKS, ids=" ".join)
def test_a_process_of_its_own_says_the_same(pollux, command):
    """What the other tests here see is what people see."""
    apart = Terminal(pollux.folder, fresh=True)(*command, "--json", *WHERE)
    here = pollux(*command, "--json", *WHERE)
    assert (apart.code, list(apart.json), apart.err) == (here.code, list(here.json), here.err)
    assert Terminal(pollux.folder).ok(*command, *WHERE).out.split()[0] == pollux.ok(*command, *WHERE).out.split()[0]


def ids(answer, kind: str) -> list[str]:
    return [item["id"] for item in answer.json[kind]]


# jobs


def test_jobs_are_listed_in_a_table_that_hides_nothing(pollux):
    lines = pollux.ok("jobs", *WHERE).out.splitlines()
    assert lines[0].split() == ["ID", "SCHEDULE", "LAST", "ENDED", "FRESH", "NEXT", "DUE", "NOW"]
    assert [line.split()[0] for line in lines[1:]] == ["asked", "broken", "cron", "ok/1", "ok/2"]
    assert "cron 0 5 * * * Europe/Berlin" in lines[3]
    assert lines[4].split()[:4] == ["ok/1", "every", "1h", "changed"]
    assert lines[2].split()[:4] == ["broken", "every", "1h", "failing"]


def test_jobs_as_json_have_every_field(pollux):
    answer = pollux.ok("jobs", "ls", "--json", *WHERE)
    assert ids(answer, "jobs") == ["asked", "broken", "cron", "ok/1", "ok/2"]
    assert answer.json["next"] is None
    job = answer.json["jobs"][3]
    assert job["schedule"] == {"type": "interval", "every_ms": 3_600_000, "start_ms": None, "spread": True}
    assert (job["name"], job["params"], job["tags"], job["priority"]) == ("The first", {"word": "one"}, ["fast"], 2)
    assert (job["schedule_text"], job["last"]) == ("every 1h", "changed")
    assert job["held"].startswith("no live node"), "nothing runs on this store any more"
    assert set(job["freshness"]) == {"age_ms", "planned_ms", "score", "wanted_ms"}
    assert job["memory"]["ended"] == 1
    keys = {tuple(sorted(job)) for job in answer.json["jobs"]}
    assert len(keys) == 1, "fields come and go"


@pytest.mark.parametrize(
    ("choice", "found"),
    [
        (("--group", "edge"), ["ok/1", "ok/2"]),
        (("--target", "db-1"), ["ok/2"]),
        (("--tag", "fast"), ["ok/1"]),
        (("--text", "first"), ["ok/1"]),
        (("--text", "ok/"), ["ok/1", "ok/2"]),
        (("--group", "nobody"), []),
    ],
)
def test_jobs_can_be_chosen(pollux, choice, found):
    assert ids(pollux.ok("jobs", *choice, "--json", *WHERE), "jobs") == found


def test_pages_follow_each_other(pollux):
    first = pollux.ok("jobs", "--limit", "3", "--json", *WHERE)
    second = pollux.ok("jobs", "--limit", "3", "--after", first.json["next"], "--json", *WHERE)
    assert ids(first, "jobs") + ids(second, "jobs") == ["asked", "broken", "cron", "ok/1", "ok/2"]
    assert f"--after {first.json['next']}" in pollux.ok("jobs", "--limit", "3", *WHERE).err


def test_one_job_is_shown_in_full(pollux):
    shown = pollux.ok("jobs", "show", "broken", *WHERE).out
    assert "PermanentError" not in shown
    assert "it never works" in shown
    assert "\x1b" not in shown, "what a handler says must not steer the terminal"
    answer = pollux.ok("jobs", "show", "broken", "--json", *WHERE).json
    assert answer["job"]["id"] == "broken"
    assert set(answer["why"]) >= {"answer", "reason", "expected_ms", "cure"}


def test_a_job_is_run_by_hand(pollux):
    [run] = pollux.ok("jobs", "run", "asked", "--params", '{"word": "two"}', "--json", *WHERE).json["runs"]
    assert (run["job_id"], run["cause"], run["payload"]) == ("asked", "forced", {"word": "two"})
    again = pollux("jobs", "run", "asked", *WHERE)
    assert again.code == 1
    assert run["id"] in again.err
    assert pollux.ok("jobs", "run", "asked", "--anyway", *WHERE).out.startswith("run ")
    assert len(pollux.ok("runs", "--job", "asked", "--json", *WHERE).json["runs"]) == 2


@pytest.mark.parametrize("params", ["{", "[1]", "5"])
def test_params_that_are_no_object_are_bad_usage(pollux, params):
    answer = pollux("jobs", "run", "asked", "--params", params, *WHERE)
    assert answer.code == 2
    assert "write it like" in answer.err


def test_a_job_is_paused_and_resumed_and_says_why(pollux):
    pollux.ok("pause", "ok/1", "--for", "1h", "--reason", "moving house", *WHERE)
    [held] = [job["held"] for job in pollux.ok("jobs", "--json", *WHERE).json["jobs"] if job["id"] == "ok/1"]
    assert "moving house" in held
    assert "moving house" in pollux.ok("why", "ok/1", *WHERE).out
    assert pollux.ok("resume", "ok/1", *WHERE).out == "job ok/1 goes on\n"
    assert pollux.ok("resume", "ok/1", *WHERE).out == "job ok/1 was not paused\n"
    assert "moving house" not in pollux.ok("why", "ok/1", *WHERE).out


def test_a_jobs_live_runs_are_cancelled(pollux):
    [run] = pollux.ok("jobs", "run", "asked", "--json", *WHERE).json["runs"]
    assert run["id"] in pollux.ok("jobs", "cancel", "asked", "--reason", "no", *WHERE).out
    assert pollux.ok("runs", "show", run["id"], "--json", *WHERE).json["run"]["state"] == "cancelled"
    assert "no live run" in pollux.ok("jobs", "cancel", "asked", *WHERE).out


def test_jobs_are_deleted(pollux):
    pollux.ok("jobs", "delete", "ok/1", "ok/2", *WHERE)
    assert ids(pollux.ok("jobs", "--json", *WHERE), "jobs") == ["asked", "broken", "cron"]
    assert pollux("jobs", "delete", "ok/1", *WHERE).code == 1


# runs


def test_runs_are_listed_with_what_they_say(pollux):
    lines = pollux.ok("runs", *WHERE).out.splitlines()
    assert lines[0].split() == ["ID", "JOB", "STATE", "DUE", "ATTEMPT", "TOOK", "CHANGED", "DETAIL"]
    [dead] = [line for line in lines if line.startswith("broken@")]
    assert dead.split()[1:3] == ["broken", "dead"]
    assert "it never works" in dead
    assert "\x1b" not in dead, "what a handler says must not steer the terminal"


@pytest.mark.parametrize(
    ("choice", "count"),
    [((), 3), (("--failed",), 1), (("--state", "done"), 2), (("--state", "done", "--state", "dead"), 3),
     (("--job", "ok/1"), 1), (("--job", "nobody"), 0), (("--limit", "2"), 2)],
)  # fmt: skip
def test_runs_can_be_chosen(pollux, choice, count):
    assert len(pollux.ok("runs", *choice, "--json", *WHERE).json["runs"]) == count


def test_every_state_that_the_list_shows_can_be_asked_for(pollux):
    """Also `failed`, which is how a run looks that is done and did not succeed."""
    for word in (*runs.STATES, runs.FAILED):
        assert pollux("runs", "--state", word, "--json", *WHERE).code == 0
    assert pollux.ok("runs", "--state", "failed", "--json", *WHERE).json["runs"] == []
    answer = pollux("runs", "--state", "failed", "--state", "ready", *WHERE)
    assert answer.code == 2
    assert "ask for --state failed by itself" in answer.err


def test_a_job_that_fails_is_seen_to_fail(pollux):
    [row] = [line for line in pollux.ok("jobs", *WHERE).out.splitlines() if line.startswith("broken ")]
    assert "its last run failed" in row
    assert "it never works" in row
    shown = pollux.ok("jobs", "show", "broken", *WHERE).out
    assert re.search(r"failures in a row +1\n", shown)
    assert re.search(r"failing since +\S+", shown)
    assert "failing since" not in pollux.ok("jobs", "show", "ok/1", *WHERE).out
    why = pollux.ok("why", "broken", *WHERE).out
    assert "its last run failed" in why
    assert "it never works" in why
    assert "failed" not in pollux.ok("why", "ok/1", *WHERE).out


def test_one_run_is_shown_in_full(pollux):
    [run] = pollux.ok("runs", "--job", "ok/1", "--json", *WHERE).json["runs"]
    assert (run["state"], run["result"], run["failed"]) == ("done", {"word": "one"}, False)
    shown = pollux.ok("runs", "show", run["id"], *WHERE).out
    assert 'result\n  {\n    "word": "one"\n  }\n' in shown
    assert re.search(r"started +\S+ \((on time|\w+ late)\)", shown)


def test_a_run_is_cancelled_once(pollux):
    [run] = pollux.ok("jobs", "run", "asked", "--json", *WHERE).json["runs"]
    assert pollux.ok("runs", "cancel", run["id"], *WHERE).out == f"run {run['id']}: cancelled\n", "it only waited"
    answer = pollux("runs", "cancel", run["id"], *WHERE)
    assert (answer.code, answer.err) == (1, f"run {run['id']}: was cancelled or asked to stop before\n")


def test_a_jobs_id_is_no_runs_id(pollux):
    assert pollux("runs", "cancel", "ok/1", *WHERE).code == 1


# dead letters


def test_dead_letters_are_listed_shown_and_revived(pollux):
    [letter] = pollux.ok("dead", "--json", *WHERE).json["dead"]
    assert (letter["job_id"], letter["state"], letter["deaths"]) == ("broken", "dead", 1)
    [_, line] = pollux.ok("dead", *WHERE).out.splitlines()
    assert "it never works" in line
    assert re.search(r" (now|\S+ ago) +1 +1 +Permanent", line), "one attempt was made, and it stands for one"
    assert "it never works" in pollux.ok("dead", "show", letter["id"], *WHERE).out
    assert "runs again" in pollux.ok("dead", "revive", letter["id"], *WHERE).out
    assert pollux.ok("dead", "--json", *WHERE).json["dead"] == []
    again = pollux("dead", "revive", letter["id"], *WHERE)
    assert again.code == 1
    assert "no dead letter" in again.err


def test_dead_letters_of_a_job_are_revived(pollux):
    assert pollux.ok("dead", "revive", "--job", "ok/1", *WHERE).out == "there are no such dead letters\n"
    answer = pollux("dead", "revive", "--job", "broken", *WHERE)
    assert answer.code == 2
    assert "this would revive 1 dead letter, and there is no terminal to confirm it; add --yes" in answer.err
    assert "runs again" in pollux.ok("dead", "revive", "--job", "broken", "--yes", *WHERE).out


def test_all_is_confirmed_or_refused(pollux):
    for verb in ("revive", "drop"):
        answer = pollux("dead", verb, "--all", *WHERE)
        assert answer.code == 2
        assert "add --yes" in answer.err
    assert pollux.ok("dead", "drop", "--all", "--yes", *WHERE).out == "dropped 1 dead letter\n"
    assert pollux.ok("dead", "--json", *WHERE).json["dead"] == []


def test_only_dead_letters_can_be_dropped(pollux):
    [done] = pollux.ok("runs", "--job", "ok/1", "--json", *WHERE).json["runs"]
    assert pollux("dead", "drop", done["id"], *WHERE).code == 1
    assert pollux("dead", "show", done["id"], *WHERE).code == 1
    assert pollux.ok("runs", "show", done["id"], "--json", *WHERE).json["run"]["state"] == "done"


@pytest.mark.parametrize("choice", [(), ("x", "--all"), ("--job", "a", "--all")])
def test_dead_letters_must_be_named_in_one_way(pollux, choice):
    for verb in ("revive", "drop"):
        assert pollux("dead", verb, *choice, *WHERE).code == 2


# stops, why, records


@pytest.mark.parametrize(
    ("scope", "held"),
    [
        (("ok/2",), ["ok/2"]),
        (("--group", "edge"), ["ok/1", "ok/2"]),
        (("--target", "db-1"), ["ok/2"]),
        (("--all",), ["asked", "broken", "cron", "ok/1", "ok/2"]),
    ],
)
def test_a_pause_reaches_what_it_names_and_ends(pollux, scope, held):
    def held_jobs():
        jobs = pollux.ok("jobs", "--json", *WHERE).json["jobs"]
        return [job["id"] for job in jobs if "spring" in job["held"]]

    pollux.ok("pause", *scope, "--reason", "spring", *WHERE)
    assert held_jobs() == held
    assert "goes on" in pollux.ok("resume", *scope, *WHERE).out
    assert held_jobs() == []
    assert re.search("was not paused|no pause of everything", pollux.ok("resume", *scope, *WHERE).out)


def test_a_pause_of_something_that_no_job_has_says_so(pollux):
    """It may come before the first job, or be a slip of the pen."""
    assert pollux.ok("pause", "--group", "edge", *WHERE).err == ""
    assert "no job has group egde now" in pollux.ok("pause", "--group", "egde", *WHERE).err
    assert "no job has target db-2 now" in pollux.ok("pause", "--target", "db-2", *WHERE).err


def test_who_paused_is_said_once(pollux):
    pollux.ok("pause", "--all", *WHERE)
    why = pollux.ok("why", "ok/1", *WHERE).out
    assert "everything is paused (by cli:" in why
    assert why.count("cli:") == 1


@pytest.mark.parametrize("scope", [(), ("ok/1", "--all"), ("ok/1", "--group", "a"), ("--all", "--target", "b")])
def test_a_pause_names_exactly_one_thing(pollux, scope):
    assert pollux("pause", *scope, *WHERE).code == 2
    if scope:  # alone it says what is stopped
        assert pollux("resume", *scope, *WHERE).code == 2


def test_a_wrong_duration_is_bad_usage(pollux):
    answer = pollux("pause", "--all", "--for", "soon", *WHERE)
    assert answer.code == 2
    assert "is not a duration; write it like" in answer.err


def test_why_answers_for_jobs_and_runs(pollux):
    [run] = pollux.ok("runs", "--job", "ok/1", "--json", *WHERE).json["runs"]
    for ref in ("ok/1", "asked", run["id"]):
        answer = pollux.ok("why", ref, "--json", *WHERE).json
        assert answer["id"] == ref
        assert answer["why"]["reason"]
        assert answer["why"]["answer"] in pollux.ok("why", ref, *WHERE).out


def test_why_of_a_run_that_is_no_longer_known_says_so_and_where_to_look(pollux):
    answer = pollux("why", "ok/1@1", *WHERE)
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith("pollux: there is no job or run 'ok/1@1'; `pollux jobs` and `pollux runs` list them")
    assert "those that ended are forgotten after a while: `pollux config` has history.age (7d" in answer.err
    assert "history.age" in pollux.ok("config", *WHERE).out


def test_what_changed_nothing_is_not_on_record(pollux):
    before = pollux.ok("audit", "--json", *WHERE).json
    pollux("jobs", "delete", "nobody", *WHERE)
    pollux.ok("jobs", "cancel", "asked", *WHERE)
    assert pollux.ok("audit", "--json", *WHERE).json == before


def test_a_live_run_is_answered_with_the_option_that_helps(pollux):
    pollux.ok("jobs", "run", "asked", *WHERE)
    refused = pollux("jobs", "run", "asked", *WHERE)
    assert refused.code == 1
    assert "wait for it, cancel it, or run the job anyway: `pollux jobs run asked --anyway`\n" in refused.err
    assert "`pollux jobs run asked --anyway`" in pollux("jobs", "run", "asked", "ok/1", *WHERE).err
    pollux.ok("jobs", "run", "asked", "--anyway", *WHERE)


def test_nobody_is_there_after_a_stop(pollux):
    answer = pollux.ok("nodes", "--json", *WHERE)
    assert answer.json == {"nodes": [], "leaders": [], "drained": []}
    assert "no node lives" in pollux.ok("nodes", *WHERE).err


def test_what_people_did_is_on_record(pollux):
    pollux.ok("pause", "ok/1", "--reason", "first", *WHERE, environ={"LOGNAME": "ann"})
    pollux.ok("jobs", "run", "asked", *WHERE, environ={"LOGNAME": "ann"})
    pollux.ok("resume", "ok/1", *WHERE, environ={"LOGNAME": "ann"})
    lines = pollux.ok("audit", "--json", *WHERE).json["lines"]
    assert [(line["actor"], line["action"], line["subject"]) for line in lines[-3:]] == [
        ("cli:ann", "pause", "job:ok/1"),
        ("cli:ann", "run", "asked"),
        ("cli:ann", "resume", "job:ok/1"),
    ]
    [newest] = pollux.ok("audit", "--limit", "1", "--json", *WHERE).json["lines"]
    assert newest == lines[-1]
    assert "cli:ann" in pollux.ok("audit", "--after", str(lines[-3]["seq"]), *WHERE).out


# the store


def test_a_store_moves_by_dump_and_load(pollux):
    pollux.ok("store", "dump", "all.jsonl", *WHERE)
    assert stat.S_IMODE((pollux.folder / "all.jsonl").stat().st_mode) == 0o600
    there = ("--store", "sqlite:///other.db")
    assert "were new" in pollux.ok("store", "load", "all.jsonl", *there).err
    for kind in (("jobs", "jobs"), ("runs", "runs"), ("dead", "dead")):
        here, other = pollux.ok(kind[0], "--json", *WHERE), pollux.ok(kind[0], "--json", *there)
        assert ids(here, kind[1]) == ids(other, kind[1])
    assert "; 0 were new" in pollux.ok("store", "load", "all.jsonl", *there).err


def test_a_dump_overwrites_nothing_and_can_be_piped(pollux):
    pollux.write("all.jsonl", "mine")
    answer = pollux("store", "dump", "all.jsonl", *WHERE)
    assert answer.code == 1
    assert "--force" in answer.err
    assert (pollux.folder / "all.jsonl").read_text() == "mine"
    pollux.ok("store", "dump", "all.jsonl", "--force", *WHERE)
    piped = pollux.ok("store", "dump", "-", *WHERE).out
    assert piped == (pollux.folder / "all.jsonl").read_text()
    pollux.ok("store", "load", "-", "--store", "sqlite:///other.db", given=piped)
    assert [path.name for path in pollux.folder.glob("*.part")] == []


@pytest.mark.parametrize(
    ("spoil", "what"),
    [
        (lambda lines: lines[:-1], "cut short"),
        (lambda lines: lines[1:], "no dump that can be read"),
        (lambda lines: [*lines[:2], "nonsense", *lines[2:]], ":3: this line is no JSON"),
        (lambda lines: [*lines[:2], "[1, 2, 3]", *lines[2:]], ":3: this line is no record"),
        (lambda lines: [], "cut short"),
    ],
)
def test_a_spoilt_dump_is_refused_by_its_line(pollux, spoil, what):
    pollux.ok("store", "dump", "all.jsonl", *WHERE)
    lines = (pollux.folder / "all.jsonl").read_text().splitlines()
    pollux.write("all.jsonl", "".join(f"{line}\n" for line in spoil(lines)))
    answer = pollux("store", "load", "all.jsonl", "--store", "sqlite:///other.db")
    assert answer.code == 2
    assert what in answer.err


def test_loading_a_file_that_is_not_there_fails(pollux):
    assert pollux("store", "load", "no.jsonl", "--store", "sqlite:///other.db").code == 1
    assert not (pollux.folder / "other.db").exists()


# how things are said


@pytest.mark.parametrize(
    "command",
    [("jobs", "show"), ("jobs", "run"), ("jobs", "cancel"), ("jobs", "delete"),
     ("runs", "show"), ("runs", "cancel"), ("dead", "show"), ("dead", "drop"), ("why",), ("pause",), ("resume",)],
)  # fmt: skip
def test_what_is_not_there_is_one_line_and_exit_code_one(pollux, command):
    answer = pollux(*command, "nobody", *WHERE)
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith("pollux: ")
    assert "nobody" in answer.err
    assert len(answer.err.splitlines()) == 1


ASKING = [
    ("jobs",), ("jobs", "show", "a"), ("jobs", "run", "a"), ("runs",), ("dead",), ("dead", "revive", "x"), ("why", "a"),
    ("nodes",), ("audit",), ("pause", "a"), ("resume", "a"), ("store", "dump", "x.jsonl"),
]  # fmt: skip


@pytest.mark.parametrize("command", ASKING, ids=" ".join)
def test_a_store_that_is_not_there_is_named_and_not_made(tmp_path, command):
    answer = SameProcess(tmp_path)(*command, "--store", "sqlite:///none.db")
    assert (answer.code, answer.out) == (3, "")
    assert "there is no store sqlite:///none.db" in answer.err
    assert "pollux serve --store sqlite:///none.db" in answer.err
    assert len(answer.err.splitlines()) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["work.py"]


def test_a_file_that_is_no_store_is_left_alone(tmp_path):
    pollux = Terminal(tmp_path)
    before = (tmp_path / "work.py").read_bytes()
    answer = pollux("jobs", "--store", "sqlite:///work.py")
    assert answer.code == 3
    assert len(answer.err.splitlines()) == 1
    assert (tmp_path / "work.py").read_bytes() == before


def test_a_memory_store_cannot_be_looked_at_from_outside(tmp_path):
    answer = Terminal(tmp_path)("jobs", "--store", "memory://")
    assert answer.code == 3
    assert "lives inside the one process" in answer.err


def test_the_store_is_found_by_argument_environment_and_file(pollux):
    found = ["asked", "broken", "cron", "ok/1", "ok/2"]
    (pollux.folder / "p.yaml").rename(pollux.folder / "pollux.yaml")
    assert ids(pollux.ok("jobs", "--json"), "jobs") == found
    (pollux.folder / "pollux.yaml").rename(pollux.folder / "x.yaml")
    assert ids(pollux.ok("jobs", "--json", environ={"POLLUX_CONFIG": "x.yaml"}), "jobs") == found
    assert ids(pollux.ok("jobs", "--json", environ={"POLLUX_STORE": "sqlite:///p.db"}), "jobs") == found
    assert pollux("jobs", environ={"POLLUX_STORE": "sqlite:///no.db"}).code == 3
    argument = ("--store", "sqlite:///p.db")
    assert ids(pollux.ok("jobs", "--json", *argument, environ={"POLLUX_STORE": "sqlite:///no.db"}), "jobs") == found


def test_a_wrong_job_in_the_file_stops_nobody_from_looking(pollux):
    pollux.write("p.yaml", CONFIG + "  - {id: wrong}\n")
    assert "ok/1" in pollux.ok("jobs", *WHERE).out


def test_a_closed_pipe_is_no_error(pollux):
    with Terminal(pollux.folder).started("jobs", "--json", *WHERE) as process:
        process.stdout.close()
        process.stdout = None
        _, err = process.communicate(timeout=60)
    assert err == b""
