"""A file that is read again: what differs is written, what is wrong changes nothing, and nobody undoes it."""

import asyncio
import gc
import os
import signal
import stat
import sys

import pytest

from pollux import Pollux, every
from pollux.app.declared import Declared
from pollux.app.process import OWNS_PROCESS
from pollux.app.reload import BY_SIGNAL
from pollux.config import load_config
from pollux.config.versions import KEPT_MAX, Versions
from pollux.errors import Conflict, InvalidConfig, InvalidInput, NotFound, StoreError, StoreTimeout
from pollux.events import ConfigReloaded, FileDiffers, ReloadRefused
from pollux.model import Job, RunState
from pollux.store.contract import RunFilter
from pollux.testing.faults import FaultyStore
from tests.runtime.fakes import Heard
from tests.runtime.test_app import PATIENCE, until

WORK = """
async def one(ctx): return 1
async def two(ctx): return 2
"""
FIRST = """
pool: {seats: 3}
jobs:
  - {id: a, python: "reload_work:one", interval: 1h}
  - {id: b, python: "reload_work:one", interval: 1h}
"""
SECOND = """
pool: {seats: 5}
jobs:
  - {id: a, python: "reload_work:one", interval: 1h}
  - {id: b, python: "reload_work:two", interval: 2h}
  - {id: c, python: "reload_work:two", interval: 1h}
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with a file and the code that it names."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    sys.modules.pop("reload_work", None)
    (tmp_path / "reload_work.py").write_text(WORK)
    (tmp_path / "reload_exits.py").write_text("import sys\nsys.exit(7)\n")
    (tmp_path / "p.yaml").write_text(FIRST)
    yield tmp_path
    sys.modules.pop("reload_work", None)
    sys.modules.pop("reload_later", None)


def an_app(store="memory://", path="p.yaml", *, plans=True, **arguments):
    config = load_config(path, environ={}, arguments={"store": store} | arguments)
    return Pollux.from_config(config, plans=plans)


async def truly(look, what):
    async def looked():
        return look()

    return await until(looked, what)


async def all_jobs(app):
    return {job.id: job for job in (await app.list_jobs(limit=1_000)).jobs}


async def planned(app, *ids):
    """The jobs, once they have fired for the first time and rest until the next."""

    async def look():
        jobs = await all_jobs(app)
        return jobs if all(job_id in jobs and jobs[job_id].memory.ended for job_id in ids) else None

    return await until(look, f"{ids} are planned")


async def test_what_differs_is_written_and_what_does_not_keeps_its_phase_and_memory(here):
    async with an_app() as app:
        before = await planned(app, "a", "b")
        (here / "p.yaml").write_text(SECOND)

        answer = await app.reload()

        assert (answer.added, answer.changed, answer.removed, answer.same) == (1, 1, 0, 1)
        assert answer.lines[0] == "+ job c  every 1h"
        assert answer.lines[1].startswith("~ job b  every 1h -> 2h")
        after = await planned(app, "a", "b", "c")
        assert after["a"] == before["a"], "not even its revision moved"
        assert after["b"].handler == "reload_work:two"
        assert "~ pool.seats 3 -> 5" in answer.lines
        (here / "p.yaml").write_text(FIRST)
        answer = await app.reload()
        assert (answer.added, answer.changed, answer.removed) == (0, 1, 1)
        assert set(await all_jobs(app)) == {"a", "b"}


async def test_jobs_that_came_by_api_or_code_stay(here):
    app = an_app()
    app.handler(lambda ctx: None, name="ours")
    app.add("ours", every("1h"), id="coded")
    async with app:
        await app.put_jobs([Job(id="asked", handler="ours", source="api")])
        (here / "p.yaml").write_text("jobs: []\n")

        answer = await app.reload()

        assert answer.removed == 2
        assert set(await all_jobs(app)) == {"coded", "asked"}


async def test_the_leader_is_woken_and_a_new_job_fires_at_once(here):
    async with an_app() as app:
        await planned(app, "a", "b")
        (here / "p.yaml").write_text('jobs: [{id: now, python: "reload_work:two", once: true}]')

        await app.reload()

        async def done():
            return (await app.list_runs(RunFilter(states=(RunState.DONE,), job_id="now"))).runs

        async with asyncio.timeout(PATIENCE):
            [run] = await until(done, "it ran")
        assert run.result == 2


async def test_a_function_that_is_new_in_the_file_is_imported(here):
    async with an_app() as app:
        (here / "reload_later.py").write_text("def later(ctx): return 'later'\n")
        (here / "p.yaml").write_text('jobs: [{id: l, python: "reload_later:later", once: true}]')

        await app.reload()

        async def done():
            return (await app.list_runs(RunFilter(states=(RunState.DONE,), job_id="l"))).runs

        assert [run.result for run in await until(done, "it ran")] == ["later"]
        assert "reload_later:later" in app.crew.registry.names()


BAD = {
    "syntax": ("jobs: [{id: x", "p.yaml:"),
    "key": ('jobs: [{id: a, python: "reload_work:one", intervall: 1h}]', "p.yaml:1:43"),
    "module": ('jobs: [{id: x, python: "no_such_module:f"}]', "p.yaml:1:24"),
    "function": ('jobs: [{id: x, python: "reload_work:none"}]', "p.yaml:1:24"),
    "exits": ('jobs: [{id: x, python: "reload_exits:f"}]', "importing 'reload_exits' raised SystemExit"),
    "params": ('jobs: [{id: x, python: "reload_work:one", interval: 1h, params: {z: 1}}]', "p.yaml:1:8"),
    "secret": ('jobs: [{id: x, http: {url: "http://h/${env:NO_SUCH}"}}]', "p.yaml:1:8"),
    "commands": ('jobs: [{id: x, exec: ["true"], interval: 1h}]', "p.yaml:1:8"),
    "option": ("pool: {seats: none}", "p.yaml:1:15"),
    "owner": ('jobs: [{id: asked, python: "reload_work:one"}]', "asked"),
    "twice": ('jobs: [{id: coded, python: "reload_work:one"}]', "coded"),
    "good beside bad": ('jobs: [{id: n, python: "reload_work:two"}, {id: m, python: "reload_work:none"}]', "p.yaml:1:"),
}


@pytest.mark.parametrize("kind", BAD)
async def test_a_file_with_a_mistake_changes_nothing_and_says_where(here, kind):
    text, where = BAD[kind]
    app = an_app()
    app.handler(lambda ctx: None, name="ours")
    app.add("ours", every("1h"), id="coded")
    async with app:
        await app.put_jobs([Job(id="asked", handler="ours", source="api")])
        before = await planned(app, "a", "b", "coded")
        known, declared = app.crew.registry.names(), app.declared.declares()
        refused = Heard(app.events, ReloadRefused)
        (here / "p.yaml").write_text(text + "\n")

        for _ in range(3):
            with pytest.raises((InvalidConfig, InvalidInput, Conflict)) as caught:
                await app.reload()
            assert where in str(caught.value)

        assert await all_jobs(app) == before
        assert (app.crew.registry.names(), app.declared.declares()) == (known, declared)
        assert app.crew.pool.seats == 3
        assert len(refused.all) == 1, "said once for each text"
        (here / "p.yaml").write_text(text + "\n\n")
        with pytest.raises((InvalidConfig, InvalidInput, Conflict)):
            await app.reload()
        assert len(refused.all) == 2
        (here / "p.yaml").write_text(SECOND)
        assert (await app.reload()).added == 1, "mended, it holds"


async def test_a_file_that_is_gone_changes_nothing(here):
    async with an_app() as app:
        before = await planned(app, "a", "b")
        (here / "p.yaml").unlink()
        with pytest.raises(InvalidConfig, match="the file is gone; put it back: pollux reload --rollback"):
            await app.reload()
        assert await all_jobs(app) == before


async def test_a_dry_run_says_it_and_changes_nothing(here):
    async with an_app() as app:
        before = await planned(app, "a", "b")
        (here / "p.yaml").write_text(SECOND)

        told = await app.reload(dry_run=True)

        assert told.is_dry
        assert await all_jobs(app) == before
        assert app.crew.pool.seats == 3
        assert (await app.reload()).lines == told.lines


async def test_what_is_set_for_all_nodes_overrules_the_file_and_that_is_said(here):
    async with an_app() as app:
        await app.set_setting("pool.seats", 50)
        (here / "p.yaml").write_text(SECOND)
        words = "pool.seats 3 -> 5, overruled by live 50"
        assert (await app.reload(dry_run=True)).lines[-1] == f"~ {words}"
        told = await app.reload()
        assert words in told.words()
        assert app.crew.pool.seats == 50


async def test_a_signal_is_answered_although_nothing_changed(here):
    async with an_app() as app:
        heard = Heard(app.events, ConfigReloaded)
        await app.reloader.reload(by="file watch")
        assert heard.all == []
        await app.reloader.reload(by=BY_SIGNAL)
        [told] = heard.all
        assert (told.by, told.changes) == ("signal HUP", "nothing changed")


# a text that is not in the file yet

NEW = SECOND + """  - {id: d, python: "reload_unknown:f", interval: 1h}\n"""


async def test_a_text_is_compared_in_the_place_of_the_file_and_leaves_no_trace(here):
    async with an_app("sqlite:///p.db") as app:
        before = await planned(app, "a", "b")

        told = await app.reload(dry_run=True, text=NEW, called="else/new.yaml")

        assert (told.draft, told.source, told.is_dry) == ("else/new.yaml", "file:p.yaml", True)
        assert (told.added, told.changed, told.removed, told.same) == (2, 1, 0, 1)
        assert told.lines[:2] == ("+ job c  every 1h", "+ job d  every 1h")
        assert told.lines[-1] == "~ pool.seats 3 -> 5"
        assert told.unseen == ("reload_work:two", "reload_unknown:f"), "imported are only those of the file itself"
        assert "reload_work:two" not in app.crew.registry.names()
        assert (await all_jobs(app), app.crew.pool.seats, app.reloader.refused) == (before, 3, ())
        assert (here / "p.yaml").read_text() == FIRST


async def test_a_text_with_a_mistake_is_refused_by_its_own_name_and_the_node_does_not_mind(here):
    async with an_app() as app:
        for text, where in (("jobs: [{id: a}]", "new.yaml:1:8"), ("pool: {seats: none}", "new.yaml:1:15")):
            with pytest.raises(InvalidConfig) as caught:
                await app.reload(dry_run=True, text=text, called="new.yaml")
            assert str(caught.value).startswith(where)
        assert app.reloader.refused == ()
        with pytest.raises(InvalidInput, match="never applied"):
            await app.reload(text=SECOND)
        with pytest.raises(InvalidInput, match="'code:x' is no file"):
            await app.reload(dry_run=True, text=SECOND, source="code:x")
        assert app.crew.pool.seats == 3


async def test_a_text_that_is_the_files_own_is_looked_at_as_the_file_is(here):
    async with an_app() as app:
        (here / "p.yaml").write_text(SECOND)
        told = await app.reload(dry_run=True, text=SECOND, called="copy.yaml")
        assert (told.unseen, told.draft) == ((), "")
        assert told.lines == (await app.reload()).lines


async def test_a_text_of_a_file_that_another_node_has_is_compared_with_that(here):
    (here / "q.yaml").write_text('jobs: [{id: q, python: "reload_work:one", interval: 1h}]\n')
    async with an_app("sqlite:///p.db") as app, an_app("sqlite:///p.db", "q.yaml") as other:
        await planned(other, "a", "q")
        text = 'pool: {seats: 7}\njobs: [{id: r, python: "reload_work:one", interval: 1h}]\n'
        told = await app.reload(dry_run=True, text=text, called="/somewhere/q.yaml")
        assert (told.source, told.lines) == ("file:q.yaml", ("+ job r  every 1h", "- job q"))
        told = await app.reload(dry_run=True, text=text, called="q.yaml", source="p.yaml")
        assert told.lines == ("+ job r  every 1h", "- job a", "- job b", "~ pool.seats 3 -> 7")
        told = await app.reload(dry_run=True, text=text, called="new.yaml", source="new.yaml")
        assert told.lines == ("+ job r  every 1h",)


async def test_a_secret_that_a_text_names_is_not_told(here, monkeypatch):
    """Also not where it stands in a list: whoever may ask may not read what this process may read."""
    monkeypatch.setenv("CANARY", "geheim-4711-kanarie")
    async with an_app() as app:
        text = 'server: {tls: {cert: "${env:CANARY}", key: key.pem}, host: "${env:CANARY}"}\n'
        told = await app.reload(dry_run=True, text=text)
        assert {change.path for change in told.needs_restart} == {"server.tls", "server.host"}
        assert "geheim-4711" not in repr(told)


async def test_a_reload_that_means_another_text_is_refused_with_the_file_that_is_read(here):
    async with an_app() as app:
        digest = app.reloader.config.digest
        (here / "p.yaml").write_text(SECOND)
        with pytest.raises(InvalidInput) as caught:
            await app.reload(only=digest)
        assert str(here / "p.yaml") in str(caught.value)
        assert app.crew.pool.seats == 3
        assert (await app.reload(only=app.reloader.digest_there())).added == 1


# what is in force


async def test_what_is_in_force_is_told_although_the_file_says_otherwise(here):
    async with an_app("sqlite:///p.db", grace="7s") as app:
        (here / "p.yaml").write_text("pool: {seats: 9, lease: 1m}\njobs: [{id: a}]\n")
        with pytest.raises(InvalidConfig):
            await app.reload()
        told = await app.file_in_force()
        values = {each.option: (each.value, each.origin) for each in told.options}
        assert (told.is_there, told.path) == (False, str(here / "p.yaml"))
        assert told.refused[0].startswith("p.yaml:2:8")
        assert values["pool.seats"] == ("3", "p.yaml:2")
        assert values["pool.grace"] == ("7s", "argument")
        (here / "p.yaml").write_text("pool: {seats: 9, lease: 1m}\n")
        await app.reload()
        await app.set_setting("pool.seats", 20)
        told = await app.file_in_force()
        values = {each.option: each.value for each in told.options}
        assert (told.is_there, told.refused) == (True, ())
        assert (values["pool.seats"], values["pool.lease"]) == ("20", "30s"), "the lease changes with a restart"
        assert [str(change) for change in told.needs_restart] == ["pool.lease 30s -> 1m"]


async def test_a_file_that_was_refused_is_a_finding_of_health_until_it_is_mended(here):
    async with an_app() as app:

        async def finding():
            app.watch._last = None  # a look serves for a second
            return next(each for each in (await app.health()).findings if each.name == "file")

        assert (await finding()).level == "healthy"
        (here / "p.yaml").unlink()
        refused = Heard(app.events, ReloadRefused)
        for _ in range(2):
            with pytest.raises(InvalidConfig):
                await app.reload()
        assert len(refused.all) == 1
        assert "the file is gone" in (await finding()).seen
        (here / "p.yaml").write_text(FIRST)
        await app.reload()
        assert (await finding()).level == "healthy"


async def test_seats_and_history_change_at_once_and_the_rest_is_named_until_the_restart(here):
    async with an_app() as app:
        (here / "p.yaml").write_text("pool: {seats: 9, grace: 1s, lease: 1m}\nleader: {ttl: 20s}\nhistory: {keep: 7}\n")

        answer = await app.reload()

        assert [str(change) for change in answer.options] == [
            "pool.seats 3 -> 9",
            "pool.grace 25s -> 1s",
            "history.keep 100 -> 7",
        ]
        assert [change.path for change in answer.needs_restart] == ["pool.lease", "leader.ttl"]
        crew = app.crew
        assert (crew.pool.seats, crew.options.grace_ms, crew.pruner.options.keep_per_job) == (9, 1_000, 7)
        assert (crew.options.lease_ms, crew.leader.ttl_ms) == (30_000, 15_000)
        again = await app.reload()
        assert (again.options, again.lines) == ((), ())
        assert [change.path for change in again.needs_restart] == ["pool.lease", "leader.ttl"], "not forgotten"
    async with an_app() as app:
        assert (await app.reload()).needs_restart == ()
        assert app.crew.leader.ttl_ms == 20_000


async def test_an_argument_still_wins_after_a_reload(here):
    async with an_app(seats=4) as app:
        (here / "p.yaml").write_text("pool: {seats: 9}\n")
        answer = await app.reload()
        assert (answer.options, app.crew.pool.seats) == ((), 4)


async def test_commands_can_be_allowed_while_it_runs(here):
    async with an_app() as app:
        (here / "p.yaml").write_text('allow_exec: true\njobs: [{id: x, exec: ["true"], once: true}]\n')
        answer = await app.reload()
        assert [str(change) for change in answer.options] == ["pool.seats 3 -> 10", "allow_exec false -> true"]

        async def done():
            return (await app.list_runs(RunFilter(states=(RunState.DONE,), job_id="x"))).runs

        assert await until(done, "it ran")
        (here / "p.yaml").write_text("allow_exec: false\n")
        assert [str(change) for change in (await app.reload()).needs_restart] == ["allow_exec true -> false"]


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
            calls.append(asyncio.create_task(app.reload()))
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
        await app.acting_as("ann").reload()
        await app.acting_as("ann").reload()
        lines = [line for line in (await app.audit()).lines if line.action == "reload"]
    assert [(line.actor, line.subject) for line in lines] == [("ann", "p.yaml")], "what changed nothing is not told"
    assert lines[0].detail == "jobs: 1 added, 1 changed, 0 gone, 1 the same; pool.seats 3 -> 5"


async def test_a_reload_whose_answer_is_lost_is_on_record_once(here):
    """The line is in the log with the first job that is written: asked again there is nothing left to tell."""
    app = an_app()
    faulty = app._store = FaultyStore(app.backend)
    async with app:
        await planned(app, "a", "b")
        (here / "p.yaml").write_text(FIRST + '  - {id: c, python: "reload_work:one", interval: 1h}\n')
        faulty.lose_answer("put_jobs")
        with pytest.raises(StoreTimeout):
            await app.acting_as("ann").reload()
        for _ in range(2):
            lines = [line for line in (await app.audit()).lines if line.action == "reload"]
            assert [(line.actor, line.detail) for line in lines] == [
                ("ann", "jobs: 1 added, 0 changed, 0 gone, 2 the same")
            ]
            assert "c" in await all_jobs(app)
            await app.acting_as("ann").reload()
        assert "log" not in faulty.calls


async def test_a_worker_takes_handlers_and_seats_and_writes_no_job(here):
    async with an_app("sqlite:///p.db") as leader, an_app("sqlite:///p.db", plans=False) as worker:
        before = await planned(leader, "a", "b")
        (here / "p.yaml").write_text(SECOND)
        answer = await worker.reload()
        assert (answer.added, answer.changed, worker.crew.pool.seats) == (0, 0, 5)
        assert "reload_work:two" in worker.crew.registry.names()
        assert await all_jobs(leader) == before


async def test_without_a_file_there_is_nothing_to_read_again():
    async with Pollux("memory://") as app:
        with pytest.raises(InvalidInput, match="there is no file to read again"):
            await app.reload()


async def test_a_store_that_fails_meanwhile_is_tried_again(here):
    app = an_app()
    faulty = FaultyStore(app.backend)
    app._store = faulty
    async with app:
        await planned(app, "a", "b")
        (here / "p.yaml").write_text(SECOND)
        faulty.fail("put_jobs", StoreError("not now"))
        app.steward.read_again("file watch")
        await planned(app, "a", "b", "c")
        assert "put_jobs" in faulty.struck
        assert app.crew.pool.seats == 5


# several nodes


async def test_a_node_with_an_older_text_does_not_undo_what_another_applied(here):
    (here / "old").mkdir()
    (here / "old" / "p.yaml").write_text(FIRST)
    (here / "old" / "reload_work.py").write_text(WORK)
    async with an_app("sqlite:///p.db", "old/p.yaml") as older, an_app("sqlite:///p.db") as newer:
        await planned(newer, "a", "b")
        told = Heard(older.events, FileDiffers)
        (here / "p.yaml").write_text(SECOND)
        await newer.reload()
        await truly(lambda: told.all, "the older one hears of it")
        after = await planned(newer, "a", "b", "c")

        older._registrar._looks = 2
        await older._registrar.turn()
        await older._registrar.turn()

        assert await all_jobs(newer) == after
        assert [(event.source, event.node) for event in told.all] == [("file:p.yaml", newer.node_id)]
        (here / "old" / "p.yaml").write_text(SECOND)
        assert (await older.reload()).lines == ("~ pool.seats 3 -> 5",)


async def test_a_reload_on_one_node_is_heard_by_all_that_have_the_file(here):
    async with an_app("sqlite:///p.db") as one, an_app("sqlite:///p.db") as other:
        await planned(one, "a", "b")
        (here / "p.yaml").write_text(SECOND)
        await one.reload()
        await truly(lambda: other.crew.pool.seats == 5, "the other one has read it, too")
        assert "reload_work:two" in other.crew.registry.names()


# versions


async def test_the_last_texts_are_kept_for_their_owner_alone(here):
    async with an_app("sqlite:///p.db") as app:
        for n in range(12):
            (here / "p.yaml").write_text(f"pool: {{seats: {n + 10}}}\n")
            await app.reload()
            await app.reload()
        kept = await app.file_versions()
    assert len(kept) == KEPT_MAX
    assert [each.read().decode().split()[-1] for each in kept] == [f"{n + 10}}}" for n in range(2, 12)]
    folder = here / "p.db.versions" / "p.yaml"
    assert [stat.S_IMODE(each.stat().st_mode) for each in (folder, folder.parent)] == [0o700, 0o700]
    assert {stat.S_IMODE(each.stat().st_mode) for each in folder.iterdir()} == {0o600}


async def test_what_was_left_open_to_others_is_shut_by_the_next_start(here):
    async with an_app("sqlite:///p.db"):
        pass
    folder = here / "p.db.versions" / "p.yaml"
    [kept] = folder.iterdir()
    for each, mode in ((folder.parent, 0o755), (folder, 0o750), (kept, 0o644)):
        each.chmod(mode)
    async with an_app("sqlite:///p.db"):
        pass
    assert [stat.S_IMODE(each.stat().st_mode) for each in (folder.parent, folder, kept)] == [0o700, 0o700, 0o600]


async def test_a_rollback_puts_the_text_before_back_and_makes_it_hold(here):
    async with an_app("sqlite:///p.db") as app:
        (here / "p.yaml").chmod(0o640)
        os.chown(here / "p.yaml", -1, os.getgid())
        before = await planned(app, "a", "b")
        (here / "p.yaml").write_text(SECOND)
        await app.reload()

        answer = await app.acting_as("ann").rollback()

        assert (here / "p.yaml").read_text() == FIRST
        assert stat.S_IMODE((here / "p.yaml").stat().st_mode) == 0o640
        assert (answer.removed, answer.changed, app.crew.pool.seats) == (1, 1, 3)
        after = await all_jobs(app)
        assert (after["a"], set(after)) == (before["a"], {"a", "b"})
        await app.rollback()
        assert (here / "p.yaml").read_text() == SECOND, "again: back to the newer one"
        first = (await app.file_versions())[0]
        await app.rollback(first.digest[:6])
        assert (here / "p.yaml").read_text() == FIRST
        with pytest.raises(NotFound):
            await app.rollback("ffff")
        assert [line.actor for line in (await app.audit()).lines if line.action == "reload"][1] == "ann"


async def test_a_rollback_from_a_file_with_a_mistake_goes_to_what_holds(here):
    async with an_app("sqlite:///p.db") as app:
        (here / "p.yaml").write_text("jobs: [")
        with pytest.raises(InvalidConfig):
            await app.reload()
        answer = await app.rollback()
        assert (here / "p.yaml").read_text() == FIRST
        assert answer.is_empty


async def test_a_text_that_no_longer_fits_is_not_put_back(here):
    async with an_app("sqlite:///p.db") as app:
        (here / "p.yaml").write_text("pool: {seats: 5}\n")
        await app.reload()
        sys.modules["reload_work"].__dict__.pop("one")
        with pytest.raises(InvalidConfig, match="has no 'one'"):
            await app.rollback()
        assert (here / "p.yaml").read_text() == "pool: {seats: 5}\n"


async def test_a_link_and_a_file_that_nobody_may_write_are_not_written(here):
    async with an_app("sqlite:///p.db") as app:
        (here / "p.yaml").write_text(SECOND)
        await app.reload()
        (here / "p.yaml").chmod(0o444)
        with pytest.raises(InvalidInput, match="cannot be written"):
            await app.rollback()
        (here / "real.yaml").write_text(SECOND)
        (here / "p.yaml").unlink()
        (here / "p.yaml").symlink_to("real.yaml")
        with pytest.raises(InvalidInput, match="is a link to real"):
            await app.rollback()
        assert (here / "real.yaml").read_text() == SECOND


async def test_versions_that_cannot_be_kept_stop_nothing(here):
    (here / "p.db.versions").write_text("in the way")
    async with an_app("sqlite:///p.db") as app:
        (here / "p.yaml").write_text(SECOND)
        assert (await app.reload()).added == 1
        assert await app.file_versions() == []
        with pytest.raises(Conflict, match="no other text") as refused:
            await app.rollback()
        assert "change the file itself" in refused.value.cure


def test_without_a_file_as_store_they_lie_beside_the_config(tmp_path):
    versions = Versions(tmp_path / "p.yaml")
    versions.keep(b"a", 1)
    versions.keep(b"b", 1)
    assert (tmp_path / ".p.yaml.versions").is_dir()
    assert [each.read() for each in versions.all()] == [b"a", b"b"], "in order, also within a millisecond"
    (tmp_path / ".p.yaml.versions" / "notes.txt").write_text("somebody's own")
    assert len(versions.all()) == 2


# for long


async def test_five_hundred_reloads_under_load_leak_nothing(here):
    def objects():
        for _ in range(3):
            gc.collect()
        return len(gc.get_objects())

    async with an_app() as app:
        app.crew.registry.add("noop", _noop)
        await app.put_jobs([Job(id="load", handler="noop")])
        counted = {}
        for n in range(1, 501):
            text = "".join(f'\n  - {{id: j{i}, python: "reload_work:one", interval: {n % 7 + 1}h}}' for i in range(3))
            (here / "p.yaml").write_text(f"pool: {{seats: {n % 5 + 3}}}\njobs:{text}\n")
            if n % 5 == 0:
                await app.enqueue_many("load", [None] * 5)
            await app.reload()
            if n in (50, 500):
                await until(lambda: _idle(app), "what was asked for has run")
                counted[n] = objects()
    assert counted[500] <= counted[50] * 1.02, counted


async def _noop(ctx):
    return None


async def _idle(app):
    counts = await app.counts()
    return counts.ready + counts.leased == 0 and app.crew.status().backlog == 0


def test_a_trial_changes_nothing_of_what_is_declared():
    from pollux.registry import Registry

    registry = Registry()
    registry.add("h", _noop)
    declared = Declared(registry, source="code:x", release=0)
    declared.take_file("file:p", [Job(id="a", handler="h", source="file:p")])
    trial = declared.trial(registry.trial())
    trial.take_file("file:p", [Job(id="b", handler="h", source="file:p")])
    assert [job.id for job in declared.jobs()] == ["a"]
    assert registry.job("a").id == "a"
    with pytest.raises(NotFound):
        registry.job("b")


async def test_a_hangup_while_the_node_starts_is_heard_and_does_not_end_it(here):
    """Others see a node before it has begun: whoever signals it then must be heard."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # else a failure would end the whole run
    owns = OWNS_PROCESS.set(True)
    app = an_app(reload=False)  # the signal alone tells of the change
    inner = app.backend.store
    inner.beat = _signalled_at(inner.beat, lambda: (here / "p.yaml").write_text(SECOND))
    try:
        async with app:

            async def reloaded():
                return {job.id for job in (await app.list_jobs()).jobs} == {"a", "b", "c"}

            await until(reloaded, "the file was read again")
    finally:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGHUP)
        signal.signal(signal.SIGHUP, before)
        OWNS_PROCESS.reset(owns)


def _signalled_at(beat, change):
    """The first beat tells everybody that the node is there; the signal comes at that moment."""
    left = [signal.SIGHUP]

    async def then(*args, **options):
        answer = await beat(*args, **options)
        if left:
            change()
            os.kill(os.getpid(), left.pop())
        return answer

    return then
