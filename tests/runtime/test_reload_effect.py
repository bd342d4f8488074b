"""The effect of a reload: at once, after a restart, in the history, and on the other nodes."""

import asyncio

import pytest

from pollux import Pollux
from pollux.errors import InvalidConfig, InvalidInput, StoreError, StoreTimeout
from pollux.events import FileDiffers, ReloadRefused
from pollux.model import RunState
from pollux.store.contract import RunFilter
from pollux.testing.faults import FaultyStore
from tests.runtime.fakes import Heard
from tests.runtime.reload_world import FIRST, SECOND, WORK, all_jobs, an_app, planned, truly
from tests.runtime.test_app import until

# what is in force


async def test_what_is_in_force_is_told_although_the_file_says_otherwise(here):
    async with an_app("sqlite:///p.db", grace="7s") as app:
        (here / "p.yaml").write_text("pool: {seats: 9, lease: 1m}\njobs: [{id: a}]\n")
        with pytest.raises(InvalidConfig):
            await app.operations.config_file.reload()
        told = await app.operations.config_file.file_in_force()
        values = {each.option: (each.value, each.origin) for each in told.options}
        assert (told.is_there, told.path) == (False, str(here / "p.yaml"))
        assert told.refused[0].startswith("p.yaml:2:8")
        assert values["pool.seats"] == ("3", "p.yaml:2")
        assert values["pool.grace"] == ("7s", "argument")
        (here / "p.yaml").write_text("pool: {seats: 9, lease: 1m}\n")
        await app.operations.config_file.reload()
        await app.operations.settings.set_setting("pool.seats", 20)
        told = await app.operations.config_file.file_in_force()
        values = {each.option: each.value for each in told.options}
        assert (told.is_there, told.refused) == (True, ())
        assert (values["pool.seats"], values["pool.lease"]) == ("20", "30s"), "the lease changes with a restart"
        assert [str(change) for change in told.needs_restart] == ["pool.lease 30s -> 1m"]


async def test_a_file_that_was_refused_is_a_finding_of_health_until_it_is_mended(here):
    async with an_app() as app:

        async def finding():
            app.watch._last = None  # a look serves for a second
            return next(each for each in (await app.operations.status.health()).findings if each.name == "file")

        assert (await finding()).level == "healthy"
        (here / "p.yaml").unlink()
        refused = Heard(app.events, ReloadRefused)
        for _ in range(2):
            with pytest.raises(InvalidConfig):
                await app.operations.config_file.reload()
        assert len(refused.all) == 1
        assert "the file was removed" in (await finding()).seen
        (here / "p.yaml").write_text(FIRST)
        await app.operations.config_file.reload()
        assert (await finding()).level == "healthy"


async def test_seats_and_history_change_at_once_and_the_rest_is_named_until_the_restart(here):
    async with an_app() as app:
        (here / "p.yaml").write_text("pool: {seats: 9, grace: 1s, lease: 1m}\nleader: {ttl: 20s}\nhistory: {keep: 7}\n")

        answer = await app.operations.config_file.reload()

        assert [str(change) for change in answer.options] == [
            "pool.seats 3 -> 9",
            "pool.grace 25s -> 1s",
            "history.keep 100 -> 7",
        ]
        assert [change.path for change in answer.needs_restart] == ["pool.lease", "leader.ttl"]
        runtime = app.runtime
        assert (runtime.pool.seats, runtime.options.grace_ms, runtime.pruner.options.keep_per_job) == (9, 1_000, 7)
        assert (runtime.options.lease_ms, runtime.leader.ttl_ms) == (30_000, 15_000)
        again = await app.operations.config_file.reload()
        assert (again.options, again.lines) == ((), ())
        assert [change.path for change in again.needs_restart] == ["pool.lease", "leader.ttl"], "not forgotten"
    async with an_app() as app:
        assert (await app.operations.config_file.reload()).needs_restart == ()
        assert app.runtime.leader.ttl_ms == 20_000


async def test_an_argument_still_wins_after_a_reload(here):
    async with an_app(seats=4) as app:
        (here / "p.yaml").write_text("pool: {seats: 9}\n")
        answer = await app.operations.config_file.reload()
        assert (answer.options, app.runtime.pool.seats) == ((), 4)


async def test_commands_can_be_allowed_while_it_runs(here):
    async with an_app() as app:
        (here / "p.yaml").write_text('allow_exec: true\njobs: [{id: x, exec: ["true"], once: true}]\n')
        answer = await app.operations.config_file.reload()
        assert [str(change) for change in answer.options] == ["pool.seats 3 -> 10", "allow_exec false -> true"]

        async def done():
            return (await app.operations.runs.list_runs(RunFilter(states=(RunState.DONE,), job_id="x"))).runs

        assert await until(done, "it ran")
        (here / "p.yaml").write_text("allow_exec: false\n")
        assert [str(change) for change in (await app.operations.config_file.reload()).needs_restart] == [
            "allow_exec true -> false"
        ]


