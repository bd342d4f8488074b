"""`pollux doctor --store redis://…` and `postgresql://…`: each trouble of a server is found, with its cure."""

import asyncio

import asyncpg
import pytest
from msgspec.structs import replace

from pollux.cli.doctor import postgres as of_postgres
from pollux.cli.doctor import redis as of_redis
from pollux.cli.doctor.deployment import of_distance, of_offset
from pollux.cli.doctor.finding import FAIL, OK, WARN
from pollux.model import Job, Node
from pollux.store.contract import JobPut
from pollux.store.postgres.address import read_address
from pollux.store.postgres.inspect import look_at_server as look_at_postgres
from pollux.store.redis.inspect import _SHAPES, commands_used
from pollux.store.redis.inspect import look_at_server as look_at_redis
from pollux.store.urls import open_store
from pollux.testing.conformance.builders import a_run
from tests.acceptance.terminal import SameProcess
from tests.servers import postgres
from tests.servers.redis import RedisServer, own_url
from tests.servers.redis_cluster import ask, until

SECRET = "hunter2222"


@pytest.fixture
def pollux(tmp_path):
    (tmp_path / "house").mkdir()
    return SameProcess(tmp_path / "house")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A Redis of our own: its settings are changed."""
    server = RedisServer(tmp_path_factory.mktemp("redis"), "--appendonly", "yes", "--appendfsync", "everysec").start()
    yield server
    server.stop()


def found(pollux, url, *, code=None):
    answer = pollux("doctor", "--store", url, "--json")
    assert SECRET not in answer.out + answer.err
    assert answer.err == "", answer.err
    assert answer.code == (1 if answer.json["counts"]["fail"] else 0)
    assert code in (None, answer.code), answer.json
    findings = {finding["about"]: finding for finding in answer.json["findings"]}
    assert all(finding["cure"] or finding["level"] == OK for finding in findings.values())
    return findings


async def fill(url):
    """A store with a leader that seems alive, and something that waits for long, since all seats are taken."""
    store = open_store(url)
    await store.open()
    await store.put_jobs([JobPut(Job(id="job", handler="h"))])
    await store.enqueue([a_run("old", due_ms=1_000)])
    term = await store.elect("n1", ttl_ms=600_000)
    await store.beat(Node("n1", seats=3, busy=3, leads=term.number), ttl_ms=600_000)
    await store.close()


async def ask_redis(server, *commands):
    """What somebody types at redis-cli."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    answers = []
    for command in commands:
        writer.write(" ".join(f'"{part}"' for part in command).encode() + b"\r\n")
        await writer.drain()
        answers.append(await reader.readline())
    writer.close()
    await writer.wait_closed()
    assert not [answer for answer in answers if answer.startswith(b"-")], answers


# Redis


@pytest.mark.parametrize("kind", ["redis", "postgres"])
def test_a_house_in_order_is_told_so_and_nothing_is_made(pollux, server, kind):
    url = f"{server.url}?namespace=fine" if kind == "redis" else postgres.own_url("doctor")
    place = "keys" if kind == "redis" else "schema"
    findings = found(pollux, url, code=0)
    assert "the first start makes" in findings[place]["seen"]
    assert "the first start makes" in found(pollux, url, code=0)[place]["seen"], "looking makes nothing"
    asyncio.run(fill(url))

    findings = found(pollux, url, code=0)

    for about in ("server", "role", "rights", "server clock", "distance", place, "leader", "connections", "feed"):
        assert findings[about]["level"] == OK, findings[about]
    assert "n1 leads, term 1; no standby: no other node could take over; 1 node" in findings["leader"]["seen"]
    assert "the oldest for" in findings["ready runs"]["seen"], "what waits is told as on every store"


