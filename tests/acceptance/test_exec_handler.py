"""Commands and isolated handlers as people use them: real commands, real files, the real program."""

import asyncio
import os
import shutil
import signal
import stat
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pytest

from pollux.clock import SystemClock
from pollux.handlers.exec import ERROR_OUTPUT_CHARS, TAIL_BYTES, CommandFailed, CommandRefused, Exec
from pollux.model import Job, Memory, Run
from pollux.registry import Context, Handler, Observed, outcome_of
from pollux.secrets import HIDDEN
from tests.acceptance.terminal import SameProcess, Terminal, eventually, stopped

JOB = Job(id="job", handler="exec")
STUBBORN = "trap '' TERM HUP; echo $$ >> {pids}; exec sleep 600"


def a_context() -> Context:
    run = Run("run-1", "job", 0, attempt=1)
    return Context(run, JOB, Handler("exec", Exec(lambda: 1_000_000_000)), SystemClock(), 0)


async def ran(*argv, ctx=None, **params) -> Observed:
    ctx = ctx or a_context()
    return await ctx.handler.invoke(ctx, {"argv": list(argv), **params})


async def failed(*argv, kind=CommandFailed, **params) -> str:
    with pytest.raises(kind) as caught:
        await ran(*argv, **params)
    return str(caught.value)


def sh(script: str) -> tuple[str, str, str]:
    return "sh", "-c", script


def is_there(path: str) -> bool:
    return Path(path).exists()


def lines_in(path: Path) -> int:
    return path.read_text().count("\n") if path.exists() else 0


def opened() -> tuple[int, int]:
    """Descriptors and threads of this process."""
    return len(list(Path("/proc/self/fd").iterdir())), len(list(Path("/proc/self/task").iterdir()))


def children() -> set[str]:
    """Also those that have ended and that nobody has asked about."""
    found = set()
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # gone meanwhile
            parent = file.read_text().rpartition(")")[2].split()[1]
            found |= {file.parent.name} if int(parent) == os.getpid() else set()
    return found


def alive(pids: Path) -> list[int]:
    return [int(pid) for pid in pids.read_text().split() if Path(f"/proc/{pid}").exists()]


# what it gets


async def test_its_environment_is_its_own(monkeypatch):
    monkeypatch.setenv("NODE_SECRET", "hunter2")
    monkeypatch.setenv("TZ", "Europe/Berlin")
    seen = await ran("env", env={"MINE": "1", "LANG": "C"}, take="stdout")
    got = dict(line.split("=", 1) for line in seen.value.splitlines())
    home = got.pop("HOME")
    assert got == {
        "PATH": os.environ["PATH"],
        "LANG": "C",
        "TZ": "Europe/Berlin",
        "MINE": "1",
        "TMPDIR": home,
        "POLLUX_JOB": "job",
        "POLLUX_RUN": "run-1",
        "POLLUX_ATTEMPT": "2",
    }


async def test_its_home_is_private_and_goes_with_it():
    script = "cd $HOME && mkdir -p a/b && echo x > a/b/c && ln -s / root && stat -c %a . && pwd"
    mode, home = (await ran(*sh(script), take="stdout")).value.split()
    assert mode == "700"
    assert not is_there(home)
    assert is_there("/etc/passwd"), "links are not followed"


async def test_there_is_no_shell():
    assert (await ran("echo", "$HOME; id", "*", take="stdout")).value == "$HOME; id *\n"


async def test_it_reads_what_it_is_given(tmp_path):
    text = "ä" * 100_000
    assert (await ran("wc", "-c", stdin=text, take="stdout")).value.split() == ["200000"]
    assert (await ran("cat", take="stdout")).value == "", "nothing, unless something is given"
    assert (await ran("pwd", cwd=str(tmp_path), take="stdout")).value == f"{tmp_path}\n"


# what it leaves


async def test_its_exit_code_and_the_tail_of_its_output_are_the_result():
    seen = await ran(*sh("seq 20000; printf 'odd\\033[31m' >&2; exit 3"), expect=[3])
    assert seen.value["exit"] == 3
    assert seen.value["stdout"].endswith("\n20000\n")
    assert len(seen.value["stdout"]) == 4_000
    assert seen.value["stderr"] == "odd\\x1b[31m"


@pytest.mark.parametrize(("take", "value"), [("stdout", '{"a": [1]}\n'), ("json", {"a": [1]}), ("none", None)], ids=str)
async def test_what_is_taken_can_be_chosen(take, value):
    assert (await ran("echo", '{"a": [1]}', take=take)).value == value


