"""Foreign values in our keys: a clear error, everything else goes on, and no loop stops for ever."""

import asyncio
import re
from contextlib import asynccontextmanager

import msgspec
import pytest
from redis.asyncio import Redis

from pollux import Pollux, every
from pollux.errors import StoreError
from pollux.model import Cause, Done, Ended, Node, NotePut, Outcome, Overlap, RunState, Spoilt
from pollux.store.contract import Answer, Pruning, RunFilter
from pollux.store.redis import RedisStore
from pollux.store.redis.check import check
from pollux.store.redis.library import library
from pollux.testing.conformance.builders import (
    T0,
    a_firing,
    a_run,
    advance,
    claim,
    entries,
    given_jobs,
    ids,
    ids_of,
    settlement,
)
from pollux.testing.conformance.records import whole_dump
from tests.chaos.yard import wait_until
from tests.servers.redis import own_url, shared_url


@pytest.fixture
def url():
    return own_url("spoilt")


@pytest.fixture
async def store(url):
    """Two jobs, and three runs that wait."""
    opened = RedisStore(url)
    await opened.open()
    await given_jobs(opened, "job", "other")
    await opened.enqueue([a_run("good"), a_run("bad"), a_run("next", "other")], now_ms=T0)
    yield opened
    await opened.close()


class Hand:
    """What somebody types at redis-cli; keys without their prefix."""

    def __init__(self, client, url):
        self.client, self.prefix = client, f"pollux:{url.partition('namespace=')[2]}:"

    async def __call__(self, command, key, *arguments):
        return await self.client.execute_command(command, self.prefix + key, *arguments)


@pytest.fixture
async def hand(url):
    async with Redis.from_url(shared_url()) as client:
        yield Hand(client, url)


@asynccontextmanager
async def waiting(store):
    """Somebody waits, and what rings soon is given to it by the server itself; called back at the end."""
    claimed = asyncio.ensure_future(store.claim(node="n", token="t", limit=1, lease_ms=60_000, wait_ms=60_000))

    async def offers():
        return (
            store.backend.runs_listener._connection._asked is not None
            and store.backend.runs_listener._offered is not None
        )

    await wait_until(offers, "its offer")
    await store.counts()  # over another connection, and after it
    yield claimed
    await store.wake()
    async with asyncio.timeout(60):
        await asyncio.wait([claimed])


async def stands(hand, run_id, **changed):
    """The run's state with some of it written over; the mark of a plain one stays first."""
    stand = msgspec.msgpack.decode(await hand("HGET", f"run:{run_id}", "s"))
    await hand("HSET", f"run:{run_id}", "s", msgspec.msgpack.encode(stand | changed))


async def spoil_the_body(hand):
    await hand("HSET", "run:bad", "b", "not json")


async def spoil_the_state(hand):
    await stands(hand, "bad", cause="because")


async def spoil_the_history(hand):
    await stands(hand, "bad", tried="[7]", res="{")


async def spoil_all_of_it(hand):
    await stands(hand, "bad", cause=7, vis="soon", att="many", gated="yes", deaths="none", prog=3)


SPOILT = [spoil_the_body, spoil_the_state, spoil_the_history, spoil_all_of_it]


@pytest.mark.parametrize("spoil", SPOILT)
@pytest.mark.parametrize("limit", [9, 1])
async def test_a_run_that_cannot_be_read_dies_of_it_and_the_others_are_run(store, hand, spoil, limit):
    await spoil(hand)
    taken = []
    while runs := await claim(store, limit, token=f"t{len(taken)}", now_ms=T0):
        taken += runs

    assert sorted(ids(taken)) == ["good", "next"]
    [dead] = (await store.list_runs(RunFilter(states=(RunState.DEAD,)))).runs
    assert (dead.id, dead.failed, dead.payload) == ("bad", True, None)
    assert "it cannot be read" in dead.error
    counts = await store.counts()
    assert (counts.ready, counts.leased, counts.dead) == (0, 2, 1)
    [told] = [end for entry in await entries(store, Ended) for end in entry.ends]
    assert (told.run_id, told.state, told.cause) == ("bad", RunState.DEAD, dead.cause)
    assert dead.cause in set(Cause)
    assert await store.settle([settlement(run, Done()) for run in taken], now_ms=T0) == [Answer.OK, Answer.OK]


