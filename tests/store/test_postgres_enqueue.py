"""Plain enqueues on PostgreSQL: the short way does the same as the long one.

Runs of one job that are alike go in by one statement; all others are looked at first.  Whatever stands against one of
them, both must answer and leave behind the same.
"""

import asyncio
from contextlib import asynccontextmanager
from itertools import cycle

import asyncpg
import msgspec
import pytest

from pollux.model import Done, NotePut
from pollux.store.contract import BATCH_MAX, Answer, RunFilter
from pollux.store.postgres import rows, runs
from pollux.store.postgres.store import PostgresStore
from pollux.testing.conformance.builders import a_job, a_run, given_jobs, ids, settlement
from tests.servers.postgres import emptied, empty, has_rung, own_url, shared_url

NOW = 1_800_000_000_000
MANY = 11  # of so many ids nobody asks beforehand whether they are known


@pytest.fixture(scope="module")
def url():
    return own_url("enqueued")


@pytest.fixture
async def taken(monkeypatch):
    """Which ways were taken: true for the short one."""
    seen = []
    short = runs.enqueue_plainly

    async def watched(*args, **named):
        seen.append(await short(*args, **named))
        return seen[-1]

    monkeypatch.setattr(runs, "enqueue_plainly", watched)
    return seen


@pytest.fixture
def clean(url):
    return emptied(url)


@pytest.fixture
async def store(clean):
    opened = PostgresStore(clean)
    await opened.open()
    await given_jobs(opened, a_job("job"))
    yield opened
    await opened.close()


@pytest.fixture
async def other():
    connection = await asyncpg.connect(shared_url())
    yield connection
    await connection.close()


def some(*names, n=MANY, **fields):
    return [a_run(name, due_ms=NOW, **fields) for name in (*names, *(f"more{i}" for i in range(n - len(names))))]


def answers(told):
    return [each.answer for each in told]


async def left(store):
    listed = (await store.list_runs(RunFilter())).runs
    entries = [msgspec.to_builtins(item.entry) for item in (await store.feed(limit=100)).items]
    return msgspec.to_builtins(listed), entries, await store.counts()


@pytest.mark.parametrize("n", [1, 100])
async def test_runs_that_are_alike_are_written_by_one_statement(store, taken, n):
    await has_rung(store)
    before = store.statements
    assert answers(await store.enqueue(some(n=n), now_ms=NOW)) == [Answer.OK] * n
    assert store.statements == before + 1
    assert taken == [True]


ODD = "line\nnext\r\\n \x00 \u2028 ü 🜚"


@pytest.mark.parametrize("payload", [{"n": 1}, None, {"odd": ODD}, "now and then"])
@pytest.mark.parametrize("n", [1, 2, MANY])
async def test_both_ways_leave_the_same(url, store, taken, monkeypatch, n, payload):
    batch = [
        msgspec.structs.replace(run, payload=payload | {"i": i} if isinstance(payload, dict) else payload and given)
        for i, (run, given) in enumerate(zip(some(n=n, group="g\x00", target="t"), cycle([None, {}, {"": ""}])))
    ]
    assert answers(await store.enqueue(batch, now_ms=NOW)) == [Answer.OK] * n
    quick = await left(store)
    assert taken == [True]

    await empty(url)
    await given_jobs(store, a_job("job"))
    monkeypatch.setattr(rows, "alike", lambda _: None)
    assert answers(await store.enqueue(batch, now_ms=NOW)) == [Answer.OK] * n
    assert await left(store) == quick
    assert taken == [True]


@pytest.mark.parametrize(
    "batch",
    [
        some("a", key="k", n=1),
        some("a", gated=True, n=1),
        [a_run("a", due_ms=NOW), a_run("b", due_ms=NOW + 1)],
        [a_run("a", due_ms=NOW), a_run("b", due_ms=NOW, key="k")],
        [a_run("a", due_ms=NOW), a_run("b\nc", due_ms=NOW)],
    ],
    ids=["a key", "held", "another due", "one of them with a key", "an id of two lines"],
)
async def test_what_is_not_plain_goes_the_long_way(store, taken, batch):
    assert answers(await store.enqueue(batch, now_ms=NOW)) == [Answer.OK] * len(batch)
    assert taken == []
    assert sorted(ids((await store.list_runs(RunFilter())).runs)) == sorted(run.id for run in batch)


async def test_notes_go_the_long_way(store, taken):
    assert answers(await store.enqueue(some("a"), notes=[NotePut("n", 1)], now_ms=NOW)) == [Answer.OK] * MANY
    assert taken == []
    assert [note.key for note in await store.notes()] == ["n"]


