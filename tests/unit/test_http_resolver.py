"""DNS resolver with silent name servers: other names are not delayed."""

import asyncio
import socket
import threading

import pytest

from pollux.handlers.http import client
from pollux.handlers.http.client import Resolver


@pytest.fixture
def silent(monkeypatch):
    """Names under `silent.test` are looked up until the test ends; the others at once, and each lookup is counted."""
    is_over, asked = threading.Event(), []

    def look(host, port, *_rest):
        asked.append(host)
        if host.endswith("silent.test"):
            is_over.wait(30)
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.7", port))]

    monkeypatch.setattr(client.socket, "getaddrinfo", look)
    yield asked
    is_over.set()


async def test_dozens_of_silent_names_do_not_keep_a_healthy_one_waiting(silent):
    resolver = Resolver()
    stuck = [asyncio.ensure_future(resolver.resolve(f"{n}.silent.test", 80)) for n in range(40)]
    await asyncio.sleep(0)
    async with asyncio.timeout(60):
        [found] = await resolver.resolve("healthy.test", 80)
    assert (found["host"], found["port"], found["hostname"]) == ("192.0.2.7", 80, "healthy.test")
    assert not any(each.done() for each in stuck)
    for each in stuck:
        each.cancel()
    await resolver.close()
    assert silent.count("healthy.test") == 1


async def test_a_silent_name_keeps_one_thread_however_often_it_is_asked_for(silent):
    resolver = Resolver()
    for _ in range(5):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await resolver.resolve("silent.test", 80)
    await resolver.close()
    assert silent == ["silent.test"]


async def test_a_name_is_looked_up_anew_once_it_was_answered(silent):
    resolver = Resolver()
    await resolver.resolve("healthy.test", 80)
    await asyncio.sleep(0)
    async with asyncio.timeout(60):
        while len(silent) < 2:
            await resolver.resolve("healthy.test", 80)
    await resolver.close()


async def test_what_the_system_says_of_a_name_reaches_whoever_asked():
    resolver = Resolver()
    with pytest.raises(socket.gaierror):
        await resolver.resolve("no-such-name.invalid", 80)
    assert (await resolver.resolve("localhost", 80, socket.AF_INET))[0]["host"] == "127.0.0.1"
    await resolver.close()