async def test_it_is_unchanged_if_its_whole_stdout_is():
    first = await ran(*sh("seq 20000; echo $$ >&2"), take="none")
    memory = Memory(fingerprint=first.fingerprint)
    job = Job(id="job", handler="exec", memory=memory)
    again = await ran(*sh("seq 20000; echo $$ >&2"), take="none")
    other = await ran(*sh("echo 0; seq 2 20000"), take="none")
    assert outcome_of(again, job=job, started_ms=0, ended_ms=1).changed is False
    assert outcome_of(other, job=job, started_ms=0, ended_ms=1).changed is True


async def test_what_cannot_be_taken_is_said():
    assert "wrote 200 kB to stdout, at most 64 kB can be taken" in await failed(
        "head", "-c", "200000", "/dev/zero", take="stdout", kind=CommandRefused
    )
    assert (await failed("echo", "{", take="json")).startswith("what echo wrote to stdout is no JSON: ")


# how it fails


async def test_another_exit_code_is_a_failure_with_what_it_said_last():
    assert await failed(*sh("echo fine; echo 'no\\tdisk' >&2; exit 75")) == (
        "sh ended with exit code 75; stderr: no\tdisk"
    )
    assert await failed(*sh("echo only this; exit 1")) == "sh ended with exit code 1; stdout: only this"
    assert await failed("false") == "false ended with exit code 1"


async def test_an_exit_code_may_be_permanent():
    assert await failed(*sh("exit 2"), permanent=[2], kind=CommandRefused) == "sh ended with exit code 2"


async def test_a_signal_is_told_by_name():
    assert await failed(*sh("kill -SEGV $$")) == "sh was killed by SIGSEGV"
    assert await failed(*sh("kill -KILL $$")) == (
        "sh was killed by SIGKILL, but not by Pollux; the machine may have run out of memory"
    )


async def test_a_command_that_cannot_be_started_says_why(tmp_path):
    plain, odd, bare = tmp_path / "plain", tmp_path / "odd", tmp_path / "bare"
    plain.write_text("#!/bin/sh\n")
    odd.write_text("#!/no/such/interpreter\n")
    bare.write_text("echo\n")
    for file in (odd, bare):
        file.chmod(stat.S_IRWXU)
    told = [await failed(str(file), kind=CommandRefused) for file in (plain, odd, bare, tmp_path / "none")]
    assert [words.partition(": ")[2].partition(";")[0] for words in told] == [
        "it is not executable",
        "the interpreter named in its first line was not found",
        "it is no program",
        "it was not found",
    ]
    missing = await failed("true", cwd=str(tmp_path / "none"), kind=CommandRefused)
    assert missing.endswith("is no folder; correct `cwd`")


async def test_it_is_ended_when_it_writes_too_much():
    begin = time.monotonic()
    words = await failed("yes", limits={"output": "1 MB"})
    assert words.startswith("yes wrote more than 1 MB of output and was ended; stdout: ")
    assert time.monotonic() - begin < 60


async def test_its_memory_is_limited():
    eat = "import sys; sys.stderr.write('x' if not bytes(500_000_000) else 'had it')"
    words = await failed(sys.executable, "-c", eat, limits={"memory": "100 MB"})
    assert "MemoryError" in words
    assert (await ran(sys.executable, "-c", eat)).value["stderr"] == "had it"


async def test_its_cpu_time_and_open_files_are_limited():
    words = await failed(*sh("while :; do :; done"), limits={"cpu": "1s"})
    assert words == "sh used more than its 1 s of CPU time (was killed by SIGXCPU)"
    assert (await ran(*sh("ulimit -n; ulimit -c"), limits={"files": 77}, take="stdout")).value == "77\n0\n"


# how it is ended


async def begun(script: str, told: Path, lines: int):
    ctx = a_context()
    going = asyncio.ensure_future(ran(*sh(script), ctx=ctx))
    while lines_in(told) < lines:
        assert not going.done(), going
        await asyncio.sleep(0.01)
    return ctx, going


async def test_told_to_end_it_may_clean_up(tmp_path):
    told = tmp_path / "told"
    script = f"trap 'echo bye >&2; exit 0' TERM; echo >> {told}; while :; do sleep 0.05; done"
    ctx, going = await begun(script, told, 1)
    ctx.cancel("it ran longer than 5 ms")
    going.cancel()
    with pytest.raises(CommandFailed, match=r"sh was ended: it ran longer than 5 ms; stderr: (Terminated\n)?bye"):
        await going


