"""`app.blocking`: the verbs of an app as plain calls, after a fork and beyond their limit."""

import asyncio
import os
import select
import signal
import threading

import pytest

from pollux import Pollux
from pollux.app import verbs
from pollux.errors import NotFound, PolluxError, StoreTimeout

PATIENCE_S = 20.0


@pytest.fixture
def app():
    app = Pollux("memory://")
    yield app
    app.blocking.close()


def answer_of_a_fork(call) -> str:
    """The message of the error that `call` raises in a forked child; empty if the child does not answer."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            call()
            os.write(write, b"no error")
        except PolluxError as error:
            os.write(write, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(write)
    ready, _, _ = select.select([read], [], [], PATIENCE_S)
    answer = os.read(read, 4096).decode() if ready else ""
    os.close(read)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return answer


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_call_after_a_fork_is_refused_at_once_with_the_cure(app):
    with pytest.raises(NotFound):
        app.blocking.get_run("none")

    answer = answer_of_a_fork(lambda: app.blocking.get_run("none"))

    assert answer.startswith(f"PolluxError: app.blocking was started by process {os.getpid()} and cannot be used in")
    assert "call app.blocking.close() before the fork, or make another app after it" in answer
    assert answer_of_a_fork(app.blocking.close) == "no error", "it leaves what belongs to the parent"
    with pytest.raises(NotFound):
        app.blocking.get_run("none")


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_whose_parent_closed_it_before_the_fork_starts_its_own(app):
    with pytest.raises(NotFound):
        app.blocking.get_run("none")
    app.blocking.close()

    assert answer_of_a_fork(lambda: app.blocking.get_run("none")).startswith("NotFound: ")


def test_a_call_over_the_limit_is_cancelled_and_the_error_has_the_verb_and_the_cure(app, monkeypatch):
    begun, cancelled = threading.Event(), threading.Event()

    async def hang(self, run_id):
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    with pytest.raises(NotFound):
        app.blocking.get_run("none")
    monkeypatch.setattr(type(app.operations.runs), "get_run", hang)
    monkeypatch.setattr(verbs, "CALL_SECONDS_MAX", 0.5)

    with pytest.raises(StoreTimeout, match=r"app\.blocking\.get_run: no answer within 0\.5 s; .*before you repeat it"):
        app.blocking.get_run("r")

    assert begun.is_set()
    assert cancelled.wait(PATIENCE_S)


def test_a_timeout_of_the_call_itself_is_raised_as_it_is(app, monkeypatch):
    async def fail(self, run_id):
        raise TimeoutError("its own")

    monkeypatch.setattr(type(app.operations.runs), "get_run", fail)

    with pytest.raises(TimeoutError, match="its own") as raised:
        app.blocking.get_run("r")
    assert not isinstance(raised.value, PolluxError)
