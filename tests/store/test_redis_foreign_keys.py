"""Foreign keys under our names: the function names the key and writes nothing, since it checks all first."""

import msgspec
import pytest
from msgspec.structs import replace
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from pollux.errors import StoreError, StoreRefused
from pollux.model import (
    AuditLine,
    Back,
    CancelOrder,
    Cause,
    Dead,
    Done,
    Hold,
    Holding,
    JobUpdate,
    Memory,
    Node,
    Note,
    NotePut,
    Overlap,
    Plan,
    Release,
    RetryAt,
)
from pollux.store.contract import JobPut, Pruning
from pollux.store.redis.codec import pruning_of
from pollux.store.redis.library import library
from pollux.store.redis.server import FORMAT
from pollux.testing.conformance.builders import (
    LEASE_MS,
    T0,
    a_firing,
    a_job,
    a_run,
    advance,
    dead_letter,
    finished,
    given,
    given_jobs,
    leading,
    leased,
    renewal,
    settlement,
)
from tests.servers.redis import own_url, shared_url
from tests.store.test_redis_streams import opened, prefix


@pytest.fixture
def url():
    return own_url("foreign")


@pytest.fixture
async def store(url):
    async with opened(url) as store:
        yield store


# What a call only looks at; what it writes to is seen as it does.
LOOKED_AT = {
    "put_jobs": ["unfinished"],
    "elect": ["versions"],
    "beat": ["versions"],
    "load": ["log"],
    "drop_version": ["v4:bell:runs", "v4:bell:feed", "v4:jobs:high", "v4:jobs:normal", "v4:jobs:low"],
}


# Where a run is looked for and something else stands, the verb goes on; `test_redis_spoilt.py` has more of it.
TAKEN, NO_RUN = "an id is taken, by whomever", "what is no run of ours is passed over"
GOES_ON = {"enqueue": TAKEN, "advance": TAKEN, "load": TAKEN, "claim": NO_RUN, "move_jobs": NO_RUN}


def writers():
    return sorted(library().writing)


@pytest.mark.parametrize("verb", writers())
async def test_a_key_that_is_not_ours_is_refused_by_name_and_nothing_is_changed(redis, verb):
    """Whatever a script would have written before it came upon the key: it looks at all of them first."""
    keys = [*await written_by(redis, verb), *LOOKED_AT.get(verb, [])]
    for key in [key for key in keys if verb not in GOES_ON or not key.startswith("run:")]:
        foreign = own_url("foreign")
        async with opened(foreign) as store:
            mine = prefix(foreign)
            calls = await prepared_for(store, verb)
            name = f"{mine}:{key}"
            await redis.delete(name)
            await redis.set(name, "something of somebody else's")
            before = await dumped(redis, mine)

            with pytest.raises(StoreRefused, match=f"{name} is a string"):
                await calls[verb]()

            assert await dumped(redis, mine) == before, f"{verb} with {key}"


@pytest.mark.parametrize("job_id", ["db-replica-lag", "ZOOM-sync", "NOPERM", "UNFINISHED"])
async def test_a_key_that_is_not_ours_is_told_so_whatever_words_are_in_its_name(store, redis, url, job_id):
    await redis.set(f"{prefix(url)}:job:{job_id}", "something of somebody else's")

    with pytest.raises(StoreRefused, match=f"is not ours .*job:{job_id} is a string"):
        await store.put_jobs([JobPut(a_job(job_id))], now_ms=T0)


async def two_firings(store):
    """Both wait for what is live of their jobs: to see the second one's, what the first one left is written."""
    one, two = await given_jobs(store, "one", "two")
    await given(store, a_run("live-1", "one"), a_run("live-2", "two"), now_ms=T0)
    await given(store, *[a_run(f"gated-{n}", "two", gated=True) for n in range(4)])
    await leased(store, a_run("urgent", "two", priority=1), limit=1)
    [*_, item] = (await store.feed(limit=100)).items
    dues = T0 + 5, T0 + 60_005
    plan = Plan(
        consumed=(item.id,),
        firings=tuple(a_firing(job, due, overlap=Overlap.QUEUE) for due in dues for job in (one, two)),
        releases=(Release("gated-0"), Release("gated-1", alone=True)),
        holds=(Holding("gated-2", "because"),),
        cancels=(CancelOrder("gated-3", "enough"), CancelOrder("urgent", "enough")),
        updates=(JobUpdate("one", 1, T0 + 9, Memory()),),
        notes=(NotePut("n", 1, expires_ms=T0 + 9),),
    )
    term = await leading(store)
    return lambda: store.advance(term, plan, now_ms=T0 + 5)


