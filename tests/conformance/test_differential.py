"""Differential test: the same script of operations on all stores; every answer is compared, and the final content.

Look further with `POLLUX_SCRIPTS=1000` (seeds) and `POLLUX_SCRIPT_STEPS=99`; one seed alone with `-k "[17]"`.  A script
that fails is cut, half by half, to one that still does, and shown.

The contract leaves this open, and only this is not compared:

* numbers that only the store itself reads: ids of feed entries, revisions of notes, `stops_revision`, cursors (there is
  one where the others have one);
* the words of a conflict;
* the order inside an entry of the feed, of the answers of `cancel(job_id=)`, of runs that finished in the same
  millisecond, and of finished runs once the clock was set back (by time, or one after the other);
* whether a token that settled a run some deliveries ago is answered `already` or `lost`;
* the order of a dump (jobs come before their runs).
"""

import os
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec.structs import replace
from redis.asyncio import Redis

from pollux.model import SCHEDULER_VERSION, Plan
from pollux.store.contract import Answer, Claimed, DumpPage, Feed, JobAnswer, LogPage, Note, Pruning, RunAnswer, RunPage
from pollux.store.memory import MemoryStore
from pollux.store.postgres.store import PostgresStore
from pollux.store.redis import RedisStore
from pollux.store.sqlite.store import SqliteStore
from pollux.testing.conformance.records import whole_dump
from pollux.testing.faults import Wrapped
from tests.conformance.lockstep import entry
from tests.conformance.script import OTHER, Script, make_script
from tests.servers import postgres, redis

SEEDS = int(os.environ.get("POLLUX_SCRIPTS", "40"))
LENGTH = int(os.environ.get("POLLUX_SCRIPT_STEPS", "60"))
TRIES_MAX = 120  # to cut a script that fails
SHM = Path("/dev/shm")


class Differs(AssertionError):
    """Two stores answered the same call differently."""


