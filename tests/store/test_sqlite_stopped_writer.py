"""A process that is stopped in the middle of its commit: the others name it, and lose nothing."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from pollux.errors import StoreBusy
from pollux.model import RunState
from pollux.store.contract import Answer, JobPut
from pollux.store.sqlite import SqliteStore
from tests.store.children import JOB, some_runs, until
from tests.store.test_sqlite_processes import MIGRATION_PLACES, line

# A put has three places: before the commit, after it, before the answer.  The next three are the first enqueue's.
PLACES = {"before": 4, "after": 5}


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.mark.parametrize("place", PLACES)
async def test_others_say_busy_and_name_it_and_nothing_is_lost_when_it_goes_on(tmp_path, start, place):
    path = tmp_path / "pollux.db"
    child = start("write", path, POLLUX_STOP_AT=str(MIGRATION_PLACES + PLACES[place]))
    assert await line(child) == "open"
    await until(lambda: is_stopped(child.pid))
    store = SqliteStore(path, deadline_ms=200)
    try:
        with pytest.raises(StoreBusy, match=f"busy: process {child.pid} holds the write lock"):
            await store.open()  # opening has to look under the lock, too
        os.kill(child.pid, signal.SIGCONT)
        assert await line(child) == "0", "what it was doing is done and answered"
        child.kill()
        await asyncio.to_thread(child.wait)
        store = SqliteStore(path)
        await store.open()
        [run] = await store.get_runs(["run-0000000"])
        assert run is not None
        assert run.state in {RunState.DONE, RunState.LEASED, RunState.READY}
    finally:
        await store.close()


async def test_those_who_are_there_already_keep_reading_and_say_busy_until_it_goes_on(tmp_path, start):
    path = tmp_path / "pollux.db"
    store = SqliteStore(path)
    await store.open()
    await store.put_jobs([JobPut(JOB)])
    store.backend.database.deadline_ms = 200
    child = start("write", path, POLLUX_STOP_AT="5")  # the database is made already
    assert await line(child) == "open"
    await until(lambda: is_stopped(child.pid))
    try:
        for number in range(3):
            with pytest.raises(StoreBusy, match=f"process {child.pid} holds the write lock"):
                await store.enqueue(some_runs(900_000 + number, 1))
        assert (await store.get_jobs(["job"]))[0] is not None
        assert await store.get_runs(["run-0900000"]) == [None], "nothing was changed"
    finally:
        os.kill(child.pid, signal.SIGCONT)
    assert await line(child) == "0"

    async def accepted() -> bool:
        try:
            return (await store.enqueue(some_runs(900_000, 1)))[0].answer in {Answer.OK, Answer.ALREADY}
        except StoreBusy:
            return False

    async with asyncio.timeout(60):
        while not await accepted():
            pass
    child.kill()
    await asyncio.to_thread(child.wait)
    await store.close()
