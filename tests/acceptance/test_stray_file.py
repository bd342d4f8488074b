"""An app was named, and a `pollux.yaml` that nobody named lies in the folder: whose store is used is said."""

import pytest

from tests.acceptance.terminal import Terminal, eventually, stopped

FILE = "store: sqlite:///file.db\n"
SAID = (
    "pollux.yaml:1: it is read, too: its store sqlite:///file.db is used, and not sqlite:///app.db, "
    "which work:app names; name the one that is meant by --store"
)


@pytest.fixture
def pollux(tmp_path) -> Terminal:
    return Terminal(tmp_path)


def said_by_serve(pollux, *words, watch="--no-watch"):
    """All that it says until it has started."""
    log = pollux.folder / "said"
    with log.open("wb") as said, pollux.started("serve", *words, watch, stdout=said, stderr=said) as process:
        eventually(lambda: "started on" in log.read_text(), "it has started", process)
        assert stopped(process).code == 0
    return log.read_text()


def test_a_start_says_that_the_store_of_the_file_is_used_and_not_that_of_the_app(pollux):
    pollux.write("pollux.yaml", FILE)
    assert said_by_serve(pollux, "--app", "work:app").count(f"WARNING {SAID}\n") == 1


def test_the_live_table_says_so_as_well(pollux):
    pollux.write("pollux.yaml", FILE)
    assert SAID in said_by_serve(pollux, "--app", "work:app", watch="--watch").replace("\n", "")


@pytest.mark.parametrize(
    ("file", "words"),
    [
        (FILE, ("--app", "work:app", "--store", "sqlite:///third.db")),
        (FILE, ("--app", "work:app", "-c", "pollux.yaml")),
        (FILE + "app: work:app\n", ()),
        ("store: sqlite:///app.db\n", ("--app", "work:app")),
        ("pool: {seats: 2}\n", ("--app", "work:app")),
        (FILE, ("--app", "plain:app")),
    ],
    ids=["a store by name", "a file by name", "an app by the file", "the same", "no store", "an app without one"],
)
def test_who_said_which_store_is_meant_hears_nothing(pollux, file, words):
    pollux.write("pollux.yaml", file)
    pollux.write("plain.py", "from pollux import Pollux\n\napp = Pollux()\n")
    assert "it is read, too" not in said_by_serve(pollux, *words)


def test_a_check_says_so(pollux):
    pollux.write("pollux.yaml", FILE)
    there = {"POLLUX_APP": "work:app"}
    assert pollux.ok("check", environ=there).err == f"pollux: warning: {SAID}\n"
    [warning] = pollux.ok("check", "--json", environ=there).json["warnings"]
    assert warning["where"] == "pollux.yaml:1"
    assert pollux.ok("check").err == ""
