"""An operator's page of an older scheduler, line by line: its commands work unchanged, and what they tell is true.

The lines below stand there as they do in that page, with `<id>` for the id of the job at hand: managing jobs, steering
the scheduler, and looking for the reason when jobs do not run.  curl finds the token in the `.curlrc` that
`pollux token --curl` writes; a line in it sends what is for port 8060 to the port of this test.  Where there is no curl
we send the same requests ourselves.
"""

import base64
import json
import re
import shlex
import shutil
import socket
import subprocess
import threading
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path

import pytest
import redis

from tests.acceptance.terminal import PATIENCE_SECONDS, Terminal, eventually, stopped
from tests.servers import redis as redis_servers

CREATE = """curl -X POST http://localhost:8060/api/v2/jobs \\
  -d '{"source_id":"uuid","url":"https://example.com","schedule_type":"cron","cron_expression":"0 */6 * * *"}'"""
LIST = "curl http://localhost:8060/api/v2/jobs"
SHOW = "curl http://localhost:8060/api/v2/jobs/<id>"
CHANGE = "curl -X PUT http://localhost:8060/api/v2/jobs/<id> -d"
DELETE = "curl -X DELETE http://localhost:8060/api/v2/jobs/<id>"
PAUSE = "curl -X POST http://localhost:8060/api/v2/jobs/<id>/pause"
RESUME = "curl -X POST http://localhost:8060/api/v2/jobs/<id>/resume"
CANCEL = "curl -X POST http://localhost:8060/api/v2/jobs/<id>/cancel"
FORCE = "curl -X POST http://localhost:8060/api/v2/jobs/<id>/force-run"
HEALTH = "curl http://localhost:8060/api/v2/scheduler/health"
WORKERS = "curl http://localhost:8060/api/v2/scheduler/workers"
METRICS = "curl http://localhost:8060/api/v2/scheduler/metrics"
DRAIN = "curl -X POST http://localhost:8060/api/v2/scheduler/drain"
GO_ON = "curl -X POST http://localhost:8060/api/v2/scheduler/resume"
STREAM = "crawler:jobs:normal"  # redis-cli XINFO GROUPS crawler:jobs:normal

CURL = shutil.which("curl")
NOBODY = 401
HEALTH_FIELDS = {
    "status", "running", "is_leader", "workers_active", "workers_busy", "queue_depth", "cron_jobs_count",
    "last_check_at", "uptime_seconds", "circuit_breaker_state",
}  # fmt: skip
SEATS = 3


class Target:
    """Something to poll: it counts, and answers when it is let."""

    def __init__(self) -> None:
        self.polls, self.may_answer = 0, threading.Event()
        self.may_answer.set()
        target = self

        class Page(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                target.polls += 1
                target.may_answer.wait(PATIENCE_SECONDS)
                self.send_response(200)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"ok")

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
        self.url = f"http://127.0.0.1:{self.server.server_port}/"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.may_answer.set()
        self.server.shutdown()
        self.server.server_close()


class Operator:
    """Somebody with that page in hand, at a terminal where the scheduler runs."""

    def __init__(self, terminal: Terminal, environ: dict[str, str]) -> None:
        self.terminal, self.environ = terminal, environ

    def types(self, line: str, job_id: str = "", body: dict | None = None, *, status: int | None = None):
        """Run one line of the page; the answer as JSON."""
        words = shlex.split(line.replace("<id>", job_id).replace("\\\n", " "))
        words += [json.dumps(body)] if body is not None else []
        assert words[0] == "curl"
        text, code = (self._by_curl if CURL else self._by_ourselves)(words[1:])
        assert 200 <= code < 300 if status is None else code == status, (line, text)
        return json.loads(text)

    def _by_curl(self, words: list[str]) -> tuple[str, int]:
        done = subprocess.run(
            [CURL or "", *words, "-sS", "-w", "\n%{http_code}"],
            env=self.terminal.environ(self.environ | {"CURL_HOME": str(self.terminal.folder)}),
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=True,
        )
        text, _, code = done.stdout.rpartition("\n")
        return text, int(code)

    def _by_ourselves(self, words: list[str]) -> tuple[str, int]:
        """The same request where there is no curl, with what stands in its files."""
        options = dict(pairwise(words))
        url = next(word for word in words if word.startswith("http://"))
        rc = dict(re.findall(r'(\S+) = "(.*)"', (self.terminal.folder / ".curlrc").read_text()))
        headers = {"Content-Type": "application/x-www-form-urlencoded", "Host": "localhost:8060"}
        if "netrc-file" in rc:
            login, password = re.findall(r"login (\S+) password (\S+)", Path(rc["netrc-file"]).read_text())[0]
            headers["Authorization"] = f"Basic {base64.b64encode(f'{login}:{password}'.encode()).decode()}"
        host, port = rc["connect-to"].split(":")[2:]
        connection = HTTPConnection(host, int(port), timeout=PATIENCE_SECONDS)
        try:
            method = options.get("-X", "POST" if "-d" in options else "GET")
            connection.request(method, url.removeprefix("http://localhost:8060"), options.get("-d"), headers)
            answer = connection.getresponse()
            return answer.read().decode(), answer.status
        finally:
            connection.close()

    def sees(self, line: str, what: str, look, job_id: str = ""):
        def looked():
            seen = self.types(line, job_id)
            return seen if look(seen) else None

        return eventually(looked, what)


