"""Selection by filter of dead letters, runs and jobs: counted, confirmed, changed in batches."""

import asyncio
import json
import time

import pytest

from pollux import Pollux
from pollux.cli.output import BAR_FROM
from pollux.cli.selection import LINES_MAX
from pollux.model import Dead, Job, Outcome
from pollux.store.contract import Settlement
from tests.acceptance.terminal import SameProcess, Terminal
from tests.acceptance.test_cli_tables import at_a_terminal

WHERE = ("--store", "sqlite:///p.db")


async def made(folder, *, dead: int = 0, live: int = 0) -> SameProcess:
    """A store with jobs, dead letters (each fourth of another job, half of them refused) and ready runs."""
    app = Pollux(f"sqlite:///{folder}/p.db")
    await app.open()
    jobs = [
        Job(id="a", handler="h", group="edge", tags=("old",)),
        Job(id="b", handler="h", group="core", tags=("old", "slow")),
        Job(id="c", handler="h", name="the third"),
    ]
    await app.put_jobs(jobs)
    now_ms = time.time_ns() // 1_000_000
    for n in range(dead):
        await app.enqueue("b" if n % 4 == 0 else "a", id=f"d{n}")
    while dead:
        claimed = await app._store.claim(node="n", token=f"t{dead}", limit=500, lease_ms=60_000)
        dead -= len(claimed.runs)
        ends = [
            Settlement(
                run.id,
                run.token,
                Dead("x"),
                Outcome(now_ms, now_ms, error="OSError: refused" if int(run.id[1:]) % 2 else "ValueError: 42"),
            )
            for run in claimed.runs
        ]
        await app._store.settle(ends)
    for n in range(live):
        await app.enqueue("b" if n % 4 == 0 else "a", id=f"r{n}")
    await app.close()
    return SameProcess(folder)


@pytest.fixture
async def pollux(tmp_path) -> Terminal:
    return await made(tmp_path, dead=8, live=4)


def dead(pollux) -> list[str]:
    return sorted(run["id"] for run in pollux.ok("dead", "--json", *WHERE).json["dead"])


ALL = [f"d{n}" for n in range(8)]


@pytest.mark.parametrize(
    ("choice", "meant"),
    [
        (("--job", "b"), ["d0", "d4"]),
        (("--group", "edge"), ["d1", "d2", "d3", "d5", "d6", "d7"]),
        (("--target", "nobody"), []),
        (("--error", "refused"), ["d1", "d3", "d5", "d7"]),
        (("--error", "42", "--job", "b"), ["d0", "d4"]),
        (("--since", "1h"), ALL),
        (("--since", "2030-01-01T00:00:00Z"), []),
        (("--all",), ALL),
    ],
)
@pytest.mark.parametrize("verb", ["revive", "drop"])
def test_dead_letters_are_revived_and_dropped_by_what_they_are(pollux, verb, choice, meant):
    listed = [part for part in choice if part != "--all"]
    assert sorted(run["id"] for run in pollux.ok("dead", *listed, "--json", *WHERE).json["dead"]) == meant
    answer = pollux.ok("dead", verb, *choice, "--yes", "--json", *WHERE).json
    if verb == "drop":
        assert answer == {"dropped": len(meant)}
    else:
        assert sorted(run["id"] for run in answer["runs"]) == meant
        assert {run["answer"] for run in answer["runs"]} <= {"ok"}
    assert dead(pollux) == [each for each in ALL if each not in meant]


@pytest.mark.parametrize(
    ("command", "question"),
    [
        (("dead", "revive", "--job", "b"), "revive 2 dead letters"),
        (("dead", "drop", "--error", "refused"), "drop 4 dead letters"),
        (("dead", "drop", "--all"), "drop 8 dead letters"),
        (("runs", "cancel", "--job", "b"), "cancel 1 run"),
        (("runs", "cancel", "--all", "--state", "ready"), "cancel 4 runs"),
        (("jobs", "delete", "--tag", "old"), "delete 2 jobs"),
        (("jobs", "run", "--text", "third"), "run 1 job"),
        (("jobs", "cancel", "--group", "edge"), "cancel all runs of 1 job"),
        (("jobs", "move", "--tag", "old", "--to-version", "3"), "move 2 jobs to version 3"),
        (("pause", "--tag", "old"), "pause 2 jobs"),
        (("pause", "--group", "edge", "--tag", "old"), "pause 1 job"),
    ],
)
def test_a_filter_without_a_terminal_needs_a_yes(pollux, command, question):
    before = pollux.ok("store", "dump", "-", *WHERE).out
    answer = pollux(*command, *WHERE)
    assert answer.code == 2
    assert f"this would {question}, and there is no terminal to confirm it; add --yes" in answer.err
    assert pollux.ok("store", "dump", "-", *WHERE).out == before
    pollux.ok(*command, "--yes", *WHERE)
    assert pollux.ok("store", "dump", "-", *WHERE).out != before


