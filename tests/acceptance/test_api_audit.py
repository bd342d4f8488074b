"""Audit of the API: each route that changes something is used once, and leaves one line: who, what, how."""

import sys

import pytest

from pollux import Permanent, Pollux
from pollux.client import rpc_codec
from pollux.config import load_config
from pollux.model import NotePut, RunState
from pollux.server.routes import EVERY
from pollux.store.contract import RunFilter
from pollux.version import __version__
from tests.acceptance.api_world import api_of, eventually

FILE = "pool: {seats: 3}\njobs: [{id: filed, python: 'audited_work:one', interval: 1h}]\n"
OTHER = "pool: {seats: 5}\njobs: [{id: filed, python: 'audited_work:one', interval: 2h}]\n"
JOBS, RUNS, DEAD, SCHEDULER = "/api/v2/jobs", "/api/v2/runs", "/api/v2/dead-letters", "/api/v2/scheduler"
SEATS = f"{SCHEDULER}/settings/pool.seats"
OURS = {"id": "a", "handler": "fine"}
BY_VERB = ("POST", f"{rpc_codec.PATH}/{{verb}}")  # the same verbs by another door: see below

# Method, path as it is asked for, path as it is declared, body; and the line: action, subject, a part of its detail.
STEPS = (
    ("POST", JOBS, JOBS, {**OURS, "interval": "1h"}, "put", "a", "new: every 1h; handler fine"),
    ("PUT", f"{JOBS}/a", f"{JOBS}/{{job_id}}", {**OURS, "interval": "2h"}, "put", "a", "every 1h -> every 2h"),
    ("POST", f"{JOBS}/batch", f"{JOBS}/batch", {"jobs": [{"id": "b", "handler": "fine"}]}, "put", "b", "new: "),
    ("POST", f"{JOBS}/b/pause", f"{JOBS}/{{job_id}}/pause", {"reason": "why"}, "pause", "job:b", "why"),
    ("POST", f"{JOBS}/b/resume", f"{JOBS}/{{job_id}}/resume", None, "resume", "job:b", ""),
    ("POST", f"{JOBS}/b/force-run", f"{JOBS}/{{job_id}}/force-run", None, "run", "b", ""),
    ("POST", RUNS, RUNS, {"job_id": "a", "id": "r1", "delay": "1h"}, "enqueue", "a", "run r1"),
    ("POST", f"{RUNS}/r1/cancel", f"{RUNS}/{{run_id}}/cancel", {"reason": "no"}, "cancel", "r1", "no"),
    ("POST", f"{RUNS}/batch", f"{RUNS}/batch", {"job_id": "a", "runs": [{"delay": "1h", "id": "r2"}]},
     "enqueue", "a", "run r2"),
    ("POST", f"{JOBS}/a/cancel", f"{JOBS}/{{job_id}}/cancel", None, "cancel", "a", ""),
    ("POST", f"{DEAD}/d1/revive", f"{DEAD}/{{run_id}}/revive", None, "revive", "dead letters", "run d1"),
    ("DELETE", f"{DEAD}/d2", f"{DEAD}/{{run_id}}", None, "drop", "dead letters", "run d2"),
    ("POST", f"{DEAD}/revive", f"{DEAD}/revive", {"ids": ["d3"]}, "revive", "dead letters", "run d3"),
    ("POST", f"{DEAD}/drop", f"{DEAD}/drop", {"ids": ["d4"]}, "drop", "dead letters", "run d4"),
    ("PUT", SEATS, f"{SCHEDULER}/settings/{{path}}", {"value": 7}, "set", "pool.seats", "7"),
    ("DELETE", SEATS, f"{SCHEDULER}/settings/{{path}}", None, "unset", "pool.seats", "it was 7"),
    ("POST", f"{SCHEDULER}/drain", f"{SCHEDULER}/drain", {"reason": "it moves"}, "drain", "all workers", "it moves"),
    ("POST", f"{SCHEDULER}/resume", f"{SCHEDULER}/resume", None, "resume", "all workers", ""),
    ("POST", f"{SCHEDULER}/trigger", f"{SCHEDULER}/trigger", None, "trigger", "the leader", ""),
    ("POST", f"{SCHEDULER}/reload", f"{SCHEDULER}/reload", {}, "reload", "p.yaml", "pool.seats 3 -> 5"),
    ("POST", f"{SCHEDULER}/rollback", f"{SCHEDULER}/rollback", {}, "reload", "p.yaml", "pool.seats 5 -> 3"),
    ("POST", "/api/v2/stops", "/api/v2/stops", {"group": "edge", "reason": "why"}, "pause", "group:edge", "why"),
    ("DELETE", "/api/v2/stops?group=edge", "/api/v2/stops", None, "resume", "group:edge", ""),
    ("POST", "/api/v2/breakers/h/reset", "/api/v2/breakers/{name}/reset", None, "reset", "breaker h", ""),
    ("POST", "/api/v2/tokens", "/api/v2/tokens", {"role": "viewer", "name": "t"}, "token create", None, "viewer"),
    ("POST", "/api/v2/tokens/t/rotate", "/api/v2/tokens/{token_id}/rotate", {}, "token rotate", None, ""),
    ("DELETE", "/api/v2/tokens/TOKEN", "/api/v2/tokens/{token_id}", None, "token revoke", None, ""),
    ("DELETE", f"{JOBS}/a", f"{JOBS}/{{job_id}}", None, "delete", "a", "was: every 2h"),
)  # fmt: skip


