"""Who gets in, as whom, and from where?  Tokens, names, pages, encryption, the socket."""

import asyncio
import base64
import json
import os
import pwd
import shutil
import socket
import ssl
import stat
import tempfile
from pathlib import Path

import pytest

from pollux import Pollux
from pollux.errors import Conflict, InvalidInput, StoreTimeout
from pollux.model import RunState
from pollux.secrets import HIDDEN
from pollux.server import Server, ServerOptions
from pollux.server.hosts import Proxies, is_foreign_page
from pollux.server.limits import Failures, Limits
from pollux.server.tokens import Tokens
from pollux.store.contract import RunFilter
from tests.acceptance.strangers import PATIENCE_S, World, answer_of, head_of, world
from tests.acceptance.terminal import SameProcess
from tests.http_world import Names

CERTIFICATES = Path(__file__).parent / "certificates"
NODES = "/api/v2/nodes"
TOKENS = "/api/v2/tokens"


# tokens


async def test_a_request_without_a_token_is_told_the_command_that_helps():
    async with world() as api:
        said = await api.ask(NODES)
    assert said.status == 401
    assert "pollux token --curl" in said.json["cure"]
    assert said.headers["www-authenticate"] == "Bearer"


async def test_a_token_lets_in_as_its_role_and_no_further():
    async with world() as api:
        viewer = await api.token("viewer", name="grafana")
        assert (await api.ask(NODES, token=viewer.secret)).status == 200
        refused = await api.ask(TOKENS, token=viewer.secret)
        assert refused.status == 403
        assert "token:grafana is viewer, this needs admin" in refused.json["detail"]
        admin = await api.token("admin")
        assert (await api.ask(TOKENS, token=admin.secret)).status == 200


async def test_nobody_learns_why_a_token_is_refused(monkeypatch):
    """Unknown, with a wrong secret, expired, revoked, of another kind: word for word the same answer."""
    monkeypatch.setattr("pollux.server.door.Failures", lambda _: Failures(1_000.0))
    async with world() as api:
        good = await api.token()
        expired = await api.token(expires="1ms")
        revoked = await api.token()
        await api.app.revoke_token(revoked.token.id)
        await asyncio.sleep(0.002)
        api.server.tokens.forget()
        mine = [good.secret[:-1] + "!", good.secret + "x", good.secret[:12], good.secret.lower(), good.secret.upper()]
        wrong = ["x", "pf_", "pf__", "pf_00000000_" + "x" * 43, "\xe9" * 30, expired.secret, revoked.secret, *mine]
        answers = [await api.ask(NODES, token=each) for each in wrong]
        assert (await api.ask(NODES, token=good.secret)).status == 200
    assert {(said.status, said.body, tuple(said.headers)) for said in answers} == {
        (401, answers[0].body, tuple(answers[0].headers))
    }


async def test_every_token_is_compared_whether_there_is_such_a_one_or_not(monkeypatch):
    """The time of an answer tells nothing: no shortcut for an id that does not exist, and no `==`."""
    compared = []

    def compare(left, right):
        compared.append((len(left), len(right)))
        return left == right

    monkeypatch.setattr("pollux.server.tokens.hmac.compare_digest", compare)
    async with world() as api:
        good = await api.token()
        for secret in (good.secret, good.secret[:-1] + "!", "pf_00000000_x", "nonsense"):
            before = len(compared)
            await api.server.tokens.identify(secret)
            assert len(compared) > before, secret
    assert set(compared) == {(64, 64)}


async def test_a_token_in_the_query_a_cookie_or_another_scheme_is_none():
    async with world() as api:
        token = (await api.token()).secret
        assert (await api.ask(f"{NODES}?token={token}&access_token={token}")).status == 401
        assert (await api.ask(NODES, headers={"Cookie": f"token={token}; Authorization=Bearer {token}"})).status == 401
        assert (await api.ask(NODES, headers={"Authorization": f"Token {token}"})).status == 401
        assert (await api.ask(NODES, headers={"X-Api-Key": token})).status == 401


