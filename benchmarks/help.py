"""How soon does the command answer?  `pollux --help`, next to a Python that does nothing."""

from __future__ import annotations

import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from benchmarks.session import Session, python_of

CEILING = 5.0
TIMES = 10


def measure(session: Session) -> None:
    found = session.interleave(
        {
            "python -c pass": partial(timed, [sys.executable, "-c", "pass"]),
            "pollux --help": lambda: timed([str(Path(python_of(session.root)).with_name("pollux")), "--help"]),
        },
        rounds=TIMES,
    )
    took = session.take(found, "ms", "start to end", "ms")
    session.at_most("pollux --help / python -c pass", took["pollux --help"] / took["python -c pass"], CEILING)


def timed(command: list[str]) -> dict[str, float]:
    begun = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return {"ms": (time.monotonic() - begun) * 1000}
