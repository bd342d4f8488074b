"""How fast is a line on PostgreSQL?  Next to PgQueuer at its best batch, to Procrastinate, and to a raw insert.

All talk to one server on loopback that syncs every commit.  Peers stop the clock when the last handler has run; ours
stops it when the last run is settled, with leases, fences, history and feed written and read.
"""

from __future__ import annotations

import re
import time
from functools import partial

from benchmarks import ours, postgres_peers
from benchmarks.servers import PostgresPlace, costed, new_database, postgres_server
from benchmarks.session import Session
from benchmarks.shared_line import pickup as picked_up
from benchmarks.shared_line import stock as stocked

BATCHES = (10, 100, 500, 1_000)
SLOTS = (1, 5, 10)
SEATS = 100
PGQUEUER_FLOOR, PROCRASTINATE_FLOOR = 0.7, 10.0
ENQUEUE_FLOOR = 0.3
PICKUP_CEILING = 1.0
WORKER_MAX, LEADER_MAX, POLLING_MAX = 0.2, 0.5, 1.2
SETTLED_S = 5.0
LOGGED = ("log_statement=all", "log_line_prefix=%d|", "log_connections=off")
SENT = re.compile(r"^(?P<database>\w+)\|LOG:  (?:statement|execute [^:]*): (?P<text>.*)$", re.MULTILINE)