# what the scripts themselves count with, one field at a time
NUMBERS = [
    ("fence", "x"),
    ("fence", 1.5),
    ("pr", "high"),
    ("pr", 7),
    ("pr", 0),
    ("loss", "many"),
    ("crash", []),
    ("att", {}),
    ("vis", "soon"),
    ("v", "two"),
    ("own", 7),
    ("tok", 7),
    ("key", [1]),
    ("ent", 3),
    ("cancel", 7),
    ("tried", 7),
    ("deaths", "none"),
    ("cause", "because"),
    ("cause", 7),
]


@pytest.mark.parametrize(("field", "value"), NUMBERS, ids=str)
async def test_one_number_that_is_none_does_not_stop_the_claims_of_the_others(store, hand, field, value):
    """It is dead, or runs, by whether a caller can read it; all else is run and settled."""
    await stands(hand, "bad", **{field: value})
    taken = await claim(store, now_ms=T0)

    assert {"good", "next"} <= set(ids(taken))
    assert await store.settle([settlement(run, Done()) for run in taken], now_ms=T0) == [Answer.OK] * len(taken)
    await all_are_over(store, hand)


@pytest.mark.parametrize("field_of_leased", [*NUMBERS, ("til", "late"), ("len", "long"), ("n", "last")], ids=str)
async def test_a_lease_that_was_spoilt_ends_like_any_other(store, hand, field_of_leased):
    """Its worker is gone, and somebody wrote into it: it is taken back, and so are the others."""
    field, value = field_of_leased
    assert len(await claim(store, now_ms=T0)) == 3
    await stands(hand, "bad", **{field: value})
    later = T0 + 60_001
    taken = await claim(store, token="again", now_ms=later)

    assert {"good", "next"} <= set(ids(taken))
    assert await store.settle([settlement(run, Done()) for run in taken], now_ms=later) == [Answer.OK] * len(taken)
    await all_are_over(store, hand, later)


READ_BY_CALLERS = ("cause", "because")  # the scripts leave it as it is: who lists it is told
OF_WAITING = [each for each in [*NUMBERS, ("q", "first"), ("q", []), ("n", "last")] if each != READ_BY_CALLERS]


@pytest.mark.parametrize("field_of_waiting", OF_WAITING, ids=str)
async def test_what_was_spoilt_can_still_be_cancelled(store, hand, field_of_waiting):
    field, value = field_of_waiting
    await stands(hand, "bad", **{field: value})

    told = await store.cancel(run_ids=["good", "bad", "next"], now_ms=T0)
    assert [each.answer for each in told] == [Answer.OK] * 3
    assert not await claim(store, now_ms=T0)
    await all_are_over(store, hand)


@pytest.mark.parametrize("field", ["fin", "pq", "deaths", "cause", "res"])
async def test_what_is_finished_and_was_spoilt_can_still_be_pruned(store, hand, field):
    taken = await claim(store, now_ms=T0)
    await store.settle([settlement(run, Done()) for run in taken], now_ms=T0)
    await stands(hand, "bad", **{field: []})

    assert await store.prune(Pruning(finished_before_ms=T0 + 10**6)) == 3
    assert (await store.list_runs()).runs == ()


async def all_are_over(store, hand, now_ms=T0):
    """Nothing waits, nothing is leased, and the leader can read what it is told."""
    later = now_ms + 10**7
    while runs := await claim(store, token=f"rest{later}", now_ms=later):
        assert await store.settle([settlement(run, Done()) for run in runs], now_ms=later) == [Answer.OK] * len(runs)
        later += 1
    counts = await store.counts()
    assert (counts.ready, counts.leased, counts.held) == (0, 0, 0)
    told = [end.run_id for entry in await entries(store, Ended) for end in entry.ends]
    assert {"good", "bad", "next"} <= set(told)
    assert len((await store.list_runs(RunFilter(states=(RunState.DEAD, RunState.DONE, RunState.CANCELLED)))).runs) == 3


