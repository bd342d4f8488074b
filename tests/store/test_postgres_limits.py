"""Delete statements with a limit, under plans that repeat their subquery.

A subquery with LIMIT and SKIP LOCKED that the planner runs once for each outer row finds other rows each time: those of
the time before are gone.  So the limit must hold whatever plan is chosen.
"""

import re
from pathlib import Path

import pytest

from pollux.model import RunState
from pollux.store.contract import Pruning, RunFilter
from pollux.store.postgres import database
from pollux.store.postgres.store import PostgresStore
from pollux.testing.conformance.builders import a_run, dead_letter, finished
from tests.servers.postgres import emptied, own_url

QUERIES = Path(database.__file__).parent / "queries"
LIMITED = re.compile(r"\bIN \(\s*SELECT\b(?:[^()]|\([^()]*(?:\([^()]*\)[^()]*)*\))*\bLIMIT\b")
T0 = 1_800_000_000_000
NESTED = {  # planner settings that leave nothing but a nested loop whose inner side is run anew
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_material": "off",
    "enable_hashagg": "off",
    "enable_sort": "off",
    "enable_seqscan": "on",
}


@pytest.fixture(scope="module")
def url():
    return own_url("limits")


@pytest.fixture
def clean(url):
    return emptied(url)


@pytest.fixture
async def store(clean, monkeypatch):
    for name, value in NESTED.items():
        monkeypatch.setitem(database.PLANS, name, value)
    opened = PostgresStore(clean)
    await opened.open()
    yield opened
    await opened.close()


async def dead_letters(store, count):
    for n in range(count):
        await dead_letter(store, a_run(f"r{n}", due_ms=T0), now_ms=T0 + n)


async def test_old_runs_go_by_their_limit(store):
    for n in range(6):
        await finished(store, a_run(f"r{n}"), now_ms=T0)

    assert await store.prune(Pruning(finished_before_ms=T0 + 1, limit=2)) == 2


async def test_only_the_oldest_dead_letters_go_beyond_their_number(store):
    """At worst all of them went."""
    await dead_letters(store, 6)

    assert await store.prune(Pruning(dead_max=4)) == 2

    page = await store.list_runs(RunFilter(states=(RunState.DEAD,)))
    assert sorted(run.id for run in page.runs) == ["r2", "r3", "r4", "r5"]


async def test_old_dead_letters_go_by_their_limit(store):
    await dead_letters(store, 6)

    assert await store.prune(Pruning(dead_before_ms=T0 + 999, limit=2)) == 2


async def test_what_is_beyond_the_number_of_a_job_goes_by_its_limit(store):
    for n in range(6):
        await finished(store, a_run(f"r{n}"), now_ms=T0 + n)

    assert await store.prune(Pruning(keep_per_job=2, limit=3)) == 3
    assert len((await store.list_runs()).runs) == 3


def test_no_statement_leaves_its_limit_to_the_plan():
    """`IN (SELECT ... LIMIT n)` may be run once for each outer row; an array is made once."""
    texts = {path.name: re.sub(r"--.*", "", path.read_text()) for path in sorted(QUERIES.glob("*.sql"))}
    assert len(texts) > 10

    assert [name for name, text in texts.items() if LIMITED.search(text)] == []
