"""Streams show operators the truth, and no accident to them loses a run."""

import asyncio
from contextlib import asynccontextmanager
from random import Random

import pytest

from pollux.clock import FakeClock
from pollux.model import Back, Dead, Done, Hold, Node, RetryAt, RunState
from pollux.store.contract import Answer
from pollux.store.redis import RedisStore
from pollux.store.redis.library import library
from pollux.testing.conformance.builders import (
    LEASE_MS,
    T0,
    a_run,
    an_outcome,
    claim,
    finished,
    given,
    given_jobs,
    ids,
    leased,
    release,
    settlement,
    the_run,
)
from tests.servers.redis import own_url, shared_url

LEFT_OUT = {"cmdstat_config|resetstat", "cmdstat_xdel"}
TRIES = 3  # for what is to be quick


@pytest.fixture
def url():
    return own_url("streams")


@pytest.fixture
async def store(url):
    async with opened(url) as store:
        yield store


@asynccontextmanager
async def opened(url, **options):
    store = RedisStore(url, **options)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def prefix(url):
    return f"pollux:{url.partition('namespace=')[2]}"


async def lag_and_pending(redis, url, line="normal", version=""):
    [group] = await redis.xinfo_groups(f"{prefix(url)}:{version}jobs:{line}")
    assert group["name"] == b"scheduler"
    return group["lag"], group["pending"]


async def test_the_lag_of_a_line_is_what_is_ready_and_pending_is_what_is_leased(store, redis, url):
    await given(store, *(a_run(f"r{n}") for n in range(5)), a_run("later", due_ms=T0 + 60_000))
    assert await lag_and_pending(redis, url) == (5, 0)

    runs = await claim(store, 3, now_ms=T0)
    assert await lag_and_pending(redis, url) == (2, 3)

    await store.settle([settlement(run, Done()) for run in runs[:2]], now_ms=T0)
    assert await lag_and_pending(redis, url) == (2, 1)
    assert await redis.xlen(f"{prefix(url)}:jobs:normal") == 3


async def test_what_becomes_visible_by_itself_enters_the_line(store, redis, url):
    await given(store, *(a_run(f"r{n}", due_ms=T0 + 5_000, priority=1) for n in range(3)))
    assert await lag_and_pending(redis, url, "high") == (0, 0)

    assert len(await claim(store, 1, now_ms=T0 + 5_000)) == 1

    assert await lag_and_pending(redis, url, "high") == (2, 1)


async def test_the_entry_of_a_run_that_was_cancelled_goes_with_the_next_claim(store, redis, url):
    await given(store, a_run("a"), a_run("b"))
    await store.cancel(run_ids=["a"], now_ms=T0)

    assert ids(await claim(store, now_ms=T0)) == ["b"]

    assert await lag_and_pending(redis, url) == (0, 1)


async def test_a_lost_lease_leaves_nothing_pending_behind(store, redis, url):
    await given(store, a_run("a"))
    await claim(store, node="dead", now_ms=T0)

    await claim(store, node="heir", now_ms=T0 + LEASE_MS)

    assert await lag_and_pending(redis, url) == (0, 1)
    consumers = await redis.xinfo_consumers(f"{prefix(url)}:jobs:normal", "scheduler")
    assert {row["name"]: row["pending"] for row in consumers} == {b"dead": 0, b"heir": 1}


@pytest.mark.parametrize("way", ["moved", "added again"])
async def test_a_lease_that_comes_into_another_version_takes_no_entry_of_those_that_wait_there(store, redis, url, way):
    there = store.of_version(3)
    await given_jobs(there, "other")
    await given(there, a_run("a", "other"), a_run("b", "other"))
    held = await leased(store, a_run("held"))
    if way == "moved":
        await store.move_jobs(["job"], 3, now_ms=T0)
    else:
        await store.delete_jobs(["job"], now_ms=T0)
        await given_jobs(there, "job")

    assert await lag_and_pending(redis, url, version="v3:") == (2, 1)
    assert await lag_and_pending(redis, url) == (0, 0)

    await store.settle([settlement(held, Done())], now_ms=T0)
    assert len(await claim(there, now_ms=T0)) == 2
    assert await lag_and_pending(redis, url, version="v3:") == (0, 2)


