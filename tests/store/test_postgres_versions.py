"""Migrations of PostgreSQL: a schema of an earlier release is brought up to date, with all that is in it.

There is one schema file so far; a second migration is planted (`LATER`), so that its way is tested.
"""

import asyncpg
import pytest

from pollux.errors import StoreRefused
from pollux.model import SCHEDULER_VERSION, Done
from pollux.store.contract import Answer, Settlement
from pollux.store.postgres import schema
from pollux.store.postgres.address import read_address
from pollux.store.postgres.check import check
from pollux.store.postgres.inspect import look_at_server
from pollux.store.postgres.store import PostgresStore
from pollux.store.relational.sql import Migration
from pollux.testing.conformance.builders import a_run
from tests.servers.postgres import own_url, shared_url

WHOLE = schema.migrations()
LATER = Migration(
    WHOLE[-1].number + 1,
    "planted.sql",
    (
        "CREATE TABLE {s}.planted (id text)",
        "INSERT INTO {s}.planted SELECT id FROM {s}.runs",
        "ALTER TABLE {s}.queue ADD COLUMN planted text",
        "UPDATE {s}.queue AS q SET planted = r.id FROM {s}.runs AS r WHERE r.job_id = q.job_id AND r.seq = q.seq",
    ),
)


def release(*later, monkeypatch):
    """From here on this process is of the release that has these migrations, too."""
    monkeypatch.setattr(schema, "migrations", lambda: [*WHOLE, *later])


async def earlier_release(url, monkeypatch):
    """A schema of this release, which the planted migration makes an earlier one.

    A job that is due, an entry of the feed, a term; two jobs with a run each that is ready, one that is leased, and one
    that is finished.
    """
    name = read_address(url).schema
    made = ";\n".join(each.replace("{s}", f'"{name}"') for each in schema.missing(0))
    connection = await asyncpg.connect(shared_url())
    try:
        await connection.execute(made)
        await connection.execute(
            f"SET search_path TO {name};"
            "INSERT INTO jobs (id, revision, release, source, handler, name, grp, target, tags, enabled, once,"
            " definition, next_due_ms)"
            " SELECT id, 1, 0, 'api', 'h', '', '', '', '', true, false,"
            """ convert_to('{"id":"' || id || '","handler":"h"}', 'UTF8'), due"""
            " FROM (VALUES ('a', NULL), ('b', NULL), ('job', 5)) AS j (id, due);"
            """INSERT INTO feed (ends, body) VALUES (0, '{"type":"put","ids":["job"],"added":1}');"""
            "INSERT INTO runs (id, job_id, due_ms, cause, priority, grp, target, gated)"
            " VALUES ('a1', 'a', 1, 2, 2, '', '', false), ('b1', 'b', 2, 2, 2, '', '', false),"
            "        ('b2', 'b', 3, 2, 2, '', '', false);"
            "INSERT INTO queue (seq, job_id, priority, due_ms, state, visible_ms, held_reason)"
            " SELECT seq, job_id, 2, due_ms, 1, due_ms, '' FROM runs;"
            "UPDATE queue SET state = 2, fence = 1, token = 't:1', owner = 'n', lease_until_ms = 9000, lease_ms = 9000"
            " WHERE due_ms = 3;"
            "INSERT INTO history SELECT nextval('run_seq'), 'a0', 'a', 1, 2, NULL, NULL, 2, '', '', false, 3, '', 1, 1,"
            " 0, 0, 1, 't:1', '', 0, '', 1, 2, false, NULL, '', NULL, 1, '', NULL, '', 0, 2;"
            "UPDATE counters SET ready = 2, leased = 1, feed = 1, jobs = 3 WHERE slot = 3;"
            "UPDATE term SET number = 4, in_use = true"
        )
    finally:
        await connection.close()
    release(LATER, monkeypatch=monkeypatch)