@pytest.mark.parametrize(
    ("command", "question"),
    [
        (("dead", "drop", "--error", "refused"), "drop 4 dead letters"),
        (("jobs", "delete", "--tag", "old"), "delete 2 jobs"),
    ],
)
def test_a_filter_is_counted_and_confirmed_at_a_terminal(pollux, command, question):
    before = pollux.ok("store", "dump", "-", *WHERE).out
    code, seen = at_a_terminal(pollux, *command, *WHERE, types="n\n")
    assert code == 1
    assert f"{question}? [y/N]" in seen
    assert "nothing was changed" in seen
    assert pollux.ok("store", "dump", "-", *WHERE).out == before
    code, seen = at_a_terminal(pollux, *command, *WHERE, types="y\n")
    assert code == 0, seen
    assert pollux.ok("store", "dump", "-", *WHERE).out != before


def test_an_interrupt_ends_the_command_at_its_question(pollux):
    before = pollux.ok("store", "dump", "-", *WHERE).out
    code, seen = at_a_terminal(pollux, "dead", "drop", "--all", *WHERE, interrupt_at="[y/N]")
    assert code == 130, seen
    assert "pollux: interrupted" in seen
    assert pollux.ok("store", "dump", "-", *WHERE).out == before


@pytest.mark.parametrize(
    "command",
    [
        ("dead", "revive"), ("dead", "drop"), ("runs", "cancel"),
        ("jobs", "run"), ("jobs", "cancel"), ("jobs", "delete"), ("pause",),
    ],
)  # fmt: skip
@pytest.mark.parametrize("choice", [(), ("x", "--all"), ("x", "--group", "edge"), ("--all", "--group", "edge")])
def test_things_are_named_in_one_way(pollux, command, choice):
    answer = pollux(*command, *choice, *WHERE)
    assert answer.code == 2
    assert "only one of these" in answer.err


def test_a_since_that_is_no_time_is_bad_usage(pollux):
    for command in (("dead", "ls"), ("dead", "drop", "--yes")):
        answer = pollux(*command, "--since", "yesterday", *WHERE)
        assert answer.code == 2
        assert "'yesterday' is no time; write it like" in answer.err


def test_nothing_that_is_meant_is_nothing_done(pollux):
    assert pollux.ok("dead", "revive", "--job", "c", *WHERE).out == "there are no such dead letters\n"
    assert pollux.ok("dead", "drop", "--job", "c", *WHERE).out == "dropped 0 dead letters\n"
    assert pollux.ok("runs", "cancel", "--job", "c", *WHERE).out == "there are no such live runs\n"
    for verb in ("run", "delete"):
        assert pollux.ok("jobs", verb, "--tag", "none", *WHERE).out == "there are no such jobs\n"


def test_runs_are_cancelled_by_what_they_are(pollux):
    answer = pollux.ok("runs", "cancel", "--job", "a", "--yes", "--reason", "enough", "--json", *WHERE).json
    assert sorted(run["id"] for run in answer["runs"]) == ["r1", "r2", "r3"]
    runs = pollux.ok("runs", "--state", "cancelled", "--json", *WHERE).json["runs"]
    assert {run["cancel"] for run in runs} == {"enough"}
    assert pollux("runs", "cancel", "r0", "r1", *WHERE).code == 1, "one of them is over"
    assert pollux.ok("runs", "--state", "ready", "--json", *WHERE).json["runs"] == []


def test_many_are_summed_up(tmp_path_factory):
    """More than a batch; a bar is drawn at a terminal."""
    count = BAR_FROM + 20
    pollux = asyncio.run(made(tmp_path_factory.mktemp("many"), dead=count))
    pollux.ok("jobs", "delete", "b", *WHERE)
    code, seen = at_a_terminal(pollux, "dead", "revive", "--all", *WHERE, types="y\n", columns="100")
    gone = count // 4
    assert code == 1, "some could not be"
    assert f"revive {count} dead letters? [y/N]" in seen
    assert f"{count} of {count}" in seen
    assert f"{count - gone} dead letters: runs again" in seen
    assert f"{gone} dead letters: its job was deleted; add the job again, or drop it" in seen
    left = pollux.ok("dead", "--limit", "1000", "--json", *WHERE).json["dead"]
    assert len(left) == gone > LINES_MAX
    assert pollux.ok("dead", "drop", "--all", "--yes", *WHERE).out == f"dropped {gone} dead letters\n"


