"""Wake-ups of SQLite: always for our own waiters; for other processes as long as there are any."""

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
    listener = SqliteListener(SqliteNotifier(Path(sys.argv[1])), asyncio.get_running_loop())
    with listener.listen(RUNS) as waiter:
        listener.watch()
        print("listens", flush=True)
        await asyncio.wait_for(waiter.event.wait(), 60)
    print("heard", flush=True)

asyncio.run(main())
"""


@pytest.fixture
def notifier(tmp_path):
    notifier = SqliteNotifier(tmp_path / "x.bell")
    yield notifier
    notifier.close()


@pytest.fixture
def listener(notifier):
    process = subprocess.Popen([sys.executable, "-c", LISTENER, notifier.path], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "listens\n"
    yield process
    process.kill()
    process.wait(PATIENCE_S)
    process.stdout.close()


async def test_a_process_that_is_alone_wakes_its_own_and_leaves_the_file_alone(notifier):
    listener = SqliteListener(notifier, asyncio.get_running_loop())
    with listener.listen(RUNS) as waiter:
        listener.watch()
        notifier.notify(RUNS)
        await asyncio.wait_for(waiter.event.wait(), PATIENCE_S)
    listener.close()
    assert notifier.path.read_bytes() == b""


def test_another_process_is_woken(notifier, listener):
    notifier.notify(FEED)
    notifier.notify(RUNS)
    assert listener.stdout.readline() == "heard\n"


def test_once_the_other_was_killed_nobody_is_rung_for(notifier, listener):
    notifier.notify(FEED)
    rung = notifier.path.read_bytes()
    assert rung != b""
    listener.send_signal(signal.SIGKILL)
    listener.wait(PATIENCE_S)
    notifier.notify(FEED)
    assert notifier.path.read_bytes() == rung


async def test_two_stores_on_one_file_in_one_process_hear_each_other(notifier):
    other = SqliteNotifier(notifier.path)
    listener = SqliteListener(other, asyncio.get_running_loop())
    with listener.listen(RUNS) as waiter:
        listener.watch()
        notifier.notify(RUNS)
        await asyncio.wait_for(waiter.event.wait(), PATIENCE_S)
    listener.close()
    other.close()
