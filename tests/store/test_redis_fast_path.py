"""Is the short way of a plain run the same as the long one?  It only costs less, and whoever stands in it is seen."""

import pytest
from msgspec.structs import replace

from pollux.errors import StoreRefused
from pollux.model import Done, Ended, Overlap, RunState
from pollux.store.contract import Answer, RunFilter
from pollux.store.redis import RedisStore, fast_path
from pollux.testing.conformance.builders import (
    LEASE_MS,
    T0,
    a_firing,
    a_job,
    a_run,
    advance,
    an_outcome,
    claim,
    entries,
    given_jobs,
    ids,
    renewal,
    settlement,
    the_run,
)
from tests.servers.redis import own_url


@pytest.fixture
async def make():
    """Stores of their own, each with two jobs."""
    made = []

    async def one():
        store = RedisStore(own_url("plain"))
        await store.open()
        made.append(store)
        await given_jobs(store, "job", a_job("other"))
        return store

    yield one
    for store in made:
        await store.close()


@pytest.fixture
async def store(make):
    return await make()


def verbs_of(store, monkeypatch):
    """The scripts that are called from here on."""
    link, called = store._link, []
    run_raw = link.run_raw

    async def told(verb, **arguments):
        called.append(verb)
        return await run_raw(verb, **arguments)

    monkeypatch.setattr(link, "run_raw", told)
    return called


def prefix(store):
    return store._address.prefix


async def line(redis, store, name="normal"):
    """How many are ready, leased, and in the stream at all."""
    stream = f"{prefix(store)}:jobs:{name}"
    [group] = await redis.xinfo_groups(stream)
    return group["lag"], group["pending"], await redis.xlen(stream)


def ends(runs, now_ms=T0, **fields):
    return [settlement(run, Done(), outcome=an_outcome(now_ms, **fields)) for run in runs]


async def test_a_plain_run_goes_the_short_way(store, monkeypatch):
    called = verbs_of(store, monkeypatch)
    await store.enqueue([a_run("a"), a_run("b")], now_ms=T0)
    runs = await claim(store, now_ms=T0)

    assert await store.settle(ends(runs), now_ms=T0) == [Answer.OK, Answer.OK]
    assert called == ["enqueue_plain", "claim", "settle_plain"]
    assert (await the_run(store, "a")).state is RunState.DONE


async def test_what_a_plan_fires_goes_the_short_way_too(store, monkeypatch):
    [job] = await store.get_jobs(["job"])
    await advance(store, firings=(a_firing(job, T0),))
    called = verbs_of(store, monkeypatch)
    runs = await claim(store, now_ms=T0)

    assert await store.settle(ends(runs), now_ms=T0) == [Answer.OK]
    assert called == ["claim", "settle_plain"]


async def test_what_a_plan_fires_and_the_gate_holds_is_no_plain_run(store):
    """It waits behind another one of its job: what its maker wrote down is not how it stands."""
    [job] = await store.get_jobs(["job"])
    await advance(store, firings=(a_firing(job, T0),))
    [first] = await claim(store, now_ms=T0)

    made = await advance(store, firings=(a_firing(job, T0 + 1, overlap=Overlap.QUEUE),), now_ms=T0 + 1)

    assert made.firings == (Answer.WAITS,)
    assert await claim(store, now_ms=T0 + 1) == ()
    assert await store.settle(ends([first]), now_ms=T0 + 1) == [Answer.OK]


SPECIAL = {
    "a key": {"key": "k"},
    "a gate": {"gated": True},
    "another priority beside it": {"priority": 1},
    "another time beside it": {"due_ms": T0 + 5},
}


@pytest.mark.parametrize("fields", SPECIAL.values(), ids=SPECIAL)
async def test_what_is_more_than_plain_goes_the_long_way(store, monkeypatch, fields):
    called = verbs_of(store, monkeypatch)

    answers = await store.enqueue([a_run("a"), a_run("b", **fields)], now_ms=T0)

    assert [answer.answer for answer in answers] == [Answer.OK, Answer.OK]
    assert called == ["enqueue"]


