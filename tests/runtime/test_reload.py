"""A reload of the file writes what differs; invalid text changes nothing, and no other node undoes it."""

import asyncio
import gc
import logging
import os
import signal

import pytest

from pollux import every
from pollux.app import pollux as app_module
from pollux.app import reload as reload_module
from pollux.app.declarations import Declared
from pollux.app.process import OWNS_PROCESS
from pollux.app.reload import BY_FILE, BY_SIGNAL
from pollux.errors import Conflict, InvalidConfig, InvalidInput, NotFound
from pollux.events import ConfigReloaded, ReloadRefused
from pollux.model import Job, RunState
from pollux.store.contract import RunFilter
from tests.runtime.fakes import Heard
from tests.runtime.reload_world import FIRST, SECOND, all_jobs, an_app, planned
from tests.runtime.test_app import PATIENCE, until


async def test_what_differs_is_written_and_what_does_not_keeps_its_phase_and_memory(here):
    async with an_app() as app:
        before = await planned(app, "a", "b")
        (here / "p.yaml").write_text(SECOND)

        answer = await app.operations.config_file.reload()

        assert (answer.added, answer.changed, answer.removed, answer.same) == (1, 1, 0, 1)
        assert answer.lines[0] == "+ job c  every 1h"
        assert answer.lines[1].startswith("~ job b  every 1h -> 2h")
        after = await planned(app, "a", "b", "c")
        assert after["a"] == before["a"], "not even its revision moved"
        assert after["b"].handler == "reload_work:two"
        assert "~ pool.seats 3 -> 5" in answer.lines
        (here / "p.yaml").write_text(FIRST)
        answer = await app.operations.config_file.reload()
        assert (answer.added, answer.changed, answer.removed) == (0, 1, 1)
        assert set(await all_jobs(app)) == {"a", "b"}


async def test_jobs_that_came_by_api_or_code_stay(here):
    app = an_app()
    app.handler(lambda ctx: None, name="ours")
    app.add("ours", every("1h"), id="coded")
    async with app:
        await app.put_jobs([Job(id="asked", handler="ours", source="api")])
        (here / "p.yaml").write_text("jobs: []\n")

        answer = await app.operations.config_file.reload()

        assert answer.removed == 2
        assert set(await all_jobs(app)) == {"coded", "asked"}


async def test_a_file_that_an_editor_has_just_emptied_is_read_once_it_is_written(here, monkeypatch):
    """The editor truncates it, the node reads it, and then the text comes."""
    async with an_app() as app:
        read = reload_module._bytes_of

        def read_too_soon(path):
            if not (raw := read(path)):
                (here / "p.yaml").write_text(SECOND)
            return raw

        (here / "p.yaml").write_text("")
        monkeypatch.setattr(reload_module, "_bytes_of", read_too_soon)

        await app.reloader.reload(by=BY_FILE)

        assert set(await all_jobs(app)) == {"a", "b", "c"}


async def test_the_leader_is_woken_and_a_new_job_fires_at_once(here):
    async with an_app() as app:
        await planned(app, "a", "b")
        (here / "p.yaml").write_text('jobs: [{id: now, python: "reload_work:two", once: true}]')

        await app.operations.config_file.reload()

        async def done():
            return (await app.operations.runs.list_runs(RunFilter(states=(RunState.DONE,), job_id="now"))).runs

        async with asyncio.timeout(PATIENCE):
            [run] = await until(done, "it ran")
        assert run.result == 2


