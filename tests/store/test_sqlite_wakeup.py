"""Who is rung?  Our own waiters always; other processes as long as there are any."""

import asyncio
import signal
import subprocess
import sys

import pytest

from pollux.store.relational.wakeup import FEED, RUNS
from pollux.store.sqlite.wakeup import SqliteListener, SqliteNotifier

PATIENCE_S = 60
LISTENER = """
import asyncio, sys
from pathlib import Path
from pollux.store.relational.wakeup import RUNS
from pollux.store.sqlite.wakeup import SqliteListener, SqliteNotifier

async def main():
    ear = SqliteListener(SqliteNotifier(Path(sys.argv[1])), asyncio.get_running_loop())
    with ear.listen(RUNS) as waiter:
        ear.prick()
        print("listens", flush=True)
        await asyncio.wait_for(waiter.event.wait(), 60)
    print("heard", flush=True)

asyncio.run(main())
"""


@pytest.fixture
def bell(tmp_path):
    bell = SqliteNotifier(tmp_path / "x.bell")
    yield bell
    bell.close()


@pytest.fixture
def listener(bell):
    process = subprocess.Popen([sys.executable, "-c", LISTENER, bell.path], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "listens\n"
    yield process
    process.kill()
    process.wait(PATIENCE_S)
    process.stdout.close()


async def test_a_process_that_is_alone_wakes_its_own_and_leaves_the_file_alone(bell):
    ear = SqliteListener(bell, asyncio.get_running_loop())
    with ear.listen(RUNS) as waiter:
        ear.prick()
        bell.ring(RUNS)
        await asyncio.wait_for(waiter.event.wait(), PATIENCE_S)
    ear.close()
    assert bell.path.read_bytes() == b""


def test_another_process_is_woken(bell, listener):
    bell.ring(FEED)
    bell.ring(RUNS)
    assert listener.stdout.readline() == "heard\n"


def test_once_the_other_was_killed_nobody_is_rung_for(bell, listener):
    bell.ring(FEED)
    rung = bell.path.read_bytes()
    assert rung != b""
    listener.send_signal(signal.SIGKILL)
    listener.wait(PATIENCE_S)
    bell.ring(FEED)
    assert bell.path.read_bytes() == rung


async def test_two_stores_on_one_file_in_one_process_hear_each_other(bell):
    other = SqliteNotifier(bell.path)
    ear = SqliteListener(other, asyncio.get_running_loop())
    with ear.listen(RUNS) as waiter:
        ear.prick()
        bell.ring(RUNS)
        await asyncio.wait_for(waiter.event.wait(), PATIENCE_S)
    ear.close()
    other.close()
