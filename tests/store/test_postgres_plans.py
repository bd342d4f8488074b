"""Plans of the hot statements: cost grows with what is due, not with what exists; a full house and a small one.

The full one: 400,000 runs that are due later, 400,000 finished, 100,000 ready; the small one: 1,000 ready.
"""

import asyncio
import json

import asyncpg
import pytest

from pollux.model import RunState
from pollux.store.contract import RunFilter
from pollux.store.postgres.database import PLANS
from pollux.store.postgres.store import PostgresStore
from pollux.store.postgres.transaction import SchemaStatements
from pollux.store.relational import sql
from tests.chaos.yard import wait_until
from tests.servers.postgres import QUICK, PostgresServer

pytestmark = pytest.mark.xdist_group("postgres plans")  # the houses are filled once
NOW = 1_800_000_000_000
DAY = 86_400_000
JOBS = 20_000
ROOM = (
    "shared_buffers=512MB",
    "max_wal_size=8GB",
    "maintenance_work_mem=256MB",
    "wal_level=minimal",
    "max_wal_senders=0",
)
BIG = {"ready": 100_000, "later": 400_000, "history": 400_000}
SMALL = {"ready": 1_000, "later": 0, "history": 0}
FEW_AND_MANY = (8, 40)  # of a few ids it is asked beforehand whether they are known
WALKED = {"counters", "nodes", "term", "notes", "claims"}  # tables of a few rows, whatever happens

# Made without the store, whose way would take minutes: as its statements would leave them.
FILL = """
INSERT INTO {s}.jobs (id, revision, release, source, handler, name, grp, target, tags, enabled, once, next_due_ms,
  definition)
SELECT 'job-' || lpad(n::text, 5, '0'), 1, 0, 'api', 'h', '', '', '', '', true, false, {now} + n * 1000, '{{}}'
FROM generate_series(1, {jobs}) AS n;
INSERT INTO {s}.runs (seq, id, job_id, due_ms, cause, priority, grp, target, gated, later)
SELECT n, 'r' || n, 'job-' || lpad((n % {jobs} + 1)::text, 5, '0'), {now} + n, 2, 1 + n % 3, '', '', false, n > {ready}
FROM generate_series(1, {ready} + {later}) AS n;
INSERT INTO {s}.queue (seq, job_id, priority, due_ms, state, visible_ms, held_reason, later)
SELECT n, 'job-' || lpad((n % {jobs} + 1)::text, 5, '0'), 1 + n % 3, {now} + n, 1,
  CASE WHEN n <= {ready} THEN {now} - 1000 ELSE {now} + {day} + n END, '', n > {ready}
FROM generate_series(1, {ready} + {later}) AS n;
INSERT INTO {s}.history
SELECT 10000000 + n, 'p' || n, 'job-' || lpad((n % {jobs} + 1)::text, 5, '0'), {now} - n, 2, NULL, NULL, 2, '', '',
  false, CASE WHEN n % 100 = 0 THEN 4 ELSE 3 END, '', {now} - n, 1, 0, 0, 1, 't:1', '', 0, '', {now} - n, {now} - n,
  false, NULL, '', NULL, 1, '', NULL, '',
  CASE WHEN n % 100 = 0 THEN 2 WHEN n % 2 = 0 THEN 1 ELSE 0 END, 2
FROM generate_series(1, {history}) AS n;
SELECT setval('{s}.run_seq', 20000000);
UPDATE {s}.counters SET ready = {ready} + {later}, jobs = {jobs} WHERE version = 2 AND slot = 0;
"""


@pytest.fixture(scope="module")
def server():
    started = PostgresServer(*QUICK, "autovacuum=off", *ROOM).start()
    try:
        asyncio.run(fill(started.url(), "big", BIG))
        asyncio.run(fill(started.url(), "small", SMALL))
        yield started
    finally:
        started.stop()


async def fill(url, schema, size):
    """Rows first, then the indexes, which is much quicker."""
    store = PostgresStore(f"{url}?schema={schema}")
    await store.open()
    await store.close()
    connection = await asyncpg.connect(url)
    indexes = await connection.fetch(
        "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = $1 AND indexname NOT LIKE '%key'", schema
    )
    for name, _ in indexes:
        await connection.execute(f"DROP INDEX {schema}.{name}") if not name.endswith("_pkey") else None
    for statement in FILL.split(";\n"):
        if statement.strip():
            await connection.execute(statement.format(s=schema, now=NOW, day=DAY, jobs=JOBS, **size))
    for name, definition in indexes:
        await connection.execute(definition) if not name.endswith("_pkey") else None
    await connection.execute(f"ANALYZE {schema}.runs, {schema}.queue, {schema}.history, {schema}.jobs")
    await connection.close()