@pytest.mark.parametrize("n", [2, MANY])
@pytest.mark.parametrize("end", [False, True])
async def test_an_id_that_is_known_is_already_there_and_the_others_are_taken(store, taken, n, end):
    await store.enqueue([a_run("known", due_ms=NOW)], now_ms=NOW)
    if end:
        [run] = (await store.claim(node="n", token="t", limit=1, lease_ms=60_000, now_ms=NOW)).runs
        assert await store.settle([settlement(run, Done())], now_ms=NOW) == [Answer.OK]
    told = answers(await store.enqueue(some("new", "known", n=n), now_ms=NOW))
    assert told == [Answer.OK, Answer.ALREADY] + [Answer.OK] * (n - 2)
    assert taken == [True, False]
    assert (await store.counts()).ready == n - end


@pytest.mark.parametrize("end", [False, True])
async def test_a_single_id_that_is_known_is_already_there(store, taken, end):
    await store.enqueue([a_run("known", due_ms=NOW)], now_ms=NOW)
    if end:
        [run] = (await store.claim(node="n", token="t", limit=1, lease_ms=60_000, now_ms=NOW)).runs
        assert await store.settle([settlement(run, Done())], now_ms=NOW) == [Answer.OK]
    assert answers(await store.enqueue([a_run("known", due_ms=NOW)], now_ms=NOW)) == [Answer.ALREADY]
    assert taken == [True, False]
    assert (await store.counts()).ready == 1 - end


async def test_what_ended_between_the_ids_and_is_none_of_them_stands_in_nobodys_way(store, taken):
    await store.enqueue([a_run("more4-ended", due_ms=NOW)], now_ms=NOW)
    [run] = (await store.claim(node="n", token="t", limit=1, lease_ms=60_000, now_ms=NOW)).runs
    assert await store.settle([settlement(run, Done())], now_ms=NOW) == [Answer.OK]
    assert answers(await store.enqueue(some(), now_ms=NOW)) == [Answer.OK] * MANY
    assert taken == [True, True]


async def test_whole_batches_and_single_runs_keep_their_order_and_no_number_comes_twice(store, taken):
    """A whole batch has as many numbers as one step of the sequence gives; the ids are in no order."""
    calls = [
        [a_run(f"{(i * 7919) % BATCH_MAX}.{nth}", due_ms=NOW, key=None if nth != 1 else "k") for i in range(n)]
        for nth, n in enumerate([BATCH_MAX, 1, BATCH_MAX, 2, 1, 1])
    ]
    for call in calls:
        assert answers(await store.enqueue(call, now_ms=NOW)) == [Answer.OK] * len(call)
    assert taken == [True] * 5, "the one with a key goes the long way"
    given: list[str] = []
    while (
        claimed := await store.claim(node="n", token=f"t{len(given)}", limit=1000, lease_ms=60_000, now_ms=NOW)
    ).runs:
        given += ids(claimed.runs)
    assert given == [run.id for call in calls for run in call]


async def test_an_id_that_comes_twice_counts_once(store, taken):
    told = answers(await store.enqueue(some("a", "a"), now_ms=NOW))
    assert told == [Answer.OK, Answer.ALREADY] + [Answer.OK] * (MANY - 2)
    assert taken == [False]


async def test_no_job_and_no_room_are_told_as_on_the_long_way(store, taken):
    assert answers(await store.enqueue([a_run("a", "nobody", due_ms=NOW)], now_ms=NOW)) == [Answer.STALE]
    told = answers(await store.enqueue(some(n=MANY), ready_max=MANY - 1, now_ms=NOW))
    assert told == [Answer.OK] * (MANY - 1) + [Answer.FULL]
    assert taken == [False, False]


async def test_a_single_run_gets_the_last_room_and_the_next_one_none(store, taken):
    assert answers(await store.enqueue(some("a", n=1), ready_max=1, now_ms=NOW)) == [Answer.OK]
    assert answers(await store.enqueue(some("b", n=1), ready_max=1, now_ms=NOW)) == [Answer.FULL]
    assert taken == [True, False]


@asynccontextmanager
async def another():
    """One more connection, for a moment."""
    connection = await asyncpg.connect(shared_url())
    try:
        yield connection
    finally:
        await connection.close()


async def waiting_for_a_lock(other, task):
    """Until the call stands still because of us."""
    for _ in range(12_000):
        found = await other.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pollux' AND wait_event_type = 'Lock'"
        )
        if found:
            return
        assert not task.done(), "it did not wait"
        await asyncio.sleep(0.005)
    raise AssertionError("nobody waits")