@pytest.fixture
async def app(tmp_path, monkeypatch):
    """A node with a file, handlers of its own, four dead letters and a breaker."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "audited_work.py").write_text("async def one(ctx): return 1\n")
    (tmp_path / "p.yaml").write_text(FILE)
    app = Pollux.from_config(load_config("p.yaml", environ={}, arguments={"store": "memory://"}))
    app.handler(fine)
    app.handler(refuse)
    app.add("refuse", id="dies")
    async with app:
        for number in range(1, 5):
            await app.enqueue("dies", id=f"d{number}")
        await app.backend.put_notes([NotePut("breaker:h", {"state": "open"})])

        async def dead():
            return len((await app.operations.runs.list_runs(RunFilter(states=(RunState.DEAD,)))).runs) == 4

        await eventually(dead, "four are dead")
        yield app
    sys.modules.pop("audited_work", None)


async def fine(ctx): ...


async def refuse(ctx):
    raise Permanent("it never works")


async def newer_than(app, number):
    """The lines after that one, of whoever asks by the API."""
    return [
        line
        for line in (await app.operations.audit.list_audit(after=number, limit=100)).lines
        if line.actor == "token:admin"
    ]


def test_every_route_that_changes_something_is_among_them():
    changing = {(each.method, each.path) for group in EVERY for each in group.operations if each.method != "GET"}
    assert {(method, declared) for method, _, declared, *_ in STEPS} | {BY_VERB} == changing


async def test_every_change_by_a_route_is_one_line_with_who_what_and_how(app, tmp_path):
    client, seen, token = api_of(app), 0, ""
    for method, path, _, body, action, subject, detail in STEPS:
        if path.endswith("/reload"):
            (tmp_path / "p.yaml").write_text(OTHER)
        answer = await client(method, path.replace("TOKEN", token), body)
        assert 200 <= answer.status < 300, (method, path, answer)
        if path.endswith("/rotate"):
            token = answer.json["token"]["id"]
        lines = await newer_than(app, seen)
        assert [line.action for line in lines] == [action], (method, path, lines)
        assert subject in (None, lines[0].subject), lines
        assert detail in lines[0].detail, lines
        seen = lines[0].seq
    assert (await app.operations.audit.verify_audit()).is_whole


async def test_what_a_command_loads_is_on_record_as_well(app):
    """By the door of the command line, where a dump may come in piece by piece."""
    client, headers = api_of(app), {rpc_codec.VERSION_HEADER: __version__}
    await client.ok("POST", JOBS, {**OURS, "interval": "1h"})
    [there] = await newer_than(app, 0)
    record = ("job", {"id": "loaded", "handler": "fine"})
    for is_new in (True, False):
        answer = await client("POST", f"{rpc_codec.PATH}/load", {"records": [record]}, headers=headers)
        assert (answer.status, answer.json) == (200, int(is_new))
        lines = await newer_than(app, there.seq)
        assert [(line.action, line.subject, line.detail) for line in lines] == [
            ("load", "1 record", "new of 1 job: loaded")
        ]


async def test_a_dump_that_is_loaded_into_an_empty_store_brings_its_log_whole(app):
    """No line of ours stands where the next one of the dump belongs."""
    client = api_of(app)
    for number in range(3):
        await client.ok("POST", JOBS, {"id": f"j{number}", "handler": "fine"})
    records = [record async for page in app.operations.storage.dump() for record in page.records]
    other = Pollux("memory://")
    await other.open()
    try:
        for start in range(0, len(records), 2):
            await other.operations.storage.load(records[start : start + 2])
        theirs, ours = (
            (await other.operations.audit.list_audit(limit=1_000)).lines,
            (await app.operations.audit.list_audit(limit=1_000)).lines,
        )
        assert [line.chain for line in theirs] == [line.chain for line in ours]
        assert (await other.operations.audit.verify_audit()).is_whole
    finally:
        await other.close()