def test_a_pause_of_many_is_summed_up_and_named_by_its_filter(tmp_path):
    pollux = asyncio.run(made(tmp_path))
    jobs = [
        {"id": f"job-{n:02}", "http": "http://127.0.0.1:9/", "once": True, "tags": ["many jobs"]}
        for n in range(LINES_MAX + 5)
    ]
    pollux.write("many.yaml", json.dumps({"store": "sqlite:///p.db", "jobs": jobs}))
    pollux.ok("reload", "-c", "many.yaml")
    paused = pollux.ok("pause", "--tag", "many jobs", "--for", "1h", "--yes", *WHERE).out
    assert paused == f"{LINES_MAX + 5} jobs are paused for 1h; `pollux resume --tag 'many jobs'` ends it\n"
    pollux.ok("resume", "job-03", *WHERE)
    resumed = pollux.ok("resume", "--tag", "many jobs", "--yes", *WHERE).out
    assert resumed == f"of {LINES_MAX + 5} jobs {LINES_MAX + 4} go on, 1 were not paused\n"


def test_several_jobs_are_taken_at_once(pollux):
    answer = pollux("jobs", "run", "a", "b", "c", "nobody", "--json", *WHERE)
    assert answer.code == 1
    assert [run["job_id"] for run in answer.json["runs"]] == ["c"]
    assert [each["id"] for each in answer.json["refused"]] == ["a", "b", "nobody"]
    assert pollux.ok("jobs", "run", "a", "b", "--anyway", *WHERE).out.count("is ready") == 2
    assert pollux.ok("pause", "a", "b", "--json", *WHERE).json == {"paused": ["job a", "job b"]}
    resumed = pollux.ok("resume", "a", "c", "--json", *WHERE).json
    assert resumed == {"resumed": ["job a"], "not_paused": ["job c"]}
    assert len(pollux.ok("jobs", "cancel", "--group", "edge", "--yes", "--json", *WHERE).json["runs"]) == 4
    deleted = pollux.ok("jobs", "delete", "--tag", "old", "--yes", "--json", *WHERE).json
    assert deleted == {"deleted": ["a", "b"], "come_back_with": []}
    assert [job["id"] for job in pollux.ok("jobs", "--json", *WHERE).json["jobs"]] == ["c"]


def test_jobs_are_paused_and_resumed_by_what_they_are(pollux):
    answer = pollux.ok("pause", "--tag", "old", "--yes", "--reason", "night", *WHERE)
    assert answer.out.splitlines() == [f"job {name} is paused; `pollux resume {name}` ends it" for name in "ab"]
    assert pollux.ok("pause", "--text", "third", "--yes", "--json", *WHERE).json == {"paused": ["job c"]}
    assert [note["key"] for note in pollux.ok("resume", "--json", *WHERE).json["paused"]] == [
        "stop:job:a",
        "stop:job:b",
        "stop:job:c",
    ]
    resumed = pollux.ok("resume", "--group", "core", "--tag", "old", "--yes", "--json", *WHERE).json
    assert resumed == {"resumed": ["job b"], "not_paused": []}
    assert pollux.ok("resume", "--tag", "old", "--yes", *WHERE).out == "job a goes on\njob b was not paused\n"
    assert pollux.ok("pause", "--tag", "none", *WHERE).out == "there are no such jobs\n"


def test_a_group_by_itself_is_paused_as_a_whole(pollux):
    assert pollux.ok("pause", "--group", "edge", "--json", *WHERE).json == {"paused": ["group edge"]}
    assert pollux.ok("resume", "--group", "edge", "--json", *WHERE).json == {
        "resumed": ["group edge"],
        "not_paused": [],
    }


def test_what_was_done_to_many_is_on_record(pollux):
    pollux.ok("runs", "cancel", "--all", "--yes", "--reason", "enough", *WHERE)
    pollux.ok("dead", "drop", "--error", "42", "--yes", *WHERE)
    cancel, drop = pollux.ok("audit", "--limit", "2", "--json", *WHERE).json["lines"]
    assert (cancel["action"], cancel["subject"], cancel["detail"]) == ("cancel", "4 runs", "r0, r1, r2, r3; enough")
    assert (drop["action"], drop["detail"]) == ("drop", "4 runs: d6, d4, d2, d0")


def test_the_audit_log_is_read_from_its_end_and_backwards(pollux):
    for n in range(5):
        pollux.ok("pause", "a", "--reason", str(n), *WHERE)
    seen = pollux.ok("audit", "--limit", "2", *WHERE)
    last = pollux.ok("audit", "--limit", "2", "--json", *WHERE).json
    assert [line["detail"] for line in last["lines"]] == ["3", "4"]
    assert f"there are older ones: add --before {last['next']}\n" == seen.err
    before = pollux.ok("audit", "--limit", "2", "--before", str(last["next"]), "--json", *WHERE).json
    assert [line["detail"] for line in before["lines"]] == ["1", "2"]
    after = pollux.ok("audit", "--after", str(before["lines"][0]["seq"]), "--json", *WHERE).json
    assert [line["detail"] for line in after["lines"]] == ["2", "3", "4"]
    assert pollux("audit", "--after", "1", "--before", "2", *WHERE).code == 2
    assert json.loads(pollux.ok("audit", "--before", "1", "--json", *WHERE).out) == {"lines": [], "next": None}
