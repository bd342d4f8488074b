"""Remains of a dropped version: the number of its term; if it comes again, all works as before."""

import asyncio

import pytest

from pollux.model import Done, Node
from pollux.store.contract import Answer, Pruning
from pollux.testing.conformance.builders import T0, a_run, claim, finished, given, given_jobs, ids, leased, settlement
from tests.servers.redis import own_url
from tests.store.test_redis_streams import opened, prefix

OLD = 1
LINES = ("jobs:high", "jobs:normal", "jobs:low")
BELLS = ("bell:runs", "bell:feed")
SOON_S = 50.0  # and a wait ends after 60 s


@pytest.fixture
def url():
    return own_url("versions")


@pytest.fixture
async def store(url):
    async with opened(url) as store:
        yield store


async def dropped(store, version, now_ms=T0):
    return await store.prune(Pruning(version=version), now_ms=now_ms)


async def keys_of(redis, url, version=OLD):
    """Those that have the number of the version in their names."""
    begins = f"{prefix(url)}:v{version}:"
    return {key.decode().removeprefix(begins) for key in await redis.keys(f"{begins}*")}


async def lived(store, redis, url):
    """A version that was led, whose runs of all priorities ended in one way or another, and that has nothing left."""
    old = store.of_version(OLD)
    term = await old.elect("n", ttl_ms=9_000, now_ms=T0)
    await old.beat(Node("n", scheduler_version=OLD), ttl_ms=9_000, now_ms=T0)
    for priority in (1, 2, 3):
        await finished(old, a_run(f"done-{priority}", "old", priority=priority))
    held = await leased(old, a_run("asked", "old"))
    await store.cancel(run_ids=["asked"], now_ms=T0)
    assert await store.settle([settlement(held, Done())], now_ms=T0) == [Answer.OK]
    await store.delete_jobs(["old"], now_ms=T0)
    await old.resign("n", term=term.number, now_ms=T0)
    assert await keys_of(redis, url) == {"meta", "feed", *LINES, *BELLS}, "there is something to be dropped"
    return term


async def test_of_a_dropped_version_only_the_number_of_its_term_is_left(store, redis, url):
    term = await lived(store, redis, url)

    assert await dropped(store, OLD) == 1

    assert await keys_of(redis, url) == {"meta"}
    left = await redis.hgetall(f"{prefix(url)}:v{OLD}:meta")
    assert left[b"term"] == b"%d" % term.number
    of_streams = [b"%b%d" % (name, pr) for name in (b"owed", b"last", b"kept") for pr in (1, 2, 3)]
    assert {left.get(name, b"") for name in of_streams} <= {b"", b"0"}


async def test_a_version_that_is_not_done_keeps_its_streams(store, redis, url):
    await given(store.of_version(OLD), a_run("a", "old"))
    before = await keys_of(redis, url)

    assert await dropped(store, OLD) == 0

    assert await keys_of(redis, url) == before
    assert ids(await claim(store.of_version(OLD), now_ms=T0)) == ["a"]


async def rung(store):
    await leased(store, a_run("a"))
    await store.wake()
    await store.cancel(run_ids=["a"], now_ms=T0)


async def lasting(redis, url, version=OLD):
    """Those of its keys that do not go by themselves."""
    begins = f"{prefix(url)}:v{version}:"
    return {key for key in await keys_of(redis, url, version) if await redis.pttl(begins + key) == -1}


async def test_a_bell_that_is_rung_in_a_dropped_version_goes_by_itself(store, redis, url):
    """Who still waits there hears it; and nothing is left of it."""
    await lived(store, redis, url)
    await dropped(store, OLD)

    await rung(store)

    assert await keys_of(redis, url) == {"meta", *BELLS}
    assert await lasting(redis, url) == {"meta"}
    assert {0 < await redis.pttl(f"{prefix(url)}:v{OLD}:{bell}") <= 60_000 for bell in BELLS} == {True}


async def test_a_bell_that_is_rung_where_no_version_ever_was_goes_by_itself(store, redis, url):
    await store.of_version(7).wake()

    assert await keys_of(redis, url, 7) == {*BELLS}
    assert await lasting(redis, url, 7) == set()


async def test_the_bells_of_versions_that_are_there_stay(store, redis, url):
    await given_jobs(store.of_version(OLD), "old")

    await rung(store)

    assert {*BELLS} < await lasting(redis, url)
    assert {await redis.pttl(f"{prefix(url)}:{bell}") for bell in BELLS} == {-1}


