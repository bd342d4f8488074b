"""Many who force a run of one job at once, over two nodes: one of them gets it, and the others are told which."""

import asyncio

import pytest

from pollux.errors import Conflict
from pollux.model import Job
from tests.acceptance.api_world import an_app, served
from tests.servers import postgres
from tests.servers.redis import own_url

JOB = {"id": "long", "handler": "slow"}


@pytest.fixture(params=["sqlite", "redis", "postgres"])
def url(request, tmp_path):
    match request.param:
        case "redis":
            return own_url("forced")
        case "postgres":
            return postgres.own_url("forced")
    return f"sqlite:///{tmp_path}/p.db"


@pytest.mark.parametrize("needs", [{}, {"target": "host"}], ids=["plain", "gated"])
async def test_of_twenty_requests_over_two_nodes_one_is_accepted(url, needs):
    async with served(url) as first, served(url) as second:
        await first.ok("POST", "/api/v2/jobs", JOB | needs)
        path = "/api/v2/jobs/long/force-run"

        told = await asyncio.gather(*[(second if n % 2 else first)("POST", path) for n in range(20)])

        [accepted] = [answer.json["run"]["id"] for answer in told if answer.status == 202]
        refused = [answer.json for answer in told if answer.status == 409]
        assert {problem["run_id"] for problem in refused} == {accepted}
        assert len(refused) == 19
        assert (await second("POST", path, {"anyway": True})).status == 202


async def test_of_twenty_callers_in_two_programs_one_is_accepted(url):
    async with an_app(url) as first, an_app(url) as second:
        await first.put_jobs([Job(id="long", handler="slow")])
        calls = [(second if n % 2 else first).run_now("long") for n in range(20)]
        told = await asyncio.gather(*calls, return_exceptions=True)

        [accepted] = [each.id for each in told if not isinstance(each, Exception)]
        conflicts = [each for each in told if isinstance(each, Conflict)]
        assert [each.found["run_id"] for each in conflicts] == [accepted] * 19
