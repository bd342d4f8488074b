"""Guards of `conftest.py`: each is shown a session with the fault planted, in a pytest of its own."""

import json
import os
import re
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from _pytest.assertion import rewrite

from tests import beforehand
from tests.servers.redis_cluster import until

REPOSITORY = Path(__file__).parents[1]
WITH = ("--disable-plugin-autoload", "-p", "xdist", "-p", "hypothesispytest")  # the others take seconds to load
WITHOUT = ("-p", "no:cacheprovider")  # it writes
SOON_S = 120.0  # on a busy machine


@pytest.fixture
def session(tmp_path):
    """Run pytest on one planted file under our conftest; answers what it printed and its status."""
    (tmp_path / "conftest.py").write_text(
        "import tests.conftest as ours\nours.PATIENCE_MS = 500\nfrom tests.conftest import *\n"
    )

    def run(text: str, *arguments: str, no_skip: bool = True) -> tuple[str, int]:
        (tmp_path / "test_planted.py").write_text(text)
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *WITH, *WITHOUT, "--rootdir", str(tmp_path), *arguments],
            cwd=tmp_path,
            env={**environment, "PYTHONPATH": str(REPOSITORY), "POLLUX_NO_SKIP": "1" if no_skip else ""},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout + done.stderr, done.returncode

    return run


PLANTED = """
def one():
    return 1

def test_planted():
    assert one() == 2
"""

GROUPS = """
import os
import pytest


@pytest.mark.parametrize("n", range(9))
@pytest.mark.xdist_group("one")
def test_grouped(n):
    assert n < 0, f"in process {os.getpid()}"
"""

SKIPS = """
import pytest

def test_runs():
    pass

@pytest.mark.skip(reason="no server here")
def test_marked():
    pass

def test_says_so_itself():
    pytest.skip("not today")

@pytest.mark.xfail(reason="hangs", run=False)
def test_never_run():
    pass
"""


@pytest.mark.parametrize("arguments", [(), ("-n", "2")], ids=["alone", "spread"])
def test_a_skip_fails_the_run_and_is_named(session, arguments):
    said, status = session(SKIPS, *arguments)
    assert status == pytest.ExitCode.TESTS_FAILED
    assert "skipped tests fail this run" in said
    assert "test_planted.py::test_marked: Skipped: no server here" in said
    assert "test_planted.py::test_says_so_itself: Skipped: not today" in said
    assert "test_planted.py::test_never_run" in said
    assert "test_planted.py::test_runs:" not in said


def test_a_skipped_module_fails_the_run(session):
    said, status = session("import pytest\npytest.importorskip('no_such_module')\n")
    assert status == pytest.ExitCode.TESTS_FAILED
    assert "could not import 'no_such_module'" in said


def test_bare_pytest_may_skip(session):
    said, status = session(SKIPS, no_skip=False)
    assert status == pytest.ExitCode.OK
    assert "skipped tests fail this run" not in said


def test_an_expected_failure_is_no_skip(session):
    _, status = session("import pytest\n@pytest.mark.xfail\ndef test_known():\n    raise OSError\n")
    assert status == pytest.ExitCode.OK


def test_tests_of_one_group_run_in_one_process(session):
    said, _ = session(GROUPS, "-n", "2", "--dist", "loadgroup")
    by = re.findall(r"^E +AssertionError: (in process \d+)$", said, re.MULTILINE)
    assert len(by) == 9
    assert len(set(by)) == 1


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads the process table of Linux")
@pytest.mark.parametrize(
    "start",
    [
        "global kept; kept = subprocess.Popen(['sleep', '600'])",
        "subprocess.run(['sh', '-c', 'sleep 600 >/dev/null 2>&1 &'])",
    ],
    ids=["child", "orphan"],
)
def test_a_process_left_behind_fails_the_run_and_is_stopped(session, start):
    said, status = session(f"import subprocess\ndef test_starts():\n    {start}\n")
    assert status == pytest.ExitCode.TESTS_FAILED
    pid = int(re.search(r"  pid (\d+): .*sleep 600", said)[1])  # also of a shell that has not become it yet
    assert not Path(f"/proc/{pid}/cmdline").exists() or Path(f"/proc/{pid}/cmdline").read_bytes() == b""


def test_a_process_that_ends_by_itself_is_waited_for(session):
    _, status = session(
        "import subprocess\ndef test_starts():\n    global kept; kept = subprocess.Popen(['sleep', '0.2'])\n"
    )
    assert status == pytest.ExitCode.OK


