"""Forty secrets are planted wherever a config can hold one; handlers do with them whatever handlers do; none is found.

The process runs at DEBUG, with its API and with traces, is killed in the middle and started again.  Then everything
that it left behind, all that the commands and the API show and the collector was sent, and the list of processes, also
as its children saw themselves, are searched for every secret, also in base64 and percent-encoded.
"""

import base64
import contextlib
import gzip
import http.server
import json
import random
import re
import signal
import tempfile
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote

import pytest

from tests.acceptance.terminal import Answer, SameProcess, Terminal, eventually
from tests.servers.ports import free_port

WORK = """
import asyncio
import base64
import logging
import threading
import time
import warnings
from pathlib import Path
from urllib.parse import quote

from pollux import Changed, Permanent, Pollux, Transient, once

log = logging.getLogger("mine")


def fail(ctx, secret, everywhere):
    raise Permanent(f"cannot log in with {secret} and {everywhere}")


async def caused(ctx, secret, everywhere):
    if ctx.job.isolate == "process":
        Path("child.cmdline").write_bytes(Path("/proc/self/cmdline").read_bytes())
    try:
        raise ValueError(f"cause {secret}")
    except ValueError as error:
        log.exception("the cause")
        raise RuntimeError(f"effect {secret!r}") from error


async def answer(ctx, secret, everywhere):
    return {"answer": secret, "list": [f"x{secret}y"], secret: 1, "coded": base64.b64encode(secret.encode()).decode()}


async def changed(ctx, secret, everywhere):
    return Changed(f"https://ann:{secret}@h/?q={quote(secret)}")


def say(ctx, secret, everywhere):
    log.warning("said %s", secret)
    log.debug("said as well: %r", {"any": secret})
    ctx.log.info("said with ids: %s", secret, extra={"detail": secret, "password": "x" + secret})
    logging.getLogger().error("said by root: " + secret)


def slow(ctx, secret, everywhere):
    ctx.progress(f"at {secret}")
    Path("slow.started").touch()
    ctx.wait_cancelled(600.0 if ctx.run.fence == 1 else 3.0)


def thread(ctx, secret, everywhere):
    def die():
        raise RuntimeError(f"thread with {secret}")

    dying = threading.Thread(target=die)
    dying.start()
    dying.join()
    warnings.warn(f"a warning with {secret}", stacklevel=1)


async def basic(ctx, headers, everywhere):
    user_and = headers["Authorization"].removeprefix("Bearer ")
    coded = base64.b64encode(f"ann:{user_and}".encode()).decode()
    raise Permanent(f"401 for Basic {coded}, {quote(user_and, safe='')}, {headers}")


async def follow(ctx, secret, everywhere):
    ctx.enqueue("quiet", {"secret": secret})


def quiet(ctx, secret=""):
    return len(secret)


def key(ctx, pem, everywhere):
    raise Permanent("bad key: " + pem.splitlines()[1])


def nested(ctx, box, everywhere):
    raise Permanent(f"in a box: {box}")


def as_bytes(ctx, secret, everywhere):
    raise Permanent(f"{secret.encode()!r} and {secret!a}")


async def long(ctx, secret, everywhere):
    return {"text": "x" * 500 + secret + "y" * 500}


async def several(ctx, secret, everywhere):
    raise ExceptionGroup(f"all of {secret}", [ValueError(secret), KeyError(secret)])


async def noted(ctx, secret, everywhere):
    error = RuntimeError("look below")
    error.add_note(f"a note with {secret}")
    log.error("noted", exc_info=error)
    raise error


def again(ctx, secret, everywhere):
    raise Transient(f"not yet with {secret}")


async def hang(ctx, secret, everywhere):
    ctx.progress(secret)
    await asyncio.sleep(600.0)


app = Pollux(name="canary")
app.job(quiet)


@app.job(once(), params={"secret": "${env:CANARY_CODE}"}, retry=False)
async def coded(ctx, secret):
    raise KeyError(secret)
"""

