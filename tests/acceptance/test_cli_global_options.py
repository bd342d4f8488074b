"""The options that every command has: before the command, between its words, or after it."""

import asyncio

import pytest
from click.shell_completion import ShellComplete

from pollux import Pollux
from pollux.cli import command_table
from pollux.cli.runner import GLOBAL_OPTIONS, program
from pollux.model import Job
from tests.acceptance.terminal import SameProcess, Terminal


@pytest.fixture
def pollux(tmp_path):
    asyncio.run(there_is_a_store(tmp_path))
    return SameProcess(tmp_path)


async def there_is_a_store(folder):
    for name in ("one", "two"):
        app = Pollux(f"sqlite:///{folder}/{name}.db")
        await app.open()
        await app.put_jobs([Job(id=name, handler="h", group="g")])
        await app.close()
    (folder / "two.yaml").write_text("store: sqlite:///two.db\n")


ONE = "sqlite:///one.db"


@pytest.mark.parametrize(
    "words",
    [
        ("--store", ONE, "--json", "jobs"),
        (f"--store={ONE}", "jobs", "--json"),
        ("--json", "jobs", "ls", "--store", ONE),
        ("--json", "--store", ONE, "jobs", "ls", "--group", "g"),
        ("jobs", "--store", ONE, "--json"),
        ("jobs", "--store", ONE, "ls", "--json"),
        ("--json", "jobs", "--store", ONE, "ls"),
        ("--store", ONE, "jobs", "--json", "--group", "g"),
    ],
    ids=" ".join,
)
def test_an_option_means_the_same_wherever_it_stands(pollux, words):
    assert [job["id"] for job in pollux.ok(*words).json["jobs"]] == ["one"]


def test_a_config_and_a_word_after_two_dashes_keep_their_meaning(pollux):
    assert "two" in pollux.ok("-c", "two.yaml", "jobs").out
    assert "two" in pollux.ok("--config", "two.yaml", "jobs", "show", "two").out
    run = pollux.ok("--json", "-c", "two.yaml", "enqueue", "two", "--", "a=--store").json["run"]
    assert run["payload"] == {"a": "--store"}


def test_an_argument_before_the_command_goes_over_the_environment(pollux):
    environ = {"POLLUX_STORE": "sqlite:///two.db", "POLLUX_URL": "http://localhost:9"}
    assert pollux.ok("--store", ONE, "jobs", "show", "one", environ=environ).out
    refused = pollux("--url", "http://localhost:9", "jobs", "--store", ONE)
    assert refused.code == 2
    assert "--url and --store were both given" in refused.err


def test_the_same_twice_is_once_and_two_things_are_refused(pollux):
    assert pollux.ok("--store", ONE, "jobs", "--json", "--store", ONE).json["jobs"]
    assert pollux.ok("--store", ONE, "--json", "jobs", "--json").json["jobs"]
    for words in (
        ("--store", ONE, "jobs", "--store", "sqlite:///two.db"),
        ("-c", "two.yaml", "jobs", "show", "two", "--config", "one.yaml"),
    ):
        refused = pollux(*words)
        assert (refused.code, refused.out) == (2, "")
        assert "was given twice, with different values; give it once" in refused.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--json",), "no command came after --json"),
        (("--url",), "no command came after --url"),
        (("--url", "http://localhost:9"), "no command came after --url"),
        (("--json", "completion", "bash"), "No such option"),
        (("--group", "g", "jobs"), "No such option"),
        (("--store", ONE, "jbos"), "did you mean `pollux jobs`?"),
        (("jobs", "--json", "shwo"), "unexpected extra argument"),
    ],
    ids=str,
)
def test_what_cannot_be_meant_is_told_in_words(pollux, words, says):
    refused = pollux(*words)
    assert (refused.code, refused.out) == (2, "")
    assert says in refused.err


def test_what_the_help_calls_everywhere_may_stand_before_the_command():
    told = command_table.menu_text().partition("Everywhere, before the command or after it:\n")[2].partition("\n\n")[0]
    named = {word.strip(",") for line in told.splitlines() for word in line.split() if word.startswith("-")}
    assert named - set(GLOBAL_OPTIONS) == {"--help", "--version"}


def test_a_real_process_hears_it_too(pollux):
    told = Terminal(pollux.folder).ok("--store", ONE, "jobs", "show", "one", "--json").json
    assert told["job"]["id"] == "one"


@pytest.mark.parametrize("words", [("--store", ONE, "jobs", "show"), ("jobs", "--store", ONE, "show")], ids=" ".join)
def test_a_shell_that_completes_hears_it_too(pollux, monkeypatch, words):
    monkeypatch.chdir(pollux.folder)
    shell = ShellComplete(program, {}, "pollux", "_POLLUX_COMPLETE")
    assert [item.value for item in shell.get_completions(list(words), "o")] == ["one"]


def test_a_choice_that_is_missing_is_told_in_one_line(pollux):
    refused = pollux("token", "create", "--store", ONE)
    assert refused.code == 2
    assert "\\t" not in refused.err
    assert "Missing option '--role'. Choose from: viewer, operator, admin" in refused.err