def test_what_was_rewritten_beforehand_is_what_pytest_takes(session, tmp_path):
    """Else each of its processes would do it again, and nobody would notice."""
    planted = tmp_path / "test_planted.py"
    planted.write_text(PLANTED)
    kept = beforehand.keep(planted)
    assert kept.exists()

    said, status = session(PLANTED, "--debug=traced.txt")

    assert status == pytest.ExitCode.TESTS_FAILED
    assert "assert 1 == 2" in said  # in the words of a rewritten assert
    traced = (tmp_path / "traced.txt").read_text()
    assert f"found cached rewritten pyc for {planted}" in traced
    assert f"rewriting {planted!r}" not in traced


def test_all_that_pytest_rewrites_of_ours_is_rewritten_beforehand():
    by_pytest = [
        each
        for each in sys.modules.values()
        if type(getattr(each, "__loader__", None)) is rewrite.AssertionRewritingHook
    ]
    files = [Path(each.__file__) for each in by_pytest]
    found = {path for path in files if {REPOSITORY / "tests", REPOSITORY / "src"} & {*path.parents}}
    assert Path(__file__) in found
    assert found <= {*beforehand.all_files()}


@pytest.fixture
def interruptible():
    """A run that a shell started in the background ignores SIGINT, and so would the one that is started here."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


HANGS = """
import json, os, subprocess, threading
from pathlib import Path
from tests import guard
from tests.servers import postgres, redis

def test_hangs(tmp_path):
    redis.shared_url()
    if os.environ["PLANTED"] == "both":
        postgres.shared_url()
    own = redis.RedisServer(tmp_path).start()
    apart = "setsid sleep 600 >/dev/null 2>&1 & echo $!"
    orphan = subprocess.run(["sh", "-c", apart], stdout=subprocess.PIPE, text=True)
    pids = [redis._shared["usual"].pid, own.pid, int(orphan.stdout), *[each.pid for each in postgres._shared]]
    note = {"worker": os.getpid(), "pids": pids, "folder": str(guard._guards[-1].folder)}
    Path(os.environ["NOTE"] + ".new").write_text(json.dumps(note))
    os.rename(os.environ["NOTE"] + ".new", os.environ["NOTE"])
    threading.Event().wait()
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads the process table of Linux")
@pytest.mark.parametrize(
    ("arguments", "whom", "how", "servers"),
    [
        ((), "runner", signal.SIGINT, "both"),
        ((), "runner", signal.SIGKILL, "both"),
        (("-n", "1"), "group", signal.SIGINT, "one"),
        (("-n", "1"), "runner", signal.SIGINT, "one"),
        (("-n", "1"), "runner", signal.SIGKILL, "one"),
        (("-n", "1"), "worker", signal.SIGKILL, "one"),
    ],
    ids=["interrupted", "killed", "Ctrl-C", "spread-interrupted", "spread-killed", "worker-killed"],
)
@pytest.mark.usefixtures("interruptible")
def test_a_run_that_is_interrupted_leaves_no_process_and_no_folder(tmp_path, arguments, whom, how, servers):
    (tmp_path / "conftest.py").write_text("from tests.conftest import *\n")
    (tmp_path / "test_planted.py").write_text(HANGS)
    note = tmp_path / "note.json"
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    own = {"PYTHONPATH": str(REPOSITORY), "NOTE": str(note), "PLANTED": servers}
    with (tmp_path / "said.txt").open("wb") as said:
        runner = subprocess.Popen(
            [sys.executable, "-m", "pytest", *WITH, *WITHOUT, "--rootdir", str(tmp_path), *arguments],
            cwd=tmp_path,
            env=environment | own,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
    until(lambda: note.exists() or runner.poll() is not None, "servers run", SOON_S)
    assert note.exists(), (tmp_path / "said.txt").read_text()
    there = json.loads(note.read_text())
    ends = [os.pidfd_open(pid) for pid in there["pids"]]
    assert Path(there["folder"]).exists()

    if whom == "group":
        os.killpg(runner.pid, how)
    else:
        os.kill(there["worker"] if whom == "worker" else runner.pid, how)

    for end in ends:
        assert select.select([end], [], [], SOON_S)[0], "a process is left"
        os.close(end)
    until(lambda: not Path(there["folder"]).exists(), "its folder is gone", SOON_S)
    runner.wait(SOON_S)
