"""Limits of the API: slow clients, big ones and many of them, on both of uvicorn's protocols."""

import asyncio
import contextlib
import socket
import time
from functools import partial

import pytest
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from pollux.server import gateway as apis
from pollux.server.limits import FORGIVEN_S, ApiLimits, Failures, Rates, address_key
from pollux.server.server import _affordable
from tests.acceptance.strangers import PATIENCE_S, answer_of, head_of, world

NODES = "/api/v2/nodes"
TOKENS = "/api/v2/tokens"
TRIES = 3  # for what is to be quick: a machine may stand still just then, but not each time
QUICK = {"look_s": 0.05, "head_s": 0.3, "body_s": 1.5, "body_begin_s": 0.3, "stalled_s": 0.3}


@pytest.fixture(params=[HttpToolsProtocol, H11Protocol], ids=["httptools", "h11"])
def protocol(request, monkeypatch):
    monkeypatch.setattr("uvicorn.protocols.http.auto.AutoHTTPProtocol", request.param)


@pytest.fixture
def no_time_passes(monkeypatch):
    """At the door: nobody is let in again because the machine is slow."""
    monkeypatch.setattr(apis, "make_api", partial(apis.make_api, clock=lambda: 1_000.0))


async def ended(reader) -> bytes:
    """All that still came, until the other side hung up."""
    async with asyncio.timeout(PATIENCE_S):
        with contextlib.suppress(ConnectionError):
            return await reader.read()
    return b""


# slow clients


