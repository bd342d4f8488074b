"""SQLite and memory store side by side: random calls to both, and every answer compared.

The memory store says the contract in plain Python; whatever the two disagree about is a fault of one of them.  After
each story the counts that SQLite keeps are compared with what is really in its tables.
"""

import random

import apsw
import pytest
from msgspec.structs import replace

from pollux.model import (
    Back,
    Cancelled,
    CancelOrder,
    Cause,
    Dead,
    Done,
    Fault,
    Firing,
    Hold,
    Holding,
    Interval,
    Job,
    JobUpdate,
    Memory,
    NotePut,
    Once,
    Outcome,
    Overlap,
    Plan,
    Release,
    RetryAt,
    run_of,
)
from pollux.store.contract import Answer, JobPut, Pruning, Renewal, RunFilter, Settlement
from pollux.store.memory import MemoryStore
from pollux.store.sqlite import SqliteStore

T0 = 1_800_000_000_000
STEPS = 250


class Story:
    """One sequence of calls, thrown by its dice, told to both stores."""

    def __init__(self, seed: int, stores) -> None:
        self.dice = random.Random(seed)
        self.stores = stores
        self.now_ms = self.latest_ms = T0
        self.number = 0
        self.held: list[tuple[str, str]] = []  # run and token of deliveries, also stale ones
        self.runs: list[str] = []
        self.settled: set[tuple[str, str]] = set()

    async def both(self, verb: str, *args, **kwargs):
        """The answer, which is the same on both."""
        memory, sqlite = [await getattr(store, verb)(*args, **kwargs) for store in self.stores]
        assert plain(verb, sqlite) == plain(verb, memory), (verb, args, kwargs)
        return sqlite

    async def step(self) -> None:
        self.now_ms += self.dice.choice((1, 7, 900, 12_000))
        self.latest_ms = max(self.latest_ms, self.now_ms)
        if self.dice.random() < 0.02:
            self.now_ms -= 50_000
        await self.dice.choice(
            (
                self.put, self.put, self.delete, self.enqueue, self.enqueue, self.enqueue, self.claim, self.claim,
                self.claim, self.renew, self.settle, self.settle, self.settle, self.cancel, self.revive, self.advance,
                self.advance, self.advance, self.notes, self.prune, self.elect, self.look,
            )
        )()  # fmt: skip

    def job(self) -> Job:
        number = self.dice.randrange(6)
        return Job(
            id=f"job-{number}",
            handler=self.dice.choice(("a", "b")),
            schedule=self.dice.choice((Interval(60_000), Once(), None)),
            target="host" if number % 2 else "",
            group=self.dice.choice(("", "edge")),
            priority=self.dice.choice((1, 2, 3)),
            enabled=self.dice.random() < 0.9,
            release=self.dice.randrange(2),
            source=self.dice.choice(("api", "api", "file:x")),
            tags=self.dice.choice(((), ("t",), ("t", "u"))),
        )

    def new_run(self, *, id: str = ""):
        self.number += 1
        run = run_of(
            self.job(),
            self.now_ms + self.dice.choice((0, 0, 5_000)) + self.number,
            Cause.ENQUEUED,
            self.dice.choice((None, {"n": self.number})),
            id=id or f"run-{self.number}",
            key=self.dice.choice((None, None, "k1", "k2")),
        )
        self.runs.append(run.id)
        return run

    def some_runs(self, count: int = 3) -> list[str]:
        return self.dice.sample(self.runs, min(count, len(self.runs))) if self.runs else ["nothing"]

    async def put(self) -> None:
        revision = self.dice.choice((None, None, 0, 1, 2))
        await self.both("put_jobs", [JobPut(self.job(), revision) for _ in range(3)])

    async def delete(self) -> None:
        if self.dice.random() < 0.3:
            await self.both("delete_jobs", [f"job-{self.dice.randrange(6)}", "nothing"], now_ms=self.now_ms)

    async def enqueue(self) -> None:
        runs = [self.new_run() for _ in range(self.dice.choice((1, 2, 25)))]
        if self.dice.random() < 0.3:
            runs += [runs[0], self.new_run(id=self.dice.choice(self.runs))]
        ready_max = self.dice.choice((1_000_000, 20))
        await self.both("enqueue", runs, notes=[NotePut("mark", 1)], ready_max=ready_max, now_ms=self.now_ms)

    async def claim(self) -> None:
        self.number += 1
        claim = {
            "node": "node",
            "token": f"token-{self.dice.choice((self.number, self.number, max(1, self.number - 3)))}",
            "limit": 1_000,
            "lease_ms": self.dice.choice((5_000, 30_000)),
            "first": self.dice.choice((1, 2, 3)),
            "losses_max": 3,
            "feed_max": self.dice.choice((100_000, 100_000, 10)),
            "now_ms": self.now_ms,
        }
        claimed = await self.both("claim", **claim)
        self.held += [(run.id, run.token) for run in claimed.runs]
        if self.dice.random() < 0.2:
            await self.both("claim", **claim)

    def some_held(self, count: int) -> list[tuple[str, str]]:
        held = self.dice.sample(self.held, min(count, len(self.held)))
        if self.dice.random() < 0.7:
            self.held = [pair for pair in self.held if pair not in held]
        return held

    async def renew(self) -> None:
        renewals = [Renewal(run_id, token, self.dice.choice(("", "half"))) for run_id, token in self.some_held(4)]
        await self.both("renew", renewals, lease_ms=20_000, now_ms=self.now_ms)

    def settlement(self, run_id: str, token: str) -> Settlement:
        failed = self.dice.random() < 0.3
        outcome = Outcome(
            self.now_ms - 5,
            self.now_ms,
            fault=Fault.TRANSIENT if failed else None,
            error="refused" if failed else "",
            result=self.dice.choice((None, {"v": 1})),
            changed=self.dice.choice((None, True, False)),
            fingerprint="f",
        )
        verdict = self.dice.choice(
            (
                Done(), Done(), Done(failed=True), Done(clears=True), Dead("no"), Dead("no", sole=True),
                Cancelled("so"), RetryAt(self.now_ms + self.number + 3_000), Back(), Hold("unknown handler"),
            )
        )  # fmt: skip
        return Settlement(
            run_id,
            token,
            verdict,
            self.dice.choice((outcome, outcome, None)),
            follow_ups=tuple(self.new_run() for _ in range(self.dice.choice((0, 0, 2)))),
            notes=self.dice.choice(((), (NotePut("stop:all", {"why": "x"}),))),
        )

    async def settle(self) -> None:
        held = self.some_held(6)
        settlements = [self.settlement(*pair) for pair in held]
        if settlements and self.dice.random() < 0.3:
            settlements.append(settlements[0])
        await self.told(settlements)
        if self.dice.random() < 0.2:
            await self.told(settlements)

    async def told(self, settlements: list[Settlement]) -> None:
        """SQLite also knows a token that settled before its run was delivered again."""
        memory, sqlite = [await store.settle(settlements, now_ms=self.now_ms) for store in self.stores]
        for settlement, ours, theirs in zip(settlements, sqlite, memory, strict=True):
            pair = (settlement.run_id, settlement.token)
            if ours is Answer.OK:
                self.settled.add(pair)
            assert ours is theirs or (ours is Answer.ALREADY and pair in self.settled), settlement

    async def cancel(self) -> None:
        job_id = self.dice.choice((None, None, f"job-{self.dice.randrange(6)}"))
        await self.both("cancel", run_ids=self.some_runs(), job_id=job_id, reason="enough", now_ms=self.now_ms)

    async def revive(self) -> None:
        page = await self.stores[0].list_runs(RunFilter(states=("dead",)), limit=1_000)
        await self.both("revive", [*[run.id for run in page.runs][:2], *self.some_runs(1)], now_ms=self.now_ms)

    async def advance(self) -> None:
        term = await self.both("elect", "leader", ttl_ms=10_000_000, now_ms=self.latest_ms)
        feed = await self.both("feed", limit=self.dice.choice((0, 3, 100)))
        held = await self.stores[0].list_runs(RunFilter(states=("held",)), limit=1_000)
        waiting = [run.id for run in held.runs]
        jobs = [job for job in (await self.both("list_jobs")).jobs if self.dice.random() < 0.6]
        firings = tuple(self.firing(job) for job in jobs for _ in range(self.dice.choice((1, 1, 2))))
        plan = Plan(
            consumed=tuple(item.id for item in feed.items),
            firings=firings,
            releases=tuple(Release(run_id) for run_id in self.dice.sample(waiting, min(1, len(waiting)))),
            holds=tuple(Holding(run_id, "breaker open") for run_id in self.some_runs(2)),
            cancels=tuple(CancelOrder(run_id, "by order") for run_id in self.some_runs(1)),
            updates=tuple(
                JobUpdate(
                    job.id,
                    job.revision - (self.dice.random() < 0.2),
                    self.dice.choice((None, self.now_ms + 1_000)),
                    Memory(ended=self.number, last_end_ms=self.now_ms),
                    self.dice.choice((None, self.now_ms)),
                )
                for job in jobs
                if self.dice.random() < 0.3
            ),
            notes=(NotePut("breaker:host", {"n": self.number}, self.dice.choice((None, 0, 1))),),
        )
        await self.both("advance", term.number, plan, now_ms=self.now_ms)
        if self.dice.random() < 0.3:
            await self.both("advance", term.number - self.dice.choice((0, 1)), plan, now_ms=self.now_ms)

    def firing(self, job: Job) -> Firing:
        self.number += 1
        run = run_of(job, self.now_ms + self.number, Cause.SCHEDULE)
        self.runs.append(run.id)
        return Firing(
            run,
            job.revision - (self.dice.random() < 0.1),
            self.now_ms + 60_000,
            self.dice.choice(tuple(Overlap)),
            self.dice.choice((None, Memory(skips={"overlap": self.number}))),
        )

    async def notes(self) -> None:
        puts = [
            NotePut(
                self.dice.choice(("a", "b", "stop:job:x")),
                self.dice.choice((None, 1, {"deep": [1, 2]})),
                self.dice.choice((None, 0, 1)),
                self.dice.choice((None, self.now_ms + 500)),
            )
            for _ in range(3)
        ]
        await self.both("put_notes", puts, now_ms=self.now_ms)

    async def prune(self) -> None:
        await self.both(
            "prune",
            Pruning(
                ids=tuple(self.some_runs(1)),
                unchanged_before_ms=self.dice.choice((None, self.now_ms - 5_000)),
                finished_before_ms=self.dice.choice((None, self.now_ms - 60_000)),
                once_before_ms=self.dice.choice((None, self.now_ms)),
            ),
        )

    async def elect(self) -> None:
        node = self.dice.choice(("leader", "other"))
        term = await self.both("elect", node, ttl_ms=10_000_000, now_ms=self.latest_ms)
        if self.dice.random() < 0.5:
            await self.both("resign", node, term=term.number)

    async def look(self) -> None:
        await self.both("counts")
        await self.both("list_runs", limit=1_000)
        await self.both("list_runs", RunFilter(job_id="job-1", failed=self.dice.choice((None, True))), limit=1_000)
        await self.both("list_runs", RunFilter(states=self.dice.choice((("held",), ("leased",), ("done", "dead")))))
        await self.both("get_runs", self.some_runs(10))
        await self.both("list_jobs")
        await self.both("due", before_ms=self.now_ms + 30_000, limit=10)
        await self.both("notes", now_ms=self.now_ms)
        await self.both("feed", limit=1_000)


