"""An operator's page of an older scheduler, line by line: its commands work unchanged, and what they tell is true.

The lines below stand there as they do in that page, with `<id>` for the id of the job at hand: managing jobs, steering
the scheduler, and looking for the reason when jobs do not run.  curl finds the token in the `.curlrc` that
`pollux token --curl` writes; a line in it sends what is for port 8060 to the port of this test.  Where there is no curl
we send the same requests ourselves.
"""

import base64
import contextlib
import json
import re
import shlex
import shutil
import socket
import subprocess
import threading
from datetime import UTC, datetime
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path

import pytest
import redis

from tests.acceptance.terminal import PATIENCE_SECONDS, SameProcess, Terminal, eventually, stopped
from tests.servers import redis as redis_servers
from tests.servers.ports import free_port

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
RUN = "curl http://localhost:8060/api/v2/runs/<id>"  # ours: that page has no line to look at a run
STREAM = "crawler:jobs:normal"  # redis-cli XINFO GROUPS crawler:jobs:normal

SETTINGS = {  # its variables, but for the size of the pool, which is changed below
    "SCHEDULER_V2_ENABLED": "true",
    "SCHEDULER_JOB_TIMEOUT": "3600",
    "SCHEDULER_QUEUE_BATCH_SIZE": "50",
    "SCHEDULER_QUEUE_PREFIX": "crawler",
    "SCHEDULER_LEADER_TTL": "30s",
    "SCHEDULER_LEADER_KEY": "scheduler-leader",
    "SCHEDULER_CB_THRESHOLD": "5",
    "SCHEDULER_CB_TIMEOUT": "60s",
}
SCHEMA = {  # its job, whole
    "source_id": "uuid",
    "url": "https://example.com",
    "schedule_type": "cron",
    "cron_expression": "0 */6 * * *",
    "priority": 1,
    "timeout_seconds": 7200,
    "depends_on": ["job-uuid-1"],
    "trigger_webhook": "/sources/*/crawl",
    "trigger_channel": "content:new",
    "schedule_enabled": True,
}
NOT_YET = {"depends_on", "trigger_webhook", "trigger_channel"}
CURL = shutil.which("curl")
NOBODY = 401
HEALTH_FIELDS = {
    "status", "running", "is_leader", "workers_active", "workers_busy", "queue_depth", "cron_jobs_count",
    "last_check_at", "uptime_seconds", "circuit_breaker_state",
}  # fmt: skip
SEATS = 3
MORE_SEATS = SEATS + 2
# A target has a place for each seat: the run of a poll that finds none goes back after 0.1 s and comes again.
FILE = f"pool: {{seats: {SEATS}}}\nhttp: {{allow_networks: 127.0.0.0/8, per_target: {MORE_SEATS}}}\n"
PATIENT = {"timeout": f"{PATIENCE_SECONDS:.0f}s"}  # not the usual 30 s: no poll ends before its target answers


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
                with contextlib.suppress(OSError):  # it was cancelled, and nobody reads any more
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
        self.asks = SameProcess(terminal.folder)  # the same terminal, quicker

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
        """Type it again and again, until what it tells is that."""

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
    terminal, target = Terminal(tmp_path, fresh=True), Target()
    port = free_port()
    terminal.write("pollux.yaml", f"store: {store}\n{FILE}")
    environ = SETTINGS | {"POLLUX_SERVER": "true", "POLLUX_METRICS_PREFIX": "crawler", "HOME": str(tmp_path)}
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
    schedule(operator, target)
    home = force(operator, target)
    jobs_not_executing(operator, target, home, server)
    high_queue_depth(operator, target, home, server)
    metrics(operator)
    steer(operator, target, home, server)
    leader_election_issues(operator, target, home, server)
    assert operator.types(DELETE, home)["job_id"] == home
    assert operator.types(SHOW, home, status=404)["cure"]


