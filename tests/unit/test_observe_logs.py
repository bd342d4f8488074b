"""Log lines for people: failures and skipped due times, at once and then throttled."""

import json
import logging

import pytest

from pollux.events import Events, FiringSkipped, JobsDeclared, RunFailed, RunSettled
from pollux.log_format import JsonLines, TextLines
from pollux.observe import attach_logs
from pollux.observe.logs import KEYS_MAX, LogThrottle, RepeatedWarning

DUE_MS = 1_800_000_000_123


class Watch:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def failed(verdict: str, job_id: str = "home") -> RunFailed:
    return RunFailed(f"{job_id}@1", job_id, verdict, "ValueError: no")


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
def often(watch) -> RepeatedWarning:
    return RepeatedWarning(LogThrottle(now=watch))


def test_the_same_thing_is_said_at_once_and_then_once_a_minute_with_what_was_left_out(watch):
    sparing = LogThrottle(now=watch)
    assert sparing.left_out("a") == 0
    assert [sparing.left_out("a") for _ in range(3)] == [None, None, None]
    assert sparing.left_out("b") == 0, "another thing"
    watch.seconds = 60.0
    assert sparing.left_out("a") == 3
    assert sparing.left_out("b") == 0


def test_what_was_said_is_remembered_of_so_many_things_only(watch):
    sparing = LogThrottle(now=watch)
    for number in range(KEYS_MAX + 1):
        assert sparing.left_out(number) == 0
    assert sparing.left_out(0) == 0, "forgotten: it is said again"
    assert sparing.left_out(KEYS_MAX) is None


@pytest.mark.parametrize(
    ("verdict", "follows"),
    [("retryat", "it is tried again"), ("done", "the next firing is the retry"), ("dead", "it is a dead letter")],
)
def test_a_failure_is_a_warning_that_says_what_follows(often, caplog, verdict, follows):
    often.failed(failed(verdict))
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith(f"job home: run home@1 failed: ValueError: no; {follows}")


def test_a_job_that_keeps_failing_does_not_drown_the_log(often, caplog, watch):
    for _ in range(10):
        often.failed(failed("done"))
    often.failed(failed("dead"))
    often.failed(failed("done", job_id="other"))
    watch.seconds = 61.0
    often.failed(failed("done"))
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 4
    assert said[-1].endswith("(9 more like it since the last such line)")


@pytest.mark.parametrize(
    ("count", "words"),
    [(1, "the due time 2027-01-15T08:00:00Z skipped: late"),
     (7, "7 due times from 2027-01-15T08:00:00Z on skipped: late")],
)  # fmt: skip
def test_a_skip_names_its_due_time_for_people(often, caplog, count, words):
    caplog.set_level(logging.INFO, "pollux")
    often.skipped(FiringSkipped("home", DUE_MS, count, "late"))
    assert caplog.records[0].getMessage() == f"job home: {words}"


@pytest.mark.parametrize("level", [logging.INFO, logging.DEBUG])
def test_failures_are_told_whatever_else_is_logged(caplog, level):
    caplog.set_level(level, "pollux")
    bus = Events()
    detach = attach_logs(bus)
    bus.emit(failed("dead"))
    bus.emit(JobsDeclared("file:p.yaml", 1, 2, 3))
    detach()
    bus.emit(failed("dead"))
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "file:p.yaml: 1 job added, 2 changed, 3 removed" in caplog.text


@pytest.mark.parametrize("level", ["DEBUG", "WARNING"])
def test_a_failure_is_told_with_its_traceback_where_the_log_is_verbose(often, caplog, level):
    caplog.set_level(level, "pollux")
    trace = 'File "shop.py", line 3, in fetch\n    login()'
    often.failed(RunFailed("home@1", "home", "dead", "ValueError: no", trace))
    [record] = caplog.records
    text, fields = TextLines().format(record), json.loads(JsonLines().format(record))
    shown = [f"    | {line}" for line in trace.splitlines()] if level == "DEBUG" else []
    assert text.splitlines()[1:] == shown
    assert fields.get("trace") == (trace if level == "DEBUG" else None)
    assert "traceback" not in fields


@pytest.mark.parametrize(
    ("verdict", "answer", "error", "words"),
    [
        ("done", "ok", "", "run home@1: done in 2 ms"),
        ("done", "ok", "ValueError: boom", "run home@1: failed in 2 ms: ValueError: boom"),
        ("retryat", "ok", "ValueError: boom", "run home@1: retryat in 2 ms: ValueError: boom"),
        ("dead", "ok", "Permanent: no", "run home@1: dead in 2 ms: Permanent: no"),
        ("done", "stale", "", "run home@1: done (the store answers stale) in 2 ms"),
    ],
)
def test_how_a_run_ended_is_said_in_words_that_are_true(caplog, verdict, answer, error, words):
    events = Events()
    caplog.set_level(logging.DEBUG, "pollux")
    attach_logs(events)
    events.emit(RunSettled("home@1", "home", verdict, answer, 2, error))
    assert [record.getMessage() for record in caplog.records] == [words]
