"""Hints for beginners' mistakes: one error each, with the correct form."""

import asyncio
import gc
import warnings

import pytest

from pollux import Pollux, every, once
from pollux.config import load_config
from pollux.errors import InvalidConfig, InvalidInput, PolluxError
from pollux.model import Job, Memory, Run, RunState
from pollux.plan.why import why_run
from pollux.registry import Handler, outcome_of
from pollux.units import zone_of


def told(call, *args, **kwargs):
    with pytest.raises(InvalidInput) as found:
        call(*args, **kwargs)
    return str(found.value)


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("CEST", "Europe/Berlin"),
        ("BST", "Europe/London"),
        ("PST", "America/Los_Angeles"),
        ("pdt", "America/Los_Angeles"),
        ("EDT", "America/New_York"),
        ("CDT", "America/Chicago"),
        ("IST", "Asia/Kolkata"),
        ("AEST", "Australia/Sydney"),
    ],
)
def test_an_abbreviation_is_answered_with_a_place_of_its_own(name, place):
    """`did you mean EST?` for CEST would move a job by six hours."""
    words = told(zone_of, name)
    assert f"like {place}" in words
    assert "season" in words
    assert "did you mean" not in words


@pytest.mark.parametrize("option", ["seats", "batch", "ready_max", "keep_history", "health_intervals", "traces_sample"])
def test_a_number_in_quotes_is_told(option):
    words = told(Pollux, "memory://", **{option: "5"})
    assert "'5' is no number" in words
    assert "without quotes" in words


def test_what_pollux_does_not_take_is_answered_with_what_it_does():
    assert 'did you mean "name"?' in told(Pollux, naem="x")
    assert 'did you mean "store"?' in told(Pollux, url="redis://x")
    words = told(Pollux, zzz=1)
    assert all(f" {name}," in words for name in ("store", "name", "release", "scheduler_version", "seats"))


async def test_run_inside_a_loop_is_one_error_with_its_cure():
    app = Pollux("memory://")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(PolluxError, match="async with app") as found:
            app.run()
        gc.collect()
    assert found.value.__context__ is None


def test_an_interval_by_another_schedulers_words_is_answered_with_ours():
    assert 'every("30s")' in told(every, seconds=30)
    assert 'every("5m")' in told(every, minutes=5)
    assert 'every("30s")' in told(every)
    assert every("30s").every_ms == 30_000


async def test_arguments_of_the_function_go_into_params():
    app = Pollux("memory://")

    @app.job()
    def greet(ctx, name: str): ...

    async with app:
        with pytest.raises(InvalidInput, match="params") as found:
            await app.enqueue(greet, name="x")
        assert '{"name": ...}' in str(found.value)
        with pytest.raises(InvalidInput, match='did you mean "priority"'):
            await app.enqueue(greet, {"name": "x"}, priorty="high")


def test_a_context_that_does_not_come_first_is_told_at_the_declaration():
    def late(name, ctx): ...

    def alone(name, *, ctx): ...

    for call in (late, alone):
        assert "ctx comes first" in told(Handler, "f", call)
        assert "def f(ctx, name)" in told(Handler, "f", call)

    def other(name, ctx=None): ...

    Handler("f", other)  # somebody else calls it with one


def test_a_method_is_no_handler_until_it_belongs_to_something():
    class Shop:
        def work(self, ctx): ...

    assert "a method is no handler" in told(Handler, "work", Shop.work)
    assert Handler("work", Shop().work).wants_ctx


def problems_of(tmp_path, job):
    path = tmp_path / "p.yaml"
    path.write_text(f"jobs: [{{id: a, {job}}}]\n")
    with pytest.raises(InvalidConfig) as found:
        load_config(str(path), environ={})
    return str(found.value)


@pytest.mark.parametrize(
    ("said", "ours"),
    [
        ('"0 6 * * *"', 'cron: "0 6 * * *"'),
        ('"@daily"', 'cron: "@daily"'),
        ("30s", "interval: 30s"),
        ("sometimes", "interval, cron"),
    ],
)
def test_a_schedule_is_said_by_its_kind(tmp_path, said, ours):
    assert ours in problems_of(tmp_path, f'python: "a:b", schedule: {said}')


def test_what_belongs_to_a_request_stands_inside_http(tmp_path):
    words = problems_of(tmp_path, 'http: "https://example.com", interval: 5s, method: POST')
    assert "it belongs into http: {url: ..., method: ...}" in words
    assert "http: {" not in problems_of(tmp_path, 'python: "a:b", interval: 5s, method: POST')


def test_a_handler_that_returns_a_coroutine_is_told_to_await_it():
    async def inner(): ...

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        words = told(outcome_of, inner(), job=Job(id="j", handler="h", memory=Memory()), started_ms=1, ended_ms=2)
        gc.collect()
    assert "await" in words
    assert "\n" not in words


def test_why_of_a_dead_run_names_the_command_that_revives_it():
    dead = Run(id="r1", job_id="j", due_ms=1, state=RunState.DEAD, error="E")
    why = why_run(dead, None, stops=(), nodes=(), ahead=None, now_ms=2)
    assert why.cure == "fix the cause, then revive it: pollux dead revive r1"


def test_none_of_it_is_in_the_way_of_what_is_right():
    app = Pollux("memory://", seats=5)
    app.add(app.handler(lambda ctx: None, name="h") and "h", once(), id="x")
    assert not asyncio.iscoroutinefunction(app.run)
