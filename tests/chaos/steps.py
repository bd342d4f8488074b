"""Every writing verb of the store, once or more, in a fixed order with fixed ids, tokens and times.

A caller without an answer takes the very same step again.  In between the store holds what it held before that step or
after it, and never a part; in the end it holds what it holds when all goes well.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from pollux.model import (
    AuditLine,
    Back,
    CancelOrder,
    Cause,
    Dead,
    Done,
    FeedItem,
    Firing,
    Hold,
    Holding,
    Interval,
    Job,
    JobUpdate,
    Memory,
    Node,
    NotePut,
    Outcome,
    Overlap,
    Plan,
    Release,
    RetryAt,
    Run,
    Verdict,
    run_of,
)
from pollux.store.contract import Audit, JobPut, Pruning, Renewal, Settlement, Store

T0 = 1_800_000_000_000
LEASE_MS = 30_000
TTL_MS = 15_000

PLAIN = Job(id="plain", handler="plain")
GATED = Job(id="gated", handler="plain", target="host")
TICK = Job(id="tick", handler="tick", schedule=Interval(every_ms=1_000))
GONE = Job(id="gone", handler="plain")

Step = Callable[[Store], Awaitable[Any]]


class Claim(NamedTuple):
    """A live caller without an answer claims again with the same token; after a crash the token is lost."""

    node: str
    token: str
    limit: int
    second: float

    def __call__(self, store: Store) -> Awaitable[Any]:
        now_ms = at(self.second)
        return store.claim(node=self.node, token=self.token, limit=self.limit, lease_ms=LEASE_MS, now_ms=now_ms)


def at(second: float) -> int:
    return T0 + int(second * 1_000)


def asked(job: Job, name: str, second: float, *, key: str | None = None) -> Run:
    return run_of(job, at(second), Cause.ENQUEUED, {"name": name}, id=name, key=key)


def on_record(what: str) -> Audit:
    return Audit((AuditLine(T0, "ann", what, "this"),))


def ended(run_id: str, token: str, verdict: Verdict, *, second: float = 0, **more: Any) -> Settlement:
    outcome = Outcome(started_ms=at(second), ended_ms=at(second) + 5, result={"of": run_id})
    has_ended = isinstance(verdict, Done | Dead | RetryAt)
    return Settlement(run_id, token, verdict, outcome if has_ended else None, **more)


async def consume(store: Store, term: int, plan: Plan, second: float) -> None:
    """Carry the plan's effects and take the entries that are there now, as a leader does."""
    items: tuple[FeedItem, ...] = (await store.feed(limit=100, now_ms=at(second))).items
    consumed = tuple(item.id for item in items)
    await store.advance(term, msgspec.structs.replace(plan, consumed=consumed), now_ms=at(second))


def firing(second: float, *, overlap: Overlap = Overlap.SKIP) -> Firing:
    return Firing(
        run=run_of(TICK, at(second), Cause.SCHEDULE),
        revision=1,
        next_due_ms=at(second + 1),
        overlap=overlap,
        if_overlapped=Memory(skips={"overlap": 1}),
    )


def steps() -> list[Step]:
    """The script.  Claims are in order of visibility, so every token's fence is known beforehand."""
    return [*_jobs_and_terms(), *_runs(), *_ends(), *_afterwards()]


def _jobs_and_terms() -> Iterator[Step]:
    puts = [JobPut(job) for job in (PLAIN, GATED, TICK, GONE)]
    yield lambda s: s.put_jobs(puts, audit=on_record("put"), now_ms=at(0))
    yield lambda s: s.beat(Node(id="A", seats=4, handlers=("plain", "tick")), ttl_ms=60_000, now_ms=at(0))
    yield lambda s: s.elect("A", ttl_ms=TTL_MS, now_ms=at(0))
    updates = (JobUpdate("tick", revision=1, next_due_ms=at(1), memory=Memory()),)
    yield lambda s: consume(s, 1, Plan(updates=updates), 0.5)
    yield lambda s: s.advance(1, Plan(firings=(firing(1),)), now_ms=at(1))
    yield lambda s: s.advance(1, Plan(firings=(firing(2),)), now_ms=at(2))  # overlapped: the first one is live


