"""Dry run of a config that is sent to a node: what it would change in the place of its file; nothing is applied."""

import asyncio
import sys

import pytest

from pollux import Pollux
from pollux.client import Remote, address_of
from pollux.config import load_config
from pollux.server import ServerOptions, served
from pollux.server.auth import Role
from tests.acceptance.api_world import api_of

FILE = "pool: {seats: 3}\njobs: [{id: a, python: 'sent_work:one', interval: 1h}]\n"
NEW = "pool: {seats: 5}\njobs: [{id: a, python: 'sent_work:one', interval: 2h}, {id: b, python: 'nowhere:f'}]\n"
RELOAD = "/api/v2/scheduler/reload"


@pytest.fixture
def app(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "sent_work.py").write_text("async def one(ctx): return 1\n")
    (tmp_path / "p.yaml").write_text(FILE)
    yield Pollux.from_config(load_config("p.yaml", environ={}, arguments={"store": "memory://"}))
    sys.modules.pop("sent_work", None)


async def test_a_text_is_looked_at_in_the_place_of_the_file(app, tmp_path):
    async with app:
        api = api_of(app)
        told = await api.ok("POST", RELOAD, {"dry_run": True, "text": NEW, "called": "new.yaml"})
        assert (told["message"], told["dry_run"], told["source"]) == ("this would change", True, "file:p.yaml")
        assert [line[:7] for line in told["lines"]] == ["+ job b", "~ job a", "~ pool."]
        assert told["unseen"] == ["nowhere:f"]
        assert told["options"] == [{"path": "pool.seats", "before": "3", "after": "5"}]
        same = await api.ok("POST", RELOAD, {"dry_run": True, "text": FILE})
        assert (same["message"], same["lines"]) == ("nothing changes", [])
        assert [job.id for job in (await app.operations.jobs.list_jobs()).jobs] == ["a"]
        assert ((tmp_path / "p.yaml").read_text(), app.runtime.pool.seats) == (FILE, 3)
        assert not [line for line in (await app.operations.audit.list_audit()).lines if line.action == "reload"]


async def test_a_text_that_takes_most_jobs_away_needs_replace(app, tmp_path):
    many = "".join(f"\n  - {{id: m{n}, python: 'sent_work:one', interval: 1h}}" for n in range(6))
    async with app:
        api = api_of(app)
        (tmp_path / "p.yaml").write_text(f"jobs:{many}\n")
        assert (await api.ok("POST", RELOAD))["added"] == 6
        (tmp_path / "p.yaml").write_text("jobs: []\n")
        told = await api.ok("POST", RELOAD, {"dry_run": True})
        assert (told["removed"], told["refused"][:6]) == (6, "6 jobs")
        refused = await api("POST", RELOAD)
        assert (refused.status, "6 jobs" in refused.json["detail"]) == (409, True)
        assert "--replace" in refused.body.decode()
        assert len((await app.operations.jobs.list_jobs()).jobs) == 6
        told = await api.ok("POST", RELOAD, {"dry_run": True, "replace": True})
        assert (told["removed"], told["refused"]) == (6, "")
        assert (await api.ok("POST", RELOAD, {"replace": True}))["removed"] == 6
        assert (await api.ok("POST", "/api/v2/scheduler/rollback", {"replace": True}))["added"] == 6