def plain(verb, answer):
    """The answer without what may differ: the order of runs that became visible or ended in the same moment."""
    if verb == "cancel":
        return sorted(answer, key=lambda each: each.id)
    match type(answer).__name__:
        case "Claimed":
            return replace(answer, runs=tuple(sorted(answer.runs, key=lambda run: run.id)))
        case "RunPage":
            return {run.id: run for run in answer.runs}
        case "Feed":
            return [item.id for item in answer.items], [ordered(item.entry) for item in answer.items]
    return answer


def ordered(entry):
    return sorted(entry.ends, key=repr) if hasattr(entry, "ends") else entry


def recount(path) -> tuple[int, ...]:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return next(
            connection.execute(
                "SELECT (SELECT count(*) FROM runs WHERE state = 0), (SELECT count(*) FROM runs WHERE state = 1),"
                " (SELECT count(*) FROM runs WHERE state = 2), (SELECT count(*) FROM runs WHERE state = 4),"
                " (SELECT count(*) FROM feed), (SELECT coalesce(sum(ends), 0) FROM feed), (SELECT count(*) FROM jobs)"
            )
        )
    finally:
        connection.close()


@pytest.mark.parametrize("seed", range(6))
async def test_both_stores_tell_the_same_story(tmp_path, seed):
    path = tmp_path / "pollux.db"
    stores = [MemoryStore(), SqliteStore(path)]
    for store in stores:
        await store.open()
    try:
        story = Story(seed, stores)
        for _ in range(STEPS):
            await story.step()
        await story.look()
        counts = await stores[1].counts()
        assert recount(path) == tuple(getattr(counts, field) for field in counts.__struct_fields__)
    finally:
        for store in stores:
            await store.close()
