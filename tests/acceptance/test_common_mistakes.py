"""What people try first on the Python side: none of it goes wrong in silence, and each mistake names the cure."""

import asyncio
import logging

import pytest

from pollux import Context, Pollux, cron, every
from pollux.errors import Conflict, InvalidInput
from pollux.job_builder import job_of
from pollux.model import RunState


@pytest.fixture
def app() -> Pollux:
    return Pollux("memory://")


def test_a_job_can_be_declared_without_parentheses(app):
    @app.job
    def greet(ctx): ...

    @app.job()
    def part(ctx): ...

    assert [job.id for job in app.declared_jobs()] == ["greet", "part"]
    assert callable(greet)
    assert greet.__name__ == "greet"


async def test_the_same_id_answers_the_run_that_is_there(app):
    @app.job()
    def greet(ctx, name: str): ...

    @app.job()
    def part(ctx, name: str): ...

    async with app:
        await app.pause(everything=True)
        first = await app.enqueue(greet, {"name": "Ada"}, id="one", delay="1h")
        again = await app.enqueue(greet, {"name": "Bob"}, id="one")
        assert (again.payload, again.due_ms) == (first.payload, first.due_ms), "the run as it is, not as asked for"
        with pytest.raises(Conflict, match="one is one of job 'greet', not of 'part'; use another id"):
            await app.enqueue(part, {"name": "Ada"}, id="one")
        await app.cancel("one")
        assert (await app.enqueue(greet, {"name": "Ada"}, id="one")).state is RunState.CANCELLED


def test_an_option_that_is_misspelt_is_named():
    with pytest.raises(InvalidInput, match="unknown option 'seatz'; did you mean \"seats\""):
        Pollux("memory://", seatz=3)  # type: ignore[call-arg]


async def test_a_node_says_which_version_it_is(app):
    @app.job(every("1h"))
    def tick(ctx): ...

    async with app:
        [node] = await app.operations.status.nodes()
        assert node.version


@pytest.mark.parametrize(
    ("option", "cure"),
    [
        ({"interval": "30s"}, r'give the schedule as the first argument: every\("30s"\)'),
        ({"seconds": 30}, r'give the schedule as the first argument: every\("30s"\)'),
        ({"cron": "0 6 * * *"}, r'first argument: cron\("0 6 \* \* \*"\)'),
        ({"timezone": "Europe/Berlin"}, r'tz="Europe/Berlin"\)'),
        ({"max_retries": 3}, 'did you mean "retry"'),
        ({"kwargs": {}}, 'did you mean "params"'),
    ],
)
def test_a_word_of_another_scheduler_leads_to_ours(app, option, cure):
    with pytest.raises(InvalidInput, match=cure):

        @app.job(**option)
        def check(ctx): ...


def test_workers_are_called_seats():
    with pytest.raises(InvalidInput, match="unknown option 'workers'; did you mean \"seats\""):
        Pollux("memory://", workers=5)  # type: ignore[call-arg]


@pytest.mark.parametrize("word", ["timezone", "tz"])
def test_the_time_zone_of_an_app_is_told_where_it_belongs(word):
    where = rf"unknown option '{word}'; it belongs to a schedule: cron\(\"0 6 \* \* \*\", tz=\"Europe/Berlin\"\)"
    with pytest.raises(InvalidInput, match=where):
        Pollux("memory://", **{word: "Europe/Berlin"})


def test_the_time_zone_of_a_cron_line_is_called_tz():
    with pytest.raises(InvalidInput, match=r"cron\(\) has no option 'timezone'; did you mean \"tz\""):
        cron("0 6 * * *", timezone="Europe/Berlin")


def test_a_context_by_another_name_is_told_how_to_be_called(app):
    with pytest.raises(InvalidInput, match=r"missing context.*call it ctx, or annotate it: context: Context"):

        @app.job(every("30s"))
        def check(context): ...


async def test_a_context_may_be_called_otherwise_if_it_is_annotated(app):
    seen = asyncio.Queue()

    @app.job()
    async def greet(context: Context, name):
        seen.put_nowait((context.run.job_id, name))

    async with app:
        await app.enqueue(greet, {"name": "Ada"})
        assert await asyncio.wait_for(seen.get(), 60) == ("greet", "Ada")