async def test_the_file_is_read_again_and_put_back_by_the_api(app, tmp_path):
    """What it says holds at once, in jobs and options; and so does the text before."""
    good = FILE.replace("seats: 3", "seats: 5").replace("1h", "2h")
    async with app:
        api = api_of(app)
        (tmp_path / "p.yaml").write_text(good)
        told = await api.ok("POST", RELOAD)
        assert (told["message"], told["dry_run"], told["changed"]) == ("the file is applied", False, 1)
        assert told["options"] == [{"path": "pool.seats", "before": "3", "after": "5"}]
        assert ((await api.ok("GET", "/api/v2/jobs/a"))["interval"], app.runtime.pool.seats) == ("2h", 5)
        versions = (await api.ok("GET", "/api/v2/scheduler/file-versions"))["versions"]
        assert versions[-1]["digest"] == told["digest"] != versions[0]["digest"]

        (tmp_path / "p.yaml").write_text("jobs: [{id: a}]")
        refused = await api("POST", RELOAD)
        assert (refused.status, "p.yaml:1:8" in refused.json["detail"]) == (422, True)
        assert ((await api.ok("GET", "/api/v2/jobs/a"))["interval"], app.runtime.pool.seats) == ("2h", 5)

        await api.ok("POST", "/api/v2/scheduler/rollback")
        assert (tmp_path / "p.yaml").read_text() == good, "what held before the mistake"
        back = await api.ok("POST", "/api/v2/scheduler/rollback", {"to": versions[0]["digest"][:8]})
        assert ((tmp_path / "p.yaml").read_text(), app.runtime.pool.seats, back["changed"]) == (FILE, 3, 1)
        assert (await api.ok("GET", "/api/v2/jobs/a"))["interval"] == "1h"
        assert (await api("POST", "/api/v2/scheduler/rollback", {"to": "ffff"})).status == 404


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"text": NEW}, "compared, and never applied"),
        ({"dry_run": True, "called": "x"}, "it is required with"),
        ({"dry_run": True, "text": "jobs: [{id: a}]", "called": "new.yaml"}, "new.yaml:1:8"),
        ({"dry_run": True, "text": "jobs: [", "called": "<img onerror=x>\x1b[31m"}, "no YAML"),
        ({"dry_run": True, "text": "a: &a [*a]\n" * 3}, "text:1"),
        ({"dry_run": True, "text": "\x00"}, "text:"),
        ({"dry_run": True, "text": NEW, "source": "code:x"}, "'code:x' is no file"),
    ],
)
async def test_what_cannot_be_looked_at_is_refused_with_its_place(app, body, says):
    async with app:
        refused = await api_of(app)("POST", RELOAD, body)
        assert (refused.status, says in refused.json["detail"]) == (422, True), refused
        assert "\x1b" not in refused.json["detail"]
        assert refused.json["cure"]
        assert not any(each["where"].startswith("the ") for each in refused.json["problems"])
        assert app.reloader.refused == (), "the node's own file is none the worse"


async def test_a_text_too_big_for_a_request_is_refused_at_once(app):
    async with app:
        refused = await api_of(app)("POST", RELOAD, {"dry_run": True, "text": "#" * 1_000_001})
        assert refused.status == 413


@pytest.mark.parametrize(
    ("environ", "arguments", "origin"),
    [({}, {}, ""), ({"POLLUX_SEATS": "4"}, {}, "environment POLLUX_SEATS"), ({}, {"seats": 4}, "argument")],
)
async def test_a_setting_says_whether_the_node_that_is_asked_goes_by_it(app, environ, arguments, origin):
    app = Pollux.from_config(load_config("p.yaml", environ=environ, arguments={"store": "memory://"} | arguments))
    async with app:
        api = api_of(app)
        told = await api.ok("PUT", "/api/v2/scheduler/settings/pool.seats", {"value": 50})
        assert (told["value"], told["overruled_by"]) == ("50", origin)
        assert app.runtime.pool.seats == (4 if origin else 50)
        assert (await api.ok("GET", "/api/v2/scheduler/settings"))["settings"] == [told]


async def test_only_an_admin_may_send_one(app):
    async with app:
        for role in (Role.VIEWER, Role.OPERATOR):
            refused = await api_of(app).as_(role)("POST", RELOAD, {"dry_run": True, "text": NEW})
            assert refused.status == 403


async def test_it_can_be_asked_from_afar_as_the_command_does(app, tmp_path):
    """The same verb over a socket: `pollux reload --dry-run -c new.yaml --url ...`."""
    async with served(app, ServerOptions(port=0, is_port_given=True), stop=asyncio.Event()) as server:
        token = await app.operations.tokens.create_token("admin", name="tests")
        remote = Remote(address_of(server.url), token.secret)
        await remote.open()
        try:
            told = await remote.operations.config_file.reload(dry_run=True, text=NEW, called="new.yaml")
            assert (told.draft, told.unseen, told.added) == ("new.yaml", ("nowhere:f",), 1)
            (tmp_path / "p.yaml").write_text("jobs: [")
            in_force = await remote.operations.config_file.file_in_force()
            assert (in_force.is_there, in_force.path) == (False, str(tmp_path / "p.yaml"))
            assert {each.option: each.value for each in in_force.options}["pool.seats"] == "3"
        finally:
            await remote.close()
