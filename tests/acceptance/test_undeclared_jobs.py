"""Jobs of code that is gone: they are named where one looks, and the cure works; what lives is refused."""

import asyncio

import pytest

from pollux import Pollux, every
from pollux.app.operations.jobs import place_of
from pollux.errors import Conflict
from tests.acceptance.api_world import api_of
from tests.acceptance.api_world import eventually as soon
from tests.acceptance.terminal import SameProcess, Terminal, eventually, stopped

FILE = """
store: sqlite:///p.db
jobs:
  - {id: filed, python: "work:fine", interval: 1h}
"""
SHOP = """
from pollux import Pollux, every

app = Pollux("sqlite:///p.db", name="shop")


@app.job(every("1h"))
async def stock(ctx):
    return 42


@app.job(every("1h"))
async def mail(ctx):
    return 42
"""
WHERE = ("-c", "p.yaml")


@pytest.fixture
def here(tmp_path) -> SameProcess:
    pollux = SameProcess(tmp_path)
    pollux.write("p.yaml", FILE)
    pollux.write("shop.py", SHOP)
    return pollux


def ids(here) -> set[str]:
    answer = here("jobs", *WHERE, "--json")
    return {job["id"] for job in answer.json["jobs"]} if answer.code == 0 else set()


def test_a_source_is_told_as_where_it_can_be_found():
    assert place_of("file:p.yaml") == "the file p.yaml"
    assert place_of("file:shadow") == "the file with name: shadow", "it may be called otherwise"
    assert place_of("code:shop") == "the code of shop"


def test_jobs_of_code_that_is_gone_are_named_with_a_cure_that_works(here):
    """The code runs once and ends; a node with a file lives on."""
    terminal = Terminal(here.folder)
    with terminal.started("serve", "--app", "shop:app", "--no-server", "--no-watch") as shop:
        eventually(lambda: ids(here) == {"stock", "mail"}, "its jobs are there", shop)
        alive = here("jobs", "delete", "stock", *WHERE)
        assert (alive.code, ids(here)) == (1, {"stock", "mail"})
        assert "job 'stock' is declared by code:shop, whose node is alive: it would add the job again" in alive.err
        assert "pollux pause stock; once the nodes that declare it are stopped it can be deleted" in alive.err
        assert stopped(shop).code == 0
    with terminal.started("serve", *WHERE, "--no-server", "--no-watch") as other:
        eventually(lambda: ids(here) == {"stock", "mail", "filed"}, "the file's are there, too", other)
        cure = "pollux jobs delete --source code:shop"
        [finding] = [each for each in here("doctor", *WHERE, "--json").json["findings"] if each["about"] == "sources"]
        assert (finding["level"], finding["cure"].endswith(cure)) == ("warn", True)
        assert "no living node has code:shop (2 jobs: mail, stock)" in finding["seen"]
        assert here.ok("why", "stock", *WHERE, "--json").json["why"]["cure"].endswith("pollux jobs delete stock")
        told = here.ok(*cure.split()[1:], "--yes", *WHERE)
        assert "deleted mail, stock" in told.out
        assert "what the code of shop declares comes back when a node of it is started" in told.err
        assert ids(here) == {"filed"}
        assert not [each for each in here("doctor", *WHERE, "--json").json["findings"] if each["about"] == "sources"]

        filed = here("jobs", "delete", "filed", *WHERE)
        assert (filed.code, ids(here)) == (1, {"filed"})
        assert "take it out of the file p.yaml (it is read again by itself)" in filed.err
        assert stopped(other).code == 0
    gone = here.ok("jobs", "delete", "filed", *WHERE, "--json").json
    assert gone == {"deleted": ["filed"], "come_back_with": ["file:p.yaml"]}


async def test_the_api_and_python_refuse_and_accept_the_same(tmp_path):
    url = f"sqlite:///{tmp_path}/p.db"
    shop = Pollux(url, name="shop")
    shop.job(every("1h"))(_stock)
    async with Pollux(url, name="other") as other:
        api = api_of(other)
        async with shop:
            refused = await api("DELETE", "/api/v2/jobs/_stock")
            assert refused.status == 409
            assert "declared by code:shop, whose node is alive" in refused.json["detail"]
            assert "POST /api/v2/jobs/_stock/pause" in refused.json["cure"]
            with pytest.raises(Conflict, match="it would add the job again"):
                await other.operations.jobs.delete_jobs(["_stock"])

        async def finding():
            found = (await api.ok("GET", "/api/v2/scheduler/health"))["findings"]
            return next((each for each in found if each["name"] == "sources" and each["level"] == "degraded"), None)

        assert "no living node has code:shop (1 job: _stock)" in (await soon(finding, "health names it"))["seen"]
        gone = await api.ok("DELETE", "/api/v2/jobs/_stock")
        assert gone["message"] == "the job is deleted; a node of code:shop adds it again when it starts"

        async def well():
            found = (await api.ok("GET", "/api/v2/scheduler/health"))["findings"]
            return all(each["level"] == "healthy" for each in found if each["name"] in ("sources", "freshness"))

        await soon(well, "and then it is well again")


async def _stock(ctx):
    await asyncio.sleep(0)


async def test_a_restart_of_code_while_others_live_loses_nothing(tmp_path):
    """What was due while it was away is not skipped: its jobs are left alone until somebody takes them away."""
    url = f"sqlite:///{tmp_path}/p.db"

    def a_shop():
        app = Pollux(url, name="shop")
        app.job(every("100ms"))(_stock)
        return app

    async with Pollux(url, name="other") as other:
        async with a_shop():
            await soon(lambda: _ended(other), "it runs")
        await soon(lambda: _held(other), "one firing waits for it")
        assert (await other.operations.jobs.get_job("_stock")).declared
        before = await _ended(other)
        async with a_shop():
            await soon(lambda: _more(other, before), "it goes on")


async def _ended(app):
    return (await app.operations.jobs.get_job("_stock")).memory.ended


async def _more(app, before):
    return await _ended(app) > before


async def _held(app):
    return (await app.operations.status.counts()).held
