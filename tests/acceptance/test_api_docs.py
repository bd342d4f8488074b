"""The description of the API is true, and can be read with no internet and no token."""

import asyncio
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from pollux.server import Server, ServerOptions
from pollux.server.identity import Role
from pollux.server.limits import Limits
from pollux.server.openapi import OPENAPI, PAGE, document
from pollux.server.routes import EVERY
from tests.acceptance.api_world import SECRETS, an_app, served

SECONDS = 30  # for schemathesis to look for what is not as it is told
CONFIG = """
[checks]
# Whether a cron line or a URL can be used is not for a schema to say: 422 is a good answer to a body of the right kind.
positive_data_acceptance.expected-statuses = ["2xx", "401", "403", "404", "409", "422", "429"]
# Who comes without a token is answered 401 ten times a second and then 429; `test_api_roles` walks every route.
ignored_auth.enabled = false
"""


async def test_every_route_is_described_with_its_role_and_its_refusals():
    described = document(EVERY)

    told = {
        (method.upper(), path): operation
        for path, operations in described["paths"].items()
        for method, operation in operations.items()
    }
    listed = [each for group in EVERY for each in group.operations if each.include_in_schema]
    assert set(told) == {(each.method, each.path) for each in listed}
    for each in listed:
        operation = told[each.method, each.path]
        assert operation["summary"], each.path
        if each.role is not None:
            assert operation["x-role"] == each.role.word
            assert {"401", "403", "429", "503"} <= set(operation["responses"])
        assert str(each.status) in operation["responses"]
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


@pytest.mark.parametrize("phases", ["examples,coverage,fuzzing,stateful"])
async def test_what_is_told_is_what_happens(tmp_path, phases):
    """schemathesis asks the real server for all it can think of, within its time."""
    (tmp_path / "schemathesis.toml").write_text(CONFIG)
    async with an_app(runs=False) as app:
        server = Server(app, ServerOptions(port=0, token=SECRETS[Role.ADMIN], limits=Limits(rate=0)))
        await server.start()
        try:
            code, said = await _schemathesis(f"http://127.0.0.1:{server.port}", phases, tmp_path)
        finally:
            await server.stop()
    assert code == 0, said[-8_000:]
    assert "No failures" in said or "passed" in said, said[-8_000:]


async def test_every_line_of_curl_on_the_page_works(tmp_path):
    """In order, against a real server, with a real curl."""
    page = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
    lines = [line for block in re.findall(r"```sh\n(.*?)```", page, re.DOTALL) for line in block.splitlines()]
    assert len(lines) > 15
    async with an_app(runs=False) as app:
        server = Server(app, ServerOptions(port=0, token=SECRETS[Role.ADMIN], limits=Limits(rate=0)))
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


async def _schemathesis(url: str, phases: str, folder: Path) -> tuple[int, str]:
    command = [str(Path(sys.executable).parent / "schemathesis"), "run", f"{url}{OPENAPI}", "--phases", phases]
    command += ["-H", f"Authorization: Bearer {SECRETS[Role.ADMIN]}", "--exclude-path", "/api/v2/events"]  # never ends
    command += ["--max-time", str(SECONDS), "--max-examples", "5", "--seed", "1", "--warnings", "off", "--no-color"]
    return await _run(command, folder)


async def _run(command: list[str], folder: Path, **environ: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, env=os.environ | environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        out, _ = await asyncio.wait_for(process.communicate(), 4 * SECONDS)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return process.returncode, out.decode()
