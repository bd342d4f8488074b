"""Events as they come: who listens hears what happens on the node, and whoever comes back hears what was missed."""

import asyncio
import json
from contextlib import asynccontextmanager

import aiohttp
import pytest

from pollux.events import JobRefused, LoopFailed, NodeStopped, RunFailed, RunSettled
from pollux.secrets import HIDDEN
from pollux.server import ApiServer, ServerOptions
from pollux.server.auth import Role
from pollux.server.limits import ApiLimits
from pollux.server.routes import events as routes
from pollux.server.routes.events import KINDS, PER_RUN, EventBuffer
from tests.acceptance.api_world import SECRETS, an_app, eventually, served

PATIENCE_S = 60.0


@asynccontextmanager
async def node(**limits):
    """A node with its API on a real port."""
    async with an_app() as app, aiohttp.ClientSession() as session:
        server = ApiServer(app, ServerOptions(port=0, token=SECRETS[Role.ADMIN], limits=ApiLimits(rate=0, **limits)))
        await server.start()
        session.headers["Authorization"] = f"Bearer {SECRETS[Role.ADMIN]}"
        try:
            yield app, session, f"http://127.0.0.1:{server.port}"
        finally:
            await server.stop()


async def post(session, url, body):
    async with session.post(url, json=body) as answer:
        assert answer.status < 300, await answer.text()
        return await answer.json()


async def next_event(answer):
    """The next one, as (id, kind, data); comments are passed over."""
    found = {}
    async with asyncio.timeout(PATIENCE_S):
        while True:
            line = (await answer.content.readline()).decode().rstrip("\n")
            if line.startswith(("id: ", "event: ", "data: ")):
                name, _, value = line.partition(": ")
                found[name] = value
            elif not line and "event" in found:
                return found.get("id"), found["event"], json.loads(found["data"])


async def until(answer, kind):
    while True:
        event = await next_event(answer)
        if event[1] == kind:
            return event


async def test_whoever_listens_hears_of_every_run_and_comes_back_where_it_was():
    async with node() as (_, session, url):
        await post(session, f"{url}/api/v2/jobs/batch", {"jobs": [{"id": n, "handler": "fine"} for n in ("a", "b")]})
        async with session.get(f"{url}/api/v2/events") as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            await post(session, f"{url}/api/v2/runs", {"job_id": "a", "id": "r1"})
            number, _, data = await until(stream, "run_settled")
            assert (data["job_id"], data["run_id"], data["follow_ups"]) == ("a", "r1", [])
        await post(session, f"{url}/api/v2/runs", {"job_id": "a", "id": "r2"})
        await post(session, f"{url}/api/v2/runs", {"job_id": "b", "id": "r3"})

        async with session.get(f"{url}/api/v2/events?job_id=b", headers={"Last-Event-ID": number}) as stream:
            _, _, data = await until(stream, "run_settled")
            assert (data["job_id"], data["run_id"]) == ("b", "r3")
        async with session.get(f"{url}/api/v2/events?kind=run_settled", headers={"Last-Event-ID": number}) as stream:
            seen = [(await next_event(stream))[2]["run_id"] for _ in range(2)]
            assert sorted(seen) == ["r2", "r3"]


@pytest.mark.parametrize("last", ["elsewhere:1:abc-7", "nonsense", "-", "9" * 400])
async def test_whoever_comes_from_elsewhere_is_told_that_something_was_missed(last):
    async with (
        node() as (_, session, url),
        session.get(f"{url}/api/v2/events", headers={"Last-Event-ID": last}) as stream,
    ):
        _, kind, data = await next_event(stream)
        assert (kind, "another node" in data["why"]) == ("missed", True)


async def test_what_must_not_be_seen_is_not_seen_by_whoever_listens_either():
    """Whatever an event holds: words, or an exception."""
    secret = "kanarie-4711-im-strom"
    async with node() as (app, session, url), session.get(f"{url}/api/v2/events") as stream:
        HIDDEN.add(secret)
        app.events.emit(RunFailed("r", "a", "dead", f"no way in with {secret}"))
        _, _, failed = await until(stream, "run_failed")
        app.events.emit(LoopFailed("dispatcher", OSError(f"refused by {secret}"), 1, 5))
        _, _, loop = await until(stream, "loop_failed")
    assert failed["error"] == "no way in with ***"
    assert loop["error"] == "OSError: refused by ***"


async def test_the_stream_ends_with_the_node():
    async with node() as (app, session, url), session.get(f"{url}/api/v2/events") as stream:
        app.events.emit(NodeStopped(app.node_id, drained=True))
        async with asyncio.timeout(PATIENCE_S):
            await stream.content.read()


@pytest.mark.parametrize(
    ("limits", "query"), [({}, "seconds=1"), ({"listen_s": 0.1}, ""), ({"listen_s": 0.1}, "seconds=9")]
)
async def test_the_stream_ends_with_its_time(limits, query):
    async with node(**limits) as (_, session, url):
        async with session.get(f"{url}/api/v2/events?{query}") as stream, asyncio.timeout(PATIENCE_S):
            said = (await stream.content.read()).decode()
        assert said.startswith("retry: ")
        assert said.endswith("\n\n")


