"""Counts of the feed after an entry was written by hand, and firings that wait for unread ends.

On each store with a real server or file; what was put there by hand was never counted when it came.
"""

import time

import pytest

from pollux.model import Answer, Cause, Done, Firing, Plan, Spoilt, run_of
from pollux.store.urls import open_store
from pollux.testing.conformance.builders import settlement
from tests.store.test_leader_unreadable_records import InPostgres, InRedis, InSqlite, Office, every, put

GARBAGE = b"garbage"


class Sqlite(InSqlite):
    async def add(self, ends, body=GARBAGE):
        await self.do("INSERT INTO feed (ends, body) VALUES (?, ?)", ends, body)


class Postgres(InPostgres):
    async def add(self, ends, body=GARBAGE):
        await self.add_entry(body)
        await self.do("UPDATE {s}.feed SET ends = $1 WHERE body = $2", ends, body)


class Redis(InRedis):
    async def add(self, ends, body=GARBAGE):
        await self.do("XADD", "feed", "*", "ends", ends, "entry", body)


@pytest.fixture(params=[Sqlite, Postgres, Redis], ids=["sqlite", "postgres", "redis"])
def hand(request, tmp_path):
    return request.param(tmp_path)


@pytest.fixture
async def store(hand):
    opened = open_store(hand.url)
    await opened.open()
    yield opened
    await opened.close()


async def counted(store):
    counts = await store.counts()
    return counts.feed, counts.ends


async def wrong_counts(hand):
    return [found for found in (await hand.check()).findings if found.rule == "counts"]


class Leading:
    """A term, and the plans of it one by one."""

    def __init__(self, store, term):
        self.store, self.term, self.due_ms = store, term.number, int(time.time() * 1000)

    async def read(self):
        """The entries of the feed, and which of them cannot be read."""
        items = (await self.store.feed(limit=100)).items
        return tuple(item.id for item in items), tuple(item.id for item in items if isinstance(item.entry, Spoilt))

    async def fire(self, **parts):
        self.due_ms += 1_000
        [job] = await self.store.get_jobs(["a"])
        firing = Firing(run_of(job, self.due_ms, Cause.SCHEDULE), job.revision, self.due_ms + 1_000)
        return (await self.store.advance(self.term, Plan(firings=(firing,), **parts))).firings

    async def consume(self, consumed, spoilt):
        assert (await self.store.advance(self.term, Plan(consumed=consumed, spoilt=spoilt))).answer is Answer.OK


@pytest.fixture
async def leading(store):
    await put(store, every(3_600_000, "a"))
    return Leading(store, await store.elect("leader", ttl_ms=600_000))


async def end_one(store):
    [run] = (await store.claim(node="n", token=f"t{time.monotonic_ns()}", limit=9, lease_ms=60_000)).runs
    await store.settle([settlement(run, Done())])


async def test_the_counts_are_right_once_the_leader_has_set_it_aside(hand, store):
    await put(store, every(100, "a"))
    await hand.add(5)
    office = Office(store, "leader")
    await office.all_read()

    assert await counted(store) == (0, 0)
    assert await wrong_counts(hand) == []


@pytest.mark.parametrize("is_more", [True, False])
async def test_what_is_left_in_the_feed_is_counted(hand, store, leading, is_more):
    """Of which some may have come by hand, too."""
    consumed, _ = await leading.read()
    assert await leading.fire(consumed=consumed) == (Answer.OK,)
    await hand.add(3)
    [by_hand], spoilt = await leading.read()
    assert spoilt == (by_hand,)
    await end_one(store)
    if is_more:
        await hand.add(2, GARBAGE + b" again")
    await leading.consume((by_hand,), spoilt)

    assert await counted(store) == ((2, 3) if is_more else (1, 1))
    await leading.consume(*await leading.read())
    assert await counted(store) == (0, 0)
    assert await wrong_counts(hand) == []


@pytest.mark.parametrize("ends", [1, 3, 0])
async def test_a_firing_sees_an_unread_end_though_the_plan_consumes_what_came_by_hand(hand, store, leading, ends):
    consumed, _ = await leading.read()
    assert await leading.fire(consumed=consumed) == (Answer.OK,)
    await hand.add(ends)
    consumed, spoilt = await leading.read()
    await end_one(store)

    assert await leading.fire(consumed=consumed, spoilt=spoilt) == (Answer.UNREAD,)


@pytest.mark.parametrize("ends", [1, 3])
async def test_a_firing_sees_an_unread_end_after_what_came_by_hand_is_gone(hand, store, leading, ends):
    await hand.add(ends)
    consumed, spoilt = await leading.read()
    assert await leading.fire(consumed=consumed, spoilt=spoilt) == (Answer.OK,)
    await end_one(store)

    assert await counted(store) == (1, 1)
    assert await leading.fire() == (Answer.UNREAD,)


async def test_a_plan_that_only_learns_leaves_the_counts_right(hand, store, leading):
    await hand.add(4)
    await leading.consume(*await leading.read())

    assert await counted(store) == (0, 0)


@pytest.mark.parametrize("hand", [Sqlite, Redis], indirect=True, ids=["sqlite", "redis"])
async def test_counts_that_became_less_than_nothing_are_taken_anew(hand, store, leading):
    """Somebody may also have written what can be read; nobody can tell it from ours."""
    await hand.add(
        9, b'{"type":"node","node":"n"}' if isinstance(hand, Sqlite) else b"\x82\xa4type\xa4node\xa4node\xa1n"
    )
    consumed, spoilt = await leading.read()
    assert spoilt == ()
    assert await leading.fire(consumed=consumed) == (Answer.OK,)
    await end_one(store)

    assert await counted(store) == (1, 1)
    assert await leading.fire() == (Answer.UNREAD,)


@pytest.mark.parametrize("hand", [Redis], indirect=True, ids=["redis"])
@pytest.mark.parametrize("fields", [("note", 3), ("ends", "what", "entry", ""), ("ends", -3, "entry", "x")])
async def test_in_redis_whatever_fields_it_has(hand, store, leading, fields):
    consumed, _ = await leading.read()
    assert await leading.fire(consumed=consumed) == (Answer.OK,)
    await hand.do("XADD", "feed", "*", *fields)
    consumed, _ = await leading.read()
    await end_one(store)

    assert await leading.fire(consumed=consumed) == (Answer.UNREAD,)
    assert await counted(store) == (1, 1)
    assert await wrong_counts(hand) == []
