"""What `?durability=required` refuses is an error for the doctor, too, and not a warning."""

import pytest
from msgspec.structs import replace

from pollux.cli.doctor import redis as of_redis
from pollux.cli.doctor.finding import FAIL, OK, WARN
from pollux.errors import StoreRefused
from pollux.store.redis.address import read_address
from pollux.store.redis.inspect import look_at_server
from pollux.store.redis.server import check_fsync, check_server
from tests.servers import redis

SPOILT = ({"aof_enabled": 0}, None), ({"aof_enabled": 1}, "no")


def judged_by_a_node(server):
    check_server(server.info, server.address)
    check_fsync(server.fsync, server.address)


@pytest.mark.parametrize(("info", "fsync"), SPOILT, ids=["no append-only file", "appendfsync no"])
async def test_a_redis_that_no_node_would_start_on_fails(info, fsync):
    url = redis.own_url("durable")
    usual = replace(await look_at_server(url), fsync=fsync)
    usual = replace(usual, info=usual.info | info)
    required = replace(usual, address=read_address(f"{url}&durability=required"))
    with pytest.raises(StoreRefused, match="durability is required"):
        judged_by_a_node(required)

    assert of_redis.of_persistence(usual).level == WARN
    found = of_redis.of_persistence(required)
    assert found.level == FAIL
    assert "durability is required" in found.seen
    assert found.cure == of_redis.of_persistence(usual).cure


async def test_a_redis_that_keeps_what_is_required_is_fine():
    seen = await look_at_server(f"{redis.own_url('durable')}&durability=required")
    assert of_redis.of_persistence(replace(seen, info=seen.info | {"aof_enabled": 1}, fsync="everysec")).level == OK
