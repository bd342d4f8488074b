"""Completion in a real shell: bash runs the script that we print, and presses the key."""

import asyncio
import fcntl
import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pollux import Pollux
from pollux.cli import command_table
from pollux.model import Cause, Job, run_of
from tests.acceptance.terminal import PATIENCE_SECONDS, SameProcess, Terminal

ASK = """
eval "$({program} completion bash)" || exit 9
while IFS= read -r line; do
    COMP_LINE="$line" COMP_POINT=${{#line}}
    _pollux_completion {program}
    echo "${{COMPREPLY[*]}}"
done
"""
PATIENT = """
from pollux.store.handle import StoreHandle
from pollux.store.sqlite import SqliteStore
for kind in (StoreHandle, SqliteStore):
    kind.__init__.__kwdefaults__["deadline_ms"] = 600_000
"""  # a store that would wait for its lock until the test is red
PROGRAM = str(Path(sys.executable).with_name("pollux"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A store with a few jobs and runs, and one that is no store."""
    path = tmp_path_factory.mktemp("completion")

    async def make() -> None:
        app = Pollux(f"sqlite:///{path}/p.db")
        await app.open()
        jobs = [Job(id=name, handler="h") for name in ("home", "home:2", "horse", "zoo/a")]
        await app.put_jobs(jobs)
        await app._store.enqueue([run_of(jobs[0], 17, Cause.SCHEDULE)])
        await app.close()

    asyncio.run(make())
    (path / "broken.db").write_text("no database")
    return path


def completed(folder: Path, *lines: str, store: str = "p.db") -> list[list[str]]:
    """What bash would offer behind each of the lines."""
    run = subprocess.run(
        ["bash", "--norc", "-c", ASK.format(program=PROGRAM)],
        input="".join(f"{line}\n" for line in lines),
        cwd=folder,
        env=Terminal(folder).environ({"POLLUX_STORE": f"sqlite:///{store}"}),
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, "")
    return [line.split() for line in run.stdout.splitlines()]


def test_commands_options_and_values_are_completed(folder):
    whole, begun, inner, options, listed, states, nothing = completed(
        folder,
        "pollux ",
        "pollux ser",
        "pollux jobs ",
        "pollux dead revive --",
        "pollux jobs --ta",
        "pollux runs --state d",
        "pollux zzz",
    )
    assert whole == list(command_table.ENTRIES)
    assert begun == ["serve"]
    assert inner == ["ls", "show", "run", "cancel", "delete", "move"]
    assert {"--job", "--error", "--since", "--all", "--yes", "--json", "--store"} <= set(options)
    assert set(listed) == {"--target", "--tag"}, "a listing's options follow its group"
    assert states == ["done", "dead"]
    assert nothing == []


def test_ids_are_completed_from_the_store(folder):
    """bash breaks words at : and @, so it is given the rest of the word from there on."""
    jobs, colon, at, inside, enqueue, runs, of_job = completed(
        folder,
        "pollux jobs show ho",
        "pollux jobs show home:",
        "pollux runs show home@",
        "pollux why zoo/",
        "pollux enqueue hor",
        "pollux runs show ",
        "pollux runs --job z",
    )
    assert jobs == ["home", "home:2", "horse"]
    assert colon == ["2"]
    assert at == ["17"]
    assert inside == ["zoo/a"]
    assert enqueue == ["horse"]
    assert runs == ["home@17"]
    assert of_job == ["zoo/a"]


@pytest.mark.parametrize("store", ["none.db", "broken.db"])
def test_a_store_that_cannot_be_asked_is_silence(folder, store):
    before = sorted(path.name for path in folder.glob("*.db*"))
    assert completed(folder, "pollux jobs show h", store=store) == [[]]
    assert sorted(path.name for path in folder.glob("*.db*")) == before


def test_a_store_that_is_locked_is_silence_after_a_while(folder):
    program = PATIENT + "from pollux.cli import completion as c; c.SECONDS_MAX = 0.3; c.complete('bash_complete')"
    asked = {"COMP_LINE": "pollux jobs show h", "POLLUX_STORE": "sqlite:///p.db"}
    with (folder / "p.db.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run = subprocess.run(
            [sys.executable, "-c", program],
            cwd=folder,
            env=Terminal(folder).environ(asked),
            capture_output=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
    assert (run.returncode, run.stdout, run.stderr) == (0, b"", b"")


def test_the_key_is_pressed_in_a_real_terminal(folder):
    """An interactive bash: `pollux jobs show hor`, TAB, Enter."""
    ours, theirs = pty.openpty()
    environ = Terminal(folder).environ({"POLLUX_STORE": "sqlite:///p.db", "PS1": "$ ", "TERM": "xterm"})
    environ["PATH"] = f"{Path(PROGRAM).parent}:{environ['PATH']}"
    shell = subprocess.Popen(
        ["bash", "--norc", "--noprofile", "-i"], cwd=folder, env=environ, stdin=theirs, stdout=theirs, stderr=theirs,
        start_new_session=True,
    )  # fmt: skip
    seen, deadline = b"", time.monotonic() + PATIENCE_SECONDS
    try:
        os.write(ours, b'eval "$(pollux completion bash)"; echo rea""dy\n')
        while b"ready" not in seen:
            assert time.monotonic() < deadline, seen
            if select.select([ours], [], [], 0.1)[0]:
                seen += os.read(ours, 65_536)
        os.write(ours, b"echo pollux jobs show hor\x01\x0b")  # typed wrong and taken back, as people do
        os.write(ours, b"pollux jobs show hor\t")
        while b"jobs show horse" not in seen:
            assert time.monotonic() < deadline, seen
            if select.select([ours], [], [], 0.1)[0]:
                seen += os.read(ours, 65_536)
    finally:
        shell.kill()
        shell.wait()
        os.close(ours)
        os.close(theirs)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_gets_a_script_that_it_can_read(folder, shell):
    script = SameProcess(folder).ok("completion", shell).out
    assert f"_POLLUX_COMPLETE={shell}_complete" in script
    program = shutil.which(shell)
    if program is not None:  # its syntax, where there is somebody to ask
        subprocess.run([program, "-n"], input=script, text=True, check=True)


@pytest.mark.parametrize(
    ("shell", "words", "word"), [("zsh", "pollux jobs show hor", "3"), ("fish", "pollux why h", "h")]
)
def test_the_other_shells_are_answered_too(folder, shell, words, word):
    asked = {"_POLLUX_COMPLETE": f"{shell}_complete", "COMP_WORDS": words, "COMP_CWORD": word}
    answer = Terminal(folder).ok(environ=asked | {"POLLUX_STORE": "sqlite:///p.db"})
    assert "horse" in answer.out
    assert answer.err == ""


def test_a_shell_that_nobody_knows_is_silence_and_bad_usage(folder):
    answer = Terminal(folder).ok(environ={"_POLLUX_COMPLETE": "tcsh_complete"})
    assert (answer.out, answer.err) == ("", "")
    assert SameProcess(folder)("completion", "tcsh").code == 2
