"""Trust of the server: host names, pages, proxies, inner addresses, and what may not come by API."""

import asyncio
import json

from pollux import Pollux
from pollux.model import RunState
from pollux.server import ApiServer, ServerOptions
from pollux.server.gateway import Proxies, is_foreign_page
from pollux.server.limits import ApiLimits
from pollux.store.contract import RunFilter
from tests.acceptance.strangers import PATIENCE_S, World, answer_of, world
from tests.http_world import Names

NODES = "/api/v2/nodes"
TOKENS = "/api/v2/tokens"


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
    async with world(limits=ApiLimits(rate=0.0)) as api:
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
    async with world(limits=ApiLimits(rate=0.0)) as api:
        token = (await api.token("operator")).secret
        for url in INSIDE:
            body = json.dumps({"id": "inside", "url": url, "interval": "1h"}).encode()
            for method, path in (("POST", JOBS), ("PUT", f"{JOBS}/inside")):
                said = await api.ask(path, method, token=token, body=body)
                assert said.status == 422, said.body
            batch = await api.ask(f"{JOBS}/batch", "POST", token=token, body=b'{"jobs": [' + body + b"]}")
            assert batch.json["refused"] == 1, url
        assert (await api.app.operations.jobs.list_jobs()).jobs == ()


async def test_what_could_never_run_is_refused_when_it_is_put():
    """A file on the worker, and a secret in plain text: with the place, and the cure."""
    params = {"url": "https://example.com/", "ca": "/etc/passwd", "headers": {"Authorization": "Bearer swordfish-9000"}}
    async with world() as api:
        token = (await api.token("admin")).secret
        body = json.dumps({"id": "never", "http": params, "interval": "1h"}).encode()
        for method, path in (("POST", JOBS), ("PUT", f"{JOBS}/never")):
            said = await api.ask(path, method, token=token, body=body)
            assert said.status == 422, said.body
            assert b"a job that came by API names no file" in said.body
            assert b"${env:NAME} or ${file:PATH}" in said.body
            assert b"swordfish" not in said.body
        assert (await api.app.operations.jobs.list_jobs()).jobs == ()


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
        server = ApiServer(app, ServerOptions(port=0, is_port_given=True))
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
        runs = (await app.operations.runs.list_runs(RunFilter(states=(RunState.DEAD,)))).runs
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
        line = (await api.app.operations.audit.list_audit(newest=True, limit=1)).lines[-1]
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
        lines = [line for line in (await api.app.operations.audit.list_audit()).lines if line.action != "token create"]
    assert {line.actor for line in lines} == {"token:ann"}
    assert [line.action for line in lines] == ["put", "put", "pause", "delete"], "what was refused changed nothing"
    assert lines[0].detail.startswith("new: every 30s; handler http")
    assert "every 30s -> every 1m" in lines[1].detail
    assert "priority (usual) -> 1" in lines[1].detail
    assert lines[3].detail.startswith("was: every 1m; ")
    assert "geheim" not in str(lines)
