"""Rules of every test: no skip goes unseen, no process is left running, random examples are the same in every run."""

import gc
import logging
import os
import shutil
import tempfile

import pytest
from hypothesis import HealthCheck, settings

from tests import guard
from tests.acceptance.forked import stop_nursery
from tests.leaks import MARK, leftovers, stop
from tests.noskip import NoSkip
from tests.servers import postgres as postgres_servers
from tests.servers import redis as redis_servers

# A red property test must be red for everybody: examples are derived from the test, not from a seed of the day.
# Look further with `pytest --hypothesis-profile=search`.  How quick the machine is just now is nothing to judge.
TIMELESS = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("ci", derandomize=True, print_blob=True, **TIMELESS)
settings.register_profile("search", max_examples=2_000, print_blob=True, **TIMELESS)
settings.load_profile("ci")

PATIENCE_MS = 30_000  # for a process to end after its signal, on a busy machine


def pytest_configure(config: pytest.Config) -> None:
    is_worker = hasattr(config, "workerinput")  # of xdist; only the process that prints the summary judges
    if os.environ.get("POLLUX_NO_SKIP") == "1" and not is_worker:
        config.pluginmanager.register(NoSkip(), "pollux-no-skip")


@pytest.hookimpl(trylast=True)  # after xdist
def pytest_collection_modifyitems(items):
    """Groups hold: xdist 3.8 appends that of a test to its `_nodeid`, which pytest 9.2 does not read any more.

    https://github.com/pytest-dev/pytest-xdist/issues/1386
    """
    for item in items:
        if hasattr(item, "_id") and (grouped := getattr(item, "_nodeid", "")):
            item._id = type(item._id).parse(grouped)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Collected items live to the end: the garbage collector skips them, during collection and later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def no_word_in_the_home():
    """Programs that tests start keep what they need again in a folder of this session, not in the user's own.

    Its path is short: sockets are there, too.
    """
    before, folder = os.environ.get("XDG_STATE_HOME"), tempfile.mkdtemp(prefix="pollux-state-")
    os.environ["XDG_STATE_HOME"] = folder
    yield
    if before is None:
        del os.environ["XDG_STATE_HOME"]
    else:
        os.environ["XDG_STATE_HOME"] = before
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def logs_as_they_were():
    """Log levels that a test sets end with it: pytest keeps every line that passes, and a later test counts objects."""
    loggers = logging.getLogger(), logging.getLogger("pollux")
    before = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, before, strict=True):
        logger.setLevel(level)


@pytest.fixture(scope="session", autouse=True)
def no_process_left_behind(no_word_in_the_home):
    """Whatever a test starts ends with the session, also when its parent died before it.

    The mark in the environment finds the orphans: they have another parent, but they inherited it.  Of a session that
    is interrupted or killed nothing comes so far: its guard ends them.
    """
    mark = f"{os.getpid()}-{os.urandom(8).hex()}"
    before = os.environ.get(MARK)
    guard.begin(mark)
    os.environ[MARK] = mark
    yield
    if before is None:
        del os.environ[MARK]
    else:
        os.environ[MARK] = before
    left = leftovers(mark, patience_ms=PATIENCE_MS)
    stop(left)
    guard.end()
    if left:
        pytest.fail(
            "processes started by the tests were still running at the end (stopped now):\n"
            + "\n".join(f"  pid {process.pid}: {process.command}" for process in left),
            pytrace=False,
        )


@pytest.fixture(scope="session", autouse=True)
def no_server_left_behind(no_process_left_behind):
    """Servers that tests share start with the first test that needs them, and end with the session."""
    yield
    stop_nursery()
    redis_servers.stop_shared()
    postgres_servers.stop_shared()