async def test_no_token_that_is_shown_to_the_server_reaches_its_log(caplog):
    """Not even a wrong one: it may be the right one of somebody else.  What we know is hidden in every line anyway."""
    caplog.set_level("DEBUG")
    async with world() as api:
        good = (await api.token()).secret
        HIDDEN.clear()  # as in a process that did not make it
        for secret in (good, "geheim-4711-von-jemand-anderem"):
            for headers in ({"Authorization": f"Bearer {secret}"}, {"Cookie": secret}):
                await api.ask(NODES, headers=headers)
                await api.ask(f"/nowhere?token={secret}", headers=headers)
    assert good.split("_", 2)[2] not in caplog.text
    assert "geheim" not in caplog.text


async def test_a_token_as_the_password_of_basic_is_what_a_netrc_can_say():
    async with world() as api:
        token = (await api.token()).secret

        async def basic(text):
            return await api.ask(NODES, headers={"Authorization": f"Basic {text}"})

        assert (await basic(base64.b64encode(f"pollux:{token}".encode()).decode())).status == 200
        assert (await basic(base64.b64encode(token.encode()).decode())).status == 401
        assert (await basic("%%%")).status == 401


async def test_a_token_made_elsewhere_is_good_at_once_and_one_taken_back_within_seconds(tmp_path):
    """By another process on the same store, which cannot tell the server."""
    url = f"sqlite:///{tmp_path}/pollux.db"
    elsewhere = Pollux(url)
    async with world(url) as api:
        await elsewhere.open()
        try:
            assert (await api.ask(NODES, token="pf_00000000_x")).status == 401  # it has just looked
            made = await elsewhere.create_token("viewer")
            await eventually_answers(api, made.secret, 200)
            await elsewhere.revoke_token(made.token.id)
            await eventually_answers(api, made.secret, 401)
        finally:
            await elsewhere.close()


async def eventually_answers(api, token, status):
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if (await api.ask(NODES, token=token)).status == status:
                return
            await asyncio.sleep(0.1)


class Ticking:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


async def test_a_request_costs_no_call_of_the_store_and_a_revoked_token_lives_three_seconds():
    app, clock, calls = Pollux("memory://"), Ticking(), []
    await app.open()
    try:
        made = await app.create_token("viewer")
        tokens, read = Tokens(app, clock=clock), app.token_records

        async def counted():
            calls.append(clock.now)
            return await read()

        app.token_records = counted
        for _ in range(1_000):
            assert await tokens.identify(made.secret)
        assert len(calls) == 1
        app.token_records = read
        await app.revoke_token(made.token.id)
        clock.now += 2.9
        assert await tokens.identify(made.secret)
        clock.now += 0.2
        assert await tokens.identify(made.secret) is None
    finally:
        await app.close()


async def test_while_the_store_is_away_what_was_known_holds_for_a_while():
    app, clock = Pollux("memory://"), Ticking()
    await app.open()
    made = await app.create_token("viewer")
    tokens = Tokens(app, clock=clock)
    assert await tokens.identify(made.secret)
    await app.close()
    clock.now += 200
    assert await tokens.identify(made.secret)
    clock.now += 200
    with pytest.raises(StoreTimeout, match="cannot be told"):
        await tokens.identify(made.secret)
    await tokens.close()


async def test_a_store_that_never_answered_makes_nobody_a_stranger():
    """503, and not 401: the token may be good."""
    async with world() as api:
        token = (await api.token()).secret
        await api.app.close()
        said = await api.ask(NODES, token=token)
        assert (said.status, said.headers["retry-after"]) == (503, "1")
        assert (await api.ask("/live")).status == 200


async def test_when_a_token_was_used_is_known_to_the_hour_and_a_revoked_one_does_not_come_back():
    async with world() as api:
        made = await api.token("viewer")
        [record] = await api.app.token_records()
        await api.ask(NODES, token=made.secret)
        api.server.tokens.forget()
        await api.ask(NODES, token=made.secret)
        [seen] = await api.app.tokens()
        assert seen.used_ms is not None
        assert seen.used_ms == max(seen.made_ms, seen.used_ms - seen.used_ms % 3_600_000), "never before it was made"
        [note] = await api.app._store.notes("token:")
        assert note.value["used_ms"] % 3_600_000 == 0
        await api.app.revoke_token(made.token.id)
        await api.app.tokens_used([record])
        assert await api.app.tokens() == []


