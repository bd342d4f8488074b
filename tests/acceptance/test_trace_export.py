"""One trace a run, over real processes, at a real collector; and nothing of it where nobody asked."""

import contextlib
import hashlib
import signal
import socket
import subprocess
import sys

import pytest

from tests.acceptance.terminal import SameProcess, eventually, stopped
from tests.collector import collecting
from tests.servers.ports import free_port

CANARY = "canary-5b1f0c9e"
SHOP = """
import sys
from pathlib import Path
from pollux import Pollux, once

app = Pollux("sqlite:///p.db", name="shop", allow_exec=True, http_allow_networks=["127.0.0.0/8"])


@app.job(once(), retry={"attempts": 2, "base": "50ms"})
async def flaky(ctx, password="${env:SHOP_PASSWORD}"):
    if ctx.attempt == 1:
        raise ValueError(f"refused with {password}")
    ctx.enqueue("after")
    return ctx.traceparent


@app.job
def after(ctx):
    return ctx.traceparent


app.add("exec", once(), id="command", params={"argv": ["sh", "-c", "echo -n $TRACEPARENT"], "take": "stdout"})
app.add("http", once(), id="page", params={"url": "%s/page"})


@app.job(once(), isolate="process")
def apart(ctx):
    return ctx.traceparent
"""
PLANNER = """
from work import app
from msgspec.structs import replace

app.options = replace(app.options, runs=False, traces_endpoint="%s")
app.run()
"""


@pytest.fixture
def pollux(tmp_path):
    return SameProcess(tmp_path, fresh=True)  # also what is imported is looked at


@pytest.fixture
def collector():
    with collecting() as each:
        yield each


def run_of(pollux, job):
    return next(iter(runs_of(pollux, job)), None)


def runs_of(pollux, job):
    answer = pollux("runs", "--json", "--job", job, "--store", "sqlite:///p.db")
    return answer.json["runs"] if answer.code == 0 else []  # there is no store yet


def test_a_run_is_one_trace_over_the_node_that_plans_and_the_node_that_runs(pollux, collector):
    pollux.write("work.py", SHOP % collector.url)
    pollux.write("plan.py", PLANNER % collector.url)
    said = {"SHOP_PASSWORD": CANARY, "POLLUX_TRACES_ENDPOINT": collector.url}
    with (
        pollux.started("worker", "--app", "work:app", "--no-watch", environ=said) as worker,
        started_plan(pollux, {"SHOP_PASSWORD": CANARY}) as planner,
    ):
        names = ("flaky", "after", "command", "page", "apart")
        eventually(lambda: all(is_done(run_of(pollux, name)) for name in names), "all are done", worker)
        stopped(planner)
        stopped(worker)
    ids = {name: run_of(pollux, name) for name in names}
    trace = collector.trace(ids["flaky"]["id"])
    check_flaky(trace, ids)
    for name in ("after", "apart"):
        [attempt] = collector.trace(ids[name]["id"])["attempt"]
        assert ids[name]["result"] == f"00-{attempt.trace_id}-{attempt.span_id}-01"
    [attempt] = collector.trace(ids["command"]["id"])["attempt"]
    assert ids["command"]["result"] == f"00-{attempt.trace_id}-{attempt.span_id}-01"
    [attempt] = collector.trace(ids["page"]["id"])["attempt"]
    assert collector.got == [("/page", f"00-{attempt.trace_id}-{attempt.span_id}-01")]
    assert not any(CANARY.encode() in body for body in collector.bodies)
    assert (set(collector.paths), collector.services) == ({"/v1/traces"}, {"pollux"})


