"""A store that was moved away while others have it open: they may look, and nobody changes anything there any more."""

import asyncio

import pytest
from msgspec.structs import replace

from pollux import Pollux, every
from pollux.app.move import Move, MoveEnd
from pollux.clock import FakeClock, SystemClock
from pollux.errors import StoreMoved
from pollux.events import StoreSealed
from pollux.model import DRAIN, Job, NotePut
from pollux.store.contract import RunFilter
from pollux.store.move_marks import MOVED_TO, MoveMark, begin_filling, seal, seal_for_good, unseal
from pollux.store.urls import open_store
from pollux.testing.conformance.records import whole_dump
from tests.acceptance.api_world import eventually, served
from tests.servers import postgres, redis

MARK = MoveMark("m", "redis://there", 1, ended_ms=2)
WORDS = r"this store was moved to redis://there, on .*; use that one, .*`pollux store unseal .* --force`"
REAL = ("sqlite", "redis", "postgres")

CHANGES = {  # every verb that changes something, as a program says it
    "enqueue": lambda app: app.enqueue("a"),
    "enqueue_many": lambda app: app.enqueue_many("a", [{}]),
    "accept": lambda app: app.operations.runs.accept("a"),
    "run_now": lambda app: app.run_now("a", anyway=True),
    "put_jobs": lambda app: app.put_jobs([Job(id="b", handler="fine")]),
    "delete_jobs": lambda app: app.operations.jobs.delete_jobs(["a"]),
    "move_jobs": lambda app: app.operations.versions.move_jobs(["a"], 3),
    "pause": lambda app: app.pause("a"),
    "resume": lambda app: app.resume(target="stopped"),
    "cancel": lambda app: app.cancel("a"),
    "cancel_runs": lambda app: app.operations.runs.cancel_runs(["waits"]),
    "revive": lambda app: app.operations.dead_letters.revive(["x"]),
    "drop": lambda app: app.operations.dead_letters.drop(["x"]),
    "drain_workers": lambda app: app.operations.workers.drain_workers(),
    "resume_workers": lambda app: app.operations.workers.resume_workers(),
    "trigger": lambda app: app.operations.workers.trigger(),
    "set_setting": lambda app: app.operations.settings.set_setting("pool.seats", 9),
    "create_token": lambda app: app.operations.tokens.create_token("viewer", name="x"),
    "load": lambda app: app.operations.storage.load([("job", {"id": "c", "handler": "fine"})]),
}


def url_of(kind, folder):
    match kind:
        case "sqlite":
            return f"sqlite:///{folder}/one.db"
        case "redis":
            return redis.own_url("sealed")
    return postgres.own_url("sealed")


async def left(app):
    """All that a store holds but what its nodes say of themselves."""
    return [each async for page in app.operations.storage.dump() for each in page.records if each[0] != "term"]


@pytest.mark.parametrize("kind", REAL)
async def test_every_verb_that_changes_something_is_refused_by_an_app_that_has_it_open(kind, tmp_path):
    url, clock = url_of(kind, tmp_path), FakeClock()
    app, store = Pollux(url, clock=clock), open_store(url)
    await app.open()
    await store.open()
    try:
        await app.put_jobs([Job(id="a", handler="fine")])
        await app.enqueue("a", id="waits", delay="1h")
        await app.pause(target="stopped")
        await seal(store, MARK)
        before = await left(app)
        for name, change in CHANGES.items():
            with pytest.raises(StoreMoved) as refused:
                await change(app)
            if name != "resume_workers":  # which has its own
                assert refused.match(WORDS), name
                assert refused.value.what.startswith("this store was moved to"), name
                assert refused.value.cure.startswith("use that one"), name
        with pytest.raises(StoreMoved, match=WORDS):
            await asyncio.to_thread(app.blocking.enqueue, "a")
        assert await left(app) == before
        assert [job.id for job in (await app.operations.jobs.list_jobs()).jobs] == ["a"], "one may look"
        [drain] = await app.operations.workers.drained_workers()
        assert str(drain) == "all workers are drained by a move of the store (it was moved to redis://there)"
        assert drain.ends == "use that store"

        await unseal(store)
        await app.enqueue("a")
    finally:
        await app.close()
        await store.close()


async def test_what_is_accepted_before_the_seal_is_carried_and_nothing_is_accepted_after_it():
    """An app that has the source open enqueues as fast as it can while the store is moved."""
    source, target = open_store("memory://"), open_store("memory://")
    app = Pollux(source.twin())
    await app.open()
    await source.open()
    await target.open()
    await app.put_jobs([Job(id="a", handler="fine")])
    accepted, is_busy = [], asyncio.Event()

    async def enqueue():
        while True:
            accepted.append((await app.enqueue("a")).id)
            if len(accepted) == 10:
                is_busy.set()
            await asyncio.sleep(0)

    enqueuing = asyncio.ensure_future(enqueue())
    await is_busy.wait()
    ends = MoveEnd(source, "one"), MoveEnd(target, "two")
    await Move(*ends, clock=SystemClock(), report=lambda _: None).run("m", actor="t", live=False, wait_ms=0)
    with pytest.raises(StoreMoved):
        await enqueuing

    assert {run.id for run in (await target.list_runs(RunFilter(), limit=1_000)).runs} == set(accepted)
    for store in (app, source, target):
        await store.close()


async def test_a_store_that_is_being_filled_is_not_written_to_either():
    source = open_store("memory://")
    app = Pollux(source.twin())
    await source.open()
    await app.open()
    await begin_filling(source, replace(MARK, ended_ms=None))
    with pytest.raises(StoreMoved, match="is being filled from redis://there"):
        await app.put_jobs([Job(id="a", handler="fine")])
    await app.close()


# over HTTP

