"""Full disks: new work is refused, running work is recorded, and the store recovers by itself."""

import asyncio
import tempfile
from pathlib import Path

import apsw
import pytest
from msgspec.structs import replace

from pollux import Pollux, every
from pollux.app.process import has_started
from pollux.errors import StoreFull
from pollux.model import Cause, Done, Firing, Outcome, Overlap, Plan, run_of
from pollux.observe.health import DEGRADED
from pollux.store.contract import Answer, JobPut, Renewal, Settlement
from pollux.store.sqlite import SqliteStore, disk_space
from tests.store.children import JOB, some_runs
from tests.store.disks import can_mount, small_disk
from tests.store.test_sqlite_twins import recount

with tempfile.TemporaryDirectory() as _folder:
    KINDS = ("quota", "tmpfs") if can_mount(Path(_folder) / "try") else ("quota",)


@pytest.fixture(params=KINDS)
def disk(request, tmp_path):
    with small_disk(tmp_path, request.param) as disk:
        yield disk


@pytest.fixture
async def store(disk):
    store = SqliteStore(disk.file)
    await store.open()
    await store.put_jobs([JobPut(JOB)])
    yield store
    await store.close()


async def enqueue_until_full(store, first: int = 1_000) -> tuple[int, StoreFull]:
    """How many went in until one was refused, and in which words."""
    for number in range(first, first + 100_000, 20):
        try:
            await store.enqueue(some_runs(number, 20))
        except StoreFull as full:
            return number - first, full
    raise AssertionError("the disk was never full")