def _runs() -> Iterator[Step]:
    wanted = [asked(PLAIN, name, 3 + n / 10) for n, name in enumerate("abcdef")]
    wanted += [asked(PLAIN, "keyed", 3.7, key="k"), asked(GATED, "g", 3.8), asked(GONE, "gone-1", 3.9)]
    yield lambda s: s.enqueue(wanted, notes=[NotePut("seen:1", {"id": 1}, revision=0)], now_ms=at(4))
    yield lambda s: s.enqueue([asked(PLAIN, "second", 3.7, key="k")], now_ms=at(4))  # conflict
    yield lambda s: s.enqueue([asked(GONE, "gone-2", 3.9)], audit=on_record("enqueue"), now_ms=at(4))
    yield Claim("A", "t1", 3, 5)  # tick@1, a, b
    renewals = [Renewal("a", "t1:1"), Renewal("b", "t1:1"), Renewal(f"tick@{at(1)}", "t1:1")]
    yield lambda s: s.renew(renewals, lease_ms=LEASE_MS, now_ms=at(6))


def _ends() -> Iterator[Step]:
    follow = (asked(PLAIN, "a>0", 7), asked(GATED, "a>1", 7))
    first = [
        ended("a", "t1:1", Done(), second=7, follow_ups=follow, notes=(NotePut("from:a", 1, revision=0),)),
        ended("b", "t1:1", RetryAt(at(9)), second=7),
        ended(f"tick@{at(1)}", "t1:1", Done(), second=7),
    ]
    yield lambda s: s.settle(first, now_ms=at(7))
    yield Claim("A", "t2", 4, 8)  # c, d, e, f
    second = [
        ended("c", "t2:1", Back()),
        ended("d", "t2:1", Hold("stopped")),
        ended("e", "t2:1", Dead("gave up"), second=8),
    ]
    yield lambda s: s.settle(second, now_ms=at(9))
    let = Plan(releases=(Release("g"), Release("d")), holds=(Holding("a>1", "waits"),), cancels=())
    yield lambda s: consume(s, 1, let, 10)
    yield lambda s: s.advance(1, Plan(firings=(firing(10, overlap=Overlap.ALLOW),)), now_ms=at(10))
    # f was never settled: its lease ends, and the next claim takes it up.
    yield Claim("B", "t3", 50, 60)


def _afterwards() -> Iterator[Step]:
    yield lambda s: s.cancel(run_ids=["a>1", "f"], reason="not wanted", audit=on_record("cancel"), now_ms=at(61))
    yield lambda s: s.settle([ended("f", "t3:2", Back()), ended("c", "t3:2", Done(), second=61)], now_ms=at(62))
    yield lambda s: s.revive(["e"], audit=on_record("revive"), now_ms=at(63))
    yield lambda s: s.cancel(job_id="gone", reason="enough", audit=on_record("cancel"), now_ms=at(63))
    yield lambda s: s.delete_jobs(["gone"], reason="over", audit=on_record("delete"), now_ms=at(64))
    yield lambda s: s.put_notes([NotePut("stop:job:plain", {"reason": "why not"}, revision=0)], now_ms=at(65))
    pause = NotePut("stop:job:tick", {"reason": "for now"})
    yield lambda s: s.put_notes([pause], audit=on_record("pause"), now_ms=at(65))
    yield lambda s: s.put_notes([NotePut("stop:job:tick")], audit=on_record("resume"), now_ms=at(65))
    yield lambda s: s.elect("B", ttl_ms=TTL_MS, now_ms=at(66))  # A's term is over
    late = Plan(firings=(firing(66, overlap=Overlap.ALLOW),), cancels=(CancelOrder("keyed", "late"),))
    yield lambda s: s.advance(1, late, now_ms=at(66))  # fenced
    yield lambda s: s.advance(2, late, now_ms=at(66))
    yield lambda s: s.prune(Pruning(ids=("a",), limit=10), audit=on_record("drop"))
    yield lambda s: s.resign("B", term=2, now_ms=at(67))
    yield lambda s: s.beat(Node("A"), ttl_ms=0, now_ms=at(75))
    yield lambda s: s.wake()


async def contents(store: Store) -> str:
    """All that the store holds, in words that can be compared."""
    records, after = [], None
    while True:
        page = await store.dump(after=after)
        records += page.records
        after = page.next
        if after is None:
            break
    entries = [item.entry for item in (await store.feed(limit=1_000, now_ms=at(70))).items]
    held = {"records": records, "feed": entries, "counts": await store.counts()}
    return msgspec.json.format(msgspec.json.encode(held, order="deterministic"), indent=1).decode()