def literal(value):
    """As it is written into a statement."""
    match value:
        case None:
            return "NULL"
        case bytes():
            return f"'\\x{value.hex()}'"
        case list():
            parts = ["NULL" if each is None else f'"{literal(each).strip(chr(39))}"' for each in value]
            return "'{" + ",".join(parts).replace("\\", "\\\\") + "}'"
        case str():
            return f"'{value}'"
        case _:
            return str(value).lower()


class House:
    """A filled schema, and how its statements are run: as the planner likes, or by plans that are kept."""

    def __init__(self, connection, schema, *, is_kept=False):
        self.connection, self.space, self.is_kept = connection, SchemaStatements(schema), is_kept

    def text(self, verb, name):
        return self.space.sql(sql.read("pollux.store.postgres", verb)[name])

    async def run(self, verb, name, *args):
        return await self.connection.fetch(self.text(verb, name), *args)

    async def plan(self, verb, name, *args):
        """Run twice and undone: the second time nothing is paid for the catalogue, or for bits that are set once."""
        text = self.text(verb, name)
        if self.is_kept:
            await self.connection.execute(f"PREPARE kept AS {text}")
            text, args = f"EXECUTE kept ({', '.join(map(literal, args))})", ()
        for _ in range(2):
            await self.connection.execute("SAVEPOINT before")
            rows = await self.connection.fetch(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {text}", *args)
            await self.connection.execute("ROLLBACK TO before")
        return json.loads(rows[0][0])[0]["Plan"]


@pytest.fixture
async def house(server):
    opened = []

    async def enter(schema, *, is_kept=False):
        connection = await asyncpg.connect(server.url(), server_settings=PLANS if is_kept else None)
        opened.append(connection)
        await connection.execute("BEGIN")
        if schema == "small":  # else it would walk over the few rows there are
            await connection.execute("SET LOCAL enable_seqscan = off")
        return House(connection, schema, is_kept=is_kept)

    yield enter
    for connection in opened:
        await connection.execute("ROLLBACK")
        await connection.close()


ROWS = 100  # that each of them is about


def nodes(plan):
    yield plan
    for part in plan.get("Plans", ()):
        yield from nodes(part)


def walks(plan):
    """Big tables that are read from end to end."""
    return [
        node["Relation Name"]
        for node in nodes(plan)
        if node["Node Type"] == "Seq Scan" and node["Relation Name"] not in WALKED and not is_untaken(node)
    ]


def is_untaken(node):
    """PostgreSQL 13 keeps two ways to ask whether a row is there, and takes one when it runs; its plan shows both."""
    return node.get("Parent Relationship") == "SubPlan" and node["Actual Loops"] == 0


def sorts(plan, table):
    """Where all rows of a table that fit are read and sorted."""
    sorted_here = [node for node in nodes(plan) if node["Node Type"] == "Sort"]
    return [node["Sort Key"] for node in sorted_here if any(part.get("Relation Name") == table for part in nodes(node))]


def buffers(plan):
    return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]


def taking(priorities, n):
    """What `take` is given: token, time, version; priorities, unread ends, how many; for whom, how long, which part."""
    return "tok", NOW, 2, priorities, 1_000_000, n, "node", 60_000, False, 1


async def leased(house, n=100):
    """Some runs that we hold: (ids, seqs, tokens)."""
    rows = await house.run("claim", "take", *taking([2], n))
    runs = [row for row in rows if row[2] is not None]
    assert len(runs) == n
    return [row[1] for row in runs], [row[0] for row in runs], [f"tok:{row[12]}" for row in runs]


async def a_look(house):
    return await house.plan("claim", "take", *taking([], 100))


async def a_claim(house):
    return await house.plan("claim", "take", *taking([2, 3, 1], 100))


async def a_plain_settlement(house):
    _, seqs, tokens = await leased(house)
    n = len(seqs)
    times, no, none = [NOW] * n, [False] * n, [None] * n
    return await house.plan(
        "settle", "done", seqs, tokens, [0] * n, times, times, no, none, [""] * n, none, b"{}", "channel", "", 2
    )


async def what_a_settlement_locks_first(house):
    ids, _, _ = await leased(house)
    return await house.plan("settle", "standing", ids, [f"job-{n:05}" for n in range(1, 20)])


async def what_a_settlement_finds(house):
    ids, _, _ = await leased(house)
    return await house.plan("settle", "found", ids, NOW)


async def a_settlement(house):
    _, seqs, _ = await leased(house)
    n = len(seqs)
    times, no, none, zero = [NOW] * n, [False] * n, [None] * n, [0] * n
    columns = [seqs, [3] * n, zero, times, times, no, none, [""] * n, none, [""] * n, [1] * n, zero, [""] * n]
    return await house.plan("settle", "finish", *columns)


