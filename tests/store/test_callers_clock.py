"""A caller whose clock is a day wrong: now, delays and ends count from the store's clock."""

import time
from random import Random

import pytest

from pollux import Pollux
from pollux.app.declarations import NewestReleases
from pollux.app.operations import OperationContext, Operations
from pollux.client.rpc_codec import PATH, VERSION_HEADER
from pollux.clock import SystemClock
from pollux.model import SCHEDULER_VERSION, Job, NotePut
from pollux.model.leader_notes import clock_key, clock_value
from pollux.registry import Registry
from pollux.store.contract import JobPut
from pollux.store.urls import open_store
from pollux.units import format_moment
from pollux.version import __version__
from tests.acceptance.api_world import api_of
from tests.servers import postgres
from tests.servers.redis import own_url

DAY_MS = 86_400_000
HOUR_MS = 3_600_000
NEAR_MS = 60_000  # a busy machine's patience


class Skewed(SystemClock):
    """The machine's clock, set wrong."""

    def __init__(self, by_ms):
        self.by_ms = by_ms

    def now_ms(self):
        return super().now_ms() + self.by_ms


def true_ms():
    return time.time_ns() // 1_000_000


@pytest.fixture(params=["redis", "postgres"])
def url(request):
    return own_url("skewed") if request.param == "redis" else postgres.own_url("skewed")


@pytest.fixture(params=[DAY_MS, -DAY_MS], ids=["ahead", "behind"])
async def caller(request, url):
    clock = Skewed(request.param)
    store = open_store(url, clock=clock)
    await store.open()
    await store.put_jobs([JobPut(Job(id="report", handler="h"))])
    yield Operations(
        OperationContext(store, Registry(), clock, Random(1), "ann", NewestReleases(clock), ready_max=1_000)
    )
    await store.close()


def is_near(found_ms, wanted_ms):
    return abs(found_ms - wanted_ms) < NEAR_MS


async def claimed(caller):
    found = await caller.context.store.claim(node="n", token="t", limit=9, lease_ms=30_000)
    return [run.id for run in found.runs]


async def test_a_run_for_now_can_be_claimed_at_once(caller):
    asked = [(await caller.runs.enqueue("report")).id, *await caller.runs.enqueue_many("report", [None, None])]
    asked.append((await caller.runs.run_now("report", anyway=True)).id)

    assert sorted(await claimed(caller)) == sorted(asked)


async def test_a_delay_counts_from_the_stores_clock(caller):
    one = await caller.runs.enqueue("report", delay="1h")
    [many] = await caller.runs.enqueue_many("report", [None], delay="1h")

    runs = await caller.context.store.get_runs([one.id, many])
    assert all(is_near(run.due_ms, true_ms() + HOUR_MS) and run.visible_ms == run.due_ms for run in runs)
    assert one.due_ms == runs[0].due_ms, "the answer says when it is due"
    assert await claimed(caller) == []


async def test_a_moment_is_that_moment(caller):
    at_ms = (true_ms() + HOUR_MS) // 1_000 * 1_000

    run = await caller.runs.enqueue("report", at=format_moment(at_ms))

    assert run.due_ms == at_ms


async def test_a_pause_and_a_token_end_by_the_stores_clock(caller):
    await caller.pauses.pause("report", duration="1h")
    made = await caller.tokens.create_token("viewer", expires="1h")

    [stop] = await caller.pauses.stops()
    assert is_near(stop.expires_ms, true_ms() + HOUR_MS)
    assert is_near(made.token.expires_ms, true_ms() + HOUR_MS)


async def test_the_stores_clock_is_asked_seldom_and_never_ahead(caller):
    store = caller.context.store
    before = await store.now()
    found = await store.claim(node="n", token="t", limit=1, lease_ms=30_000)
    after = await store.now()

    assert before <= found.now_ms
    assert is_near(after, true_ms())


async def test_a_clock_that_is_set_right_meanwhile_changes_nothing(caller):
    assert is_near(await caller.context.store.now(), true_ms())
    caller.context.clock.by_ms = 0

    assert is_near(await caller.context.store.now(), true_ms())


@pytest.mark.parametrize("by_ms", [-DAY_MS, DAY_MS])
async def test_a_node_greets_commands_with_the_time_of_its_store(url, by_ms):
    """The ids of the runs that they ask for begin with it."""
    app = Pollux(url, clock=Skewed(by_ms))
    await app.open()
    hello = await api_of(app).ok("GET", PATH, headers={VERSION_HEADER: __version__})
    await app.close()
    assert is_near(hello["now_ms"], true_ms())


@pytest.mark.parametrize("by_ms", [-20_000, DAY_MS])
async def test_health_without_a_node_of_its_own_goes_by_the_stores_clock(url, by_ms):
    """A watcher that is behind would take every clock note for one of a clock that came back."""
    app = Pollux(url, clock=Skewed(by_ms))
    await app.open()
    now_ms = await app.backend.now()
    await app.backend.put_notes([NotePut(clock_key(SCHEDULER_VERSION), clock_value(now_ms, None))])
    health = await app.operations.status.health()
    await app.close()
    assert [finding.seen for finding in health.findings if finding.name == "clock"] == []
