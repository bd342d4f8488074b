"""Progress from another process, a run to its end, the history of a job."""

import re

import pytest

from pollux.cli.output import sparkline
from tests.acceptance.terminal import PATIENCE_SECONDS, SameProcess, Terminal, eventually, stopped

pytestmark = pytest.mark.xdist_group("cli history")  # one node for all of them
CODE = """
import asyncio
from pathlib import Path

from pollux import Permanent, Pollux, every

app = Pollux("sqlite:///ours.db", name="ours", lease="3s")


async def gate(name):
    while not Path(name).exists():
        await asyncio.sleep(0.02)


@app.job
async def long(ctx, go="go"):
    ctx.progress(2, "reading\\x1b[31m", of=5)
    await gate(go)
    return {"pages": list(range(5))}


@app.job(retry={"attempts": 3, "base": "20ms", "jitter": 0})
async def flaky(ctx, until=3, word="w"):
    ctx.progress(f"attempt {ctx.attempt}")
    if ctx.attempt < until:
        try:
            raise ConnectionError("refused by db-1")
        except ConnectionError as error:
            raise RuntimeError(f"no session {ctx.attempt}") from error
    return word


@app.job(every("100ms"))
async def tick(ctx):
    if ctx.job.memory.ended % 4 == 2:
        raise ValueError("every fourth")
    return ctx.job.memory.ended // 3


@app.job(retry=False)
async def big(ctx):
    return ["a line"] * 5_000
"""
OURS = ("--store", "sqlite:///ours.db")


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A folder in which a node works."""
    pollux = Terminal(tmp_path_factory.mktemp("served"))
    pollux.write("ours.py", CODE)
    with pollux.started("serve", "--app", "ours:app", "--no-watch") as process:
        eventually(lambda: pollux("nodes", *OURS, "--json").code == 0, "the store answers", process)
        yield pollux.folder
        assert stopped(process).code == 0


@pytest.fixture
def pollux(served) -> Terminal:
    return SameProcess(served)


def test_the_progress_of_a_handler_is_seen_from_every_process(pollux):
    run = pollux.ok("enqueue", "long", "go=first", "--json", *OURS).json["run"]
    words = "40% (2 of 5) reading\\x1b[31m"

    def said() -> bool:
        [seen] = [each for each in pollux.ok("runs", "--json", *OURS).json["runs"] if each["id"] == run["id"]]
        return seen["progress"] == words

    eventually(said, "the progress is in the store")
    assert words in next(line for line in pollux.ok("runs", *OURS).out.splitlines() if run["id"] in line)
    assert re.search(rf"^progress +{re.escape(words)}$", pollux.ok("runs", "show", run["id"], *OURS).out, re.MULTILINE)
    assert words in next(line for line in pollux.ok("jobs", *OURS).out.splitlines() if line.startswith("long "))
    shown = pollux.ok("jobs", "show", "long", *OURS).out
    assert re.search(rf"live runs\n  {run['id']}  runs on \S+: {re.escape(words)}\n", shown)
    answer = pollux.ok("jobs", "show", "long", "--json", *OURS).json
    assert (answer["job"]["progress"], [each["id"] for each in answer["live"]]) == (words, [run["id"]])

    with pollux.started("runs", "show", run["id"], "--follow", "--json", *OURS) as follower:
        told = follower.stderr.readline().decode()
        assert re.fullmatch(rf"\S+  runs on \S+: {re.escape(words)}\n", told)
        (pollux.folder / "first").touch()
        out, err = follower.communicate(timeout=PATIENCE_SECONDS)
    assert follower.returncode == 0
    assert err.decode().splitlines()[-1].endswith("  done")
    assert b'"state": "done"' in out
    done = pollux.ok("runs", "show", run["id"], *OURS).out
    assert 'result\n  {\n    "pages": [\n' in done
    assert re.search(rf"^progress +{re.escape(words)}$", done, re.MULTILINE), "its last words stay"


def test_a_run_is_waited_for_and_its_attempts_are_told(pollux):
    answer = pollux("enqueue", "flaky", "until=3", 'word="fine"', "--wait", "--timeout", "50s", *OURS)
    assert answer.code == 0, answer
    assert answer.out.startswith("run ")
    assert re.search(r"attempt +3\n", answer.out)
    assert re.search(
        r"earlier attempts\n"
        r"  delivery 1, ended \S+.*: RuntimeError: no session 1, from ConnectionError: refused by db-1"
        r" \(ours.py:\d+ in flaky\)\n"
        r'      File "\S+ours.py", line \d+, in flaky\n'
        r'          raise ConnectionError\("refused by db-1"\)\n'
        r'      raised again as RuntimeError: File "\S+ours.py", line \d+, in flaky\n'
        r"  delivery 2, ended \S+.*: RuntimeError: no session 2, .*\n"
        r'result\n  "fine"\n',
        answer.out,
    )


def test_a_run_that_fails_is_the_exit_code_of_who_waits(pollux):
    answer = pollux("enqueue", "flaky", "--params", '{"until": 9}', "--wait", "--json", *OURS)
    assert answer.code == 1
    run = answer.json["run"]
    assert (run["state"], run["attempt"], [tried["fence"] for tried in run["tried"]]) == ("dead", 3, [1, 2])
    assert answer.err == "", "one document, and nothing beside it"
    assert pollux("runs", "show", run["id"], "--follow", *OURS).code == 1
    assert pollux("runs", "show", run["id"], *OURS).code == 0
    shown = pollux.ok("dead", "show", run["id"], *OURS).out
    assert re.search(r"progress +attempt 3\n", shown)
    assert re.search(r'\ntraceback\n  File "\S+ours.py", line \d+, in flaky\n      raise ConnectionError', shown)
    assert run["traceback"].splitlines()[1].strip() == 'raise ConnectionError("refused by db-1")'
    pollux.ok("dead", "drop", run["id"], *OURS)


def test_a_big_result_is_cut_for_people_and_whole_for_machines(pollux):
    answer = pollux("enqueue", "big", "--wait", *OURS)
    assert answer.code == 0
    assert re.search(r"\n  \.\.\. [0-9,]+ characters in all; --json has them\n", answer.out)
    assert len(answer.out.splitlines()) < 70
    run_id = answer.out.split()[1]
    assert len(pollux.ok("runs", "show", run_id, "--json", *OURS).json["run"]["result"]) == 5_000


def test_the_history_of_a_job_is_a_line_of_its_latest_runs(pollux):
    def answer() -> dict:
        return pollux.ok("jobs", "show", "tick", "--json", *OURS).json

    eventually(lambda: answer()["job"]["memory"]["ended"] >= 8, "it ran eight times")
    seen = answer()
    history, memory = seen["history"], seen["job"]["memory"]
    assert len(history["marks"]) == min(40, memory["ended"])
    assert [mark["failed"] for mark in history["marks"][:8]] == [False, False, True, False] * 2 or memory["ended"] > 40
    assert history["succeeded"] == sum(not mark["failed"] for mark in history["marks"])
    assert history["success_rate"] == pytest.approx(history["succeeded"] / len(history["marks"]))
    assert history["changed"] >= 2
    assert 0 < history["p50_ms"] <= history["p95_ms"]

    shown = pollux.ok("jobs", "show", "tick", *OURS).out
    [line] = re.findall(r"^latest +(\S+)$", shown, re.MULTILINE)
    assert re.fullmatch("[▁▂▃▄▅▆▇█✗]{8,40}", line)
    assert "✗" in line
    assert re.search(r"^succeeded +\d+ of the latest \d+ \(\d+%\); \d+ of them found a change$", shown, re.MULTILINE)
    assert re.search(r"^took +\S+; half within \S+, 95% within \S+$", shown, re.MULTILINE)
    assert re.search(r"^last error +\S+ \(.*\): ValueError: every fourth \(ours.py:\d+ in tick\)$", shown, re.MULTILINE)
    assert re.search(r"^fresh +\d+% \(\S+ old, planned every 100ms\)$", shown, re.MULTILINE)
    plain = pollux.ok("jobs", "show", "tick", *OURS, environ={"TERM": "dumb"}).out
    assert re.search(r"^latest +[.:\-=+*#%x]+$", plain, re.MULTILINE)


def test_the_runs_of_a_job_are_a_table_of_its_history(pollux):
    eventually(lambda: pollux.ok("runs", "--job", "tick", "--failed", "--json", *OURS).json["runs"], "one failed")
    head, *lines = pollux.ok("runs", "--job", "tick", *OURS).out.splitlines()
    assert head.split() == ["ID", "JOB", "STATE", "DUE", "ATTEMPT", "TOOK", "CHANGED", "DETAIL"]
    assert any(re.search(r" done .* \d+ms +(yes|no)$", line) for line in lines)
    assert any(re.search(r" failed .* \d+ms +ValueError: every fourth", line) for line in lines)


def test_the_store_of_an_app_is_found_by_its_name(pollux):
    for where in (("--app", "ours:app"), ()):
        environ = {} if where else {"POLLUX_APP": "ours:app"}
        jobs = pollux.ok("jobs", *where, "--json", environ=environ).json["jobs"]
        assert [job["id"] for job in jobs] == ["big", "flaky", "long", "tick"]
    pollux.write("code.yaml", 'app: "ours:app"\n')
    assert len(pollux.ok("jobs", "-c", "code.yaml", "--json").json["jobs"]) == 4
    assert pollux("jobs", "--app", "ours:long").code == 2
    assert pollux("jobs", "--app", "nowhere:app").code == 2
    assert pollux("jobs", "--app", "ours:app", "--store", "sqlite:///none.db").code == 3


@pytest.mark.parametrize(
    ("values", "marked", "plain", "line"),
    [
        ([], [], False, ""),
        ([5], [False], False, "▁"),
        ([5, 5, 5], [False, True, False], False, "▁✗▁"),
        ([1, 128], [False, False], False, "▁█"),
        ([1, 2, 4, 8, 16, 32, 64, 128], [False] * 8, False, "▁▂▃▄▅▆▇█"),
        ([1, 128, 128], [False, False, True], True, ".%x"),
    ],
)
def test_a_sparkline_has_a_character_for_each(values, marked, plain, line):
    assert sparkline(values, marked, plain=plain) == line
