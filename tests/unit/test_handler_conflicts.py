"""Handler conflicts: programs on one store with different code under one handler name."""

import sys

import pytest
from msgspec.structs import replace

from pollux.model import Declares, Node, handler_conflicts
from pollux.registry import CODES_MAX, Handler, Registry

ONE = Node("one", handlers=("http", "jobs:run"), codes=("", "aaaa"), declares=(Declares("file:one"),), started_ms=1)
TWO = Node("two", handlers=("http", "jobs:run"), codes=("", "bbbb"), declares=(Declares("file:two"),), started_ms=2)
BOTH = (Declares("file:one"), Declares("code:app"))


def test_two_programs_with_different_code_under_one_name_are_told_by_handler_node_and_source():
    [found] = handler_conflicts([TWO, ONE])
    assert (found.handlers, found.nodes, found.sources) == (("jobs:run",), ("one", "two"), ("file:one", "file:two"))
    words = "handler jobs:run: node one (file:one) and node two (file:two) have different code under this name"
    assert str(found) == words


@pytest.mark.parametrize(
    "two",
    [
        replace(TWO, codes=ONE.codes),
        replace(TWO, codes=("", "")),
        replace(TWO, codes=()),
        replace(TWO, handlers=("http", "other:run")),
        replace(TWO, handlers=(), codes=()),
        replace(TWO, declares=()),
        replace(TWO, declares=ONE.declares),
        replace(TWO, declares=BOTH),
        replace(TWO, scheduler_version=7),
    ],
    ids=[
        *("same code", "unknown", "older release", "other handler", "runs nothing", "no source"),
        *("a deploy", "a source in common", "another version"),
    ],
)
def test_what_is_no_other_program_or_has_no_other_code_is_not_told(two):
    assert handler_conflicts([ONE, two]) == []


def test_many_nodes_of_two_programs_are_told_once():
    fleet = [replace(each, id=f"{each.id}{n}", started_ms=n) for n in range(200) for each in (ONE, TWO)]
    [found] = handler_conflicts(fleet)
    assert found.nodes == ("one0", "two0")


def _function(tmp_path, monkeypatch, module, text):
    path = tmp_path / f"{module}.py"
    path.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, module, raising=False)
    return __import__(module)


def test_the_mark_of_a_handler_is_that_of_the_text_of_its_file(tmp_path, monkeypatch):
    marks = []
    for folder, text in (("a", "def run(): ..."), ("b", "def run(): ..."), ("c", "def run(): return 1")):
        (tmp_path / folder).mkdir()
        module = _function(tmp_path / folder, monkeypatch, "rival_jobs", f"{text}\n")
        marks.append(Handler("jobs:run", module.run).code)
    assert marks[0] == marks[1] != marks[2]
    assert [len(mark) for mark in marks] == [8] * 3


def test_what_is_in_no_file_has_no_mark():
    namespace = {"__name__": "nowhere"}
    exec("def run(): ...", namespace)
    assert Handler("run", namespace["run"]).code == ""
    assert Handler("len", print.__class__).code == ""


def test_a_beat_carries_so_many_marks_and_no_more():
    registry = Registry()
    for n in range(CODES_MAX + 10):
        registry.add(f"h{n:04}", _function)
    assert len(registry.names()) == CODES_MAX + 10
    assert len(registry.codes()) == CODES_MAX
    assert set(registry.codes()) == {Handler("x", _function).code}