# job management


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
    shown = operator.types(SHOW, job_id)
    assert (shown["priority"], shown["timeout_seconds"], shown["revision"]) == (1, 7200, 2)
    assert [job["id"] for job in operator.types(f"{LIST}?priority=1")["jobs"]] == [job_id]

    operator.types(PAUSE, job_id)
    assert operator.types(SHOW, job_id)["state"] == "paused"
    operator.types(RESUME, job_id)
    assert operator.types(SHOW, job_id)["state"] == "active"
    operator.types(DELETE, job_id)
    assert operator.types(LIST)["total"] == 0
    extended(operator)


def extended(operator: Operator) -> None:
    """The extended schema whole: what this version cannot do is refused by name, the rest is kept as it was sent."""
    refused = operator.types("curl http://localhost:8060/api/v2/jobs -d", body=SCHEMA, status=422)
    assert {problem["where"] for problem in refused["problems"]} == NOT_YET
    assert "not supported in this version" in refused["detail"]
    known = {name: value for name, value in SCHEMA.items() if name not in NOT_YET}
    for is_enabled in (True, False):
        sent = {**known, "schedule_enabled": is_enabled}
        made = operator.types("curl http://localhost:8060/api/v2/jobs -d", body=sent)
        shown = operator.types(SHOW, made["id"])
        assert {name: shown[name] for name in sent} == sent
        assert shown["state"] == ("active" if is_enabled else "disabled")
        operator.types(DELETE, made["id"])


def schedule(operator: Operator, target: Target) -> None:
    """Each mode does what it is called; a paused job is not run, a resumed one is."""

    def create(**when: str) -> str:
        body = {"source_id": "modes", "url": target.url, **when}
        return operator.types("curl http://localhost:8060/api/v2/jobs -d", body=body)["id"]

    once, waits = create(schedule_type="immediate"), create(schedule_type="event")
    job = operator.sees(SHOW, "it ran at once", lambda job: job["last"]["runs"] == 1, once)
    assert (job["last"]["outcome"], job["next_due_at"]) == ("changed", None)
    often = create(schedule_type="interval", interval="300ms")
    operator.sees(SHOW, "it ran again and again", lambda job: job["last"]["runs"] >= 2, often)
    operator.types(PAUSE, often)
    first = operator.sees(SHOW, "a due time is skipped", lambda job: job["last"]["skips"].get("paused"), often)
    assert first["state"] == "paused"
    operator.sees(HEALTH, "what ran has ended", lambda seen: (seen["queue_depth"], seen["workers_busy"]) == (0, 0))
    polls, skips = target.polls, first["last"]["skips"]["paused"]
    operator.sees(SHOW, "more of them are", lambda job: job["last"]["skips"]["paused"] >= skips + 2, often)
    assert target.polls == polls, "it was run although it was paused"
    operator.types(RESUME, often)
    eventually(lambda: target.polls > polls, "it runs again")
    event = operator.types(SHOW, waits)
    assert (event["last"]["runs"], event["next_due_at"]) == (0, None)
    for job_id in (once, waits, often):
        operator.types(DELETE, job_id)


def force(operator: Operator, target: Target) -> str:
    """Force a run, and see that it happened; cancel one that hangs."""
    operator.sees(HEALTH, "what ran has ended", lambda seen: (seen["queue_depth"], seen["workers_busy"]) == (0, 0))
    job_id = operator.types(CREATE.replace("https://example.com", target.url))["id"]
    polls = target.polls
    answer = operator.types(FORCE, job_id)
    assert answer["job_id"] == job_id
    assert answer["message"]
    job = operator.sees(SHOW, "it ran", lambda job: job["last"]["runs"] == 1, job_id)
    assert (job["last"]["outcome"], target.polls) == ("changed", polls + 1)
    assert operator.types(RUN, answer["run"]["id"])["state"] == "done"

    target.may_answer.clear()
    run = operator.types(FORCE, job_id)["run"]["id"]
    operator.sees(SHOW, "it runs", lambda job: job["state"] == "running", job_id)
    assert operator.types(FORCE, job_id, status=409)["run_id"] == run
    assert operator.types(CANCEL, job_id)["runs"] == [run]
    operator.sees(SHOW, "it runs no more", lambda job: job["state"] == "active", job_id)
    assert operator.types(RUN, run)["state"] == "cancelled"
    target.may_answer.set()
    return job_id