async def truth(store, redis, url, now_ms):
    """What the streams say of each line, and what the store says: they are the same at any quiet moment."""
    runs = await everything(store)
    for number, line in enumerate(("high", "normal", "low"), 1):
        mine = [run for run in runs if run.priority == number]
        ready = sum(run.state is RunState.READY and run.visible_ms <= now_ms for run in mine)
        leases = sum(run.state is RunState.LEASED for run in mine)
        assert await lag_and_pending(redis, url, line) == (ready, leases)
        beyond = await redis.xlen(f"{prefix(url)}:jobs:{line}") - ready - leases
        assert beyond in (0, 1), "the entry that was delivered last may stay until a later one is"


async def everything(store):
    found, after = [], None
    while True:
        page = await store.list_runs(after=after, limit=1_000)
        found += page.runs
        after = page.next
        if after is None:
            return found


async def test_the_streams_tell_the_truth_after_every_verb(store, redis, url):
    runs = [a_run(f"r{n}", priority=1 + n % 3) for n in range(18)]
    await given(store, *runs, a_run("later", due_ms=T0 + 60_000), a_run("gated", gated=True))
    await truth(store, redis, url, T0)

    first, second, third, *_ = held = await claim(store, 9, now_ms=T0)
    await truth(store, redis, url, T0)

    verdicts = [RetryAt(T0 + 5_000), Back(), Hold("not here"), Dead("no"), *[Done()] * 3]
    await store.settle([settlement(*each) for each in zip(held, verdicts, strict=False)], now_ms=T0)
    await truth(store, redis, url, T0)

    waiting = [run.id for run in await everything(store) if run.state is RunState.READY and run.visible_ms <= T0]
    await store.cancel(run_ids=[*waiting[:3], "later"], now_ms=T0)
    await truth(store, redis, url, T0)

    await store.revive([run.id for run in held], now_ms=T0)
    await release(store, third.id, "gated", now_ms=T0)
    await truth(store, redis, url, T0)

    await claim(store, 2, now_ms=T0 + 6_000)  # one of those that became visible meanwhile
    await truth(store, redis, url, T0 + 6_000)

    await claim(store, 2, now_ms=T0 + 6_000 + LEASE_MS)  # and some leases ended
    await truth(store, redis, url, T0 + 6_000 + LEASE_MS)

    await store.delete_jobs(["job"], now_ms=T0 + 6_000 + LEASE_MS)
    await truth(store, redis, url, T0 + 6_000 + LEASE_MS)
    names = {row["name"] for row in await redis.xinfo_consumers(f"{prefix(url)}:jobs:normal", "scheduler")}
    assert names <= {b"n", b"node", first.owner.encode(), second.owner.encode()}


@pytest.mark.parametrize("seed", range(3))
async def test_the_streams_tell_the_truth_after_any_calls_in_any_order(store, redis, url, seed):
    """Only a claim advances the clock: a run that becomes visible by itself gets its entry with the next such call."""
    dice, now_ms, made, held = Random(seed), T0, [], []
    await given_jobs(store, "job")
    for nth in range(120):
        match dice.choice(["enqueue", "claim", "claim", "settle", "settle", "cancel"]):
            case "enqueue":
                more = [f"r{nth}-{n}" for n in range(dice.randint(1, 4))]
                delay_ms, priority = dice.choice([0, 0, 5, 500]), dice.choice([1, 2, 2, 3])
                runs = [a_run(run_id, due_ms=now_ms + delay_ms, priority=priority) for run_id in more]
                await store.enqueue([*runs, a_run(f"g{nth}", gated=True)][: dice.randint(1, 5)], now_ms=now_ms)
                made += more
            case "claim":
                now_ms += dice.choice([0, 1, 400, LEASE_MS])
                lease_ms = dice.choice([300, LEASE_MS, 10 * LEASE_MS])
                held += await claim(store, dice.choice([1, 2, 9]), lease_ms=lease_ms, now_ms=now_ms)
            case "settle":
                dice.shuffle(held)
                some, held = held[:3], held[3:]
                later_ms = now_ms + 300
                other = [RetryAt(later_ms), Back(), Back(later_ms), Hold("not here"), Dead("no")]
                verdict, outcome = dice.choice([*other, *[Done()] * 5]), an_outcome(now_ms)
                await store.settle([settlement(run, verdict, outcome=outcome) for run in some], now_ms=now_ms)
            case _:
                await store.cancel(run_ids=made[-2:], now_ms=now_ms)
        await truth(store, redis, url, now_ms)


