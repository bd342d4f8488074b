"""Is a schema from before there were versions brought up to date, with all that is in it?"""

import asyncpg

from pollux.model import SCHEDULER_VERSION
from pollux.store.contract import Answer
from pollux.store.postgres import schema
from pollux.store.postgres.address import read_address
from pollux.store.postgres.store import PostgresStore
from tests.servers.postgres import own_url, shared_url


async def first_release(url, monkeypatch):
    """A schema as the first release wrote it: a job that is due, an entry of the feed, a term."""
    name, whole = read_address(url).schema, schema.migrations()
    with monkeypatch.context() as patch:
        patch.setattr(schema, "migrations", lambda: whole[:1])
        statements = [each.replace("{s}", f'"{name}"') for each in schema.missing(0)]
    connection = await asyncpg.connect(shared_url())
    try:
        await connection.execute(";\n".join(statements))
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