async def test_the_causes_that_the_functions_know_are_all_that_there_are():
    [line] = [line for line in library().text.splitlines() if line.startswith("local CAUSES =")]
    assert set(re.findall(r"(\w+) = true", line)) == set(Cause)


async def test_a_job_that_is_no_text_at_all_is_as_bad_and_no_worse(store, url, hand):
    await hand("HSET", "job:other", "def", b"\xff\xfe", "rev", "9")

    assert sorted(ids(await claim(store, now_ms=T0))) == ["bad", "good"]
    await is_aside(store, "next", T0)
    with pytest.raises(StoreError, match=r"job 'other' cannot be read .* `pollux store check` lists all"):
        await store.get_jobs(["job", "other"])
    [found] = (await check(url, lambda *_: None)).findings
    assert (found.rule, found.count) == ("records", 1)
    assert found.shown[0].startswith("job other: ")


async def is_aside(store, run_id, now_ms, rest_ms=1_000):
    """For a while, up to twice as long, uncharged, and it says why; answers until when."""
    [run] = await store.get_runs([run_id])
    assert (run.state, run.attempt, run.lease_losses) == (RunState.READY, 0, 0)
    assert rest_ms <= run.visible_ms - now_ms < 2 * rest_ms
    assert "cannot read its job; another one may" in run.progress
    assert (await store.counts()).dead == 0
    return run.visible_ms


async def test_the_runs_of_a_job_that_cannot_be_read_wait_for_a_node_that_can_and_the_others_are_run(
    store, url, hand, caplog
):
    """As while releases change: an older node must not make dead letters of what a newer one can run."""
    whole = await hand("HGET", "job:other", "def")
    await hand("HSET", "job:other", "def", "what", "rev", "9")

    taken = await claim(store, now_ms=T0)
    assert sorted(ids(taken)) == ["bad", "good"]
    await store.settle([settlement(run, Done()) for run in taken], now_ms=T0)
    again_ms = await is_aside(store, "next", T0)
    assert not await claim(store, token="t2", now_ms=again_ms - 1)
    assert await is_aside(store, "next", T0) == again_ms, "until then nobody has it"
    assert not await claim(store, token="t3", now_ms=again_ms)
    await is_aside(store, "next", again_ms, 2_000)
    said = [
        record.getMessage() for record in caplog.records if "job 'other' cannot be read here" in record.getMessage()
    ]
    assert len(said) == 1, "it is said once a minute of a job, by the handle's own clock"
    await told_of_the_job(store)
    await hand("HSET", "job:other", "def", whole, "rev", "10")
    [run] = await claim(store, token="t4", now_ms=T0 + 120_000)
    assert (run.id, run.attempt, run.progress) == ("next", 0, "")
    assert await store.settle([settlement(run, Done())], now_ms=T0 + 120_000) == [Answer.OK]


async def told_of_the_job(store):
    for call in (lambda: store.get_jobs(["other"]), store.list_jobs, store.dump):
        with pytest.raises(StoreError, match=r"job 'other' cannot be read .* `pollux store check` lists all of them"):
            await call()
    assert [job.id for job in await store.get_jobs(["job"]) if job] == ["job"]


@pytest.mark.parametrize("field", ["rev", "next", "last", "v"])
async def test_a_number_of_a_job_that_is_none_stands_in_nobodys_way(store, hand, field):
    await hand("HSET", "job:other", field, "soon")

    assert {"good", "bad"} <= set(ids(await claim(store, now_ms=T0)))
    assert len((await store.list_jobs()).jobs) == 2


async def test_what_comes_with_a_ring_and_whose_job_cannot_be_read_is_set_aside_too(url, hand):
    """The server gives it away by itself, to whoever waits: nobody looked at it before."""
    store = RedisStore(url)
    await store.open()
    try:
        await given_jobs(store, "job")
        await hand("HSET", "job:job", "def", "what", "rev", "9")
        async with waiting(store) as claimed:
            await store.enqueue([a_run("a", due_ms=0)])

            async def is_back():
                [run] = await store.get_runs(["a"])
                return run.state is RunState.READY and "cannot read its job" in run.progress

            await wait_until(is_back, "what cannot be read to be set aside")
            assert not claimed.done(), "it waits on"
    finally:
        await store.close()
    assert claimed.result().runs == ()


