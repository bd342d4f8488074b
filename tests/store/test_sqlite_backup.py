"""Backups of SQLite are whole, of one moment, and usable; made while a real process writes at full speed."""

import asyncio
import os
import select
import stat

import apsw
import pytest

from pollux.errors import Conflict, StoreBusy, StoreRefused
from pollux.model import RunState
from pollux.store.contract import Answer, JobPut
from pollux.store.sqlite import SqliteStore, backup, schema
from pollux.store.sqlite.check import check
from tests.store.children import JOB, some_runs
from tests.store.test_sqlite_check import silent
from tests.store.test_sqlite_processes import all_runs, line

LONG_S = 60


class Told:
    """What a child says, read without waiting for ever."""

    def __init__(self, child) -> None:
        self.child, self.numbers, self._rest = child, [], b""

    def hear(self) -> None:
        """At least one more number."""
        before = len(self.numbers)
        while len(self.numbers) == before:
            ready, _, _ = select.select([self.child.stdout], [], [], LONG_S)
            assert ready, "the writer stands still"
            *lines, self._rest = (self._rest + os.read(self.child.stdout.fileno(), 65_536)).split(b"\n")
            self.numbers += [int(word) for word in lines if word != b"open"]


@pytest.fixture
async def path(tmp_path):
    path = tmp_path / "pollux.db"
    store = SqliteStore(path)
    await store.open()
    await store.put_jobs([JobPut(JOB)])
    await store.enqueue(some_runs(0, 20))
    await store.claim(node="n", token="t", limit=5, lease_ms=600_000)
    await store.close()
    return path


def test_a_backup_under_load_is_of_one_moment_holds_all_that_was_answered_and_blocks_no_writer(
    tmp_path, start, monkeypatch
):
    monkeypatch.setattr(backup, "STEP_PAGES", 8)
    told = Told(start("write", tmp_path / "pollux.db"))
    while len(told.numbers) < 100:
        told.hear()
    before = list(told.numbers)
    heard = []

    def step(done: int, total: int) -> None:
        """Between any two parts of the copy the writer gets an answer: it is blocked for one part at most."""
        told.hear()
        heard.append((done, total))

    copied = backup.backup(tmp_path / "pollux.db", tmp_path / "copy.db", step)
    told.child.kill()
    told.child.wait()

    assert len(heard) >= 10, "the copy was made in parts, and the writer worked between them"
    assert len({total for _, total in heard}) == 1, "it never began anew"
    assert heard[-1][0] == heard[-1][1]
    restored = backup.restore(tmp_path / "copy.db", tmp_path / "new.db", lambda *_: None)
    assert check(tmp_path / "new.db", silent).findings == ()
    runs = asyncio.run(read_all(tmp_path / "new.db"))
    assert len(runs) == copied.runs == restored.runs
    for first in before:
        states = [runs[f"run-{n:07}"].state for n in range(first, first + 10)]
        assert states.count(RunState.DONE) >= 5, "answered before the copy began"
    numbers = sorted(int(run_id.removeprefix("run-")) for run_id in runs)
    assert numbers == list(range(len(numbers))), "of one moment: nothing later without what was before"
    assert RunState.LEASED not in {run.state for run in runs.values()}


async def read_all(path):
    store = SqliteStore(path)
    await store.open()
    try:
        return await all_runs(store)
    finally:
        await store.close()


async def test_leases_are_void_and_uncharged_and_the_restored_store_lives(path, tmp_path):
    backup.backup(path, tmp_path / "copy.db", lambda *_: None)
    restored = backup.restore(tmp_path / "copy.db", tmp_path / "new.db", lambda *_: None)
    assert restored.voided == 5
    store = SqliteStore(tmp_path / "new.db")
    await store.open()
    claimed = await store.claim(node="m", token="u", limit=100, lease_ms=60_000)
    await store.close()

    assert len(claimed.runs) == 20, "all of them at once: nobody waits for the lease of a process that is gone"
    assert {run.lease_losses for run in claimed.runs} == {0}
    assert sorted(run.fence for run in claimed.runs) == [1] * 15 + [2] * 5, "a fence never falls"


async def test_what_was_asked_to_stop_and_what_lost_its_job_is_cancelled_in_the_restored_store(path, tmp_path):
    store = SqliteStore(path)
    await store.open()
    leased = [run.id for run in (await store.list_runs(limit=100)).runs if run.state is RunState.LEASED]
    await store.cancel(run_ids=leased[:1], reason="enough")
    await store.delete_jobs(["job"])
    await store.close()
    backup.backup(path, tmp_path / "copy.db", lambda *_: None)
    backup.restore(tmp_path / "copy.db", tmp_path / "new.db", lambda *_: None)
    assert check(tmp_path / "new.db", silent).findings == ()
    store = SqliteStore(tmp_path / "new.db")
    await store.open()
    assert (await store.claim(node="m", token="u", limit=100, lease_ms=60_000)).runs == ()
    runs = await store.get_runs(leased)
    await store.close()

    assert {run.state for run in runs} == {RunState.CANCELLED}


