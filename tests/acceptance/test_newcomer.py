"""What do people try first?  Small things of the Python side that must not go wrong in silence."""

import pytest

from pollux import Pollux, every
from pollux.errors import Conflict, InvalidInput
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
        [node] = await app.nodes()
        assert node.version
