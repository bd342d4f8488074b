"""A setting, a token or a file's note that cannot be read: everything goes on, and a command mends it.

On each store with a real server or file, written into by hand.
"""

import asyncio
import subprocess

import pytest

from pollux.app.operations.tokens import FIRST, NO_ROLE, RECORDS
from pollux.app.reload import FILE_NOTE
from pollux.cli.enqueue import _hints
from pollux.errors import Conflict
from pollux.model import SETTING
from pollux.store.decoding import CONTENT_UNREADABLE
from tests.acceptance.terminal import SameProcess, eventually, stopped
from tests.acceptance.test_unreadable_job import a_job, an_app, of_a_newer_release
from tests.servers.ports import free_port
from tests.store.test_leader_unreadable_records import InPostgres, InRedis, InSqlite

SEATS = "pool.seats"
FILE = """
store: {url}
server: {{port: {port}}}
jobs:
  - {{id: home, http: "http://127.0.0.1:9/", interval: 1h}}
"""


@pytest.fixture(params=[InSqlite, InPostgres, InRedis], ids=["sqlite", "postgres", "redis"])
def hand(request, tmp_path):
    return request.param(tmp_path)


@pytest.fixture
async def app(hand):
    app = an_app(hand.url)
    await app.open()
    yield app
    await app.close()


@pytest.fixture
def pollux(tmp_path):
    return SameProcess(tmp_path)


async def test_a_setting_that_cannot_be_read_is_set_anew(app, hand):
    await app.operations.settings.set_setting(SEATS, 3)
    await hand.spoil_note(f"{SETTING}{SEATS}")

    assert await app.operations.settings.list_settings() == []
    await app.operations.settings.set_setting(SEATS, 8)
    assert [(each.path, each.value) for each in await app.operations.settings.list_settings()] == [(SEATS, "8")]


async def test_a_setting_that_cannot_be_read_is_unset(app, hand):
    await app.operations.settings.set_setting(SEATS, 3)
    await hand.spoil_note(f"{SETTING}{SEATS}")

    assert await app.operations.settings.unset_setting(SEATS)
    assert not await app.operations.settings.unset_setting(SEATS)
    [line] = [line for line in (await app.operations.audit.list_audit()).lines if line.action == "unset"]
    assert line.detail == CONTENT_UNREADABLE


async def test_a_token_that_cannot_be_read_lets_nobody_in_and_makes_no_other_the_first(app, hand):
    made, good = (
        await app.operations.tokens.first_token(),
        await app.operations.tokens.create_token("viewer", name="grafana"),
    )
    await hand.spoil_note(f"{RECORDS}{FIRST}")

    assert [record.token.id for record in await app.operations.tokens.token_records()] == [good.token.id]
    assert {each.id: each.role for each in await app.operations.tokens.list_tokens()} == {
        FIRST: NO_ROLE,
        good.token.id: "viewer",
    }
    assert not await app.operations.tokens.needs_first_token()
    assert await app.operations.tokens.first_token() is None
    with pytest.raises(Conflict, match=f"token {FIRST} was removed, or {CONTENT_UNREADABLE}"):
        await app.operations.tokens.rotate_token(FIRST)
    assert (await app.operations.tokens.revoke_token(made.token.id)).id == FIRST
    assert [each.id for each in await app.operations.tokens.list_tokens()] == [good.token.id]


def test_a_node_starts_beside_all_of_them_and_commands_mend_them(hand, pollux):
    pollux.write("pollux.yaml", FILE.format(url=hand.url, port=free_port()))
    _serve_once(pollux)
    pollux.ok("set", SEATS, "3")
    for key in (f"{RECORDS}{FIRST}", f"{SETTING}{SEATS}", f"{FILE_NOTE}file:pollux.yaml"):
        asyncio.run(hand.spoil_note(key))

    _serve_once(pollux)
    [listed] = pollux.ok("token", "ls", "--json").json["tokens"]
    assert (listed["id"], listed["name"], listed["role"]) == (FIRST, CONTENT_UNREADABLE, NO_ROLE)
    assert CONTENT_UNREADABLE in pollux.ok("token", "ls").out
    pollux.ok("token", "revoke", FIRST)
    pollux.ok("set", SEATS, "4")
    assert pollux.ok("token", "ls", "--json").json["tokens"] == []
    [told] = [each for each in asyncio.run(_settings(hand.url)) if each.path == SEATS]
    assert told.value == "4"


def _serve_once(pollux):
    """It starts, its API answers, and it leaves in order."""

    def leads():
        answer = pollux("nodes", "--json")
        return answer.code == 0 and any(node["leads"] for node in answer.json["nodes"])

    with pollux.started("serve", "--no-watch", environ={"POLLUX_SERVER": "true"}, stdout=subprocess.DEVNULL) as process:
        eventually(leads, "a node that leads", process)
        eventually(lambda: pollux.ok("token", "ls", "--json").json["tokens"], "a token", process)
        assert stopped(process).code == 0


async def _settings(url):
    app = an_app(url)
    await app.open()
    try:
        return await app.operations.settings.list_settings()
    finally:
        await app.close()


async def test_a_run_that_was_accepted_stays_accepted_whatever_is_found_out_of_its_job(hand, app):
    """A node may know the job from its own code, and the store has it as a newer release wrote it; or it just went."""
    await app.put_jobs([a_job("x"), a_job("y")])
    runs = [await app.enqueue(name, delay="1h") for name in ("x", "y")]
    await of_a_newer_release(hand, "x")
    await app.operations.jobs.delete_jobs(["y"])

    for run in runs:
        assert await _hints(app.operations, run) == []
