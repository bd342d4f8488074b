"""A program that enqueues what it declares before any node has started: the first call adds the definition."""

import asyncpg
import pytest

from pollux import Pollux, every
from pollux.errors import NotFound
from pollux.model import Job, RunState
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
    return {job.id: job for job in (await app.list_jobs(JobFilter(), limit=PAGE_MAX)).jobs}


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
    await newer.delete_jobs(["stock"])
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
    await producer.delete_jobs(["mail"])
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
    assert "start one" in why.cure
    with pytest.raises(NotFound):
        await producer.why("other")
    assert await stored(producer) == {}
    await producer.enqueue("stock")
    assert "no node lives" in (await producer.why("stock")).reason, "its run waits for one"


async def test_the_definition_is_on_record(producer):
    named = producer.acting_as("ann")
    await named.enqueue("mail", {"to": "bob"})
    actions = [(line.actor, line.action, line.subject) for line in (await producer.audit()).lines]
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
