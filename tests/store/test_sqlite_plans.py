"""Plans of every statement, and the steps of a claim: cost grows with what is due, not with what exists."""

import re

import apsw
import pytest

from pollux.model import RunState
from pollux.store.contract import JobPut, RunFilter
from pollux.store.relational import sql
from pollux.store.relational.rows import RUN_COLUMNS
from pollux.store.relational.runs import list_runs
from pollux.store.relational.transaction import at_once
from pollux.store.sqlite import SqliteStore, schema
from pollux.store.sqlite.transaction import SqliteTransaction, WriteStats
from tests.store.children import JOB, in_writer

STATEMENTS = {
    f"{verb}.{name}": statement.replace("{run_columns}", RUN_COLUMNS)
    for verb in sql.verbs(schema.__package__)
    if verb not in {"check", "restore"}  # people ask for these walks over everything, and no busy queue waits for them
    for name, statement in sql.read(schema.__package__, verb).items()
    if verb != "runs" or name == "get"  # the others are sources of pages, tried below
}
# One row for each version, or as many rows as there are nodes; lists that were handed in; walks that a LIMIT ends.
SMALL = re.compile(
    r"SCAN (CONSTANT ROW|counters( USING COVERING INDEX counters_version)?|term( USING INDEX term_version)?|nodes"
    r"|\w+ VIRTUAL TABLE INDEX 1:|\(subquery-\d+\)|finished)$"
)
ENDS_AT_A_LIMIT = {
    "claim.look": "SCAN runs USING COVERING INDEX runs_leased",
    "feed.read": "SCAN feed",
    "records.last_line": "SCAN log",
}
# Rare, and told so: the clock came back, and all leases are looked at.
WALKS = {"claim.cut": {"SCAN runs USING INDEX runs_leased"}}


@pytest.fixture(scope="module")
def database():
    connection = apsw.Connection(":memory:")
    for migration in schema.migrations():
        for statement in migration.statements:
            connection.execute(statement)
    yield connection
    connection.close()


def plan(connection: apsw.Connection, statement: str) -> list[str]:
    count = max([statement.count("?"), *map(int, re.findall(r"\?(\d+)", statement))])
    count = max(map(int, re.findall(r"\?(\d+)", statement)), default=count)
    return [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", (None,) * count)]


@pytest.mark.parametrize("name", STATEMENTS)
def test_every_statement_goes_along_an_index(database, name):
    steps = plan(database, STATEMENTS[name])

    walks = [step for step in steps if step.startswith("SCAN ") and not SMALL.match(step)]
    walks = [step for step in walks if step != ENDS_AT_A_LIMIT.get(name) and step not in WALKS.get(name, ())]
    assert not walks, steps
    assert not [step for step in steps if "TEMP B-TREE" in step], steps


LISTINGS = {
    "all": RunFilter(),
    "held": RunFilter(states=(RunState.HELD,)),
    "ready and leased": RunFilter(states=(RunState.READY, RunState.LEASED)),
    "dead": RunFilter(states=(RunState.DEAD,)),
    "done and failed": RunFilter(states=(RunState.DONE,), failed=True),
    "finished since": RunFilter(states=(RunState.DONE, RunState.DEAD, RunState.CANCELLED), finished_after_ms=5),
    "of a job, finished": RunFilter(states=(RunState.DONE,), job_id="job"),
    "of a group": RunFilter(group="edge"),
}


class Spy(SqliteTransaction):
    """Gives the statements that a listing makes instead of running them."""

    def __init__(self, connection: apsw.Connection) -> None:
        super().__init__(connection, WriteStats())
        self.seen: list[str] = []

    def rows(self, statement: str, bindings=()):
        self.seen.append(statement)
        return []


@pytest.mark.parametrize("after", [None, "live:1:a", "past:1:1"])
@pytest.mark.parametrize("where", LISTINGS)
def test_every_page_of_runs_is_read_in_its_order(database, where, after):
    spy = Spy(database)
    at_once(list_runs(spy, LISTINGS[where], after, 100))

    assert spy.seen or after == "past:1:1"
    for statement in spy.seen:
        steps = plan(database, statement)
        assert not [step for step in steps if "TEMP B-TREE" in step], (statement, steps)
        assert all("USING" in step for step in steps), (statement, steps)


async def steps_of_a_claim(path, *, ready: int, delayed: int) -> int:
    """How many instructions SQLite needs for a claim of 100, among so many."""
    store = SqliteStore(path)
    await store.open()
    await store.put_jobs([JobPut(JOB)])
    now_ms = (await store.feed(limit=1)).now_ms
    connection = store.backend.database.writer._connection
    fill = (
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1) "
        "INSERT INTO runs (id, job_id, due_ms, cause, priority, grp, target, gated, state, held_reason, visible_ms) "
        "SELECT ?2 || i, 'job', ?3 + i, 2, 1 + i % 3, '', '', 0, 1, '', ?3 + i FROM n"
    )
    await in_writer(store, lambda tx: tx.write(fill, (ready, "ready", now_ms - 10_000_000)))
    await in_writer(store, lambda tx: tx.write(fill, (delayed, "later", now_ms + 10_000_000)))
    steps = 0

    def step() -> bool:
        nonlocal steps
        steps += 1
        return False

    await store.claim(node="n", token="warm", limit=100, lease_ms=60_000)
    await in_writer(store, lambda _: connection.set_progress_handler(step, 1))
    claimed = await store.claim(node="n", token="counted", limit=100, lease_ms=60_000)
    await in_writer(store, lambda _: connection.set_progress_handler(None))
    await store.close()
    assert len(claimed.runs) == 100
    return steps


async def test_a_claim_among_very_many_costs_what_it_costs_among_few(tmp_path):
    few = await steps_of_a_claim(tmp_path / "few.db", ready=1_000, delayed=0)
    many = await steps_of_a_claim(tmp_path / "many.db", ready=50_000, delayed=100_000)

    assert many < few * 1.05