async def test_whoever_comes_again_after_the_end_misses_nothing():
    async with node() as (_, session, url):
        await post(session, f"{url}/api/v2/jobs", {"id": "a", "handler": "fine"})
        async with session.get(f"{url}/api/v2/events?kind=run_settled") as stream:
            await post(session, f"{url}/api/v2/runs", {"job_id": "a", "id": "r1"})
            last, _, _ = await next_event(stream)
        await post(session, f"{url}/api/v2/runs", {"job_id": "a", "id": "r2"})
        async with session.get(f"{url}/api/v2/events?kind=run_settled", headers={"Last-Event-ID": last}) as stream:
            assert (await next_event(stream))[2]["run_id"] == "r2"
        ended = session.get(f"{url}/api/v2/events?kind=run_settled&seconds=1", headers={"Last-Event-ID": last})
        async with ended as stream, asyncio.timeout(PATIENCE_S):
            said = await stream.content.read()
        assert (said.count(b"event: run_settled"), b'"r2"' in said, b'"r1"' in said) == (1, True, False)


@pytest.mark.parametrize("seconds", ["0", "3601", "soon", "1.5"])
async def test_a_time_that_is_none_is_refused(seconds):
    async with served(runs=False) as client:
        assert (await client("GET", f"/api/v2/events?seconds={seconds}")).status == 422


async def test_there_is_room_for_a_hundred(monkeypatch):
    monkeypatch.setattr(routes, "CLIENTS_MAX", 1)
    async with node() as (_, session, url), session.get(f"{url}/api/v2/events") as first:
        assert first.status == 200
        await first.content.readline()
        async with session.get(f"{url}/api/v2/events") as second:
            assert second.status == 503
            assert (await second.json(content_type=None))["cure"]


async def test_a_quiet_stream_says_that_it_is_there(monkeypatch):
    monkeypatch.setattr(routes, "BEAT_S", 0.05)
    async with node() as (_, session, url), session.get(f"{url}/api/v2/events?kind=node_stopped") as stream:
        async with asyncio.timeout(PATIENCE_S):
            while await stream.content.readline() != b": still here\n":
                pass


async def test_an_event_that_nobody_knows_is_refused():
    async with served(runs=False) as client:
        answer = await client("GET", "/api/v2/events?kind=run_setled")
        assert answer.status == 422
        assert "run_settled" in answer.json["cure"]


async def test_events_of_runs_cost_nothing_while_nobody_listens():
    async with an_app() as app:
        before = {word for word in PER_RUN if app.events.wants(KINDS[word])}
        ring = EventBuffer(app.events, app.clock)
        assert {word for word in PER_RUN if app.events.wants(KINDS[word])} == before
        ring.join()
        assert {word for word in PER_RUN if app.events.wants(KINDS[word])} == PER_RUN
        ring.part()
        ring._rest()  # what the timer does two minutes after the last one left
        assert {word for word in PER_RUN if app.events.wants(KINDS[word])} == before
        ring.close()


async def test_whoever_was_away_for_long_is_told_that_runs_went_by():
    """Two minutes after the last one left, the events of runs are no longer kept."""
    async with an_app() as app:
        ring = EventBuffer(app.events, app.clock)
        ring.join()
        app.events.emit(settled(0))
        ring.part()
        ring._rest()
        app.events.emit(settled(1))
        app.events.emit(JobRefused("home", "it cannot be planned"))
        for kinds, is_told in ((None, True), (frozenset({"job_refused"}), False)):
            stream, sent = routes.EventStream(ring, "n", "n-1", None, kinds), []

            async def send(message, sent=sent):
                sent.append(message.get("body", b""))

            async def whole(sent=sent):
                return b"event: job_refused" in b"".join(sent)

            telling = asyncio.ensure_future(stream(None, asyncio.Event().wait, send))
            await eventually(whole, "what was kept is told")
            assert (b"event: missed" in b"".join(sent)) == is_told
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)
        ring.close()


def settled(number):
    return RunSettled(f"r{number}", "home", "done", "ok", 1, "")


async def test_who_is_slow_is_told_how_much_was_missed_and_costs_no_memory(monkeypatch):
    """A listener is a place in the ring; the ring keeps the latest."""
    monkeypatch.setattr(routes, "SEND_S", PATIENCE_S)
    async with an_app() as app:
        ring = EventBuffer(app.events, app.clock)
        stream = routes.EventStream(ring, "n", "", None, frozenset({"run_settled"}))
        sent, gate, parts = [], asyncio.Event(), 0

        async def send(message):
            nonlocal parts
            sent.append(message.get("body", b""))
            parts += 1
            if parts == 3:
                await gate.wait()  # the client takes nothing for a while

        telling = asyncio.ensure_future(stream(None, asyncio.Event().wait, send))

        async def begun():
            return parts >= 2

        async def stuck():
            return parts >= 3

        async def whole():
            return b'"run_id":"r25000"' in b"".join(sent)

        await eventually(begun, "it listens")
        app.events.emit(settled(0))
        await eventually(stuck, "the first event is on its way")
        for number in range(1, 25_001):
            app.events.emit(settled(number))
        assert len(ring._kept) == 10_000
        gate.set()
        await eventually(whole, "the last event has come")
        text = b"".join(sent).decode()
        [missed] = [json.loads(part.partition("data: ")[2]) for part in text.split("\n\n") if "event: missed" in part]
        assert missed["count"] == 15_000
        assert text.count("event: run_settled") == 10_001
        ring.close()
        await asyncio.wait_for(telling, PATIENCE_S)


async def test_who_takes_nothing_for_too_long_is_let_go(monkeypatch):
    monkeypatch.setattr(routes, "SEND_S", 0.05)
    async with an_app() as app:
        ring = EventBuffer(app.events, app.clock)
        stream = routes.EventStream(ring, "n", "", None, None)

        async def send(message):
            if message["type"] == "http.response.body":
                await asyncio.Event().wait()

        await asyncio.wait_for(stream(None, asyncio.Event().wait, send), PATIENCE_S)
        assert ring.listeners == 0
        ring.close()