async def test_what_an_earlier_release_wrote_is_brought_up_to_date_and_goes_on(monkeypatch):
    url = own_url("first")
    await earlier_release(url, monkeypatch)

    store = PostgresStore(url)
    await store.open()
    try:
        [version] = await store.versions()
        assert (version.number, version.term, version.counts.jobs) == (SCHEDULER_VERSION, 4, 3)
        assert [job.id for job in await store.due(before_ms=9, limit=9)] == ["job"]
        assert [item.entry.ids for item in (await store.feed(limit=9)).items] == [("job",)]
        assert (await store.elect("n", ttl_ms=9_000)).number == 5
        assert await store.move_jobs(["job"], 3) == [Answer.OK]
        assert [job.scheduler_version for job in await store.of_version(3).due(before_ms=9, limit=9)] == [3]
    finally:
        await store.close()
    assert (await check(url, lambda *_: None)).findings == ()


async def test_runs_of_an_earlier_release_are_claimed_and_settled(monkeypatch):
    url = own_url("second")
    await earlier_release(url, monkeypatch)

    store = PostgresStore(url)
    await store.open()
    try:
        claimed = await store.claim(node="n", token="t", limit=9, lease_ms=60_000, now_ms=100)
        assert [(run.id, run.job_id) for run in claimed.runs] == [("a1", "a"), ("b1", "b")]
        leased = Settlement("b2", "t:1", Done())
        assert (
            await store.settle([leased, *(Settlement(run.id, run.token, Done()) for run in claimed.runs)])
            == [Answer.OK] * 3
        )
        assert {run.id for run in (await store.list_runs()).runs} == {"a0", "a1", "b1", "b2"}
        [answer] = await store.enqueue([a_run("a0", "a")])
        assert answer.answer is Answer.ALREADY
    finally:
        await store.close()
    assert (await check(url, lambda *_: None)).findings == ()


async def test_a_migration_that_fails_at_any_statement_changes_nothing(monkeypatch):
    url = own_url("broken")
    await earlier_release(url, monkeypatch)
    for place in range(len(LATER.statements)):
        parts = list(LATER.statements)
        parts[place] = "SELECT this_fails()"
        release(LATER._replace(statements=tuple(parts)), monkeypatch=monkeypatch)
        with pytest.raises(Exception, match="this_fails"):
            await PostgresStore(url).open()
        assert (await look_at_server(url)).schema == WHOLE[-1].number

    release(LATER, monkeypatch=monkeypatch)
    store = PostgresStore(url)
    await store.open()
    assert (await store.counts()).jobs == 3
    await store.close()


async def test_a_schema_of_the_planted_release_is_refused_by_this_one(monkeypatch):
    url = own_url("newer")
    await earlier_release(url, monkeypatch)
    store = PostgresStore(url)
    await store.open()
    await store.close()
    release(monkeypatch=monkeypatch)

    with pytest.raises(StoreRefused, match=r"newer Pollux .it is 2, this one knows 1.*upgrade Pollux"):
        await PostgresStore(url).open()


async def test_a_schema_from_before_the_first_release_is_refused_with_the_cure_and_left_alone():
    """Its tables had other names, under any of the numbers that this release uses, too."""
    url = own_url("unreleased")
    name = read_address(url).schema
    connection = await asyncpg.connect(shared_url())
    try:
        await connection.execute(
            f"CREATE SCHEMA {name}; CREATE TABLE {name}.tally (n int);"
            f"CREATE TABLE {name}.meta (mark text, version int); INSERT INTO {name}.meta VALUES ('{schema.MARK}', 1)"
        )
        for number in (1, 8):
            await connection.execute(f"UPDATE {name}.meta SET version = {number}")
            with pytest.raises(StoreRefused, match=r"before its first release.*nothing was changed; dump it with"):
                await PostgresStore(url).open()
            with pytest.raises(StoreRefused, match="before its first release"):
                await check(url, lambda *_: None)
            assert (await look_at_server(url)).is_unreleased
        tables = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = $1 ORDER BY 1", name)
        assert [row[0] for row in tables] == ["meta", "tally"]
    finally:
        await connection.close()


async def test_a_migration_may_take_longer_than_a_call(monkeypatch):
    """Each table may have millions of rows; what a deadline cuts off is undone, and would begin again for ever."""
    url = own_url("slow")
    await earlier_release(url, monkeypatch)
    release(Migration(LATER.number, "slow", ("SELECT pg_sleep(1.5)",)), monkeypatch=monkeypatch)

    store = PostgresStore(url, deadline_ms=1_000)
    await store.open()
    try:
        assert (await store.counts()).jobs == 3
    finally:
        await store.close()
