"""Stores with something of every kind in them, and a move from one to another that can be cut off at any call."""

from pollux.app.move import Move, MoveEnd
from pollux.clock import SystemClock
from pollux.model import DRAIN, AuditLine, Dead, Done, Interval, Job, NotePut
from pollux.store.contract import JobPut, Settlement
from pollux.store.memory import MemoryStore
from pollux.store.urls import open_store
from pollux.testing.conformance.builders import T0, a_failure, a_run, an_outcome
from pollux.testing.faults import Wrapped
from tests.servers import postgres, redis


def url_of(kind, folder, what="move"):
    match kind:
        case "memory":
            return "memory://"
        case "sqlite":
            return f"sqlite:///{folder}/{what}.db"
        case "redis":
            return redis.own_url(what)
    return postgres.own_url(what)


async def opened(url):
    store = open_store(url)
    await store.open()
    return store


async def populate(store, *, runs=3):
    """Something of every kind, a lease among it; the term was held by a node."""
    await store.put_jobs(
        [JobPut(Job(id=f"job{n}", handler="h", schedule=Interval(3_600_000), params={"ä": [n, 1.5]})) for n in range(3)]
    )
    term = await store.elect("old", ttl_ms=1, now_ms=T0)
    made = [a_run(f"r{n:03}", f"job{n % 3}", key=f"k{n}", payload={"n": n}) for n in range(2 * runs + 2)]
    await store.enqueue(
        [*made, a_run("gated", "job1", gated=True), a_run("later", "job2", due_ms=T0 + 10**9)], now_ms=T0
    )
    claimed = (await store.claim(node="old", token="t", limit=runs + 2, lease_ms=10**12, now_ms=T0)).runs
    ends = [Settlement(run.id, run.token, Done(), an_outcome(T0, result={"n": 1})) for run in claimed[:runs]]
    ends.append(Settlement(claimed[runs].id, claimed[runs].token, Dead("enough"), a_failure(T0)))
    await store.settle(ends, now_ms=T0 + 5)
    await store.put_notes([NotePut("n1", {"v": 1}), NotePut("stop:job:job2", {"reason": "x"})], now_ms=T0)
    await store.put_notes([NotePut("ends", 1, expires_ms=10**14)], now_ms=T0)
    await store.log([AuditLine(T0 + n, "ann", "pause", f"job{n}", "why") for n in range(4)])
    await store.put_jobs([JobPut(Job(id="gone", handler="h"))])
    await store.delete_jobs(["gone"])
    return term.number, claimed[runs + 1].id


def a_move(source, target, *, page=1_000, report=lambda _: None):
    return Move(MoveEnd(source, "one"), MoveEnd(target, "two"), clock=SystemClock(), report=report, page=page)


async def moved(source, target, *, live=False, wait_ms=1_000, **options):
    return await a_move(source, target, **options).run("m", actor="test", live=live, wait_ms=wait_ms)


def carried(records):
    """By kind and id; without what a move adds, and with leases void."""
    found = {}
    for kind, data in records:
        if kind == "term" or (kind == "note" and data["key"].startswith(("move:", DRAIN))):
            continue
        if kind == "log" and data["action"] == "move":
            continue
        void = ("token", "owner", "lease_until_ms") if data.get("state") == "leased" else ()
        is_ready = kind == "run" and data.get("state", "ready") in ("ready", "leased")
        kept = {name: value for name, value in data.items() if name not in void and not (is_ready and name == "state")}
        found[kind, data.get("id") or data.get("key") or data["seq"]] = kept
    return found


class Around(Wrapped):
    """Something in front of a store; each version has its own."""

    def of_version(self, number):
        return type(self)(self.store.of_version(number))


class Cut(Exception):
    """The process is killed here."""


class Counted(Wrapped):
    """A store that counts its calls with another one, and is killed at one of them: before it, or after it."""

    def __init__(self, store, count):
        super().__init__(store)
        self.count = count

    def of_version(self, number):
        return Counted(self.store.of_version(number), self.count)

    async def call(self, verb, answer):
        self.count["calls"] += 1
        is_last = self.count["calls"] == self.count["at"]
        if is_last and not self.count["after"]:
            answer.close()
            raise Cut
        value = await answer
        if is_last:
            raise Cut
        return value


async def cut_off(one, two, at, *, after, live=False):
    """Begin a move that is killed at its n-th call to a store; was it?"""
    count = {"calls": 0, "at": at, "after": after}
    try:
        await moved(Counted(one, count), Counted(two, count), page=4, live=live)
    except Cut:
        return True
    return False


async def fresh(*, filled=False):
    store = MemoryStore()
    await store.open()
    if filled:
        await populate(store)
    return store