async def test_the_same_run_twice_in_one_call_is_there_once(store):
    answers = await store.enqueue([a_run("a"), a_run("a")], now_ms=T0)

    assert [answer.answer for answer in answers] == [Answer.OK, Answer.ALREADY]


async def play(store):
    """Some runs of two jobs and all priorities, on their way to different ends."""
    await store.enqueue([a_run(f"r{n}", payload={"n": n}) for n in range(5)], now_ms=T0)
    await store.enqueue([a_run(f"o{n}", "other") for n in range(4)], now_ms=T0)
    await store.enqueue([a_run("high", priority=1)], now_ms=T0)
    await store.enqueue([a_run("later", due_ms=T0 + 50)], now_ms=T0)
    first = await claim(store, 1, now_ms=T0)
    runs = await claim(store, 7, now_ms=T0)
    done = [*ends(runs[:2], T0 + 3, changed=True), *ends(runs[2:4], T0 + 3, changed=False), *ends(runs[5:6], T0 + 3)]
    await store.settle(done, now_ms=T0 + 3)
    await store.settle(ends(first, T0 + 4, result={"a": [1]}), now_ms=T0 + 4)
    await store.renew([renewal(runs[4])], lease_ms=LEASE_MS, now_ms=T0 + 5)
    late = await claim(store, now_ms=T0 + 50)
    await store.settle(ends([runs[4], *late], T0 + 60), now_ms=T0 + 60)
    return ids([*first, *runs, *late])


async def seen(redis, store):
    page = await store.list_runs(limit=100)
    by_job = await store.list_runs(RunFilter(job_id="other"), limit=100)
    fed = [end for entry in await entries(store, Ended) for end in entry.ends]
    streams = [(await line(redis, store, name))[:2] for name in ("high", "normal", "low")]
    return page.runs, by_job.runs, sorted(fed, key=lambda end: end.run_id), await store.counts(), streams


def tokenless(found):
    """Tokens are told by the clock of the test."""
    return [[replace(run, token="") for run in runs] for runs in found[:2]], *found[2:]


async def test_both_ways_leave_the_same_behind(make, redis, monkeypatch):
    short, long = await make(), await make()
    took = await play(short)
    monkeypatch.setattr(fast_path, "WAITS", 0)  # no run is marked as plain
    monkeypatch.setattr(fast_path, "enqueue_of", lambda *_: None)

    assert await play(long) == took
    assert tokenless(await seen(redis, short)) == tokenless(await seen(redis, long))


async def test_entries_go_with_their_runs_in_whatever_order_they_end(store, redis):
    await store.enqueue([a_run(f"r{n}") for n in range(10)], now_ms=T0)
    runs = await claim(store, 5, now_ms=T0)
    assert await line(redis, store) == (5, 5, 10)

    await store.settle(ends(runs[2:4]), now_ms=T0)
    assert await line(redis, store) == (5, 3, 8)
    await store.settle(ends(runs[4:]), now_ms=T0)  # the entry that was delivered last stays for now
    assert await line(redis, store) == (5, 2, 8)
    await store.settle(ends(runs[:2]), now_ms=T0)
    assert await line(redis, store) == (5, 0, 5)
    await store.settle(ends(await claim(store, 5, now_ms=T0)), now_ms=T0)
    assert await line(redis, store) == (0, 0, 0)


