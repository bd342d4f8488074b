"""The port that serves metrics and nothing else."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from pollux import Pollux
from pollux.errors import InvalidInput
from pollux.observe.metrics import HEAD_BYTES_MAX, MetricsPort
from tests.runtime.scrape import Scrape
from tests.runtime.test_app import until


@asynccontextmanager
async def served(**options) -> AsyncIterator[tuple[Pollux, int]]:
    app = Pollux("memory://", metrics_port=0, **options)
    async with app:
        yield app, app._alongside.port.port


async def ask(port: int, request: str, host: str = "127.0.0.1") -> tuple[str, dict[str, str], bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{request}\r\nHost: {host}\r\n\r\n".encode())
    async with asyncio.timeout(60):
        answer = await reader.read()
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    return status.partition(" ")[2], dict(line.split(": ", 1) for line in lines), body


async def test_the_port_answers_metrics_in_both_formats_and_nothing_else():
    async with served() as (_, port):
        status, head, body = await ask(port, "GET /metrics HTTP/1.1")
        assert (status, head["Content-Type"]) == ("200 OK", "text/plain; version=0.0.4; charset=utf-8")
        assert int(head["Content-Length"]) == len(body)
        assert Scrape(body.decode())("scheduler_is_leader") in (0, 1)
        accept = "Accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5"
        status, head, body = await ask(port, f"GET /metrics?x=1 HTTP/1.1\r\n{accept}")
        assert (status, body[-6:]) == ("200 OK", b"# EOF\n")
        assert head["Content-Type"].startswith("application/openmetrics-text")
        status, head, body = await ask(port, "HEAD /metrics HTTP/1.1")
        assert (status, body, int(head["Content-Length"]) > 1_000) == ("200 OK", b"", True)
        assert (await ask(port, "GET / HTTP/1.1"))[0] == "404 Not Found"
        assert (await ask(port, "POST /metrics HTTP/1.1"))[0] == "405 Method Not Allowed"
        assert (await ask(port, "nonsense"))[0] == "404 Not Found"


async def test_on_this_machine_it_answers_to_names_of_this_machine_only():
    """A web page that gives its own name our address does not get to read it."""
    async with served() as (_, port):
        for host in ("localhost:9091", "127.0.0.1", "[::1]:9091", ""):
            assert (await ask(port, "GET /metrics HTTP/1.1", host))[0] == "200 OK"
        assert (await ask(port, "GET /metrics HTTP/1.1", "evil.example:9091"))[0] == "421 Misdirected Request"
    async with served(metrics_host="0.0.0.0") as (_, port):
        assert (await ask(port, "GET /metrics HTTP/1.1", "node-7.example:9091"))[0] == "200 OK"


async def test_whoever_says_nothing_or_too_much_is_sent_away_and_holds_nobody_up(monkeypatch):
    """The patience with those who say nothing is short here; that with those who speak is as usual."""
    met, answer = [], MetricsPort._answer

    async def meet(port, reader):
        met.append(reader)
        return await answer(port, reader)

    monkeypatch.setattr(MetricsPort, "_answer", meet)
    async with served() as (_, port):
        with monkeypatch.context() as short:
            short.setattr("pollux.observe.metrics.REQUEST_SECONDS_MAX", 0.2)
            silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]

            async def look():
                return len(met) == 20

            await until(look, "all are met")
        assert (await ask(port, "GET /metrics HTTP/1.1"))[0] == "200 OK"
        assert (await ask(port, f"GET /metrics HTTP/1.1\r\nX: {'x' * HEAD_BYTES_MAX}"))[0].startswith("431")
        for reader, writer in silent:
            async with asyncio.timeout(60):
                assert await reader.read() == b""
            writer.close()


async def test_too_many_at_once_are_told_to_come_again(monkeypatch):
    monkeypatch.setattr("pollux.observe.metrics.CONNECTIONS_MAX", 3)
    async with served() as (app, port):
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]

        async def look():
            return len(app._alongside.port._open) == 3

        await until(look, "all are connected")
        assert (await ask(port, "GET /metrics HTTP/1.1"))[0] == "503 Service Unavailable"
        for _, writer in silent:
            writer.close()


async def test_a_port_that_is_taken_is_an_error_of_the_start_and_leaves_nothing_behind():
    async with served() as (_, port):
        app = Pollux("memory://", metrics_port=port)
        with pytest.raises(InvalidInput, match=f"cannot be served on 127.0.0.1:{port}") as refused:
            await app.start()
        assert "metrics.port" in str(refused.value)
        assert app.runtime is None


async def test_while_a_node_drains_its_metrics_are_still_there():
    app = Pollux("memory://", metrics_port=0)
    started, may_end = asyncio.Event(), asyncio.Event()

    @app.job()
    async def slow(ctx):
        started.set()
        await may_end.wait()

    await app.start()
    port = app._alongside.port.port
    await app.enqueue(slow)
    await asyncio.wait_for(started.wait(), 60)
    drain = asyncio.ensure_future(app.drain())

    async def look():
        seen = Scrape((await ask(port, "GET /metrics HTTP/1.1"))[2].decode())
        return seen("scheduler_is_draining") == 1 and seen

    seen = await until(look, "it drains")
    assert seen("scheduler_jobs_currently_running") == 1
    may_end.set()
    await drain
    await app.close()
    with pytest.raises(OSError, match=r"refused|Connect"):
        await ask(port, "GET /metrics HTTP/1.1")


async def test_the_port_stops_with_talks_under_way():
    asked = asyncio.Event()

    class Slow:
        async def readings(self):
            asked.set()
            await asyncio.Event().wait()

    port = MetricsPort(Slow(), "127.0.0.1", 0)
    await port.start()
    asking = asyncio.ensure_future(ask(port.port, "GET /metrics HTTP/1.1"))
    await asyncio.wait_for(asked.wait(), 60)  # the question was read: who is closed with words unread hears of a reset
    assert port._open
    await port.stop()
    status, _, _ = await asking
    assert status == ""
