"""Findings of `store check` on PostgreSQL: each kind planted once; none in a store that is sound."""

import asyncio

import asyncpg
import pytest

from pollux.errors import StoreError, StoreRefused
from pollux.model import AuditLine
from pollux.store.contract import Pruning
from pollux.store.postgres.address import read_address
from pollux.store.postgres.check import check, index_statements, repair
from pollux.store.postgres.store import PostgresStore
from pollux.store.urls import open_store
from pollux.testing.conformance.builders import a_run
from tests.acceptance.move_world import populate
from tests.acceptance.terminal import SameProcess
from tests.servers.postgres import own_url, shared_url


def silent(*_) -> None:
    """Nobody looks at the progress."""


async def spoil(url, *statements):
    connection = await asyncpg.connect(shared_url())
    for statement in statements:
        await connection.execute(statement.replace("{s}", read_address(url).schema))
    await connection.close()


async def rules(url):
    return [finding.rule for finding in (await check(url, silent)).findings]


@pytest.fixture
async def url():
    """A store with something of everything in it."""
    url = own_url("check")
    store = PostgresStore(url)
    await store.open()
    await populate(store)
    await store.close()
    return url


async def test_a_store_in_order_has_no_findings(url):
    steps = []
    found = await check(url, lambda *step: steps.append(step))

    assert found.findings == ()
    assert (found.runs, found.jobs, found.notes, found.log) == (10, 3, 3, 4)
    assert found.path.endswith(f"schema {read_address(url).schema}")
    assert steps[-1][0] == "the records"
    assert steps[-1][1] >= steps[-1][2] == 20


PLANTED = {
    "counts": ["UPDATE {s}.counters SET ready = ready + 1 WHERE slot = 3"],
    "counts ": ["UPDATE {s}.counters SET dead = dead - 1 WHERE slot = 3"],
    "counts  ": ["DELETE FROM {s}.counters WHERE slot = 7"],
    "indexes": ["DROP INDEX {s}.queue_ready"],
    "indexes ": ["UPDATE pg_index SET indisvalid = false WHERE indexrelid = '{s}.history_class'::regclass"],
    "states": ["UPDATE {s}.history SET state = 1 WHERE state = 3"],
    "states ": ["UPDATE {s}.history SET history_class = 0 WHERE state = 4"],
    "states  ": ["UPDATE {s}.history SET id = 'later' WHERE state = 4"],
    "leases": ["UPDATE {s}.queue SET token = '' WHERE state = 2"],
    "states   ": ["UPDATE {s}.queue SET job_id = 'another' WHERE state = 1"],
    "orphans": [
        "UPDATE {s}.queue SET job_id = 'gone' WHERE seq = (SELECT seq FROM {s}.runs WHERE id = 'later')",
        "UPDATE {s}.runs SET job_id = 'gone' WHERE id = 'later'",
    ],
    "buried": ["INSERT INTO {s}.tombs (id, revision) VALUES ('job0', 1)"],
    "records": ["UPDATE {s}.history SET result = '{' WHERE state = 3"],
    "records ": ["UPDATE {s}.jobs SET definition = '{}'"],
    "records  ": ["UPDATE {s}.notes SET value = '' WHERE key = 'n1'"],
    "feed": ["UPDATE {s}.feed SET body = '0'"],
    "audit": ["UPDATE {s}.log SET detail = 'never mind' WHERE seq = 3"],
    "audit ": ["DELETE FROM {s}.log WHERE seq = 2"],
}


@pytest.mark.parametrize("rule", PLANTED)
async def test_what_is_wrong_is_found(url, rule):
    await spoil(url, *PLANTED[rule])

    assert await rules(url) == [rule.strip()]


async def test_a_run_in_another_version_than_its_job_is_found(url):
    await spoil(url, "UPDATE {s}.queue SET version = 7 WHERE seq = (SELECT seq FROM {s}.runs WHERE id = 'later')")
    found = {finding.rule: finding for finding in (await check(url, silent)).findings}
    assert set(found) == {"versions", "counts"}
    assert found["versions"].shown == ("later",)


