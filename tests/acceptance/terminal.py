"""The real program in real processes, in a folder of its own."""

import contextlib
import io
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from pollux.cli.runner import run_command
from tests.acceptance.forked import Forked, can_be_forked

PATIENCE_SECONDS = 120.0  # a hung program, not a slow one
WITHOUT_API = {"POLLUX_SERVER": "false"}  # most tests ask the store; those of the API say {"POLLUX_SERVER": "true"}

HANDLERS = """
import asyncio
from pathlib import Path

from pollux import Permanent, Pollux, every


async def fine(ctx, word="hello"):
    return {"word": word}


async def refuse(ctx):
    raise Permanent("it never works\\x1b[31m")


async def slow(ctx, seconds=1.0):
    Path("slow.started").touch()
    ctx.progress(0.5)
    await asyncio.sleep(seconds)
    Path("slow.ended").touch()


app = Pollux("sqlite:///app.db", name="ours")


@app.job(every("1h"))
async def tick(ctx):
    return "tock"
"""


class Answer(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Terminal:
    """A user at a terminal, in `folder`.  Every command is a process; `fresh`: from the start of Python."""

    def __init__(self, folder: Path, *, fresh: bool = False) -> None:
        self.folder, self.is_fresh = folder, fresh
        if not (folder / "work.py").exists():  # another process may be about to import it
            (folder / "work.py").write_text(HANDLERS)

    def environ(self, extra: dict[str, str] | None = None) -> dict[str, str]:
        ours = {name: value for name, value in os.environ.items() if not name.startswith("POLLUX_")}
        mark = {name: value for name, value in os.environ.items() if name == "POLLUX_TEST_SESSION"}
        own = {"PYTHONWARNINGS": "error", "COLUMNS": "200", "XDG_STATE_HOME": str(self.folder / "state")}
        return ours | mark | own | WITHOUT_API | (extra or {})

    def __call__(self, *arguments: str, environ: dict[str, str] | None = None, given: str = "") -> Answer:
        """Run a command to its end.  A traceback is never an answer."""
        with self.started(*arguments, environ=environ, stdin=subprocess.PIPE, text=True) as process:
            out, err = process.communicate(given, timeout=PATIENCE_SECONDS)
        assert "Traceback" not in err + out, err
        return Answer(process.returncode, out, err)

    def ok(self, *arguments: str, **options: Any) -> Answer:
        answer = self(*arguments, **options)
        assert answer.code == 0, answer
        return answer

    @contextlib.contextmanager
    def started(
        self, *arguments: str, environ: dict[str, str] | None = None, **options: Any
    ) -> Iterator[subprocess.Popen]:
        """A command that goes on; it is ended with the block if it did not end by itself."""
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
        process = self._start(arguments, self.environ(environ), pipes)
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
            process.wait()

    def _start(self, arguments: Sequence[str], env: dict[str, str], pipes: dict[str, Any]) -> subprocess.Popen:
        return start_pollux(arguments, cwd=self.folder, env=env, fresh=self.is_fresh, **pipes)

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)


class SameProcess(Terminal):
    """The same words without a process for each: for the many questions that are put to one store."""

    def __call__(self, *arguments: str, environ: dict[str, str] | None = None, given: str = "") -> Answer:
        out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
        stdin = io.TextIOWrapper(io.BytesIO(given.encode()), "utf-8")
        with (
            contextlib.chdir(self.folder),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            mock.patch.dict(os.environ, self.environ(environ), clear=True),
            mock.patch("sys.stdin", stdin),
            mock.patch("sys.path", [*sys.path]),  # a command puts its folder there
        ):
            code = run_command(arguments)
        said = [stream.buffer.getvalue().decode() for stream in (out, err)]
        assert "Traceback" not in "".join(said), said
        return Answer(code, *said)


def start_pollux(
    arguments: Sequence[str], *, cwd: Path, env: dict[str, str], fresh: bool = False, **pipes: Any
) -> subprocess.Popen:
    """A process of `pollux` with these arguments: forked if it cannot tell the difference, else fresh."""
    if not fresh and can_be_forked(env):
        return Forked(arguments, cwd=cwd, env=env, **pipes)
    return subprocess.Popen([sys.executable, "-m", "pollux", *arguments], cwd=cwd, env=env, **pipes)


def stopped(process: subprocess.Popen, number: int = signal.SIGTERM) -> Answer:
    """Tell it to stop and wait until it has.  What it is not yet listening for would end it without a word."""
    eventually(lambda: process.poll() is not None or is_heard(process.pid, number), "it listens for the signal")
    process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    answer = Answer(process.returncode, (out or b"").decode(), (err or b"").decode())
    assert "Traceback" not in answer.err, answer.err
    return answer


def is_heard(pid: int, number: int) -> bool:
    """Does the process catch that signal?  One that has ended does not."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    caught = re.search(r"^SigCgt:\s*([0-9a-f]+)", status, re.MULTILINE)
    assert caught is not None
    return bool(int(caught[1], 16) >> (number - 1) & 1)


def read_until(terminal: int, words: list[str]) -> str:
    """What is shown on a pseudo-terminal, until all the words have been."""
    deadline, seen = time.monotonic() + PATIENCE_SECONDS, ""
    while not all(word in seen for word in words):
        left = deadline - time.monotonic()
        assert left > 0, f"{[word for word in words if word not in seen]} not in:\n{seen}"
        if select.select([terminal], [], [], left)[0]:
            seen += os.read(terminal, 65_536).decode(errors="replace")
    return seen


def eventually(look: Callable[[], Any], what: str, process: subprocess.Popen | None = None) -> Any:
    """Look again and again until there is something to see."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (begin := time.monotonic()) < deadline:
        seen = look()
        if seen:
            return seen
        if process is not None and process.poll() is not None:
            out, err = process.communicate()
            raise AssertionError(f"the program ended ({process.returncode}) before {what}:\n{out!r}\n{err!r}")
        time.sleep(max(0.05, time.monotonic() - begin))  # the process that is waited for needs the machine, too
    raise AssertionError(f"after {PATIENCE_SECONDS} s still not: {what}")
