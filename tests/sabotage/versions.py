"""Sabotage between the versions of one store, each with a queue, a feed and a term of its own."""

from __future__ import annotations

from tests.sabotage.copy import Patch, Sabotage

TESTS = {
    "memory": "tests/conformance/test_memory.py::TestMemoryStore::",
    "sqlite": "tests/conformance/test_sqlite.py::TestSqliteStore::",
    "redis": "tests/conformance/test_redis.py::TestRedisStore::",
    "postgres": "tests/conformance/test_postgres.py::TestPostgresStore::",
}


def line(store: str, *patches: Patch) -> Sabotage:
    broken = "a node of one version is given the runs of another"
    return Sabotage(
        f"version.line-{store}", broken, patches, (TESTS[store] + "test_a_claim_takes_only_from_its_own_version",)
    )


def told(store: str, *patches: Patch) -> Sabotage:
    broken = "the leader of one version is told how the runs of another ended"
    test = "test_an_end_is_told_to_the_leader_of_its_version_whoever_settles"
    return Sabotage(f"version.told-{store}", broken, patches, (TESTS[store] + test,))


def term(store: str, *patches: Patch) -> Sabotage:
    broken = "the leader of one version leads all of them"
    return Sabotage(
        f"version.term-{store}", broken, patches, (TESTS[store] + "test_each_version_has_a_leader_of_its_own",)
    )


BETWEEN_VERSIONS = (
    line(
        "memory",
        Patch(
            "store/memory/state.py",
            "tuple[list[LinePlace], ...] = ([], [], [])",
            "tuple[list[LinePlace], ...] = next(iter(house.states.values())).lines if house.states else ([], [], [])",
        ),
        Patch("store/memory/state.py", "            and run.scheduler_version == self.version\n", ""),
    ),
    line(
        "sqlite",
        Patch(
            "store/sqlite/queries/claim.sql",
            "WHERE state = 1 AND version = ? AND priority = ? AND visible_ms <= ? ORDER BY",
            "WHERE state = 1 AND version > ? - 9 AND priority = ? AND visible_ms <= ? ORDER BY",
        ),
    ),
    line(
        "redis",
        Patch(
            "store/redis/functions/op.lua",
            "names.queues = named(beginning, QUEUES)",
            "names.queues = named(keys.prefix, QUEUES)",
        ),
    ),
    line(
        "postgres",
        Patch(
            "store/postgres/queries/claim.sql",
            "WHERE state = 1 AND version = $3::smallint AND priority = (SELECT priority FROM chosen)",
            "WHERE state = 1 AND $3::smallint > 0 AND priority = (SELECT priority FROM chosen)",
        ),
    ),
    told(
        "memory",
        Patch(
            "store/memory/state.py", "self.ends.setdefault(run.scheduler_version, [])", "self.ends.setdefault(2, [])"
        ),
    ),
    told(
        "sqlite",
        Patch(
            "store/sqlite/settle.py",
            "self.tx.add_entry(version, Ended(tuple(some)))",
            "self.tx.add_entry(2, Ended(tuple(some)))",
        ),
    ),
    told(
        "redis",
        Patch("store/redis/functions/feed.lua", "local key = op.here.feed", 'local key = op.keys.prefix .. "feed"'),
    ),
    told(
        "postgres",
        Patch(
            "store/relational/transaction.py",
            "self.add_entry(version, Ended(tuple(some)))",
            "self.add_entry(2, Ended(tuple(some)))",
        ),
        Patch("store/postgres/queries/settle.sql", "SELECT $13::smallint, sure.n, $10", "SELECT 2, sure.n, $10"),
    ),
    term(
        "memory",
        Patch(
            "store/memory/nodes.py",
            "    current = state.leadership\n    if current.until_ms > now_ms",
            "    current = state.of(2).leadership\n    if current.until_ms > now_ms",
        ),
    ),
    term("sqlite", Patch("store/relational/nodes.py", 'tx.fetch("nodes.term", version)', 'tx.fetch("nodes.term", 2)')),
    term(
        "redis",
        Patch(
            "store/redis/functions/nodes.lua",
            "local args, now, meta = op.args, op.now, op.here.meta",
            'local args, now, meta = op.args, op.now, op.keys.prefix .. "meta"',
        ),
    ),
    term(
        "postgres", Patch("store/relational/nodes.py", 'tx.fetch("nodes.term", version)', 'tx.fetch("nodes.term", 2)')
    ),
)
