"""Declaration conflicts: nodes that keep declaring other jobs than the latest text of their source."""

import pytest
from msgspec.structs import replace

from pollux.model import SETTLED_MS, LatestDeclaration, Node, declaration_conflicts, declares

NOW = 1_800_000_000_000
FILE, CODE = "file:p.yaml", "code:app"


def a_node(name, *ids, source=FILE, release=0, **options):
    return Node(name, declares=(declares(source, release, ids),), started_ms=NOW - SETTLED_MS, **options)


def latest(*ids, source=FILE, at_ms=NOW - SETTLED_MS):
    return {source: LatestDeclaration(declares(source, 0, ids).mark, at_ms)}


OLD, NEW = a_node("old", "a"), a_node("new", "b")


def test_a_node_with_other_jobs_than_the_latest_text_is_told_with_one_that_has_it():
    [found] = declaration_conflicts([OLD, NEW], latest("b"), now_ms=NOW)
    assert str(found) == f"{FILE}: node old declares other jobs than node new, which has the latest text"
    [found] = declaration_conflicts([OLD, NEW], latest("a"), now_ms=NOW)
    assert (found.node, found.holder) == ("new", "old")


def test_of_a_file_also_where_nobody_lives_that_has_it():
    [found] = declaration_conflicts([OLD], latest("b"), now_ms=NOW)
    assert str(found) == f"{FILE}: node old declares other jobs than the latest text, which no living node has"
    assert declaration_conflicts([a_node("old", "a", source=CODE)], latest("b", source=CODE), now_ms=NOW) == []


@pytest.mark.parametrize(
    ("nodes", "holds"),
    [
        ([OLD, NEW], {}),
        ([OLD, NEW], latest("b", at_ms=NOW - SETTLED_MS + 1)),
        ([replace(OLD, started_ms=NOW - SETTLED_MS + 1), NEW], latest("b")),
        ([replace(OLD, draining=True), NEW], latest("b")),
        ([OLD, a_node("new", "b", release=1)], latest("b")),
        ([NEW, replace(NEW, id="newer")], latest("b")),
    ],
    ids=["no note", "just now", "just started", "draining", "an older release", "the same"],
)
def test_a_deploy_that_is_under_way_is_no_fault(nodes, holds):
    assert declaration_conflicts(nodes, holds, now_ms=NOW) == []
