"""Polling real URLs: from a file to the history, against a real server on loopback."""

import asyncio
import base64
import gzip
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import web

from pollux import Pollux, Retry, every
from pollux.config import load_config
from pollux.errors import InvalidInput
from pollux.model import Job, Run, RunState
from pollux.store.contract import JobPut, RunFilter
from tests.acceptance.hostile import CERTIFICATES, tls
from tests.http_world import serve_raw, until


class Site:
    """A server whose pages the tests change; it keeps every request."""

    def __init__(self) -> None:
        self.text, self.etag, self.modified = "one", "", ""
        self.requests: list[web.Request] = []
        self.bodies: list[bytes] = []
        self.answers: dict[str, Callable[[web.Request], Awaitable[web.StreamResponse] | web.StreamResponse]] = {}
        self.at_once = self.most_at_once = 0
        self.port = self.tls_port = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        self.bodies.append(await request.read())
        own = self.answers.get(request.path)
        if own is not None:
            made = own(request)
            return await made if asyncio.iscoroutine(made) else made
        if self.etag and request.headers.get("If-None-Match") == self.etag:
            return web.Response(status=304)
        if self.modified and request.headers.get("If-Modified-Since") == self.modified:
            return web.Response(status=304)
        headers = {name: value for name, value in (("ETag", self.etag), ("Last-Modified", self.modified)) if value}
        return web.Response(text=self.text, headers=headers)

    def url(self, path: str = "/page", *, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    site = Site()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", site.answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    for context in (None, tls("good")):
        part = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
        await part.start()
        port = part._server.sockets[0].getsockname()[1]
        site.port, site.tls_port = (port, 0) if context is None else (site.port, port)
    yield site
    await runner.cleanup()


async def finished(app: Pollux, job: str, params: dict | None = None) -> Run:
    run = await app.run_now(job, params, anyway=True)

    async def ended() -> Run | None:
        seen = await app.get_run(run.id)
        return seen if seen.is_finished or seen.error else None

    return await until(ended)


async def learnt(app: Pollux, job: str, ends: int) -> None:
    """The leader knows of so many ends, so the next run is compared with the last of them."""

    async def is_learnt() -> bool:
        return (await app.operations.jobs.get_job(job)).memory.ended >= ends

    await until(is_learnt)


async def polled(site: Site, *times: Callable[[], object] | None, **params: object) -> list[Run]:
    """A job is run once, and again after each of the changes; the leader has learnt of each before the next."""
    app = Pollux("memory://")
    app.add("http", id="poll", params={"url": site.url(), **params}, retry=False)
    runs = []
    async with app:
        for change in (None, *times):
            if change is not None:
                change()
            runs.append(await finished(app, "poll"))
            await learnt(app, "poll", len(runs))
    return runs


def change(site: Site, **values: str) -> Callable[[], None]:
    return lambda: [setattr(site, name, value) for name, value in values.items()]


# end to end


FILE = """
store: memory://
jobs:
  - {{id: page, http: "{page}", interval: 1s}}
  - id: api
    interval: 200ms
    http:
      url: {api}
      method: post
      headers: {{X-Who: pollux}}
      json: {{query: [1, 2]}}
      auth: {{bearer: "${{env:API_TOKEN}}"}}
      expect: [200, 201]
      take: {{json: "data.items[-1].price"}}
"""


async def test_a_file_with_two_urls_is_polled_and_the_history_tells_what_was_seen(site, tmp_path, monkeypatch):
    monkeypatch.setenv("API_TOKEN", "t0ken-of-the-test")
    site.answers["/api"] = lambda request: web.json_response({"data": {"items": [{"price": 12.5}]}}, status=201)
    path = tmp_path / "pollux.yaml"
    path.write_text(FILE.format(page=site.url(), api=site.url("/api")))
    app = Pollux.from_config(load_config(str(path), environ=os.environ))
    async with app:
        for name in ("page", "api"):
            await learnt(app, name, 3)
        site.text = "two"
        changed_ms = (await app.operations.jobs.get_job("page")).memory.last_change_ms

        async def is_seen() -> bool:
            return (await app.operations.jobs.get_job("page")).memory.last_change_ms != changed_ms

        await until(is_seen)
        pages = (await app.operations.runs.list_runs(RunFilter(states=(RunState.DONE,), job_id="page"))).runs
        calls = (await app.operations.runs.list_runs(RunFilter(states=(RunState.DONE,), job_id="api"))).runs
    in_order = sorted(pages, key=lambda run: run.due_ms)
    assert in_order[0].changed
    assert [run.changed for run in in_order[1:]].count(True) == 1
    assert all(run.result["status"] == 200 and run.result["bytes"] == 3 and run.result["ms"] > 0 for run in pages)
    assert all(run.result["status"] == 201 and run.result["value"] == 12.5 for run in calls)
    asked = next(request for request in site.requests if request.path == "/api")
    assert (asked.method, asked.headers["X-Who"]) == ("POST", "pollux")
    assert asked.headers["Authorization"] == "Bearer t0ken-of-the-test"
    assert json.loads(site.bodies[site.requests.index(asked)]) == {"query": [1, 2]}
    assert "t0ken" not in repr([*pages, *calls, *app.declared_jobs()])


# changed or not


async def test_a_page_is_unchanged_while_its_bytes_are_the_same(site):
    first, again, other = await polled(site, None, change(site, text="two"))
    assert [first.changed, again.changed, other.changed] == [True, False, True]


@pytest.mark.parametrize("validator", [{"etag": '"v1"'}, {"modified": "Tue, 01 Jan 2019 00:00:00 GMT"}])
async def test_the_second_poll_asks_for_news_only(site, validator):
    change(site, **validator)()
    first, again, other = await polled(site, None, change(site, text="two", etag='"v2"', modified=""))
    assert [first.result["status"], again.result["status"], other.result["status"]] == [200, 304, 200]
    assert [first.changed, again.changed, other.changed] == [True, False, True]
    assert "bytes" not in again.result


async def test_another_etag_on_the_same_bytes_is_no_change(site):
    site.etag = '"a"'
    first, again = await polled(site, change(site, etag='"b"'))
    assert (again.result["status"], again.changed) == (200, False)
    assert first.changed


async def test_conditional_requests_can_be_switched_off(site):
    site.etag = '"v1"'
    _, again = await polled(site, None, conditional=False)
    assert (again.result["status"], again.changed) == (200, False)
    assert all("If-None-Match" not in request.headers for request in site.requests)


async def test_another_question_is_never_answered_by_unchanged(site):
    """What was taken is another thing now, so the old ETag is not sent and the old digest not compared."""
    site.etag, site.text = '"v1"', '{"a": 1, "b": 1}'
    app = Pollux("memory://")
    app.add("http", id="poll", params={"url": site.url(), "take": {"json": "a"}})
    async with app:
        await finished(app, "poll")
        await learnt(app, "poll", 1)
        other = await finished(app, "poll", {"take": {"json": "b"}})
    assert (other.result["status"], other.changed) == (200, True)


async def test_with_take_only_what_was_taken_is_compared(site):
    site.text = '{"at": 1, "price": 5}'
    runs = await polled(
        site,
        change(site, text='{"at": 2, "price": 5}'),
        change(site, text='{"at": 2, "price": 6}'),
        take={"json": "price"},
    )
    assert [run.changed for run in runs] == [True, False, True]
    assert [run.result["value"] for run in runs] == [5, 5, 6]


async def test_a_regex_takes_its_first_group(site):
    site.text = "<b>Price: 12,50 EUR</b>"
    [run] = await polled(site, take={"regex": r"Price: ([\d,]+)"})
    assert run.result["value"] == "12,50"


async def test_a_regex_that_runs_wild_is_a_permanent_fault(site):
    site.text = "a" * 64 + "b"
    [run] = await polled(site, take={"regex": "(a+)+$"})
    assert (run.state, run.error.partition(":")[0]) == (RunState.DEAD, "SlowPattern")


async def test_a_head_is_compared_by_its_headers(site):
    site.etag = '"v1"'
    runs = await polled(site, None, change(site, etag='"v2"'), method="HEAD", conditional=False)
    assert [run.changed for run in runs] == [True, False, True]


async def test_a_body_is_kept_only_if_asked_and_only_its_beginning(site):
    site.text = "x" * 10_000
    [plain], [kept] = await polled(site), await polled(site, keep="body")
    assert "body" not in plain.result
    assert kept.result["body"] == "x" * 4_096
    assert kept.result["bytes"] == 10_000


async def test_a_value_that_is_too_big_to_keep_is_compared_all_the_same(site):
    site.text = json.dumps({"a": "x" * 20_000})
    first, again = await polled(site, None, take={"json": "a"})
    assert (first.result["value_size"], again.changed) == ("20 kB", False)
    assert "value" not in first.result


async def test_a_packed_answer_is_unpacked(site):
    packed = gzip.compress(b'{"a": 7}')
    site.answers["/page"] = lambda request: web.Response(body=packed, headers={"Content-Encoding": "gzip"})
    [run] = await polled(site, take={"json": "a"})
    assert (run.result["value"], run.result["bytes"]) == (7, 8)
    assert site.requests[0].headers["Accept-Encoding"] == "gzip, deflate"


# statuses and retries


async def test_a_status_that_was_not_expected_fails_and_says_both(site):
    site.answers["/page"] = lambda request: web.Response(status=404)
    [run] = await polled(site)
    assert run.error == f"RefusedStatus: 127.0.0.1:{site.port} answered 404 Not Found; expected 2xx or 304"
    assert run.state is RunState.DEAD
    [expected] = await polled(site, expect=[404])
    assert (expected.state, expected.result["status"]) == (RunState.DONE, 404)


@pytest.mark.parametrize("status", [429, 503])
async def test_retry_after_is_obeyed(site, status):
    site.answers["/page"] = lambda request: web.Response(status=status, headers={"Retry-After": "3600"})
    app = Pollux("memory://")
    app.add("http", id="poll", params={"url": site.url()}, retry=Retry(attempts_max=3, base_ms=1))
    async with app:
        run = await finished(app, "poll")
        assert run.error.startswith(f"BadStatus: 127.0.0.1:{site.port} answered {status}")
        assert (run.state, run.attempt) in {(RunState.READY, 1), (RunState.HELD, 1)}
        assert 3_590_000 < run.visible_ms - run.started_ms < 3_660_000
    assert len(site.requests) == 1


async def test_a_fixed_job_asks_again_at_its_next_due_time_whatever_retry_after_says(site):
    """The next firing is the retry: `Retry-After` puts off retries, not firings."""
    site.answers["/page"] = lambda request: web.Response(status=429, headers={"Retry-After": "600"})
    app = Pollux("memory://")
    app.add("http", every("100ms"), id="poll", params={"url": site.url()})
    async with app:
        await learnt(app, "poll", 3)
        job = await app.operations.jobs.get_job("poll")
    assert len(site.requests) >= 3
    assert "answered 429" in job.memory.last_error


async def test_a_payload_that_cannot_be_used_is_a_permanent_fault_that_quotes_nothing(site):
    """Whoever asks is told at once; a run that got past that (of another version, say) is told by its run."""
    app = Pollux("memory://")
    job = app.add("http", id="poll", params={"url": site.url()})
    async with app:
        handler = app._registry.get(job.handler)
        handler.rules = None
        run = await finished(app, "poll", {"headers": {"X": "S3CRET\n"}})
    assert run.error == "UnfitParams: headers.X: it holds a line break or another control character; remove it"
    assert run.state is RunState.DEAD
    assert not site.requests


# redirects and auth


def found(place: str) -> web.Response:
    return web.Response(status=302, headers={"Location": place})


async def test_a_redirect_is_followed_and_counted(site):
    site.answers["/page"] = lambda request: found("/next")
    [run] = await polled(site)
    assert (run.result["status"], run.result["redirects"]) == (200, 1)
    [off] = await polled(site, redirects=0)
    assert "answered 302 Found" in off.error


BASIC = {"basic": {"user": "ann", "password": "${env:HTTP_TEST_PASSWORD}"}}


async def test_auth_arrives_goes_with_a_redirect_to_the_same_origin_and_to_no_other(site, monkeypatch):
    monkeypatch.setenv("HTTP_TEST_PASSWORD", "pass-of-the-test")
    token = "Basic " + base64.b64encode(b"ann:pass-of-the-test").decode()
    extra = {"headers": {"X-Api-Key": "k", "Accept": "text/x"}, "auth": BASIC}
    site.answers["/page"] = lambda request: found("/next")
    await polled(site, **extra)
    assert [request.headers.get("Authorization") for request in site.requests] == [token, token]
    site.requests.clear()
    elsewhere = f"http://localhost:{site.port}/next"
    site.answers["/page"] = lambda request: found(elsewhere)
    [run] = await polled(site, **extra)
    assert run.result["status"] == 200
    first, second = (request.headers for request in site.requests)
    assert (first["Authorization"], first["X-Api-Key"]) == (token, "k")
    assert "Authorization" not in second
    assert "X-Api-Key" not in second
    assert second["Accept"] == "text/x"


@pytest.mark.parametrize(("status", "method"), [(301, "GET"), (303, "GET"), (307, "POST"), (308, "POST")])
async def test_a_redirect_keeps_method_and_body_only_where_it_says_so(site, status, method):
    site.answers["/page"] = lambda request: web.Response(status=status, headers={"Location": "/next"})
    await polled(site, body="data")
    assert [request.method for request in site.requests] == ["POST", method]
    assert site.bodies == [b"data", b"data" if method == "POST" else b""]
    assert ("Content-Type" in site.requests[1].headers) is (method == "POST")


async def test_a_body_is_not_sent_to_another_origin(site):
    elsewhere = f"http://localhost:{site.port}/next"
    site.answers["/page"] = lambda request: web.Response(status=307, headers={"Location": elsewhere})
    [run] = await polled(site, body="data")
    assert f"redirects a body to another origin, localhost:{site.port}" in run.error
    assert len(site.requests) == 1


async def test_cookies_are_not_kept(site):
    site.answers["/page"] = lambda request: web.Response(headers={"Set-Cookie": "a=b"})
    await polled(site, None)
    assert [request.headers.get("Cookie") for request in site.requests] == [None, None]


async def test_proxies_of_the_environment_are_not_asked(site, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1/")
    [run] = await polled(site)
    assert run.result["status"] == 200


# tls


async def test_a_certificate_of_one_s_own_authority_is_trusted_if_named(site):
    url = f"https://127.0.0.1:{site.tls_port}/page"
    [named], [unseen], [neither] = [
        await polled(site, url=url, **extra) for extra in ({"ca": str(CERTIFICATES / "ca.pem")}, {"verify": False}, {})
    ]
    assert (named.result["status"], unseen.result["status"]) == (200, 200)
    assert neither.error.startswith("Untrusted")


# what came by API


async def test_a_job_that_came_by_api_may_not_poll_loopback_unless_its_network_is_allowed(site):
    for networks, allowed in (((), False), (("127.0.0.0/8",), True)):
        app = Pollux("memory://", http_allow_networks=networks)
        async with app:
            await app.put_jobs([Job(id="by-api", handler="http", params={"url": site.url()})])
            run = await finished(app, "by-api")
        assert (run.state is RunState.DONE) is allowed
        assert run.error.startswith("DeniedAddress: 127.0.0.1 is not a public address") is not allowed
    assert len(site.requests) == 1


async def test_a_job_that_came_by_api_names_no_file(site):
    app = Pollux("memory://", http_allow_networks=["127.0.0.0/8"])
    async with app:
        by_api = Job(id="by-api", handler="http", params={"url": site.url(), "ca": "/etc/passwd"})
        with pytest.raises(InvalidInput, match=r"'by-api': params\.ca: a job that came by API names no file; declare"):
            await app.put_jobs([by_api])
        await app.backend.put_jobs([JobPut(by_api)])  # of a release that did not look
        run = await finished(app, "by-api")
    assert "UnfitParams: ca: a job that came by API names no file" in run.error


@pytest.mark.parametrize("name", ["Authorization", "authorization"])
async def test_a_job_that_came_by_api_holds_no_authorization_in_plain_text(site, name):
    app = Pollux("memory://", http_allow_networks=["127.0.0.0/8"])
    params = {"url": site.url(), "headers": {name: "Bearer swordfish-9000", "X": "y"}}
    async with app:
        with pytest.raises(InvalidInput) as refused:
            await app.put_jobs([Job(id="by-api", handler="http", params=params)])
        await app.put_jobs([Job(id="by-file", handler="http", params=params, source="file:p.yaml")])
    assert f"params.headers.{name}: the secret is written here in plain text" in str(refused.value)
    assert "${env:NAME} or ${file:PATH}" in refused.value.cure
    assert "swordfish" not in str(refused.value)


# many at a time


async def test_a_target_gets_a_few_requests_at_a_time_and_who_waits_for_a_place_holds_no_seat(site):
    """Twenty jobs on a page that does not answer, in six seats: others are polled meanwhile, and none of them fails."""
    released = asyncio.Event()

    async def stuck(request: web.Request) -> web.Response:
        site.at_once += 1
        site.most_at_once = max(site.most_at_once, site.at_once)
        await released.wait()
        site.at_once -= 1
        return web.Response()

    site.answers["/stuck"] = stuck
    app = Pollux("memory://", seats=6, http_per_target=3)
    for number in range(20):
        app.add("http", id=f"stuck-{number}", params={"url": site.url("/stuck")}, retry=False)
    other = await serve_raw([], "127.0.0.1")
    app.add("http", id="other", params={"url": f"http://127.0.0.1:{other.sockets[0].getsockname()[1]}/"})
    async with app:
        runs = [await app.run_now(f"stuck-{number}") for number in range(20)]

        async def seen() -> list[Run]:
            return [await app.get_run(run.id) for run in runs]

        async def sent_away() -> list[Run]:
            waiting = [run for run in await seen() if "waits for a place" in run.progress]
            return waiting if len(waiting) >= 12 else []

        waiting = await until(sent_away)
        assert waiting[0].progress.startswith("waits for a place: 3 polls of target 127.0.0.1:")
        for _ in range(3):
            assert (await finished(app, "other")).state is RunState.DONE

        async def told() -> list[str]:
            whys = [(await app.why(run.id)).reason for run in waiting]
            return [why for why in whys if "waits for a place" in why]

        assert "its time comes in" in (await until(told))[0]
        charged = [run for run in await seen() if run.attempt or run.error or run.is_finished]
        assert not charged
        released.set()

        async def all_ended() -> list[Run]:
            ended = await seen()
            return ended if all(run.is_finished for run in ended) else []

        ended = await until(all_ended)
        assert {(run.state, run.failed) for run in ended} == {(RunState.DONE, False)}
        assert max(run.fence for run in ended) > 1, "some came again"
    other.close()
    await other.wait_closed()
    assert site.most_at_once == 3


async def test_a_target_that_is_polled_often_keeps_its_connection_and_one_that_is_not_does_not(site, monkeypatch):
    ports = []
    site.answers["/page"] = lambda request: (
        ports.append(request.transport.get_extra_info("peername")[1]) or web.Response()
    )
    await polled(site, None, None, None)
    assert site.requests[0].headers["Connection"] == "close"
    assert "Connection" not in site.requests[2].headers
    assert len(set(ports)) == 2


# leaving nothing behind


def sockets_open() -> int:
    return sum(
        str(entry.readlink()).startswith("socket:") for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()
    )


async def test_a_stopped_app_leaves_no_socket_and_can_start_again(site):
    before = sockets_open()
    app = Pollux("memory://")
    app.add("http", every("1h"), id="poll", params={"url": site.url()})
    for _ in range(2):
        async with app:
            for _ in range(3):
                assert (await finished(app, "poll")).result["status"] == 200

        async def is_as_before() -> bool:
            return sockets_open() <= before

        await until(is_as_before)


# what comes with a run


async def test_a_url_that_comes_with_a_run_has_no_rights_of_its_job(site):
    app = Pollux("memory://")
    app.add("http", id="any", params={})
    app.add("http", id="own", params={"url": site.url()})
    async with app:
        for job in ("any", "own"):
            run = await finished(app, job, {"url": site.url("/inside")})
            assert run.error.startswith("DeniedAddress: 127.0.0.1 is not a public address")
        assert (await finished(app, "own", {"expect": 200})).state is RunState.DONE
    assert [request.path for request in site.requests] == ["/page"]


async def test_a_network_that_is_allowed_is_open_to_what_comes_with_a_run(site):
    app = Pollux("memory://", http_allow_networks=["127.0.0.0/8"])
    app.add("http", id="any", params={})
    async with app:
        assert (await finished(app, "any", {"url": site.url()})).state is RunState.DONE


@pytest.mark.parametrize("brought", ["url", "verify"])
async def test_a_run_sends_the_secrets_of_its_job_nowhere_else(site, monkeypatch, brought):
    monkeypatch.setenv("TOKEN_OF_JOB", "swordfish-9000")
    app = Pollux("memory://", http_allow_networks=["127.0.0.0/8"])
    app.add("http", id="own", params={"url": site.url(), "auth": {"bearer": "${env:TOKEN_OF_JOB}"}})
    async with app:
        wrong = {"url": f"http://127.0.0.1:{site.tls_port}/"} if brought == "url" else {"verify": False}
        run = await finished(app, "own", wrong)
        assert run.error.startswith("UnfitParams: url: the job holds secrets")
        assert not site.requests
        assert (await finished(app, "own", {"url": site.url("/other")})).state is RunState.DONE
    assert [request.headers["Authorization"] for request in site.requests] == ["Bearer swordfish-9000"]