async def until_accepted(call):
    """It goes on by itself once there is room."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await call()
            except StoreFull:
                await asyncio.sleep(0.05)


async def settle_until_full(store, outcomes) -> None:
    """What little room the log has left is used up first."""
    for number in range(1_000):
        await store.settle(outcomes)
        await store.elect(f"leader-{number}", ttl_ms=1)


def settled(runs, now_ms):
    return [Settlement(run.id, run.token, Done(), Outcome(now_ms, now_ms, result={"n": 1})) for run in runs]


async def home(ctx): ...


def ballast(disk) -> Path:
    return disk.file.with_name("pollux.db.ballast")


async def check_sound(store, disk) -> None:
    counts = await store.counts()
    assert recount(disk.file) == tuple(getattr(counts, field) for field in counts.__struct_fields__)
    connection = apsw.Connection(str(disk.file), flags=apsw.SQLITE_OPEN_READONLY)
    assert connection.pragma("integrity_check") == "ok"
    connection.close()


async def test_new_work_is_refused_with_the_cure_and_what_runs_is_recorded(store, disk):
    await store.enqueue(some_runs(0, 100))
    claimed = await store.claim(node="n", token="t", limit=60, lease_ms=60_000)
    ballast = disk.file.with_name("pollux.db.ballast")
    assert ballast.stat().st_size == disk_space.BALLAST_BYTES
    disk.fill()
    accepted, full = await enqueue_until_full(store)

    assert "is full" in str(full)
    assert "make at least 5 MB of room" in str(full)
    assert ballast.stat().st_size == 0, "the ballast was let go"
    with pytest.raises(StoreFull):
        await store.put_jobs([JobPut(JOB), JobPut(replace(JOB, id="other"))])
    for begin in range(0, 60, 10):
        some = claimed.runs[begin : begin + 10]
        answers = await store.renew([Renewal(run.id, run.token) for run in some], lease_ms=60_000)
        assert [renewed.answer for renewed in answers] == [Answer.OK] * 10
        assert await store.settle(settled(some, claimed.now_ms)) == [Answer.OK] * 10
    more = await store.claim(node="n", token="u", limit=20, lease_ms=60_000)
    assert len(more.runs) == 20, "there is room to begin what is there"
    counts = await store.counts()
    assert counts.ready == 100 - 60 - 20 + accepted
    assert counts.jobs == 1
    await check_sound(store, disk)


async def test_the_plan_of_the_leader_goes_through(store, disk):
    term = await store.elect("leader", ttl_ms=60_000)
    disk.fill()
    await enqueue_until_full(store)
    [job] = await store.get_jobs(["job"])
    due_ms = term.until_ms
    firing = Firing(
        run_of(job, due_ms, Cause.SCHEDULE), revision=job.revision, next_due_ms=due_ms + 1, overlap=Overlap.ALLOW
    )

    advanced = await store.advance(term.number, Plan(firings=(firing,)))
    assert (advanced.answer, advanced.firings) == (Answer.OK, (Answer.OK,))


async def test_it_goes_on_by_itself_when_there_is_room_and_the_ballast_is_back(store, disk):
    disk.fill()
    await enqueue_until_full(store)
    disk.make_room()
    [answer] = await until_accepted(lambda: store.enqueue(some_runs(500_000, 1)))

    assert answer.answer is Answer.OK
    assert disk.file.with_name("pollux.db.ballast").stat().st_size == disk_space.BALLAST_BYTES
    await check_sound(store, disk)


async def test_what_is_short_is_told_while_it_is(store, disk):
    assert await store.problems() == ()
    disk.fill()
    await enqueue_until_full(store)
    [problem] = await store.problems()
    assert problem.startswith(f"the disk under {disk.file} is full: no new work is taken in")
    disk.fill()  # somebody else takes the ballast's bytes
    [problem] = await store.problems()
    assert "nothing new is taken in or begun" in problem
    disk.make_room()
    await until_accepted(lambda: store.enqueue(some_runs(500_000, 1)))
    assert await store.problems() == ()


async def test_health_names_a_full_disk(disk):
    app = Pollux(f"sqlite:///{disk.file}")
    async with app:
        await app.put_jobs([JOB])
        disk.fill()
        await enqueue_until_full(app.backend)
        finding = (await app.operations.status.health()).findings[0]
        document = await app.operations.status.health_document()
    assert (finding.name, finding.level) == ("store", DEGRADED)
    assert finding.seen.startswith(f"the disk under {disk.file} is full")
    assert finding.cure == "make at least 5 MB of room, then it goes on by itself"
    assert "is full" in document["store"]["trouble"]


@pytest.mark.parametrize("leave", [0, 400_000], ids=["not even opened", "opened"])
async def test_a_node_that_starts_on_a_full_disk_waits_and_starts_once_there_is_room(disk, leave):
    """Whether the store cannot be opened or its jobs cannot be written: it says so, and goes on by itself."""
    before = SqliteStore(disk.file)
    await before.open()
    await before.close()
    ballast(disk).write_bytes(b"")  # as one leaves it that met the full disk itself
    disk.fill(leave=leave)
    app, stop, said = Pollux(f"sqlite:///{disk.file}"), asyncio.Event(), asyncio.Queue()
    app.add(app.handler(home), every("1h"))
    starting = asyncio.create_task(has_started(app, stop, said.put_nowait))
    words = await asyncio.wait_for(said.get(), 60)
    assert f"the disk under {disk.file} is full" in words
    assert words.endswith("; trying again until there is room, Ctrl-C stops")
    disk.make_room()
    assert await asyncio.wait_for(starting, 60)
    try:
        assert (await app.operations.jobs.get_job("home")).id == "home"
    finally:
        await app.close()


async def test_when_the_ballast_is_used_up_nothing_is_begun_and_the_outcome_can_be_told_later(store, disk):
    await store.enqueue(some_runs(0, 40))
    claimed = await store.claim(node="n", token="t", limit=20, lease_ms=60_000)
    disk.fill()
    await enqueue_until_full(store)
    disk.fill()  # somebody else takes the ballast's bytes
    outcomes = settled(claimed.runs, claimed.now_ms)
    with pytest.raises(StoreFull, match="taken in or begun"):
        await store.claim(node="n", token="u", limit=5, lease_ms=60_000)
    with pytest.raises(StoreFull, match="make at least"):
        await settle_until_full(store, outcomes)
    assert (await store.get_jobs(["job"]))[0] is not None, "reading goes on"

    disk.make_room()
    answers = await until_accepted(lambda: store.settle(outcomes))
    assert set(answers) <= {Answer.OK, Answer.ALREADY}
    again = await until_accepted(lambda: store.claim(node="n", token="u", limit=5, lease_ms=60_000))
    assert len(again.runs) == 5
    await check_sound(store, disk)


async def test_the_last_quarter_of_the_ballast_belongs_to_what_has_begun(store, disk):
    """A claim could still be written; then there might be no room for how it ends."""
    await store.enqueue(some_runs(0, 40))
    claimed = await store.claim(node="n", token="t", limit=20, lease_ms=60_000)
    term = await store.elect("leader", ttl_ms=60_000)
    disk.fill()
    await enqueue_until_full(store)
    disk.fill(leave=disk_space.BALLAST_BYTES // 4 - 100_000)
    with pytest.raises(StoreFull, match="taken in or begun"):
        await store.claim(node="n", token="u", limit=5, lease_ms=60_000)
    with pytest.raises(StoreFull, match="taken in or begun"):
        await store.advance(term.number, Plan(consumed=(1,)))

    assert await store.settle(settled(claimed.runs, claimed.now_ms)) == [Answer.OK] * 20
    assert (await store.elect("leader", ttl_ms=60_000)).number == term.number


async def test_settling_drains_for_long_because_the_log_is_used_again(store, disk):
    """Hundreds of commits of a few pages each are more than the ballast: only a log that begins anew can hold them."""
    await store.enqueue(some_runs(0, 250))
    claimed = await store.claim(node="n", token="t", limit=250, lease_ms=60_000)
    disk.fill()
    await enqueue_until_full(store)
    for run in claimed.runs:
        assert await store.settle(settled([run], claimed.now_ms)) == [Answer.OK]
        await store.renew([Renewal(run.id, run.token)], lease_ms=60_000)

    assert (await store.counts()).leased == 0


async def test_a_second_process_sees_that_the_ballast_is_gone(store, disk):
    """The file is the mark: a handle that never met the full disk refuses new work, too."""
    other = SqliteStore(disk.file)
    await other.open()
    disk.fill()
    await enqueue_until_full(store)
    try:
        with pytest.raises(StoreFull):
            await other.enqueue(some_runs(900_000, 1))
    finally:
        await other.close()


async def test_a_stopped_store_can_be_opened_and_used_on_a_disk_that_is_full_by_then(disk):
    """The last one to leave keeps a few bytes for the log and the shared memory of the next."""
    store = SqliteStore(disk.file)
    await store.open()
    await store.put_jobs([JobPut(JOB)])
    await store.close()
    disk.fill()
    again = SqliteStore(disk.file)
    await again.open()
    try:
        assert (await again.get_jobs(["job"]))[0] is not None
        assert (await again.elect("leader", ttl_ms=1_000)).number == 1
        with pytest.raises(StoreFull):
            await again.enqueue(some_runs(0, 1))
    finally:
        await again.close()


async def test_a_store_on_a_full_disk_can_be_opened_and_read(store, disk):
    await store.enqueue(some_runs(0, 10))
    disk.fill()
    await enqueue_until_full(store)
    disk.fill()
    late = SqliteStore(disk.file)
    await late.open()
    try:
        assert (await late.get_jobs(["job"]))[0] is not None
        with pytest.raises(StoreFull):
            await late.enqueue(some_runs(900_000, 1))
    finally:
        await late.close()