def test_each_trouble_of_a_redis_is_told(pollux, server):
    def after(*setting):
        asyncio.run(ask_redis(server, ("CONFIG", "SET", *setting)))
        return found(pollux, f"{server.url}?namespace=spoilt")

    assert found(pollux, server.url)["persistence"]["level"] == OK
    assert "CONFIG SET maxmemory-policy noeviction" in after("maxmemory-policy", "allkeys-lru")["eviction"]["cure"]
    assert after("maxmemory-policy", "noeviction")["eviction"]["level"] == OK
    assert after("appendfsync", "no")["persistence"]["level"] == WARN
    assert "nothing that was answered" in after("appendfsync", "always")["persistence"]["seen"]
    assert "CONFIG SET appendonly yes" in after("appendonly", "no")["persistence"]["cure"]
    assert after("maxmemory", "1000000")["memory"]["level"] == FAIL
    assert after("maxmemory", "0")["memory"]["level"] == OK
    assert after("appendonly", "yes")["server"]["level"] == OK


def test_replicas_that_are_missing_are_told(pollux, server):
    replicas = found(pollux, f"{server.url}?wait=1", code=1)["replicas"]
    assert "?wait=1, but 0 replicas follow" in replicas["seen"]


def test_a_replica_in_its_first_synchronisation_is_told(pollux, server, tmp_path):
    """It follows, but has nothing yet: it confirms no write, and whoever promotes it loses everything."""
    ask(server, "CONFIG", "SET", "repl-diskless-sync-delay", 3600)
    replica = RedisServer(tmp_path, "--replicaof", "127.0.0.1", str(server.port)).start()
    try:
        until(lambda: "state=wait_bgsave" in str(ask(server, "INFO", "replication")), "it waits")
        replicas = found(pollux, f"{server.url}?wait=1", code=1)["replicas"]
        assert "of 1 replicas 0 are in step" in replicas["seen"]
        assert "promote none" in replicas["cure"]
        assert found(pollux, server.url)["replicas"]["level"] == WARN
    finally:
        replica.stop()


def test_a_replica_is_told(pollux, server, tmp_path):
    replica = RedisServer(tmp_path, "--replicaof", "127.0.0.1", str(server.port)).start()
    try:
        role = found(pollux, replica.url, code=1)["role"]
        assert f"127.0.0.1:{server.port}" in role["cure"]
    finally:
        replica.stop()


def test_a_redis_user_without_rights_is_told_which(pollux, server):
    login = server.url.replace("redis://", "redis://weak:" + SECRET + "@")
    users = ("ACL", "SETUSER", "weak", "reset", "on", f">{SECRET}", "~mine:*", "+@all", "-xreadgroup", "-zadd")
    asyncio.run(ask_redis(server, users))
    rights = found(pollux, f"{login}?prefix=mine", code=1)["rights"]
    assert "user weak may not use XREADGROUP, ZADD on keys mine:*" in rights["seen"]
    assert rights["cure"].startswith("ACL SETUSER weak ~mine:* ")

    assert "may not call functions on our keys" in found(pollux, f"{login}?prefix=theirs", code=1)["rights"]["seen"]

    asyncio.run(ask_redis(server, ("ACL", "SETUSER", "weak", "-eval", "-config", "-acl")))
    findings = found(pollux, f"{login}?prefix=mine")
    assert (findings["rights"]["level"], "not known" in findings["rights"]["seen"]) == (WARN, True)
    assert "may not read appendfsync" in findings["persistence"]["seen"]

    asyncio.run(ask_redis(server, ("ACL", "SETUSER", "weak", "+@all")))
    assert found(pollux, f"{login}?prefix=mine", code=0)["rights"]["level"] == OK

    asyncio.run(ask_redis(server, ("ACL", "SETUSER", "weak", "off")))
    assert "does not let us in" in found(pollux, login, code=1)["server"]["seen"]


async def test_what_the_cure_grants_is_enough(server):
    grant = of_redis.of_rights(replace(await look_at_redis(f"{server.url}?prefix=mine"), refused=("X",), user="bob"))
    await ask_redis(server, ("ACL", "SETUSER", "bob", "reset", "on", f">{SECRET}", "-@all"))
    await ask_redis(server, tuple(grant.cure.split()))
    url = server.url.replace("redis://", f"redis://bob:{SECRET}@") + "?prefix=mine"
    assert (await look_at_redis(url)).refused == ()
    await fill(url)


