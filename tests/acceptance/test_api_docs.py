"""The description of the API is true, and can be read with no internet and no token."""

import asyncio
import json
import os
import re
import shlex
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pollux.server import ApiServer, ServerOptions
from pollux.server.auth import Identity, Role
from pollux.server.gateway import Gateway
from pollux.server.limits import ApiLimits
from pollux.server.routes import EVERY
from pollux.server.routes.openapi import OPENAPI, PAGE, START, document
from pollux.server.routing import Route
from tests.acceptance.api_world import SECRETS, an_app, served

PATIENCE_S = 280  # with a schemathesis that hangs, not with one that is slow
TABLES = Path(__file__).parents[2] / ".hypothesis"  # of characters: it takes two seconds to make them
FINE = ["2xx", "404", "409"]  # for a request that fits the schema: done, or there is no such thing, or not as it is
# Whether a cron line or a URL can be used is not for a schema to say.  Where that is so the route names it (`beyond`).
BEYOND = [*FINE, "403", "422"]
# Everybody comes from one address here, mostly without a token or with a wrong one; and nobody listens for an hour.
LIMITS = ApiLimits(rate=0, anonymous_rate=1e6, failures_rate=1e6, listen_s=0.02)


def config() -> str:
    lines = ["[checks]", f"positive_data_acceptance.expected-statuses = {FINE}"]
    for each in listed():
        if each.beyond or each.keyed:  # a key that came with another body is refused
            lines += ["[[operations]]", f'include-name = "{each.method} {each.path}"']
            lines += [f"checks.positive_data_acceptance.expected-statuses = {BEYOND}"]
    return "\n".join(lines)


def listed() -> list[Route]:
    return [each for group in EVERY for each in group.operations if each.include_in_schema]


async def test_every_route_is_described_with_its_role_and_its_refusals():
    described = document(EVERY)

    told = {
        (method.upper(), path): operation
        for path, operations in described["paths"].items()
        for method, operation in operations.items()
    }
    assert set(told) == {(each.method, each.path) for each in listed()}
    for each in listed():
        operation = told[each.method, each.path]
        assert operation["summary"], each.path
        if each.role is not None:
            assert operation["x-role"] == each.role.word
            assert {"401", "403", "429", "503"} <= set(operation["responses"])
        assert str(each.status) in operation["responses"]
        if each.beyond:
            assert each.beyond in operation["responses"]["422"]["description"]
    assert described["openapi"] == "3.1.0"
    assert len({operation["operationId"] for operation in told.values()}) == len(told)


async def test_the_page_needs_no_token_and_nothing_from_elsewhere():
    async with served(runs=False) as client:
        stranger = client.as_(None)
        page = await stranger("GET", PAGE)
        assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
        policy = page.headers["content-security-policy"]
        assert "script-src 'self';" in policy
        text = page.body.decode()
        assert "<script>" not in text
        links = re.findall(r'(?:src|href)="([^"]+)"', text)
        assert len(links) >= 4
        for link in links:
            assert link.startswith("/"), link
            assert (await stranger("GET", link)).status == 200, link
        assert (await stranger("GET", OPENAPI)).json["openapi"] == "3.1.0"
        assert (await stranger("GET", "/api/v2/jobs")).status == 401


async def test_the_page_keeps_the_token_for_as_long_as_its_tab_is_open():
    """Over a reload; not on the disk, where whoever comes next would find it."""
    async with served(runs=False) as client:
        script = (await client.as_(None)("GET", START)).body.decode()
    scheme = next(iter(document(EVERY)["components"]["securitySchemes"]))
    assert f'preauthorizeApiKey("{scheme}", ' in script
    for call in ("getItem", "setItem", "removeItem"):
        assert f"sessionStorage.{call}(" in script
    assert "localStorage" not in script
    assert "persistAuthorization" not in script


async def test_examples_and_descriptions_have_the_field_names_of_today():
    described = document(EVERY)
    fields = described["components"]["schemas"]["JobBody"]["properties"]
    older = {name for name, field in fields.items() if field.get("deprecated")}
    assert older == {"schedule_type", "cron_expression", "schedule_enabled", "timeout_seconds"}
    for name in older:
        assert re.search(r"an older (name|way)", fields[name]["description"]), name
    for path, operations in described["paths"].items():
        for operation in operations.values():
            example = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("example")
            for body in (example or {}).get("jobs", [example or {}]):
                assert not older & set(body), path


async def test_what_is_told_is_what_happens(tmp_path):
    """schemathesis asks the real server for all it can think of; no route and no check is left out.

    As many cases on a slow machine as on a quick one: no time ends it.
    """
    async with asked_server() as url:
        code, said = await _schemathesis(f"{url}{OPENAPI}", tmp_path, "--phases", "examples,fuzzing,stateful")
    assert code == 0, said[-8_000:]
    assert f"Tested: {len(listed())}\n" in said, said[-8_000:]