async def test_only_the_owner_may_read_it_and_nothing_is_left_beside_it(path, tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    before = os.umask(0)
    try:
        backup.backup(path, folder / "copy.db", lambda *_: None)
    finally:
        os.umask(before)

    assert {file.name: stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {"copy.db": 0o600}


async def test_a_backup_that_fails_leaves_what_was_there(path, tmp_path):
    target = tmp_path / "copy.db"
    target.write_text("the one of yesterday")
    with pytest.raises(Conflict, match="is there already"):
        backup.backup(path, target, lambda *_: None)

    def fail(*_) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        backup.backup(path, target, fail, force=True)
    assert target.read_text() == "the one of yesterday"
    assert not list(tmp_path.glob("copy.db?*"))

    backup.backup(path, target, lambda *_: None, force=True)
    assert target.read_bytes().startswith(b"SQLite")


@pytest.mark.parametrize("name", ["pollux.db", "store-folder", "no/such/folder/copy.db"])
async def test_a_target_that_cannot_be_is_refused(path, tmp_path, name):
    (tmp_path / "store-folder").mkdir()
    before = path.read_bytes()
    with pytest.raises(Conflict):
        backup.backup(path, tmp_path / name, lambda *_: None, force=True)
    assert path.read_bytes() == before


async def test_a_store_in_use_is_not_replaced_and_whoever_uses_it_is_named(path, tmp_path, start):
    backup.backup(path, tmp_path / "copy.db", lambda *_: None)
    child = start("drain", path, "node")
    assert await line(child) == "open"
    with pytest.raises(StoreBusy, match=f"process {child.pid} uses .*stop every process"):
        backup.restore(tmp_path / "copy.db", path, lambda *_: None, force=True)
    child.kill()
    child.wait()

    backup.restore(tmp_path / "copy.db", path, lambda *_: None, force=True)
    assert len(await read_all(path)) == 20


async def test_a_store_in_use_is_known_without_the_kernels_table(path, tmp_path, start, monkeypatch):
    backup.backup(path, tmp_path / "copy.db", lambda *_: None)
    monkeypatch.setattr(backup, "lock_holders", lambda _: [])
    child = start("drain", path, "node")
    assert await line(child) == "open"
    with pytest.raises(StoreBusy, match="another process uses"):
        backup.restore(tmp_path / "copy.db", path, lambda *_: None, force=True)


async def test_an_existing_store_is_replaced_only_if_told_to_also_if_it_is_damaged(path, tmp_path):
    backup.backup(path, tmp_path / "copy.db", lambda *_: None)
    path.write_bytes(b"SQLite format 3\0" + os.urandom(9_000))
    with pytest.raises(Conflict, match="--force"):
        backup.restore(tmp_path / "copy.db", path, lambda *_: None)
    backup.restore(tmp_path / "copy.db", path, lambda *_: None, force=True)

    assert check(path, silent).findings == ()


async def test_the_log_of_a_killed_process_does_not_get_into_the_restored_store(path, tmp_path, start):
    """A log beside another database would be played into it."""
    backup.backup(path, tmp_path / "copy.db", lambda *_: None)
    child = start("write", path)
    assert await line(child) == "open"
    for _ in range(20):
        await line(child)
    child.kill()
    child.wait()
    assert path.with_name("pollux.db-wal").stat().st_size > 0
    backup.restore(tmp_path / "copy.db", path, lambda *_: None, force=True)

    assert check(path, silent).findings == ()
    assert len(await read_all(path)) == 20


async def test_the_log_of_a_damaged_store_does_not_get_into_the_restored_one(path, tmp_path):
    """Nobody can carry it over any more, and SQLite would play it into whatever file has that name."""
    backup.backup(path, tmp_path / "copy.db", lambda *_: None)
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA wal_autocheckpoint = 0").fetchall()
    connection.execute("UPDATE counters SET ready = 777")
    log = path.with_name("pollux.db-wal")
    left = log.read_bytes()
    connection.close()
    path.write_bytes(schema.MAGIC + os.urandom(9_000))
    log.write_bytes(left)
    backup.restore(tmp_path / "copy.db", path, lambda *_: None, force=True)

    assert not log.exists()
    assert check(path, silent).findings == ()


@pytest.mark.parametrize("harm", ["torn", "foreign", "empty", "text", "gone"])
async def test_what_is_no_sound_backup_is_refused_and_the_store_stays(path, tmp_path, harm):
    copy = tmp_path / "copy.db"
    backup.backup(path, copy, lambda *_: None)
    match harm:
        case "torn":
            data = bytearray(copy.read_bytes())
            data[6 * 4_096 : 6 * 4_096 + 2_000] = b"\xff" * 2_000
            copy.write_bytes(data)
        case "foreign":
            copy.unlink()
            apsw.Connection(str(copy)).execute("CREATE TABLE theirs (x)")
        case "empty":
            copy.write_bytes(b"")
        case "text":
            copy.write_text("dear diary " * 100)
        case "gone":
            copy.unlink()
    before = path.read_bytes()
    with pytest.raises((StoreRefused, Conflict)):
        backup.restore(copy, path, lambda *_: None, force=True)

    assert path.read_bytes() == before
    assert not list(tmp_path.glob("pollux.db.restored*"))


async def test_a_process_that_opens_the_old_file_while_it_is_replaced_is_refused(path, tmp_path, monkeypatch):
    """Between looking at the path and having the database open: it must not write into a file that has no name."""
    real = schema.open_writer

    def late(at, *args, **options):
        connection = real(at, *args, **options)
        (tmp_path / "other.db").write_bytes(at.read_bytes())
        (tmp_path / "other.db").replace(at)
        return connection

    monkeypatch.setattr(schema, "open_writer", late)
    with pytest.raises(StoreRefused, match="was replaced"):
        await SqliteStore(path).open()
    monkeypatch.undo()
    store = SqliteStore(path)
    await store.open()
    assert (await store.enqueue(some_runs(900, 1)))[0].answer is Answer.OK
    await store.close()