async def two_replacements(store):
    """Under CANCEL what waits ends in the plan itself."""
    [job] = await given_jobs(store, "job")
    await given(store, a_run("live", cause=Cause.SCHEDULE))
    firings = tuple(a_firing(job, T0 + n, overlap=Overlap.CANCEL) for n in (5, 6))
    term = await leading(store)
    return lambda: store.advance(term, Plan(firings=firings), now_ms=T0 + 5)


async def lost_leases(store):
    """Some go back into line, some end; a run behind them has no job any more."""
    for priority in (1, 2, 3):
        job = f"job-{priority}"
        await leased(store, a_run(f"lost-{priority}", job, priority=priority))
    await store.cancel(run_ids=["lost-3"], now_ms=T0)
    for priority in (1, 2, 3):
        await given(store, a_run(f"next-{priority}", f"job-{priority}", priority=priority))
        await given(store, a_run(f"other-{priority}", f"other-{priority}", priority=priority))
    await store.backend.link()._over(lambda line: line.ask("DEL", f"{store.backend.address.prefix}:job:other-1"))
    return lambda: store.claim(node="n", token="t", limit=8, lease_ms=9, now_ms=T0 + LEASE_MS)


async def nothing_to_claim(store):
    await leased(store, a_run("held"))
    return lambda: store.claim(node="n", token="t", limit=5, lease_ms=9, now_ms=T0)


async def many_ends(store):
    """One clears its job's dead letters, one replaces them; follow-ups and notes come along."""
    await dead_letter(store, a_run("dead-1", "one"))
    await dead_letter(store, a_run("dead-2", "two"))
    runs = [await leased(store, a_run(f"run-{n}", job)) for n, job in enumerate(("one", "two", "one", "two", "one"))]
    follow_ups = (a_run("after", "two", key="k"), a_run("gated", "one", gated=True))
    verdicts = Dead("no", sole=True), Done(clears=True), RetryAt(T0 + 9), Back(), Hold("because")
    settlements = [settlement(run, verdict) for run, verdict in zip(runs, verdicts, strict=True)]
    settlements[0] = replace(settlements[0], follow_ups=follow_ups, notes=(NotePut("n", 1, expires_ms=T0 + 9),))
    return lambda: store.settle(settlements, now_ms=T0)


async def all_kinds_of_waste(store):
    for n in range(4):
        await finished(store, a_run(f"done-{n}", f"job-{n % 2}"), changed=bool(n % 2))
        await dead_letter(store, a_run(f"dead-{n}", f"job-{n % 2}"))
    await store.log([AuditLine(n, "a", "b", "c") for n in range(3)])
    what = Pruning(
        ids=("dead-0", "done-0"),
        **{f"{each}_before_ms": T0 + 9 for each in ("unchanged", "finished", "once", "dead")},
        keep_per_job=0,
        dead_max=0,
        log_max=1,
    )
    return lambda: store.backend.calls()("prune", **pruning_of(what, 100))


async def a_crowd_to_move(store):
    for priority in (1, 2, 3):
        await leased(store, a_run(f"leased-{priority}", f"job-{priority}", priority=priority))
    for priority in (1, 2, 3):
        await given(store, a_run(f"ready-{priority}", f"job-{priority}", priority=priority))
        await given(store, a_run(f"held-{priority}", f"job-{priority}", gated=True))
    return lambda: store.move_jobs(["job-1", "job-2", "job-3"], 3, now_ms=T0)


async def a_crowd_to_delete(store):
    for n in range(3):
        await given(store, a_run(f"ready-{n}", f"job-{n}", key=f"k{n}"), a_run(f"held-{n}", f"job-{n}", gated=True))
    return lambda: store.delete_jobs(["job-0", "job-1", "job-2"], now_ms=T0)


async def what_a_deleted_job_left(store):
    """It comes again in another version, and what is leased of it comes along."""
    for priority in (1, 3):
        await leased(store, a_run(f"left-{priority}", f"job-{priority}", priority=priority))
    await store.delete_jobs(["job-1", "job-3"], now_ms=T0)
    there = store.of_version(3)
    return lambda: there.put_jobs([JobPut(a_job("job-1")), JobPut(a_job("job-3"))], now_ms=T0)


async def a_term_of_a_new_version(store):
    there = store.of_version(3)
    return lambda: there.elect("leader", ttl_ms=9_000, now_ms=T0)


async def a_node_of_a_new_version(store):
    return lambda: store.beat(Node("n", scheduler_version=3), ttl_ms=9_000, now_ms=T0)


