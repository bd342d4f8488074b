"""Can a migration be killed anywhere?  The next one to open the file finds all of it or nothing."""

import apsw
import pytest

from pollux.store.contract import JobPut
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
