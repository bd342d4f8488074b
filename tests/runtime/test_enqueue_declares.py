"""A program that enqueues what it declares before any node has started: the first call adds the definition."""

import asyncio
import sys
from types import ModuleType

import asyncpg
import pytest

from pollux import Pollux, every
from pollux.app.declarations import RELEASE_KNOWN_MS
from pollux.clock import FakeClock
from pollux.errors import NotFound
from pollux.model import START, Job, RunState
from pollux.store.contract import PAGE_MAX, JobFilter
from tests.runtime.test_app import finished
from tests.servers import postgres, redis


@pytest.fixture(params=["sqlite", "redis", "postgres"])
def url(request, tmp_path):
    match request.param:
        case "redis":
            return redis.own_url("producer")
        case "postgres":
            return postgres.own_url("producer")
    return f"sqlite:///{tmp_path}/p.db"


async def home(ctx): ...


def a_shop(url, *, seconds=3_600, release=0, **options):
    """The same program as a producer and as a node."""
    app = Pollux(url, name="shop", release=release, **options)

    @app.job(every(f"{seconds}s"), timeout="5s")
    async def stock(ctx, depth: int = 1):
        return depth

    @app.job
    async def mail(ctx, to: str):
        return to

    return app


@pytest.fixture
async def producer(url):
    app = a_shop(url)
    await app.open()
    yield app
    await app.close()


async def stored(app):
    return {job.id: job for job in (await app.operations.jobs.list_jobs(JobFilter(), limit=PAGE_MAX)).jobs}


async def test_the_first_call_adds_the_definition_and_the_run_ends_once_a_node_starts(producer, url):
    run = await producer.enqueue("mail", {"to": "ann"})
    forced = await producer.run_now("stock")
    ids = await producer.enqueue_many("stock", [{"depth": n} for n in range(3)])

    jobs = await stored(producer)
    assert set(jobs) == {"mail", "stock"}
    assert [(job.source, job.revision, job.declared) for job in jobs.values()] == [("code:shop", 1, True)] * 2
    async with a_shop(url) as node:
        assert (await finished(node, run.id)).result == "ann"
        assert (await finished(node, forced.id)).state is RunState.DONE
        assert sorted([(await finished(node, each)).result for each in ids]) == [0, 1, 2]
        assert {job.revision for job in (await stored(node)).values()} == {1}, "the node found it as it declares it"


async def test_what_others_declare_is_not_added_and_only_the_job_that_is_asked_for_is(producer):
    with pytest.raises(NotFound, match="no job 'other'"):
        await producer.enqueue("other")
    with pytest.raises(NotFound, match="no job 'made'"):
        await producer.enqueue(Job(id="made", handler="stock"))
    assert await stored(producer) == {}
    await producer.enqueue("mail", {"to": "ann"})
    assert set(await stored(producer)) == {"mail"}


def test_the_blocking_calls_do_so_too(url):
    app = a_shop(url)
    run = app.blocking.enqueue("mail", {"to": "ann"})
    assert len(app.blocking.enqueue_many("stock", [None, None])) == 2
    assert app.blocking.get_run(run.id).state is RunState.READY
    assert app.blocking.run_now("mail", {"to": "bob"}, anyway=True).job_id == "mail"
    app.blocking.close()


async def test_a_definition_that_is_there_is_not_changed(url):
    async with a_shop(url, seconds=60):
        pass
    app = a_shop(url, seconds=7)
    await app.open()
    before = await stored(app)
    await app.enqueue("stock")
    await app.run_now("stock", anyway=True)
    assert await stored(app) == before
    assert before["stock"].schedule.every_ms == 60_000
    await app.close()


async def test_what_a_newer_release_dropped_is_not_brought_back(url):
    async with a_shop(url, release=1) as first:
        pass
    newer = Pollux(url, name="shop", release=2)

    @newer.job
    async def mail(ctx, to: str): ...

    async with newer:
        pass
    await newer.open()
    await newer.operations.jobs.delete_jobs(["stock"])
    first = a_shop(url, release=1)
    await first.open()
    for ask in (first.enqueue, first.run_now):
        with pytest.raises(NotFound, match="release 2 of code:shop is known"):
            await ask("stock")
    assert set(await stored(first)) == {"mail"}
    await first.close()
    await newer.close()


async def test_a_job_that_is_deleted_after_it_was_found_or_added_stays_away(producer, url):
    async with a_shop(url) as node:
        for app in (producer, node):
            await app.enqueue("mail", {"to": "ann"})
    await producer.operations.jobs.delete_jobs(["mail"])
    assert set(await stored(producer)) == {"stock"}
    for _ in range(2):
        with pytest.raises(NotFound, match="no job 'mail'"):
            await producer.enqueue("mail", {"to": "ann"})
    with pytest.raises(NotFound, match="no job 'mail'"):
        await producer.run_now("mail", {"to": "ann"})


async def test_why_says_that_nothing_was_written_yet_and_writes_nothing(producer):
    why = await producer.why("stock")
    assert (why.answer, why.is_held) == ("stranded", True)
    assert why.reason == "it is declared here and not in the store yet: no node of code:shop has started"
    assert why.cure.startswith("start one; "), "no module has a name for this app"
    with pytest.raises(NotFound):
        await producer.why("other")
    assert await stored(producer) == {}
    await producer.enqueue("stock")
    assert "no node lives" in (await producer.why("stock")).reason, "its run waits for one"