@pytest.mark.usefixtures("only_rings")
async def test_who_waits_in_a_dropped_version_looks_no_more_often_for_it(store, redis, monkeypatch):
    """Its bell has gone, and stands behind all that was heard of it."""
    monkeypatch.setattr("pollux.store.redis.store.LOOK_AGAIN_MS", 50)
    old, looks = store.of_version(OLD), []
    await given_jobs(old, "job")
    await old.enqueue([a_run("a", due_ms=1)])
    await finished_now(old)
    await store.delete_jobs(["job"])
    claim_once = old.backend.claim

    async def counted(request, *, now_ms):
        looks.append(request)
        return await claim_once(request, now_ms=now_ms)

    monkeypatch.setattr(old.backend, "claim", counted)
    async with asyncio.timeout(SOON_S):
        waits = await claiming(old, redis, "t")
        assert await dropped(store, OLD, None) == 1
        looks.clear()
        await asyncio.sleep(0.5)
        seen = len(looks)
        await store.wake()
        await waits
    assert 2 <= seen <= 25, "once in 50 ms, and once more when it was first missed"


async def finished_now(store):
    runs = (await store.claim(node="n", token="first", limit=9, lease_ms=9_000)).runs
    assert await store.settle([settlement(run, Done()) for run in runs]) == [Answer.OK] * len(runs)


async def elected(store):
    await store.of_version(OLD).elect("new", ttl_ms=9_000, now_ms=T0)


async def beaten(store):
    await store.beat(Node("new", scheduler_version=OLD), ttl_ms=9_000, now_ms=T0)


async def put(store):
    await given_jobs(store.of_version(OLD), "job")


async def moved(store):
    await given_jobs(store, "job")
    await store.move_jobs(["job"], OLD, now_ms=T0)


@pytest.mark.parametrize("comes", [elected, beaten, put, moved])
async def test_a_dropped_version_that_comes_again_has_streams_and_a_higher_term(store, redis, url, comes, caplog):
    """Also with the first word that is heard of it, whichever that is: nobody has to mend anything."""
    before = await lived(store, redis, url)
    await dropped(store, OLD)
    await store.wake()

    await comes(store)

    for line in LINES:
        [group] = await redis.xinfo_groups(f"{prefix(url)}:v{OLD}:{line}")
        assert (group["name"], group["lag"], group["pending"]) == (b"scheduler", 0, 0)
    assert await lasting(redis, url) == await keys_of(redis, url) >= {*LINES, *BELLS}
    old = store.of_version(OLD)
    assert (await old.elect("new", ttl_ms=9_000, now_ms=T0)).number == before.number + 1
    for priority in (1, 2, 3):
        await given(old, a_run(f"again-{priority}", priority=priority))
    runs = await claim(old, now_ms=T0)
    assert ids(runs) == ["again-1", "again-2", "again-3"]
    pending = [(await redis.xinfo_groups(f"{prefix(url)}:v{OLD}:{line}"))[0]["pending"] for line in LINES]
    assert pending == [1, 1, 1]
    assert await store.settle([settlement(run, Done()) for run in runs], now_ms=T0) == [Answer.OK] * 3
    assert caplog.records == [], "no stream was missed"


async def claiming(store, redis, token):
    """A claim that waits, once it stands in its wait."""
    waits = asyncio.create_task(store.claim(node="n", token=token, limit=1, lease_ms=9_000, wait_ms=60_000))
    while True:
        if any(each["cmd"] == "xread" and "b" in each["flags"] for each in await redis.client_list()):
            return waits
        await asyncio.sleep(0.01)


@pytest.mark.usefixtures("only_rings")
async def test_workers_of_a_dropped_version_hear_its_bell_when_it_comes_again(store, redis):
    old = store.of_version(OLD)
    await given_jobs(old, "job")
    await store.move_jobs(["job"], 2)
    assert await dropped(store, OLD, None) == 1

    async with asyncio.timeout(SOON_S):
        waits = await claiming(old, redis, "t")
        await store.move_jobs(["job"], OLD)
        await store.enqueue([a_run("a", due_ms=1)])
        assert ids((await waits).runs) == ["a"]


async def test_the_first_version_keeps_the_streams_that_every_opening_makes(store, redis, url):
    await finished(store, a_run("a"))
    await store.delete_jobs(["job"], now_ms=T0)
    before = {key.decode() for key in await redis.keys(f"{prefix(url)}:*")}

    assert await dropped(store, 2) == 1

    gone = before - {key.decode() for key in await redis.keys(f"{prefix(url)}:*")}
    assert gone == {f"{prefix(url)}:feed"}
    assert {f"{prefix(url)}:{name}" for name in (*LINES, *BELLS)} <= before
