"""Addresses of the server: ports, encryption, the socket."""

import asyncio
import contextlib
import os
import pwd
import shutil
import socket
import ssl
import stat
import tempfile
from pathlib import Path

import pytest

from pollux.errors import Conflict, InvalidInput
from pollux.server import server
from pollux.server.sockets import UnixSocket
from tests.acceptance.strangers import PATIENCE_S, answer_of, head_of, world
from tests.acceptance.terminal import SameProcess
from tests.acceptance.test_api_security import NODES, TOKENS
from tests.http_world import until

CERTIFICATES = Path(__file__).parent / "certificates"


# where it listens


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "pollux.example"])
async def test_beyond_this_machine_nothing_listens_in_the_clear(host):
    with pytest.raises(InvalidInput, match="in the clear") as refused:
        async with world(host=host):
            pass
    assert "server.tls" in refused.value.cure
    assert "--behind-proxy" in refused.value.cure


def test_the_program_refuses_to_start_in_the_clear_and_says_what_to_do(tmp_path):
    here = SameProcess(tmp_path)
    here.write("p.yaml", "server: {host: 0.0.0.0}\n")
    for command in (("serve", "-c", "p.yaml", "--no-watch"), ("check", "-c", "p.yaml")):
        refused = here(*command, environ={"POLLUX_SERVER": "true"})
        assert refused.code == 2
        assert "in the clear" in refused.err
        assert "--behind-proxy" in refused.err
    assert here("check", "-c", "p.yaml", environ={"POLLUX_SERVER": "true", "POLLUX_BEHIND_PROXY": "true"}).code == 0
    assert not (tmp_path / "pollux.db").exists()


def test_a_token_that_stands_in_the_file_itself_is_refused(tmp_path):
    here = SameProcess(tmp_path)
    here.write("p.yaml", f"server: {{token: {'k' * 32}}}\n")
    refused = here("check", "-c", "p.yaml", environ={"POLLUX_SERVER": "true"})
    assert refused.code == 2
    assert "p.yaml:1: server.token" in refused.err
    assert "k" * 32 not in refused.err


async def test_a_port_that_is_taken_is_said_and_refused_only_if_it_was_asked_for(caplog):
    async with world() as api:
        with pytest.raises(Conflict, match="cannot listen"):
            async with world(port=api.server.port):
                pass
        async with world(port=api.server.port, is_port_given=False) as other:
            assert other.server.port == 0
    assert "this node has none" in caplog.text


async def test_a_handshake_that_does_not_begin_is_given_up(monkeypatch):
    monkeypatch.setattr("pollux.server.server.HANDSHAKE_S", 0.2)
    async with world(tls=(CERTIFICATES / "good.pem", CERTIFICATES / "server.key")) as api:
        reader, _ = await api.connect()
        async with asyncio.timeout(PATIENCE_S):
            assert await reader.read() == b""


async def test_a_server_that_stops_ends_those_who_listen_for_events(monkeypatch):
    monkeypatch.setattr("pollux.server.server.END_S", 600)  # for requests that are about to be answered
    async with world() as api:
        token = (await api.token()).secret
        reader, writer = await api.connect()
        writer.write(head_of("GET", "/api/v2/events", {"Host": "localhost", "Authorization": f"Bearer {token}"}))
        await reader.readuntil(b"\r\n\r\n")
        async with asyncio.timeout(PATIENCE_S):
            await api.server.stop()


async def test_localhost_is_both_addresses():
    async with world() as api:
        assert (await api.ask("/live", host="127.0.0.1")).status == 200
        with socket.socket(socket.AF_INET6) as probe:
            try:
                probe.bind(("::1", 0))
            except OSError:
                return  # this machine has no IPv6
        assert (await api.ask("/live", host="::1")).status == 200


