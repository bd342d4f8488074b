"""Cancelled calls of SQLite: what its threads and its lock keep."""

import asyncio
import errno
import fcntl
import os
import threading
import time

import pytest

from pollux.errors import StoreBusy
from pollux.store.sqlite import SqliteStore
from pollux.store.sqlite.lock import WriteLock


@pytest.fixture
def held(tmp_path):
    """A database whose write lock somebody else holds until told."""
    path = tmp_path / "pollux.db"
    lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    yield path, lambda: fcntl.flock(lock, fcntl.LOCK_UN)
    os.close(lock)


async def test_an_opening_that_nobody_waits_for_any_more_ends_quietly(held):
    path, drop_lease = held
    store = SqliteStore(path, deadline_ms=300)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await store.open()
    writer = store.backend.database.writer
    await asyncio.to_thread(writer._thread.join, 20)
    assert isinstance(writer.ready.exception(0), StoreBusy)
    assert writer.ended.done(), "whoever closes it does not wait for ever"

    drop_lease()
    await store.open()
    await store.close()


async def test_a_closing_that_nobody_waits_for_any_more_ends_quietly(tmp_path):
    store = SqliteStore(tmp_path / "pollux.db")
    await store.open()
    writer = store.backend.database.writer
    other = WriteLock(writer.lock.path)
    other.acquire(time.monotonic() + 1)
    waking = asyncio.ensure_future(store.wake())
    await asyncio.sleep(0)  # the call is on its way, and the writer waits for the lock
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await store.close()

    other.release()
    await waking
    await asyncio.to_thread(writer._thread.join, 20)
    assert writer.ended.result(0) is None
    other.close()


def test_a_lock_whose_holder_cannot_sign_is_let_go_all_the_same(tmp_path, monkeypatch):
    mine, other = WriteLock(tmp_path / "x.lock"), WriteLock(tmp_path / "x.lock")

    def full(*_):
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(os, "pwrite", full)
    mine.acquire(time.monotonic() + 1)
    mine.release()
    other.acquire(time.monotonic() + 1)
    other.release()
    mine.close()
    other.close()


def test_a_lock_that_came_too_late_is_let_go_before_it_may_be_asked_for_again(tmp_path, monkeypatch):
    """The proxy and the writer hold one lock under two numbers: what one lets go, both have lost."""
    mine, other = WriteLock(tmp_path / "x.lock"), WriteLock(tmp_path / "x.lock")
    other.acquire(time.monotonic() + 1)
    with pytest.raises(StoreBusy):
        mine.acquire(time.monotonic() + 0.05)
    proxy, real = mine._proxy, fcntl.flock
    assert proxy is not None
    seen = []

    def flock(fd, how):
        if how == fcntl.LOCK_UN and threading.current_thread().name == "pollux-lock":
            seen.append(proxy.is_waiting)
        real(fd, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    other.release()
    deadline = time.monotonic() + 20
    while proxy.is_waiting and time.monotonic() < deadline:
        time.sleep(0.001)
    assert seen == [True], "nobody may take it while it is being let go"
    mine.acquire(time.monotonic() + 1)
    mine.release()
    mine.close()
    other.close()