class Cast:
    """The stores side by side; the first one's word is the script's."""

    CURRENT = -1  # in a put of a note: the revision that stands

    def __init__(self, stores):
        self.stores = stores
        self.settled = set()
        self.version = SCHEDULER_VERSION  # whose handles are asked
        self.is_steady = True  # the clock was never set back

    async def do(self, verb, *args, **options):
        answers = [await getattr(store, verb)(*args, **options) for store in self.handles(verb)]
        self.compare(verb, args, options, answers)
        return answers[0]

    def handles(self, verb=""):
        """Those of the version that is asked; a store is opened and closed by its own."""
        if self.version == SCHEDULER_VERSION or verb in {"open", "close"}:
            return self.stores
        return [store.of_version(self.version) for store in self.stores]

    def compare(self, verb, args, options, answers):
        shown = [plain(verb, options, answer, is_steady=self.is_steady) for answer in answers]
        if verb == "settle":
            shown = [self.known_before(args[0], answer, shown[0]) for answer in shown]
            self.settled |= {(s.run_id, s.token) for s, a in zip(args[0], answers[0], strict=True) if a is Answer.OK}
        for store, other in zip(self.stores[1:], shown[1:], strict=True):
            if other != shown[0]:
                first, name = self.stores[0].capabilities.name, store.capabilities.name
                call = f"{verb}({', '.join([*map(repr, args), *(f'{k}={v!r}' for k, v in options.items())])})"
                raise Differs(f"{call}\n{first}: {shown[0]}\n{name}: {other}")

    def known_before(self, settlements, answers, first):
        """`already` is as good as `lost` for a token that settled before, and is not the current one any more."""
        free = [(s.run_id, s.token) in self.settled for s in settlements]
        lost = (Answer.ALREADY, Answer.LOST)
        return [
            one if is_free and one in lost and a in lost else a
            for a, one, is_free in zip(answers, first, free, strict=True)
        ]

    async def consume(self, term, limit, now_ms):
        answers = []
        for store in self.handles():
            feed = await store.feed(limit=limit, now_ms=now_ms)
            plan = Plan(consumed=tuple(item.id for item in feed.items))
            answers.append(await store.advance(term, plan, now_ms=now_ms))
        self.compare("advance", (term, f"the oldest {limit} consumed"), {"now_ms": now_ms}, answers)

    async def advance(self, term, plan, known, now_ms):
        """By a leader that has read the oldest `known` entries."""
        answers = []
        for store in self.handles():
            feed = await store.feed(limit=known, now_ms=now_ms) if known else None
            read = tuple(item.id for item in feed.items) if feed else ()
            answers.append(await store.advance(term, replace(plan, read=read), now_ms=now_ms))
        self.compare("advance", (term, plan, f"the oldest {known} read"), {"now_ms": now_ms}, answers)

    async def put_notes(self, puts, now_ms, **record):
        answers = []
        for store in self.stores:
            stands = {note.key: note.revision for note in await store.notes(now_ms=now_ms)}
            ours = [replace(p, revision=stands.get(p.key, 0)) if p.revision == self.CURRENT else p for p in puts]
            answers.append(await store.put_notes(ours, **record, now_ms=now_ms))
        self.compare("put_notes", (puts,), {"now_ms": now_ms}, answers)

    async def page_through(self, verb, where, limit):
        answers = []
        for store in self.stores:
            rows, after = [], None
            while True:
                page = await getattr(store, verb)(where, after=after, limit=limit)
                rows += page.runs if verb == "list_runs" else page.jobs
                after = page.next
                if after is None:
                    break
            answers.append(RunPage(tuple(rows), None) if verb == "list_runs" else rows)
        self.compare(verb, (where,), {"limit": limit}, answers)

    async def load_own_dump(self):
        """Each its own, after what is finished went; leases that were dumped stand, because their runs do."""
        answers = []
        for store in self.stores:
            records = await whole_dump(store, limit=7)
            await store.prune(Pruning(finished_before_ms=10**15, dead_max=0))
            answers.append(await store.load(records))
        self.compare("load", ("its own dump, after all that is finished was pruned",), {}, answers)

    async def compare_ends(self):
        self.compare("dump", (), {}, [everything(await whole_dump(store)) for store in self.stores])
        await self.do("counts", all_versions=True)
        for version in (OTHER, SCHEDULER_VERSION):
            self.version = version
            await self.do("counts")
            await self.do("feed", limit=1_000)


def plain(verb, options, answer, *, is_steady):
    """The answer without what the contract leaves open."""
    match answer:
        case Claimed():
            return replace(answer, stops_revision=0)
        case Feed():
            items = tuple(entry(item.entry) for item in answer.items)
            return items if options.get("now_ms") is None else (items, answer.now_ms)
        case RunPage():
            live = [run for run in answer.runs if not run.is_finished]
            past = [run for run in answer.runs if run.is_finished]
            times = [run.finished_ms for run in past] if is_steady else []
            return live, times, sorted(past, key=lambda run: run.id), answer.next is None
        case LogPage():
            return answer.lines, answer.next
        case DumpPage():
            return everything(answer.records)
        case [JobAnswer(), *_]:
            return [replace(each, detail="") for each in answer]
        case [Note(), *_]:
            return [replace(each, revision=0) for each in answer]
        case [RunAnswer(), *_] if verb == "cancel" and options.get("job_id"):
            return sorted(answer, key=lambda each: each.id)
        case _ if hasattr(answer, "jobs") and hasattr(answer, "next"):
            return answer.jobs, answer.next is None
        case _:
            return answer


def everything(records):
    found = {}
    for kind, data in records:
        kept = {name: value for name, value in data.items() if not (kind == "note" and name == "revision")}
        name = data.get("id") or data.get("key") or data.get("seq") or data.get("scheduler_version")
        found[kind, str(name)] = kept
    return found


# the theatre


