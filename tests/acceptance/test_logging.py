"""What `pollux serve` writes: by the config, the environment and the arguments, for people and for machines."""

import json

import pytest

from tests.acceptance.terminal import Terminal, eventually

WORK = """
import logging
from pathlib import Path


def talk(ctx):
    logging.getLogger("mine").info("two\\nlines \\x1b[31m")
    ctx.log.warning("of a run", extra={"rows": 7})
    Path("talked").touch()
"""
CONFIG = 'store: sqlite:///p.db\nlog: {level: debug, format: json}\njobs: [{id: t, python: "talks:talk", once: true}]\n'


@pytest.fixture
def pollux(tmp_path) -> Terminal:
    (tmp_path / "talks.py").write_text(WORK)
    (tmp_path / "p.yaml").write_text(CONFIG)
    return Terminal(tmp_path)


def log_of(pollux: Terminal, *arguments: str, environ: dict[str, str] | None = None) -> str:
    """What it writes until the job ran and it was stopped."""
    with pollux.started("serve", "-c", "p.yaml", "--no-watch", *arguments, environ=environ) as process:
        eventually((pollux.folder / "talked").exists, "the job ran", process)
        process.terminate()
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
    return err.decode()


def test_json_lines_tell_every_transition_and_what_handlers_say(pollux):
    lines = [json.loads(line) for line in log_of(pollux).splitlines()]
    assert all({"time", "level", "event", "message"} <= line.keys() for line in lines)
    told = {line["event"]: line for line in lines}
    assert {
        "node_started",
        "term_won",
        "jobs_declared",
        "run_fired",
        "run_started",
        "run_settled",
        "log",
    } <= told.keys()
    assert told["run_started"]["run_id"] == told["run_fired"]["run_id"]
    assert (told["run_settled"]["job_id"], told["run_settled"]["verdict"]) == ("t", "done")
    [mine] = [line for line in lines if line.get("logger") == "mine"]
    assert mine["message"] == "two\\nlines \\x1b[31m"
    [of_run] = [line for line in lines if line["message"] == "of a run"]
    assert (of_run["job_id"], of_run["rows"], of_run["run_id"]) == ("t", 7, told["run_started"]["run_id"])


def test_text_is_for_people_and_at_info_no_run_is_told_of(pollux):
    text = log_of(pollux, "--log-format", "text", environ={"POLLUX_LOG_LEVEL": "info"})
    assert "INFO    two\\nlines \\x1b[31m\n" in text
    assert " of a run\n" in text
    assert "started on sqlite:///p.db" in text
    assert "fired" not in text
    assert "settled" not in text
    assert "\x1b" not in text


def test_an_argument_wins_over_the_environment(pollux):
    text = log_of(pollux, "--log-level", "error", environ={"POLLUX_LOG_LEVEL": "debug", "POLLUX_LOG_FORMAT": "text"})
    assert text == ""


@pytest.mark.parametrize("text", ["log: {level: loud}", "log: {format: xml}", "log: {colour: red}", "log: 7"])
def test_what_cannot_be_logged_is_refused_with_its_cure(pollux, text):
    pollux.write("q.yaml", text)
    answer = pollux("check", "-c", "q.yaml")
    assert answer.code == 2
    assert answer.err.startswith("pollux: q.yaml:1:")