async def test_who_lists_what_cannot_be_read_is_told_which_it_is(store, hand):
    await spoil_the_body(hand)

    for call in (store.list_runs, lambda: store.get_runs(["bad"]), store.dump):
        with pytest.raises(StoreError, match=r"run 'bad' cannot be read .* correct or delete it"):
            await call()
    assert (await store.get_runs(["good"]))[0] is not None


@pytest.mark.parametrize("line", ["queue:1", "queue:3"])
async def test_a_run_that_somebody_put_into_another_line_as_well_is_given_once(store, hand, line):
    await hand("ZADD", line, T0 - 1, "00000000000099good")

    runs = await claim(store, now_ms=T0)

    assert sorted(ids(runs)) == ["bad", "good", "next"]
    assert await store.settle([settlement(run, Done()) for run in runs], now_ms=T0) == [Answer.OK] * 3
    assert await claim(store, now_ms=T0) == ()


BESIDE = {
    "fields": ("9999-0", "nonsense", "1"),
    "entry": ("9999-0", "ends", 0, "entry", "what"),
    "number": ("9999-7", "ends", 0, "entry", msgspec.msgpack.encode({"type": "node", "node": "n"})),
}


@pytest.mark.parametrize("entry", BESIDE.values(), ids=BESIDE)
async def test_an_entry_of_the_feed_that_cannot_be_read_is_told_as_such_and_can_be_consumed(store, hand, entry):
    """Also one whose number none of ours can have, and one beside another under the same number."""
    await hand("XADD", "feed", *entry)
    await hand("XADD", "feed", "9999-8", "more", "of it")
    [*ours, spoilt] = (await store.feed(limit=100)).items

    assert ours
    assert (spoilt.id, type(spoilt.entry)) == (9999, Spoilt)
    assert await claim(store, now_ms=T0)
    assert (await advance(store, consumed=(9999,))).answer is Answer.OK
    assert [item.id for item in (await store.feed(limit=100)).items] == [item.id for item in ours]
    assert (await store.counts()).ends == 0


async def test_what_stands_beside_an_entry_of_ours_under_the_same_number_goes_with_it(store, hand):
    [*_, ours] = (await store.feed(limit=100)).items
    await hand("XADD", "feed", f"{ours.id}-1", "what", "ever")
    assert (await store.feed(limit=100)).items[-1] == ours
    await advance(store, consumed=(ours.id,))
    assert ours.id not in [item.id for item in (await store.feed(limit=100)).items]


@pytest.mark.parametrize("is_gone", [False, True], ids=["there", "deleted again"])
async def test_an_entry_with_a_number_of_its_own_does_not_break_the_writes_that_come_after_it(
    store, hand, url, is_gone
):
    """As `XADD feed *` makes it.  A plain settle, any other, and one that tells two versions at once."""
    number = await hand("XADD", "feed", "*", "what", "ever")
    if is_gone:
        await hand("XDEL", "feed", number)
    before = [item.id for item in (await store.feed(limit=100)).items]
    taken = await claim(store, now_ms=T0)
    plainly = settlement(taken[0], Done(), outcome=Outcome(T0, T0 + 1))
    assert await store.settle([plainly], now_ms=T0) == [Answer.OK]
    await hand("XADD", "feed", f"{(await store.feed(limit=100)).items[-1].id + 1_000}-0", "what", "ever")
    assert await store.settle([settlement(run, Done()) for run in taken[1:]], now_ms=T0) == [Answer.OK, Answer.OK]
    assert await store.move_jobs(["other"], 3) == [Answer.OK]
    found = [item for item in (await store.feed(limit=100)).items if item.id not in before]

    assert Spoilt in map(type, [item.entry for item in found])
    assert [item.id for item in found] == sorted(item.id for item in found)
    assert {end.run_id for item in found if isinstance(item.entry, Ended) for end in item.entry.ends} == {
        *("good", "bad", "next")
    }
    assert (await advance(store, consumed=tuple(before) + tuple(item.id for item in found))).answer is Answer.OK
    assert (await store.feed(limit=100)).items == ()
    assert [found.rule for found in (await check(url, lambda *_: None)).findings] == []