CONFIG = """
store: "sqlite:///${env:CANARY_STORE}/p.db"
app: "canaries:app"
allow_exec: true
pool: {lease: 1s}
http: {allow_networks: ["127.0.0.0/8"]}
defaults: {retry: false, params: {everywhere: "${env:CANARY_DEFAULTS}"}}
groups: {edge: {defaults: {params: {secret: "${file:CANARY_GROUP}"}}}}
server: {port: LISTEN, token: "${env:CANARY_SERVER}", rate: 0}
heartbeat: {url: "http://127.0.0.1:PORT/beat?key=${env:CANARY_HEARTBEAT}", every: 1s}
traces: {endpoint: "http://127.0.0.1:PORT/${file:CANARY_TRACES}"}
jobs:
  - {id: fail, python: "canaries:fail", once: true, params: {secret: "${env:CANARY_RAISED}"}}
  - {id: grouped, group: edge, python: "canaries:fail", once: true}
"""
OTHERS = {  # job: its function and params
    "caused": ("caused", {"secret": "${file:CANARY_CAUSED}"}),
    "answer": ("answer", {"secret": "${env:CANARY_ANSWERED}"}),
    "changed": ("changed", {"secret": "${file:CANARY_URL}"}),
    "say": ("say", {"secret": "${env:CANARY_LOGGED}"}),
    "slow": ("slow", {"secret": "${file:CANARY_PROGRESS}"}),
    "thread": ("thread", {"secret": "${env:CANARY_THREAD}"}),
    "basic": ("basic", {"headers": {"Authorization": "Bearer ${file:CANARY_BASIC}"}}),
    "follow": ("follow", {"secret": "${env:CANARY_FOLLOWED}"}),
    "key": ("key", {"pem": "${file:CANARY_KEY}"}),
    "child": ("caused", {"secret": "${env:CANARY_CHILD}"}),
    "child-says": ("say", {"secret": "${file:CANARY_CHILDLOG}"}),
    "nested": ("nested", {"box": {"a": [{"b": "${env:CANARY_NESTED}"}]}}),
    "listed": ("nested", {"box": ["a", "${env:CANARY_LISTED}"]}),
    "mixed": ("nested", {"box": "ann has ${file:CANARY_MIXED}, and more"}),
    "bytes": ("as_bytes", {"secret": "${file:CANARY_BYTES}"}),
    "long": ("long", {"secret": "${env:CANARY_LONG}"}),
    "several": ("several", {"secret": "${env:CANARY_SEVERAL}"}),
    "noted": ("noted", {"secret": "${file:CANARY_NOTED}"}),
    "again": ("again", {"secret": "${env:CANARY_RETRIED}"}),
    "hang": ("hang", {"secret": "${file:CANARY_TIMEOUT}"}),
}
MORE = {
    "child": {"isolate": "process"},
    "child-says": {"isolate": "process"},
    "again": {"retry": {"attempts": 2, "base": "100ms"}},
    "hang": {"timeout": "500ms"},
}
BUILT_IN = """
  - {id: poll, once: true, http: {url: "http://127.0.0.1:PORT/echo?api=${env:CANARY_QUERY}", method: POST, keep: body,
      headers: {X-Key: "${file:CANARY_HEADER}"}, body: "b=${env:CANARY_BODY}", expect: [200]}}
  - {id: refused, once: true, http: {url: "http://127.0.0.1:PORT/401?x=${env:CANARY_QUERY}",
      auth: {basic: {user: ann, password: "${file:CANARY_AUTH}"}}}}
  - {id: poll-more, once: true, http: {url: "http://127.0.0.1:PORT/${env:CANARY_PATH}/x", method: PUT, keep: body,
      headers: {Cookie: "sid=${env:CANARY_COOKIE}"}, json: {deep: ["${file:CANARY_JSON}"]},
      auth: {bearer: "${env:CANARY_BEARER}"}, expect: [200]}}
  - {id: command-more, once: true, exec: {
      argv: [sh, -c, "cat /proc/$$/cmdline > command.cmdline; cat; cat >&2; echo $FIRST; exit 4"],
      stdin: "in ${env:CANARY_STDIN}", env: {FIRST: "${env:CANARY_EXECENV}"}}}
  - {id: command, once: true, exec: {argv: [sh, -c, "echo $IT $0; env; echo $IT >&2; exit 3", "${env:CANARY_ARGV}"],
      env: {IT: "${file:CANARY_EXEC}"}}}
"""
ARGUMENT = b"echo $IT $0"
NAMES = (
    *("STORE", "DEFAULTS", "GROUP", "RAISED", "CAUSED", "ANSWERED", "URL", "LOGGED", "PROGRESS", "THREAD", "BASIC"),
    *("FOLLOWED", "KEY", "CHILD", "CODE", "QUERY", "HEADER", "BODY", "AUTH", "ARGV", "EXEC", "SERVER", "HEARTBEAT"),
    *("TRACES", "CHILDLOG", "NESTED", "BYTES", "LONG", "SEVERAL", "NOTED", "RETRIED", "TIMEOUT", "PATH", "COOKIE"),
    *("JSON", "BEARER", "STDIN", "EXECENV", "LISTED", "MIXED"),
)
PLAIN = ("SERVER", "HEARTBEAT", "TRACES", "PATH", "COOKIE", "BEARER")  # in addresses and headers
IN_FILES = (
    *("GROUP", "CAUSED", "URL", "PROGRESS", "BASIC", "KEY", "HEADER", "AUTH", "EXEC", "TRACES", "CHILDLOG", "BYTES"),
    *("NOTED", "TIMEOUT", "JSON", "MIXED"),
)