async def a_load_of_all_kinds(store):
    async with opened(own_url("foreign")) as other:
        await many_ends(other)
        await given(other.of_version(3), a_run("there", "other"), a_run("gated", "other", gated=True))
        await leading(other.of_version(3))
        await other.put_notes([NotePut("m", 1, expires_ms=T0 + 9)], now_ms=T0)
        await other.log([AuditLine(9, "a", "b", "c")])
        await given_jobs(other, "gone")
        await other.delete_jobs(["gone"], now_ms=T0)
        records = (await other.dump()).records
    return lambda: store.load(records)


BUSY = [
    *(two_firings, two_replacements, lost_leases, nothing_to_claim, many_ends, all_kinds_of_waste, a_crowd_to_move),
    *(a_crowd_to_delete, what_a_deleted_job_left, a_term_of_a_new_version, a_node_of_a_new_version),
    a_load_of_all_kinds,
]


@pytest.mark.parametrize("prepare", BUSY)
async def test_a_call_that_is_refused_for_a_key_that_it_comes_upon_late_has_written_nothing(redis, prepare):
    """Also where a script has to write a part of it to see how the rest stands: it looks at the other keys before."""
    async with opened(own_url("foreign")) as store:
        keys = await touched_by(redis, store, await prepare(store))
    halves = {}
    for key in keys:
        async with opened(own_url("foreign")) as store:
            ask, mine = await prepare(store), store.backend.address.prefix
            await redis.delete(f"{mine}:{key}")
            await redis.set(f"{mine}:{key}", "something of somebody else's")
            before = await dumped(redis, mine)
            if (refusal := await refused(ask)) is not None:
                assert f"{mine}:{key} is a string" in str(refusal)
                halves[key] = differences(before, await dumped(redis, mine))
    assert halves, "none was refused"
    assert {key: changed for key, changed in halves.items() if changed} == {}


async def refused(ask):
    try:
        await ask()
    except StoreRefused as refusal:
        return refusal
    return None


def differences(before, after):
    return sorted(key.decode() for key in {*before, *after} if before.get(key) != after.get(key))


async def written_by(redis, verb):
    """The keys that its scripts write to, as the server sees it."""
    async with opened(own_url("foreign")) as store:
        calls = await prepared_for(store, verb)
        return [key for key, is_written in (await touched_by(redis, store, calls[verb])).items() if is_written]


async def touched_by(redis, store, ask):
    """The keys that the scripts of a call look at, as the server sees it, and whether they write to them."""
    end, touched = own_url("end").rpartition("=")[2], {}
    async with Redis.from_url(shared_url()) as other, other.monitor() as watched:
        await redis.get(f"{end}-begins")
        async for seen in watched.listen():
            if f"{end}-begins" in seen["command"]:
                break
        await ask()
        await redis.get(end)
        async for seen in watched.listen():
            if end in seen["command"]:
                break
            if seen["client_type"] == "lua":
                words = seen["command"].split(" ")
                is_written = await writes(redis, words)
                for key in await keys_of(redis, words):
                    touched[key] = touched.get(key, False) or is_written
    return {key.removeprefix(f"{store.backend.address.prefix}:"): is_written for key, is_written in touched.items()}


async def writes(redis, words):
    """As the server itself says of a command."""
    writing = await redis.execute_command("COMMAND LIST", "FILTERBY", "ACLCAT", "write")
    return not {words[0].lower().encode(), "|".join(words[:2]).lower().encode()}.isdisjoint(writing)


async def keys_of(redis, words):
    """They stand before all that could have a space in it."""
    try:
        return await redis.command_getkeys(*words)
    except ResponseError:  # it has none
        return []


def test_every_script_that_writes_is_tried():
    assert sorted({*LOOKED_AT, *GOES_ON} - set(writers())) == []