def test_keys_of_another_format_are_told(pollux, server):
    asyncio.run(ask_redis(server, ("HSET", "pollux:later:meta", "format", "99")))
    assert "format 99" in found(pollux, f"{server.url}?namespace=later", code=1)["keys"]["seen"]


def test_every_command_of_the_functions_has_a_shape_that_the_server_can_judge():
    used = commands_used(wait=True)
    assert {"XADD", "HSET", "FCALL", "XREADGROUP", "WAIT", "XREAD"} <= set(used)
    assert set(_SHAPES) <= set(used), "nothing that nobody sends"


async def test_judgements_of_a_redis(server):
    seen = await look_at_redis(server.url)

    def told(judge, **info):
        return judge(replace(seen, info=seen.info | info)).level

    assert told(of_redis.of_version, redis_version="6.2.1") in (FAIL, OK)
    old = {name: value for name, value in seen.info.items() if name != "valkey_version"} | {"redis_version": "6.2.1"}
    assert of_redis.of_version(replace(seen, info=old)).level == FAIL
    assert told(of_redis.of_version, redis_mode="cluster") == FAIL
    assert told(of_redis.of_persistence, aof_last_write_status="err") == FAIL
    assert told(of_redis.of_saves, rdb_last_bgsave_status="err") == FAIL
    assert told(of_redis.of_clients, connected_clients=95, maxclients=100) == WARN
    assert told(of_redis.of_memory, used_memory=85, maxmemory=100) == WARN
    assert told(of_redis.of_role, loading=1) == WARN


# PostgreSQL


def test_each_trouble_of_a_postgres_is_told(pollux):
    url = postgres.own_url("troubled")
    schema = read_address(url).schema
    asyncio.run(fill(url))
    asyncio.run(execute(f"UPDATE {schema}.meta SET version = 99"))
    assert found(pollux, url, code=1)["schema"]["cure"] == "upgrade Pollux"
    asyncio.run(execute(f"UPDATE {schema}.meta SET mark = 'theirs'"))
    assert "another program" in found(pollux, url, code=1)["schema"]["seen"]


def test_a_postgres_user_without_rights_is_told_which(pollux):
    url = postgres.own_url("rights")
    schema = read_address(url).schema
    asyncio.run(fill(url))
    role = f"weak_{schema}"
    asyncio.run(
        execute(
            f"CREATE ROLE {role} LOGIN PASSWORD '{SECRET}'",
            f"GRANT USAGE ON SCHEMA {schema} TO {role}",
            f"GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {role}",
            f"GRANT ALL ON ALL SEQUENCES IN SCHEMA {schema} TO {role}",
            f"REVOKE DELETE ON {schema}.runs FROM {role}",
        )
    )
    theirs = url.replace("pollux:pollux@", f"{role}:{SECRET}@")
    rights = found(pollux, theirs, code=1)["rights"]
    assert f"user {role} may not use runs in schema {schema}" in rights["seen"]
    asyncio.run(execute(f"GRANT DELETE ON {schema}.runs TO {role}"))
    assert found(pollux, theirs, code=0)["rights"]["level"] == OK
    asyncio.run(sees_all_connections(theirs))

    other = theirs.replace(f"schema={schema}", "schema=not_there")
    assert "may not make the schema not_there" in found(pollux, other, code=1)["rights"]["seen"]


async def sees_all_connections(url):
    """Of the connections of others a weak user is not told what they do, but that they are there."""
    others = [await asyncpg.connect(postgres.shared_url()) for _ in range(5)]
    assert (await look_at_postgres(url)).connections >= len(others) + 1
    for connection in others:
        await connection.close()


async def execute(*statements):
    connection = await asyncpg.connect(postgres.shared_url())
    for statement in statements:
        await connection.execute(statement)
    await connection.close()