async def test_a_function_that_is_new_in_the_file_is_imported(here):
    async with an_app() as app:
        (here / "reload_later.py").write_text("def later(ctx): return 'later'\n")
        (here / "p.yaml").write_text('jobs: [{id: l, python: "reload_later:later", once: true}]')

        await app.operations.config_file.reload()

        async def done():
            return (await app.operations.runs.list_runs(RunFilter(states=(RunState.DONE,), job_id="l"))).runs

        assert [run.result for run in await until(done, "it ran")] == ["later"]
        assert "reload_later:later" in app.runtime.registry.names()


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
        known, declared = app.runtime.registry.names(), app.declared.declares()
        refused = Heard(app.events, ReloadRefused)
        (here / "p.yaml").write_text(text + "\n")

        for _ in range(3):
            with pytest.raises((InvalidConfig, InvalidInput, Conflict)) as caught:
                await app.operations.config_file.reload()
            assert where in str(caught.value)

        assert await all_jobs(app) == before
        assert (app.runtime.registry.names(), app.declared.declares()) == (known, declared)
        assert app.runtime.pool.seats == 3
        assert len(refused.all) == 1, "said once for each text"
        (here / "p.yaml").write_text(text + "\n\n")
        with pytest.raises((InvalidConfig, InvalidInput, Conflict)):
            await app.operations.config_file.reload()
        assert len(refused.all) == 2
        (here / "p.yaml").write_text(SECOND)
        assert (await app.operations.config_file.reload()).added == 1, "mended, it holds"


async def test_a_file_that_is_gone_changes_nothing(here):
    async with an_app() as app:
        before = await planned(app, "a", "b")
        (here / "p.yaml").unlink()
        with pytest.raises(InvalidConfig, match="the file was removed; put it back: pollux reload --rollback"):
            await app.operations.config_file.reload()
        assert await all_jobs(app) == before


async def test_a_dry_run_says_it_and_changes_nothing(here):
    async with an_app() as app:
        before = await planned(app, "a", "b")
        (here / "p.yaml").write_text(SECOND)

        told = await app.operations.config_file.reload(dry_run=True)

        assert told.is_dry
        assert await all_jobs(app) == before
        assert app.runtime.pool.seats == 3
        assert (await app.operations.config_file.reload()).lines == told.lines


async def test_what_is_set_for_all_nodes_overrules_the_file_and_that_is_said(here):
    async with an_app() as app:
        await app.operations.settings.set_setting("pool.seats", 50)
        (here / "p.yaml").write_text(SECOND)
        words = "pool.seats 3 -> 5, overruled by live 50"
        assert (await app.operations.config_file.reload(dry_run=True)).lines[-1] == f"~ {words}"
        told = await app.operations.config_file.reload()
        assert words in told.words()
        assert app.runtime.pool.seats == 50


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

        told = await app.operations.config_file.reload(dry_run=True, text=NEW, called="else/new.yaml")

        assert (told.draft, told.source, told.is_dry) == ("else/new.yaml", "file:p.yaml", True)
        assert (told.added, told.changed, told.removed, told.same) == (2, 1, 0, 1)
        assert told.lines[:2] == ("+ job c  every 1h", "+ job d  every 1h")
        assert told.lines[-1] == "~ pool.seats 3 -> 5"
        assert told.unseen == ("reload_work:two", "reload_unknown:f"), "imported are only those of the file itself"
        assert "reload_work:two" not in app.runtime.registry.names()
        assert (await all_jobs(app), app.runtime.pool.seats, app.reloader.refused) == (before, 3, ())
        assert (here / "p.yaml").read_text() == FIRST


async def test_a_text_with_a_mistake_is_refused_by_its_own_name_and_the_node_does_not_mind(here):
    async with an_app() as app:
        for text, where in (("jobs: [{id: a}]", "new.yaml:1:8"), ("pool: {seats: none}", "new.yaml:1:15")):
            with pytest.raises(InvalidConfig) as caught:
                await app.operations.config_file.reload(dry_run=True, text=text, called="new.yaml")
            assert str(caught.value).startswith(where)
        assert app.reloader.refused == ()
        with pytest.raises(InvalidInput, match="never applied"):
            await app.operations.config_file.reload(text=SECOND)
        with pytest.raises(InvalidInput, match="'code:x' is no file"):
            await app.operations.config_file.reload(dry_run=True, text=SECOND, source="code:x")
        assert app.runtime.pool.seats == 3


async def test_a_text_that_is_the_files_own_is_looked_at_as_the_file_is(here):
    async with an_app() as app:
        (here / "p.yaml").write_text(SECOND)
        told = await app.operations.config_file.reload(dry_run=True, text=SECOND, called="copy.yaml")
        assert (told.unseen, told.draft) == ((), "")
        assert told.lines == (await app.operations.config_file.reload()).lines