@pytest.mark.parametrize("annotation", [Context, "Context", "pollux.Context", "'pollux.Context'", "p.Context"])
def test_an_annotation_of_the_context_may_be_a_text_and_name_the_module(app, annotation):
    """As where a module begins with `from __future__ import annotations`."""

    def greet(context, name): ...

    greet.__annotations__["context"] = annotation
    assert app.handler(greet) is greet
    assert app.add(greet, every("1h"), params={"name": "Ada"})


async def test_a_function_without_a_context_is_called_with_its_params_alone(app):
    seen = asyncio.Queue()

    @app.job()
    async def greet(name):
        seen.put_nowait(name)

    async with app:
        await app.enqueue(greet, {"name": "Ada"})
        assert await asyncio.wait_for(seen.get(), 60) == "Ada"


async def test_params_are_checked_by_name_and_never_by_type(app):
    seen = asyncio.Queue()

    @app.job()
    async def greet(ctx, name: str):
        seen.put_nowait(name)

    app.add(greet, every("1h"), id="hourly", params={"name": 5})
    with pytest.raises(InvalidInput, match="missing name; unknown nam"):
        app.add(greet, every("1h"), id="misspelt", params={"nam": "Ada"})
    async with app:
        assert await asyncio.wait_for(seen.get(), 60) == 5, "as it was declared"
        with pytest.raises(InvalidInput, match="missing name; unknown nam"):
            await app.enqueue(greet, {"nam": "Ada"})
        await app.enqueue(greet, {"name": [7]})
        assert await asyncio.wait_for(seen.get(), 60) == [7], "and as it was sent"


async def test_other_params_under_a_known_id_are_said_to_be_dropped(app, caplog):
    """The command line prints it; a program gets the run that is there, and a warning."""

    @app.job()
    def greet(ctx, name: str): ...

    caplog.set_level(logging.WARNING, logger="pollux")
    await app.open()
    await app.enqueue(greet, {"name": "Ada"}, id="one", delay="1h")
    await app.enqueue(greet, {"name": "Ada"}, id="one", delay="1h")
    assert caplog.messages == []
    await app.enqueue(greet, {"name": "Bob"}, id="one", delay="1h")
    assert caplog.messages == [
        "run one exists already and is ready; its params were kept, and what was sent now was dropped"
    ]
    await app.close()


async def test_a_forced_run_of_a_known_id_is_the_run_that_is_there(app, caplog):
    @app.job()
    def greet(ctx, name: str): ...

    @app.job()
    def part(ctx): ...

    caplog.set_level(logging.WARNING, logger="pollux")
    await app.open()
    first = await app.enqueue(greet, {"name": "Ada"}, id="one", delay="1h")
    again = await app.run_now(greet, {"name": "Bob"}, id="one", anyway=True)
    assert (again.payload, again.due_ms, again.cause) == (first.payload, first.due_ms, first.cause)
    assert caplog.messages == [
        "run one exists already and is ready; its params were kept, and what was sent now was dropped"
    ]
    with pytest.raises(Conflict, match="one is one of job 'greet', not of 'part'; use another id"):
        await app.run_now(part, id="one")
    await app.close()


async def test_a_job_of_a_handler_that_nobody_has_is_put_with_a_warning(app, caplog):
    app.handler(lambda ctx: None, name="fetch")
    caplog.set_level(logging.WARNING, logger="pollux")
    await app.open()
    await app.put_jobs([job_of(id="good", handler="fetch", schedule=every("1h"))])
    assert caplog.messages == []
    await app.put_jobs([job_of(id="odd", handler="fecth", schedule=every("1h"))])
    [said] = caplog.messages
    assert said == (
        'job odd: no live node has handler fecth, nor does this program; did you mean "fetch"; '
        "its runs wait until a node with it starts"
    )
    assert [job.id for job in (await app.operations.jobs.list_jobs()).jobs] == ["good", "odd"]
    await app.close()


async def test_a_handler_that_a_living_node_has_is_known(tmp_path, caplog):
    url = f"sqlite:///{tmp_path}/p.db"
    node, producer = Pollux(url, name="shop"), Pollux(url, name="web")
    node.handler(lambda ctx: None, name="fetch")
    caplog.set_level(logging.WARNING, logger="pollux")
    async with node:
        await producer.open()
        await producer.put_jobs([job_of(id="good", handler="fetch", schedule=every("1h"))])
        assert caplog.messages == []
        await producer.close()