async def test_judgements_of_a_postgres():
    seen = await look_at_postgres(postgres.own_url("judged"))
    tables = (of_postgres.TableStats("runs", 10, 20_000), of_postgres.TableStats("jobs", 1_000, 900))
    assert of_postgres.of_version(replace(seen, number=120_004)).level == FAIL
    assert of_postgres.of_version(replace(seen, encoding="LATIN1")).level == FAIL
    assert of_postgres.of_role(replace(seen, is_standby=True)).level == FAIL
    kept = {"fsync": "on", "full_page_writes": "on"}
    assert of_postgres.of_durability(replace(seen, settings=kept | {"synchronous_commit": "on"})).level == OK
    assert of_postgres.of_durability(replace(seen, settings=kept | {"synchronous_commit": "off"})).level == WARN
    assert of_postgres.of_durability(replace(seen, settings=kept | {"fsync": "off"})).level == WARN
    assert of_postgres.of_vacuum(replace(seen, settings={"autovacuum": "off"})).level == FAIL
    assert "runs: 20,000 dead rows" in of_postgres.of_bloat(tables).seen
    assert of_postgres.of_bloat(tables[1:]).level == OK
    assert of_postgres.of_transactions(replace(seen, oldest_transaction_s=3_600)).level == WARN
    assert of_postgres.of_connections(replace(seen, connections=95, connections_max=97)).level == WARN
    assert of_postgres.of_connections(replace(seen, connections=97, connections_max=97)).level == FAIL
    assert of_postgres.of_pooler(replace(seen, has_pooler=True)).level == WARN
    quiet = replace(seen.address, listen=False)
    assert of_postgres.of_pooler(replace(seen, has_pooler=True, address=quiet)).level == OK


# both


@pytest.mark.parametrize(
    "url", [f"redis://:{SECRET}@127.0.0.1:1/0", f"postgresql://me:{SECRET}@127.0.0.1:1/x"], ids=["redis", "postgres"]
)
def test_a_server_that_is_not_there_is_told(pollux, url):
    server = found(pollux, url, code=1)["server"]
    assert "cannot be reached" in server["seen"]
    assert server["cure"]


def test_a_wrong_password_or_database_is_told(pollux):
    url = postgres.shared_url()
    wrong = url.replace("pollux:pollux@", f"guest:{SECRET}@")
    assert found(pollux, wrong, code=1)["server"]["level"] == FAIL
    assert "no such database" in found(pollux, url.replace("/postgres", "/nothing"), code=1)["server"]["seen"]


def test_judgements_of_any_server():
    assert (of_offset(30).level, of_offset(-5_000).level) == (OK, WARN)
    assert "5s behind ours" in of_offset(-5_000).seen
    assert (of_distance(1.0).level, of_distance(80.0).level) == (OK, WARN)


@pytest.mark.parametrize("kind", ["redis", "postgres"])
def test_a_store_that_was_moved_is_told(pollux, tmp_path, kind):
    url = own_url("sealed") if kind == "redis" else postgres.own_url("sealed")
    asyncio.run(_leave(url))
    pollux.ok("store", "move", url, f"sqlite:///{tmp_path}/new.db")
    told = found(pollux, url, code=1)
    assert "this store was moved to sqlite:///" in told["seal"]["seen"]
    assert told["seal"]["cure"].startswith("use that one")
    assert not told.keys() & {"leader", "workers", "ready runs", "due times", "feed"}, "what stands still goes on there"
    pollux.ok("store", "move", f"sqlite:///{tmp_path}/new.db", f"sqlite:///{tmp_path}/newer.db")
    assert "was moved to" in found(pollux, f"sqlite:///{tmp_path}/new.db", code=1)["seal"]["seen"]


async def _leave(url):
    await fill(url)
    store = open_store(url)
    await store.open()
    await store.beat(Node("n1"), ttl_ms=0)
    await store.close()


@pytest.mark.parametrize("kind", ["redis", "postgres"])
def test_nodes_are_listed_on_every_store(pollux, kind):
    url = own_url("nodes") if kind == "redis" else postgres.own_url("nodes")
    asyncio.run(fill(url))
    assert "n1" in pollux.ok("nodes", "--store", url).out
    assert [node["id"] for node in pollux.ok("nodes", "--store", url, "--json").json["nodes"]] == ["n1"]
