"""Set-up of the project on any day: the locked versions are installed, whatever was released since.

The Makefile of this repository sets up a small project from an index in a folder.  That index has a newer release
beside each locked one, and each newer release asks for packages that no lock has heard of.  Tried with the oldest pip
that Python 3.11 shipped and with the newest.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.servers.ports import free_port
from tests.test_repository import locked, needed, normal
from tests.wheels import wheel

REPOSITORY = Path(__file__).parents[1]
OLDEST_PIP = "pip==22.3 --hash=sha256:1daab4b8d3b97d1d763caeb01a4640a2250a0ea899e257b1e44b9eded91e15ab"

# The name and version of a release, and what it requires: plainly, by a marker, by an extra of a locked package.
RELEASES = {
    ("plain", "1.0"): [],
    ("plain", "2.0"): ["ignored_variables-of"],
    ("marked", "1.0"): [],
    ("marked", "2.0"): ["ignored_variables-of"],
    ("driver", "1.0"): ['pool>=1; extra == "pool"'],
    ("driver", "2.0"): ['pool>=2; extra == "pool"', "ignored_variables-of"],
    ("pool", "1.0"): [],
    ("pool", "2.0"): [],
    ("peer", "1.0"): ["driver[pool]>=1", 'marked>=1; python_version >= "3.11"', 'never>=1; python_version < "3"'],
    ("peer", "2.0"): ["driver[pool]>=2"],
}
LOCKED = ["plain", "marked", "driver", "pool", "peer"]

PYPROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "small"
"""
# A build backend of a few lines, so that the small project needs none from an index.
BACKEND = """
import pathlib, sys
sys.path.insert(0, {tests!r})
from wheels import wheel


def build_editable(folder, settings=None, metadata=None):
    return wheel(pathlib.Path(folder), "small", "1.0", ["plain>=1", "peer>=1"]).name


build_wheel = build_editable
"""