async def test_what_does_not_obey_is_killed_with_all_that_it_started(tmp_path):
    """Also what went into a session of its own, and lost its parent."""
    pids = tmp_path / "pids"
    stubborn = tmp_path / "stubborn"
    stubborn.write_text(STUBBORN.format(pids=pids))
    script = f"sh {stubborn} & setsid sh {stubborn} & (setsid sh {stubborn} &); exec sh {stubborn}"
    _, going = await begun(script, pids, 4)
    begin = time.monotonic()
    going.cancel()
    with pytest.raises(CommandFailed):
        await going
    assert time.monotonic() - begin >= 0.9, "it had a second to obey"
    assert alive(pids) == []


async def test_what_a_command_leaves_behind_ends_with_it(tmp_path):
    pids = tmp_path / "pids"
    stubborn = tmp_path / "stubborn"
    stubborn.write_text(STUBBORN.format(pids=pids))
    script = f"(setsid sh {stubborn} &); while [ ! -s {pids} ]; do sleep 0.01; done"
    assert (await ran(*sh(script))).value["exit"] == 0
    assert alive(pids) == []


async def test_nothing_is_left_open_and_no_thread_waits():
    async def cancelled():
        going = asyncio.ensure_future(ran("sleep", "600"))
        await asyncio.sleep(0)
        going.cancel()
        with pytest.raises((CommandFailed, asyncio.CancelledError)):
            await going

    await ran("true")
    before, servers = opened(), children()  # servers of other tests may be among them
    await asyncio.gather(ran("true"), failed("false"), failed("nope", kind=CommandRefused), cancelled())
    await asyncio.sleep(0)
    assert opened() == before
    assert children() == servers


# the program

WORK = """
import os, subprocess, time
from pathlib import Path

from pollux import Pollux, every

app = Pollux("sqlite:///p.db")


def home(ctx, word="none"):
    return {"word": word, "pid": os.getpid()}


@app.job(every("1h"), isolate="process")
async def own(ctx):
    return os.getpid()


def stay(ctx):
    children = [subprocess.Popen(["sleep", "600"], start_new_session=apart) for apart in (False, True)]
    Path("pids").write_text("".join(f"{pid}\\\\n" for pid in [os.getpid(), *(child.pid for child in children)]))
    time.sleep(600)

MAIN
""".replace("\\\\n", "\\n")


@pytest.fixture
def pollux(tmp_path) -> Terminal:
    terminal = SameProcess(tmp_path)
    terminal.write("work.py", WORK.replace("MAIN", ""))
    return terminal


def runs(pollux) -> dict:
    """Finished runs by job."""
    if not (pollux.folder / "p.db").exists():
        return {}
    answer = pollux("runs", "--json", "--store", "sqlite:///p.db")
    found = answer.json["runs"] if answer.code == 0 else []
    return {run["job_id"]: run for run in found if run["state"] in {"done", "dead"}}


def test_a_file_runs_commands_and_isolated_functions(pollux):
    pollux.write(
        "p.yaml",
        """
        app: work:app
        allow_exec: true
        jobs:
          - {id: hello, exec: ["echo", "hello"], once: true}
          - {id: feed, exec: {argv: ["cat"], stdin: '{"n": 1}', take: json}, interval: 1h}
          - {id: broken, exec: {argv: ["sh", "-c", "echo no >&2; exit 3"], permanent: [3]}, once: true}
          - {id: home, python: "work:home", isolate: process, once: true, params: {word: hi}}
        """,
    )
    with pollux.started("serve", "-c", "p.yaml") as process:
        eventually(lambda: len(runs(pollux)) == 5, "all have run", process)
        node = process.pid
        answer = stopped(process)
    assert answer.code == 0
    found = runs(pollux)
    assert found["hello"]["result"] == {"exit": 0, "stdout": "hello\n", "stderr": ""}
    assert found["feed"]["result"] == {"n": 1}
    assert (found["broken"]["state"], found["broken"]["error"]) == (
        "dead",
        "CommandRefused: sh ended with exit code 3; stderr: no",
    )
    assert found["home"]["result"]["word"] == "hi"
    assert len({node, found["home"]["result"]["pid"], found["own"]["result"]}) == 3


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize(
    "job",
    [
        'exec: ["sh", "-c", "sleep 600 & setsid sleep 600 & echo $$ $! > pids; sleep 600"]',
        'python: "work:stay", isolate: process',
    ],
    ids=["exec", "isolate"],
)
def test_when_the_node_ends_however_its_children_are_gone(pollux, job, how):
    pollux.write(
        "p.yaml", f"store: sqlite:///p.db\nallow_exec: true\npool: {{grace: 0s}}\njobs: [{{id: a, once: true, {job}}}]"
    )
    pids = pollux.folder / "pids"
    with pollux.started("serve", "-c", "p.yaml") as process:
        eventually(lambda: pids.exists() and pids.read_text().endswith("\n"), "the children are there", process)
        assert alive(pids)
        if how == signal.SIGTERM:
            assert stopped(process).code == 0
            assert alive(pids) == [], "before the node itself was gone"
        else:
            process.kill()
            process.wait()
    eventually(lambda: not alive(pids), "the children are gone", None)