async def test_with_a_certificate_it_is_encrypted_and_a_new_one_is_taken_up(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("pollux.server.sockets.LOOK_S", 0.0)
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    shutil.copy(CERTIFICATES / "good.pem", cert)
    shutil.copy(CERTIFICATES / "server.key", key)

    async def shown(api):
        blind = ssl.create_default_context()
        blind.check_hostname, blind.verify_mode = False, ssl.CERT_NONE
        reader, writer = await api.connect(ssl=blind)
        writer.write(head_of("GET", "/live", {"Host": "localhost", "Connection": "close"}))
        assert (await answer_of(reader)).status == 200
        found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        return found

    async with world(host="0.0.0.0", tls=(cert, key)) as api:
        first = await shown(api)
        cert.write_text("half a certi")
        assert [await shown(api) for _ in range(2)] == [first, first]
        assert "the old one stays" in caplog.text
        shutil.copy(CERTIFICATES / "other.pem", cert)
        async with asyncio.timeout(PATIENCE_S):
            while await shown(api) == first:
                pass


async def test_a_certificate_that_cannot_be_used_is_said_at_the_start(tmp_path):
    with pytest.raises(InvalidInput, match=r"missing\.pem"):
        async with world(tls=(tmp_path / "missing.pem", CERTIFICATES / "server.key")):
            pass


# the socket


@pytest.fixture
def nook():
    """A short path: a socket's name has an end."""
    with tempfile.TemporaryDirectory(prefix="pollux-", dir="/tmp") as folder:
        yield Path(folder) / "p.sock"


async def test_whoever_can_open_the_socket_is_an_admin_under_their_own_name(nook):
    async with world(socket=nook) as api:
        assert stat.S_IMODE(nook.stat().st_mode) == 0o600
        made = await api.ask(TOKENS, "POST", socket=nook, headers={"Host": "anything"}, body=b'{"role": "viewer"}')
        assert made.status == 201
        [line] = (await api.app.operations.audit.list_audit()).lines
    assert (line.actor, line.action) == (f"cli:{pwd.getpwuid(os.getuid()).pw_name}", "token create")
    assert not nook.exists()


async def test_a_dead_socket_is_replaced_and_a_living_neighbours_is_not(nook):
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(nook))
    dead.close()
    async with world(socket=nook) as first:
        mark = nook.stat().st_ino
        async with world(socket=nook) as second:
            assert first.server.socket is not None
            assert second.server.socket is None
            assert nook.stat().st_ino == mark
            assert (await second.ask("/live")).status == 200
        assert nook.stat().st_ino == mark
        assert (await first.ask(NODES, socket=nook)).status == 200


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("has_port", [True, False])
async def test_a_neighbour_takes_the_socket_over_when_its_node_is_gone(nook, monkeypatch, is_killed, has_port):
    """Told to end or killed: also by a node that has no port, and so had nothing to listen on before."""
    async with contextlib.AsyncExitStack() as stays, contextlib.AsyncExitStack() as ends:
        first = await ends.enter_async_context(world(socket=nook))
        port = {} if has_port else {"port": first.server.port, "is_port_given": False}
        second = await stays.enter_async_context(world(socket=nook, **port))
        assert (second.server.socket, bool(second.server.port)) == (None, has_port)
        assert (await first.ask(NODES, socket=nook)).status == 200, "and it has met the neighbour's knock by now"
        if is_killed:
            monkeypatch.setattr(first.server.socket, "remove", lambda: None)  # it had no time to tidy up
        await ends.aclose()
        assert second.server._takeover is not None, "it looks every five seconds: not waited for"
        second.server._takeover.cancel()
        monkeypatch.setattr(server, "TAKE_OVER_S", 0.01)
        second.server._takeover = asyncio.create_task(second.server._take_over(nook))

        async def is_here():
            return second.server.socket

        await until(is_here)
        answer = await second.ask(NODES, socket=nook)
        assert answer.status == 200
        assert stat.S_IMODE(nook.stat().st_mode) == 0o600
    assert not nook.exists()


