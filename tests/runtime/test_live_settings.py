"""Live settings, drains and requested turns reach every node, survive restarts, and cost nothing while unused."""

import asyncio
import logging
import re
from pathlib import Path

import pytest

from pollux import Pollux, every
from pollux.clock import FakeClock
from pollux.config import load_config
from pollux.config.lint import ineffective_variables
from pollux.config.settings import BY_PATH, LIVE_PATHS, OPTIONS, live_value
from pollux.errors import Conflict, InvalidInput, NotFound
from pollux.log_format import TextLines
from pollux.model import DRAIN, Job, NotePut, RunState, drain_key
from pollux.runtime.node import TUNABLE
from pollux.store.memory import MemoryStore
from pollux.testing.faults import FaultyStore
from tests.runtime.fakes import settle_down
from tests.runtime.test_app import finished, until

MINUTE = 60_000
SAMPLES = {"pool.seats": 17, "log.level": "warning"}


def sample(path):
    """A value that is not the default."""
    if path in SAMPLES:
        return SAMPLES[path]
    return "512 MB" if path == "pool.child_memory" else "17s" if BY_PATH[path].field.endswith("_ms") else 17


async def truly(look, what):
    async def looked():
        return look()

    return await until(looked, what)


# settings


@pytest.mark.parametrize("path", LIVE_PATHS)
async def test_every_option_that_is_live_changes_the_node_at_once_and_goes_back(path, caplog):
    """The options that a node runs by are compared before, meanwhile and after."""
    app = Pollux("memory://")
    root, handler = logging.getLogger(), logging.StreamHandler()
    handler.setFormatter(TextLines())
    level = root.level
    root.addHandler(handler)
    root.setLevel("INFO")
    try:
        async with app:
            before = state_of(app)
            setting = await app.operations.settings.set_setting(path, sample(path))
            changed = {name for name, value in state_of(app).items() if before[name] != value}
            assert len(changed) == 1, changed
            assert (setting.path, setting.by) == (path, app.operations.context.actor)
            assert await app.operations.settings.unset_setting(path)
            assert state_of(app) == before
            assert not await app.operations.settings.unset_setting(path)
    finally:
        root.removeHandler(handler)
        root.setLevel(level)


def state_of(app):
    options = {name: getattr(app.runtime.options, name) for name in TUNABLE}
    assert {name: getattr(app.options, name) for name in TUNABLE} == options
    return options | {"per_target": app._built_in.http.per_target, "level": logging.getLogger().level}


async def test_what_is_set_reaches_what_does_the_work():
    async with Pollux("memory://") as app:
        for path in LIVE_PATHS:
            await app.operations.settings.set_setting(path, sample(path))
        runtime = app.runtime
        assert (runtime.pool.seats, runtime.settler.backlog_max, runtime.options.grace_ms) == (17, 68, 17_000)
        claims = runtime.dispatcher.options
        assert (claims.long_poll_ms, claims.batch, runtime.dispatcher.min_poll_ms) == (17_000, 17, 17_000)
        assert runtime.timekeeper.wait_max_ms == 17_000
        keeps = runtime.pruner.options
        assert (keeps.keep_per_job, keeps.keep_ms, keeps.dead_max, keeps.dead_ms, keeps.log_max) == (
            17,
            17_000,
            17,
            17_000,
            17,
        )
        assert runtime.worker.child_memory == 512_000_000


async def test_a_setting_survives_a_restart_and_the_file_decides_again_without_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.yaml").write_text("pool: {seats: 4}\n")

    def an_app(**arguments):
        config = load_config("p.yaml", environ={}, arguments={"store": "sqlite:///p.db"} | arguments)
        return Pollux.from_config(config)

    async with an_app() as app:
        assert app.runtime.pool.seats == 4
        await app.operations.as_actor("ann").settings.set_setting("pool.seats", "50")
        assert app.runtime.pool.seats == 50
    async with an_app() as app:
        assert app.runtime.pool.seats == 50, "from the first run on"
        [setting] = await app.operations.settings.list_settings()
        assert (setting.path, setting.value, setting.by) == ("pool.seats", "50", "ann")
        (tmp_path / "p.yaml").write_text("pool: {seats: 5}\n")
        await app.operations.config_file.reload()
        assert app.runtime.pool.seats == 50, "live wins over the file"
        await app.operations.settings.unset_setting("pool.seats")
        assert app.runtime.pool.seats == 5
    async with an_app(seats=3) as app:
        await app.operations.settings.set_setting("pool.seats", 60)
        assert app.runtime.pool.seats == 3, "an argument wins over live"
        lines = [
            (line.actor, line.action, line.subject, line.detail)
            for line in (await app.operations.audit.list_audit()).lines
        ]
    assert ("ann", "set", "pool.seats", "50") in lines
    assert [line[1:] for line in lines if line[1] == "unset"] == [("unset", "pool.seats", "it was 50")]


