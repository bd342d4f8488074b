"""`pollux store check`, `backup` and `restore` from a terminal: what they say, what they leave, how they end."""

import shutil

import apsw
import pytest

from tests.acceptance.terminal import SameProcess, Terminal, eventually, stopped

CONFIG = """\
store: sqlite:///p.db
jobs:
  - {id: tick, python: "work:fine", interval: 100ms}
  - {id: broken, python: "work:refuse", interval: 1h}
"""
WHERE = ("-c", "p.yaml")
pytestmark = pytest.mark.xdist_group("store commands")  # so that their past is made once


@pytest.fixture(scope="module")
def past(tmp_path_factory):
    """A folder with a store in which something happened, and a backup that was made while it did."""
    pollux = SameProcess(tmp_path_factory.mktemp("past"))
    pollux.write("p.yaml", CONFIG)
    with pollux.started("serve", *WHERE) as process:
        eventually((pollux.folder / "p.db").exists, "the store is there", process)
        done = ("runs", "--state", "done", "--json", *WHERE)

        def busy() -> bool:
            answer = pollux(*done)
            return answer.code == 0 and len(answer.json["runs"]) > 3

        eventually(busy, "some runs are done", process)
        before = {run["id"] for run in pollux.ok(*done).json["runs"]}
        checked = pollux.ok("store", "check", *WHERE)
        apart = Terminal(pollux.folder)  # a process of its own, as people have it
        said = apart.ok("store", "backup", "copy.db", *WHERE)
        refused = apart("store", "restore", "copy.db", "--force", *WHERE)
        later = max(before)
        eventually(lambda: max(run["id"] for run in pollux.ok(*done).json["runs"]) > later, "it goes on", process)
        assert stopped(process).code == 0
    assert checked.out.startswith(f"ok: {pollux.folder / 'p.db'} (schema ")
    assert "2 jobs, " in said.err
    assert "checked" in said.err
    assert refused.code == 3
    assert f"busy: process {process.pid} uses" in refused.err
    return pollux.folder, before


@pytest.fixture
def pollux(past, tmp_path) -> Terminal:
    shutil.copytree(past[0], tmp_path / "here")
    return SameProcess(tmp_path / "here")


def test_what_was_backed_up_beside_a_busy_server_can_be_put_back_and_served_again(pollux, past):
    said = pollux.ok("store", "restore", "copy.db", "--force", *WHERE)
    assert "leases given back: " in said.err
    assert pollux.ok("store", "check", *WHERE).err == ""
    there = {run["id"] for run in pollux.ok("runs", "--limit", "1000", "--json", *WHERE).json["runs"]}
    assert past[1] <= there, "done before the backup began"
    with pollux.started("serve", *WHERE) as process:
        runs = ("runs", "--json", *WHERE)
        eventually(lambda: {r["id"] for r in pollux.ok(*runs).json["runs"]} - there, "it fires again", process)
        assert stopped(process).code == 0


def test_the_answers_for_machines_have_their_fields(pollux):
    checked = pollux.ok("store", "check", "--json", *WHERE).json
    assert (checked["ok"], checked["repaired"], checked["checked"]["findings"]) == (True, False, [])
    copied = pollux.ok("store", "backup", "again.db", "--json", *WHERE).json
    assert list(copied) == ["path", "bytes", "runs", "jobs", "notes", "log", "voided"]
    restored = pollux.ok("store", "restore", "again.db", "--json", "--store", "sqlite:///new.db").json
    assert (restored["runs"], restored["jobs"]) == (copied["runs"], copied["jobs"])


def test_what_is_found_is_told_with_exit_code_1_and_repaired_on_demand(pollux):
    spoil(pollux, "UPDATE counters SET ready = ready + 5")
    answer = pollux("store", "check", *WHERE)
    assert answer.code == 1
    assert "counts: a count differs from what is there" in answer.out
    assert "are counted" in answer.out
    assert "`pollux store check --repair` repairs" in answer.err
    assert "written anew (counts" in pollux.ok("store", "check", "--repair", *WHERE).err
    assert pollux.ok("store", "check", *WHERE).out.startswith("ok: ")


def test_what_cannot_be_repaired_stays_found(pollux):
    spoil(pollux, "UPDATE log SET actor = 'nobody\x1b[31m' WHERE seq = 1", "UPDATE jobs SET definition = x'7b'")
    answer = pollux("store", "check", "--repair", *WHERE)
    assert answer.code == 1
    assert "records: a record cannot be read" in answer.out
    assert "no repair for the rest" in answer.err
    assert "\x1b" not in answer.out
    assert pollux("store", "check", "--json", *WHERE).json["ok"] is False


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        (("store", "check", "--store", "sqlite:///none.db"), 3, "there is no store"),
        (("store", "check", "--store", "memory://"), 3, "memory store"),
        (("store", "backup", "x.db", "--store", "memory://"), 3, "memory store"),
        (("store", "restore", "copy.db", "--store", "memory://"), 2, "`pollux store dump` and `load` are for all"),
        (("store", "backup", "copy.db", *WHERE), 1, "add --force"),
        (("store", "backup", "p.db", "--force", *WHERE), 1, "is the store itself"),
        (("store", "restore", "copy.db", *WHERE), 1, "add --force"),
        (("store", "restore", "none.db", "--store", "sqlite:///new.db"), 1, "there is no file none.db"),
        (("store", "restore", "work.py", "--store", "sqlite:///new.db"), 3, "damaged or no database"),
    ],
)
def test_what_cannot_be_done_is_said_with_the_cure(pollux, command, code, said):
    answer = pollux(*command)
    assert answer.code == code, answer
    assert said in answer.err
    assert not list(pollux.folder.glob("*.part*"))
    assert not list(pollux.folder.glob("*.restored*"))


def spoil(pollux, *statements: str) -> None:
    connection = apsw.Connection(str(pollux.folder / "p.db"))
    for statement in statements:
        connection.execute(statement)
    connection.close()