REQUESTS = (
    ("POST", "/api/v2/jobs", {"id": "b", "handler": "fine"}),
    ("POST", "/api/v2/jobs/batch", {"jobs": [{"id": "b", "handler": "fine"}]}),
    ("PUT", "/api/v2/jobs/a", {"handler": "fine", "interval": "1h"}),
    ("DELETE", "/api/v2/jobs/extra", None),
    ("POST", "/api/v2/jobs/a/pause", None),
    ("POST", "/api/v2/jobs/a/cancel", None),
    ("POST", "/api/v2/jobs/a/force-run", None),
    ("POST", "/api/v2/runs/batch", {"job_id": "a", "runs": [{}]}),
    ("POST", "/api/v2/scheduler/drain", None),
    ("POST", "/api/v2/scheduler/trigger", None),
)


async def test_a_node_says_that_its_store_is_moved_and_then_that_it_was(tmp_path):
    """It claims nothing by then, so no claim tells it.  The drain before the seal is not the seal."""
    heard, url = [], url_of("sqlite", tmp_path)
    store = open_store(url)
    await store.open()
    app = Pollux(url)
    app.events.listen(StoreSealed, heard.append)
    async with app:

        async def is_drained():
            return app.runtime.dispatcher.is_drained

        async def is_told(count):
            return len(heard) == count

        await store.put_notes([NotePut(DRAIN, {"reason": "it is about to be moved"}, expires_ms=10**14)])
        await eventually(is_drained, "the node has not heard of the drain")
        await seal(store, replace(MARK, ended_ms=None))
        await eventually(lambda: is_told(1), "nothing was logged")
        await seal_for_good(store, MARK)
        await eventually(lambda: is_told(2), "its last word is of a move that is under way")
        drain, *_ = await app.operations.workers.drained_workers()
    await store.close()
    assert "is being moved to redis://there" in heard[0].words
    assert "was moved to redis://there" in heard[1].words
    assert (drain.reason, drain.cure, drain.ends) == ("it was moved to redis://there", "use that store", drain.cure)


@pytest.mark.parametrize("kind", REAL)
async def test_a_living_node_answers_changes_with_409_and_says_what_has_become_of_its_store(kind, tmp_path):
    url, heard = url_of(kind, tmp_path), []
    store = open_store(url)
    await store.open()
    try:
        async with served(url) as api:
            app = api.app
            app.events.listen(StoreSealed, heard.append)
            await api.ok("POST", "/api/v2/jobs", {"id": "a", "handler": "fine"})
            await api.ok("POST", "/api/v2/jobs", {"id": "extra", "handler": "fine", "interval": "1h"})
            await api.ok("POST", "/api/v2/jobs", {"id": "live", "handler": "fine"})
            await api.ok("POST", "/api/v2/scheduler/drain")
            await api.ok("POST", "/api/v2/jobs/live/force-run")
            await seal(store, MARK)

            async def is_refused():
                answer = await api("POST", "/api/v2/jobs", {"id": "b", "handler": "fine"})
                return answer if answer.status == 409 else None

            await eventually(is_refused, "the node has not heard of the seal")
            for method, path, body in REQUESTS:
                answer = await api(method, path, body, headers={"idempotency-key": f"{method} {path}"[:100]})
                assert answer.status == 409, (method, path, answer)
                told = answer.json
                assert told["title"] == "store moved"
                assert told["detail"].startswith("this store was moved to redis://there"), told
                assert "pollux store unseal" in told["cure"], told
            told = (await api("POST", "/api/v2/jobs/live/force-run")).json
            assert told["title"] == "store moved", "and not that it has a live run already"
            assert "pollux store unseal" in told["cure"], told
            assert (await api.ok("GET", "/api/v2/jobs"))["jobs"][0]["id"] == "a", "one may look"

            async def is_ill():
                health = await app.operations.status.health()
                found = {each.name: each for each in health.findings}["store"]
                return found if found.level == "unhealthy" else None

            found = await eventually(is_ill, "its health says nothing")
            assert found.seen.startswith("this store was moved to redis://there")
            assert found.cure.startswith("use that one")
            told = [each.name for each in (await app.operations.status.health()).findings]
            assert told == ["store", "polling", "loop", "handlers"], "the rest is a matter of the other store"

            async def is_told():
                return heard

            await eventually(is_told, "nothing was logged")
            assert len(heard) == 1, "once"
            await eventually(lambda: _all_drained(app), "its nodes say nothing")
    finally:
        await store.put_notes([NotePut(MOVED_TO)])
        await store.close()


async def _all_drained(app):
    return all(node.draining and not node.leads for node in await app.operations.status.nodes())


async def test_a_node_on_a_sealed_store_neither_plans_nor_claims(tmp_path):
    """What was due before the seal is fired afterwards by nobody."""
    url = f"sqlite:///{tmp_path}/one.db"
    store = open_store(url)
    await store.open()
    ran = []
    app = Pollux(url, name="api")

    @app.job(every("1s"))
    async def often(ctx):
        ran.append(ctx.run.id)

    async with app:

        async def has_run():
            return len(ran) > 0

        await eventually(has_run, "it never ran")
        await seal(store, MARK)

        async def is_quiet():
            is_led = app.runtime.leader.term is not None
            return await _all_drained(app) and not app.runtime.status().busy and not is_led

        await eventually(is_quiet, "it goes on")
        fired = app.runtime.timekeeper.fired
        turns = app.runtime.timekeeper.turns
        app.runtime.timekeeper.trigger()

        async def has_turned():
            return app.runtime.timekeeper.turns > turns

        await eventually(has_turned, "it stands still")
        assert app.runtime.timekeeper.fired == fired
        assert app.runtime.leader.term is None
    assert [kind for kind, _ in await whole_dump(store)].count("job") == 1
    await store.close()
