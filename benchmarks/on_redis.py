"""How fast is a line on Redis?  Next to the best of five peers, to a bare stream loop, and to a bare script.

All talk to one server on loopback that syncs its log every second.  Peers stop the clock when the last handler has
run; ours stops it when the last run is settled, with leases, history and feed written and read.
"""

from __future__ import annotations

import os
import socket
import time
from functools import partial
from urllib.parse import urlsplit

from benchmarks import ours, redis_raw
from benchmarks.redis_peers import PEERS, Peer
from benchmarks.servers import RedisPlace, costed, redis_server
from benchmarks.session import Session
from benchmarks.shared_line import pickup as picked_up
from benchmarks.shared_line import side_by_side
from benchmarks.shared_line import stock as stocked

SEATS = (100, 10)
DRAIN_FLOOR, DRAIN_AIM = 3.0, 5.0
ENQUEUE_PEER_FLOOR, ENQUEUE_BARE_FLOOR = 3.0, 0.6
WORKERS_FLOOR = 0.9
PICKUP_CEILING = 2.0
WORKER_MAX, LEADER_MAX = 0.2, 0.5
SETTLED_S = 5.0
WRITES = frozenset({"hset", "hincrby", "zadd", "xadd", "zincrby", "set", "hdel", "zrem", "sadd", "xgroup"})


