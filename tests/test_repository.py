"""Promises of the repository itself: the locks, the Makefile, the dependencies, the decisions."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable
from importlib import metadata
from itertools import combinations
from pathlib import Path

import pytest
from packaging.requirements import Requirement

REPOSITORY = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
MAKEFILE = (REPOSITORY / "Makefile").read_text()
LOCKS = {name: (REPOSITORY / "requirements" / f"{name}.lock").read_text() for name in ("pip", "run", "test", "bench")}
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())

# Where the name to import is not the name to install; tzdata is data, which zoneinfo finds by itself, httptools is
# found by uvicorn, and of offapi only files are read.
INSTALLED_AS = {"yaml": "pyyaml"}
NEVER_IMPORTED = {"httptools", "offapi", "tzdata"}
# Several packages share one name: the longest beginning tells which it is.
NAMESPACES = {"opentelemetry.exporter": "opentelemetry-exporter-otlp-proto-http", "opentelemetry": "opentelemetry-sdk"}
# `pollux.testing` is for people who test, with the tools they have.
TOOLS_OF_TESTING = {"pytest", "hypothesis"}


def normal(requirement: str) -> str:
    """The name in a requirement, as the index compares names."""
    return re.sub(r"[-_.]+", "-", re.match(r"[A-Za-z0-9._-]+", requirement)[0]).lower()


def declared() -> set[str]:
    project = PROJECT["project"]
    extras = [item for extra in project.get("optional-dependencies", {}).values() for item in extra]
    return {normal(item) for item in [*project["dependencies"], *extras]}


def top(module: str) -> str:
    """The name that belongs to a package of its own."""
    return next((name for name in NAMESPACES if f"{module}.".startswith(f"{name}.")), module.partition(".")[0])


def imported() -> set[str]:
    """What the package imports from outside, under the names to install."""
    names = set()
    for path in (REPOSITORY / "src").rglob("*.py"):
        known = TOOLS_OF_TESTING if "testing" in path.parts else set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {top(alias.name) for alias in node.names} - known
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names |= {top(str(node.module))} - known
    return {
        normal((INSTALLED_AS | NAMESPACES).get(name, name)) for name in names - sys.stdlib_module_names - {"pollux"}
    }


def make(*arguments: str, cwd: Path = REPOSITORY, path: str = "") -> subprocess.CompletedProcess[str]:
    """A make of its own, which inherits nothing from the one that may be running this test."""
    environment = {key: value for key, value in os.environ.items() if key not in {"MAKEFLAGS", "MAKELEVEL", "MFLAGS"}}
    environment["PATH"] = f"{path}:{environment['PATH']}" if path else environment["PATH"]
    return subprocess.run(["make", *arguments], cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def test_help_lists_every_target():
    targets = set(re.findall(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)[0].split())
    shown = make("help").stdout
    assert {line.split()[1] for line in shown.splitlines()} == targets
    assert targets >= {"run", "test", "check", "bench", "sabotage", "docs", "clean", "help", "lock"}


@pytest.mark.parametrize(
    ("python", "complaint"),
    [
        ("no-such-python", "no-such-python is not installed; cure:"),
        ("old-python", "Python 3.10.0, Pollux needs 3.11 or newer; cure:"),
        ("python-without-pip", "has no pip; cure:"),
    ],
)
def test_make_says_what_is_wrong_with_a_python_that_will_not_do(tmp_path, python, complaint):
    scripts = {
        "old-python": '[ "$1" = -V ] && echo Python 3.10.0\n[ "$1" = -V ]',
        "python-without-pip": '[ "$1" != -m ]',
    }
    for name, script in scripts.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    for name in ("Makefile", "requirements", "pyproject.toml"):
        (tmp_path / name).symlink_to(REPOSITORY / name)

    made = make("test", f"PYTHON={python}", cwd=tmp_path, path=str(tmp_path))

    assert made.returncode != 0
    assert complaint in made.stderr
    assert not (tmp_path / ".venv").exists()


def test_the_ci_runs_what_people_run():
    script = REPOSITORY / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert "make test" in script.read_text()


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_names_no_address(lock):
    assert not re.search(r"://|--(extra-)?index-url|--find-links|^file:| @ ", LOCKS[lock], re.MULTILINE)


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_pins_everything_by_hash(lock):
    entries = LOCKS[lock].replace("\\\n", " ").splitlines()
    loose = [entry for entry in entries if entry.strip() and not re.match(r"[\w.-]+==\S+ .*--hash=sha256:", entry)]
    assert loose == []


def locked(*locks: str) -> set[str]:
    """The names in these locks; markers may pin one name several times."""
    return {normal(line) for lock in locks for line in LOCKS[lock].splitlines() if "==" in line}


def needed(
    requirements: Iterable[str], requires: Callable[[str], Iterable[str] | None] = metadata.requires
) -> set[str]:
    """The packages that these requirements need on this machine, with extras and markers; else as installed here."""
    wanted, found = [(Requirement(each), "") for each in requirements], set[str]()
    seen = set[tuple[str, str]]()
    while wanted:
        requirement, of_extra = wanted.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": of_extra}):
            continue
        name = normal(requirement.name)
        found.add(name)
        for extra in {"", *requirement.extras} - {each for package, each in seen if package == name}:
            seen.add((name, extra))
            wanted += [(Requirement(each), extra) for each in requires(name) or ()]
    return found


def test_the_locks_hold_everything_that_is_needed():
    """`pip check` does not look at extras, so the walk over all requirements is made here."""
    project, groups = PROJECT["project"], PROJECT["dependency-groups"]
    run = [*project["dependencies"], *project["optional-dependencies"]["tui"], *groups["build"]]
    test = [*run, *groups["dev"], *(each for extra in project["optional-dependencies"].values() for each in extra)]
    assert needed(run) - locked("run") == set(), "cure: make lock"
    assert needed(test) - locked("run", "test") == set(), "cure: make lock"
    assert {normal(each) for each in groups["bench"]} <= locked(*LOCKS), "cure: make lock"


def test_no_package_is_in_two_locks():
    """Two locks could disagree about its version, and the second would change what the first one installed."""
    assert [sorted(locked(one) & locked(other)) for one, other in combinations(LOCKS, 2)] == [[]] * 6


def test_running_needs_no_test_tools_and_no_peers():
    groups = PROJECT["dependency-groups"]
    assert locked("run") & {normal(each) for each in [*groups["dev"], *groups["bench"]]} == set()


def test_the_lock_for_running_holds_nothing_else():
    """Neither an extra that running does without, nor what only a test tool brings."""
    project, groups = PROJECT["project"], PROJECT["dependency-groups"]
    run = [*project["dependencies"], *project["optional-dependencies"]["tui"], *groups["build"]]
    everywhere = {normal(line) for line in LOCKS["run"].splitlines() if "==" in line and ";" not in line}
    assert everywhere - needed(run) == set(), "cure: make lock"


def test_nobody_is_told_to_install_another_project():
    """`pollux` on the package index is not ours; the distribution is `pollux-scheduler`."""
    files = subprocess.run(["git", "ls-files"], cwd=REPOSITORY, capture_output=True, text=True, check=False).stdout
    paths = [REPOSITORY / name for name in files.splitlines()] or list(REPOSITORY.rglob("*.*"))
    wrong = []
    for path in paths:
        if path.suffix in {".lock", ".svg"} or not path.is_file() or path == Path(__file__):
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            if re.search(r"\bpollux\[|(pip|pipx|uv)( tool)? (install|add) [^.\n]*?\bpollux(?![-\w./])", line):
                wrong.append(f"{path.relative_to(REPOSITORY)}:{number}: {line.strip()}")
    assert wrong == []


def decisions() -> dict[str, Path]:
    """The pages by number; a number has one page."""
    found = sorted((REPOSITORY / "docs" / "decisions").glob("0*.md"))
    numbers = [path.name[:4] for path in found]
    assert len(set(numbers)) == len(numbers), numbers
    return dict(zip(numbers, found, strict=True))


def test_the_index_of_decisions_lists_each_once():
    index = (REPOSITORY / "docs" / "decisions" / "README.md").read_text()
    listed = re.findall(r"^- \[\d{4}\]\((\S+)\)", index, re.MULTILINE)
    assert sorted(listed) == [path.name for path in decisions().values()], "cure: a line in docs/decisions/README.md"


def test_a_decision_that_is_named_is_there_or_was_replaced_by_name():
    """`decision 0041` in code, pages and other decisions; what was folded into another one is named only there."""
    there, wrong = decisions(), []
    files = [path for root in ("src", "tests", "docs", "benchmarks") for path in (REPOSITORY / root).rglob("*.*")]
    for path in [*files, *REPOSITORY.glob("*.md")]:
        if path.suffix not in {".py", ".md", ".sql", ".lua", ".toml"} or path.name == "test_repository.py":
            continue
        named = re.findall(r"decisions?[ /](\d{4})|^Superseded.*\[(\d{4})\]", path.read_text(), re.MULTILINE)
        wrong += [f"{path}: {number}" for pair in named for number in pair if number and number not in there]
    assert wrong == []


def test_the_command_tells_the_version_of_our_distribution():
    done = subprocess.run([BIN / "pollux", "--version"], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == f"pollux {metadata.version('pollux-scheduler')}\n"


def test_the_package_declares_what_it_imports():
    assert imported() - declared() == set()


def test_the_package_declares_only_what_it_imports():
    assert declared() - imported() - NEVER_IMPORTED == set()


def test_no_name_of_a_test_file_stands_in_two_rings():
    files = Counter(path.name for path in (REPOSITORY / "tests").rglob("test_*.py"))
    assert [name for name, count in files.items() if count > 1] == []