def check_flaky(trace, ids):
    assert {name: len(spans) for name, spans in trace.items()} == {
        "run": 1,
        "fire": 1,
        "wait": 2,
        "attempt": 2,
        "settle": 2,
    }
    [root], [fire], attempts = trace["run"], trace["fire"], trace["attempt"]
    digest = hashlib.sha256(ids["flaky"]["id"].encode()).hexdigest()
    assert (root.trace_id, root.span_id, root.parent_id) == (digest[:32], digest[32:48], "")
    others = [span for name, spans in trace.items() if name != "run" for span in spans]
    assert {(span.trace_id, span.parent_id) for span in others} == {(root.trace_id, root.span_id)}
    assert len({span.span_id for span in others}) == 7
    assert {span.node for span in others if span is not fire} == {root.node} != {fire.node}
    assert [span.said["pollux.outcome"] for span in attempts] == ["retry", "done"]
    assert [span.said["pollux.attempt"] for span in attempts] == [1, 2]
    assert [span.is_error for span in attempts] == [True, False]
    assert attempts[0].said["error.type"] == "ValueError"
    assert ids["flaky"]["result"] == f"00-{root.trace_id}-{attempts[1].span_id}-01"
    follow_up = hashlib.sha256(ids["after"]["id"].encode()).hexdigest()
    assert attempts[1].links == [(follow_up[:32], follow_up[32:48])]
    assert root.start_ms <= attempts[0].start_ms <= attempts[0].end_ms <= attempts[1].start_ms <= root.end_ms


def is_done(run):
    return run is not None and run["state"] == "done"


@contextlib.contextmanager
def started_plan(pollux, environ):
    program = [sys.executable, "plan.py"]
    process = subprocess.Popen(program, cwd=pollux.folder, env=pollux.environ(environ), stderr=subprocess.PIPE)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.stderr.close()
        process.wait()


WITNESS = """
import sys
from pollux import Pollux, once

app = Pollux("sqlite:///p.db")


@app.job(once())
async def look(ctx):
    return [sorted(name for name in sys.modules if name.startswith("opentelemetry")), ctx.traceparent]
"""


def served(pollux, *, environ=None, until, text=WITNESS):
    """Serve until `until` is true; answers how the process ended."""
    pollux.write("work.py", text)
    with pollux.started("serve", "--app", "work:app", "--no-watch", environ=environ) as process:
        eventually(until, "the run is done", process)
        return stopped(process)


def test_off_nothing_of_it_is_imported(pollux):
    assert served(pollux, until=lambda: is_done(run_of(pollux, "look"))).code == 0
    assert run_of(pollux, "look")["result"] == [[], ""]


def test_the_standard_variable_turns_it_on_and_others_off(pollux, collector):
    said = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_SERVICE_NAME": "shop"}
    assert served(pollux, environ=said, until=lambda: is_done(run_of(pollux, "look"))).code == 0
    assert collector.services == {"shop"}
    assert set(collector.trace(run_of(pollux, "look")["id"])) == {"run", "fire", "wait", "attempt", "settle"}
    (pollux.folder / "p.db").unlink()
    before = len(collector.bodies)
    said["OTEL_TRACES_EXPORTER"] = "none"
    assert served(pollux, environ=said, until=lambda: is_done(run_of(pollux, "look"))).code == 0
    assert len(collector.bodies) == before


@pytest.mark.parametrize("fault", ["closed", "refuses", "hangs"])
def test_a_bad_collector_costs_spans_and_nothing_else(pollux, collector, fault):
    url = collector.url
    if fault == "closed":
        url = f"http://127.0.0.1:{free_port()}"
    collector.status, collector.hangs = 400, fault == "hangs"
    said = {"POLLUX_TRACES_ENDPOINT": url, "OTEL_EXPORTER_OTLP_TIMEOUT": "1"}
    text = WITNESS.replace("app = Pollux(", "from pollux import every\napp = Pollux(") + TICK
    ended = served(pollux, environ=said, text=text, until=lambda: count_of(pollux, "tick") >= 5)
    assert ended.code == 0
    told = [line for line in ended.err.splitlines() if "did not reach the collector" in line]
    assert len(told) <= 1, ended.err
    if fault != "hangs":
        assert len(told) == 1, ended.err
    assert "opentelemetry" not in ended.err


TICK = """

@app.job(every("200ms"))
async def tick(ctx):
    return None
"""


def count_of(pollux, job):
    return len([run for run in runs_of(pollux, job) if run["state"] == "done"])