@pytest.mark.usefixtures("protocol")
async def test_a_thousand_that_say_nothing_shut_nobody_out():
    """Slowloris: half a head each, a byte now and then.  A probe is answered 100 times of 100, each within 2 s."""
    crowd = min(1_000, _affordable(ApiLimits()) // 2)
    slowest = []
    for _ in range(TRIES):
        async with world() as api:
            slowest.append(await _slowest_of_a_hundred(api, crowd))
        if slowest[-1] < 2.0:
            break
    assert min(slowest) < 2.0


async def _slowest_of_a_hundred(api, crowd):
    lines = await asyncio.gather(*(api.connect() for _ in range(crowd)))
    for _, writer in lines:
        writer.write(b"GET /live HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
    slowest = 0.0
    for number in range(100):
        begun = time.monotonic()
        assert (await api.ask("/live")).status == 200
        slowest = max(slowest, time.monotonic() - begun)
        for _, writer in lines[number::100]:
            writer.write(b"a")
    return slowest


@pytest.mark.usefixtures("protocol")
async def test_when_all_places_are_taken_the_longest_silent_makes_room():
    async with world(limits=ApiLimits(connections=10)) as api:
        for _ in range(40):
            await api.connect()
        for number in range(20):
            assert (await api.ask("/live")).status == 200, number


@pytest.mark.usefixtures("protocol")
async def test_places_of_those_who_wait_for_an_answer_are_not_taken_away(monkeypatch):
    """All places are held by requests at work: the next one is told so."""
    async with world(limits=ApiLimits(connections=3)) as api:
        token = (await api.token()).secret
        go_on, arrived, nodes = asyncio.Event(), asyncio.Semaphore(0), api.app.operations.status.nodes

        async def slow(_):
            arrived.release()
            await go_on.wait()
            return await nodes()

        monkeypatch.setattr("pollux.app.operations.status.StatusOperations.nodes", slow)
        asked = [asyncio.create_task(api.ask(NODES, token=token)) for _ in range(3)]
        for _ in asked:
            await arrived.acquire()
        assert (await api.ask("/live")).status == 503
        go_on.set()
        assert [(await each).status for each in asked] == [200, 200, 200]


@pytest.mark.usefixtures("protocol")
@pytest.mark.parametrize("said", [b"", b"GET /live HT", b"GET /live HTTP/1.1\r\nHost: localhost\r\n"])
async def test_a_head_that_does_not_end_is_given_up(said):
    async with world(limits=ApiLimits(**QUICK)) as api:
        reader, writer = await api.connect()
        writer.write(said)
        assert b"408" in await ended(reader)


@pytest.mark.usefixtures("protocol")
async def test_a_head_that_trickles_is_given_up_however_often_a_byte_comes():
    """Also the second one of a connection: uvicorn's own timer begins anew with every byte."""
    async with world(limits=ApiLimits(**QUICK)) as api:
        reader, writer = await api.connect()
        writer.write(head_of("GET", "/live", {"Host": "localhost"}))
        assert (await answer_of(reader)).status == 200
        over = asyncio.create_task(ended(reader))
        with contextlib.suppress(ConnectionError):
            for byte in b"GET /live HTTP/1.1\r\nHost: " + b"x" * 2_000:
                writer.write(bytes([byte]))
                await writer.drain()
                done, _ = await asyncio.wait([over], timeout=0.02)
                if done:
                    break
        assert (await over)[9:12] in {b"408", b""}  # who goes on sending may miss what was said


@pytest.mark.usefixtures("protocol")
async def test_a_quiet_connection_between_two_requests_is_left_alone():
    async with world(limits=ApiLimits(**QUICK)) as api:
        reader, writer = await api.connect()
        for _ in range(2):
            writer.write(head_of("GET", "/live", {"Host": "localhost"}))
            assert (await answer_of(reader)).status == 200
            await asyncio.sleep(2 * QUICK["head_s"])  # longer than a head may take


@pytest.mark.usefixtures("protocol")
@pytest.mark.parametrize("chunk", [b"", b"x"])
async def test_a_body_that_does_not_come_or_trickles_is_given_up(chunk):
    async with world(limits=ApiLimits(**QUICK, at_work=1)) as api:
        token = (await api.token()).secret
        reader, writer = await api.connect()
        headers = {"Host": "localhost", "Authorization": f"Bearer {token}", "Content-Length": "100000"}
        writer.write(head_of("POST", TOKENS, headers))
        over = asyncio.create_task(ended(reader))
        begun = time.monotonic()
        while chunk and not over.done():
            with contextlib.suppress(ConnectionError):
                writer.write(chunk)
                await writer.drain()
            await asyncio.wait([over], timeout=0.02)
        assert b"408" in await over or chunk  # who goes on sending may miss what was said
        assert time.monotonic() - begun < PATIENCE_S
        assert (await api.ask(NODES, token=token)).status == 200  # its place is free again


@pytest.mark.usefixtures("protocol")
async def test_a_body_of_a_slow_but_honest_client_is_taken():
    async with world(limits=ApiLimits(**QUICK | {"body_s": 30.0, "body_rate": 100.0})) as api:
        token = (await api.token()).secret
        reader, writer = await api.connect()
        body = b'{"role": "viewer"' + b" " * 900 + b"}"
        headers = {"Host": "localhost", "Authorization": f"Bearer {token}", "Content-Length": str(len(body))}
        writer.write(head_of("POST", TOKENS, headers))
        for start in range(0, len(body), 100):
            writer.write(body[start : start + 100])
            await asyncio.sleep(0.06)
        assert (await answer_of(reader)).status == 201


@pytest.mark.usefixtures("protocol")
async def test_who_does_not_read_the_answer_is_dropped():
    """Many requests for a long answer, and none of it is taken."""
    async with world(limits=ApiLimits(**QUICK | {"rate": 0.0})) as api:
        for number in range(300):
            await api.app.operations.tokens.create_token("viewer", name=f"{number:090d}")
        token = (await api.token()).secret
        _, writer = await api.connect()
        reader_is_deaf(writer)
        request = head_of("GET", TOKENS, {"Host": "localhost", "Authorization": f"Bearer {token}"})
        async with asyncio.timeout(PATIENCE_S):
            while len(api.server.connections):
                with contextlib.suppress(ConnectionError, TimeoutError):
                    writer.write(request)
                    async with asyncio.timeout(0.05):
                        await writer.drain()
                await asyncio.sleep(0.01)


def reader_is_deaf(writer):
    writer.transport.pause_reading()
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)


# big ones


@pytest.mark.usefixtures("protocol")
async def test_a_gigabyte_is_refused_by_what_it_says_of_itself():
    async with world() as api:
        token = (await api.token()).secret
        headers = {"Content-Length": str(10**9)}
        said = await api.ask(TOKENS, "POST", token=token, headers=headers)
        assert (said.status, said.headers["connection"]) == (413, "close")
        assert (await api.ask(TOKENS, "POST", headers=headers)).status == 401  # nobody's is not even measured


@pytest.mark.usefixtures("protocol")
@pytest.mark.parametrize("path", [TOKENS, "/api/v2/verbs/nodes"])
async def test_a_gigabyte_in_pieces_is_refused_when_it_is_too_much(path):
    """The answer is read although the client is still sending, and little of it was taken."""
    async with world() as api:
        token = (await api.token()).secret
        reader, writer = await api.connect()
        headers = {"Host": "localhost", "Authorization": f"Bearer {token}", "Transfer-Encoding": "chunked"}
        writer.write(head_of("POST", path, headers))
        answer, sent = asyncio.create_task(answer_of(reader)), 0
        with contextlib.suppress(ConnectionError):
            while not answer.done() and sent < 10**9:
                writer.write(b"10000\r\n" + b" " * 65_536 + b"\r\n")
                sent += 65_536
                await writer.drain()
                await asyncio.sleep(0)
        said = await answer
    assert said.status in {413, 409}
    assert sent < 40_000_000


@pytest.mark.usefixtures("protocol")
async def test_a_small_body_that_nobody_reads_costs_no_connection():
    async with world() as api:
        token = (await api.token("viewer")).secret
        reader, writer = await api.connect()
        headers = {"Host": "localhost", "Authorization": f"Bearer {token}", "Content-Length": "18"}
        for _ in range(3):
            writer.write(head_of("POST", TOKENS, headers) + b'{"role": "viewer"}')
            said = await answer_of(reader)
            assert (said.status, said.headers.get("connection")) == (403, None)


@pytest.mark.usefixtures("protocol")
async def test_headers_that_are_too_big_are_refused_at_once_and_in_pieces():
    async with world() as api:
        said = await api.ask("/live", headers={"X-Big": "x" * 17_000})
        assert said.status in {400, 431}
        reader, writer = await api.connect()
        over = asyncio.create_task(ended(reader))
        writer.write(b"GET /live HTTP/1.1\r\nHost: localhost\r\n")
        sent = 0
        with contextlib.suppress(ConnectionError):
            while not over.done() and sent < 10_000_000:
                writer.write(b"X-%d: %s\r\n" % (sent, b"y" * 900))
                sent += 900
                await writer.drain()
                await asyncio.sleep(0)
        answer = await over
    assert sent < 1_000_000
    assert answer[9:12] in {b"431", b"400", b""}  # the last: what was sent meanwhile cut the line


@pytest.mark.usefixtures("protocol")
async def test_what_is_no_http_is_refused_and_the_next_is_served():
    async with world() as api:
        for noise in (b"\x16\x03\x01\x02\x00\x01\x00", b"\r\n\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x00" * 1_000):
            reader, writer = await api.connect()
            writer.write(noise)
            writer.write_eof()
            await ended(reader)
        assert (await api.ask("/live")).status == 200


@pytest.mark.usefixtures("protocol")
async def test_nobody_is_upgraded_to_another_protocol():
    async with world() as api:
        upgrade = {
            "Connection": "Upgrade, close",
            "Upgrade": "websocket",
            "Sec-WebSocket-Key": "x",
            "Sec-WebSocket-Version": "13",
        }
        assert (await api.ask(NODES, headers=upgrade)).status == 401


# many of them


async def test_an_address_elsewhere_has_so_many_connections_and_no_more(monkeypatch):
    monkeypatch.setattr("pollux.server.server.is_loopback", lambda _: False)
    async with world(limits=ApiLimits(per_address=5)) as api:
        held = [await api.connect() for _ in range(5)]
        await asyncio.sleep(0)
        assert (await api.ask("/live")).status == 503
        held.pop()[1].close()
        async with asyncio.timeout(PATIENCE_S):
            while True:
                if (await api.ask("/live")).status == 200:
                    break


@pytest.mark.usefixtures("no_time_passes")
async def test_a_token_that_asks_too_often_is_told_when_to_come_again():
    async with world(limits=ApiLimits(rate=5.0, burst=10.0)) as api:
        often, other = [(await api.token()).secret for _ in range(2)]
        answers = [await api.ask(NODES, token=often) for _ in range(20)]
        assert [said.status for said in answers[:10]] == [200] * 10
        assert answers[-1].status == 429
        assert int(answers[-1].headers["retry-after"]) >= 1
        assert (await api.ask(NODES, token=other)).status == 200


async def test_a_rate_of_nothing_means_any_number():
    async with world(limits=ApiLimits(rate=0.0)) as api:
        token = (await api.token()).secret
        reader, writer = await api.connect()
        for _ in range(300):
            writer.write(head_of("GET", NODES, {"Host": "localhost", "Authorization": f"Bearer {token}"}))
            assert (await answer_of(reader)).status == 200


@pytest.mark.usefixtures("no_time_passes")
async def test_strangers_and_guessers_are_slowed_down_but_a_good_token_is_let_in():
    async with world() as api:
        token = (await api.token()).secret
        strangers = [(await api.ask(NODES)).status for _ in range(40)]
        assert strangers[:20] == [401] * 20
        assert strangers[-1] == 429
        guesses = [await api.ask(NODES, token=f"pf_00000000_{number}") for number in range(12)]
        assert [said.status for said in guesses[:5]] == [401] * 5
        assert guesses[-1].status == 429
        assert (await api.ask(NODES, token=token)).status == 200
        assert [(await api.ask("/live")).status for _ in range(50)] == [200] * 50


async def test_more_requests_at_work_than_there_is_room_for_are_refused_but_not_the_probe(monkeypatch):
    async with world(limits=ApiLimits(at_work=2)) as api:
        token = (await api.token()).secret
        go_on, arrived, nodes = asyncio.Event(), asyncio.Semaphore(0), api.app.operations.status.nodes

        async def slow(_):
            arrived.release()
            await go_on.wait()
            return await nodes()

        monkeypatch.setattr("pollux.app.operations.status.StatusOperations.nodes", slow)
        asked = [asyncio.create_task(api.ask(NODES, token=token)) for _ in range(2)]
        for _ in asked:
            await arrived.acquire()
        refused = await api.ask(NODES, token=token)
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        assert (await api.ask("/live")).status == 200
        go_on.set()
        assert [(await each).status for each in asked] == [200, 200]


async def test_an_answer_on_an_open_connection_does_not_wait_for_the_other_side():
    """Without TCP_NODELAY each would take the 40 ms after which a client confirms the first half of the last one."""
    async with world() as api:
        reader, writer = await api.connect()
        took = []
        for _ in range(20):
            begun = time.monotonic()
            writer.write(head_of("GET", "/live", {"Host": "localhost"}))
            await answer_of(reader)
            took.append(time.monotonic() - begun)
    assert min(took[10:]) < 0.02


# the arithmetic


def test_a_rate_gives_its_burst_at_once_and_then_one_at_a_time():
    rates = Rates(10.0, 20.0)
    assert [rates.wait_s("a", 0.0) for _ in range(20)] == [0.0] * 20
    assert rates.wait_s("a", 0.0) == pytest.approx(0.1)
    assert rates.wait_s("b", 0.0) == 0.0
    assert rates.wait_s("a", 0.1) == 0.0
    assert rates.wait_s("a", 0.1) > 0
    assert [rates.wait_s("a", 100.0) for _ in range(20)] == [0.0] * 20


def test_a_refused_request_costs_nothing_of_the_next_second():
    rates = Rates(1.0, 1.0)
    assert rates.wait_s("a", 0.0) == 0.0
    for _ in range(1_000):
        assert rates.wait_s("a", 0.5) == pytest.approx(0.5)
    assert rates.wait_s("a", 1.0) == 0.0


def test_the_memory_of_a_limit_has_an_end():
    rates, failures = Rates(1.0, 1.0, keys_max=100), Failures(keys_max=100)
    for number in range(10_000):
        rates.wait_s(str(number), 0.0)
        failures.wait_s(str(number), 0.0)
    assert len(rates) == 100
    assert len(failures) == 100


def test_who_guesses_on_waits_twice_as_long_each_time_up_to_a_minute():
    failures, now, waits = Failures(), 0.0, []
    for _ in range(12):
        while not (wait := failures.wait_s("a", now)):
            pass
        waits.append(wait)
        now += wait
    assert waits[:7] == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0]
    assert set(waits[7:]) == {60.0}
    assert failures.wait_s("a", now + FORGIVEN_S + 1) == 0.0


@pytest.mark.parametrize(
    ("address", "key"),
    [
        ("203.0.113.9", "203.0.113.9"),
        ("2001:db8:1:2:3::9", "20010db800010002::/64"),
        ("::1", "::1"),
        ("fe80::1%eth0", "fe80000000000000::/64"),
        ("odd", "odd"),
    ],
)
def test_an_address_of_ipv6_counts_as_its_network(address, key):
    assert address_key(address) == key
