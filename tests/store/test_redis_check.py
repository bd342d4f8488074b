"""Findings of `store check` on Redis: each kind planted by hand; none in a store that is sound."""

import asyncio

import msgspec
import pytest
from redis.asyncio import Redis

from pollux.errors import InvalidInput, StoreError, StoreRefused
from pollux.model import AuditLine, JobUpdate, Memory, Plan, RunState
from pollux.store.contract import Pruning
from pollux.store.redis import RedisStore
from pollux.store.redis.address import read_address
from pollux.store.redis.check import check, repair
from pollux.store.redis.inspect import lacking
from pollux.store.redis.library import KEYS
from pollux.testing.conformance.builders import T0, a_run
from tests.acceptance.move_world import populate
from tests.acceptance.terminal import SameProcess
from tests.servers.redis import RedisServer, own_url, shared_url


def silent(*_) -> None:
    """Nobody looks at the progress."""


class Hand:
    """Somebody at redis-cli, with the names of this store's keys."""

    def __init__(self, url):
        self.prefix = read_address(url).prefix
        self.client = Redis.from_url(url.partition("?")[0])

    def key(self, name):
        return f"{self.prefix}:{name}"

    async def __call__(self, command, name, *arguments):
        return await self.client.execute_command(command, self.key(name), *arguments)

    async def names(self):
        return [key.decode().removeprefix(self.key("")) async for key in self.client.scan_iter(self.key("*"))]

    async def stand(self, run_id):
        """What the hash of a run says of how it stands."""
        return msgspec.msgpack.decode(await self("HGET", f"run:{run_id}", "s"))

    async def member(self, name, run_id):
        """The member of an index that names this run."""
        [found] = [each for each in await self("ZRANGE", name, 0, -1) if each.endswith(run_id.encode())]
        return found


@pytest.fixture
async def url():
    """A store with something of everything in it."""
    return await filled(own_url("check"))


async def filled(url):
    store = RedisStore(url)
    await store.open()
    await populate(store)
    await store.close()
    return url


@pytest.fixture
async def hand(url):
    hand = Hand(url)
    yield hand
    await hand.client.aclose()


async def found(url):
    return {finding.rule: finding for finding in (await check(url, silent)).findings}


async def rules(url):
    return list(await found(url))


async def ids_in(url, state):
    store = RedisStore(url)
    await store.open()
    runs = (await store.list_runs(limit=1_000)).runs
    await store.close()
    return sorted(run.id for run in runs if run.state is state)


async def test_a_store_in_order_has_no_findings(url):
    steps = []
    seen = await check(url, lambda *step: steps.append(step))

    assert seen.findings == ()
    assert (seen.runs, seen.jobs, seen.notes, seen.log) == (10, 3, 3, 4)
    assert {"the functions", "the keys", "the index leases"} <= {step[0] for step in steps}


@pytest.fixture
def server(tmp_path):
    """One of its own: of a server with many keys only the first 20,000 are looked through."""
    server = RedisServer(tmp_path / "redis")
    server.folder.mkdir()
    yield server.start().url
    server.stop()


async def test_a_store_in_a_namespace_beside_it_is_none_of_its_business(server):
    """Their keys begin alike.  What is no store stays foreign."""
    namespace = "beside"
    outer, inner = f"{server}?prefix={namespace}", f"{server}?prefix={namespace}&namespace=b"
    assert await lacking(outer) == f"no key {namespace}:meta"
    await filled(inner)
    assert await lacking(outer) == f"no key {namespace}:meta; there is one with ?namespace=b"
    await filled(outer)

    assert (await lacking(outer), await lacking(inner)) == ("", "")
    assert [(await check(url, silent)).findings for url in (outer, inner)] == [(), ()]

    hand = Hand(outer)
    await hand("SET", "c:odd", 1)
    await hand("HSET", "d:meta", "what", 1)
    await hand.client.aclose()
    assert (await found(outer))["foreign"].count == 2


OF_IDS = {"run", "job", "live", "history", "failed", "dead"}  # what follows is an id, and an id may be any word