async def test_wrong_counts_are_counted_again_while_others_work(url):
    before = await check(url, silent)
    await spoil(url, "UPDATE {s}.counters SET held = 7, ready = 0, leased = 99, dead = 3, feed = 0, ends = 1, jobs = 0")
    await spoil(url, "DELETE FROM {s}.counters WHERE slot IN (0, 5)")
    [finding] = (await check(url, silent)).findings
    assert finding.can_repair
    assert any("ready in version" in line for line in finding.shown)
    store = PostgresStore(url)
    await store.open()
    made = asyncio.Queue(maxsize=1)
    busy = asyncio.ensure_future(keep_busy(store, made))
    await some(made)
    mending = asyncio.ensure_future(repair(url))
    while not mending.done():
        await some(made)
    await mending
    await some(made)
    busy.cancel()
    await asyncio.gather(busy, return_exceptions=True)
    await store.close()

    found = await check(url, silent)
    assert found.findings == ()
    assert found.runs > before.runs


async def keep_busy(store, made):
    for number in range(10_000):
        await made.put(await store.enqueue([a_run(f"busy{number}", "job0")]))


async def some(made):
    """Somebody works: two more runs are there."""
    async with asyncio.timeout(60):
        await made.get()
        await made.get()


async def test_a_recounted_store_goes_on_counting(url):
    """No matter in which slot a writer counts."""
    await spoil(url, "DELETE FROM {s}.counters")
    await repair(url)
    for number in range(3):
        store = open_store(url)
        await store.open()
        await store.enqueue([a_run(f"more{number}", "job0")])
        await store.close()
    assert await rules(url) == []


async def test_lost_and_broken_indexes_are_built_again(url):
    await spoil(
        url,
        "DROP INDEX {s}.queue_ready",
        "DROP INDEX {s}.history_id",
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = '{s}.jobs_due'::regclass",
    )
    [finding] = (await check(url, silent)).findings
    assert set(finding.shown) == {"jobs_due is not valid", "queue_ready is missing", "history_id is missing"}
    await repair(url)
    assert await rules(url) == []


def test_every_index_of_the_migrations_is_known():
    assert {"runs_id", "queue_ready", "queue_leased", "history_class", "jobs_due"} <= set(index_statements())


async def test_an_audit_log_that_was_pruned_is_in_order(url):
    store = PostgresStore(url)
    await store.open()
    assert await store.prune(Pruning(log_max=2)) == 2
    await store.log([AuditLine(9, "me", "did", "more")])
    await store.close()
    assert await rules(url) == []


async def test_what_is_no_store_is_refused():
    with pytest.raises(StoreRefused, match="has no store in schema"):
        await check(own_url("nothing"), silent)
    with pytest.raises(StoreError, match="cannot be reached"):
        await check("postgresql://me:hunter2222@127.0.0.1:1/x", silent)


def test_the_command_tells_and_repairs(url, tmp_path):
    here = SameProcess(tmp_path)
    where = ("--store", url)
    assert here.ok("store", "check", *where).out.startswith("ok: PostgreSQL at ")
    asyncio.run(spoil(url, "UPDATE {s}.counters SET ready = ready + 5 WHERE slot = 1"))
    answer = here("store", "check", *where)
    assert answer.code == 1
    assert "counts: a count differs from what is there" in answer.out
    assert "`pollux store check --repair` repairs what" in answer.err
    assert "written anew" in here.ok("store", "check", "--repair", *where).err
    assert here.ok("store", "check", "--json", *where).json["ok"] is True


@pytest.mark.parametrize("command", [("backup", "x.db"), ("restore", "x.db")])
def test_backup_and_restore_name_the_servers_own_tools(tmp_path, command):
    here = SameProcess(tmp_path)
    answer = here("store", *command, "--store", "postgresql://me:hunter2222@127.0.0.1:1/x")
    assert answer.code == 2
    assert "pg_dump" in answer.err
    assert "`pollux store dump` and `load` are for all stores" in answer.err
    assert "hunter2222" not in answer.err
