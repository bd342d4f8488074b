"""Copy of source and tests in which a patch is applied, and whose tests run on the copy's source."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

REPOSITORY = Path(__file__).parents[2]
COPIED = ("src", "tests")
SECONDS_MAX = 300
_RED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


class Patch(NamedTuple):
    """Exactly one place of a file, and what is put there."""

    file: str  # below src/pollux
    old: str
    new: str


class Sabotage(NamedTuple):
    name: str
    broken: str  # what is no longer done, in words
    patches: tuple[Patch, ...]
    tests: tuple[str, ...]  # what pytest is told to run


class Misfit(Exception):
    """The source has changed: the patch is not what it was written for."""


class Seen(NamedTuple):
    """How the chosen tests ended: the first that went red, or none."""

    caught_by: str
    seconds: float
    said: str


def patched(text: str, patch: Patch) -> str:
    """The text with the patch applied; it must fit at exactly one place and change something."""
    found = text.count(patch.old)
    if found != 1 or patch.old == patch.new:
        raise Misfit(f"patch no longer fits: src/pollux/{patch.file} has it {found} times: {patch.old!r}")
    return text.replace(patch.old, patch.new)


def misfits(sabotage: Sabotage, root: Path = REPOSITORY) -> list[str]:
    """What of it would not fit, without applying anything."""
    wrong = []
    texts: dict[str, str] = {}
    for patch in sabotage.patches:
        path = root / "src" / "pollux" / patch.file
        try:
            texts[patch.file] = patched(texts.get(patch.file) or path.read_text(), patch)
        except (Misfit, FileNotFoundError) as error:
            wrong.append(f"{sabotage.name}: {error}")
    return wrong


@contextmanager
def broken_copy(patches: Sequence[Patch]) -> Iterator[Path]:
    """A folder with the source, broken so, and the tests."""
    with TemporaryDirectory(prefix="pollux-sabotage-") as folder:
        root = Path(folder)
        for name in COPIED:
            shutil.copytree(REPOSITORY / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(REPOSITORY / "pyproject.toml", root)
        for patch in patches:
            path = root / "src" / "pollux" / patch.file
            path.write_text(patched(path.read_text(), patch))
        yield root


def run_tests(root: Path, tests: Sequence[str]) -> Seen:
    """Run them in the copy, on the copy's source, until the first goes red."""
    words = ["-x", "-q", "-rfE", "--tb=short", "--no-header", "-p", "no:cacheprovider", "-p", "tests.sabotage.witness"]
    begun = time.monotonic()
    code, said = _run([sys.executable, "-m", "pytest", *words, *tests], root, _variables(root))
    seconds = time.monotonic() - begun
    if code not in (0, 1):
        raise RuntimeError(f"pytest ended with {code}:\n{said[-6_000:]}")
    red = _RED.search(said)
    return Seen(red[1] if red else "", seconds, said[-6_000:])


def run_in(root: Path, *words: str) -> int:
    """Run a module of the copy, on the copy's source; what it says goes to our own terminal."""
    command = [sys.executable, "-m", *words]
    return subprocess.run(command, cwd=root, env=_variables(root), check=False).returncode


def _variables(root: Path) -> dict[str, str]:
    path = os.pathsep.join([str(root / "src"), str(root)])
    return {**os.environ, "PYTHONPATH": path, "POLLUX_SABOTAGE_ROOT": str(root), "PYTHONDONTWRITEBYTECODE": "1"}


def _run(command: list[str], folder: Path, variables: dict[str, str]) -> tuple[int, str]:
    """In a session of its own, which ends as a whole if it takes too long."""
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=SECONDS_MAX)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    return process.returncode, said