async def stems_of(hand):
    return {key.partition(":")[0] for key in (*await hand.names(), *KEYS) if ":" in key}


async def test_a_namespace_is_refused_if_a_key_of_it_may_be_one_of_the_store_around_it(hand):
    """`job:meta` is a job of that name out there, and the house of a store in here; `jobs:high` is nothing in here."""
    both = {key.partition(":")[0] for key in KEYS if key.partition(":")[2] in KEYS}
    assert both == {"notes", "bell"}
    stems = await stems_of(hand)
    assert {"run", "job", "live", "jobs", "queue", "finished", "tombs"} <= stems

    for name in [*OF_IDS, *both, "v1", "v3", "v9999"]:
        with pytest.raises(InvalidInput, match=f"a store's own keys begin with: '{name}'"):
            read_address(f"redis://localhost?namespace={name}")
        with pytest.raises(InvalidInput):
            read_address(f"redis+cluster://localhost?prefix={{a}}&namespace={name}")
        assert read_address(f"redis+cluster://localhost?namespace={name}").prefix == f"{{pollux:{name}}}"
    for name in [*(stems - OF_IDS - both), "claim", "v2", "v0", "v03", "v12345"]:
        assert read_address(f"redis://localhost?namespace={name}").prefix == f"pollux:{name}"


@pytest.mark.parametrize("alike", ["jobs:high", "queue:2", "tombs:order", "finished:plain", "claim:t"])
async def test_stores_whose_keys_begin_alike_are_in_order_side_by_side(alike):
    name = alike.partition(":")[0]
    server, _, namespace = own_url("alike").partition("?namespace=")
    outer, inner = f"{server}?prefix={namespace}", f"{server}?prefix={namespace}&namespace={name}"
    for url in (inner, outer):
        await filled(url)

    assert [(await check(url, silent)).findings for url in (outer, inner)] == [(), ()]
    hand = Hand(outer)
    assert alike in await hand.names()
    await hand("HSET", f"{name}:meta", "ends", 99)
    await hand.client.aclose()
    assert (await rules(outer), await rules(inner)) == ([], ["counts"]), "each is looked at alone"


# places


async def missing_from_line(hand, ready):
    await hand("ZREM", "queue:2", await hand.member("queue:2", ready[-1]))


async def at_another_time(hand, ready):
    await hand("ZADD", "queue:2", 5, await hand.member("queue:2", ready[-1]))


async def in_two_lines(hand, ready):
    await hand("ZADD", "queue:1", T0, await hand.member("queue:2", ready[-1]))


async def ready_and_leased(hand, ready):
    await hand("ZADD", "leases", T0, ready[-1])


async def missing_from_live(hand, ready):
    await hand("ZREM", "live", await hand.member("live", ready[-1]))


async def missing_from_its_job(hand, ready):
    job = (await hand.stand(ready[-1]))["job"]
    await hand("ZREM", f"live:{job}", await hand.member(f"live:{job}", ready[-1]))


async def without_its_key(hand, ready):
    await hand("HDEL", "keys", (await hand.stand(ready[-1]))["key"])


MISPLACED = [
    missing_from_line,
    at_another_time,
    in_two_lines,
    ready_and_leased,
    missing_from_live,
    missing_from_its_job,
    without_its_key,
]


@pytest.mark.parametrize("damage", MISPLACED, ids=lambda damage: damage.__name__)
async def test_a_run_that_stands_elsewhere_than_it_says_is_found_and_put_there(url, hand, damage):
    ready = await ids_in(url, RunState.READY)
    await damage(hand, ready)

    seen = await found(url)
    assert "places" in seen
    assert set(seen) <= {"places", "members"}
    assert seen["places"].can_repair
    assert seen["places"].shown[0].startswith(f"{ready[-1]}: ")

    await repair(url)
    assert await rules(url) == []
    assert await ids_in(url, RunState.READY) == ready, "no run was changed by it"


