"""Files that the SQLite store makes on disk, and those that it refuses to touch."""

import os
import stat

import apsw
import pytest

from pollux.errors import StoreRefused
from pollux.store.contract import JobPut
from pollux.store.sqlite import SqliteStore, schema
from pollux.store.sqlite.disk_space import REOPEN_BYTES
from tests.store.children import JOB, in_writer


async def refusal(path) -> str:
    with pytest.raises(StoreRefused) as refused:
        await SqliteStore(path).open()
    return str(refused.value)


@pytest.fixture
def umask():
    """Set by the test, restored after it."""
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o777])
async def test_only_the_owner_may_read_the_files_whatever_the_umask_says(tmp_path, umask, mask):
    umask(mask)
    store = SqliteStore(tmp_path / "deep" / "pollux.db")
    await store.open()
    await store.put_jobs([JobPut(JOB)])
    await store.get_jobs(["job"])
    files = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "deep").iterdir()}
    await store.close()

    ours = ["pollux.db", "pollux.db-shm", "pollux.db-wal", "pollux.db.ballast", "pollux.db.bell", "pollux.db.lock"]
    assert files == dict.fromkeys(ours, 0o600)
    assert stat.S_IMODE((tmp_path / "deep").stat().st_mode) == 0o700


async def test_one_folder_is_made_but_not_a_whole_path(tmp_path):
    """A slip in the path must not start a second, empty scheduler somewhere else."""
    store = SqliteStore(tmp_path / "not" / "there" / "pollux.db")
    with pytest.raises(StoreRefused, match=r"there is no folder .*not; nothing was made; make it"):
        await store.open()
    assert list(tmp_path.iterdir()) == []


async def test_a_database_of_another_program_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "other.db"
    other = apsw.Connection(str(path))
    other.execute("CREATE TABLE theirs (x); INSERT INTO theirs VALUES (1)")
    other.close()
    before = path.read_bytes()

    assert "another program" in await refusal(path)
    assert path.read_bytes() == before


async def test_a_database_with_a_foreign_mark_is_refused_even_if_it_is_empty(tmp_path):
    path = tmp_path / "other.db"
    other = apsw.Connection(str(path))
    other.execute("PRAGMA application_id = 1234")
    other.close()

    assert "another program" in await refusal(path)


async def test_a_newer_schema_is_refused_with_the_cure(tmp_path):
    path = tmp_path / "pollux.db"
    store = SqliteStore(path)
    await store.open()
    await store.close()
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA user_version = 9999")
    connection.close()

    said = await refusal(path)
    assert "9999" in said
    assert "upgrade" in said


async def test_what_is_no_database_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "letter.txt"
    path.write_text("dear diary, " * 100)

    assert "not a SQLite database" in await refusal(path)
    assert path.read_text() == "dear diary, " * 100


async def test_a_file_that_only_begins_like_a_database_is_refused(tmp_path):
    path = tmp_path / "torn.db"
    path.write_bytes(schema.MAGIC + os.urandom(5_000))

    assert "damaged" in await refusal(path)


async def test_a_directory_is_refused_with_the_cure(tmp_path):
    assert f"{tmp_path / 'pollux.db'}" in await refusal(tmp_path)


async def test_a_path_through_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")

    assert "cannot be opened" in await refusal(tmp_path / "file" / "pollux.db")


async def test_a_file_that_may_not_be_read_is_refused_with_the_cure(tmp_path, start):
    """In another process, as a user who may not: root may everything."""
    path = tmp_path / "pollux.db"
    store = SqliteStore(path)
    await store.open()
    await store.close()
    path.chmod(0o000)
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    said, _ = start("refuse", path).communicate(timeout=60)

    assert said.startswith("StoreRefused"), said
    assert "give that user the right" in said


async def test_an_old_sqlite_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: "3.51.2")

    assert "3.51.3" in await refusal(tmp_path / "pollux.db")
    assert not (tmp_path / "pollux.db").exists()


async def test_after_a_refusal_the_same_handle_can_be_opened(tmp_path):
    path = tmp_path / "pollux.db"
    path.write_text("not yet a database, alas")
    store = SqliteStore(path)
    with pytest.raises(StoreRefused):
        await store.open()
    path.unlink()

    await store.open()
    await store.close()


async def test_the_writer_waits_for_the_disk_and_nobody_maps_the_file(tmp_path):
    store = SqliteStore(tmp_path / "pollux.db")
    await store.open()
    connection = store.backend.database.writer._connection
    settings = {
        name: await in_writer(store, lambda _, name=name: connection.pragma(name))
        for name in ("journal_mode", "synchronous", "trusted_schema", "mmap_size", "application_id")
    }
    await store.close()

    assert settings == {
        "journal_mode": "wal",
        "synchronous": 2,  # FULL
        "trusted_schema": 0,
        "mmap_size": 0,
        "application_id": schema.APPLICATION_ID,
    }


async def test_after_the_last_close_everything_is_in_the_one_file(tmp_path):
    """Whoever copies the database of a stopped app copies all of it: no log stays beside it."""
    for number in range(10):
        path = tmp_path / f"{number}.db"
        store = SqliteStore(path)
        twin = store.twin()
        await store.open()
        await twin.open()
        await store.put_jobs([JobPut(JOB)])
        await store.list_jobs()
        await twin.close()
        await store.close()
        assert not path.with_name(f"{number}.db-wal").exists()
        assert path.with_name(f"{number}.db.ballast").stat().st_size == REOPEN_BYTES, "to open it on a full disk"
