"""A job whose first run has failed and waits for its next attempt is seen as failing, though no run of it has ended."""

import asyncio
import time
from pathlib import Path

import pytest

from pollux.model import Cause, Interval, RetryAt
from pollux.store.sqlite import SqliteStore
from pollux.testing.conformance.builders import a_failure, a_job, a_run, claim, given, given_jobs, settlement
from pollux.units import DAY_MS, HOUR_MS, MINUTE_MS
from tests.acceptance.terminal import SameProcess, Terminal

STORE = ("--store", "sqlite:///p.db")
WORDS = "it failed 2 times since 3h ago (ConnectionError: refused); tried again in "


async def fail_twice(path: Path, now_ms: int) -> None:
    store, began_ms = SqliteStore(path), now_ms - 3 * HOUR_MS
    await store.open()
    await given_jobs(store, a_job("nightly", schedule=Interval(DAY_MS)))
    await given(store, a_run("nightly@1", "nightly", due_ms=began_ms, cause=Cause.SCHEDULE))
    for at_ms, again_ms in ((began_ms, now_ms - MINUTE_MS), (now_ms - MINUTE_MS, now_ms + 2 * HOUR_MS)):
        [run] = await claim(store, now_ms=at_ms)
        await store.settle([settlement(run, RetryAt(again_ms), outcome=a_failure(at_ms))], now_ms=at_ms)
    await store.close()


@pytest.fixture
def pollux(tmp_path) -> Terminal:
    asyncio.run(fail_twice(tmp_path / "p.db", time.time_ns() // 1_000_000))
    return SameProcess(tmp_path)


def test_the_list_of_jobs_tells_how_often_it_failed_how_and_when_it_is_tried_again(pollux):
    [line] = [line for line in pollux.ok("jobs", *STORE).out.splitlines() if line.startswith("nightly")]

    assert WORDS in line


def test_the_job_in_full_tells_since_when_it_fails(pollux):
    lines = pollux.ok("jobs", "show", "nightly", *STORE).out.splitlines()

    [since] = [line for line in lines if line.startswith("failing since")]
    assert since.endswith("(3h ago)")
    assert any(line.startswith("now") and WORDS in line for line in lines)


@pytest.mark.parametrize("name", ["nightly", "nightly@1"])
def test_why_tells_since_when_it_fails(pollux, name):
    assert WORDS in pollux.ok("why", name, *STORE).out