async def test_after_a_repair_every_ready_run_is_claimed_once(url, hand):
    ready = await ids_in(url, RunState.READY)
    await missing_from_line(hand, ready)
    await in_two_lines(hand, ready[:-1])
    await repair(url)
    store = RedisStore(url)
    await store.open()
    claimed = (await store.claim(node="n", token="x", limit=99, lease_ms=9, now_ms=T0 + 10**10)).runs
    await store.close()
    assert sorted(run.id for run in claimed) == ready


async def test_a_lease_a_held_run_and_finished_ones_are_put_back(url, hand):
    leased, held = await ids_in(url, RunState.LEASED), await ids_in(url, RunState.HELD)
    done, dead = await ids_in(url, RunState.DONE), await ids_in(url, RunState.DEAD)
    await hand("DEL", "leases")
    await hand("DEL", "held")
    await hand("ZREM", "finished:plain", await hand.member("finished:plain", done[0]))
    await hand("DEL", "finished:dead")
    seen = (await found(url))["places"]
    assert seen.count == 4
    assert {line.partition(":")[0] for line in seen.shown} == {leased[0], held[0], done[0], dead[0]}
    await repair(url)
    assert await rules(url) == []
    assert await ids_in(url, RunState.DEAD) == dead


async def test_each_version_has_its_own_lines_and_counts(url, hand):
    store = RedisStore(url)
    await store.open()
    await store.move_jobs(["job0"], 1)
    other = store.of_version(1)
    await other.cancel(run_ids=["r000"])
    ready = [run.id for run in (await store.list_runs()).runs if run.job_id == "job0" and run.state is RunState.READY]
    await store.close()
    assert await rules(url) == []

    await hand("ZREM", "v1:queue:2", await hand.member("v1:queue:2", ready[0]))
    await hand("ZADD", "v1:held", 0, f"{T0 + 10**14:015}nobody")
    await hand("HSET", "v1:meta", "ends", 77)
    seen = await found(url)
    assert seen["places"].shown == (f"{ready[0]}: is ready, but not in v1:queue:2",)
    assert "v1:held" in seen["members"].shown[0]
    assert "ends in version 1: 77 are counted" in seen["counts"].shown[0]
    await repair(url)
    assert await rules(url) == []


async def test_a_run_in_another_version_than_its_job_is_found(url, hand):
    await hand("HSET", "job:job2", "v", 7)
    seen = await found(url)
    assert "is in version 2, its job in 7" in seen["versions"].shown[0]
    assert not seen["versions"].can_repair


# names that nobody answers to


@pytest.mark.parametrize(
    ("index", "member"),
    [
        ("queue:2", "00000000000077nobody"),
        ("leases", "nobody"),
        ("live", f"{T0 + 10**14:015}nobody"),
        ("live:job0", f"{T0 + 10**14:015}nobody"),
        ("held", f"{T0 + 10**14:015}nobody"),
        ("finished:plain", f"{T0 + 10**14:015}{7:014}nobody"),
        ("history:job0", f"{T0 + 10**14:015}{7:014}nobody"),
    ],
)
async def test_a_name_that_no_run_answers_to_is_found_and_taken_away(url, hand, index, member):
    await hand("ZADD", index, 0, member)
    seen = await found(url)
    assert seen["members"].shown == (f"{index}: {member}: there is no such run",)
    await repair(url)
    assert await rules(url) == []


# jobs and counts


async def test_jobs_that_lost_their_place_are_found_and_put_back(url, hand):
    store = RedisStore(url)
    await store.open()
    term = await store.elect("l", ttl_ms=9_000, now_ms=T0 + 10**9)
    [job] = await store.get_jobs(["job0"])
    await store.advance(term.number, Plan(updates=(JobUpdate("job0", job.revision, T0 + 5, Memory(), None),)))
    await hand("ZREM", "jobs", "job1")
    await hand("DEL", "due")
    await hand("ZADD", "due", 0, f"{T0 + 10**14:015}job2")
    await hand("ZADD", "jobs", 0, "ghost")
    assert (await found(url))["jobs"].count == 4
    await repair(url)
    assert await rules(url) == []
    assert [each.id for each in await store.due(before_ms=T0 + 6, limit=9)] == ["job0"]
    assert (await store.counts()).jobs == 3
    await store.close()