async def test_a_text_of_a_file_that_another_node_has_is_compared_with_that(here):
    (here / "q.yaml").write_text('jobs: [{id: q, python: "reload_work:one", interval: 1h}]\n')
    async with an_app("sqlite:///p.db") as app, an_app("sqlite:///p.db", "q.yaml") as other:
        await planned(other, "a", "q")
        text = 'pool: {seats: 7}\njobs: [{id: r, python: "reload_work:one", interval: 1h}]\n'
        told = await app.operations.config_file.reload(dry_run=True, text=text, called="/somewhere/q.yaml")
        assert (told.source, told.lines) == ("file:q.yaml", ("+ job r  every 1h", "- job q"))
        told = await app.operations.config_file.reload(dry_run=True, text=text, called="q.yaml", source="p.yaml")
        assert told.lines == ("+ job r  every 1h", "- job a", "- job b", "~ pool.seats 3 -> 7")
        told = await app.operations.config_file.reload(dry_run=True, text=text, called="new.yaml", source="new.yaml")
        assert told.lines == ("+ job r  every 1h",)


async def test_a_secret_that_a_text_names_is_not_told(here, monkeypatch):
    """Also not where it stands in a list: whoever may ask may not read what this process may read."""
    monkeypatch.setenv("CANARY", "geheim-4711-kanarie")
    async with an_app() as app:
        text = 'server: {tls: {cert: "${env:CANARY}", key: key.pem}, host: "${env:CANARY}"}\n'
        told = await app.operations.config_file.reload(dry_run=True, text=text)
        assert {change.path for change in told.needs_restart} == {"server.tls", "server.host"}
        assert "geheim-4711" not in repr(told)


async def test_a_reload_that_means_another_text_is_refused_with_the_file_that_is_read(here):
    async with an_app() as app:
        digest = app.reloader.config.digest
        (here / "p.yaml").write_text(SECOND)
        with pytest.raises(InvalidInput) as caught:
            await app.operations.config_file.reload(only=digest)
        assert str(here / "p.yaml") in str(caught.value)
        assert app.runtime.pool.seats == 3
        assert (await app.operations.config_file.reload(only=app.reloader.digest_there())).added == 1


# for long


async def test_five_hundred_reloads_under_load_leak_nothing(here, caplog, monkeypatch):
    """Pytest keeps what is said, a record and more for each reload: here nothing is, also not where the log is ours."""
    monkeypatch.setattr(app_module, "kind_written", lambda: None)
    caplog.set_level(logging.ERROR)

    def objects():
        for _ in range(3):
            gc.collect()
        return len(gc.get_objects())

    async with an_app() as app:
        app.runtime.registry.add("noop", _noop)
        await app.put_jobs([Job(id="load", handler="noop")])
        counted = {}
        for n in range(1, 501):
            text = "".join(f'\n  - {{id: j{i}, python: "reload_work:one", interval: {n % 7 + 1}h}}' for i in range(3))
            (here / "p.yaml").write_text(f"pool: {{seats: {n % 5 + 3}}}\njobs:{text}\n")
            if n % 5 == 0:
                await app.enqueue_many("load", [None] * 5)
            await app.operations.config_file.reload()
            if n in (50, 500):
                await until(lambda: _idle(app), "what was asked for has run, and the leader knows")
                counted[n] = objects()
    assert counted[500] - counted[50] < 450, counted  # fewer than one for each of them


async def _noop(ctx):
    return None


async def _idle(app):
    counts = await app.operations.status.counts()
    return counts.ready + counts.leased + counts.feed == 0 and app.runtime.status().backlog == 0


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
    inner = app.backend
    inner.beat = _signalled_at(inner.beat, lambda: (here / "p.yaml").write_text(SECOND))
    try:
        async with app:

            async def reloaded():
                return {job.id for job in (await app.operations.jobs.list_jobs()).jobs} == {"a", "b", "c"}

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