class Echo(http.server.BaseHTTPRequestHandler):
    """Answers with all that it was sent; also a collector of traces, which keeps them."""

    traces: ClassVar[list[bytes]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path.endswith("/v1/traces"):
            self.traces.append(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
            body = b""
        told = f"{self.path}\n{self.headers}\n".encode() + body
        self.send_response(401 if self.path.startswith("/401") else 200)
        self.send_header("Content-Length", str(len(told)))
        self.end_headers()
        self.wfile.write(told)

    do_GET = do_PUT = do_POST  # noqa: N815  the names are not ours

    def log_message(self, *words) -> None:
        """Silent."""


@pytest.fixture
def port():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def secrets() -> dict[str, str]:
    dice = random.Random()
    odd = {name: f"{name.lower()}+{dice.getrandbits(64):016x}/é{name[-1]}" for name in NAMES}
    plain = {name: f"{name.lower()}-{dice.getrandbits(128):032x}" for name in PLAIN}
    return (
        odd
        | plain
        | {
            "STORE": f"store-{dice.getrandbits(64):016x}",
            "HEADER": f"header+{dice.getrandbits(64):016x}/=",  # headers are ASCII
            "KEY": f"-----BEGIN-----\nkey+{dice.getrandbits(64):016x}\n-----END-----",
        }
    )


def plant(folder: Path, secrets: dict[str, str], port: int) -> dict[str, str]:
    """Write the config and the files; answers the environment."""
    (folder / "canaries.py").write_text(WORK)
    jobs = [
        {"id": job_id, "python": f"canaries:{function}", "once": True, "params": params} | MORE.get(job_id, {})
        for job_id, (function, params) in OTHERS.items()
    ]
    lines = "".join(f"  - {json.dumps(job)}\n" for job in jobs)
    text = (CONFIG + lines + BUILT_IN).replace("PORT", str(port)).replace("LISTEN", str(free_port()))
    (folder / "p.yaml").write_text(text)
    (folder / secrets["STORE"]).mkdir(mode=0o700)
    for name in IN_FILES:
        path = folder / f"CANARY_{name}"
        path.write_text(secrets[name] + "\n")
        path.chmod(0o600)
    return {f"CANARY_{name}": value for name, value in secrets.items() if name not in IN_FILES}


def forms(value: str) -> list[bytes]:
    """The value itself and what else would give it away."""
    texts = [line for line in value.splitlines() if not line.startswith("-----")]
    coded = [base64.b64encode(b"\0" * n + text.encode())[4:-4] for text in texts for n in range(3)]
    return [*(text.encode() for text in texts), *(quote(text, safe="").encode() for text in texts), *coded]


def leaks(secrets: dict[str, str], artefacts: dict[str, bytes]) -> list[str]:
    return [
        f"{name} in {place}"
        for name, value in secrets.items()
        for place, content in artefacts.items()
        if any(form in content for form in forms(value))
    ]


def ask(url: str, token: str) -> bytes:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.read()
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.read()


def all_that_the_api_shows(root: str, token: str, runs: list[dict]) -> dict[str, bytes]:
    """Every path of its own description that needs nothing but a GET, and those of each job and run."""
    described = json.loads(ask(f"{root}/api/v2/openapi.json", token))["paths"]
    paths = [path for path, methods in described.items() if "get" in methods and not path.endswith("/events")]
    shown: dict[str, bytes] = {}
    for path in paths:
        things = [("{job_id}", "job_id"), ("{run_id}", "id")]
        filled = {path.replace(part, quote(run[key], safe="")) for part, key in things if part in path for run in runs}
        for each in filled or {path}:
            shown[f"GET {each}"] = ask(f"{root}{each}", token)
    assert len(shown) > 2 * len(runs)
    return shown


def processes() -> bytes:
    """What `ps` shows of us, but for the one command with a secret among its arguments.

    An argument is there for all to see, and the page of `exec` says so.
    """
    lines = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            line = (entry / "cmdline").read_bytes() if entry.name.isdecimal() else b""
            lines += [line] if b"pollux" in line and ARGUMENT not in line else []
    return b"\n".join(lines)


@pytest.fixture
def tmp_path():
    """A short one: the store's folder bears a secret, and the node's socket lies in it."""
    with tempfile.TemporaryDirectory(prefix="pollux-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def announcements(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in (folder / "state" / "pollux").glob("folder-*.json"))


def all_ended(answer: Answer, count: int) -> bool:
    states = [run["state"] for run in answer.json["runs"]] if answer.code == 0 else []
    return len(states) >= count and not set(states) & {"ready", "leased", "held"}


def test_no_planted_secret_is_ever_found(tmp_path, secrets, port):
    assert len(secrets) == 40
    environ = plant(tmp_path, secrets, port) | {"PYTHONWARNINGS": "default", "POLLUX_SERVER": "true"}
    pollux, asks = Terminal(tmp_path, fresh=True), SameProcess(tmp_path)
    serve = ("serve", "-c", "p.yaml", "--log-level", "debug", "--log-format")
    artefacts: dict[str, bytes] = {}

    with (
        (tmp_path / "text.err").open("wb") as err,
        pollux.started(*serve, "text", environ=environ, stderr=err) as process,
    ):
        eventually(lambda: announcements(tmp_path), "it is announced", process)
        eventually((tmp_path / "slow.started").exists, "a handler is in the middle", process)
        artefacts["processes at work"] = processes()
        process.send_signal(signal.SIGKILL)
        artefacts["text.out"], artefacts["announced"] = process.communicate()[0], announcements(tmp_path)
    count = len(OTHERS) + 8
    look = ("runs", "--json", "-c", "p.yaml", "--limit", "1000")
    with (
        (tmp_path / "json.err").open("wb") as err,
        pollux.started(*serve, "json", environ=environ, stderr=err) as process,
    ):
        eventually(lambda: all_ended(asks(*look, environ=environ), count), "every run has ended", process)
        # What failed before the kill may have told its error to a trace that died with it.
        asks.ok("jobs", "run", "caused", "-c", "p.yaml", environ=environ)
        eventually(lambda: all_ended(asks(*look, environ=environ), count + 1), "one more run has ended", process)
        root = re.search(r"port: (\d+), token", (tmp_path / "p.yaml").read_text())[1]
        seen = asks(*look, environ=environ).json["runs"]
        artefacts |= all_that_the_api_shows(f"http://127.0.0.1:{root}", secrets["SERVER"], seen)
        artefacts["processes"] = processes()
        process.send_signal(signal.SIGTERM)
        artefacts["json.out"], _ = process.communicate()

    runs = asks(*look, environ=environ).json["runs"]
    each = [
        *(("runs", "show", run["id"]) for run in runs),
        *(("jobs", "show", job_id, "--json") for job_id in {run["job_id"] for run in runs}),
        *(("dead", "show", run["id"]) for run in runs if run["state"] == "dead"),
    ]
    lists = [("jobs",), ("runs",), ("dead",), ("audit",), ("nodes",), ("why", "fail"), ("config",), ("token",)]
    for command in [*each, *lists, *((*words, "--json") for words in lists)]:
        said = asks(*command, "-c", "p.yaml", environ=environ)
        artefacts[" ".join(command)] = (said.out + said.err).encode()
    asks.ok("store", "dump", "everything.dump", "-c", "p.yaml", environ=environ)
    checked = asks("check", "-c", "p.yaml", "--diff", environ=environ)
    artefacts["check"] = (checked.out + checked.err).encode()
    artefacts["traces"] = b"".join(Echo.traces)
    planted = {f"CANARY_{name}" for name in IN_FILES}
    for path in tmp_path.rglob("*"):
        if path.is_file() and path.name not in planted:
            artefacts[str(path.relative_to(tmp_path)).replace(secrets["STORE"], "")] = path.read_bytes()

    assert leaks(secrets, artefacts) == []
    all_said = b"".join(artefacts.values())
    assert {name for name in NAMES if f"CANARY_{name}".encode() in all_said} == set(NAMES), "they were planted"
    by_job = {run["job_id"]: run for run in runs}
    assert by_job["answer"]["result"]["answer"] == "***", by_job["answer"]
    assert "cannot log in with ***" in by_job["fail"]["error"], by_job["fail"]
    assert "effect '***'" in by_job["child"]["error"], by_job["child"]
    assert "the value of a secret would be stored" in by_job["follow"]["error"]
    assert "***" in by_job["command"]["error"], by_job["command"]
    assert by_job["poll"]["state"] == "done", by_job["poll"]
    assert b"said ***" in artefacts["text.err"] + artefacts["json.err"]
    assert b"thread with ***" in artefacts["text.err"] + artefacts["json.err"]
    assert len(artefacts["everything.dump"]) > 1_000
    assert b"pollux" in artefacts["GET /metrics"]
    check_places(artefacts, by_job["slow"]["id"])


def check_places(artefacts: dict[str, bytes], run_id: str) -> None:
    """What is no secret is found wherever it is told: so a secret would be found there as well."""
    found = leaks({"id": run_id}, artefacts)
    database = next(place for place in artefacts if place.endswith("p.db"))
    for place in ("traces", "json.err", "everything.dump", database, f"runs show {run_id}", "GET /api/v2/runs"):
        assert f"id in {place}" in found, place
    listed = leaks({"serve": "serve\0-c\0p.yaml"}, artefacts)
    assert {"serve in processes", "serve in processes at work"} <= set(listed)
    assert b"sh\0-c\0" in artefacts["command.cmdline"]
    assert artefacts["child.cmdline"]
    assert b"p.db.sock" in artefacts["announced"]
    assert b"pollux.job.id" in artefacts["traces"]
    assert b"ValueError" in artefacts["traces"] or b"RuntimeError" in artefacts["traces"], "errors are told there"