async def test_the_environment_wins_over_what_is_live():
    config = load_config(None, environ={"POLLUX_SEATS": "8"}, arguments={})
    async with Pollux.from_config(load_config(None, environ={"POLLUX_SEATS": "8", "POLLUX_STORE": "memory://"})) as app:
        await app.operations.settings.set_setting("pool.seats", 60)
        assert (config.seats, app.runtime.pool.seats) == (8, 8)


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("leader.ttl", "20s", "change it in the file and restart"),
        ("store", "memory://", "cannot change while a node runs"),
        ("pool.seat", 5, 'did you mean "pool.seats"'),
        ("zzz", 5, "these can be set: pool.seats"),
        ("pool.seats", 0, "pool.seats: 0 cannot be used"),
        ("pool.seats", "many", "give a whole number"),
        ("pool.grace", "soon", "pool.grace"),
        ("pool.seats", [5], "this is no value"),
        ("pool.seats", None, "this is no value"),
        ("log.level", "x" * 1_000_000, "this is no value"),
        ("file:p.yaml", "x", "there is no option"),
    ],
)
async def test_what_cannot_be_set_is_refused_with_the_cure(path, value, says):
    async with Pollux("memory://") as app:
        with pytest.raises(InvalidInput) as caught:
            await app.operations.settings.set_setting(path, value)
        assert says in str(caught.value)
        assert await app.operations.settings.list_settings() == []


async def test_a_note_that_means_nothing_here_is_left_alone():
    """Another release of us may know options that this one does not, or other values."""
    async with Pollux("memory://") as app:
        await app.backend.put_notes(
            [
                NotePut("setting:pool.seats", {"value": -5}),
                NotePut("setting:pool.colour", {"value": "red"}),
                NotePut("setting:pool.grace", "no mapping"),
                NotePut("setting:pool.batch", {"value": 33, "by": "ann"}),
            ]
        )
        await app.backend.wake()
        await truly(lambda: app.runtime.dispatcher.options.batch == 33, "what means something is heard")
        assert (app.runtime.pool.seats, app.runtime.options.grace_ms) == (10, 25_000)


async def test_every_live_option_is_read_by_something():
    assert len(LIVE_PATHS) == len(TUNABLE) + 2, "log.level and http.per_target are not the runtime's"
    assert all(live_value(path, sample(path)) is not None for path in LIVE_PATHS)


# who hears, and what it costs


def a_node(clock, store, **options):
    app = Pollux(store, clock=clock)
    app.options = app._usual = type(app.options)(**({"renews_apart": False} | options))
    app.handler(_noop, name="noop")
    return app


async def _noop(ctx):
    return None


async def test_idle_nodes_do_not_ask_for_settings():
    """What an idle minute costs each kind of node, settings and all."""
    clock = FakeClock()
    behind = MemoryStore(clock)
    calls = {}
    for kind, options in {"leader": {"runs": False}, "worker": {"plans": False}, "both": {}}.items():
        store = FaultyStore(behind)
        app = a_node(clock, store, **options)
        await app.start()
        await settle_down()
        await clock.advance(MINUTE)
        store.calls.clear()
        for _ in range(10):
            await clock.advance(MINUTE)
        calls[kind] = [verb for verb in store.calls if verb == "notes"]
        rate = len(store.calls) / 600
        await app.close()
        assert rate <= {"leader": 0.5, "worker": 0.2, "both": 0.7}[kind], (kind, rate)
    assert calls == {"leader": [], "worker": [], "both": []}