# Beyond what a script counts exactly; the last one is the highest that there is, behind which nothing can be added.
FAR = ["9007199254740991", "9007199254740993", "9223372036854775809", "18446744073709551615"]


@pytest.mark.parametrize("is_gone", [False, True], ids=["there", "deleted again"])
@pytest.mark.parametrize("number", FAR)
async def test_an_entry_with_a_number_that_nobody_counts_to_loses_none_of_ours(store, hand, url, number, is_gone):
    """A plain settle, any other, and one that tells two versions at once: each tells the leader, and it stays so."""

    async def is_in_the_way():
        await hand("XADD", "feed", f"{number}-0", "what", "ever")
        if is_gone:
            await hand("XDEL", "feed", f"{number}-0")

    before = (await store.feed(limit=100)).items
    taken = await claim(store, now_ms=T0)
    await is_in_the_way()
    plainly = settlement(taken[0], Done(), outcome=Outcome(T0, T0 + 1))
    assert await store.settle([plainly], now_ms=T0) == [Answer.OK]
    await is_in_the_way()
    assert await store.settle([settlement(taken[1], Done())], now_ms=T0) == [Answer.OK]
    await is_in_the_way()
    assert await store.settle([settlement(taken[2], Done())], now_ms=T0) == [Answer.OK]
    await is_in_the_way()
    assert await store.move_jobs(["other"], 3) == [Answer.OK]

    found = (await store.feed(limit=100)).items
    assert found[: len(before)] == before
    assert [type(item.entry).__name__ for item in found[len(before) :]] == ["Ended"] * 3 + ["JobsMoved"]
    numbers = [item.id for item in found]
    assert numbers == list(range(numbers[0], numbers[0] + len(found))), "as if it had never been"
    assert [end.run_id for ended in await entries(store, Ended) for end in ended.ends] == ids(taken)
    assert (await store.counts()).ends == 3
    assert (await advance(store, consumed=tuple(numbers))).answer is Answer.OK
    assert [found.rule for found in (await check(url, lambda *_: None)).findings] == []


async def test_entries_with_numbers_that_a_script_takes_for_each_other_are_read_again_and_again(store, hand):
    numbers = [9007199254740993, 9007199254740994, 9223372036854775809]
    for number in numbers[1:]:
        await hand("XADD", "feed", f"{number}-0", "what", "ever")
        assert (await store.feed(limit=100)).items[-1].id == number
    await hand("DEL", "feed")
    for number in numbers:
        await hand("XADD", "feed", f"{number}-0", "what", "ever")
        assert (await store.feed(limit=100)).items == (await store.feed(limit=100)).items
    assert [item.id for item in (await store.feed(limit=100)).items] == numbers

    assert (await advance(store, consumed=tuple(numbers), spoilt=tuple(numbers))).answer is Answer.OK
    assert (await store.feed(limit=100)).items == ()


@pytest.mark.parametrize("number", FAR)
async def test_an_entry_with_a_number_that_nobody_counts_to_can_be_consumed(store, hand, number):
    """What it says of ends was never counted."""
    await hand("XADD", "feed", f"{number}-0", "ends", 5, "entry", "nonsense")
    [*ours, spoilt] = (await store.feed(limit=100)).items
    assert (spoilt.id, type(spoilt.entry)) == (int(number), Spoilt)
    [job] = await store.get_jobs(["job"])
    firing = a_firing(job, T0, overlap=Overlap.SKIP)

    assert (await advance(store, read=(spoilt.id,), firings=(firing,))).answer is Answer.OK
    assert (await advance(store, consumed=(spoilt.id,), spoilt=(spoilt.id,))).answer is Answer.OK

    assert (await store.feed(limit=100)).items == tuple(ours)
    assert (await store.counts()).ends == 0
    await store.put_notes([NotePut("n", 1)], now_ms=T0)
    assert [item.id for item in (await store.feed(limit=100)).items] == [*ids_of(ours), ours[-1].id + 1]


