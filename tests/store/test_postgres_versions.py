"""Is a schema of an earlier release brought up to date, with all that is in it?"""

import asyncpg

from pollux.clock import SystemClock
from pollux.model import SCHEDULER_VERSION, Done
from pollux.store.contract import Answer, Settlement
from pollux.store.guard import Guarded
from pollux.store.postgres import schema
from pollux.store.postgres.address import read_address
from pollux.store.postgres.check import check
from pollux.store.postgres.store import PostgresStore
from pollux.store.relational.sql import Migration
from pollux.testing.conformance.builders import a_run
from tests.servers.postgres import own_url, shared_url


def made_by(release, name, monkeypatch):
    """The statements by which that release made its schema."""
    whole = schema.migrations()
    with monkeypatch.context() as patch:
        patch.setattr(schema, "migrations", lambda: whole[:release])
        return ";\n".join(each.replace("{s}", f'"{name}"') for each in schema.missing(0))


async def first_release(url, monkeypatch):
    """A schema as the first release wrote it: a job that is due, an entry of the feed, a term."""
    name = read_address(url).schema
    connection = await asyncpg.connect(shared_url())
    try:
        await connection.execute(made_by(1, name, monkeypatch))
        definition = '{"id":"job","handler":"h"}'
        await connection.execute(
            f"SET search_path TO {name};"
            "INSERT INTO jobs (id, revision, release, source, handler, name, grp, target, tags, enabled, once,"
            " definition, next_due_ms) "
            f"VALUES ('job', 1, 0, 'api', 'h', '', '', '', '', true, false, '{definition}', 5);"
            """INSERT INTO feed (ends, body) VALUES (0, '{"type":"put","ids":["job"],"added":1}');"""
            "UPDATE tally SET feed = 1, jobs = 1 WHERE slot = 3;"
            "UPDATE term SET number = 4"
        )
    finally:
        await connection.close()


async def test_what_the_first_release_wrote_is_of_the_usual_version_and_goes_on(monkeypatch):
    url = own_url("first")
    await first_release(url, monkeypatch)

    store = PostgresStore(url)
    await store.open()
    try:
        [version] = await store.versions()
        assert (version.number, version.term, version.counts.jobs) == (SCHEDULER_VERSION, 4, 1)
        assert [job.id for job in await store.due(before_ms=9, limit=9)] == ["job"]
        assert [item.entry.ids for item in (await store.feed(limit=9)).items] == [("job",)]
        assert (await store.elect("n", ttl_ms=9_000)).number == 5
        assert await store.move_jobs(["job"], 3) == [Answer.OK]
        assert [job.scheduler_version for job in await store.of_version(3).due(before_ms=9, limit=9)] == [3]
    finally:
        await store.close()


async def second_release(url, monkeypatch):
    """Two jobs with a run each that is ready, one that is leased, and one that is finished."""
    name = read_address(url).schema
    connection = await asyncpg.connect(shared_url())
    try:
        await connection.execute(made_by(2, name, monkeypatch))
        await connection.execute(
            f"SET search_path TO {name};"
            "INSERT INTO jobs (id, revision, release, source, handler, name, grp, target, tags, enabled, once,"
            " definition)"
            " SELECT id, 1, 0, 'api', 'h', '', '', '', '', true, false,"
            """ convert_to('{"id":"' || id || '","handler":"h"}', 'UTF8') FROM unnest(ARRAY['a', 'b']) AS j (id);"""
            "INSERT INTO runs (id, job_id, due_ms, cause, priority, grp, target, gated)"
            " VALUES ('a1', 'a', 1, 2, 2, '', '', false), ('b1', 'b', 2, 2, 2, '', '', false),"
            "        ('b2', 'b', 3, 2, 2, '', '', false);"
            "INSERT INTO line (seq, priority, due_ms, state, visible_ms, held_reason)"
            " SELECT seq, 2, due_ms, 1, due_ms, '' FROM runs;"
            "UPDATE line SET state = 2, fence = 1, token = 't:1', owner = 'n', lease_until_ms = 9000, lease_ms = 9000"
            " WHERE due_ms = 3;"
            "INSERT INTO past SELECT nextval('run_seq'), 'a0', 'a', 1, 2, NULL, NULL, 2, '', '', false, 3, '', 1, 1, 0,"
            " 0, 1, 't:1', '', 0, '', 1, 2, false, NULL, '', NULL, 1, '', NULL, '', 0, 2;"
            "UPDATE tally SET ready = 2, leased = 1, jobs = 2 WHERE slot = 3"
        )
    finally:
        await connection.close()


async def test_what_the_second_release_wrote_is_found_by_its_job_and_goes_on(monkeypatch):
    url = own_url("second")
    await second_release(url, monkeypatch)

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


async def test_a_migration_may_take_longer_than_a_call(monkeypatch):
    """Each table may have millions of rows; what a deadline cuts off is undone, and would begin again for ever."""
    url = own_url("slow")
    await first_release(url, monkeypatch)
    whole = schema.migrations()
    slow = Migration(whole[-1].number + 1, "slow", ("SELECT pg_sleep(1.5)",))
    monkeypatch.setattr(schema, "migrations", lambda: [*whole, slow])

    store = Guarded(PostgresStore(url, deadline_ms=1_000), clock=SystemClock(), deadline_ms=1_200)
    await store.open()
    try:
        assert (await store.counts()).jobs == 1
    finally:
        await store.close()


async def test_a_run_for_later_of_an_earlier_release_is_told_from_the_others(monkeypatch):
    """One that is for later stands apart from then on, in both tables; all can be claimed."""
    url = own_url("later")
    await second_release(url, monkeypatch)
    connection = await asyncpg.connect(shared_url())
    await connection.execute(f"SET search_path TO {read_address(url).schema}")
    await connection.execute("UPDATE line SET visible_ms = 9000000000000 WHERE due_ms = 2")

    store = PostgresStore(url)
    await store.open()
    try:
        apart = "SELECT r.id FROM runs AS r JOIN line AS l ON l.seq = r.seq WHERE r.later AND l.later"
        assert [row[0] for row in await connection.fetch(apart)] == ["b1"]
        assert (await check(url, lambda *_: None)).findings == ()
        claimed = await store.claim(node="n", token="t", limit=9, lease_ms=60_000, now_ms=9_000_000_000_000)
        assert {run.id for run in claimed.runs} >= {"a1", "b1"}
    finally:
        await connection.close()
        await store.close()
