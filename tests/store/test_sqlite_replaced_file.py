"""A file that is deleted, moved, replaced or made read-only: nothing is written where it cannot be found."""

import asyncio
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from pollux.errors import StoreRefused
from pollux.store.contract import Answer, JobPut
from pollux.store.sqlite import SqliteStore
from tests.store.children import JOB, in_writer, sleeps, some_runs, until
from tests.store.disks import can_mount, mounted

with tempfile.TemporaryDirectory() as _folder:
    CAN_MOUNT = can_mount(Path(_folder) / "try")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store" / "pollux.db"


@pytest.fixture
async def store(path):
    store = SqliteStore(path)
    await store.open()
    await store.put_jobs([JobPut(JOB)])
    await store.get_jobs(["job"])
    yield store
    await store.close()


async def fresh(path) -> None:
    """Another store, whole and in order."""
    other = SqliteStore(path)
    await other.open()
    await other.put_jobs([JobPut(JOB)])
    await other.close()


def delete(path) -> None:
    path.unlink()


def delete_the_folder(path) -> None:
    shutil.rmtree(path.parent)


def move_away(path) -> None:
    path.rename(path.with_name("elsewhere.db"))


@pytest.mark.parametrize("harm", [delete, delete_the_folder, move_away])
async def test_a_file_that_is_gone_is_noticed_at_the_next_write_and_not_made_anew(store, path, harm):
    harm(path)
    with pytest.raises(StoreRefused, match=r"was deleted while it was in use.*`pollux store restore`"):
        await store.enqueue(some_runs(1, 1))
    with pytest.raises(StoreRefused, match="was deleted"):
        await store.claim(node="n", token="t", limit=1, lease_ms=1_000)

    assert not path.exists(), "an empty one in its place would hide the loss"


async def test_a_file_that_was_replaced_is_refused_and_left_alone(store, path, tmp_path):
    await store.enqueue(some_runs(1, 1))
    await fresh(tmp_path / "other.db")
    (tmp_path / "other.db").rename(path)
    before = path.read_bytes()
    with pytest.raises(StoreRefused, match=r"was replaced by another file.*stop every process"):
        await store.enqueue(some_runs(2, 1))

    assert path.read_bytes() == before


async def read_on(store) -> None:
    while True:
        await store.get_jobs(["job"])
        await asyncio.sleep(0.01)


async def test_a_reader_notices_within_a_second(store, path):
    path.unlink()
    async with asyncio.timeout(30):
        with pytest.raises(StoreRefused, match="was deleted"):
            await read_on(store)
    with pytest.raises(StoreRefused, match="was deleted"):
        await store.list_runs()


async def test_whoever_waits_is_told(store, path):
    """An idle node that only waits for work hears of it, too."""
    waiting = asyncio.ensure_future(store.claim(node="n", token="t", limit=1, lease_ms=1_000, wait_ms=100_000))
    await until(lambda: sleeps(store))
    path.unlink()
    async with asyncio.timeout(30):
        with pytest.raises(StoreRefused, match="was deleted"):
            await waiting


async def test_a_file_that_comes_back_is_the_same_and_it_goes_on(store, path):
    path.rename(path.with_name("aside"))
    with pytest.raises(StoreRefused):
        await store.enqueue(some_runs(1, 1))
    path.with_name("aside").rename(path)

    assert (await store.enqueue(some_runs(1, 1)))[0].answer is Answer.OK


async def test_a_commit_into_a_file_that_vanished_meanwhile_is_not_answered_as_done(store, path):
    """Deleted after the look and before the answer: the write is in a file that nobody will find again."""
    verb = in_writer(store, lambda _: path.unlink())
    with pytest.raises(StoreRefused, match="was deleted"):
        await verb


# links


async def test_a_symbolic_link_is_refused_and_a_linked_folder_is_not(path, tmp_path):
    await fresh(path)
    link = tmp_path / "link.db"
    link.symlink_to(path)
    with pytest.raises(StoreRefused, match=r"is a symbolic link.*name the file it points to"):
        await SqliteStore(link).open()
    (tmp_path / "folder").symlink_to(path.parent)
    through = SqliteStore(tmp_path / "folder" / "pollux.db")
    await through.open()
    await through.close()


async def test_a_second_name_is_refused(path, tmp_path):
    await fresh(path)
    os.link(path, tmp_path / "second.db")
    for name in (path, tmp_path / "second.db"):
        with pytest.raises(StoreRefused, match="has 2 names"):
            await SqliteStore(name).open()


async def test_what_is_no_plain_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StoreRefused, match="no plain file"):
        await SqliteStore(tmp_path / "pipe").open()


# read-only


@pytest.fixture
def seen():
    """A database in a folder that everybody may look into; pytest keeps its own to itself."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        path = Path(folder) / "store" / "pollux.db"
        path.parent.mkdir(mode=0o755)
        yield path
        path.parent.chmod(0o755)


async def refusal(path, start) -> str:
    """What somebody hears who may read the folder and not write it: root may everything."""
    path.parent.chmod(0o555)
    said, _ = await asyncio.to_thread(start("refuse", path).communicate, timeout=60)
    return said


@pytest.mark.parametrize("mode", [None, 0o444, 0o400])
async def test_a_file_or_folder_that_may_not_be_written_is_refused_with_the_cure(seen, start, mode):
    if mode is not None:
        await fresh(seen)
        for file in seen.parent.iterdir():
            file.chmod(mode)
    said = await refusal(seen, start)

    assert said.startswith("StoreRefused: "), said
    assert "give that user the right" in said


async def test_a_folder_where_only_the_files_beside_it_cannot_be_made_is_refused(seen, start):
    """The database itself may be written, but neither its lock nor its log can be made."""
    await fresh(seen)
    for beside in seen.parent.glob("pollux.db?*"):
        beside.unlink()
    seen.chmod(0o666)
    said = await refusal(seen, start)

    assert said.startswith("StoreRefused: "), said
    assert "pollux.db.lock" in said
    assert "give that user the right" in said


if CAN_MOUNT:

    async def test_a_read_only_file_system_is_refused_with_the_cure(tmp_path):
        folder = tmp_path / "mounted"
        with mounted(folder, "size=8m"):
            await fresh(folder / "pollux.db")
            await asyncio.to_thread(subprocess.run, ["mount", "-o", "remount,ro", folder], check=True)
            for name in ("pollux.db", "new.db"):
                with pytest.raises(StoreRefused, match="mounted read-only"):
                    await SqliteStore(folder / name).open()