# troubleshooting


def jobs_not_executing(operator: Operator, target: Target, job_id: str, server) -> None:
    """Jobs do not execute: health, workers, and the streams say how it is, idle and busy."""
    health = operator.sees(
        HEALTH, "one leads, one is cron", lambda seen: (seen["is_leader"], seen["cron_jobs_count"]) == (True, 1)
    )
    assert set(health) >= HEALTH_FIELDS
    assert (health["running"], health["workers_active"], health["queue_depth"]) == (True, SEATS, 0)
    assert (health["circuit_breaker_state"], health["breakers"]) == ("closed", [])
    assert worries(health) == [], health["findings"]
    checked = datetime.fromisoformat(health["last_check_at"])
    assert abs((datetime.now(UTC) - checked).total_seconds()) < PATIENCE_SECONDS
    workers = operator.types(WORKERS)
    assert (workers["total"], workers["draining"], len(workers["workers"])) == (SEATS, False, 1)
    [worker] = workers["workers"]
    assert (worker["status"], worker["is_leader"], worker["runs"]) == ("idle", True, [])
    if server is not None:
        assert lag_and_pending(server) == (0, 0)


def high_queue_depth(operator: Operator, target: Target, job_id: str, server) -> None:
    """The pool size is seen, and who sits in it; a greater one takes what waits."""
    polls = target.polls
    target.may_answer.clear()
    for _ in range(MORE_SEATS):
        operator.types(f"{FORCE} -d", job_id, {"anyway": True, "params": PATIENT})
    operator.sees(WORKERS, "all seats are taken", lambda seen: (seen["active"], seen["idle"]) == (SEATS, 0))
    busy = operator.sees(HEALTH, "two wait", lambda seen: seen["queue_depth"] == 2)
    assert busy["workers_busy"] == SEATS
    workers = operator.types(WORKERS)
    assert workers["queue_size"] == 2
    [worker] = workers["workers"]
    assert (worker["status"], [run["job_id"] for run in worker["runs"]]) == ("busy", [job_id] * SEATS)
    if server is not None:
        assert lag_and_pending(server) == (2, SEATS)
    operator.asks.ok("set", "pool.seats", str(MORE_SEATS), environ=operator.environ)
    operator.sees(
        WORKERS, "a greater pool takes all", lambda seen: (seen["total"], seen["active"]) == (MORE_SEATS,) * 2
    )
    operator.sees(HEALTH, "nobody waits", lambda seen: (seen["queue_depth"], seen["workers_busy"]) == (0, MORE_SEATS))
    eventually(lambda: target.polls == polls + MORE_SEATS, "all of them poll, and none waits for a place")
    if server is not None:
        assert lag_and_pending(server) == (0, MORE_SEATS)
    target.may_answer.set()
    operator.sees(HEALTH, "the queue is worked off", lambda seen: (seen["queue_depth"], seen["workers_busy"]) == (0, 0))
    if server is not None:
        eventually(lambda: lag_and_pending(server) == (0, 0), "the stream is worked off")
    operator.asks.ok("set", "--unset", "pool.seats", environ=operator.environ)
    operator.sees(WORKERS, "the pool is as the file says", lambda seen: seen["total"] == SEATS)


