"""Promises of the store on Redis as on Valkey: on the one that the other tests do not use.

They take what the machine has, and where it has nothing a wheel's Valkey.  Every verb keeps its contract on both;
streams, and what a server tells of them, are where the two differ most.
"""

import pytest
from redis.asyncio import Redis

from pollux.store.redis import RedisStore
from tests.conformance.variants import VariantContract
from tests.servers.redis import NAMED, RedisServer, find_other, own_url, shared_url
from tests.store import test_redis_streams as streams

pytestmark = pytest.mark.xdist_group("redis kinds")  # one server for all of them


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Debian's Redis, or a Valkey where the others have a Redis; without it nothing would be proved here."""
    try:
        program = find_other()
    except FileNotFoundError as missing:
        pytest.skip(str(missing))  # which fails a run that must not skip
    server = RedisServer(tmp_path_factory.mktemp("kinds"), "--appendonly", "yes", program=program).start()
    yield server
    server.stop()


@pytest.fixture(autouse=True)
def named(server, monkeypatch):
    monkeypatch.setenv(NAMED, server.url)


class TestOnTheOtherKind(VariantContract):
    @pytest.fixture
    async def store(self):
        store = RedisStore(own_url("kinds"))
        await store.open()
        yield store
        await store.close()


PROMISES = (
    streams.test_the_lag_of_a_line_is_what_is_ready_and_pending_is_what_is_leased,
    streams.test_what_becomes_visible_by_itself_enters_the_line,
    streams.test_the_entry_of_a_run_that_was_cancelled_goes_with_the_next_claim,
    streams.test_a_lost_lease_leaves_nothing_pending_behind,
    streams.test_the_streams_tell_the_truth_after_every_verb,
    streams.test_consumers_that_nobody_is_any_more_go_but_none_that_holds_a_run,
    streams.test_the_consumer_of_a_dead_node_goes_as_soon_as_its_leases_are_taken_back,
    streams.test_an_entry_that_was_put_there_by_hand_runs_nothing,
    streams.test_a_claim_costs_the_same_commands_however_much_else_there_is,
    streams.test_a_waiter_is_not_deaf_after_its_connection_was_killed,
)


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__.removeprefix("test_"))
async def test_what_an_operator_sees_is_true_there_too(promise):
    url = own_url("kinds")
    async with Redis.from_url(shared_url()) as redis, streams.opened(url) as store:
        await promise(store, redis, url)


@pytest.mark.parametrize("accident", ["group", "stream", "read by somebody", "functions"])
async def test_no_run_is_lost_there_by_what_happens_to_a_stream(accident):
    url = own_url("kinds")
    async with Redis.from_url(shared_url()) as redis, streams.opened(url) as store:
        await streams.test_no_run_is_lost_by_what_happens_to_a_stream(store, redis, url, accident)