async def test_a_rotated_token_and_its_successor_are_good_together_for_the_overlap():
    async with world() as api:
        old = await api.token("operator", name="ci", expires="30d")
        new = await api.app.rotate_token("ci", overlap="1h")
        api.server.tokens.forget()
        assert {(await api.ask(NODES, token=each.secret)).status for each in (old, new)} == {200}
        kept = {each.id: each for each in await api.app.tokens()}
        assert kept[old.token.id].expires_ms - old.token.made_ms <= 3_700_000
        assert kept[new.token.id].expires_ms == old.token.expires_ms
        assert (new.token.name, new.token.role) == ("ci", "operator")


async def test_a_successor_that_gets_the_id_of_another_token_leaves_that_alone(monkeypatch):
    async with world() as api:
        await api.token("operator", name="ci")
        other = (await api.token("viewer", name="other")).token
        monkeypatch.setattr("pollux.app.tokens.secrets.token_hex", lambda _: other.id)
        with pytest.raises(Conflict, match="try again"):
            await api.app.rotate_token("ci")
        assert other in await api.app.tokens()


async def test_the_store_keeps_hashes_and_lists_have_no_secret(tmp_path):
    async with world(f"sqlite:///{tmp_path}/pollux.db") as api:
        admin = await api.token("admin", name="root")
        made = await api.ask(
            TOKENS, "POST", token=admin.secret, body=b'{"role": "viewer", "name": "x", "expires": "1h"}'
        )
        assert made.status == 201
        listed = await api.ask(TOKENS, token=admin.secret)
        rotated = await api.ask(f"{TOKENS}/x/rotate", "POST", token=admin.secret)
        secrets = [admin.secret, made.json["secret"], rotated.json["secret"]]
        gone = await api.ask(f"{TOKENS}/{rotated.json['token']['id']}", "DELETE", token=admin.secret)
        assert gone.status == 200
        lines = (await api.app.audit()).lines
    assert {(line.actor, line.action) for line in lines[1:]} == {
        ("token:root", "token create"), ("token:root", "token rotate"), ("token:root", "token revoke"),
    }  # fmt: skip
    kept = b"".join(path.read_bytes() for path in tmp_path.iterdir() if path.is_file())
    for secret in secrets:
        assert secret.split("_", 2)[2].encode() not in listed.body + kept
    assert "hash" not in listed.json["tokens"][0]


async def test_the_first_start_makes_one_token_in_a_file_for_its_owner_and_never_another(tmp_path, caplog):
    caplog.set_level("INFO", "pollux")
    url, file = f"sqlite:///{tmp_path}/pollux.db", tmp_path / "deep" / "first.token"
    async with world(url, token_file=file) as api:
        secret = file.read_text().strip()
        assert api.server.first_token == secret
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
        assert (await api.ask(TOKENS, token=secret)).status == 200
        await api.app.revoke_token("first")
    assert str(file) in caplog.text
    assert secret not in caplog.text
    caplog.clear()
    async with world(url, token_file=file) as api:
        assert api.server.first_token == ""
        assert (await api.ask(TOKENS, token=secret)).status == 401
    assert "token" not in caplog.text


async def test_nodes_that_start_together_make_one_first_token(tmp_path):
    url = f"sqlite:///{tmp_path}/pollux.db"
    async with world(url, token_file=tmp_path / "a"), world(url, token_file=tmp_path / "b"):
        pass
    assert sorted(path.name for path in tmp_path.iterdir() if path.name in {"a", "b"}) == ["a"]


async def test_a_first_token_that_cannot_be_written_is_said_and_made_at_a_later_start(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    url = f"sqlite:///{tmp_path}/pollux.db"
    async with world(url, token_file=tmp_path / "file" / "first.token") as api:
        assert (await api.ask("/live")).status == 200
        assert await api.app.tokens() == []
    assert "server.token_file" in caplog.text
    async with world(url, token_file=tmp_path / "first.token"):
        assert (tmp_path / "first.token").exists()


async def test_a_token_that_the_operator_names_is_good_and_no_other_is_made(tmp_path):
    async with world(token="k" * 32, token_file=tmp_path / "first.token") as api:
        assert (await api.ask(TOKENS, token="k" * 32)).status == 200
        assert (await api.ask(TOKENS, token="k" * 31)).status == 401
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InvalidInput, match="too short"):
        async with world(token="short"):
            pass