async def a_retry(house):
    _, seqs, _ = await leased(house)
    n = len(seqs)
    times, none, words = [NOW] * n, [None] * n, [""] * n
    return await house.plan(
        "settle",
        "retry",
        seqs,
        [1] * n,
        words,
        times,
        times,
        times,
        none,
        words,
        none,
        none,
        [0] * n,
        words,
        [False] * n,
    )


async def a_renewal(house):
    ids, _, tokens = await leased(house)
    return await house.plan("renew", "renew", ids, tokens, [""] * len(ids), 60_000, NOW)


async def what_an_enqueue_finds(house):
    return await house.plan("enqueue", "look", ["job-00001"], [f"new-{n}" for n in range(100)], NOW)


async def an_enqueue(house):
    n = 100
    words, none = [""] * n, [None] * n
    columns = [[f"new-{i}" for i in range(n)], ["job-00001"] * n, [NOW] * n, [2] * n, none, none, [2] * n, words, words]
    return await house.plan("enqueue", "add", *columns, [False] * n, [1] * n, words, [NOW] * n, [2] * n, NOW)


async def a_plain_enqueue(house):
    return await house.plan("enqueue", "plain", *some_plain(100))


def some_plain(n):
    same = ("job-00001", NOW, 2, 2, "", "", False, NOW)
    return "\n".join(f"new-{i}" for i in range(n)), "\n".join(["{}"] * n), *same, 10_000_000, "channel", "", NOW


async def a_single_plain_enqueue(house):
    same = ("job-00001", NOW, 2, 2, "", "", False, NOW)
    return await house.plan("enqueue", "one", "new-1", b"{}", *same, 10_000_000, "channel", "", NOW)


async def the_leaders_facts(house):
    return await house.plan("advance", "facts", [f"job-{n:05}" for n in range(1, 101)], 2, True, [], 1_000, NOW)


async def what_a_firing_asks_that_may_wait(house):
    return await house.plan("advance", "crowds", ["job-00001", "job-00002"], "waits for the previous run", 1_001, NOW)


async def what_the_leader_learns(house):
    ids, n = [f"job-{n:05}" for n in range(1, 101)], 100
    columns = [ids, [1] * n, [NOW] * n, [NOW] * n, [None] * n, [NOW] * n]
    await house.connection.execute(f"UPDATE {house.space.schema}.term SET number = 1, holder = 'n'")
    return await house.plan("advance", "learn", NOW, 2, 1, [1, 2, 3], *columns, ids, [2] * n)


async def what_is_due(house):
    return await house.plan("jobs", "due", -1, "", NOW + DAY, 100, 2)


async def a_cancel(house):
    return await house.plan("cancel", "found", [f"r{n}" for n in range(1, 101)])


async def leases_that_ran_out(house):
    await leased(house)
    return await house.plan("claim", "lost", NOW + DAY, 100, 2)


async def what_may_go(house):
    return await house.plan("prune", "any", 0, 0, 0, 0, 1_000_000_000, 1_000_000_000)


HOT = [
    a_look,
    a_claim,
    a_plain_settlement,
    what_a_settlement_locks_first,
    what_a_settlement_finds,
    a_settlement,
    a_retry,
    a_renewal,
    what_an_enqueue_finds,
    an_enqueue,
    a_plain_enqueue,
    a_single_plain_enqueue,
    the_leaders_facts,
    what_a_firing_asks_that_may_wait,
    what_the_leader_learns,
    what_is_due,
    a_cancel,
    leases_that_ran_out,
    what_may_go,
]


@pytest.mark.parametrize("is_kept", [False, True], ids=["free", "kept"])
@pytest.mark.parametrize("hot", HOT)
async def test_a_hot_statement_reads_as_much_of_a_full_house_as_of_a_small_one(house, hot, is_kept):
    """By index, though the planner is free, or must plan for any values.  The trees of a full house are higher, so
    that a row costs some pages more, and no more.
    """
    full, small = await hot(await house("big", is_kept=is_kept)), await hot(await house("small", is_kept=is_kept))

    assert walks(full) == []
    told = f"{buffers(full)} pages, and {buffers(small)} of the small one"
    assert buffers(full) <= buffers(small) + 15 * ROWS, told
    assert buffers(full) <= 30 * ROWS, told


async def test_a_claim_takes_its_plan_from_the_indexes_of_the_line(house):
    """The plan of the full house is that of the small one: the same indexes, in the same order."""

    def used(plan):
        names = [node["Index Name"] for node in nodes(plan) if "Index Name" in node]
        return [name for name in names if name.startswith(("queue", "runs"))]

    full, small = await a_claim(await house("big")), await a_claim(await house("small"))
    assert used(full)[0] == "queue_ready"
    assert used(full) == used(small)