async def test_ten_at_once_go_one_after_the_other_and_the_last_wins(here):
    """The first is held up in the middle of its writing; the others have newer texts, and must not overtake it."""
    app = an_app()
    faulty = app._store = FaultyStore(app.backend)
    async with app:
        await planned(app, "a", "b")
        gate = asyncio.Event()
        faulty.delay("put_jobs", gate)
        calls = []
        for n in range(10):
            (here / "p.yaml").write_text(f'jobs: [{{id: n{n}, python: "reload_work:one", interval: 1h}}]\n')
            calls.append(asyncio.create_task(app.operations.config_file.reload()))
            await truly(lambda: faulty.struck, "the first is in the middle of it")
        await asyncio.sleep(0.1)
        assert not any(call.done() for call in calls)
        gate.set()

        answers = await asyncio.gather(*calls)

        assert set(await all_jobs(app)) == {"n9"}
        assert {answer.digest for answer in answers[1:]} == {app.reloader.config.digest}


async def test_a_reload_stands_in_the_audit_log_with_who_and_what(here):
    async with an_app() as app:
        (here / "p.yaml").write_text(SECOND)
        await app.operations.as_actor("ann").config_file.reload()
        await app.operations.as_actor("ann").config_file.reload()
        lines = [line for line in (await app.operations.audit.list_audit()).lines if line.action == "reload"]
    assert [(line.actor, line.subject) for line in lines] == [("ann", "p.yaml")], "what changed nothing is not told"
    assert lines[0].detail == "jobs: 1 added, 1 changed, 0 removed, 1 the same; pool.seats 3 -> 5"


async def test_a_reload_whose_answer_is_lost_is_on_record_once(here):
    """The line is in the log with the first job that is written: asked again there is nothing left to tell."""
    app = an_app()
    faulty = app._store = FaultyStore(app.backend)
    async with app:
        await planned(app, "a", "b")
        (here / "p.yaml").write_text(FIRST + '  - {id: c, python: "reload_work:one", interval: 1h}\n')
        faulty.lose_answer("put_jobs")
        with pytest.raises(StoreTimeout):
            await app.operations.as_actor("ann").config_file.reload()
        for _ in range(2):
            lines = [line for line in (await app.operations.audit.list_audit()).lines if line.action == "reload"]
            assert [(line.actor, line.detail) for line in lines] == [
                ("ann", "jobs: 1 added, 0 changed, 0 removed, 2 the same")
            ]
            assert "c" in await all_jobs(app)
            await app.operations.as_actor("ann").config_file.reload()
        assert "log" not in faulty.calls


async def test_a_worker_takes_handlers_and_seats_and_writes_no_job(here):
    async with an_app("sqlite:///p.db") as leader, an_app("sqlite:///p.db", plans=False) as worker:
        before = await planned(leader, "a", "b")
        (here / "p.yaml").write_text(SECOND)
        answer = await worker.operations.config_file.reload()
        assert (answer.added, answer.changed, worker.runtime.pool.seats) == (0, 0, 5)
        assert "reload_work:two" in worker.runtime.registry.names()
        assert await all_jobs(leader) == before


async def test_without_a_file_there_is_nothing_to_read_again():
    async with Pollux("memory://") as app:
        with pytest.raises(InvalidInput, match="there is no file to read again"):
            await app.operations.config_file.reload()


async def test_a_store_that_fails_meanwhile_is_tried_again(here):
    app = an_app()
    faulty = FaultyStore(app.backend)
    app._store = faulty
    async with app:
        await planned(app, "a", "b")
        (here / "p.yaml").write_text(SECOND)
        faulty.fail("put_jobs", StoreError("not now"))
        app.settings_watcher.read_again("file watch")
        await planned(app, "a", "b", "c")
        assert "put_jobs" in faulty.struck
        assert app.runtime.pool.seats == 5


# several nodes


async def test_a_node_with_an_older_text_does_not_undo_what_another_applied(here):
    (here / "old").mkdir()
    (here / "old" / "p.yaml").write_text(FIRST)
    (here / "old" / "reload_work.py").write_text(WORK)
    async with an_app("sqlite:///p.db", "old/p.yaml") as older, an_app("sqlite:///p.db") as newer:
        await planned(newer, "a", "b")
        told = Heard(older.events, FileDiffers)
        (here / "p.yaml").write_text(SECOND)
        await newer.operations.config_file.reload()
        await truly(lambda: told.all, "the older one hears of it")
        after = await planned(newer, "a", "b", "c")

        older._registrar._looks = 2
        await older._registrar.turn()
        await older._registrar.turn()

        assert await all_jobs(newer) == after
        assert [(event.source, event.node) for event in told.all] == [("file:p.yaml", newer.node_id)]
        (here / "old" / "p.yaml").write_text(SECOND)
        assert (await older.operations.config_file.reload()).lines == ("~ pool.seats 3 -> 5",)


async def test_a_reload_on_one_node_is_heard_by_all_that_have_the_file(here):
    async with an_app("sqlite:///p.db") as one, an_app("sqlite:///p.db") as other:
        await planned(one, "a", "b")
        (here / "p.yaml").write_text(SECOND)
        await one.operations.config_file.reload()
        await truly(lambda: other.runtime.pool.seats == 5, "the other one has read it, too")
        assert "reload_work:two" in other.runtime.registry.names()
