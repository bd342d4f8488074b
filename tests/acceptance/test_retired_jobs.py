"""A release drops a job of which a firing and an asked-for run still wait: what becomes of them, on every store."""

import pytest

from pollux import Pollux, every
from pollux.model import RunState
from pollux.store.contract import RunFilter
from tests.http_world import until
from tests.servers import postgres
from tests.servers.redis import own_url


@pytest.fixture(params=["sqlite", "redis", "postgres"])
def url(request, tmp_path):
    match request.param:
        case "redis":
            return own_url("retired")
        case "postgres":
            return postgres.own_url("retired")
    return f"sqlite:///{tmp_path}/p.db"


async def nothing(ctx):
    """A handler of the tests."""


def a_release(store, number, *names, **options):
    app = Pollux(store, name="shop", release=number, **options)
    for name in names:
        app.handler(nothing, name=name)
        app.add(name, every("1h"), id=name, target="t")
    return app


async def test_a_waiting_firing_ends_cancelled_and_what_was_asked_for_waits_and_says_why(url):
    old = a_release(url, 7, "stock", "old", runs=False)
    async with old:

        async def fired():
            return (await old.operations.runs.list_runs(RunFilter(job_id="old"), limit=10)).runs

        firing = (await until(fired))[0].id
        asked = await old.enqueue("old")
    new = a_release(url, 8, "stock", "fresh")
    async with new:

        async def over():
            run = await new.get_run(firing)
            return run if run.state is RunState.CANCELLED else None

        run = await until(over)
        assert run.cancel == "no node declares its job any more"

        async def told():
            why = await new.why(asked.id)
            return why if "no node declares it" in why.reason else None

        why = await until(told)
        assert (why.answer, "since release 8" in why.reason) == ("held", True)
        assert why.cure.endswith("delete it with its waiting runs: pollux jobs delete old")
        await new.operations.jobs.delete_jobs(["old"])
        assert (await new.get_run(asked.id)).state is RunState.CANCELLED