async def test_a_lease_is_written_to_the_line_alone(house):
    """What a run is stays as it was: a delivery adds to no index of `runs`."""
    here = await house("big")
    plan = await a_claim(here)
    written = [node["Relation Name"] for node in nodes(plan) if node["Node Type"] == "ModifyTable"]
    assert sorted(written) == ["claims", "counters", "queue"]


async def test_plans_that_were_made_while_all_was_empty_serve_when_it_is_full(server):
    """A worker that waits from the first day keeps its plans: they must not walk over what came since."""
    store = PostgresStore(f"{server.url()}?schema=grown")
    await store.open()
    connection = await store.backend.database.connect()  # with the settings of the store's own
    here = House(connection, "grown")
    await connection.execute("SET plan_cache_mode = force_generic_plan")
    for name, (verb, statement, _) in KEPT.items():
        await connection.execute(f"PREPARE {name} AS {here.text(verb, statement)}")
        await connection.execute(f"EXPLAIN EXECUTE {name}({KEPT[name][2]})")
    for n in FEW_AND_MANY:
        assert await here.run("enqueue", "plain", *some_plain(n)) == []  # there is no job yet
    for statement in FILL.split(";\n"):
        if statement.strip():
            await connection.execute(
                statement.format(s="grown", now=NOW, day=DAY, jobs=100, ready=20_000, later=0, history=9)
            )

    for name, (_, _, args) in KEPT.items():
        rows = await connection.fetch(f"EXPLAIN (FORMAT JSON) EXECUTE {name}({args})")
        plan = json.loads(rows[0][0])[0]["Plan"]
        assert walks(plan) == [], name
        assert name != "take" or sorts(plan, "queue") == [], name
    await connection.execute("BEGIN")
    for n in FEW_AND_MANY:  # what a function does inside is seen by what it reads
        assert buffers(await here.plan("enqueue", "plain", *some_plain(n))) < 20 * n, n
    await connection.close()
    await store.close()


def _empty(n):
    return ", ".join(["'{}'"] * n)


KEPT = {
    "take": ("claim", "take", "'t', 1, 2, '{1,2,3}', 9, 100, 'n', 1, false, 1"),
    "done": ("settle", "done", f"{_empty(9)}, '', 'c', '', 2"),
    "found": ("settle", "found", "'{}', 1"),
    "finish": ("settle", "finish", _empty(13)),
    "retry": ("settle", "retry", _empty(13)),
    "renew": ("renew", "renew", f"{_empty(3)}, 1, 1"),
    "one": ("enqueue", "one", "'r', NULL, 'j', 1, 2, 2, '', '', false, 1, 9, 'c', '', 1"),
    "known": ("enqueue", "known", "'{}'"),
    "learn": ("advance", "learn", "1, 2, 1, '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}'"),
    "release": ("advance", "release", "'{}', 1, 2"),
    "crowds": ("advance", "crowds", "'{}', '', 1001, 1"),
}


LISTS = [
    RunFilter(),
    *[RunFilter(states=(state,)) for state in RunState if state is not RunState.CANCELLED],  # looked for among the done
    RunFilter(job_id="job-00007"),
    RunFilter(job_id="job-00007", states=(RunState.DONE,)),
    RunFilter(job_id="job-00007", states=(RunState.READY,)),
]


async def test_a_page_of_any_list_ends_early(server):
    """The first and a later page of each list, timed by what they read: the same in the full house."""
    await wait_until(lambda: _is_alone(server), "the end of other sessions, which count what they read as they end")
    store = PostgresStore(f"{server.url()}?schema=big")
    await store.open()
    try:
        for where in LISTS:
            before = await _pages(server)
            page = await store.list_runs(where, limit=50)
            if page.next is not None:
                await store.list_runs(where, after=page.next, limit=50)
            assert await _pages(server) - before < 5_000, where
        for place in ("run 0", "run 9000000"):
            before = await _pages(server)
            await store.dump(after=place, limit=100)
            assert await _pages(server) - before < 5_000, place
    finally:
        await store.close()


async def _is_alone(server):
    connection = await asyncpg.connect(server.url())
    others = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
    found = await connection.fetchval(others)
    await connection.close()
    return found == 0


async def _pages(server):
    connection = await asyncpg.connect(server.url())
    await connection.execute(
        "SELECT pg_stat_force_next_flush()"
    ) if connection.get_server_version().major >= 15 else None
    found = await connection.fetchval(
        "SELECT sum(heap_blks_hit + heap_blks_read + idx_blks_hit + idx_blks_read) FROM pg_statio_user_tables "
        "WHERE schemaname = 'big'"
    )
    await connection.close()
    return int(found)
