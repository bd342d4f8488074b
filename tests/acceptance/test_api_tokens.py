"""Tokens of the API: created, kept as hashes, rotated, revoked, and never shown again."""

import asyncio
import base64
import stat

import pytest

from pollux import Pollux
from pollux.errors import Conflict, InvalidInput, StoreTimeout
from pollux.secrets import HIDDEN
from pollux.server.auth import TokenCheck
from pollux.server.limits import Failures
from tests.acceptance.strangers import PATIENCE_S, world
from tests.acceptance.test_api_security import NODES, TOKENS


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
        assert "token:grafana has the role viewer, this needs admin" in refused.json["detail"]
        admin = await api.token("admin")
        assert (await api.ask(TOKENS, token=admin.secret)).status == 200


async def test_nobody_learns_why_a_token_is_refused(monkeypatch):
    """Unknown, with a wrong secret, expired, revoked, of another kind: word for word the same answer."""
    monkeypatch.setattr("pollux.server.gateway.Failures", lambda _: Failures(1_000.0))
    async with world() as api:
        good = await api.token()
        expired = await api.token(expires="1ms")
        revoked = await api.token()
        await api.app.operations.tokens.revoke_token(revoked.token.id)
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

    monkeypatch.setattr("pollux.server.auth.hmac.compare_digest", compare)
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
            made = await elsewhere.operations.tokens.create_token("viewer")
            await eventually_answers(api, made.secret, 200)
            await elsewhere.operations.tokens.revoke_token(made.token.id)
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
        made = await app.operations.tokens.create_token("viewer")
        tokens, read = TokenCheck(app, clock=clock), app.operations.tokens.token_records

        async def counted():
            calls.append(clock.now)
            return await read()

        app.operations.tokens.token_records = counted
        for _ in range(1_000):
            assert await tokens.identify(made.secret)
        assert len(calls) == 1
        app.operations.tokens.token_records = read
        await app.operations.tokens.revoke_token(made.token.id)
        clock.now += 2.9
        assert await tokens.identify(made.secret)
        clock.now += 0.2
        assert await tokens.identify(made.secret) is None
    finally:
        await app.close()


async def test_while_the_store_is_away_what_was_known_holds_for_a_while():
    app, clock = Pollux("memory://"), Ticking()
    await app.open()
    made = await app.operations.tokens.create_token("viewer")
    tokens = TokenCheck(app, clock=clock)
    assert await tokens.identify(made.secret)
    await app.close()
    clock.now += 200
    assert await tokens.identify(made.secret)
    clock.now += 200
    with pytest.raises(StoreTimeout, match="cannot be checked"):
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
        [record] = await api.app.operations.tokens.token_records()
        await api.ask(NODES, token=made.secret)
        api.server.tokens.forget()
        await api.ask(NODES, token=made.secret)
        [seen] = await api.app.operations.tokens.list_tokens()
        assert seen.used_ms is not None
        assert seen.used_ms == max(seen.made_ms, seen.used_ms - seen.used_ms % 3_600_000), "never before it was made"
        [note] = await api.app._store.notes("token:")
        assert note.value["used_ms"] % 3_600_000 == 0
        await api.app.operations.tokens.revoke_token(made.token.id)
        await api.app.operations.tokens.tokens_used([record])
        assert await api.app.operations.tokens.list_tokens() == []


async def test_a_rotated_token_and_its_successor_are_good_together_for_the_overlap():
    async with world() as api:
        old = await api.token("operator", name="ci", expires="30d")
        new = await api.app.operations.tokens.rotate_token("ci", overlap="1h")
        api.server.tokens.forget()
        assert {(await api.ask(NODES, token=each.secret)).status for each in (old, new)} == {200}
        kept = {each.id: each for each in await api.app.operations.tokens.list_tokens()}
        assert kept[old.token.id].expires_ms - old.token.made_ms <= 3_700_000
        assert kept[new.token.id].expires_ms == old.token.expires_ms
        assert (new.token.name, new.token.role) == ("ci", "operator")


async def test_a_new_token_that_gets_the_id_of_another_is_none(monkeypatch):
    """It would be shown to somebody, and be good for nothing."""
    async with world() as api:
        other = (await api.token("viewer", name="other")).token
        monkeypatch.setattr("pollux.app.operations.tokens.secrets.token_hex", lambda _: other.id)
        with pytest.raises(Conflict, match=f"the id {other.id} of the new token exists already; try again"):
            await api.app.operations.tokens.create_token("admin", name="new")
        assert other in await api.app.operations.tokens.list_tokens()
        assert "new" not in {token.name for token in await api.app.operations.tokens.list_tokens()}


async def test_a_successor_that_gets_the_id_of_another_token_leaves_that_alone(monkeypatch):
    async with world() as api:
        await api.token("operator", name="ci")
        other = (await api.token("viewer", name="other")).token
        monkeypatch.setattr("pollux.app.operations.tokens.secrets.token_hex", lambda _: other.id)
        with pytest.raises(Conflict, match="try again"):
            await api.app.operations.tokens.rotate_token("ci")
        assert other in await api.app.operations.tokens.list_tokens()


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
        lines = (await api.app.operations.audit.list_audit()).lines
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
        await api.app.operations.tokens.revoke_token("first")
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
        assert await api.app.operations.tokens.list_tokens() == []
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