class Theatre:
    """Stores for one performance after the other; a schema of PostgreSQL is emptied in between.

    Redis and Valkey both play, where both are to be had.
    """

    other = ""

    def __init__(self, folder):
        self.folder, self.postgres = folder, postgres.own_url("script")
        self.number = 0
        with suppress(FileNotFoundError):  # then a test of its own says so
            self.other = redis.other_url()

    async def cast(self):
        self.number += 1
        await postgres.empty(self.postgres)
        stores = [
            MemoryStore(),
            SqliteStore(self.folder / f"{self.number}.db"),
            RedisStore(redis.own_url("script")),
            PostgresStore(self.postgres),
        ]
        if self.other:
            stores.append(RedisStore(f"{self.other}?namespace=script-{os.urandom(6).hex()}"))
        return stores

    async def perform(self, seed, steps):
        """What differs, or nothing."""
        stores = await self.cast()
        for store in stores:
            await store.open()
        cast = Cast(stores)
        script, told = Script(seed, cast), []
        try:
            for step in steps:
                told.append(step)
                await script.tell(step)
            await cast.compare_ends()
        except AssertionError as error:
            return f"after {' '.join(f'{step.number}:{step.name}' for step in told)}\n{error}"
        finally:
            for store in stores:
                await store.close()
        return None

    async def shortest(self, seed, steps):
        """Leave out halves, then quarters, then less, as long as it still fails."""
        size, tries = len(steps) // 2, 0
        while size and tries < TRIES_MAX:
            start = 0
            while start < len(steps) and tries < TRIES_MAX:
                fewer = [*steps[:start], *steps[start + size :]]
                tries += 1
                if await self.perform(seed, fewer):
                    steps = fewer
                else:
                    start += size
            size //= 2
        return steps


@pytest.fixture(scope="module")
def folder():
    with tempfile.TemporaryDirectory(dir=SHM if SHM.is_dir() else None, prefix="pollux-script-") as name:
        yield Path(name)


@pytest.fixture(scope="module")
def theatre(folder):
    return Theatre(folder)


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_the_same_script_has_the_same_outcomes_on_all_stores(theatre, seed):
    steps = make_script(seed, LENGTH)
    found = await theatre.perform(seed, steps)
    if found:
        steps = await theatre.shortest(seed, steps)
        raise AssertionError(f"seed {seed}, the shortest script that differs:\n{await theatre.perform(seed, steps)}")


async def test_redis_and_valkey_are_both_among_the_stores(theatre):
    try:
        redis.find_other()
    except FileNotFoundError as missing:
        pytest.skip(str(missing))
    stores = [store for store in await theatre.cast() if isinstance(store, RedisStore)]
    kinds = set()
    for url in (redis.shared_url(), redis.other_url()):
        async with Redis.from_url(url) as client:
            kinds.add((await client.info("server")).get("server_name", "redis"))
    assert (len(stores), kinds) == (2, {"redis", "valkey"})


class Greedy(Wrapped):
    """A store with a fault: it thinks a dead letter's key is still taken."""

    def of_version(self, number):
        return Greedy(self.store.of_version(number))

    async def revive(self, run_ids, **options):
        return [
            replace(answer, answer=Answer.CONFLICT) if answer.answer is Answer.OK else answer
            for answer in await self.store.revive(run_ids, **options)
        ]


async def test_a_store_with_a_fault_is_found_and_the_script_cut_short(folder, monkeypatch):
    class Faulty(Theatre):
        async def cast(self):
            return [MemoryStore(), Greedy(MemoryStore())]

    theatre = Faulty(folder)
    for seed in range(SEEDS):
        steps = make_script(seed, LENGTH)
        if await theatre.perform(seed, steps):
            break
    else:
        raise AssertionError("no script revives a dead letter")
    short = await theatre.shortest(seed, steps)
    assert len(short) < len(steps) / 3, short
    assert short[-1].name == "revive"
    assert "revive(" in await theatre.perform(seed, short)