@pytest.fixture(params=["sqlite", "redis"])
def place(request, tmp_path):
    """A running scheduler on each store, and somebody who works with it."""
    server = redis_servers.RedisServer(tmp_path / "redis", "--appendonly", "yes") if request.param == "redis" else None
    store = "sqlite:///pollux.db"
    if server is not None:
        server.folder.mkdir()
        store = server.start().url
    terminal, target = Terminal(tmp_path), Target()
    port = redis_servers.free_port()
    terminal.write("pollux.yaml", f"store: {store}\npool: {{seats: {SEATS}}}\nhttp: {{allow_networks: 127.0.0.0/8}}\n")
    environ = {
        "POLLUX_SERVER": "true",
        "SCHEDULER_QUEUE_PREFIX": "crawler",
        "POLLUX_METRICS_PREFIX": "crawler",
        "HOME": str(tmp_path),
    }
    try:
        with terminal.started("serve", "-c", "pollux.yaml", "--port", str(port), environ=environ) as process:
            operator = Operator(terminal, environ)
            connect = f'connect-to = "localhost:8060:127.0.0.1:{port}"\n'
            (tmp_path / ".curlrc").write_text(connect)
            eventually(lambda: is_up(port), "the API listens", process)
            refused = operator.types(HEALTH, status=NOBODY)
            assert "pollux token --curl" in refused["cure"]
            (tmp_path / ".curlrc").unlink()
            terminal.ok("token", "--curl", "-c", "pollux.yaml", environ=environ)
            with (tmp_path / ".curlrc").open("a") as file:
                file.write(connect)
            yield operator, target, server
            assert stopped(process).code == 0
    finally:
        target.close()
        if server is not None:
            server.stop()