async def test_consumers_that_nobody_is_any_more_go_but_none_that_holds_a_run(store, redis, url):
    await given(store, a_run("a"))
    await claim(store, node="busy", now_ms=T0)
    await claim(store, node="idle", now_ms=T0)
    await redis.xgroup_createconsumer(f"{prefix(url)}:jobs:normal", "scheduler", "gone")

    await store.beat(Node("new"), ttl_ms=1_000, now_ms=T0)

    consumers = await redis.xinfo_consumers(f"{prefix(url)}:jobs:normal", "scheduler")
    assert [row["name"] for row in consumers] == [b"busy"]


async def test_the_consumer_of_a_dead_node_goes_as_soon_as_its_leases_are_taken_back(store, redis, url):
    await given(store, a_run("a"))
    await store.beat(Node("dead"), ttl_ms=1_000, now_ms=T0)
    await store.beat(Node("heir"), ttl_ms=10**6, now_ms=T0)
    await claim(store, node="dead", now_ms=T0)
    await store.beat(Node("heir"), ttl_ms=10**6, now_ms=T0 + 15_000)
    consumers = await redis.xinfo_consumers(f"{prefix(url)}:jobs:normal", "scheduler")
    assert [row["name"] for row in consumers] == [b"dead"], "what it holds would be lost with it"

    await claim(store, node="heir", now_ms=T0 + LEASE_MS)
    await store.beat(Node("heir"), ttl_ms=10**6, now_ms=T0 + LEASE_MS)

    consumers = await redis.xinfo_consumers(f"{prefix(url)}:jobs:normal", "scheduler")
    assert [row["name"] for row in consumers] == [b"heir"]


@pytest.mark.parametrize("accident", ["group", "stream", "read by somebody", "functions"])
async def test_no_run_is_lost_by_what_happens_to_a_stream(store, redis, url, accident):
    stream = f"{prefix(url)}:jobs:normal"
    await given(store, a_run("a"), a_run("b"))
    match accident:
        case "group":
            await redis.xgroup_destroy(stream, "scheduler")
        case "stream":
            await redis.delete(stream)
        case "read by somebody":
            await redis.xreadgroup("scheduler", "somebody", {stream: ">"}, count=9)
        case _:
            await redis.execute_command("FUNCTION", "DELETE", library().name)

    runs = await claim(store, now_ms=T0)

    assert ids(runs) == ["a", "b"]
    assert await store.settle([settlement(run, Done()) for run in runs], now_ms=T0) == [Answer.OK, Answer.OK]


async def test_an_entry_that_was_put_there_by_hand_runs_nothing(store, redis, url):
    await given(store, a_run("a"))
    await redis.xadd(f"{prefix(url)}:jobs:normal", {"nonsense": "1"})

    assert ids(await claim(store, now_ms=T0)) == ["a"]
    assert await claim(store, now_ms=T0) == ()
    assert await lag_and_pending(redis, url) == (0, 1)


@pytest.mark.parametrize("accident", ["group", "stream"])
async def test_a_deleted_stream_is_made_anew_and_that_is_said_once(store, redis, url, caplog, accident):
    stream = f"{prefix(url)}:jobs:normal"
    await given(store, *(a_run(f"r{n}") for n in range(6)))
    before = await claim(store, 2, now_ms=T0)
    match accident:
        case "group":
            await redis.xgroup_destroy(stream, "scheduler")
        case _:
            await redis.delete(stream)

    after = await claim(store, 1, now_ms=T0)
    await claim(store, 1, now_ms=T0)  # the entries of those who wait are written by then

    assert [record.getMessage() for record in caplog.records] == [
        f"the stream {stream} or its group was deleted by another client; it was made anew, no run is lost"
    ]
    assert await lag_and_pending(redis, url) == (2, 2), "the first two were leased before; their entries are gone"
    await store.settle([settlement(run, Done()) for run in (*before, *after)], now_ms=T0)
    assert await lag_and_pending(redis, url) == (2, 1)
    assert len(await claim(store, now_ms=T0)) == 2


