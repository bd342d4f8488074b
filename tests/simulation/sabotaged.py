"""How many seeds it takes until a world finds what was broken on purpose.

    python -m tests.simulation.sabotaged                     every chosen row, over at most so many seeds
    python -m tests.simulation.sabotaged S1.memory back      these rows

Each row of the sabotage catalogue is put into a copy of the source, on which worlds run until one breaks.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.sabotage import catalogue
from tests.sabotage.copy import REPOSITORY, Patch, Sabotage

SEEDS_MAX = 60
WORLD = ["--minutes", "3", "--until-broken"]
ENGINE = ("store/memory/", "runtime/", "plan/", "outcome/", "clock.py")
CHOSEN = (
    *("S1.memory", "S2.memory", "S3.memory", "S4.memory", "S5.memory", "S9.memory", "S10", "S11.memory"),
    *("S6.moves", "S6.feed", "S6.once", "back", "set-right", "skips", "silent.memory", "leap.memory"),
    "force-run",
)
FORCE_RUN = Sabotage(  # the check of overlaps as it was before: in the caller, so that two callers both pass it
    "force-run",
    "two that force a run of one job at once both get one",
    (Patch("store/memory/runs.py", "elif unless_live and (live", "elif False and (live"),),
    (),
)


def rows() -> dict[str, Sabotage]:
    found = {FORCE_RUN.name: FORCE_RUN}
    for group in vars(catalogue).values():
        if isinstance(group, tuple):
            found |= {row.name: row for row in group if isinstance(row, Sabotage)}
    return found


def seeds_needed(row: Sabotage, seeds_max: int = SEEDS_MAX) -> str:
    """What the worlds of a copy with this fault came to: the last line, and what broke."""
    with TemporaryDirectory() as folder:
        source = Path(folder) / "src"
        shutil.copytree(REPOSITORY / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        for patch in row.patches:
            file = source / "pollux" / patch.file
            text = file.read_text()
            if text.count(patch.old) != 1:
                return f"does not fit: {patch.old!r} is in {patch.file} {text.count(patch.old)} times"
            file.write_text(text.replace(patch.old, patch.new))
        command = [sys.executable, "-m", "pollux.testing.world", "--seeds", str(seeds_max), *WORLD]
        done = subprocess.run(
            command,
            env=os.environ | {"PYTHONPATH": str(source)},
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
    lines = done.stdout.splitlines()
    if done.returncode == 0:
        return f"not found in {seeds_max}"
    return f"{lines[-1]}: {lines[-2][:150]}" if len(lines) > 1 else done.stderr[-300:]


def main() -> None:
    known = rows()
    for name in sys.argv[1:] or CHOSEN:
        row = known[name]
        print(f"{name} ({row.broken})\n    {seeds_needed(row)}", flush=True)


if __name__ == "__main__":
    main()
