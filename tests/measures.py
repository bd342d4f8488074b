"""Measures of the house: how much there is to read, and how many files one action passes through.

`python -m tests.measures [FOLDER]` prints them for a checkout, this one by default; an earlier one is a `git worktree`.
Files are counted as they execute: in a node with one job a second, without HTTP; for one `POST /api/v2/jobs` to a node
without jobs; for one `pollux pause`.  What a node executes while it is idle is left out of the second.
"""

from __future__ import annotations

import ast
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

SECONDS_MAX = 60.0
TOKEN = "measures-0123456789-measures-0123456789"
JOB = "allow_exec: true\njobs:\n  - {id: x, exec: {argv: [/bin/true]}, interval: 1s}\n"

# Loaded by every interpreter that finds it on its path: SIGUSR1 begins a count anew, SIGUSR2 writes it down.
TRACER = """
import os, signal, sys, threading
found = set()
def seen(frame, event, arg):
    code = frame.f_code
    if event == "call" and code.co_flags & 1 and "/src/pollux/" in code.co_filename:
        found.add(code.co_filename.rpartition("/src/pollux/")[2])
def write(*_):
    with open(os.environ["MEASURED"] + ".part", "w") as out:
        out.write("\\n".join(sorted(found)))
    os.replace(os.environ["MEASURED"] + ".part", os.environ["MEASURED"])
signal.signal(signal.SIGUSR1, lambda *_: found.clear())
signal.signal(signal.SIGUSR2, write)
threading.setprofile(seen)
sys.setprofile(seen)
if os.environ.get("MEASURED_AT_EXIT"):
    import atexit
    atexit.register(write)
"""


LIFE = {"open", "close"}  # of a handle; the verbs are what it is asked in between


def trees(package: Path) -> Iterator[ast.Module]:
    for path in package.rglob("*.py"):
        yield ast.parse(path.read_text())


def class_names_used_twice(package: Path) -> int:
    names = Counter(node.name for tree in trees(package) for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    return sum(count > 1 for count in names.values())


def verbs_of_the_contract(package: Path) -> int:
    tree = ast.parse((package / "store" / "contract.py").read_text())
    [store] = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Store"]
    return sum(isinstance(node, ast.AsyncFunctionDef) and node.name not in LIFE for node in store.body)


def lines(package: Path) -> int:
    return sum(
        len(path.read_text().splitlines()) for kind in ("py", "sql", "lua") for path in package.rglob(f"*.{kind}")
    )


def riddles(package: Path) -> int:
    """Module docstrings whose first sentence is a question."""
    firsts = [(ast.get_docstring(tree) or "").split("\n")[0].split(".  ")[0].split("?")[0:2] for tree in trees(package)]
    return sum(len(first) > 1 for first in firsts)


class Checkout:
    def __init__(self, root: Path, folder: Path) -> None:
        self.package, self.folder, self.port = root / "src" / "pollux", folder, _free_port()
        (folder / "sitecustomize.py").write_text(TRACER)
        self.measured = folder / "measured.txt"
        self.environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "PYTHONPATH": f"{folder}:{root / 'src'}",
            "MEASURED": str(self.measured),
            "POLLUX_TOKEN": TOKEN,
            "POLLUX_STORE": "sqlite:///measures.db",
        }

    def python(self, code: str) -> str:
        return subprocess.run(
            [sys.executable, "-c", code], env=self.environ, cwd=self.folder, check=True, capture_output=True, text=True
        ).stdout.strip()

    @contextmanager
    def node(self, config: str) -> Iterator[subprocess.Popen[bytes]]:
        head = f"store: sqlite:///measures.db\nserver: {{port: {self.port}, token: '${{env:POLLUX_TOKEN}}'}}\n"
        (self.folder / "pollux.yaml").write_text(head + config)
        command = [sys.executable, "-m", "pollux", "serve", "-c", "pollux.yaml"]
        with (self.folder / "log.txt").open("ab") as log:
            process = subprocess.Popen(command, env=self.environ, cwd=self.folder, stdout=log, stderr=log)
        try:
            _until(lambda: self.asked("GET", "/ready"), "the node is ready")
            yield process
        finally:
            process.terminate()
            process.wait(SECONDS_MAX)

    def asked(self, method: str, path: str, body: object = None) -> bool:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, method=method)
        request.add_header("Authorization", f"Bearer {TOKEN}")
        try:
            with urllib.request.urlopen(request, timeout=SECONDS_MAX) as answer:
                return answer.status < 300
        except OSError:
            return False

    def written(self, process: subprocess.Popen[bytes]) -> set[str]:
        self.measured.unlink(missing_ok=True)
        process.send_signal(signal.SIGUSR2)
        _until(self.measured.exists, "the count is written")
        return set(self.measured.read_text().split())

    def files_of_runs(self) -> set[str]:
        with self.node(JOB) as process:
            time.sleep(3)  # what is done once is done
            process.send_signal(signal.SIGUSR1)
            time.sleep(4)
            return self.written(process)

    def files_of_a_post(self) -> set[str]:
        with self.node("") as process:
            time.sleep(3)
            process.send_signal(signal.SIGUSR1)
            time.sleep(4)
            idle = self.written(process)
            process.send_signal(signal.SIGUSR1)
            time.sleep(0.2)
            assert self.asked(
                "POST", "/api/v2/jobs", {"url": "http://example.com/", "schedule_type": "interval", "interval": "1h"}
            )
            return self.written(process) - idle

    def files_of_a_pause(self) -> set[str]:
        with self.node(JOB):
            pass
        environ = self.environ | {"MEASURED_AT_EXIT": "1"}
        self.measured.unlink(missing_ok=True)
        command = [sys.executable, "-m", "pollux", "pause", "x"]
        subprocess.run(command, env=environ, cwd=self.folder, check=True, capture_output=True)
        return set(self.measured.read_text().split())


def _until(look, what: str) -> None:
    ends = time.monotonic() + SECONDS_MAX
    while not look():
        if time.monotonic() > ends:
            sys.exit(f"after {SECONDS_MAX:.0f} s not true: {what}")
        time.sleep(0.05)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def main() -> None:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1]).resolve()
    with TemporaryDirectory(prefix="pollux-measures-") as folder:
        it = Checkout(root, Path(folder))
        mro = "import pollux; print(sum(c.__module__.startswith('pollux') for c in pollux.Pollux.__mro__))"
        rows = {
            "modules": sum(1 for _ in it.package.rglob("*.py")),
            "lines of Python, SQL and Lua": lines(it.package),
            "files that execute in a node with one job a second": len(it.files_of_runs()),
            "files of POST /api/v2/jobs": len(it.files_of_a_post()),
            "files of pollux pause x": len(it.files_of_a_pause()),
            "class names used twice": class_names_used_twice(it.package),
            "modules that open with a question": riddles(it.package),
            "verbs of the contract": verbs_of_the_contract(it.package),
            "classes in the inheritance of Pollux": int(it.python(mro)),
        }
    for name, count in rows.items():
        print(f"{name:52} {count:>7,}")


if __name__ == "__main__":
    main()