async def test_what_is_no_run_is_taken_out_of_the_line_and_said_and_the_others_go_on(store, redis, url, caplog):
    await given(store, *(a_run(f"r{n}") for n in range(4)))
    keys = [f"{prefix(url)}:run:{name}" for name in ("r0", "r1", "r2")]
    await redis.hset(keys[0], "s", b"\xc1 nonsense")
    await redis.set(keys[1], "a text")
    await redis.delete(keys[2])

    assert ids(await claim(store, now_ms=T0)) == ["r3"]
    assert await claim(store, now_ms=T0) == ()

    said = [record.getMessage() for record in caplog.records]
    assert said == [
        f"the key {key} was in a queue and is no run of ours: another client wrote it; it was taken out"
        for key in keys[:2]
    ]
    assert await lag_and_pending(redis, url) == (0, 1)


async def test_cancelling_many_runs_of_a_job_never_keeps_the_server_for_long(store, redis, url):
    """All of them end, by many short scripts; another one would have been as long as all of these together.

    The machine may stand still in the middle of one, but not each time.
    """
    many = 20_000
    await given_jobs(store, "job")
    shares = []
    for nth in range(TRIES):
        took = await _took_to_cancel(store, redis, [f"r{nth}-{n:05}" for n in range(many)])
        assert await lag_and_pending(redis, url) == (0, 0)
        assert len(took) >= many / 250
        shares.append(max(took) / sum(took))
        if shares[-1] < 0.1:
            break
    assert min(shares) < 0.1


async def _took_to_cancel(store, redis, named, whole=1_000):
    """How long each script kept the server, in microseconds."""
    for first in range(0, len(named), whole):
        await store.enqueue([a_run(run_id) for run_id in named[first : first + whole]], now_ms=T0)
    await redis.config_set("slowlog-log-slower-than", 300)  # longer than any command in a script
    await redis.config_set("slowlog-max-len", 5_000)
    await redis.slowlog_reset()

    answers = await store.cancel(job_id="job", now_ms=T0)

    log = await redis.slowlog_get(5_000)
    await redis.config_set("slowlog-log-slower-than", -1)
    assert [answer.id for answer in answers] == named
    assert {answer.answer for answer in answers} == {Answer.OK}
    counts = await store.counts()
    assert (counts.ready, counts.held, counts.leased) == (0, 0, 0)
    return [entry["duration"] for entry in log if entry["command"].startswith(b"FCALL")]


async def test_a_job_with_very_many_runs_is_deleted_with_all_that_wait(store, url):
    await given_jobs(store, "job", "small")
    for first in range(0, 2_000, 500):
        await store.enqueue([a_run(f"r{n}", gated=n % 2 == 0) for n in range(first, first + 500)], now_ms=T0)
    await store.enqueue([a_run("s", "small")], now_ms=T0)
    await claim(store, 300, now_ms=T0)

    assert await store.delete_jobs(["small", "job", "none"], now_ms=T0) == [Answer.OK, Answer.OK, Answer.LOST]

    counts = await store.counts()
    assert (counts.ready, counts.held, counts.leased, counts.jobs) == (0, 0, 300, 0)
    assert {run.cancel for run in await everything(store) if run.is_finished} == {"its job was deleted"}


async def test_every_key_begins_with_the_prefix_and_namespace(redis):
    url = f"{shared_url()}?prefix=crawler-{own_url('x').rpartition('-')[2]}&namespace=two"
    before = set(await redis.keys())
    async with opened(url) as store:
        await finished(store, a_run("a", key="k"))
        await given(store, a_run("b", gated=True), a_run("c", due_ms=T0 + 1))
        await claim(store, now_ms=T0 + 1)

    new = set(await redis.keys()) - before
    ours = url.partition("prefix=")[2].replace("&namespace=", ":").encode() + b":"
    assert ours + b"jobs:normal" in new
    assert [key for key in new if b"crawler-" in key and not key.startswith(ours)] == []
    await redis.delete(*(key for key in new if key.startswith(ours)))


async def test_a_claim_costs_the_same_commands_however_much_else_there_is(store, redis, url):
    """At ten ready runs, and at a thousand beside thousands that are delayed and finished."""

    async def commands(now_ms):
        await redis.config_resetstat()
        runs = await claim(store, 10, now_ms=now_ms)
        stats = await redis.info("commandstats")
        assert len(runs) == 10
        await store.settle([settlement(run, Done()) for run in runs], now_ms=now_ms)
        # The entry that was delivered last may be left of the claim before: it goes with this one.
        return {name: figures["calls"] for name, figures in stats.items() if name not in LEFT_OUT}

    await given(store, *(a_run(f"r{n}") for n in range(20)))
    await commands(T0)  # a server that does not know the functions yet is sent them
    few = await commands(T0)
    for n in range(3):
        await given(store, *(a_run(f"later{n}-{m}", due_ms=T0 + 10**9) for m in range(1_000)))
    await given(store, *(a_run(f"past{n}") for n in range(1_000)))
    await store.settle([settlement(run, Done()) for run in await claim(store, 1_000, now_ms=T0)], now_ms=T0)
    await given(store, *(a_run(f"s{n}") for n in range(1_000)))

    assert await commands(T0 + 1) == few