# names and pages


async def test_a_name_that_is_not_ours_is_refused_before_anything_else():
    """A page on evil.example whose name was made to point here."""
    async with world(hosts=("pollux.example",)) as api:
        token = (await api.token()).secret

        async def called(host):
            return (await api.ask(NODES, token=token, headers={"Host": host})).status

        for host in ("localhost", "localhost:8060", "LOCALHOST.", "127.0.0.1:1", "[::1]:8060", "pollux.example"):
            assert await called(host) == 200, host
        for host in ("evil.example", "evil.example:8060", "localhost.evil.example", "127.0.0.1.nip.io", "10.0.0.5", ""):
            assert await called(host) == 421, host
        assert (await api.ask("/live", headers={"Host": "evil.example"})).status == 421
        said = await api.ask(NODES, headers={"Host": "evil.example"})
        assert "server.hosts" in said.json["cure"]


async def test_an_address_on_which_a_connection_came_in_is_ours():
    async with world(host="0.0.0.0", proxies=()) as api:
        assert (await api.ask("/live", headers={"Host": "127.0.0.1"})).status == 200
        assert (await api.ask("/live", headers={"Host": "127.0.0.2"}, host="127.0.0.2")).status == 200
        assert (await api.ask("/live", headers={"Host": "127.0.0.3"})).status == 421


async def test_two_hosts_or_two_tokens_in_one_request_are_refused():
    async with world() as api:
        twice = (("Host", "localhost"), ("Authorization", "Bearer x"), ("host", "evil.example"))
        for name, value in (*twice, ("Content-Length", "0\r\nTransfer-Encoding: chunked")):
            reader, writer = await api.connect()
            writer.write(
                f"GET /live HTTP/1.1\r\nHost: localhost\r\nAuthorization: x\r\n{name}: {value}\r\n\r\n".encode()
            )
            assert (await answer_of(reader)).status == 400
            writer.close()


PAGES = [
    ({}, False),
    ({"Sec-Fetch-Site": "same-origin", "Origin": "http://localhost"}, False),
    ({"Sec-Fetch-Site": "none"}, False),
    ({"Sec-Fetch-Site": "same-site"}, True),
    ({"Sec-Fetch-Site": "cross-site"}, True),
    ({"Sec-Fetch-Site": "cross-site", "Origin": "http://localhost"}, True),
    ({"Origin": "http://localhost"}, False),
    ({"Origin": "http://localhost:9999"}, True),
    ({"Origin": "https://evil.example"}, True),
    ({"Origin": "null"}, True),
    ({"Origin": "http://["}, True),
]


async def test_a_page_of_another_site_changes_nothing_but_may_be_answered():
    async with world(limits=Limits(rate=0.0)) as api:
        token = (await api.token()).secret
        for headers, is_foreign in PAGES:
            changed = await api.ask(TOKENS, "POST", token=token, headers=headers, body=b'{"role": "viewer"}')
            assert changed.status == (403 if is_foreign else 201), headers
            looked = await api.ask(TOKENS, token=token, headers=headers)
            assert looked.status == 200
            assert "access-control-allow-origin" not in looked.headers


def test_no_method_but_looking_is_safe():
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert is_foreign_page(method, "localhost", site="cross-site", origin="")


async def test_every_answer_carries_the_headers_that_keep_a_browser_calm():
    async with world() as api:
        token = (await api.token()).secret
        answers = [
            await api.ask("/live"),
            await api.ask(NODES),
            await api.ask(NODES, token=token),
            await api.ask("/nowhere", token=token),
            await api.ask(NODES, headers={"Host": "evil.example"}),
        ]
    assert [said.status for said in answers] == [200, 401, 200, 404, 421]
    for said in answers:
        assert said.headers["x-content-type-options"] == "nosniff"
        assert said.headers["referrer-policy"] == "no-referrer"
        assert said.headers["cache-control"] == "no-store"
        assert "frame-ancestors 'none'" in said.headers["content-security-policy"]
        assert "server" not in said.headers


# proxies


