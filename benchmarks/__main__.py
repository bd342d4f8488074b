"""`python -m benchmarks [names] [--quick] [--before CHECKOUT] …`: measure, show progress, print two tables."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from benchmarks.report import bounds_table, figures_table, machine, write_json
from benchmarks.session import Session

BENCHES = {
    "enqueue": "accept runs durably, next to a raw insert loop",
    "drain": "run what is queued, next to Huey",
    "pickup": "how soon another idle process starts a run, next to Huey",
    "idle": "what a node costs that has nothing to do",
    "firing": "100,000 interval jobs, next to APScheduler and to bare timers",
    "http": "10,000 HTTP targets on loopback, next to a bare aiohttp loop, and with 3 % of them dead",
    "million": "1,000,000 stored jobs: start, memory, and cost by what is due",
    "api": "the HTTP API, next to an empty FastAPI route, to the verbs in process, and beside the firings",
    "help": "`pollux --help`, next to an empty Python",
    "redis-drain": "run what is queued on Redis, next to Dramatiq, Taskiq, SAQ and Huey",
    "redis-enqueue": "accept runs on Redis, next to the same peers and to a bare script",
    "redis-workers": "two workers against one on Redis, next to a bare stream loop",
    "redis-pickup": "how soon another idle process starts a run on Redis, next to a bare stream loop",
    "redis-idle": "round trips to Redis of a worker and of a leader with nothing to do",
    "redis-stock": "claims on Redis at a small and at a large stock",
    "postgres-drain": "run what is queued on PostgreSQL, next to PgQueuer and Procrastinate",
    "postgres-enqueue": "accept runs on PostgreSQL, next to a raw insert of arrays",
    "postgres-pickup": "how soon another idle process starts a run on PostgreSQL, next to PgQueuer",
    "postgres-idle": "round trips to PostgreSQL of a worker and of a leader with nothing to do",
    "postgres-stock": "claims on PostgreSQL at a small and at a large stock",
}
LONG = {"soak": "one server under load and faults for 20 minutes: does anything grow?"}  # only if it is named
PAIRS = 10  # "no slower than before" is the median of so many
SERVERS = ("redis", "postgres")  # each stands for all its benches
MODULES = {"http": "http_targets"}  # where the name of the bench is not enough for a file


def main() -> int:
    options = read_options()
    session = Session(
        quick=options.quick,
        rounds=options.rounds,
        folder=options.folder,
        minutes=options.minutes,
        before=options.before,
    )
    about = machine(options.folder or Path(tempfile.gettempdir()))
    print(about, file=sys.stderr, flush=True)
    if os.getloadavg()[0] > 1.0:
        print(
            "the machine is busy with something else: ratios are rough, absolute figures mean little", file=sys.stderr
        )
    broken = [name for name in options.names if not measure(session, name)]
    print(f"\n{about}\n")
    if session.settings:
        print("\n".join(f"- {line}" for line in session.settings), end="\n\n")
    if session.bounds:
        print(bounds_table(session.bounds), end="\n\n")
    if session.figures:
        print(figures_table(session.figures))
    if options.json:
        write_json(options.json, session.figures, session.bounds, about, session.settings)
    if broken:
        print(f"\nbroken, not measured: {', '.join(broken)}")
    return 1 if broken else 0


def measure(session: Session, name: str) -> bool:
    """Run one bench; the others go on if it breaks."""
    session.bench = name
    print(f"{name}: {(BENCHES | LONG)[name]}", file=sys.stderr, flush=True)
    begun = time.monotonic()
    try:
        measure_of(name)(session)
    except Exception:  # noqa: BLE001  whatever broke it, the figures of the others are wanted
        traceback.print_exc()
        return False
    session.say(f"took {time.monotonic() - begun:.0f} s")
    return True


def measure_of(name: str) -> Callable[[Session], None]:
    server, _, what = name.partition("-")
    module = f"on_{server}" if server in SERVERS else MODULES.get(name, name)
    function: Callable[[Session], None] = getattr(importlib.import_module(f"benchmarks.{module}"), what or "measure")
    return function


def named(names: list[str]) -> list[str]:
    """The benches that were named, whole or by their server; none: all."""
    every = [each for name in names for each in BENCHES if name in SERVERS and each.startswith(f"{name}-")]
    return [name for name in names if name not in SERVERS] + every if names else list(BENCHES)


def read_options() -> argparse.Namespace:
    listed = "\n".join(f"  {name:<17}{what}" for name, what in (BENCHES | LONG).items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=f"Measure Pollux next to peers and raw loops, in one run.\n\nbenches (all but soak):\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "names", nargs="*", metavar="name", help="benches to run; redis or postgres: all of that server"
    )
    parser.add_argument("--quick", action="store_true", help="smaller and fewer: a few minutes, rougher figures")
    parser.add_argument("--rounds", type=int, metavar="N", help="interleaved rounds (default 5, with --quick 1)")
    parser.add_argument("--minutes", type=float, default=20, metavar="N", help="how long to soak (default 20)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there, too")
    parser.add_argument(
        "--folder", type=Path, metavar="DIR", help="where the stores lie (default: the temporary folder)"
    )
    parser.add_argument(
        "--before",
        type=Path,
        metavar="CHECKOUT",
        help="measure our systems in pairs, here and in this earlier checkout, set up by its own `make .venv/.bench`",
    )
    options = parser.parse_args()
    options.names = named(options.names)
    unknown = [name for name in options.names if name not in BENCHES | LONG]
    if unknown:
        parser.error(f"no bench is called {unknown[0]!r}; there are {', '.join(BENCHES | LONG)}")
    if options.rounds is None:
        options.rounds = PAIRS if options.before else 1 if options.quick else 5
    if options.before is not None:
        options.before = options.before.resolve()
        if not (options.before / ".venv" / "bin" / "python").is_file():
            parser.error(f"--before: {options.before} has no .venv; cure: make -C {options.before} .venv/.bench")
    if options.rounds < 1:
        parser.error("--rounds: at least 1")
    return options


if __name__ == "__main__":
    sys.exit(main())
