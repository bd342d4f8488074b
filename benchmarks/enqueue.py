"""How fast are runs accepted for good?  `enqueue_many` of whole lists, next to a raw loop that only inserts rows.

Both write 200 bytes of payload a row with `synchronous=FULL` and WAL on the same disk; the raw loop commits every
100 rows and keeps no index, so it is the floor of what SQLite costs from Python.
"""

from __future__ import annotations

import secrets
import time

from benchmarks import ours
from benchmarks.huey_peer import fill
from benchmarks.ours import PAYLOAD
from benchmarks.session import Session

BATCH = 100
FLOOR = 0.3


def measure(session: Session) -> None:
    n = 5_000 if session.quick else 20_000

    def in_scratch(function, **arguments):
        def once() -> dict[str, float]:
            with session.scratch() as folder:
                return session.alone(function, file=str(folder / "bench.db"), n=n, **arguments)

        return once

    def ours_once() -> dict[str, float]:
        with session.scratch() as folder:
            return session.alone(ours.enqueue, url=f"sqlite:///{folder / 'bench.db'}", n=n)

    found = session.interleave(
        {
            "raw apsw loop": in_scratch(raw_loop, is_keyed=False),
            "raw apsw loop, id indexed": in_scratch(raw_loop, is_keyed=True),
            "pollux": ours_once,
            "huey": in_scratch(fill),
        }
    )
    rates = session.take(found, "rate", f"enqueue {n:,} runs", "runs/s")
    session.at_least("enqueue_many / raw insert loop", rates["pollux"] / rates["raw apsw loop"], FLOOR)


def raw_loop(file: str, n: int, is_keyed: bool) -> dict[str, float]:  # noqa: FBT001  JSON arguments
    import apsw
    import msgspec

    connection = apsw.Connection(file)
    connection.pragma("journal_mode", "wal")
    connection.pragma("synchronous", "full")
    key = "PRIMARY KEY" if is_keyed else "NOT NULL"
    connection.execute(
        f"CREATE TABLE runs (id TEXT {key}, job_id TEXT, payload BLOB, priority INTEGER, due_ms INTEGER)"
    )
    due_ms = time.time_ns() // 1_000_000
    payload = msgspec.json.encode(PAYLOAD)
    assert len(payload) == 200
    ids = [f"{due_ms:012x}{secrets.token_hex(8)}" for _ in range(n)]
    begun = time.monotonic()
    for start in range(0, n, BATCH):
        with connection:
            rows = [(run_id, "noop", payload, 2, due_ms) for run_id in ids[start : start + BATCH]]
            connection.executemany("INSERT INTO runs VALUES (?, ?, ?, ?, ?)", rows)
    took = time.monotonic() - begun
    connection.close()
    return {"rate": n / took}
