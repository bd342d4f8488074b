"""Roles of the API: every route with every role, and with none."""

import pytest

from pollux.client import rpc_codec
from pollux.server.auth import Role
from pollux.server.routes import EVERY
from pollux.server.routes.rpc import ROLES
from pollux.version import __version__
from tests.acceptance.api_world import served

VIEWER, OPERATOR, ADMIN = Role.VIEWER, Role.OPERATOR, Role.ADMIN

OPEN_PAGES = (
    *("/", "/api", "/api/v2", "/api/v2/", "/api/v2/docs", "/api/v2/openapi.json"),
    *("/api/v2/docs/start.js", "/api/v2/docs/icon.svg"),
    *("/api/v2/docs/swagger_bundle.js", "/api/v2/docs/swagger_style.css"),
)
TABLE = {  # None: open to everybody
    ("GET", "/live"): None,
    ("GET", "/ready"): None,
    ("GET", "/metrics"): VIEWER,
    ("POST", "/api/v2/jobs"): OPERATOR,
    ("GET", "/api/v2/jobs"): VIEWER,
    ("GET", "/api/v2/jobs/{job_id}"): VIEWER,
    ("PUT", "/api/v2/jobs/{job_id}"): OPERATOR,
    ("DELETE", "/api/v2/jobs/{job_id}"): OPERATOR,
    ("POST", "/api/v2/jobs/batch"): OPERATOR,
    ("POST", "/api/v2/jobs/{job_id}/pause"): OPERATOR,
    ("POST", "/api/v2/jobs/{job_id}/resume"): OPERATOR,
    ("POST", "/api/v2/jobs/{job_id}/cancel"): OPERATOR,
    ("POST", "/api/v2/jobs/{job_id}/force-run"): OPERATOR,
    ("GET", "/api/v2/jobs/{job_id}/why"): VIEWER,
    ("GET", "/api/v2/jobs/{job_id}/runs"): VIEWER,
    ("GET", "/api/v2/runs"): VIEWER,
    ("POST", "/api/v2/runs"): OPERATOR,
    ("POST", "/api/v2/runs/batch"): OPERATOR,
    ("GET", "/api/v2/runs/{run_id}"): VIEWER,
    ("POST", "/api/v2/runs/{run_id}/cancel"): OPERATOR,
    ("GET", "/api/v2/runs/{run_id}/why"): VIEWER,
    ("GET", "/api/v2/dead-letters"): VIEWER,
    ("GET", "/api/v2/dead-letters/{run_id}"): VIEWER,
    ("POST", "/api/v2/dead-letters/revive"): OPERATOR,
    ("POST", "/api/v2/dead-letters/drop"): OPERATOR,
    ("POST", "/api/v2/dead-letters/{run_id}/revive"): OPERATOR,
    ("DELETE", "/api/v2/dead-letters/{run_id}"): OPERATOR,
    ("GET", "/api/v2/scheduler/health"): VIEWER,
    ("GET", "/api/v2/scheduler/workers"): VIEWER,
    ("GET", "/api/v2/scheduler/metrics"): VIEWER,
    ("GET", "/api/v2/scheduler/plan"): VIEWER,
    ("GET", "/api/v2/scheduler/settings"): VIEWER,
    ("PUT", "/api/v2/scheduler/settings/{path}"): ADMIN,
    ("DELETE", "/api/v2/scheduler/settings/{path}"): ADMIN,
    ("GET", "/api/v2/scheduler/file-versions"): VIEWER,
    ("POST", "/api/v2/scheduler/drain"): OPERATOR,
    ("POST", "/api/v2/scheduler/resume"): OPERATOR,
    ("POST", "/api/v2/scheduler/trigger"): OPERATOR,
    ("POST", "/api/v2/scheduler/reload"): ADMIN,
    ("POST", "/api/v2/scheduler/rollback"): ADMIN,
    ("GET", "/api/v2/stops"): VIEWER,
    ("POST", "/api/v2/stops"): OPERATOR,
    ("DELETE", "/api/v2/stops"): OPERATOR,
    ("GET", "/api/v2/breakers"): VIEWER,
    ("POST", "/api/v2/breakers/{name}/reset"): OPERATOR,
    ("GET", "/api/v2/audit"): VIEWER,
    ("GET", "/api/v2/nodes"): VIEWER,
    ("GET", "/api/v2/versions"): VIEWER,
    ("GET", "/api/v2/versions/compare"): VIEWER,
    ("GET", "/api/v2/events"): VIEWER,
    ("GET", "/api/v2/tokens"): ADMIN,
    ("POST", "/api/v2/tokens"): ADMIN,
    ("DELETE", "/api/v2/tokens/{token_id}"): ADMIN,
    ("POST", "/api/v2/tokens/{token_id}/rotate"): ADMIN,
    ("GET", rpc_codec.PATH): VIEWER,
    ("POST", f"{rpc_codec.PATH}/{{verb}}"): VIEWER,  # each verb has its own: see below
    **dict.fromkeys((("GET", page) for page in OPEN_PAGES), None),
}
CALLERS = (None, VIEWER, OPERATOR, ADMIN)