def drain(session: Session) -> None:
    n, peer_n = (10_000, 3_000) if session.quick else (40_000, 10_000)
    with redis_server(session) as place:
        best = {name: calibrate(session, place, name, peer, peer_n // 3) for name, peer in PEERS.items()}
        systems = {}
        for name, peer in PEERS.items():
            for slots in dict.fromkeys((best[name], 10)):
                systems[f"{name}, {slots}"] = partial(drain_peer, session, place, peer, peer_n, slots)
            session.publish(f"{name}: {best[name]} and 10 slots ({peer.told}), {peer_n:,} jobs")
        for seats in SEATS:
            systems[f"pollux, {seats} seats"] = partial(drain_ours, session, place, n, seats)
        session.publish(f"pollux: 100 and 10 seats, leader and worker in one process, {n:,} runs")
        found = session.interleave(systems)
    rates = session.take(found, "rate", "drain", "runs/s")
    session.take(found, "cpu_us", "CPU of the worker", "us/run")
    session.take(found, "server_us", "CPU of the server", "us/run")
    quickest = max((name for name in rates if "seats" not in name), key=rates.__getitem__)
    at_ten = max((name for name in rates if name.endswith(", 10")), key=rates.__getitem__)
    session.at_least(
        f"drain at 100 seats / {quickest}", rates["pollux, 100 seats"] / rates[quickest], DRAIN_FLOOR, note="aim 5 x"
    )
    session.at_least(
        f"drain at 10 seats / {at_ten}",
        rates["pollux, 10 seats"] / rates[at_ten],
        DRAIN_FLOOR,
        note=f"{rates['pollux, 10 seats'] / rates[quickest]:.2f} x {quickest}",
    )


def calibrate(session: Session, place: RedisPlace, name: str, peer: Peer, n: int) -> int:
    rates = {slots: drain_peer(session, place, peer, n, slots)["rate"] for slots in peer.slots}
    best = max(rates, key=rates.__getitem__)
    session.say(f"{name} by slots: {', '.join(f'{s}: {rate:,.0f}/s' for s, rate in rates.items())}; {best} it is")
    return best


def drain_peer(session: Session, place: RedisPlace, peer: Peer, n: int, slots: int) -> dict[str, float]:
    url = place.empty()
    session.alone(peer.fill, url=url, n=n)
    return costed(place, n, partial(session.alone, peer.drain, url=url, n=n, slots=slots))


def drain_ours(session: Session, place: RedisPlace, n: int, seats: int) -> dict[str, float]:
    url = place.empty()
    session.alone(ours.fill, url=url, n=n)
    return costed(place, n, partial(session.alone, ours.drain, url=url, n=n, seats=seats))


def enqueue(session: Session) -> None:
    n, peer_n = (10_000, 3_000) if session.quick else (50_000, 10_000)

    def peer_once(peer: Peer) -> dict[str, float]:
        return session.alone(peer.fill, url=place.empty(), n=peer_n, has_body=True)

    def written(function, *, extra: int) -> dict[str, float]:
        url = place.empty()
        before = place.calls()
        seen = costed(place, n + extra, partial(session.alone, function, url=url, n=n))
        after = place.calls()
        writes = sum(calls - before.get(name, 0) for name, calls in after.items() if name in WRITES)
        return seen | {"writes": writes / (n + extra)}

    with redis_server(session) as place:
        systems = {name: partial(peer_once, peer) for name, peer in PEERS.items()}
        systems |= {
            "bare script": partial(written, redis_raw.enqueue, extra=0),
            "pollux": partial(written, ours.enqueue, extra=ours.BATCH),
        }
        found = session.interleave(systems)
    session.publish(
        f"200 bytes a run; pollux and the bare script in calls of {ours.BATCH}, {n:,} runs; peers {peer_n:,}"
    )
    session.publish("dramatiq and huey: one after the other; taskiq and saq: 100 in flight (none has a call for many)")
    rates = session.take(found, "rate", "enqueue", "runs/s")
    session.take(found, "server_us", "CPU of the server", "us/run")
    writes = session.take(found, "writes", "write commands in the server", "1/run")
    best = max(PEERS, key=rates.__getitem__)
    session.at_least(f"enqueue_many / {best}", rates["pollux"] / rates[best], ENQUEUE_PEER_FLOOR)
    session.at_least(
        "enqueue_many / bare script",
        rates["pollux"] / rates["bare script"],
        ENQUEUE_BARE_FLOOR,
        note=f"writes a run: {writes['pollux']:.2f}, bare {writes['bare script']:.2f}",
    )


def workers(session: Session) -> None:
    """Two workers against one; nobody leads meanwhile, so that as many processes run as in the bare loop.

    What one worker and the server leave of the machine's processors is the most that a second one can gain.
    """
    n = 20_000 if session.quick else 60_000
    with redis_server(session) as place:

        def is_empty(key: str) -> bool:
            size = place.client.xlen if key == redis_raw.STREAM else place.client.zcard
            return size(key) == 0

        def ours_by(count: int) -> dict[str, float]:
            url = place.empty()
            session.alone(ours.fill, url=url, n=n)
            workers = [{"url": url, "seats": 100}] * count
            done = partial(is_empty, "pollux:live")
            return kept_busy(costed(place, n, partial(side_by_side, session, ours.work, workers, done)))

        def bare_by(count: int) -> dict[str, float]:
            url = place.empty()
            session.alone(redis_raw.fill, url=url, n=2 * n)
            workers = [{"url": url, "name": f"w{number}"} for number in range(count)]
            done = partial(is_empty, redis_raw.STREAM)
            return kept_busy(costed(place, 2 * n, partial(side_by_side, session, redis_raw.work, workers, done)))

        systems = {f"bare stream loop, {count}": partial(bare_by, count) for count in (1, 2)}
        systems |= {f"pollux, {count}": partial(ours_by, count) for count in (1, 2)}
        found = session.interleave(systems)
    session.publish(f"workers of 100 seats without a leader, {n:,} runs; the bare loop reads {redis_raw.COUNT} at once")
    rates = session.take(found, "rate", "drain by workers together", "runs/s")
    session.take(found, "cpu_us", "CPU of the workers", "us/run")
    session.take(found, "server_us", "CPU of the server", "us/run")
    busy = session.take(found, "busy", "workers and server keep busy", "processors")
    gains = {name: rates[f"{name}, 2"] / rates[f"{name}, 1"] for name in ("pollux", "bare stream loop")}
    told = "; ".join(
        f"{name} {gain:.2f} x, from {busy[f'{name}, 1']:.2f} to {busy[f'{name}, 2']:.2f} of {os.cpu_count()} processors"
        for name, gain in gains.items()
    )
    ratio = gains["pollux"] / gains["bare stream loop"]
    session.at_least("two workers / one, over the bare loop's", ratio, WORKERS_FLOOR, note=told)


def kept_busy(seen: dict[str, float]) -> dict[str, float]:
    return seen | {"busy": seen["rate"] * (seen["cpu_us"] + seen["server_us"]) / 1e6}


def pickup(session: Session) -> None:
    n = 100 if session.quick else 200
    with redis_server(session) as place:

        def between(module) -> dict[str, float]:
            return picked_up(session, module.serve_marks, module.ask_marks, n, url=place.empty())

        found = session.interleave({"bare stream loop": partial(between, redis_raw), "pollux": partial(between, ours)})
    p50 = session.take(found, "p50_ms", "pickup p50", "ms")
    session.take(found, "p99_ms", "pickup p99", "ms")
    lost = session.take(found, "lost", "runs not seen", "runs")
    session.at_most("pickup p50 / bare stream loop's", p50["pollux"] / p50["bare stream loop"], PICKUP_CEILING)
    session.at_most("runs lost by pollux", lost["pollux"], 0, "runs")


def idle(session: Session) -> None:
    """Commands that clients send, as MONITOR tells them; what a script calls inside is no round trip."""
    seconds = 20 if session.quick else 60
    with redis_server(session) as place:
        for name, plans, limit in (("worker", False, WORKER_MAX), ("leader", True, LEADER_MAX)):
            url = place.empty()
            session.alone(ours.declare, url=url)
            with session.child(ours.idle, url=url, plans=plans, runs=not plans, settled_s=SETTLED_S) as child:
                child.ready()
                sent = watched(place, seconds)
                child.answer()
            told = ", ".join(f"{sent.count(each)} {each}" for each in sorted(set(sent))) or "nothing"
            session.say(f"{name}, {seconds} s: {told}")
            rate = session.figure(f"pollux, {name}", "commands sent idle", [len(sent) / seconds], "1/s")
            session.at_most(f"round trips of an idle {name}", rate, limit, "1/s", note=f"in {seconds} s: {told}")


def watched(place: RedisPlace, seconds: float) -> list[str]:
    """The names of all commands that clients send for so long; MONITOR writes `+17.5 [0 host:port] "FCALL" "..."`."""
    place_of = urlsplit(place.url)
    until = time.monotonic() + seconds
    heard = b""
    with socket.create_connection((place_of.hostname, place_of.port)) as line:
        line.sendall(b"MONITOR\r\n")
        line.settimeout(0.2)
        while time.monotonic() < until:
            try:
                heard += line.recv(65_536)
            except TimeoutError:
                continue
    found = [each.split(b'"')[1] for each in heard.split(b"\r\n") if b'"' in each and b" lua] " not in each]
    return [name.decode().upper() for name in found]


def stock(session: Session) -> None:
    with redis_server(session) as place:
        url = place.empty()
        stocked(session, f"{url}?namespace=small", f"{url}?namespace=large", "no waiting, in one process")
        used = place.client.info("memory")["used_memory"] / 1e6
        session.figure("pollux, both stocks", "memory of the server", [used], "MB")