async def test_a_note_that_cannot_be_read_is_named_and_one_that_is_gone_is_none(store, hand):
    await store.put_notes([NotePut("a", 1), NotePut("b", 2), NotePut("c", 3)], now_ms=T0)
    await hand("HDEL", "notes", "a")
    assert [note.key for note in await store.notes(now_ms=T0)] == ["b", "c"]
    await hand("HSET", "notes", "b", "what")

    with pytest.raises(StoreError, match=r"note 'b' cannot be read"):
        await store.notes(now_ms=T0)
    assert [note.value for note in await store.notes("c", now_ms=T0)] == [3]


async def test_what_is_no_node_is_none_and_goes_with_the_next_beat(store, hand):
    await hand("HSET", "nodes", "odd", "what")
    await store.beat(Node("n", seats=3), ttl_ms=60_000, now_ms=T0)
    await hand("HSET", "nodes", "odd", msgspec.msgpack.encode([T0 + 60_000, 1, "[]", "what", T0, 2]), "old", "what")

    assert [node.id for node in await store.nodes(now_ms=T0)] == ["n"]
    assert (await advance(store)).answer is Answer.OK
    await store.beat(Node("n", seats=3), ttl_ms=60_000, now_ms=T0 + 1)
    assert sorted(await hand("HKEYS", "nodes")) == [b"n", b"odd"]


async def test_a_node_goes_on_beside_all_of_it(url, hand):
    """Spoilt under a living node, again and again: what is ours is run, before and after."""
    app, done = Pollux(url, name="spoilt", seats=4), []

    @app.job(every("200ms"))
    async def tick(ctx):
        done.append(ctx.run.id)

    @app.job
    async def asked(ctx, n=0):
        done.append(ctx.run.id)

    async with app:
        for number in range(3):
            bad = await app.enqueue("asked", {"n": number}, delay="1h")
            await hand("HSET", f"run:{bad.id}", "b", "not json")
            [place] = [each for each in await hand("ZRANGE", "queue:2", 0, -1) if each.endswith(bad.id.encode())]
            await hand("ZADD", "queue:2", 1, place)  # it is visible at once
            await hand("ZADD", "queue:2", 1, "00000000000001ghost")
            await hand("XADD", "jobs:normal", "*", "nonsense", "1")
            await hand("HSET", "nodes", "odd", "what")
            since = len(done)

            async def goes_on(since=since, number=number):
                dead = (await app.operations.runs.list_runs(RunFilter(states=(RunState.DEAD,)))).runs
                return len(done) >= since + 3 and len(dead) == number + 1

            await wait_until(goes_on, "more runs, and the end of what cannot be read")
    found = await check(url, lambda *_: None)
    assert [finding.rule for finding in found.findings] == [], found.findings


@pytest.mark.parametrize("overlap", [Overlap.QUEUE, Overlap.CANCEL])
@pytest.mark.parametrize("spoilt", ["gone", "no run"])
async def test_a_firing_does_not_wait_for_runs_that_nobody_can_read(store, hand, overlap, spoilt):
    """They never end, so nobody would let it begin; as far as can be known it is alone."""
    if spoilt == "gone":
        await hand("DEL", "run:next")
    else:
        await hand("HSET", "run:next", "s", "what")
    [job] = await store.get_jobs(["other"])
    first, second = (a_firing(job, T0 + n, overlap=overlap) for n in (0, 60_000))

    assert (await advance(store, now_ms=T0, firings=(first,))).firings == (Answer.OK,)
    assert (await advance(store, now_ms=T0, firings=(second,))).firings == (Answer.WAITS,)


@pytest.mark.parametrize("value", ["what", "", "x:y", "7:soon", "7:inf"])
async def test_what_is_remembered_of_a_deleted_job_and_cannot_be_read_stands_in_nobodys_way(store, hand, value):
    await given_jobs(store, "third", "fourth")
    await store.delete_jobs(["third", "fourth"], now_ms=T0)
    await hand("HSET", "tombs", "third", value)
    revision = 7 if value.startswith("7") else 0

    tombs = [data for kind, data in await whole_dump(store, limit=1) if kind == "tomb"]
    assert tombs == [{"id": "third", "revision": revision}, {"id": "fourth", "revision": 1}]
    await given_jobs(store, "third")
    [job] = await store.get_jobs(["third"])
    assert (job.revision, job.last_due_ms) == (revision + 1, None)