def leader_election_issues(operator: Operator, target: Target, job_id: str, server) -> None:
    """Connectivity, the TTL, and what a partition looks like: from inside it is told, and ends by itself."""
    asks, environ = operator.asks, operator.environ
    told = {line["option"]: line for line in asks.ok("config", "--json", environ=environ).json["options"]}
    assert (told["leader.ttl"]["value"], "SCHEDULER_LEADER_TTL" in str(told["leader.ttl"])) == ("30s", True)
    found = asks("doctor", "--json", environ=environ).json["findings"]
    assert "bad" not in {finding["level"] for finding in found if finding["about"] == "store"}, found
    if server is None:
        return
    server.kill()
    operator.sees(HEALTH, "it says that the store is away", lambda seen: "store" in worries(seen))
    server.start()
    operator.sees(HEALTH, "somebody leads again", lambda seen: seen["is_leader"] and not worries(seen))
    polls = target.polls
    operator.types(FORCE, job_id)
    eventually(lambda: target.polls == polls + 1, "jobs execute")


def worries(health: dict) -> list[str]:
    """Of what; a busy machine may hold any event loop."""
    found = [finding for finding in health["findings"] if finding["level"] != "healthy"]
    assert all(finding["cure"] for finding in found), found
    return [finding["name"] for finding in found if finding["name"] != "loop"]


# scheduler control


def metrics(operator: Operator) -> None:
    """Every metric of the page that has a source today, with the value that the lines above have given it."""
    told = {}
    for family in operator.types(METRICS)["metrics"]:
        for sample in family["samples"]:
            labels = tuple(sorted(sample["labels"].items()))
            told[sample["name"].removeprefix("crawler_scheduler_"), labels] = sample["value"]

    def value(name: str, **labels: str) -> float:
        return told[name, tuple(sorted(labels.items()))]

    assert value("jobs_scheduled_total", schedule_type="interval", priority="normal") >= 2
    assert value("jobs_executed_total", status="done", source_id="uuid") == SEATS + 3
    assert value("jobs_executed_total", status="cancelled", source_id="uuid") == 1
    # A cancelled one may have begun, or not.
    assert value("job_duration_seconds_count", source_id="uuid") in (SEATS + 3, SEATS + 4)
    assert value("jobs_currently_running") == 0
    assert (value("worker_pool_size"), value("workers_busy"), value("workers_idle")) == (SEATS, 0, SEATS)
    assert [value("queue_depth", priority=word) for word in ("high", "normal", "low")] == [0, 0, 0]
    assert value("queue_enqueued_total", priority="normal") >= SEATS + 4
    assert value("queue_dequeued_total", priority="normal") >= SEATS + 4
    assert (value("is_leader"), value("leader_election_attempts_total") >= 1) == (1, True)


def steer(operator: Operator, target: Target, job_id: str, server) -> None:
    """Drained workers end what they have and claim nothing; resumed ones do."""
    target.may_answer.clear()
    under_way = operator.types(FORCE, job_id)["run"]["id"]
    operator.sees(SHOW, "it runs", lambda job: job["state"] == "running", job_id)
    drained = operator.types(DRAIN)
    assert drained["draining"]
    operator.sees(WORKERS, "they are drained", lambda seen: seen["draining"])
    target.may_answer.set()
    operator.sees(RUN, "what ran may end", lambda run: run["state"] == "done", under_way)
    polls = target.polls
    operator.types(FORCE, job_id)
    health = operator.sees(HEALTH, "it waits", lambda seen: seen["queue_depth"] == 1)
    assert "stops" in worries(health)
    if server is not None:
        assert lag_and_pending(server) == (1, 0)
    assert target.polls == polls
    assert not operator.types(GO_ON)["draining"]
    operator.sees(HEALTH, "it was claimed", lambda seen: seen["queue_depth"] == 0)
    eventually(lambda: target.polls == polls + 1, "the target was polled")
    operator.sees(WORKERS, "nobody drains", lambda seen: not seen["draining"])


def lag_and_pending(server) -> tuple[int, int]:
    with redis.Redis.from_url(server.url) as client:
        [group] = client.xinfo_groups(STREAM)
    assert group["name"] == b"scheduler"
    return group["lag"], group["pending"]