async def test_an_id_that_ends_while_it_is_made_again_is_not_made_again(url, store, other, taken):
    """It lives when the statement begins, and has ended when the rows are there: only a look after that can see it."""
    await store.enqueue([a_run("a", due_ms=NOW)], now_ms=NOW)
    schema = url.rpartition("=")[2]
    moved = (
        f"WITH r AS (DELETE FROM {schema}.runs RETURNING *), l AS (DELETE FROM {schema}.queue RETURNING *) "
        f"INSERT INTO {schema}.history SELECT r.seq, id, r.job_id, r.due_ms, cause, key, payload, r.priority, grp, "
        "target, gated, 3, '', visible_ms, 1, 0, 0, 1, 't', '', 0, '', 1, 2, false, NULL, '', NULL, 1, '', NULL, '', "
        "0, version FROM r, l"
    )
    async with other.transaction():
        await other.execute(moved)
        again = asyncio.ensure_future(store.enqueue(some("a"), now_ms=NOW))
        async with another() as watching:
            await waiting_for_a_lock(watching, again)

    assert answers(await again) == [Answer.ALREADY] + [Answer.OK] * (MANY - 1)
    assert taken == [True, False]
    assert ids((await store.list_runs(RunFilter())).runs).count("a") == 1


@pytest.mark.parametrize("n", [1, MANY])
async def test_an_id_that_lived_and_ended_while_the_statement_waited_is_not_made(url, store, other, taken, n):
    """Unknown when the statement began, over when it writes: only a look after that can see it."""
    schema = url.rpartition("=")[2]
    ended = (
        f"INSERT INTO {schema}.history SELECT 1, 'a', 'job', 1, 2, NULL, NULL, 2, '', '', false, 3, '', 1, 1, 0, 0, 1, "
        "'t', '', 0, '', 1, 2, false, NULL, '', NULL, 1, '', NULL, '', 0, 2"
    )
    async with other.transaction():
        await other.execute(f"SELECT 1 FROM {schema}.jobs FOR UPDATE")
        making = asyncio.ensure_future(store.enqueue(some("a", n=n), now_ms=NOW))
        async with another() as watching:
            await waiting_for_a_lock(watching, making)
            await watching.execute(ended)

    assert answers(await making) == [Answer.ALREADY] + [Answer.OK] * (n - 1)
    assert taken == [False]
    assert ids((await store.list_runs(RunFilter())).runs).count("a") == 1


async def test_the_job_of_a_plain_enqueue_cannot_go_meanwhile(store, other, url):
    """Deleted before: stale.  Deleted after: its runs are cancelled.  Never a run that waits for no job."""
    schema = url.rpartition("=")[2]
    the_same_id = some("a")[5].id
    begun = other.transaction()
    await begun.start()
    await other.execute(
        f"INSERT INTO {schema}.runs (id, job_id, due_ms, cause, priority, grp, target, gated) "
        f"VALUES ('{the_same_id}', 'job', 1, 2, 2, '', '', false)"
    )
    making = asyncio.ensure_future(store.enqueue(some("a"), now_ms=NOW))
    async with another() as watching:
        await waiting_for_a_lock(watching, making)
    deleting = asyncio.ensure_future(store.delete_jobs(["job"], now_ms=NOW))
    await asyncio.wait([deleting], timeout=0.3)
    assert not deleting.done()
    await begun.rollback()

    assert answers(await making) == [Answer.OK] * MANY
    assert await deleting == [Answer.OK]
    assert (await store.counts()).ready == 0


@pytest.mark.usefixtures("only_rings")
async def test_another_handle_that_waits_is_rung(url, store):
    waiting_store = PostgresStore(url)
    await waiting_store.open()
    try:
        waiting = asyncio.ensure_future(
            waiting_store.claim(node="n", token="t", limit=1, lease_ms=60_000, wait_ms=60_000)
        )
        await asyncio.sleep(0.3)
        await store.enqueue([a_run("a", due_ms=0)])
        assert ids((await asyncio.wait_for(waiting, 50)).runs) == ["a"]
    finally:
        await waiting_store.close()


@pytest.mark.usefixtures("only_rings")
async def test_a_run_of_a_moved_job_counts_and_rings_where_its_job_is(store):
    """The handle that enqueues is of the old version; the job decides."""
    assert await store.move_jobs(["job"], 3, now_ms=NOW) == [Answer.OK]
    there = store.of_version(3)
    waiting = asyncio.ensure_future(there.claim(node="n", token="t", limit=1, lease_ms=60_000, wait_ms=60_000))
    await asyncio.sleep(0.3)
    await store.enqueue([a_run("a", due_ms=0)])
    assert ids((await asyncio.wait_for(waiting, 50)).runs) == ["a"]
    assert ((await store.counts()).leased, (await there.counts()).leased) == (0, 1)