async def test_a_worker_that_waits_for_work_hears_at_once():
    """No time passes here: its wait is ended, and the claim tells."""
    clock = FakeClock()
    behind = MemoryStore(clock)
    worker, asker = a_node(clock, behind, plans=False), a_node(clock, behind)
    await worker.start()
    await settle_down()
    await asker.open()
    await asker.operations.settings.set_setting("pool.seats", 33)
    await settle_down()
    assert worker.runtime.pool.seats == 33
    [seen] = await asker.operations.status.nodes()
    assert seen.seats == 33, "and its beat says so"
    await asker.operations.workers.drain_workers()
    await settle_down()
    assert worker.runtime.status().is_paused
    await worker.close()
    await asker.close()


async def test_a_node_that_neither_claims_nor_leads_hears_with_its_beat():
    clock = FakeClock()
    behind = MemoryStore(clock)
    leader, other = a_node(clock, behind, runs=False), a_node(clock, behind, runs=False)
    await leader.start()
    await settle_down()
    await other.start()
    await settle_down()
    assert (leader.runtime.leader.term, other.runtime.leader.term) == (1, None)
    await leader.operations.settings.set_setting("history.keep", 7)
    await settle_down()
    assert leader.runtime.pruner.options.keep_per_job == 7
    for _ in range(4):
        await clock.advance(other.options.beat_ms // 2)
    assert other.runtime.pruner.options.keep_per_job == 7
    await other.close()
    await leader.close()


async def test_a_node_whose_seats_are_all_taken_hears_as_the_leader():
    async with Pollux("memory://", seats=1) as app:
        gate = asyncio.Event()

        @app.handler(name="wait")
        async def wait(ctx):
            await gate.wait()

        await app.put_jobs([Job(id="w", handler="wait")])
        runs = [await app.enqueue("w"), await app.enqueue("w")]
        await truly(lambda: app.runtime.pool.busy == 1, "the seat is taken")
        await app.backend.put_notes([NotePut("setting:pool.seats", {"value": 2})])
        await truly(lambda: app.runtime.pool.busy == 2, "there is a second seat, and somebody on it")
        gate.set()
        for run in runs:
            assert (await finished(app, run.id)).state is RunState.DONE


# drains


async def test_drained_workers_claim_nothing_until_they_are_resumed_over_restarts(tmp_path):
    url = f"sqlite:///{tmp_path}/p.db"

    def an_app():
        app = Pollux(url, name="shop")
        app.job(_noop)
        return app

    async with an_app() as app:
        await app.operations.as_actor("ann").workers.drain_workers(reason="database moves")
        assert [(each.node, each.reason, each.by) for each in await app.operations.workers.drained_workers()] == [
            (None, "database moves", "ann")
        ]
        await truly(lambda: app.runtime.status().is_paused, "it is drained")
        run = await app.enqueue("_noop")
        assert (await app.why(run.id)).answer == "drained"
    async with an_app() as app:
        await truly(lambda: app.runtime.status().is_paused, "over a restart")
        assert (await app.get_run(run.id)).state is RunState.READY
        why = await app.why(run.id)
        words = r"it is ready, but all workers are drained by ann since 20\d\d-\S+Z \(database moves\)"
        assert re.fullmatch(words, why.reason)
        assert app.runtime.status().claimed == 0
        assert why.cure == "pollux resume --workers"
        assert await app.operations.workers.resume_workers()
        assert (await finished(app, run.id)).state is RunState.DONE
        assert not await app.operations.workers.resume_workers()
        lines = [
            (line.actor, line.action, line.subject, line.detail)
            for line in (await app.operations.audit.list_audit()).lines
        ]
    assert ("ann", "drain", "all workers", "database moves") in lines
    assert "resume" in {line[1] for line in lines}


async def test_one_node_is_drained_and_the_other_goes_on_and_it_ends_with_the_node(tmp_path):
    url = f"sqlite:///{tmp_path}/p.db"

    def an_app():
        app = Pollux(url, name="shop")
        app.job(_noop)
        return app

    async with an_app() as one:
        async with an_app() as other:
            await one.operations.workers.drain_workers(other.node_id)
            await truly(lambda: other.runtime.status().is_paused, "the other one is drained")
            assert not one.runtime.status().is_paused
            runs = [await other.enqueue("_noop") for _ in range(5)]
            for run in runs:
                assert (await finished(one, run.id)).owner in ("", one.node_id)
            assert other.runtime.status().claimed == 0
            with pytest.raises(NotFound):
                await one.operations.workers.drain_workers("no-such-node")
        assert await one.operations.workers.drained_workers() == []
        assert await one.backend.notes(DRAIN) == [], "it went with its node"
        await one.backend.put_notes([NotePut(drain_key("died-long-ago"), {})])
        assert await one.operations.workers.drained_workers() == []
        await one.operations.workers.drain_workers(one.node_id)
        assert [note.key for note in await one.backend.notes(DRAIN)] == [drain_key(one.node_id)], "orphans are gone"
        assert await one.operations.workers.resume_workers(one.node_id)


async def test_a_drain_that_a_move_of_the_store_asked_for_is_not_taken_away():
    async with Pollux("memory://") as app:
        now_ms = app.clock.now_ms()
        await app.backend.put_notes([NotePut(DRAIN, {"reason": "it is about to be moved"}, expires_ms=now_ms + MINUTE)])
        with pytest.raises(Conflict, match="moved elsewhere") as refused:
            await app.operations.workers.resume_workers()
        assert "wait for the end of `pollux store move`" in refused.value.cure


# a turn now


async def test_a_turn_now_fires_what_is_due_and_says_so(tmp_path):
    """The leader sleeps until the next due time it knows; here something became due behind its back."""
    clock = FakeClock()
    app = a_node(clock, MemoryStore(clock))
    app.add("noop", every("1h", spread=False), id="hourly")
    await app.start()
    await settle_down()
    ask = asyncio.ensure_future(app.operations.workers.trigger())
    await settle_down()
    answer = await ask
    assert (answer.leaders, answer.answered, answer.fired) == ((app.node_id,), (app.node_id,), 0)
    before = app.runtime.timekeeper.fired
    clock._now_ms += 3_600_000  # the wall clock alone: nobody is woken by it
    ask = asyncio.ensure_future(app.operations.as_actor("ann").workers.trigger())
    await settle_down()
    answer = await ask
    assert answer.fired == app.runtime.timekeeper.fired - before == 1
    assert [(line.actor, line.action) for line in (await app.operations.audit.list_audit()).lines] == [
        (app.operations.context.actor, "trigger"),
        ("ann", "trigger"),
    ]
    await app.close()


async def test_a_turn_now_lets_go_what_nothing_holds_any_more_and_says_so():
    """The pause has run out by the wall clock, which wakes nobody."""
    clock = FakeClock()
    app = a_node(clock, MemoryStore(clock))
    app.add("noop", id="held", target="db")
    await app.start()
    await app.pause(target="db", duration="30m")
    await app.enqueue("held")
    await settle_down()
    assert (await app.operations.status.counts()).held == 1
    clock._now_ms += 3_600_000
    ask = asyncio.ensure_future(app.operations.workers.trigger())
    await settle_down()
    answer = await ask
    assert (answer.fired, answer.released, answer.skipped) == (0, 1, 0)
    assert (await app.operations.status.counts()).held == 0
    await app.close()


async def test_a_turn_is_asked_for_wherever_the_leader_is(tmp_path):
    url = f"sqlite:///{tmp_path}/p.db"
    async with Pollux(url, runs=False) as leader:
        await truly(lambda: leader.runtime.leader.term, "it leads")
        asker = Pollux(url, actor="cli:ann")
        await asker.open()
        try:
            await until(lambda: _leads(asker), "the others see that it leads")
            turns = leader.runtime.timekeeper.turns
            answer = await asker.operations.workers.trigger()
            assert (answer.leaders, answer.answered) == ((leader.node_id,), (leader.node_id,))
            assert leader.runtime.timekeeper.turns > turns
            assert await asker.backend.notes("turn:") == [], "nothing is left behind"
        finally:
            await asker.close()


async def test_a_turn_is_asked_for_of_the_leader_of_each_version(tmp_path):
    """Also of a node that leads one of them itself, which could turn alone."""
    url = f"sqlite:///{tmp_path}/p.db"
    async with Pollux(url, runs=False, scheduler_version=1) as old, Pollux(url, runs=False) as new:
        await truly(lambda: old.runtime.leader.term and new.runtime.leader.term, "both lead")
        await until(lambda: _all_lead(new, 2), "that is told")
        answer = await new.operations.workers.trigger()
        assert answer.leaders == answer.answered == (old.node_id, new.node_id)
        assert await new.backend.notes("turn:") == [], "nothing is left behind"


async def _all_lead(app, count):
    return len([node for node in await app.operations.status.nodes() if node.leads]) == count


async def _leads(app):
    return any(node.leads for node in await app.operations.status.nodes())


async def test_where_nobody_leads_nobody_is_asked():
    app = Pollux("memory://")
    await app.open()
    assert (await app.operations.workers.trigger()).leaders == ()
    await app.close()


# names of older schedulers


def test_variables_that_do_nothing_yet_are_named_once():
    said = ineffective_variables(
        {"SCHEDULER_CB_THRESHOLD": "5", "SCHEDULER_CB_TIMEOUT": "60s", "ADAPTIVE_POLLING_ENABLED": "true"}
    )
    assert "SCHEDULER_CB_THRESHOLD, SCHEDULER_CB_TIMEOUT (there are no circuit breakers yet" in said
    assert "ADAPTIVE_POLLING_ENABLED (there are no adaptive intervals yet" in said
    assert ineffective_variables({"SCHEDULER_LEADER_TTL": "5", "PATH": "/"}) == ""


def test_a_variable_with_one_underscore_too_few_is_told_with_its_name():
    said = ineffective_variables(
        {"POLLUX_SERVER_PORT": "9000", "POLLUX_POOL_SEATS": "5", "POLLUX_METRICS_PORT": "9091"}
    )
    assert "POLLUX_SERVER_PORT (write POLLUX_PORT or POLLUX_SERVER__PORT)" in said
    assert "POLLUX_POOL_SEATS (write POLLUX_SEATS or POLLUX_POOL__SEATS)" in said
    assert "POLLUX_METRICS_PORT" not in said


def test_what_kubernetes_tells_of_a_service_was_meant_by_nobody():
    """Of one that is called pollux-server."""
    assert ineffective_variables({"POLLUX_SERVER_PORT": "tcp://10.96.0.7:8060"}) == ""


def test_the_variables_of_older_schedulers_set_ours():
    environ = {
        "SCHEDULER_WORKER_POOL_SIZE": "12",
        "SCHEDULER_JOB_TIMEOUT": "90",
        "SCHEDULER_QUEUE_BATCH_SIZE": "50",
        "SCHEDULER_V2_ENABLED": "false",
    }
    config = load_config(None, environ=environ)
    assert (config.seats, config.job_timeout_ms, config.batch, config.plans) == (12, 90_000, 50, False)
    assert len({name for option in OPTIONS for name in option.also} & set(environ)) == 4
    app = Pollux.from_config(load_config(None, environ=environ | {"POLLUX_STORE": "memory://"}))
    assert (app.options.seats, app.options.batch, app.options.plans, app.options.runs) == (12, 50, False, True)


def test_jobs_of_the_file_that_name_no_timeout_have_the_usual_one(tmp_path):
    text = """
defaults: {priority: low}
groups: {g: {defaults: {timeout: 7s}}}
jobs:
  - {id: a, python: "m:f"}
  - {id: b, python: "m:f", timeout: 5s}
  - {id: c, python: "m:f", group: g}
  - {id: d, http: "http://h/"}
"""
    (tmp_path / "p.yaml").write_text(text)
    config = load_config(str(tmp_path / "p.yaml"), environ={"SCHEDULER_JOB_TIMEOUT": "90"})
    assert {job.id: job.timeout_ms for job in config.jobs} == {"a": 90_000, "b": 5_000, "c": 7_000, "d": 90_000}
    (tmp_path / "p.yaml").write_text(text.replace("priority: low", "timeout: 8s"))
    config = load_config(str(tmp_path / "p.yaml"), environ={"SCHEDULER_JOB_TIMEOUT": "90"})
    assert {job.id: job.timeout_ms for job in config.jobs} == {"a": 8_000, "b": 5_000, "c": 7_000, "d": 8_000}


def test_the_page_names_every_option_that_can_be_live():
    page = (Path(__file__).parents[2] / "docs" / "settings.md").read_text()
    table = page.partition("| can be live |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`([a-z_]+\.[a-z_]+)`", table)) == set(LIVE_PATHS)
    old = {name for option in OPTIONS for name in option.also if name.startswith("SCHEDULER_")} - {"SCHEDULER_VERSION"}
    assert old <= set(re.findall(r"SCHEDULER_[A-Z_0-9]+", page))