async def test_wrong_counts_are_counted_again(url, hand):
    await hand("HSET", "meta", "ends", 99)
    await hand("ZADD", "counters", 7, "job0")
    await hand("ZADD", "counters", 7, "ghost")
    seen = (await found(url))["counts"]
    assert "ends in version 2: 99 are counted, 4 are there" in seen.shown
    assert "finished runs of ghost: 7 are counted, 0 are there" in seen.shown
    await repair(url)
    assert await rules(url) == []


# what cannot be repaired


async def test_records_that_cannot_be_read_are_named_and_left_alone(url, hand):
    ready, done = await ids_in(url, RunState.READY), await ids_in(url, RunState.DONE)
    await hand("HSET", f"run:{ready[-1]}", "s", b"\xc1 nonsense")
    await hand("HSET", f"run:{done[0]}", "b", b"\xc1 nonsense")
    await hand("HSET", "run:odd", "something", "else")
    await hand("SET", "run:text", "no hash at all")
    await hand("HSET", "job:job2", "def", "{")
    await hand("HSET", "notes", "n1", "7::{")
    seen = (await found(url))["records"]
    assert not seen.can_repair
    assert {line.partition(":")[0] for line in seen.shown} <= {ready[-1], done[0], "odd", "text", "job job2", "note n1"}
    assert seen.count == 6
    await repair(url)
    assert (await found(url))["records"].count == 6
    assert await hand("EXISTS", f"run:{ready[-1]}"), "nothing is thrown away"


async def test_foreign_keys_are_named(url, hand):
    await hand("SET", "mine", "not yours")
    await hand("SADD", "history:job9", "x")
    await hand.client.delete(hand.key("log"))
    await hand("SET", "log", "a text")
    seen = (await found(url))["foreign"]
    assert seen.shown == (f"{hand.key('log')} is a string, and should be a stream",), "the rest when that is gone"
    await hand("DEL", "log")
    seen = (await found(url))["foreign"]
    assert set(seen.shown) == {hand.key("mine"), f"{hand.key('history:job9')} is a set, and should be a zset"}


async def test_a_foreign_key_in_the_place_of_a_line_is_named_once_with_its_cure(url, hand, tmp_path):
    """Neither a repair nor a backup is the cure: somebody deletes it."""
    await hand("DEL", "v7:queue:3")
    await hand("HSET", "versions", 7, "")
    await hand("SET", "v7:queue:3", "not yours")
    seen = (await found(url))["foreign"]
    assert seen.shown == (f"{hand.key('v7:queue:3')} is a string, and should be a zset",)
    told = await asyncio.to_thread(SameProcess(tmp_path), "store", "check", "--store", url)
    assert (told.code, told.out.count(hand.key("v7:queue:3"))) == (1, 1)
    assert "delete the keys that are not ours" in told.err
    assert "backup" not in told.err


async def test_a_foreign_key_where_a_store_begins_is_named_by_every_command(url, hand, tmp_path):
    await hand.client.delete(hand.key("meta"))
    await hand("SET", "meta", "not yours")
    here = SameProcess(tmp_path)
    for words in (("jobs",), ("store", "check"), ("health",)):
        told = await asyncio.to_thread(here, *words, "--store", url)
        assert told.code == 3, words
        assert f"the key {hand.key('meta')} on redis://" in told.err
        assert f"delete it (`redis-cli DEL {hand.key('meta')}`), or choose another" in told.err


async def test_keys_without_a_store_are_not_said_to_be_none(hand, tmp_path):
    url = own_url("no-store")
    async with Redis.from_url(shared_url()) as client:
        await client.rpush(f"pollux:{url.partition('namespace=')[2]}:jobs:normal", "x")
    told = await asyncio.to_thread(SameProcess(tmp_path), "store", "check", "--store", url)
    assert (told.code, "there is no store" in told.err) == (3, True)
    assert ":meta)" in told.err


async def test_an_entry_of_the_feed_that_lacks_its_fields_is_told_in_words(url, hand):
    await hand("XADD", "feed", "9999-0", "odd", 1)
    assert (await found(url))["feed"].shown == ("9999-0: it has no field 'entry'",)