async def test_forwarded_headers_are_believed_from_a_named_proxy_alone():
    async with world(hosts=("pollux.example",), proxies=("127.0.0.1/32",)) as near, world(hosts=("p.example",)) as far:
        forwarded = {"X-Forwarded-Host": "evil.example", "X-Forwarded-For": "203.0.113.9"}
        assert (await near.ask("/live", headers=forwarded)).status == 421
        forwarded["X-Forwarded-Host"] = "evil.example, pollux.example"
        assert (await near.ask("/live", headers=forwarded | {"Host": "upstream:8060"})).status == 200
        assert (await far.ask("/live", headers={"X-Forwarded-Host": "evil.example"})).status == 200


def test_the_nearest_address_that_is_no_proxy_is_the_client():
    proxies = Proxies(["127.0.0.0/8", "10.0.0.0/8"])
    assert proxies.client_of("127.0.0.1", "203.0.113.9") == "203.0.113.9"
    assert proxies.client_of("127.0.0.1", "1.1.1.1, 203.0.113.9, 10.0.0.7") == "203.0.113.9"
    assert proxies.client_of("127.0.0.1", "203.0.113.9, nonsense") == "127.0.0.1"
    assert proxies.client_of("127.0.0.1", "10.0.0.1, 10.0.0.2") == "10.0.0.1"


async def test_each_client_behind_a_proxy_has_its_own_patience():
    async with world(proxies=("127.0.0.1/32",)) as api:
        for _ in range(30):
            last = await api.ask(NODES, headers={"X-Forwarded-For": "203.0.113.9"})
        assert last.status == 429
        assert (await api.ask(NODES, headers={"X-Forwarded-For": "203.0.113.10"})).status == 401


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
    monkeypatch.setattr("pollux.server.life.HANDSHAKE_S", 0.2)
    async with world(tls=(CERTIFICATES / "good.pem", CERTIFICATES / "server.key")) as api:
        reader, _ = await api.connect()
        async with asyncio.timeout(PATIENCE_S):
            assert await reader.read() == b""


async def test_a_server_that_stops_ends_those_who_listen_for_events(monkeypatch):
    monkeypatch.setattr("pollux.server.life.END_S", 600)  # for requests that are about to be answered
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
    monkeypatch.setattr("pollux.server.tls.LOOK_S", 0.0)
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
        [line] = (await api.app.audit()).lines
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


async def test_what_is_no_socket_is_left_alone(nook):
    nook.write_text("precious")
    with pytest.raises(InvalidInput, match="is no socket"):
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


# what comes by API


JOBS = "/api/v2/jobs"


INSIDE = [
    "http://127.0.0.1/",
    "http://localhost:8060/api/v2/tokens",
    "http://a.localhost/",
    "http://2130706433/",
    "http://0x7f.1/",
    "http://[::ffff:10.0.0.1]/",
    "http://10.1.2.3/",
    "http://169.254.169.254/latest/meta-data/",
    "http://metadata.google.internal/",
    "http://[fd00:ec2::254]/",
    "http://0.0.0.0/",
]


async def test_a_job_that_comes_by_api_names_no_address_inside():
    async with world(limits=Limits(rate=0.0)) as api:
        token = (await api.token("operator")).secret
        for url in INSIDE:
            body = json.dumps({"id": "inside", "url": url, "interval": "1h"}).encode()
            for method, path in (("POST", JOBS), ("PUT", f"{JOBS}/inside")):
                said = await api.ask(path, method, token=token, body=body)
                assert said.status == 422, said.body
            batch = await api.ask(f"{JOBS}/batch", "POST", token=token, body=b'{"jobs": [' + body + b"]}")
            assert batch.json["refused"] == 1, url
        assert (await api.app.list_jobs()).jobs == ()


async def test_an_allowed_network_and_a_public_name_are_open_to_the_api():
    async with world(app=Pollux("memory://", http_allow_networks=["10.0.0.0/8"])) as api:
        token = (await api.token("operator")).secret
        for number, url in enumerate(("http://10.1.2.3/", "https://example.com/")):
            body = json.dumps({"id": f"job-{number}", "url": url, "interval": "1h"}).encode()
            said = await api.ask(JOBS, "POST", token=token, body=body)
            assert said.status == 201, said.body


