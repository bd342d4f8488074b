"""Findings of `store check` on SQLite: each kind planted once; none in a store that is sound."""

import apsw
import pytest

from pollux.errors import StoreRefused
from pollux.model import AuditLine, Dead, Done, NotePut, Outcome
from pollux.store.contract import JobPut, Pruning, Settlement
from pollux.store.memory import MemoryStore
from pollux.store.sqlite import SqliteStore
from pollux.store.sqlite.check import check, repair
from tests.store.children import JOB, some_runs
from tests.store.test_sqlite_twins import STEPS, Story


def silent(*_) -> None:
    """Nobody looks at the progress."""


def rules(path) -> list[str]:
    return [finding.rule for finding in check(path, silent).findings]


def spoil(path, *statements: str) -> None:
    connection = apsw.Connection(str(path))
    for statement in statements:
        connection.execute(statement)
    connection.close()


@pytest.fixture
async def path(tmp_path):
    """A store with something of everything in it."""
    path = tmp_path / "pollux.db"
    store = SqliteStore(path)
    await store.open()
    await store.put_jobs([JobPut(JOB)])
    await store.enqueue(some_runs(0, 20), notes=[NotePut("a", 1), NotePut("b", [2])])
    claimed = await store.claim(node="n", token="t", limit=12, lease_ms=60_000)
    outcome = Outcome(claimed.now_ms, claimed.now_ms, result={"a": 1})
    ends = [Settlement(run.id, run.token, Done(), outcome) for run in claimed.runs[:6]]
    await store.settle([*ends, Settlement(claimed.runs[6].id, claimed.runs[6].token, Dead("no"), outcome)])
    await store.log([AuditLine(n, "me", "did", f"thing {n}") for n in range(5)])
    await store.elect("n", ttl_ms=1_000)
    await store.close()
    return path


def test_a_store_in_order_has_no_findings(path):
    found = check(path, silent)

    assert found.findings == ()
    assert (found.runs, found.jobs, found.notes, found.log) == (20, 1, 2, 5)


@pytest.mark.parametrize("seed", [3, 4])
async def test_whatever_the_verbs_do_nothing_is_found(tmp_path, seed):
    """A random story of all verbs, looked at while the store is open."""
    stores = [MemoryStore(), SqliteStore(tmp_path / "pollux.db")]
    for store in stores:
        await store.open()
    try:
        story = Story(seed, stores)
        for number in range(STEPS):
            await story.step()
            if number % 50 == 0:
                assert check(tmp_path / "pollux.db", silent).findings == ()
    finally:
        for store in stores:
            await store.close()


PLANTED = {
    "counts": ["UPDATE counters SET ready = ready + 1"],
    "counts ": ["UPDATE counters SET entries = 0"],
    "single": ["DELETE FROM term"],
    "states": ["UPDATE runs SET history_class = 0, finished_ms = 1 WHERE state = 2"],
    "states ": ["UPDATE runs SET history_class = 1 WHERE state = 4"],
    "finished": ["UPDATE runs SET finished_ms = NULL WHERE state = 3"],
    "leases": ["UPDATE runs SET token = '' WHERE state = 2"],
    "orphans": ["UPDATE runs SET job_id = 'gone' WHERE state = 1"],
    "buried": ["INSERT INTO tombs (id, revision) VALUES ('job', 1)"],
    "elsewhere": [
        "UPDATE runs SET version = 3 WHERE state = 1",
        "INSERT INTO counters SELECT 0, ready, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3 FROM counters",
        "UPDATE counters SET ready = 0 WHERE version = 2",
    ],
    "counts  ": ["INSERT INTO counters SELECT 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3 FROM counters"],
    "records": ["UPDATE runs SET result = x'7b' WHERE state = 3"],
    "records ": ["UPDATE jobs SET definition = x'7b7d'"],
    "feed": ["UPDATE feed SET body = x'00'"],
    "feed ": ["UPDATE feed SET ends = ends + 1", "UPDATE counters SET ends = (SELECT sum(ends) FROM feed)"],
    "audit": ["UPDATE log SET detail = 'never mind' WHERE seq = 3"],
    "audit ": ["DELETE FROM log WHERE seq = 2"],
}


@pytest.mark.parametrize("rule", PLANTED)
def test_what_is_wrong_is_found(path, rule):
    spoil(path, *PLANTED[rule])

    assert rules(path) == [rule.strip()]


async def test_an_audit_log_that_was_pruned_is_in_order(path):
    store = SqliteStore(path)
    await store.open()
    assert await store.prune(Pruning(log_max=2)) == 3
    await store.log([AuditLine(9, "me", "did", "more")])
    await store.close()
    assert rules(path) == []
    spoil(path, "UPDATE log SET detail = 'never mind' WHERE seq = 5")
    assert rules(path) == ["audit"]


def test_wrong_counts_are_counted_again(path):
    before = check(path, silent)
    spoil(
        path,
        "UPDATE counters SET held = 7, ready = 0, leased = 99, dead = 3, feed = 0, ends = 1, jobs = 0, entries = 0",
    )
    [finding] = check(path, silent).findings
    assert finding.can_repair
    assert "ready: 0 are counted, 8 are there" in finding.shown
    repair(path)

    assert check(path, silent) == before


async def test_an_index_that_lost_a_row_is_built_again_while_others_work(path):
    spoil(
        path,
        "PRAGMA writable_schema = ON",
        "UPDATE sqlite_schema SET sql = 'CREATE INDEX runs_ready ON runs (priority, visible_ms) WHERE state = 99' "
        "WHERE name = 'runs_ready'",
        "PRAGMA writable_schema = RESET",
    )
    spoil(path, "REINDEX runs_ready")
    spoil(
        path,
        "PRAGMA writable_schema = ON",
        "UPDATE sqlite_schema SET sql = 'CREATE INDEX runs_ready ON runs (priority, visible_ms) WHERE state = 1' "
        "WHERE name = 'runs_ready'",
    )
    assert [(finding.rule, finding.can_repair) for finding in check(path, silent).findings] == [
        ("file", True),
        ("counts", True),  # they were counted along that index
    ]
    store = SqliteStore(path)
    await store.open()
    repair(path)
    assert rules(path) == []

    claimed = await store.claim(node="n", token="after", limit=100, lease_ms=60_000)
    assert len(claimed.runs) == 8, "what no claim could find is there again"
    await store.close()


def test_a_torn_page_is_found_and_not_called_repairable(path):
    with path.open("r+b") as file:
        file.seek(6 * 4_096)
        file.write(b"\xff" * 2_000)
    [finding] = check(path, silent).findings

    assert (finding.rule, finding.can_repair) == ("file", False)
    assert "restore a backup" in finding.what


def test_progress_is_told(path):
    steps = []
    check(path, lambda what, done, total: steps.append((what, done, total)))

    assert [step[0] for step in steps] == ["the file", "the counts", "the records"]
    assert steps[-1][1:] == (29, 28), "and the term, which is a record, too"


def test_a_file_of_somebody_else_is_refused(tmp_path):
    other = apsw.Connection(str(tmp_path / "other.db"))
    other.execute("CREATE TABLE theirs (x)")
    other.close()
    with pytest.raises(StoreRefused, match="another program"):
        check(tmp_path / "other.db", silent)
