"""Help with examples, near misses, exit codes."""

import importlib
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from pollux.cli import command_table
from pollux.cli.runner import run_command
from tests.acceptance.terminal import Terminal


def commands() -> list[tuple[str, ...]]:
    """Every command there is, by its words."""
    found = []
    for name, entry in command_table.ENTRIES.items():
        module, _, attribute = entry.home.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        found.append((name,))
        if isinstance(command, click.Group):
            found += [(name, inner) for inner in command.commands]
    return found


@pytest.fixture
def pollux(tmp_path) -> Terminal:
    return Terminal(tmp_path)


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",)])
def test_the_menu_names_every_command_and_the_exit_codes(pollux, arguments):
    answer = pollux.ok(*arguments)
    for name in command_table.ENTRIES:
        assert re.search(rf"^  {name} ", answer.out, re.MULTILINE)
    for code in ("0 ok", "1 the thing", "2 bad usage", "3 the store"):
        assert code in answer.out


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_the_help_of_every_command_teaches_with_examples_that_work(command, capsys):
    """Each example is parsed, with --help so that it is not obeyed: its commands and options are real."""
    assert run_command([*command, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"Usage: pollux {' '.join(command)}" in text
    examples = re.findall(r"^    (pollux .*?)(?:  .*| \| .*| 2> .*)?$", text, re.MULTILINE)
    assert any(example.startswith(f"pollux {' '.join(command)}") for example in examples)
    for example in examples:
        assert run_command([*shlex.split(example)[1:], "--help"]) == 0, (example, capsys.readouterr().err)


@pytest.mark.parametrize(
    ("words", "cure"),
    [
        (("job",), "did you mean `pollux jobs`?"),
        (("zzz",), "`pollux --help` lists them"),
        (("jobs", "lst"), "did you mean `pollux jobs ls`?"),
        (("jobs", "pause", "home"), "did you mean `pollux pause`?"),
        (("jobs", "home"), "did you mean `pollux jobs show home`?"),
        (("jobs", "--grup", "x"), "--group"),
        (("runs", "--state", "asleep"), "'held'"),
        (("jobs", "--limit", "0"), "1<=x<=1000"),
        (("jobs", "show"), "ID"),
        (("serve", "--no-watch", "my.yml"), "did you mean `-c my.yml`?"),
        (("jobs", "--limit", "x"), "'x' is no whole number."),
        (("serve", "--seats", "many"), "'many' is no whole number."),
    ],
)
def test_bad_usage_is_answered_with_the_cure(pollux, words, cure):
    answer = pollux(*words)
    assert (answer.code, answer.out) == (2, "")
    assert cure in answer.err
    assert "--help` shows more" in answer.err


def test_the_version_is_told(pollux):
    assert re.fullmatch(r"pollux \d+\.\d+\.\d+\n", pollux.ok("--version").out)


def test_the_installed_program_is_the_same():
    program = Path(sys.executable).with_name("pollux")
    run = subprocess.run([program, "--help"], capture_output=True, text=True, check=True)
    assert run.stdout == command_table.menu_text()


def test_something_unforeseen_is_a_sentence_not_a_traceback(pollux):
    boom = "import pollux.cli.target as t\ndef boom(*a): raise RuntimeError('boom')\nt.StoreChoice.ask = boom\n"
    pollux.write("sitecustomize.py", boom)
    pollux.write("p.db", "")
    broken = {"PYTHONPATH": str(pollux.folder)}
    answer = pollux("jobs", "--store", "sqlite:///p.db", environ=broken)
    assert answer.code == 1
    assert answer.err == "pollux: RuntimeError: boom; this should not happen: POLLUX_DEBUG=1 shows where\n"


@pytest.mark.parametrize("arguments", [("check", "h\x1b[31mome"), ("worker", "-c", "h\x1b[31mome"), ("h\x1b[31mome",)])
def test_no_complaint_steers_a_terminal(pollux, arguments):
    answer = pollux(*arguments)
    assert answer.code == command_table.USAGE
    assert "\x1b" not in answer.err
    assert r"h\x1b[31mome" in answer.err
