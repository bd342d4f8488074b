"""Do the guards of `conftest.py` bite?  Each is shown a session with the fault planted, in a pytest of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from _pytest.assertion import rewrite

from tests import beforehand

REPOSITORY = Path(__file__).parents[1]
WITH = ("--disable-plugin-autoload", "-p", "xdist", "-p", "hypothesispytest")  # the others take seconds to load
WITHOUT = ("-p", "no:cacheprovider")  # it writes


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
    pid = int(said.partition("  pid ")[2].partition(": sleep 600")[0])
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