@pytest.mark.parametrize("main", ["app.run()", 'if __name__ == "__main__":\n    app.run()'], ids=["bare", "guarded"])
def test_a_script_may_isolate_its_own_functions(pollux, main):
    """The child imports the script again, and that starts nothing."""
    pollux.write("script.py", WORK.replace("MAIN", f'Path("imported").open("a").write(__name__ + "\\n")\n{main}'))
    program = [sys.executable, "script.py"]
    process = asyncio.run(_started(program, pollux))
    found = runs(pollux)
    assert process == 0
    assert found["own"]["state"] == "done", found
    assert (pollux.folder / "imported").read_text().split() == ["__main__", "__pollux_main__"]


async def _started(program, pollux) -> int:
    process = await asyncio.create_subprocess_exec(*program, cwd=pollux.folder, env=pollux.environ())
    try:
        async with asyncio.timeout(60):
            while "own" not in await asyncio.to_thread(runs, pollux):
                assert process.returncode is None
                await asyncio.sleep(0.05)
            process.terminate()
            return await process.wait()
    finally:
        if process.returncode is None:
            process.kill()


def test_a_stored_command_is_held_where_nobody_may_run_it(pollux):
    config = "store: sqlite:///p.db\nallow_exec: {}\njobs: [{{id: a, {}}}]"
    pollux.write("p.yaml", config.format("true", 'exec: ["echo", "x"]'))
    with pollux.started("serve", "-c", "p.yaml") as process:
        eventually((pollux.folder / "p.db").exists, "the store is there", process)
        eventually(lambda: pollux("jobs", "show", "a", "-c", "p.yaml").code == 0, "the job is there", process)
        stopped(process)
    pollux.ok("jobs", "run", "a", "-c", "p.yaml")
    refused = pollux("serve", "-c", "p.yaml", environ={"POLLUX_ALLOW_EXEC": "no"})
    assert refused.code == 2
    assert "p.yaml:3:8: job 'a': commands are not allowed here; write allow_exec: true" in refused.err
    with pollux.started("worker", "--store", "sqlite:///p.db") as process:

        def held() -> bool:
            [run] = pollux.ok("runs", "--json", "-c", "p.yaml").json["runs"]
            return run["state"] == "held"

        eventually(held, "it is held", process)
        [run] = pollux.ok("runs", "--json", "-c", "p.yaml").json["runs"]
        assert run["held_reason"].startswith("commands are not allowed here; write allow_exec: true")
        assert "no live node may run commands: allow_exec is off" in pollux.ok("why", run["id"], "-c", "p.yaml").out
        stopped(process)


async def test_half_a_secret_is_not_shown_where_the_output_is_cut():
    secret = "swordfish-9000-and-a-long-tail-of-it"
    HIDDEN.add(secret)
    try:
        for cut in (ERROR_OUTPUT_CHARS, TAIL_BYTES):
            script = f"printf %s '{secret}{'x' * (cut - 20)}' >&2; exit 1"
            assert "tail-of-it" not in await failed(*sh(script))
            seen = await ran(*sh(script.replace("exit 1", "exit 0")))
            assert "tail-of-it" not in seen.value["stderr"]
    finally:
        HIDDEN.clear()


async def test_a_command_that_is_just_being_written_is_tried_again(tmp_path):
    program = tmp_path / "program"
    shutil.copy("/bin/sh", program)
    with program.open("ab"):
        assert "being written" in await failed(str(program), "-c", "true", kind=CommandFailed)
    await ran(str(program), "-c", "true")


async def test_without_room_for_its_folder_a_command_says_so_and_is_tried_again(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    words = await failed("true", kind=CommandFailed)
    assert "No such file or directory" in words
    assert "SIGKILL" not in words
