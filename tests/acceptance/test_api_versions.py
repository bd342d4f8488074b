"""Versions that share a store, by API: the same as `pollux migrate` and `pollux compare`."""

import asyncio
import time

import msgspec
import pytest
from msgspec.structs import replace

from pollux import Pollux
from pollux.app.operations.storage import VersionFigures
from pollux.model import Cause, Job, Run, RunState, run_of
from pollux.server.auth import Role
from pollux.store.contract import JobPut
from pollux.store.urls import open_store
from pollux.units import HOUR_MS, MINUTE_MS, format_moment
from tests.acceptance.api_world import api_of
from tests.acceptance.terminal import SameProcess

COMPARE = "/api/v2/versions/compare"
FIELDS = (
    *("version", "jobs", "waiting", "running", "unread", "counted_from", "ended", "failed", "dead", "cancelled"),
    *("kept", "late", "took", "is_cut", "uncounted"),
)


def ended(name, version, minutes_ago, *, late, took, state=RunState.DONE, failed=False):
    """A record of a run that is known to the millisecond."""
    started_ms = int(time.time() * 1_000) - minutes_ago * MINUTE_MS
    times = {"due_ms": started_ms - late, "started_ms": started_ms, "finished_ms": started_ms + took}
    run = Run(id=name, job_id="job", state=state, failed=failed, scheduler_version=version, **times)
    return "run", msgspec.to_builtins(run)


async def fill(url):
    """Version 1 is led, and has a job with a run at work, one that is ready, two at the gate; version 2 has a job."""
    store = open_store(url, scheduler_version=1)
    await store.open()
    old = Job(id="old", handler="http")
    await store.put_jobs([JobPut(old)])
    await store.of_version(2).put_jobs([JobPut(Job(id="new", handler="http"))])
    await store.enqueue([run_of(old, 0, Cause.ENQUEUED, id=name) for name in ("work", "ready")])
    assert len((await store.claim(node="n1", token="t", limit=1, lease_ms=HOUR_MS)).runs) == 1
    gated = replace(run_of(old, 0, Cause.ENQUEUED), gated=True, state=RunState.HELD)
    await store.enqueue([replace(gated, id=name) for name in ("gate", "gate too")])
    await store.elect("n1", ttl_ms=HOUR_MS)
    records = [
        ended("a", 1, 10, late=5, took=100),
        ended("b", 1, 20, late=7, took=300, failed=True),
        ended("c", 1, 30, late=9, took=200, state=RunState.DEAD, failed=True),
        ended("long ago", 1, 90, late=60_000, took=60_000),
        ended("d", 2, 15, late=1, took=40, state=RunState.CANCELLED),
    ]
    assert await store.load(records) == len(records)
    await store.close()


@pytest.fixture
def url(tmp_path):
    url = f"sqlite:///{tmp_path}/p.db"
    asyncio.run(fill(url))
    return url


def asked(url, path, **query):
    """The answer of a node that only looks."""

    async def ask():
        app = Pollux(url, name="api", runs=False)
        await app.open()
        try:
            return await api_of(app).as_(Role.VIEWER)("GET", path, **query)
        finally:
            await app.close()

    return asyncio.run(ask())


def test_versions_are_told_with_what_they_have_and_who_leads_them(url):
    answer = asked(url, "/api/v2/versions")

    assert answer.status == 200
    assert answer.json == {
        "versions": [
            {"number": 1, "jobs": 1, "held": 2, "ready": 1, "running": 1, "leader": "n1"},
            {"number": 2, "jobs": 1, "held": 0, "ready": 0, "running": 0, "leader": None},
        ]
    }


def test_two_versions_are_compared_by_the_runs_that_ended(url):
    answer = asked(url, COMPARE, one=1, other=2, since="1h")

    assert answer.status == 200, answer
    one, two = answer.json["versions"]
    assert tuple(one) == FIELDS
    assert (one["version"], one["jobs"], one["waiting"], one["running"]) == (1, 1, 3, 1)
    assert (one["ended"], one["failed"], one["dead"], one["cancelled"], one["kept"]) == (3, 2, 1, 0, 3)
    assert one["late"] == {"count": 3, "p50_ms": 7, "p99_ms": 9, "max_ms": 9}
    assert one["took"] == {"count": 3, "p50_ms": 200, "p99_ms": 300, "max_ms": 300}
    assert (two["version"], two["ended"], two["cancelled"]) == (2, 1, 1)
    assert two["took"] == {"count": 1, "p50_ms": 40, "p99_ms": 40, "max_ms": 40}


def test_an_hour_is_looked_at_where_nothing_is_said_and_a_longer_time_has_more(url):
    assert asked(url, COMPARE, one=1, other=2).json["versions"][0]["ended"] == 3
    assert asked(url, COMPARE, one=1, other=2, since="2h").json["versions"][0]["ended"] == 4


def test_the_figures_are_those_of_the_command(url, tmp_path):
    since = format_moment(int(time.time() * 1_000) - 2 * HOUR_MS)
    command = SameProcess(tmp_path).ok("compare", "2", "1", "--since", since, "--json", "--store", url).json

    told = asked(url, COMPARE, one=2, other=1, since=since).json

    assert told["since"] == since == format_moment(command["since_ms"])
    for over_http, here in zip(told["versions"], command["versions"], strict=True):
        assert here.keys() == set(VersionFigures.__struct_fields__), "whatever is added there is told here"
        counted_from_ms = here.pop("counted_from_ms")
        assert over_http == here | {"counted_from": counted_from_ms and format_moment(counted_from_ms)}


@pytest.mark.parametrize(
    ("query", "status", "place", "cure"),
    [
        ({"one": 1}, 422, "other", "give one, other"),
        ({"one": 0, "other": 2}, 422, "one", "give 1 to 9,999"),
        ({"one": "old", "other": 2}, 422, "one", "1 to 9,999"),
        ({"one": 1, "other": 2, "since": "yesterday"}, 422, "since", 'like "2h"'),
        ({"one": 1, "other": 2, "since": "2026-12-01T06:00:00"}, 422, "since", "+01:00"),
        ({"one": 1, "other": 2, "sinse": "1h"}, 422, "sinse", "since"),
        ({"one": 1, "other": 77}, 404, "77", "pollux migrate"),
    ],
)
def test_what_cannot_be_compared_is_refused_with_the_cure(url, query, status, place, cure):
    answer = asked(url, COMPARE, **query)

    assert answer.status == status, answer
    assert answer.headers["content-type"] == "application/problem+json"
    assert place in answer.json["detail"]
    assert cure in answer.json["cure"]
