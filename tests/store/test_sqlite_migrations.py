"""Migrations of SQLite: all of them or none, whenever the process is killed, and what was stored goes on.

There is one schema file so far; a second migration is planted (`children.LATER`), so that its way is tested.
"""

import apsw
import pytest

from pollux.errors import StoreRefused
from pollux.model import SCHEDULER_VERSION
from pollux.store.contract import JobPut, Renewal
from pollux.store.sqlite import SqliteStore, schema
from pollux.store.sqlite.inspect import look_inside
from tests.store.children import JOB, LATER

PLACES = sum(len(migration.statements) for migration in schema.migrations()) + 2  # and around the commit


@pytest.fixture
def with_later(monkeypatch):
    """This process is of the release that has the planted migration."""
    whole = schema.migrations()
    monkeypatch.setattr(schema, "migrations", lambda: [*whole, LATER])


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
    assert_sound(path, len(schema.migrations()))


def assert_sound(path, number) -> None:
    connection = apsw.Connection(str(path))
    assert connection.pragma("user_version") == number
    assert connection.pragma("integrity_check") == "ok"
    connection.close()


async def test_a_migration_that_fails_at_any_statement_changes_nothing(tmp_path, monkeypatch):
    """Every statement of every migration, each in its turn, inside one process."""
    whole = [*schema.migrations(), LATER]
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
        assert_sound(path, 0)
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


def earlier_release(path) -> None:
    """A file of this release, which the planted migration makes an earlier one: a live run and a dead letter."""
    connection = apsw.Connection(str(path))
    connection.execute("BEGIN; " + ";\n".join(schema.migrations()[0].statements))
    connection.execute(
        "INSERT INTO runs (id, job_id, due_ms, cause, priority, grp, target, gated, state, held_reason, visible_ms,"
        " history_class, finished_ms, error)"
        " VALUES ('live', 'job', 5, 2, 2, '', '', 0, 1, '', 5, NULL, NULL, ''),"
        " ('dead', 'job', 5, 2, 2, '', '', 0, 4, '', 5, 2, 9, 'ValueError: 42')"
    )
    connection.execute("UPDATE counters SET ready = 1, dead = 1; UPDATE term SET in_use = 1")
    connection.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}; PRAGMA user_version = 1; COMMIT")
    connection.close()


async def looked_at(path) -> None:
    """What the earlier release wrote is there and goes on."""
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
    assert_sound(path, LATER.number)
    connection = apsw.Connection(str(path))
    assert connection.execute("SELECT planted FROM runs ORDER BY id").fetchall() == [("dead",), ("live",)]
    connection.close()


async def test_a_file_of_an_earlier_release_is_brought_up_to_date(tmp_path, with_later):
    earlier_release(tmp_path / "pollux.db")
    await looked_at(tmp_path / "pollux.db")


@pytest.mark.parametrize("place", range(1, len(LATER.statements) + 3))
async def test_a_process_killed_while_it_brings_a_file_up_to_date_loses_nothing(tmp_path, with_later, place, start):
    earlier_release(tmp_path / "pollux.db")
    child = start("make_later", tmp_path / "pollux.db", POLLUX_CRASH_AT=str(place))
    said, _ = child.communicate(timeout=60)
    assert (child.returncode, said) == (-9, "")

    await looked_at(tmp_path / "pollux.db")


async def test_a_file_of_the_planted_release_is_refused_by_this_one(tmp_path, start):
    child = start("make_later", tmp_path / "pollux.db")
    assert child.communicate(timeout=60)[0] == "made\n"

    with pytest.raises(StoreRefused, match=r"newer Pollux .its schema is 2, this one knows 1.*upgrade Pollux"):
        await SqliteStore(tmp_path / "pollux.db").open()


async def test_a_file_from_before_the_first_release_is_refused_with_the_cure_and_left_alone(tmp_path):
    """Its tables had other names, under any of the numbers that this release uses, too."""
    path = tmp_path / "pollux.db"
    for number in (1, 6):
        connection = apsw.Connection(str(path))
        connection.execute("CREATE TABLE IF NOT EXISTS tally (held INTEGER NOT NULL) STRICT")
        connection.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}; PRAGMA user_version = {number}")
        connection.close()
        before = path.read_bytes()

        with pytest.raises(StoreRefused, match=r"before its first release.*nothing was changed; dump it with"):
            await SqliteStore(path).open()
        with pytest.raises(StoreRefused, match="before its first release"):
            look_inside(path, now_ms=0)
        assert path.read_bytes() == before
