"""Who gets in, as whom, and from where?  Tokens, names, pages, encryption, the socket."""

import asyncio
import base64
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
from pollux.errors import InvalidInput
from pollux.server.hosts import Proxies, is_foreign_page
from pollux.server.tokens import Tokens
from tests.acceptance.strangers import PATIENCE_S, answer_of, head_of, world

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
    async with world() as api:
        good = await api.token()
        expired = await api.token(expires="1ms")
        revoked = await api.token()
        await api.app.revoke_token(revoked.token.id)
        await asyncio.sleep(0.002)
        api.server.tokens.forget()
        wrong = ["x", "pf_", "pf__", "pf_00000000_" + "x" * 43, good.secret[:-1] + "!", good.secret + "x", "é" * 30]
        answers = [await api.ask(NODES, token=each) for each in [*wrong[:3], expired.secret, revoked.secret]]
        async with world() as other:  # an address that failed often is answered otherwise
            answers += [await other.ask(NODES, token=each) for each in wrong[3:]]
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
    assert await tokens.identify(made.secret) is None
    await tokens.close()


async def test_when_a_token_was_used_is_known_to_the_hour_and_a_revoked_one_does_not_come_back():
    async with world() as api:
        made = await api.token("viewer")
        [record] = await api.app.token_records()
        await api.ask(NODES, token=made.secret)
        api.server.tokens.forget()
        await api.ask(NODES, token=made.secret)
        [seen] = await api.app.tokens()
        assert seen.used_ms is not None
        assert seen.used_ms % 3_600_000 == 0
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
        assert secret.split("_")[2].encode() not in listed.body + kept
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
        for name, value in (("Host", "localhost"), ("Authorization", "Bearer x"), ("host", "evil.example")):
            reader, writer = await api.connect()
            writer.write(
                f"GET /live HTTP/1.1\r\nHost: localhost\r\nAuthorization: x\r\n{name}: {value}\r\n\r\n".encode()
            )
            assert (await answer_of(reader)).status == 400
            writer.close()


@pytest.mark.parametrize(
    ("headers", "is_foreign"),
    [
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
    ],
)
async def test_a_page_of_another_site_changes_nothing_but_may_be_answered(headers, is_foreign):
    async with world() as api:
        token = (await api.token()).secret
        body = b'{"role": "viewer"}'
        changed = await api.ask(TOKENS, "POST", token=token, headers=headers, body=body)
        looked = await api.ask(TOKENS, token=token, headers=headers)
    assert changed.status == (403 if is_foreign else 201)
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