async def prepared(store):
    """A store in which each verb has something to write."""
    [job] = await given_jobs(store, "job")
    await advance(store, updates=(JobUpdate("job", 1, T0 + 5, Memory()),))
    await store.put_jobs([JobPut(replace(job, name="again"))], now_ms=T0)
    await dead_letter(store, a_run("dead"))
    held = await leased(store, a_run("held", key="k"))
    await given(store, a_run("ready"))
    page = await store.dump()
    note = NotePut("n", 1)
    fresh = a_run("x", key="y")
    gated = a_run("z", gated=True)
    firing = a_firing(replace(job, revision=2), T0 + 5)
    term = await leading(store)
    await store.beat(Node("old"), ttl_ms=9_000, now_ms=T0)
    await store.log([AuditLine(n, "a", "b", "c") for n in range(3)])
    await store.of_version(4).beat(Node("other", scheduler_version=4), ttl_ms=9_000, now_ms=T0)
    new = [(kind, data | {"id": f"new-{data['id']}"}) for kind, data in page.records if kind == "run"]
    new += [("note", msgspec.to_builtins(Note("m", 1, 1))), ("log", msgspec.to_builtins(AuditLine(9, "a", "b", "c")))]
    run, mine = store.backend.link().run, store.backend.address.prefix
    calls = {
        "enqueue": lambda: store.enqueue([fresh, gated], now_ms=T0),
        "claim": lambda: store.claim(node="n", token="t", limit=5, lease_ms=9, now_ms=T0),
        "settle": lambda: store.settle([settlement(held, Done())], now_ms=T0),
        "cancel": lambda: store.cancel(run_ids=["ready"], now_ms=T0),
        "advance": lambda: store.advance(term, Plan(consumed=(1,), firings=(firing,), notes=(note,)), now_ms=T0 + 5),
        "delete_jobs": lambda: store.delete_jobs(["job"], now_ms=T0),
        "put_jobs": lambda: store.put_jobs([JobPut(replace(job, name="other")), JobPut(a_job("two"))], now_ms=T0),
        "revive": lambda: store.revive(["dead"], now_ms=T0),
        "renew": lambda: store.renew([renewal(held)], lease_ms=9, now_ms=T0),
        "load": lambda: store.load(new),
        "move_jobs": lambda: store.move_jobs(["job"], 3, now_ms=T0),
        "put_notes": lambda: store.put_notes([NotePut("k", 1, expires_ms=T0 + 9)], now_ms=T0),
        "prune": lambda: store.prune(Pruning(ids=("dead",), log_max=1)),
        "log": lambda: store.log([AuditLine(9, "a", "b", "c")]),
        "elect": lambda: store.elect("leader", ttl_ms=9_000, now_ms=T0),
        "resign": lambda: store.resign("leader", term=term, now_ms=T0),
        "beat": lambda: store.beat(Node("new"), ttl_ms=9_000, now_ms=T0),
        "drop_version": lambda: store.prune(Pruning(version=4), now_ms=T0),
        "wake": store.wake,
        "bury": lambda: run("bury", token=held.token.rpartition(":")[0], items=[["held", "spoilt"]], now=T0),
        "finish": lambda: run("finish", ids=["left"], limit=9, now=T0),
        "mend_runs": lambda: run("mend_runs", ids=["ready", "held", "dead"]),
        "mend_members": lambda: run("mend_members", key=f"{mine}:leases", members=["nobody"], begins=1),
        "mend_jobs": lambda: run("mend_jobs", ids=["job", "nobody"], dues=[f"{T0:015}nobody"], version=2),
        "mend_counts": lambda: run("mend_counts", jobs=["job", "nobody"], versions=[2, 4]),
        "open": lambda: run("open", format=FORMAT, home="a new one"),
    }
    return calls, held


async def prepared_for(store, verb):
    calls, _ = await prepared(store)
    match verb:
        case "finish":  # a job was deleted by somebody who did not come to the end of it
            await given(store, a_run("l0", "left"), a_run("l1", "left"))
            await store.backend.link().run("delete_jobs", ids=["left"], reason="", limit=1, now=T0)
        case "cancel":  # its owner is rung in every version
            calls["cancel"] = lambda: store.cancel(run_ids=["ready", "held"], now_ms=T0)
    return calls


async def dumped(redis, mine):
    keys = sorted(await redis.keys(f"{mine}:*"))
    return {key: await redis.dump(key) for key in keys}


@pytest.mark.parametrize(
    ("verb", "arguments"),
    [
        ("enqueue", {"rows": [["x", {"st": "ready", "job": "job", "due": T0, "vis": T0}, False], ["y"]], "notes": []}),
        ("settle", {"items": [["held", "its token", True, [T0, T0]], 5], "at_the_gate": "g"}),
        ("settle", {"items": "no"}),
        ("claim", {"node": "n", "token": "t", "limit": "many", "lease_ms": 9, "first": 1, "hold_ms": 0, "feed_max": 9}),
        ("cancel", {"ids": ["ready", {}], "job": False, "reason": ""}),
        ("advance", {"consumed": [1], "firings": [["no"]], "releases": []}),
        ("load", {"items": [["note", "m", "1", False, 1], ["nonsense"]]}),
    ],
)
async def test_what_a_script_does_not_understand_changes_nothing(store, redis, url, verb, arguments):
    """Scripts are called by us alone; should a release of ours call another one's, nothing is half written."""
    _, held = await prepared(store)
    arguments = {"now": T0, "term": await leading(store), "ready_max": 99, "losses_max": 9} | arguments
    if isinstance(arguments.get("items"), list) and verb == "settle":
        arguments["items"][0][1] = held.token
    before = await dumped(redis, prefix(url))

    with pytest.raises(StoreError):
        await store.backend.link().run(verb, **arguments)

    assert await dumped(redis, prefix(url)) == before
