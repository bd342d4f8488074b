"""JSON output: every answer as one document, with the keys that the page names."""

import importlib
import re
from pathlib import Path

import click
import pytest

from pollux.cli import command_table
from tests.acceptance.terminal import SameProcess, Terminal
from tests.acceptance.test_cli_selection import made

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
WHERE = ("--store", "sqlite:///p.db")
DOCUMENTED = {
    tuple(command.split()[1:]): set(re.findall(r"`(\w+)`", keys))
    for command, keys in re.findall(r"^\| `(pollux [^`]+)` \| ((?:`\w+`(?:, )?)+) \|$", PAGE, re.MULTILINE)
}
CONFIG = """\
store: sqlite:///p.db
jobs:
  - {id: home, http: {url: "http://127.0.0.1:1/"}, interval: 30s}
"""
# Those that run on, print something else by their nature, or whose file is the answer.
NO_ANSWER = {"serve", "worker", "completion", "store dump", "store load"}  # `store move` answers in lines

ASKED = {
    ("jobs", "ls"): (),
    ("jobs", "show"): ("a",),
    ("jobs", "run"): ("c",),
    ("jobs", "cancel"): ("a",),
    ("jobs", "delete"): ("a",),
    ("runs", "ls"): (),
    ("runs", "show"): ("r0",),
    ("runs", "cancel"): ("r0",),
    ("dead", "ls"): (),
    ("dead", "show"): ("d0",),
    ("dead", "revive"): ("d0",),
    ("dead", "drop"): ("d0",),
    ("why",): ("a",),
    ("nodes",): (),
    ("audit",): (),
    ("enqueue",): ("a",),
    ("pause",): ("a",),
    ("resume",): ("a",),
    ("check",): ("-c", "p.yaml"),
    ("config",): (),
    ("plan",): (),
    ("simulate",): ("-c", "p.yaml", "--for", "1m"),
    ("doctor",): (),
    ("health",): (),
    ("top",): (),
    ("store", "check"): (),
    ("store", "backup"): ("copy.db",),
    ("store", "restore"): ("old.db", "--store", "sqlite:///new.db"),
    ("store", "unseal"): ("sqlite:///p.db", "--force"),
    ("store", "drop"): ("sqlite:///p.db", "--force"),
}


def leaves() -> list[tuple[tuple[str, ...], click.Command]]:
    """Every command that does something, by its words."""
    found = []
    for name, entry in command_table.ENTRIES.items():
        module, _, attribute = entry.home.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        inner = getattr(command, "commands", {})
        found += [((name, word), each) for word, each in inner.items()] or [((name,), command)]
    return found


@pytest.fixture
async def pollux(tmp_path) -> Terminal:
    pollux = await made(tmp_path, dead=2, live=2)
    pollux.write("p.yaml", CONFIG)
    return SameProcess(tmp_path)


def test_every_command_that_answers_takes_json():
    without = {
        " ".join(words) for words, command in leaves() if not any("--json" in param.opts for param in command.params)
    }
    assert without <= NO_ANSWER, without - NO_ANSWER


def test_the_page_names_every_command():
    table = PAGE.partition("<!-- generated: commands -->")[2].partition("<!-- end -->")[0]
    for words, _ in leaves():
        assert f"| `pollux {' '.join(words)}` |" in table, words


def test_the_page_and_these_tests_speak_of_the_same_answers():
    assert set(DOCUMENTED) == set(ASKED)


@pytest.mark.parametrize("words", ASKED, ids=" ".join)
def test_an_answer_is_one_document_with_the_keys_that_the_page_names(pollux, words):
    if words == ("store", "restore"):
        pollux.ok("store", "backup", "old.db", *WHERE)
    if words == ("store", "unseal"):
        pollux.ok("store", "move", "sqlite:///p.db", "sqlite:///new.db")
    where = () if "--store" in ASKED[words] or "sqlite:///p.db" in ASKED[words] else WHERE
    answer = pollux(*words, *ASKED[words], "--json", *where)
    assert answer.code == (1 if words == ("health",) else 0), "nobody works there"
    assert set(answer.json) == DOCUMENTED[words]


def test_what_stands_inside_is_as_the_page_says(pollux):
    answer = pollux.ok("jobs", "show", "a", "--json", *WHERE).json
    for name, part in (("why", answer["why"]), ("history", answer["history"])):
        said = PAGE.partition(f"`{name}` has")[2].partition(". ")[0]
        assert set(part) <= set(re.findall(r"`(\w+)`", said)), name
    assert {"schedule_text", "last", "freshness", "held", "progress"} <= set(answer["job"])
    [run] = pollux.ok("runs", "cancel", "r0", "--json", *WHERE).json["runs"]
    assert set(run) == {"id", "answer", "detail"}
    assert {"progress", "tried", "error", "result", "started_ms"} <= set(
        pollux.ok("runs", "show", "r0", "--json", *WHERE).json["run"]
    )


EXITS = [
    (0, ("jobs",)),
    (1, ("jobs", "show", "nobody")),
    (1, ("runs", "cancel", "d0")),
    (1, ("dead", "revive", "r0")),
    (1, ("jobs", "run", "a", "nobody")),
    (2, ("jobs", "--limit", "0")),
    (2, ("dead", "drop", "--all")),
    (2, ("runs", "--after", "nonsense")),
    (3, ("jobs", "--store", "sqlite:///none.db")),
]


@pytest.mark.parametrize(("code", "words"), EXITS)
@pytest.mark.parametrize("as_json", [False, True])
def test_the_exit_code_says_how_it_went(pollux, code, words, as_json):
    where = () if "--store" in words else WHERE
    assert pollux(*words, *(("--json",) if as_json else ()), *where).code == code


def test_the_page_and_the_menu_name_the_same_exit_codes():
    told = {int(code) for code in re.findall(r"^\| (\d+) \|", PAGE.partition("## Exit codes")[2], re.MULTILINE)}
    assert told == {
        command_table.OK,
        command_table.FAILED,
        command_table.USAGE,
        command_table.UNAVAILABLE,
        command_table.INTERRUPTED,
    }
    in_menu = command_table.menu_text().partition("Exit codes:")[2]
    assert told == {int(code) for code in re.findall(r"(?:^|, |,\n +)(\d+) ", in_menu.strip())}