async def test_one_call_is_one_round_trip(store, redis, url):
    await given_jobs(store, "job")
    await store.enqueue([a_run("warm")], now_ms=T0)
    await redis.config_resetstat()

    await store.enqueue([a_run(f"r{n}") for n in range(500)], now_ms=T0)

    stats = await redis.info("commandstats")
    assert stats["cmdstat_fcall"]["calls"] == 1


async def blocked(redis):
    """Where the readers of the bell sit, as soon as one does."""
    async with asyncio.timeout(60):
        while True:
            if found := [row["addr"] for row in await redis.client_list() if row["cmd"] == "xread"]:
                return found
            await asyncio.sleep(0.01)


@pytest.mark.usefixtures("only_rings")
async def test_a_waiter_is_not_deaf_after_its_connection_was_killed(store, redis, url):
    await given_jobs(store, "job")
    for n in range(3):
        waits = asyncio.ensure_future(store.claim(node="n", token=f"t{n}", limit=1, lease_ms=60_000, wait_ms=60_000))
        for address in await blocked(redis):
            await redis.client_kill(address)

        await store.enqueue([a_run(f"r{n}", due_ms=0)])

        async with asyncio.timeout(50):
            assert ids((await waits).runs) == [f"r{n}"]


@pytest.mark.usefixtures("only_rings")
@pytest.mark.parametrize("accident", ["nothing", "the bell is new", "many rings"])
async def test_who_is_woken_while_its_connection_is_broken_comes_back(store, redis, url, accident):
    """The connection is killed and the bell rung in one step: the ring comes while nobody hears."""
    await given_jobs(store, "job")
    await store.enqueue([a_run("r", due_ms=0)])
    await store.claim(node="m", token="u", limit=1, lease_ms=60_000)
    waits = asyncio.ensure_future(store.claim(node="n", token="t", limit=1, lease_ms=60_000, wait_ms=60_000))
    addresses = await blocked(redis)
    bell = f"{prefix(url)}:bell:runs"
    step = redis.pipeline(transaction=True)
    for address in addresses:
        step.client_kill(address)
    if accident == "the bell is new":
        step.delete(bell)
    step.xadd(bell, {"kind": "wake"}, id="1-1" if accident == "the bell is new" else "*")
    if accident == "many rings":
        step.xadd(bell, {"kind": "silent"}, maxlen=1, approximate=False)

    await step.execute()

    async with asyncio.timeout(50):
        assert (await waits).runs == ()


@pytest.mark.usefixtures("only_rings")
async def test_who_is_woken_by_nobody_waits_on_while_its_connection_is_broken(store, redis, url):
    waits = asyncio.ensure_future(store.claim(node="n", token="t", limit=1, lease_ms=60_000, wait_ms=60_000))
    for _ in range(3):
        before = await blocked(redis)
        for address in before:
            await redis.client_kill(address)
        async with asyncio.timeout(60):
            while await blocked(redis) == before:  # noqa: ASYNC110  the server rings no bell
                await asyncio.sleep(0.01)

    assert not waits.done()
    await store.wake()
    async with asyncio.timeout(50):
        assert (await waits).runs == ()


async def test_after_a_leap_of_the_servers_clock_the_living_keep_their_leases(url):
    """The server's clock goes on while our monotonic time stands still: to us it has leapt."""
    clock = FakeClock()
    async with opened(url, clock=clock) as store:
        await given(store, a_run("a", due_ms=0))
        [run] = (await store.claim(node="n", token="one", limit=1, lease_ms=300)).runs
        await asyncio.sleep(1.4)

        held = await store.claim(node="n", token="two", limit=1, lease_ms=300)
        assert (held.runs, (await the_run(store, "a")).token) == ((), run.token)
        await clock.advance(10_000)
        assert ids((await store.claim(node="n", token="three", limit=1, lease_ms=300)).runs) == ["a"]
