"""Can a migration be killed anywhere?  The next one to open the file finds all of it or nothing."""

import apsw
import pytest

from pollux.model import SCHEDULER_VERSION
from pollux.store.contract import JobPut, Renewal
from pollux.store.sqlite import SqliteStore, schema
from tests.store.children import JOB

PLACES = sum(len(migration.statements) for migration in schema.migrations()) + 2  # and around the commit


def test_migrations_are_numbered_without_gaps():
    assert [migration.number for migration in schema.migrations()] == list(range(1, len(schema.migrations()) + 1))


@pytest.mark.parametrize("place", [*range(1, PLACES + 1, 4), PLACES - 1, PLACES])
async def test_a_process_killed_in_a_migration_leaves_a_file_that_opens(tmp_path, place, start):
    path = tmp_path / "pollux.db"
    child = start("make", path, POLLUX_CRASH_AT=str(place))
    said, _ = child.communicate(timeout=60)
    assert (child.returncode, said) == (-9, "")

    store = SqliteStore(path)
    await store.open()
    await store.put_jobs([JobPut(JOB)])
    assert [job.id for job in (await store.list_jobs()).jobs] == ["job"]
    await store.close()
    connection = apsw.Connection(str(path))
    assert connection.pragma("user_version") == len(schema.migrations())
    assert connection.pragma("integrity_check") == "ok"
    connection.close()


async def test_a_migration_that_fails_at_any_statement_changes_nothing(tmp_path, monkeypatch):
    """Every statement of every migration, each in its turn, inside one process."""
    whole = schema.migrations()
    statements = [(number, place) for number, m in enumerate(whole) for place in range(len(m.statements))]
    path = tmp_path / "pollux.db"
    for number, place in statements:
        broken = list(whole)
        parts = list(whole[number].statements)
        parts[place] = "SELECT this_fails()"
        broken[number] = whole[number]._replace(statements=tuple(parts))
        monkeypatch.setattr(schema, "migrations", lambda broken=broken: broken)
        store = SqliteStore(path)
        with pytest.raises(Exception, match="this_fails"):
            await store.open()
    monkeypatch.setattr(schema, "migrations", lambda: whole)

    store = SqliteStore(path)
    await store.open()
    await store.put_jobs([JobPut(JOB)])
    await store.close()


async def test_two_processes_may_make_the_database_at_once(tmp_path, start):
    children = [start("make", tmp_path / "pollux.db") for _ in range(4)]
    said = [child.communicate(timeout=60)[0] for child in children]

    assert said == ["made\n"] * 4


async def test_the_number_of_failpoints_can_be_counted(tmp_path, start):
    count = tmp_path / "count"
    child = start("make", tmp_path / "pollux.db", POLLUX_COUNT_FAILPOINTS=str(count))
    child.communicate(timeout=60)

    assert (
        int(count.read_text()) == PLACES + 3
    )  # and those of one write: before and after its commit, before its answer


async def first_version(path, monkeypatch) -> None:
    """A file as the first release wrote it, with a live run, a dead letter and a once-job that ended."""
    whole = schema.migrations()
    with monkeypatch.context() as patch:
        patch.setattr(schema, "migrations", lambda: whole[:1])
        connection = apsw.Connection(str(path))
        connection.execute("BEGIN; " + ";\n".join(whole[0].statements))
        connection.execute(
            "INSERT INTO runs (id, job_id, due_ms, cause, priority, grp, target, gated, state, held_reason, visible_ms,"
            " shelf, finished_ms, error) VALUES ('live', 'job', 5, 2, 2, '', '', 0, 1, '', 5, NULL, NULL, ''),"
            " ('dead', 'job', 5, 2, 2, '', '', 0, 4, '', 5, 2, 9, 'ValueError: 42')"
        )
        connection.execute("UPDATE tally SET ready = 1, dead = 1")
        connection.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}; PRAGMA user_version = 1; COMMIT")
        connection.close()


async def looked_at(path) -> None:
    """What the first release wrote is there and goes on."""
    store = SqliteStore(path)
    await store.open()
    await store.put_jobs([JobPut(JOB)])
    live, dead = await store.get_runs(["live", "dead"])
    assert (live.progress, live.tried, dead.error, dead.progress) == ("", (), "ValueError: 42", "")
    [claimed] = (await store.claim(node="n", token="t", limit=9, lease_ms=9_000)).runs
    await store.renew([Renewal("live", claimed.token, "half")], lease_ms=9_000)
    assert (await store.get_runs(["live"]))[0].progress == "half"
    counts = await store.counts()
    assert (counts.dead, counts.leased) == (1, 1)
    assert {run.scheduler_version for run in (live, dead, claimed)} == {SCHEDULER_VERSION}
    assert [version.number for version in await store.versions()] == [SCHEDULER_VERSION]
    await store.close()
    connection = apsw.Connection(str(path))
    assert connection.pragma("user_version") == len(schema.migrations())
    assert connection.pragma("integrity_check") == "ok"
    connection.close()


async def test_a_file_of_the_first_version_is_brought_up_to_date(tmp_path, monkeypatch):
    await first_version(tmp_path / "pollux.db", monkeypatch)
    await looked_at(tmp_path / "pollux.db")


LATER = sum(len(migration.statements) for migration in schema.migrations()[1:]) + 2


@pytest.mark.parametrize("place", range(1, LATER + 1))
async def test_a_process_killed_while_it_brings_a_file_up_to_date_loses_nothing(tmp_path, monkeypatch, place, start):
    await first_version(tmp_path / "pollux.db", monkeypatch)
    child = start("make", tmp_path / "pollux.db", POLLUX_CRASH_AT=str(place))
    said, _ = child.communicate(timeout=60)
    assert (child.returncode, said) == (-9, "")

    await looked_at(tmp_path / "pollux.db")