ABSENT = 'raise ImportError("No module named \'opentelemetry\'", name="opentelemetry")\n'


def test_without_the_extra_the_cure_is_named(pollux):
    (pollux.folder / "opentelemetry").mkdir()
    pollux.write("opentelemetry/__init__.py", ABSENT)
    pollux.write("work.py", WITNESS)
    with pollux.started(
        "serve", "--app", "work:app", "--no-watch", environ={"POLLUX_TRACES_ENDPOINT": "http://127.0.0.1:4318"}
    ) as process:
        _, said = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "pip install 'pollux-scheduler[otel]'" in said.decode()


def test_a_variable_that_a_platform_sets_everywhere_stops_nobody(pollux):
    (pollux.folder / "opentelemetry").mkdir()
    pollux.write("opentelemetry/__init__.py", ABSENT)
    said = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}
    ended = served(pollux, environ=said, until=lambda: is_done(run_of(pollux, "look")))
    assert ended.code == 0
    assert ended.err.count("pip install 'pollux-scheduler[otel]'") == 1


def test_the_options_are_told_with_their_origin(pollux):
    pollux.write("pollux.yaml", "traces: {endpoint: http://collector:4318, sample: 0.1, namespace: shop}\n")
    told = {line["option"]: line for line in pollux.ok("config", "--json").json["options"]}
    assert told["traces.endpoint"]["value"] == "http://collector:4318"
    assert (told["traces.sample"]["value"], told["traces.namespace"]["value"]) == ("0.1", "shop")
    for wrong in ("{sample: 1.5}", "{sample: much}", "{endpoint: collector}", "{endpoint: ftp://x}"):
        pollux.write("pollux.yaml", f"traces: {wrong}\n")
        answer = pollux("config")
        assert answer.code == 2, wrong
        assert "pollux.yaml:1" in answer.err


# the heartbeat and systemd


def test_the_heartbeat_url_is_called_by_a_node_that_serves_and_is_nowhere_shown(pollux, collector):
    pollux.write("work.py", WITNESS)
    pollux.write("pollux.yaml", "app: work:app\nheartbeat: {url: '${env:PING}', every: 1s}\n")
    url = f"{collector.url}/{CANARY}"
    with pollux.started("serve", "--no-watch", environ={"PING": url}) as process:
        eventually(lambda: len(collector.got) >= 2, "it was called", process)
        collector.status = 500
        eventually(lambda: len(collector.got) >= 4, "it is called all the same", process)
        ended = stopped(process)
    assert ended.code == 0
    assert {path for path, _ in collector.got} == {f"/{CANARY}"}
    assert "the heartbeat URL answered 500" in ended.err
    assert CANARY not in ended.err + ended.out
    assert (
        CANARY
        not in pollux.ok(
            "config", "--json", environ={"POLLUX_HEARTBEAT_URL": url, "PING": "https://example.com/other"}
        ).out
    )
    assert CANARY not in pollux.ok("config", environ={"PING": url}).out


def test_systemd_hears_that_it_is_ready_alive_and_leaving(pollux, tmp_path):
    pollux.write("work.py", LISTENER)
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        line.bind(address)
        line.settimeout(60)
        said = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "300000"}
        with pollux.started("serve", "--app", "work:app", "--no-watch", environ=said) as process:
            assert [line.recv(100) for _ in range(4)] == [b"READY=1", *[b"WATCHDOG=1"] * 3]
            eventually(lambda: is_done(run_of(pollux, "look")), "the run is done", process)
            process.send_signal(signal.SIGTERM)
            heard = b""
            while heard != b"STOPPING=1":
                heard = line.recv(100)
                assert heard in (b"WATCHDOG=1", b"STOPPING=1")
            assert process.wait(60) == 0
    assert run_of(pollux, "look")["result"] == []


LISTENER = """
import os
from pollux import Pollux, once

app = Pollux("sqlite:///p.db")


@app.job(once())
async def look(ctx):
    return [name for name in os.environ if name in ("NOTIFY_SOCKET", "WATCHDOG_USEC")]
"""