async def test_each_of_a_call_gets_its_own_end(store, monkeypatch):
    """Those that end alike are written down once: time, result and delivery make the difference."""
    await store.enqueue([a_run(f"r{n}") for n in range(5)], now_ms=T0)
    runs = [*await claim(store, 4, now_ms=T0), *await claim(store, 1, now_ms=T0)]
    called = verbs_of(store, monkeypatch)
    told = [*ends(runs[:1], T0 + 1), *ends(runs[1:2], T0 + 2), *ends(runs[2:], T0 + 2, result={"a": 2})]

    assert await store.settle(told, now_ms=T0 + 3) == [Answer.OK] * 5

    assert called == ["settle_plain"]
    found = [await the_run(store, run.id) for run in runs]
    assert [run.finished_ms for run in found] == [T0 + 1, *[T0 + 2] * 4]
    assert [run.result for run in found] == [None, None, *[{"a": 2}] * 3]
    assert [run.token for run in found] == [run.token for run in runs]


async def test_a_renewed_run_ends_the_long_way(store, monkeypatch):
    await store.enqueue([a_run("a")], now_ms=T0)
    [run] = await claim(store, now_ms=T0)
    await store.renew([renewal(run)], lease_ms=LEASE_MS, now_ms=T0 + 1)
    called = verbs_of(store, monkeypatch)

    assert await store.settle(ends([run]), now_ms=T0 + 2) == [Answer.OK]
    assert called == ["settle"]


async def test_a_run_that_somebody_else_touched_is_settled_by_the_long_way_after_all(store, monkeypatch):
    await store.enqueue([a_run("a")], now_ms=T0)
    [run] = await claim(store, now_ms=T0)
    await store.cancel(run_ids=["a"], now_ms=T0)
    called = verbs_of(store, monkeypatch)

    assert await store.settle(ends([run]), now_ms=T0 + 2) == [Answer.OK]
    assert called == ["settle_plain", "settle"]
    assert (await the_run(store, "a")).state is RunState.DONE


async def test_a_handle_remembers_only_so_many_of_its_runs(store, monkeypatch):
    monkeypatch.setattr(fast_path, "KNOWN_MAX", 2)
    await store.enqueue([a_run(f"r{n}") for n in range(4)], now_ms=T0)
    runs = await claim(store, now_ms=T0)
    called = verbs_of(store, monkeypatch)

    assert await store.settle(ends(runs[:2]), now_ms=T0) == [Answer.OK, Answer.OK]
    assert await store.settle(ends(runs[2:]), now_ms=T0) == [Answer.OK, Answer.OK]
    assert called == ["settle", "settle_plain"]


FOREIGN = {
    "enqueue": ["jobs:normal", "queue:2", "live", "live:job", "meta", "held", "bell:runs", "home", "job:job"],
    "claim": ["jobs:normal", "queue:2", "leases", "meta", "home", "claim:t", "job:job"],
    "settle": [
        *("jobs:normal", "leases", "live", "live:job", "finished:plain", "history:job", "counters", "meta"),
        *("feed", "bell:feed", "home"),
    ],
}


@pytest.mark.parametrize("verb", FOREIGN)
async def test_a_key_that_is_not_ours_is_refused_by_name_and_nothing_is_changed(make, redis, verb):
    for key in FOREIGN[verb]:
        store = await make()
        await store.enqueue([a_run("ready"), a_run("taken")], now_ms=T0)
        runs = await claim(store, 1, now_ms=T0)
        calls = {
            "enqueue": lambda store=store: store.enqueue([a_run("new")], now_ms=T0),
            "claim": lambda store=store: store.claim(node="n", token="t", limit=5, lease_ms=9, now_ms=T0),
            "settle": lambda store=store, runs=runs: store.settle(ends(runs), now_ms=T0),
        }
        name = f"{prefix(store)}:{key}"
        await redis.delete(name)
        await redis.set(name, "something of somebody else's")
        before = await dumped(redis, prefix(store))

        with pytest.raises(StoreRefused, match=f"{name} is a string"):
            await calls[verb]()

        assert await dumped(redis, prefix(store)) == before, f"{verb} with {key}"


async def dumped(redis, mine):
    return {key: await redis.dump(key) for key in sorted(await redis.keys(f"{mine}:*"))}