@pytest.fixture(scope="module", params=["oldest", "newest"])
def pip(request, tmp_path_factory, locked_pip) -> Path:
    """A folder from which Python imports this pip."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "oldest":
        (folder / "oldest.txt").write_text(OLDEST_PIP)
        packed = download(folder / "oldest.txt", folder)
    else:
        packed = locked_pip
    with zipfile.ZipFile(packed) as wheel:
        wheel.extractall(folder)
    return folder


@pytest.fixture(scope="module")
def locked_pip(tmp_path_factory) -> Path:
    return download(REPOSITORY / "requirements" / "pip.lock", tmp_path_factory.mktemp("locked"))


def download(requirements: Path, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--require-hashes"]
    subprocess.run([*command, "-d", str(folder), "-r", str(requirements)], check=True, timeout=300)
    return next(folder.glob("*.whl"))


@pytest.fixture
def project(tmp_path, locked_pip) -> Path:
    """A project that is set up by the Makefile of this one, and its index."""
    index, locks = tmp_path / "index", tmp_path / "requirements"
    index.mkdir()
    locks.mkdir()
    (index / locked_pip.name).symlink_to(locked_pip)
    (locks / "pip.lock").symlink_to(REPOSITORY / "requirements" / "pip.lock")
    hashes = {}
    for (name, version), requires in RELEASES.items():
        hashes[name, version] = hashlib.sha256(wheel(index, name, version, requires).read_bytes()).hexdigest()
    pins = [f"{name}==1.0 \\\n    --hash=sha256:{hashes[name, '1.0']}\n" for name in LOCKED]
    (locks / "run.lock").write_text("".join(pins))
    (tmp_path / "Makefile").symlink_to(REPOSITORY / "Makefile")
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    (tmp_path / "backend.py").write_text(BACKEND.format(tests=str(Path(__file__).parent)))
    return tmp_path


def set_up(project: Path, pip: Path) -> subprocess.CompletedProcess[str]:
    """Run make with this pip and no index but the project's own."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "MAKE", "MFLAGS"))}
    environment |= {"PYTHONPATH": str(pip), "PIP_CONFIG_FILE": os.devnull, "PIP_NO_CACHE_DIR": "1"}
    environment |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(project / "index")}
    # A Python that has no pip of its own beside the one that is tried.
    python = project / "machine" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(project / "machine")], check=True, timeout=120)
    command = ["make", ".venv/.run", f"PYTHON={python}"]
    return subprocess.run(
        command, cwd=project, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def installed(project: Path) -> dict[str, str]:
    script = f"import {', '.join(LOCKED)}\nprint(*({'.version, '.join(LOCKED)}.version,))"
    python = project / ".venv" / "bin" / "python"
    done = subprocess.run([python, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    return dict(zip(LOCKED, done.stdout.split(), strict=True))


def test_the_locked_versions_are_installed_beside_newer_ones(project, pip):
    done = set_up(project, pip)
    assert done.returncode == 0, done.stderr
    assert installed(project) == dict.fromkeys(LOCKED, "1.0")


def test_a_lock_that_misses_a_package_is_named(project, pip):
    """What is installed without resolving is checked afterwards."""
    lock = project / "requirements" / "run.lock"
    lock.write_text("".join(lock.read_text().partition("plain==1.0")[2].partition("\n")[2].partition("\n")[2]))
    done = set_up(project, pip)
    assert done.returncode != 0
    assert "small 1.0 requires plain, which is not installed" in done.stderr
    assert "cure: make lock" in done.stderr
    assert not (project / ".venv" / ".run").exists()


def test_make_run_starts_the_demo_from_nothing(tmp_path):
    """From the real locks, into a fresh environment: what running needs is there, and nothing else."""
    for name in ("Makefile", "pyproject.toml", "requirements", "src", "README.md", "LICENSE", "examples"):
        (tmp_path / name).symlink_to(REPOSITORY / name)
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS"))}
    command = ["make", "run", f"ARGS=--no-watch --port {free_port()}", f"PYTHON={sys._base_executable}"]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as demo:
        try:
            lines = list(iter_until(demo.stdout, "the API is at"))
        finally:
            os.killpg(demo.pid, signal.SIGINT)
        rest = demo.stdout.read()
    assert "setting up .venv" in lines[0]
    assert "12 jobs added" in "".join(lines)
    assert "stopped, drained" in rest
    groups = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["dependency-groups"]
    others = {Requirement(each).name.lower() for each in [*groups["dev"], *groups["bench"]]}
    command = [tmp_path / ".venv" / "bin" / "python", "-m", "pip", "freeze"]
    frozen = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    there = {line.partition("==")[0].lower() for line in frozen.splitlines()}
    assert {"aiohttp", "textual"} <= there
    assert there & others == set()


def test_the_locks_hold_everything_that_the_peers_need():
    """They are not installed for tests: what the locked releases require is read from the index."""
    lock = REPOSITORY / "requirements" / "bench.lock"
    command = [sys.executable, "-m", "pip", "install", "-q", "--dry-run", "--ignore-installed", "--no-deps"]
    command += ["--require-hashes", "--report", "-", "-r", str(lock)]
    told = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout
    peers = {normal(each["metadata"]["name"]): each["metadata"] for each in json.loads(told)["install"]}
    assert peers.keys() <= locked("bench")
    here = locked("run", "test", "bench")

    def requires(name: str) -> list[str] | None:
        if name in peers:
            return peers[name].get("requires_dist")
        return metadata.requires(name) if name in here else None

    group = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["dependency-groups"]["bench"]
    assert {normal(Requirement(each).name) for each in group} <= here, "cure: make lock"
    assert needed(group, requires) <= here, "cure: make lock"
    assert "croniter" in needed(group, requires), "the walk goes beyond the group"


def iter_until(stream: Iterable[str], words: str) -> Iterator[str]:
    """Lines of a program up to the one with these words; its end is a failure."""
    for line in stream:
        yield line
        if words in line:
            return
    pytest.fail(f"the program ended before it wrote {words!r}")