@pytest.mark.parametrize("part", ["first", "second"])
async def test_what_is_told_holds_at_its_borders(tmp_path, part):
    """The phase with most cases, of one half of the routes."""
    half = len(listed()) // 2
    told = listed()[:half] if part == "first" else listed()[half:]
    where = [word for each in told for word in ("--include-name", f"{each.method} {each.path}")]
    async with asked_server() as url:
        code, said = await _schemathesis(f"{url}{OPENAPI}", tmp_path, "--phases", "coverage", *where)
    assert code == 0, said[-8_000:]
    assert f"Tested: {len(told)}\n" in said, said[-8_000:]


async def test_lies_are_found(tmp_path):
    """A field that is not there, a limit that does not hold, an answer of another kind: by events as well."""
    told = json.loads(json.dumps(document(EVERY)))
    paths = ("/api/v2/nodes", "/api/v2/audit", "/api/v2/events")
    told["components"]["schemas"]["NodeList"]["required"].append("captain")
    [limit] = [each for each in told["paths"]["/api/v2/audit"]["get"]["parameters"] if each["name"] == "limit"]
    limit["schema"]["maximum"] = 5_000
    told["paths"]["/api/v2/events"]["get"]["responses"]["200"]["content"] = {"application/json": {}}
    (tmp_path / "told.json").write_text(json.dumps(told))
    where = [word for path in paths for word in ("--include-path", path)]
    async with asked_server() as url:
        code, said = await _schemathesis("told.json", tmp_path, "--url", url, *where, "--phases", "coverage")
    assert code == 1, said
    for found in ("Response violates schema", "Schema-valid request rejected", "Undocumented Content-Type"):
        assert found in said, said


async def test_a_door_that_lets_everybody_in_is_found(tmp_path, monkeypatch):
    async def anybody(*_):
        return Identity("anybody", Role.ADMIN)

    monkeypatch.setattr(Gateway, "_identify", anybody)
    async with asked_server() as url:
        where = ("--include-path", "/api/v2/nodes", "--phases", "coverage")
        code, said = await _schemathesis(f"{url}{OPENAPI}", tmp_path, *where)
    assert code == 1, said
    assert "without authentication" in said, said


@asynccontextmanager
async def asked_server():
    async with an_app(runs=False) as app:
        server = ApiServer(app, ServerOptions(port=0, token=SECRETS[Role.ADMIN], limits=LIMITS))
        await server.start()
        try:
            yield f"http://127.0.0.1:{server.port}"
        finally:
            await server.stop()


@pytest.mark.parametrize(("name", "many"), [("README.md", 2), ("docs/api.md", 16)])
async def test_every_line_of_curl_on_the_page_works(tmp_path, name, many):
    """In order, against a real server, with a real curl; and in the words of today."""
    page = (Path(__file__).parents[2] / name).read_text()
    lines = [line for block in re.findall(r"```sh\n(.*?)```", page, re.DOTALL) for line in block.splitlines()]
    lines = [line for line in lines if line.startswith("curl ")]
    assert len(lines) >= many
    assert not re.search("schedule_type|cron_expression|schedule_enabled|timeout_seconds", "".join(lines))
    async with an_app(runs=False) as app:
        server = ApiServer(app, ServerOptions(port=0, token=SECRETS[Role.ADMIN], limits=ApiLimits(rate=0)))
        await server.start()
        connect = f'connect-to = "localhost:8060:127.0.0.1:{server.port}"\n'
        (tmp_path / ".curlrc").write_text(f'{connect}header = "Authorization: Bearer {SECRETS[Role.ADMIN]}"\n')
        try:
            for line in lines:
                code, said = await _run(
                    [*shlex.split(line), "-sS", "--fail-with-body"], tmp_path, CURL_HOME=str(tmp_path)
                )
                assert code == 0, (line, said)
                json.loads(said)
        finally:
            await server.stop()


async def _schemathesis(place: str, folder: Path, *more: str) -> tuple[int, str]:
    (folder / "schemathesis.toml").write_text(config())
    command = [str(Path(sys.executable).parent / "schemathesis"), "run", place, *more]
    command += ["--checks", "all", "--max-examples", "5", "--seed", "1", "--warnings", "off", "--no-color"]
    command += ["-H", f"Authorization: Bearer {SECRETS[Role.ADMIN]}", "--generation-database", "none"]
    return await _run(command, folder, HYPOTHESIS_STORAGE_DIRECTORY=str(TABLES))


async def _run(command: list[str], folder: Path, **environ: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, env=os.environ | environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        out, _ = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return process.returncode, out.decode()
