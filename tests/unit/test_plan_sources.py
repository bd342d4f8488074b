"""Ownership of jobs: which would come back after a deletion, and which no node declares or runs."""

import pytest
from msgspec.structs import replace

from pollux.model import Declares, Job, Node
from pollux.plan import is_backed, orphaned

JOB = Job(id="stock", handler="stock", source="code:shop", release=2)


def node(*declares, handlers=()):
    return Node(id="n", handlers=handlers, declares=declares)


@pytest.mark.parametrize(
    ("job", "nodes", "is_back"),
    [
        (JOB, [node(Declares("code:shop", 2))], True),
        (JOB, [node(Declares("code:shop", 3))], True),
        (JOB, [node(Declares("code:shop", 1))], False),
        (JOB, [node(Declares("code:other", 9))], False),
        (JOB, [], False),
        (replace(JOB, declared=False), [node(Declares("code:shop", 2))], False),
        (replace(JOB, source="api"), [node(Declares("api", 2))], False),
        (replace(JOB, source="file:p.yaml", release=0), [node(Declares("code:x"), Declares("file:p.yaml"))], True),
    ],
    ids=["same", "newer", "older", "other", "nobody", "retired", "api", "file"],
)
def test_a_job_comes_back_if_a_living_node_of_its_source_and_release_declares_it(job, nodes, is_back):
    assert is_backed(job, nodes) is is_back


def test_what_nobody_who_lives_declares_or_knows_is_orphaned_by_source():
    jobs = [
        JOB,
        replace(JOB, id="mail", handler="mail"),
        replace(JOB, id="known", handler="http"),
        replace(JOB, id="off", enabled=False),
        replace(JOB, id="retired", declared=False),
        replace(JOB, id="asked", source="api"),
        replace(JOB, id="theirs", source="code:other"),
        replace(JOB, id="filed", source="file:old.yaml", handler="work:f"),
    ]
    others = [node(Declares("code:other", 2), handlers=("http",))]

    assert orphaned(jobs, others) == {"code:shop": ["stock", "mail"], "file:old.yaml": ["filed"]}
    assert orphaned(jobs, []) == {}, "while no node lives at all everybody waits"
    assert orphaned(jobs, [*others, node(Declares("code:shop", 2))]) == {"file:old.yaml": ["filed"]}