def drain(session: Session) -> None:
    n, slow_n = (10_000, 500) if session.quick else (40_000, 2_000)
    with postgres_server(session) as place:
        batch, has_pool = calibrate_pgqueuer(session, place, n // 4)
        slots = calibrate_procrastinate(session, place, slow_n // 2)
        pgqueuer, procrastinate = f"pgqueuer, batch {batch}", f"procrastinate, {slots}"
        seats = dict.fromkeys((batch, SEATS))
        systems = {
            pgqueuer: partial(drain_pgqueuer, session, place, n, batch, has_pool=has_pool),
            procrastinate: partial(drain_procrastinate, session, place, slow_n, slots),
        }
        systems |= {f"pollux, {each} seats": partial(drain_ours, session, place, n, each) for each in seats}
        found = session.interleave(systems)
    session.publish(
        f"pgqueuer: batch {batch} over {'a pool' if has_pool else 'one connection'}, as many handlers at once as come, "
        f"{n:,} jobs; procrastinate: concurrency {slots}, {slow_n:,} jobs"
    )
    session.publish(
        f"pollux: as many seats as pgqueuer's batch, and {SEATS}; leader and worker in one process, {n:,} runs"
    )
    rates = session.take(found, "rate", "drain", "runs/s")
    session.take(found, "cpu_us", "CPU of the worker", "us/run")
    session.take(found, "server_us", "CPU of the server", "us/run")
    ours_best, usual = rates[f"pollux, {batch} seats"], rates[f"pollux, {SEATS} seats"]
    session.at_least(
        f"drain at {batch} seats / {pgqueuer}",
        ours_best / rates[pgqueuer],
        PGQUEUER_FLOOR,
        note=f"at {SEATS} seats {usual / rates[pgqueuer]:.2f} x; aim 1 x",
    )
    session.at_least(f"drain at {SEATS} seats / {procrastinate}", usual / rates[procrastinate], PROCRASTINATE_FLOOR)


def calibrate_pgqueuer(session: Session, place: PostgresPlace, n: int) -> tuple[int, bool]:
    rates = {
        (batch, has_pool): drain_pgqueuer(session, place, n, batch, has_pool=has_pool)["rate"]
        for batch in BATCHES
        for has_pool in (False, True)
    }
    best = max(rates, key=rates.__getitem__)
    told = ", ".join(f"{batch}{' pool' if pool else ''}: {rate:,.0f}/s" for (batch, pool), rate in rates.items())
    session.say(f"pgqueuer by batch: {told}; {best[0]}{' pool' if best[1] else ''} it is")
    return best


def calibrate_procrastinate(session: Session, place: PostgresPlace, n: int) -> int:
    rates = {slots: drain_procrastinate(session, place, n, slots)["rate"] for slots in SLOTS}
    best = max(rates, key=rates.__getitem__)
    session.say(
        f"procrastinate by slots: {', '.join(f'{s}: {rate:,.0f}/s' for s, rate in rates.items())}; {best} it is"
    )
    return best


def drain_pgqueuer(session: Session, place: PostgresPlace, n: int, batch: int, *, has_pool: bool) -> dict[str, float]:
    with new_database(place) as url:
        session.alone(postgres_peers.fill_pgqueuer, url=url, n=n)
        return costed(
            place,
            n,
            partial(session.alone, postgres_peers.drain_pgqueuer, url=url, n=n, batch=batch, has_pool=has_pool),
        )


def drain_procrastinate(session: Session, place: PostgresPlace, n: int, slots: int) -> dict[str, float]:
    with new_database(place) as url:
        session.alone(postgres_peers.fill_procrastinate, url=url, n=n)
        return costed(place, n, partial(session.alone, postgres_peers.drain_procrastinate, url=url, n=n, slots=slots))


def drain_ours(session: Session, place: PostgresPlace, n: int, seats: int) -> dict[str, float]:
    with new_database(place) as url:
        session.alone(ours.fill, url=url, n=n)
        return costed(place, n, partial(session.alone, ours.drain, url=url, n=n, seats=seats))


def enqueue(session: Session) -> None:
    n = 10_000 if session.quick else 50_000
    with postgres_server(session) as place:

        def in_new(function, **arguments):
            def once() -> dict[str, float]:
                with new_database(place) as url:
                    return costed(place, n, partial(session.alone, function, url=url, n=n, **arguments))

            return once

        found = session.interleave(
            {
                "raw unnest insert": in_new(postgres_peers.raw_unnest, is_keyed=False),
                "raw unnest insert, id indexed": in_new(postgres_peers.raw_unnest, is_keyed=True),
                "pollux": in_new(ours.enqueue),
                "pgqueuer": in_new(postgres_peers.fill_pgqueuer, has_body=True),
                "procrastinate": in_new(postgres_peers.fill_procrastinate, has_body=True),
            }
        )
    session.publish(f"200 bytes a run, {ours.BATCH} in a call and a commit, {n:,} runs, one connection each")
    rates = session.take(found, "rate", "enqueue", "runs/s")
    session.take(found, "server_us", "CPU of the server", "us/run")
    session.at_least(
        "enqueue_many / raw unnest insert",
        rates["pollux"] / rates["raw unnest insert"],
        ENQUEUE_FLOOR,
        note=f"{rates['pollux'] / rates['raw unnest insert, id indexed']:.2f} x with its id indexed",
    )


def pickup(session: Session) -> None:
    n = 100 if session.quick else 200
    with postgres_server(session) as place:

        def between(module) -> dict[str, float]:
            with new_database(place) as url:
                return picked_up(session, module.serve_marks, module.ask_marks, n, url=url)

        found = session.interleave({"pgqueuer": partial(between, postgres_peers), "pollux": partial(between, ours)})
    p50 = session.take(found, "p50_ms", "pickup p50", "ms")
    session.take(found, "p99_ms", "pickup p99", "ms")
    lost = session.take(found, "lost", "runs not seen", "runs")
    session.at_most("pickup p50 / pgqueuer's", p50["pollux"] / p50["pgqueuer"], PICKUP_CEILING)
    session.at_most("runs lost by pollux", lost["pollux"], 0, "runs")


def idle(session: Session) -> None:
    """Statements as the server logs them: each is a round trip of its own."""
    seconds = 30 if session.quick else 60
    watched = (
        ("worker", False, "", WORKER_MAX),
        ("leader", True, "", LEADER_MAX),
        ("worker, poll-only", False, "?listen=false", POLLING_MAX),
        ("leader, poll-only", True, "?listen=false", POLLING_MAX),
    )
    with postgres_server(session, *LOGGED) as place:
        for name, plans, options, limit in watched:
            with new_database(place) as url:
                session.alone(ours.declare, url=url)
                arguments = {"url": url + options, "plans": plans, "runs": not plans, "settled_s": SETTLED_S}
                with session.child(ours.idle, **arguments) as child:
                    child.ready()
                    begun = place.log.stat().st_size
                    time.sleep(seconds)
                    sent = statements(place, url.rpartition("/")[2], begun)
                    child.answer()
            told = ", ".join(f"{sent.count(each)} {each}" for each in sorted(set(sent))) or "nothing"
            session.say(f"{name}, {seconds} s: {told}")
            rate = session.figure(f"pollux, {name}", "statements idle", [len(sent) / seconds], "1/s")
            session.at_most(f"round trips of an idle {name}", rate, limit, "1/s")


def statements(place: PostgresPlace, database: str, begun: int) -> list[str]:
    """The first words of all that was sent to a database since the log was so long."""
    with place.log.open() as log:
        log.seek(begun)
        found = SENT.finditer(log.read())
    return [" ".join(each["text"].split()[:3]) for each in found if each["database"] == database]


def stock(session: Session) -> None:
    with postgres_server(session) as place, new_database(place) as small, new_database(place) as large:
        stocked(session, small, large, "no waiting, in one process")
        for url, name in ((small, "small stock"), (large, "large stock")):
            database = url.rpartition("/")[2]
            [size] = place.ask(f"SELECT pg_database_size('{database}')")
            session.figure(f"pollux, {name}", "size of the database", [size / 1e6], "MB")
