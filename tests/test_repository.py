"""Does the workshop keep its own promises?  The lock, the Makefile, the dependencies."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
MAKEFILE = (REPOSITORY / "Makefile").read_text()
LOCK = (REPOSITORY / "requirements.lock").read_text()
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())

# Where the name to import is not the name to install; tzdata is data, which zoneinfo finds by itself, and httptools
# is found by uvicorn.
INSTALLED_AS = {"yaml": "pyyaml"}
NEVER_IMPORTED = {"httptools", "tzdata"}
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
    for name in ("Makefile", "requirements.lock", "pyproject.toml"):
        (tmp_path / name).symlink_to(REPOSITORY / name)

    made = make("test", f"PYTHON={python}", cwd=tmp_path, path=str(tmp_path))

    assert made.returncode != 0
    assert complaint in made.stderr
    assert not (tmp_path / ".venv").exists()


def test_the_ci_runs_what_people_run():
    script = REPOSITORY / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert "make test" in script.read_text()


def test_the_lock_names_no_address():
    assert not re.search(r"://|--(extra-)?index-url|--find-links|^file:| @ ", LOCK, re.MULTILINE)


def test_the_lock_pins_everything_by_hash():
    entries = LOCK.replace("\\\n", " ").splitlines()
    loose = [entry for entry in entries if entry.strip() and not re.match(r"[\w.-]+==\S+ .*--hash=sha256:", entry)]
    assert loose == []


def test_the_lock_holds_everything_that_is_declared():
    groups = [item for group in PROJECT["dependency-groups"].values() for item in group]
    locked = {normal(line) for line in LOCK.splitlines() if "==" in line}
    assert declared() | {normal(item) for item in groups} <= locked, "cure: make lock"


def test_the_package_declares_what_it_imports():
    assert imported() - declared() == set()


def test_the_package_declares_only_what_it_imports():
    assert declared() - imported() - NEVER_IMPORTED == set()