def test_the_table_has_every_route_and_nothing_else():
    routes = {(each.method, each.path): each.role for group in EVERY for each in group.operations}
    assert routes == TABLE


async def test_nobody_gets_further_than_their_role():
    """One walk over all: who is too low is refused before anything is looked at, who is not never is."""
    async with served(runs=False) as client:
        for (method, template), needed in TABLE.items():
            if template == "/api/v2/events":
                continue  # it never ends for those who may; the walk below looks at it by HEAD
            path = template.replace("{verb}", "nodes")
            for part in ("{job_id}", "{run_id}", "{path}", "{name}", "{token_id}"):
                path = path.replace(part, "nobody")
            for caller in CALLERS:
                answer = await client.as_(caller)(method, path, headers={rpc_codec.VERSION_HEADER: __version__})
                what = (method, path, caller, answer)
                if needed is None:
                    assert answer.status in {200, 503}, what
                elif caller is None:
                    assert answer.status == 401, what
                    assert "pollux token --curl" in answer.json["cure"], what
                elif caller < needed:
                    assert answer.status == 403, what
                    assert needed.word in answer.json["cure"], what
                else:
                    assert answer.status < 500, what
                    assert answer.status not in {401, 403}, what


@pytest.mark.parametrize("caller", CALLERS)
async def test_a_look_without_a_body_needs_the_same_role(caller):
    async with served(runs=False) as client:
        for (method, path), needed in TABLE.items():
            if method == "GET" and "{" not in path:
                answer = await client.as_(caller)("HEAD", path, headers={rpc_codec.VERSION_HEADER: __version__})
                allowed = needed is None or (caller is not None and caller >= needed)
                assert (answer.status not in {401, 403}) == allowed, (path, caller, answer)
                assert not answer.body or not allowed


async def test_every_verb_of_the_command_line_has_its_role():
    async with served(runs=False) as client:
        assert ROLES
        for verb, needed in ROLES.items():
            for caller in CALLERS[1:]:
                headers = {rpc_codec.VERSION_HEADER: __version__}
                answer = await client.as_(caller)("POST", f"{rpc_codec.PATH}/{verb}", {}, headers=headers)
                assert (answer.status == 403) == (caller < needed), (verb, caller, answer)
                assert answer.status < 500, (verb, caller, answer)
            assert (await client.as_(None)("POST", f"{rpc_codec.PATH}/{verb}", {})).status == 401


async def test_commands_are_an_admins_and_so_are_their_arguments():
    """An operator who could change the arguments of a command could run any."""
    async with served(allow_exec=True, runs=False) as client:
        body = {"id": "cmd", "exec": ["true"]}
        operator = client.as_(OPERATOR)

        assert (await operator("POST", "/api/v2/jobs", body)).status == 403
        assert (await operator("PUT", "/api/v2/jobs/cmd", body)).status == 403
        batch = (await operator("POST", "/api/v2/jobs/batch", {"jobs": [body]})).json
        assert batch["items"][0]["problem"]["status"] == 403
        assert (await client("POST", "/api/v2/jobs", body)).status == 201

        other = {"params": {"argv": ["false"]}}
        assert (await operator("POST", "/api/v2/jobs/cmd/force-run", other)).status == 403
        assert (await operator("POST", "/api/v2/runs", {"job_id": "cmd", **other})).status == 403
        batch = (await operator("POST", "/api/v2/runs/batch", {"runs": [{"job_id": "cmd", **other}]})).json
        assert batch["items"][0]["problem"]["status"] == 403
        assert (await operator("POST", "/api/v2/jobs/cmd/force-run")).status == 202


async def test_commands_that_are_not_allowed_here_are_refused_for_admins_too():
    async with served(runs=False) as client:
        answer = await client("POST", "/api/v2/jobs", {"id": "cmd", "exec": ["true"]})

        assert answer.status == 422
        assert "allow_exec" in answer.json["cure"]