async def test_a_name_that_leads_inside_is_refused_when_it_is_looked_up():
    """At the put nobody knows; the run is refused, and nothing was asked of the address."""
    visits = []

    async def visit(reader, writer):
        visits.append(await reader.read(100))
        writer.close()

    inside = await asyncio.start_server(visit, "127.0.0.1", 0)
    port = inside.sockets[0].getsockname()[1]
    app = Pollux("memory://")
    app._built_in.http.resolver = Names({"rebound.example": ["127.0.0.1"]})
    async with app:
        server = Server(app, ServerOptions(port=0, is_port_given=True))
        await server.start()
        api = World(app, server)
        token = (await api.token("operator")).secret
        body = json.dumps({"id": "rebound", "url": f"http://rebound.example:{port}/", "once": True}).encode()
        assert (await api.ask(JOBS, "POST", token=token, body=body)).status == 201
        async with asyncio.timeout(PATIENCE_S):
            dead = await the_dead(app)
        await server.stop()
    inside.close()
    assert "127.0.0.1 is not a public address" in dead[0].error
    assert visits == []


async def the_dead(app):
    while True:
        runs = (await app.list_runs(RunFilter(states=(RunState.DEAD,)))).runs
        if runs:
            return runs
        await asyncio.sleep(0.05)


async def test_a_command_by_api_needs_an_admin_and_leave_and_stands_in_the_audit_log():
    body = b'{"id": "disk", "exec": ["df", "-h"], "interval": "1h"}'
    async with world() as api:
        admin = (await api.token("admin")).secret
        refused = await api.ask(JOBS, "POST", token=admin, body=body)
        assert refused.status == 422
        assert "allow_exec" in refused.body.decode()
    async with world(app=Pollux("memory://", allow_exec=True)) as api:
        operator, admin = (await api.token("operator")).secret, (await api.token("admin", name="root")).secret
        assert (await api.ask(JOBS, "POST", token=operator, body=body)).status == 403
        assert (await api.ask(JOBS, "POST", token=admin, body=body)).status == 201
        asked = b'{"job_id": "disk", "params": {"argv": ["id"]}}'
        assert (await api.ask(f"{JOBS}/disk/force-run", "POST", token=operator, body=asked)).status in {403, 422}
        line = (await api.app.audit(newest=True, limit=1)).lines[-1]
        assert (line.actor, line.action, line.subject) == ("token:root", "put", "disk")
        assert 'params.argv ["df","-h"]' in line.detail


async def test_a_handler_by_api_is_one_that_is_registered():
    async with world() as api:
        token = (await api.token("admin")).secret
        for handler in ("os:system", "subprocess.run", "builtins:eval", "nobody"):
            body = json.dumps({"id": "x", "handler": handler, "interval": "1h"}).encode()
            assert (await api.ask(JOBS, "POST", token=token, body=body)).status == 422


async def test_a_change_is_told_with_before_and_after_and_without_secrets():
    async with world() as api:
        token = (await api.token("operator", name="ann")).secret

        async def put(**job):
            said = await api.ask(f"{JOBS}/start-page", "PUT", token=token, body=json.dumps(job).encode())
            assert said.status in {200, 201}, said.body

        await put(url="https://example.com/", interval="30s")
        old = json.dumps({"url": "https://example.com/", "interval": "9s", "revision": 7}).encode()
        late = await api.ask(f"{JOBS}/start-page", "PUT", token=token, body=old)
        assert late.status == 409
        await put(
            http={"url": "https://example.com/", "headers": {"X-Api-Key": "geheim-0815"}},
            interval="1m",
            priority="high",
        )
        assert (await api.ask(f"{JOBS}/start-page/pause", "POST", token=token)).status == 200
        assert (await api.ask(f"{JOBS}/start-page", "DELETE", token=token)).status == 200
        lines = [line for line in (await api.app.audit()).lines if line.action != "token create"]
    assert {line.actor for line in lines} == {"token:ann"}
    assert [line.action for line in lines] == ["put", "put", "pause", "delete"], "what was refused changed nothing"
    assert lines[0].detail.startswith("new: every 30s; handler http")
    assert "every 30s -> every 1m" in lines[1].detail
    assert "priority (usual) -> 1" in lines[1].detail
    assert lines[3].detail.startswith("was: every 1m; ")
    assert "geheim" not in str(lines)
