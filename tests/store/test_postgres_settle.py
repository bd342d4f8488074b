"""Plain settlements on PostgreSQL: the short way does the same as the long one.

The handle that claimed settles in one statement, by what it knows; any other handle reads first.  Whatever happened to
a run meanwhile, both must answer and leave behind the same.
"""

import msgspec
import pytest

from pollux.model import Done, Outcome, RunState
from pollux.store.contract import Answer, Renewal, RunFilter
from pollux.store.postgres import settle
from pollux.store.postgres.store import PostgresBackend, PostgresStore
from pollux.testing.conformance.builders import a_job, a_run, given_jobs, settlement
from tests.servers.postgres import emptied, empty, own_url

NOW = 1_800_000_000_000
WAYS = ("short", "long")


@pytest.fixture(scope="module")
def url():
    return own_url("settled")


@pytest.fixture
def clean(url):
    return emptied(url)


@pytest.fixture
async def handles(clean, monkeypatch):
    """Two handles, and which ways settlements took: true for the short one."""
    taken = []
    short = settle.settle_plainly

    async def watched(*args, **named):
        taken.append(await short(*args, **named))
        return taken[-1]

    monkeypatch.setitem(PostgresBackend.settle.__globals__, "settle_plainly", watched)
    stores = [PostgresStore(clean), PostgresStore(clean)]
    for store in stores:
        await store.open()
    yield (*stores, taken)
    for store in stores:
        await store.close()


async def claimed(store, *run_ids, at=NOW, token="t"):
    await given_jobs(store, a_job("job"))
    await store.enqueue([a_run(run_id, due_ms=NOW) for run_id in run_ids], now_ms=NOW)
    return list((await store.claim(node="n", token=token, limit=9, lease_ms=60_000, now_ms=at)).runs)


def done(run, **fields):
    return settlement(run, Done(**fields), outcome=Outcome(NOW + 1, NOW + 5, changed=False, result={"n": 1}))


async def left(store):
    """Everything that can be seen afterwards, but for what differs from claim to claim."""
    runs = (await store.list_runs(RunFilter())).runs
    feed = [msgspec.to_builtins(item.entry) for item in (await store.feed(limit=100)).items]
    return msgspec.to_builtins(runs), feed, await store.counts()


async def nothing(store, runs):
    """A run that ends as it should."""


async def a_cancel_is_asked(store, runs):
    await store.cancel(run_ids=[runs[0].id], reason="stop", now_ms=NOW)


async def its_lease_is_lost(store, runs):
    await store.claim(node="other", token="later", limit=0, lease_ms=60_000, now_ms=NOW + 100_000)


async def another_has_it(store, runs):
    await store.claim(node="other", token="later", limit=9, lease_ms=60_000, now_ms=NOW + 100_000)


async def it_is_settled_already(store, runs):
    await store.settle([done(runs[0])], now_ms=NOW)


async def its_job_is_deleted(store, runs):
    await store.delete_jobs(["job"], now_ms=NOW)


async def its_job_has_moved(store, runs):
    await store.move_jobs(["job"], 3, now_ms=NOW)


async def it_told_how_far_it_is(store, runs):
    await store.renew([Renewal(runs[0].id, runs[0].token, "half")], lease_ms=60_000, now_ms=NOW)


@pytest.mark.parametrize("names", [["a"], ["a", "b"]], ids=["one", "two"])
@pytest.mark.parametrize(
    ("meanwhile", "is_short"),
    [
        (nothing, True),
        (it_told_how_far_it_is, True),
        (its_job_is_deleted, True),
        (a_cancel_is_asked, False),
        (its_lease_is_lost, False),
        (another_has_it, False),
        (it_is_settled_already, False),
        (its_job_has_moved, False),
    ],
)
async def test_the_short_way_answers_and_leaves_what_the_long_one_does(handles, url, meanwhile, is_short, names):
    ours, other, taken = handles
    seen = {}
    for way in WAYS:
        await empty(url)
        runs = await claimed(ours, *names)
        await meanwhile(other, runs)
        store = ours if way == "short" else other
        taken.clear()
        seen[way] = (await store.settle([done(run) for run in runs], now_ms=NOW + 10), await left(other))
        assert taken == ([is_short] if way == "short" else [])

    assert seen["short"] == seen["long"]


async def test_a_settlement_that_is_repeated_was_done_already(handles):
    ours, _, taken = handles
    runs = await claimed(ours, "a", "b")
    assert await ours.settle([done(run) for run in runs], now_ms=NOW) == [Answer.OK] * 2
    assert await ours.settle([done(run) for run in runs], now_ms=NOW) == [Answer.ALREADY] * 2
    assert taken == [True]
    assert [run.state for run in (await ours.list_runs(RunFilter())).runs] == [RunState.DONE] * 2


async def test_a_run_that_is_named_twice_is_settled_once(handles):
    ours, _, _ = handles
    [run] = await claimed(ours, "a")
    assert await ours.settle([done(run), done(run)], now_ms=NOW) == [Answer.OK, Answer.ALREADY]
