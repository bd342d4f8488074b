"""Every writing verb of the store, killed at every failpoint on its way: the steps of `steps.py`, over and over.

    python -m tests.chaos.script <folder>         sweep: kill at every failpoint, compare, repeat, compare

A process that dies in a call has no answer, so the next one repeats that very call.  In between the store holds what
it held before that call or after it, and never a part; in the end it holds what it holds without kills.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import apsw

os.environ.setdefault("POLLUX_CRASH_AT", "-1")  # read when the store is imported: failpoints count, and none kills yet

from pollux.store.sqlite import SqliteStore
from pollux.store.sqlite.failpoint import failpoint
from tests.chaos.steps import Claim, Step, contents, steps

POINTS_MAX = 1_000
FILE = "pollux.db"


# one process


async def play(file: Path, step: Step | None) -> str:
    """Open the store, take the step (None: there is none), and tell what the store held before it."""
    store = SqliteStore(file)
    await store.open()
    try:
        before = await contents(store)
        if step is not None:
            await step(store)
        return before
    finally:
        await store.close()


def forked(run: Callable[[], Any]) -> int:
    """Run it in a child of its own; the answer is its exit code, or minus the signal that ended it."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            run()
            code = 0
        except BaseException:  # noqa: BLE001  this is the end of the child; the parent reads its exit code
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


# the sweep


class Chapter(NamedTuple):
    """One step, the files as they were before it, and what the store held before and after it."""

    number: int
    step: Step | None
    files: Path
    before: str
    after: str


def written(folder: Path) -> list[Chapter]:
    """The whole script, played once without a fault; the first chapter is the making of the store itself."""
    chapters, play_steps = [], [None, *steps()]
    nothing = folder / "0"
    nothing.mkdir()
    for number, step in enumerate(play_steps):
        here, there = folder / str(number), folder / str(number + 1)
        shutil.copytree(here, there)
        told = folder / f"{number}.json"
        assert forked(lambda: told.write_text(_told(there, step))) == 0  # noqa: B023  it is run here and now
        before, after = json.loads(told.read_text())
        chapters.append(Chapter(number, step, here, before if number else "", after))
    return chapters


def _told(folder: Path, step: Step | None) -> str:
    before = asyncio.run(play(folder / FILE, step))
    return json.dumps([before, asyncio.run(play(folder / FILE, None))])


def crash(chapter: Chapter, here: Path, point: int) -> list[str] | None:
    """Die in the step at a failpoint, look, take the step again, look again: what is wrong.  None: it lived."""
    shutil.copytree(chapter.files, here)

    def die() -> None:
        failpoint._crash_at = point
        asyncio.run(play(here / FILE, chapter.step))

    def go_on() -> None:
        told = _told(here, None if isinstance(chapter.step, Claim) else chapter.step)
        if isinstance(chapter.step, Claim) and json.loads(told)[0] != chapter.after:  # else nobody has its token
            told = _told(here, chapter.step)
        (here / "told").write_text(told)

    code = forked(die)
    if code == 0:
        return None
    assert code == -signal.SIGKILL, f"in step {chapter.number} at failpoint {point} it ended with {code}"
    place = f"step {chapter.number}, failpoint {point}"
    if forked(go_on) != 0:
        return [f"{place}: it cannot go on; see {here}"]
    left, end = json.loads((here / "told").read_text())
    wrong = []
    if chapter.number and left not in (chapter.before, chapter.after):
        wrong.append(f"{place}: half done; see {here}")
    if end != chapter.after:
        wrong.append(f"{place}: taken again, the store holds something else; see {here}")
    connection = apsw.Connection(str(here / FILE))
    sound = [row[0] for row in connection.execute("PRAGMA integrity_check")]
    connection.close()
    return wrong if sound == ["ok"] else [*wrong, f"{place}: the file is broken: {sound}"]


def sweep(folder: Path) -> dict[str, Any]:
    """Die in every step at its first failpoint, its second, ... until none is reached; tell what is wrong."""
    wrong: list[str] = []
    points: dict[int, int] = {}
    for chapter in written(folder):
        for point in range(1, POINTS_MAX):
            here = folder / f"{chapter.number}-{point}"
            found = crash(chapter, here, point)
            if found is None:
                points[chapter.number] = point - 1
                break
            wrong += found
            if not found:
                shutil.rmtree(here)
    return {"steps": len(points), "kills": sum(points.values()), "never": _never(points), "wrong": wrong}


def _never(points: dict[int, int]) -> list[int]:
    """Steps in which there was no place to die."""
    return [number for number, count in points.items() if count == 0]


if __name__ == "__main__":
    print(json.dumps(sweep(Path(sys.argv[1]))))