async def test_cures_name_how_the_app_is_started_before_any_node_was(producer, monkeypatch):
    """By the name that the module of its jobs has for it; a node that starts tells how it was started itself."""
    monkeypatch.setitem(globals(), "SHOP", producer)
    command = f"pollux serve --app {__name__}:SHOP"
    assert f"start one (`{command}`" in (await producer.why("stock")).cure
    run = await producer.enqueue("stock")
    for name in (run.id, "stock"):
        assert command in (await producer.why(name)).cure
    [nodes] = [each for each in (await producer.operations.status.health()).findings if each.name == "nodes"]
    assert command in nodes.cure


class Unbound:
    """As `flask.request` outside of a request: each look at it raises."""

    __slots__ = ()

    def __getattr__(self, name):
        raise RuntimeError("working outside of request context")


async def test_the_name_of_an_app_is_found_beside_an_object_that_refuses_to_be_looked_at(producer, monkeypatch):
    monkeypatch.setitem(globals(), "REQUEST", Unbound())
    monkeypatch.setitem(globals(), "SHOP", producer)
    await producer.enqueue("stock")
    assert f"pollux serve --app {__name__}:SHOP" in (await producer.why("stock")).cure


async def test_a_script_in_a_deleted_folder_enqueues_all_the_same(producer, tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    monkeypatch.setattr(sys, "argv", ["shop.py"])
    script = ModuleType("__main__")
    script.SHOP = producer
    monkeypatch.setitem(sys.modules, "__main__", script)
    monkeypatch.setattr(producer._registry.get("stock").call, "__module__", "__main__")
    assert (await producer.why("stock")).cure.startswith("start one; ")
    await producer.enqueue("stock")
    assert set(await stored(producer)) == {"stock"}


async def test_a_producer_does_not_write_over_how_a_node_was_started(url, monkeypatch):
    node = Pollux(url, name="shop")
    node.job(id="older")(home)
    node.program = "python shop.py"
    async with node:
        pass
    producer = a_shop(url)
    monkeypatch.setitem(globals(), "SHOP", producer)
    await producer.open()
    await producer.enqueue("mail", {"to": "ann"})
    assert [note.value["program"] for note in await producer._store.notes(START)] == ["python shop.py"]
    await producer.close()


async def test_the_definition_is_on_record(producer):
    named = producer.operations.as_actor("ann")
    await named.runs.enqueue("mail", {"to": "bob"})
    actions = [(line.actor, line.action, line.subject) for line in (await producer.operations.audit.list_audit()).lines]
    assert ("ann", "put", "mail") in actions


@pytest.mark.parametrize("isolation", ["read_committed", "repeatable_read", "serializable"])
async def test_inside_a_transaction_of_ones_own_the_definition_stays_and_the_run_goes_with_it(isolation):
    """A snapshot that is older than the definition cannot see it: the first call comes before the snapshot."""
    app = a_shop(postgres.own_url("producer"))
    await app.open()
    connection = await asyncpg.connect(postgres.shared_url())
    try:
        undo = connection.transaction(isolation=isolation)
        await undo.start()
        undone = await app.enqueue("mail", {"to": "ann"}, connection=connection)
        await undo.rollback()
        assert set(await stored(app)) == {"mail"}
        with pytest.raises(NotFound):
            await app.get_run(undone.id)
        async with connection.transaction(isolation=isolation):
            ids = await app.enqueue_many("stock", [None, None], connection=connection)
        assert [(await app.get_run(each)).state for each in ids] == [RunState.READY] * 2
    finally:
        await connection.close()
        await app.close()


async def test_many_who_ask_first_at_the_same_moment_all_get_their_runs(producer):
    asked = [producer.enqueue("mail", {"to": str(n)}) for n in range(20)]
    forced = [producer.run_now("stock", anyway=True) for _ in range(20)]
    runs = await asyncio.gather(*asked, *forced)
    assert len({run.id for run in runs}) == 40
    assert {job.revision for job in (await stored(producer)).values()} == {1}


async def test_one_who_looked_before_another_added_the_job_gets_its_run(tmp_path, monkeypatch):
    """The definition comes between the first look of a caller and its answer."""
    app = a_shop(f"sqlite:///{tmp_path}/p.db")
    await app.open()
    looked, added = asyncio.Event(), asyncio.Event()
    enqueue = app.backend.enqueue

    async def first_look(runs, **options):
        answers = await enqueue(runs, **options)
        if not looked.is_set():
            looked.set()
            await added.wait()
        return answers

    monkeypatch.setattr(app.backend, "enqueue", first_look)
    slow = asyncio.create_task(app.enqueue("mail", {"to": "ann"}))
    await looked.wait()
    await app.enqueue("mail", {"to": "bob"})
    added.set()
    assert (await slow).state is RunState.READY
    await app.close()


async def test_the_first_calls_of_many_jobs_look_at_their_source_once(tmp_path):
    app = Pollux(f"sqlite:///{tmp_path}/p.db", clock=FakeClock())

    @app.handler
    async def mail(ctx): ...

    names = [app.add("mail", id=f"mail-{n}").id for n in range(50)]
    await app.open()
    for name in names[:10]:
        await app.enqueue(name)
    await asyncio.gather(*(app.enqueue(name) for name in names[10:]))
    assert app.backend.call_stats["list_jobs"].calls == 1
    await app.close()


async def test_a_newer_release_that_comes_later_is_seen_a_moment_later(url):
    clock = FakeClock()
    producer = a_shop(url, release=1, clock=clock)
    await producer.open()
    await producer.enqueue("mail", {"to": "ann"})
    newer = Pollux(url, name="shop", release=2)
    newer.job(id="mail")(lambda to: to)
    async with newer:
        await clock.advance(RELEASE_KNOWN_MS)
        with pytest.raises(NotFound, match="release 2 of code:shop is known"):
            await producer.enqueue("stock")
    await producer.close()