async def test_what_a_script_refuses_is_told_without_where_in_the_script(url, hand):
    await hand("DEL", "log")
    await hand("SET", "log", "a text")
    store = RedisStore(url)
    await store.open()
    with pytest.raises(StoreRefused) as refused:
        await store.log([AuditLine(0, "ann", "pause", "x")])
    await store.close()
    assert "script" not in str(refused.value)
    assert refused.match(
        r"is not ours \(WRONGTYPE .*\); delete it \(`pollux store check` names it\), or choose another"
    )


async def test_orphans_leases_and_the_feed(url, hand):
    leased = await ids_in(url, RunState.LEASED)
    stand = await hand.stand(leased[0])
    del stand["tok"]
    await hand("HSET", f"run:{leased[0]}", "s", msgspec.msgpack.encode(stand))
    await hand("DEL", "job:job1")
    await hand("ZREM", "jobs", "job1")
    await hand("XADD", "feed", "9999-0", "ends", 0, "entry", "nonsense")
    seen = await found(url)
    assert seen["leases"].shown == (f"{leased[0]}: has no token",)
    assert "waits for job job1" in seen["orphans"].shown[0]
    assert seen["feed"].shown[0].startswith("9999-0: ")
    assert set(seen) == {"leases", "orphans", "feed"}


async def test_an_audit_log_that_was_changed_is_found_and_a_pruned_one_is_in_order(url, hand):
    store = RedisStore(url)
    await store.open()
    assert await store.prune(Pruning(log_max=2)) == 2
    await store.log([AuditLine(9, "me", "did", "more")])
    await store.close()
    assert await rules(url) == []
    await hand("XDEL", "log", "4-0")
    assert await rules(url) == ["audit"]


# beside those who work


async def test_a_busy_store_is_in_order(url):
    store = RedisStore(url)
    await store.open()
    made = []

    async def work():
        for number in range(100_000):
            made.extend(await store.enqueue([a_run(f"w{number}", "job0")]))
            claimed = await store.claim(node="n", token=f"t{number}", limit=2, lease_ms=60_000)
            if claimed.runs and number % 3 == 0:
                await store.cancel(run_ids=[run.id for run in claimed.runs])

    busy = asyncio.ensure_future(work())
    for _ in range(3):
        assert await rules(url) == []
        await repair(url)
    busy.cancel()
    await asyncio.gather(busy, return_exceptions=True)
    await store.close()
    assert made, "somebody worked meanwhile"
    assert await rules(url) == []


# the command


async def test_what_is_no_store_is_refused():
    with pytest.raises(StoreRefused, match="has no store under"):
        await check(own_url("nothing"), silent)
    with pytest.raises(StoreError, match="cannot be reached"):
        await check("redis://:hunter2222@127.0.0.1:1/0", silent)


def test_the_command_tells_and_repairs(url, tmp_path):
    here = SameProcess(tmp_path)
    where = ("--store", url)
    assert here.ok("store", "check", *where).out.startswith("ok: redis://")
    asyncio.run(_miscount(url))
    answer = here("store", "check", *where)
    assert answer.code == 1
    assert "counts: a count differs from what is there" in answer.out
    assert "`pollux store check --repair` repairs what" in answer.err
    assert "written anew" in here.ok("store", "check", "--repair", *where).err
    assert here.ok("store", "check", "--json", *where).json["ok"] is True


async def _miscount(url):
    hand = Hand(url)
    await hand("HSET", "meta", "ends", 99)
    await hand.client.aclose()


@pytest.mark.parametrize("command", [("backup", "x.db"), ("restore", "x.db")])
def test_backup_and_restore_name_the_servers_own_tools(tmp_path, command):
    here = SameProcess(tmp_path)
    answer = here("store", *command, "--store", "redis://:hunter2222@127.0.0.1:1/0")
    assert answer.code == 2
    assert "BGSAVE" in answer.err
    assert "`pollux store dump` and `load` are for all stores" in answer.err
    assert "hunter2222" not in answer.err
