"""What does a node cost that has nothing to do?  Statements a second and CPU, leader and dispatcher running."""

from __future__ import annotations

import asyncio
import time

from benchmarks import huey_peer
from benchmarks.child import parent_is_done, run_async, say_ready, wait_for_parent
from benchmarks.session import Session

STATEMENTS_MAX = 1.0
CPU_MAX_S = 0.3  # of 60 s
SETTLED_S = 3.0


def measure(session: Session) -> None:
    seconds = 20 if session.quick else 60
    session.say(f"watching two idle processes for {seconds} s")
    with session.scratch() as folder:
        ours = session.child(idle_ours, file=str(folder / "pollux.db"))
        peer = session.child(idle_huey, file=str(folder / "huey.db"))
        with ours as our_child, peer as peer_child:
            our_child.ready()
            peer_child.ready()
            time.sleep(seconds)
            seen, other = our_child.answer(), peer_child.answer()
    per_minute = 60 / seen["seconds"]
    session.figure("huey", "CPU idle", [other["cpu_s"] * 60 / other["seconds"]], "s/min")
    cpu = session.figure("pollux", "CPU idle", [seen["cpu_s"] * per_minute], "s/min")
    asked = session.figure("pollux", "statements idle", [seen["statements"] / seen["seconds"]], "1/s")
    session.figure("pollux", "commits idle", [seen["commits"] / seen["seconds"]], "1/s")
    session.at_most("statements idle, data_version apart", asked, STATEMENTS_MAX, "1/s")
    session.at_most("CPU of 60 s idle", cpu, CPU_MAX_S, "s")


def idle_ours(file: str) -> dict[str, float]:
    return run_async(_idle_ours(file))


async def _idle_ours(file: str) -> dict[str, float]:
    from pollux import Pollux
    from pollux.store.urls import open_store

    store = open_store(f"sqlite:///{file}")
    app = Pollux(store)

    @app.job()
    async def noop(ctx) -> None: ...

    async with app:
        await asyncio.sleep(SETTLED_S)
        begun, cpu = time.monotonic(), time.process_time()
        statements, commits = store.stats.statements, store.stats.commits
        say_ready()
        await parent_is_done()
        return {
            "seconds": time.monotonic() - begun,
            "cpu_s": time.process_time() - cpu,
            "statements": store.stats.statements - statements,
            "commits": store.stats.commits - commits,
        }


def idle_huey(file: str) -> dict[str, float]:
    huey = huey_peer.open_huey(file)
    consumer = huey.create_consumer(periodic=False)
    consumer.start()
    time.sleep(SETTLED_S)
    begun, cpu = time.monotonic(), time.process_time()
    say_ready()
    wait_for_parent()
    seen = {"seconds": time.monotonic() - begun, "cpu_s": time.process_time() - cpu}
    consumer.stop(graceful=True)
    return seen