def is_up(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_the_lines_of_the_page(place):
    operator, target, server = place
    manage(operator)
    home = force(operator, target)
    troubleshoot(operator, target, home, server)
    steer(operator, target, home, server)
    assert operator.types(DELETE, home)["job_id"] == home
    assert operator.types(SHOW, home, status=404)["cure"]


def manage(operator: Operator) -> None:
    """Create, list with the filter for priority, get, update, delete; pause and resume."""
    made = operator.types(CREATE)
    job_id = made["id"]
    assert (made["source_id"], made["url"]) == ("uuid", "https://example.com")
    assert (made["schedule_type"], made["cron_expression"]) == ("cron", "0 */6 * * *")
    assert (made["priority"], made["timeout_seconds"], made["scheduler_version"]) == (2, 3600, 2)

    listed = operator.types(LIST)
    assert ([job["id"] for job in listed["jobs"]], listed["total"]) == ([job_id], 1)
    assert {"limit", "offset"} <= set(listed)
    assert operator.types(f"{LIST}?priority=1")["jobs"] == []
    assert [job["id"] for job in operator.types(f"{LIST}?priority=2")["jobs"]] == [job_id]

    planned = operator.sees(SHOW, "the job is planned", lambda job: job["next_due_at"], job_id)
    assert planned["next_due_at"][14:] == "00:00Z"
    assert int(planned["next_due_at"][11:13]) % 6 == 0

    changed = operator.types(CHANGE, job_id, {**planned, "priority": 1, "timeout_seconds": 7200})
    assert (changed["priority"], changed["timeout_seconds"], changed["revision"]) == (1, 7200, 2)
    assert operator.types(CHANGE, job_id, {**planned, "revision": 1}, status=409)["revision"] == 2
    refused = operator.types(CHANGE, job_id, {"url": "https://example.com", "depends_on": ["job-uuid-1"]}, status=422)
    assert "not in this version" in refused["detail"]

    operator.types(PAUSE, job_id)
    assert operator.types(SHOW, job_id)["state"] == "paused"
    operator.types(RESUME, job_id)
    assert operator.types(SHOW, job_id)["state"] == "active"
    operator.types(DELETE, job_id)
    assert operator.types(LIST)["total"] == 0


def force(operator: Operator, target: Target) -> str:
    """Force a run, and see that it happened; cancel one that hangs."""
    job_id = operator.types(CREATE.replace("https://example.com", target.url))["id"]
    answer = operator.types(FORCE, job_id)
    assert answer["job_id"] == job_id
    assert answer["message"]
    job = operator.sees(SHOW, "it ran", lambda job: job["last"]["runs"] == 1, job_id)
    assert (job["last"]["outcome"], target.polls) == ("changed", 1)

    target.may_answer.clear()
    run = operator.types(FORCE, job_id)["run"]["id"]
    operator.sees(SHOW, "it runs", lambda job: job["state"] == "running", job_id)
    assert operator.types(FORCE, job_id, status=409)["run_id"] == run
    assert operator.types(CANCEL, job_id)["runs"] == [run]
    operator.sees(SHOW, "it runs no more", lambda job: job["state"] == "active", job_id)
    target.may_answer.set()
    return job_id


def troubleshoot(operator: Operator, target: Target, job_id: str, server) -> None:
    """Jobs do not execute: health, workers, and the streams say how it is, idle and busy."""
    health = operator.sees(HEALTH, "somebody leads", lambda health: health["is_leader"])
    assert set(health) >= HEALTH_FIELDS
    assert (health["running"], health["workers_active"], health["queue_depth"]) == (True, SEATS, 0)
    assert health["status"] in {"healthy", "degraded"}, health["findings"]
    workers = operator.types(WORKERS)
    assert (workers["total"], workers["draining"], len(workers["workers"])) == (SEATS, False, 1)

    target.may_answer.clear()
    for _ in range(SEATS + 2):
        operator.types(f"{FORCE} -d", job_id, {"anyway": True})
    operator.sees(WORKERS, "all seats are taken", lambda seen: (seen["active"], seen["idle"]) == (SEATS, 0))
    busy = operator.sees(HEALTH, "two wait", lambda seen: seen["queue_depth"] == 2)
    assert busy["workers_busy"] == SEATS
    assert operator.types(WORKERS)["queue_size"] == 2
    if server is not None:
        assert lag_and_pending(server) == (2, SEATS)
    target.may_answer.set()
    operator.sees(HEALTH, "the queue is worked off", lambda seen: (seen["queue_depth"], seen["workers_busy"]) == (0, 0))
    if server is not None:
        eventually(lambda: lag_and_pending(server) == (0, 0), "the stream is worked off")
    told = {family["name"]: family for family in operator.types(METRICS)["metrics"]}
    assert told["crawler_scheduler_worker_pool_size"]["samples"][0]["value"] == SEATS


def steer(operator: Operator, target: Target, job_id: str, server) -> None:
    """Drained workers claim nothing; resumed ones do."""
    polls = target.polls
    operator.types(DRAIN)
    operator.sees(WORKERS, "they are drained", lambda seen: seen["draining"])
    operator.types(FORCE, job_id)
    operator.sees(HEALTH, "it waits", lambda seen: seen["queue_depth"] == 1)
    if server is not None:
        assert lag_and_pending(server) == (1, 0)
    assert target.polls == polls
    operator.types(GO_ON)
    operator.sees(HEALTH, "it was claimed", lambda seen: seen["queue_depth"] == 0)
    eventually(lambda: target.polls == polls + 1, "the target was polled")
    operator.sees(WORKERS, "nobody drains", lambda seen: not seen["draining"])


def lag_and_pending(server) -> tuple[int, int]:
    with redis.Redis.from_url(server.url) as client:
        [group] = client.xinfo_groups(STREAM)
    assert group["name"] == b"scheduler"
    return group["lag"], group["pending"]