async def test_of_two_who_take_the_socket_over_at_once_one_has_it_and_the_other_is_its_heir(nook, monkeypatch):
    """Both had seen that its node was gone."""
    monkeypatch.setattr(server, "TAKE_OVER_S", 0.01)
    async with contextlib.AsyncExitStack() as stays, contextlib.AsyncExitStack() as ends:
        first = await stays.enter_async_context(world(socket=nook))
        with monkeypatch.context() as before:
            before.setattr(UnixSocket, "_is_free", lambda _: True)
            second = await ends.enter_async_context(world(socket=nook))

        async def knows():
            return first.server.socket is None

        await until(knows)
        assert second.server.socket.is_there()
        assert (await second.ask(NODES, socket=nook)).status == 200
        await ends.aclose()

        async def is_here():
            return first.server.socket

        await until(is_here)
        assert (await first.ask(NODES, socket=nook)).status == 200
        assert sorted(each.name for each in nook.parent.iterdir()) == [nook.name]


async def test_a_socket_that_somebody_tidied_away_is_there_again(nook, monkeypatch):
    monkeypatch.setattr(server, "TAKE_OVER_S", 0.01)
    async with world(socket=nook) as api:
        nook.unlink()

        async def is_there():
            return nook.exists()

        await until(is_there)
        assert (await api.ask(NODES, socket=nook)).status == 200
        assert (await api.ask("/live")).status == 200


async def test_nobody_takes_the_socket_over_before_the_node_answers(nook, monkeypatch, tmp_path):
    """The first token may take a while; whoever answered meanwhile would do so twice."""
    seen = []

    async def make(app, path):
        seen.append([each for each in asyncio.all_tasks() if each.get_name() == "pollux socket"])
        return ""

    async with world(socket=nook) as first:
        monkeypatch.setattr(server, "make_first_token", make)
        before = [each for each in asyncio.all_tasks() if each.get_name() == "pollux socket"]
        async with world(socket=nook, token_file=tmp_path / "token") as second:
            assert seen == [before], "but for that of the neighbour"
            assert second.server._takeover is not None
            assert (await first.ask(NODES, socket=nook)).status == 200


async def test_a_socket_that_cannot_be_answered_is_let_go_and_tried_again(nook, monkeypatch, caplog):
    answer, tries = server.ApiServer._answer, []

    async def stumble(self, reach, found):
        tries.append(nook.exists())
        if len(tries) == 1:
            raise RuntimeError("no room")
        await answer(self, reach, found)

    async with contextlib.AsyncExitStack() as stays, contextlib.AsyncExitStack() as ends:
        first = await ends.enter_async_context(world(socket=nook))
        monkeypatch.setattr(server, "TAKE_OVER_S", 0.01)
        second = await stays.enter_async_context(world(socket=nook, port=first.server.port, is_port_given=False))
        monkeypatch.setattr(server.ApiServer, "_answer", stumble)
        await ends.aclose()

        async def is_here():
            return len(tries) > 1 and second.server.socket

        await until(is_here)
        assert (await second.ask(NODES, socket=nook)).status == 200
    assert "no socket for commands on this machine: no room" in caplog.text
    assert not nook.exists()


async def test_what_is_no_socket_is_left_alone(nook):
    nook.write_text("precious")
    with pytest.raises(InvalidInput, match="is not a socket"):
        async with world(socket=nook, is_socket_given=True):
            pass
    async with world(socket=nook) as api:
        assert (await api.ask("/live")).status == 200
    assert nook.read_text() == "precious"


async def test_a_path_too_long_for_a_socket_is_said_in_words(tmp_path):
    with pytest.raises(InvalidInput, match="too long for a socket") as refused:
        async with world(socket=tmp_path / ("x" * 120), is_socket_given=True):
            pass
    assert "/run/pollux" in refused.value.cure


async def test_without_any_token_the_socket_still_answers_and_nothing_else(nook):
    async with world(socket=nook) as api:
        assert (await api.ask(NODES, socket=nook)).status == 200
        assert (await api.ask(NODES)).status == 401
