"""What if a key of ours is somebody else's?  The script says which, and has written nothing: it looks at all first."""

import msgspec
import pytest
from msgspec.structs import replace
from redis.asyncio import Redis

from pollux.errors import StoreError, StoreRefused
from pollux.model import AuditLine, Done, JobUpdate, Memory, Node, Note, NotePut, Plan
from pollux.store.contract import JobPut, Pruning
from pollux.store.redis.scripts import script, verbs
from pollux.store.redis.server import FORMAT
from pollux.testing.conformance.builders import (
    T0,
    a_firing,
    a_job,
    a_run,
    advance,
    dead_letter,
    given,
    given_jobs,
    leading,
    leased,
    renewal,
    settlement,
)
from tests.servers.redis import own_url, shared_url
from tests.store.test_redis_plain import FOREIGN
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
    return [verb for verb in verbs() if script(verb).writes and not verb.endswith("_plain")]


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


async def written_by(redis, verb):
    """The keys that its scripts write to, as the server sees it."""
    url, end, written = own_url("foreign"), own_url("end").rpartition("=")[2], {}
    async with opened(url) as store, Redis.from_url(shared_url()) as other, other.monitor() as watched:
        calls = await prepared_for(store, verb)
        await redis.get(f"{end}-begins")
        async for seen in watched.listen():
            if f"{end}-begins" in seen["command"]:
                break
        await calls[verb]()
        await redis.get(end)
        async for seen in watched.listen():
            if end in seen["command"]:
                break
            if seen["client_type"] == "lua":
                written |= dict.fromkeys(await keys_written(redis, seen["command"].split(" ")))
    return [key.removeprefix(f"{prefix(url)}:") for key in written]


async def keys_written(redis, words):
    """As the server itself says of a command; its keys stand before all that could have a space in it."""
    name, writing = words[0].lower(), await redis.execute_command("COMMAND LIST", "FILTERBY", "ACLCAT", "write")
    if {name.encode(), "|".join(words[:2]).lower().encode()}.isdisjoint(writing):
        return []
    return await redis.command_getkeys(*words)


def test_every_script_that_writes_is_tried():
    plain = [verb for verb in verbs() if verb.endswith("_plain")]
    assert [verb for verb in plain if verb.removesuffix("_plain") not in FOREIGN] == []
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
    run, mine = store._link.run, store._address.prefix
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
        "leave": lambda: store.leave("old"),
        "drop_version": lambda: store.drop_version(4, now_ms=T0),
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
            await store._link.run("delete_jobs", ids=["left"], reason="", limit=1, now=T0)
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
        await store._link.run(verb, **arguments)

    assert await dumped(redis, prefix(url)) == before


def test_every_script_says_what_it_may_do():
    assert len(verbs()) > 25
    assert [verb for verb in verbs() if not script(verb).text.startswith("#!lua")] == []
