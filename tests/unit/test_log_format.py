"""Log formatters: text and JSON, redacted, escaped and bounded."""

import json
import logging
import sys
import threading

import pytest

from pollux import events as e
from pollux.clock import SystemClock
from pollux.log_format import FIELD_CHARS_MAX, LINE_CHARS_MAX, JsonLines, TextLines, kind_written, write_lines
from pollux.model import Job, Run
from pollux.observe import attach_logs
from pollux.registry import Context, Handler
from pollux.secrets import HIDDEN


@pytest.fixture(autouse=True)
def forget():
    HIDDEN.clear()
    yield
    HIDDEN.clear()


def record(words: object, *args: object, **more) -> logging.LogRecord:
    made = logging.LogRecord("mine", logging.WARNING, "f.py", 1, words, args, more.pop("exc_info", None))
    made.created, made.msecs = 1_800_000_000.1239, 123.9
    vars(made).update(more)
    return made


def failure(words: str):
    try:
        raise ValueError(words)
    except ValueError:
        return sys.exc_info()


def test_a_line_for_people_has_time_level_and_words():
    line = TextLines().format(record("job %s: %d", "home", 3))
    assert line.endswith(",123 WARNING job home: 3")


def test_a_line_for_machines_has_the_fields_of_its_event():
    event = e.RunFailed("home@1", "home", "dead", "ValueError: no")
    told = json.loads(JsonLines().format(record("job home: failed", event=event)))
    assert told == {
        "time": "2027-01-15T08:00:00.123Z", "level": "warning", "event": "run_failed", "message": "job home: failed",
        "run_id": "home@1", "job_id": "home", "verdict": "dead", "error": "ValueError: no",
    }  # fmt: skip


def test_a_line_of_a_users_own_carries_what_it_was_given():
    given = record("read", run_id="home@1", rows=7, api_key="abc", odd={1, 2}, none=None)
    told = json.loads(JsonLines().format(given))
    assert (told["event"], told["logger"]) == ("log", "mine")
    assert (told["run_id"], told["rows"], told["api_key"], told["odd"], told["none"]) == (
        "home@1", 7, "***", "{1, 2}", None,
    )  # fmt: skip
    assert TextLines().format(given).endswith("WARNING run home@1: read")


TRICKS = "a\nb\rc\x1b[31md\u202ee\x85f\u2028g\0h"


@pytest.mark.parametrize("kind", [TextLines, JsonLines])
def test_nothing_in_a_message_can_forge_a_line_or_steer_a_terminal(kind):
    made = record("%s", TRICKS, run_id=TRICKS, more=TRICKS, exc_info=failure(TRICKS))
    line = kind().format(made)
    shown = line if kind is JsonLines else "".join(line.splitlines())
    assert shown.isprintable()
    if kind is TextLines:
        assert all(text.startswith("    | ") for text in line.splitlines()[1:]), "a traceback is set in"
    else:
        assert "\\\\n" in line


@pytest.mark.parametrize("kind", [TextLines, JsonLines])
def test_a_line_has_an_end(kind):
    fields = {f"field{number}": "y" * 10_000 for number in range(100)}
    line = kind().format(record("x" * 1_000_000, exc_info=failure("z" * 100_000), **fields))
    assert len(line) <= LINE_CHARS_MAX
    if kind is JsonLines:
        assert len(json.loads(line)["message"]) <= FIELD_CHARS_MAX


@pytest.mark.parametrize("kind", [TextLines, JsonLines])
def test_no_line_shows_a_secret_even_where_it_is_cut(kind):
    HIDDEN.add("open-sesame-42")
    for length in (0, FIELD_CHARS_MAX - 12, LINE_CHARS_MAX // 2 - 12):
        made = record("x" * length + "open-sesame-42", exc_info=failure("open-sesame-42"), more=["open-sesame-42"])
        line = kind().format(made)
        assert "open" not in line
        assert "***" in line


@pytest.mark.parametrize("kind", [TextLines, JsonLines])
def test_a_record_that_does_not_fit_its_arguments_is_still_a_line(kind):
    class Rude:
        def __str__(self) -> str:
            raise RuntimeError("no")

    assert "its arguments do not fit" in kind().format(record("%d", "x"))
    assert "its arguments do not fit" in kind().format(record("%s", Rude()))


def test_colours_are_for_terminals_only():
    assert "\x1b" not in TextLines().format(record("x"))
    assert "\x1b[33mWARNING\x1b[0m x" in TextLines(colours=True).format(record("x"))


def test_the_context_has_a_logger_that_knows_its_run(caplog):
    ctx = Context(
        Run(id="home@1", job_id="home", due_ms=1), Job(id="home", handler="h"), Handler("h", len), SystemClock(), 0
    )
    ctx.log.warning("read %d rows", 7)
    [made] = caplog.records
    assert (made.name, made.getMessage()) == ("pollux.handler", "read 7 rows")
    assert (made.run_id, made.job_id, made.attempt) == ("home@1", "home", 1)


def test_every_transition_of_a_run_can_be_seen_at_debug_and_none_at_info(caplog):
    told = [
        e.RunFired("a@1", "a", 1), e.RunHeld("a@1", "paused"), e.RunReleased("a@1"), e.RunStarted("a@1", "a", 1, 0),
        e.RunSettled("a@1", "a", "retryat", "ok", 5, "x"), e.RunSettled("a@1", "a", "dead", "ok", 5, "x"),
        e.RunSettled("a@1", "a", "cancelled", "ok", 0, "by ann"), e.RunStopped("a@1", "a", "ready", "lease lost"),
    ]  # fmt: skip
    for level, count in ((logging.DEBUG, len(told)), (logging.INFO, 0)):
        caplog.clear()
        caplog.set_level(level, "pollux")
        bus = e.Events()
        detach = attach_logs(bus)
        for event in told:
            bus.emit(event)
        detach()
        assert len(caplog.records) == count
        assert all("a@1" in made.getMessage() and made.event in told for made in caplog.records)
        assert bus.listener_errors == 0


def test_every_event_has_words(caplog):
    """Each kind is made up from its annotations; a listener whose words do not fit would be counted."""
    caplog.set_level(logging.DEBUG, "pollux")
    bus = e.Events()
    detach = attach_logs(bus)
    made_up = {
        "str": "x",
        "int": 1,
        "bool": True,
        "BaseException": ValueError("x"),
        "float": 1.0,
        "tuple[str, ...]": ("x",),
    }
    kinds = e.Event.__subclasses__()
    for kind in kinds:
        bus.emit(kind(**{name: made_up[str(of)] for name, of in kind.__annotations__.items()}))
    detach()
    assert {type(made.event) for made in caplog.records} == set(kinds)
    for made in caplog.records:
        assert json.loads(JsonLines().format(made))["message"]


@pytest.fixture
def quiet_root():
    root, hook = logging.getLogger(), threading.excepthook
    before = root.handlers[:], root.level
    yield
    logging.captureWarnings(capture=False)
    threading.excepthook = hook
    root.handlers[:], root.level = before


def test_a_thread_that_dies_is_a_line_and_so_is_a_warning(quiet_root, capsys):
    write_lines(logging.StreamHandler(sys.stderr), "json", "INFO")
    assert kind_written() == "json"
    HIDDEN.add("open-sesame-42")

    def die() -> None:
        raise RuntimeError("with open-sesame-42")

    dying = threading.Thread(target=die, name="worker-7")
    dying.start()
    dying.join()
    [line] = capsys.readouterr().err.splitlines()
    told = json.loads(line)
    assert told["message"] == "the thread worker-7 died"
    assert told["trace"].endswith("RuntimeError: with ***")
