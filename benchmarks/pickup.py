"""How soon does another, idle process start a run?  From before the enqueue call to the first line of the handler.

Two processes on one SQLite file, CLOCK_MONOTONIC in both (on Linux it is the same clock), 200 runs 20 ms apart.
"""

from __future__ import annotations

from benchmarks import huey_peer, ours
from benchmarks.session import Session
from benchmarks.shared_line import pickup

CEILING = 0.1


def measure(session: Session) -> None:
    n = 100 if session.quick else 200

    def huey() -> dict[str, float]:
        with session.scratch() as folder:
            return pickup(session, huey_peer.serve_marks, huey_peer.ask_marks, n, file=str(folder / "bench.db"))

    def pollux() -> dict[str, float]:
        with session.scratch() as folder:
            return pickup(session, ours.serve_marks, ours.ask_marks, n, url=f"sqlite:///{folder / 'bench.db'}")

    found = session.interleave({"huey": huey, "pollux": pollux})
    for key in ("p50_ms", "p99_ms"):
        seen = session.take(found, key, f"pickup {key[:3]}", "ms")
        session.at_most(f"pickup {key[:3]} / huey's", seen["pollux"] / seen["huey"], CEILING)
    lost = session.take(found, "lost", "runs not seen", "runs")
    session.at_most("runs lost by pollux", lost["pollux"], 0, "runs")
