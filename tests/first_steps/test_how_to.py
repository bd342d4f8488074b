"""How-to pages: their files are run as the pages describe, and their figures are the code's."""

import asyncio
import configparser
import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
import yaml

from pollux import Pollux, every
from pollux.cli.command_table import ENTRIES, UNAVAILABLE, USAGE
from pollux.config import Config
from pollux.model import Retry
from pollux.outcome.verdict import CRASHES_MAX
from pollux.testing import story
from tests.acceptance.terminal import Answer, start_pollux

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
UNIT = ROOT / "deploy" / "systemd" / "pollux.service"
PAGES = sorted((ROOT / "docs" / "how-to").glob("*.md"))
POLLUX = str(Path(sys.executable).parent / "pollux")
SOON_S = 60.0


# what the pages say


def test_every_command_that_a_page_names_exists():
    named = {(page.name, word) for page in PAGES for word in re.findall(r"`(?:\S*/)?pollux ([a-z]+)", page.read_text())}
    assert len(named) > 10
    assert [(page, word) for page, word in sorted(named) if word not in ENTRIES] == []


@pytest.mark.parametrize(
    ("page", "says"),
    [
        ("poll-10000-urls.md", f"`http.per_target` ({Config().http_per_target}) polls"),
        ("fastapi.md", f"the `grace` ({Config().grace_ms // 1_000} s)"),
        ("systemd.md", f"`pool.grace` ({Config().grace_ms // 1_000} s)"),
        ("systemd.md", f"lease ends ({Config().lease_ms // 1_000} s)"),
        ("systemd.md", f"exit code {USAGE} is a mistake in the config"),
        ("systemd.md", f"refuses it is {UNAVAILABLE}"),
        ("kubernetes.md", f"exit 0, or {UNAVAILABLE} if the store is not there"),
        ("kubernetes.md", f"leases end ({Config().lease_ms // 1_000} s)"),
        ("kubernetes.md", {3: "one that kills that three times is a dead letter"}[CRASHES_MAX]),
        ("from-apscheduler.md", {5: "five times in all by default"}[Retry().attempts_max]),
        ("from-celery-beat.md", f"its term ends ({Config().leader_ttl_ms // 1_000} s)"),
    ],
)
def test_the_figures_of_a_page_are_those_of_the_code(page, says):
    text = " ".join((ROOT / "docs" / "how-to" / page).read_text().split())
    assert says in text


# ten thousand URLs, here thirty


class Page(BaseHTTPRequestHandler):
    """Counts who asked for what; knows one page that never changes."""

    asked: ClassVar[Counter] = Counter()

    def do_GET(self):
        self.asked[self.path] += 1
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *_):
        pass


@pytest.fixture
def pages():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_poller_polls_every_url_of_its_list_and_says_which_one_is_dead(tmp_path, pages):
    urls = [f"{pages}/{n}" for n in range(30)]
    (tmp_path / "urls.txt").write_text("\n".join([*urls, "http://127.0.0.1:1/dead"]) + "\n")
    command = [sys.executable, EXAMPLES / "poll_urls.py"]
    with started(command, cwd=tmp_path, env=None, until="127.0.0.1:1/dead") as process:
        until = time.monotonic() + SOON_S
        while len(Page.asked) < len(urls):
            assert time.monotonic() < until, Page.asked
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        assert process.wait(SOON_S) == 0
    assert set(Page.asked) == {f"/{n}" for n in range(30)}
    done = run(["pollux", "runs", "--json", "--failed", "--store", "sqlite:///urls.db"], cwd=tmp_path)
    assert [failed["job_id"] for failed in json.loads(done)["runs"]] == ["127.0.0.1:1/dead"]


# FastAPI


def test_the_fastapi_app_runs_jobs_for_as_long_as_its_lifespan(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shop = load(EXAMPLES / "fastapi_shop.py")

    async def visit():
        async with lifespan(shop.api):
            assert await ask(shop.api, "POST", "/orders/17") == (202, {"run": "confirm-17"})
            assert await ask(shop.api, "POST", "/orders/17") == (202, {"run": "confirm-17"})
            async with asyncio.timeout(SOON_S):
                while (await ask(shop.api, "GET", "/runs/confirm-17"))[1]["state"] != "done":  # noqa: ASYNC110  a client
                    await asyncio.sleep(0.02)
            assert (await ask(shop.api, "GET", "/runs/confirm-17"))[1]["result"] == {"mailed": 17}
            assert (await ask(shop.api, "GET", "/runs/nobody"))[0] == 404
            runs = (await shop.jobs.operations.runs.list_runs()).runs
            assert [run.id for run in runs if run.job_id == "confirm"] == ["confirm-17"]
            assert shop.jobs.runtime is not None
        assert shop.jobs.runtime is None

    asyncio.run(visit())


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@asynccontextmanager
async def lifespan(app):
    """The server's side of the lifespan protocol of ASGI."""
    told, answers = asyncio.Queue(), asyncio.Queue()
    running = asyncio.ensure_future(app({"type": "lifespan", "asgi": {"version": "3.0"}}, told.get, answers.put))
    for stage in ("startup", "shutdown"):
        await told.put({"type": f"lifespan.{stage}"})
        async with asyncio.timeout(SOON_S):
            assert await answers.get() == {"type": f"lifespan.{stage}.complete"}
        if stage == "startup":
            yield
    await running


async def ask(app, method, path):
    """One request without a body, and its answer."""
    scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": b""}
    scope |= {"headers": [], "http_version": "1.1", "scheme": "http", "asgi": {"version": "3.0"}}
    sent = []

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        sent.append(message)

    await app(scope, receive, send)
    return sent[0]["status"], json.loads(b"".join(message.get("body", b"") for message in sent[1:]))


# Django

VISIT = """
import json, time
import django
django.setup()
from django.db import transaction
from django.test import Client
from pollux import PolluxError
from shop.jobs import app
from shop.models import Order

answer = Client().post("/orders/")
assert answer.status_code == 202, answer.content
order = Order.objects.get(pk=answer.json()["order"])
until = time.monotonic() + 60
while not order.confirmed:
    assert time.monotonic() < until, app.blocking.get_run(answer.json()["run"])
    time.sleep(0.02)
    order.refresh_from_db()

try:
    with transaction.atomic():
        rolled_back = Client().post("/orders/").json()["run"]
        raise KeyError
except KeyError:
    pass
try:
    app.blocking.get_run(rolled_back)
except PolluxError as error:
    print("as told:", error)
else:
    raise AssertionError("a run was made for an order that was rolled back")
"""


def test_the_django_site_confirms_an_order_after_its_commit_and_none_that_was_rolled_back(tmp_path):
    site = EXAMPLES / "django_site"
    variables = {**os.environ, "SHOP_FOLDER": str(tmp_path), "DJANGO_SETTINGS_MODULE": "shop.settings"}
    variables |= {"PYTHONDONTWRITEBYTECODE": "1"}
    run([sys.executable, "manage.py", "migrate", "--run-syncdb", "-v", "0"], cwd=site, env=variables)
    with started([sys.executable, "manage.py", "run_pollux"], cwd=site, env=variables, until="leads") as command:
        seen = run([sys.executable, "-c", VISIT], cwd=site, env=variables)
        assert "as told" in seen
        command.send_signal(signal.SIGTERM)
        assert command.wait(SOON_S) == 0


# systemd


def unit():
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str
    parser.read(UNIT)
    return parser


def test_the_unit_stops_later_than_the_grace_and_writes_only_its_state(tmp_path):
    service = unit()["Service"]
    assert int(service["TimeoutStopSec"].removesuffix("s")) * 1_000 >= Config().grace_ms + 10_000
    assert (service["Type"], service["KillMode"], service["Restart"]) == ("notify", "mixed", "on-failure")
    state = f"/var/lib/{service['StateDirectory']}"
    assert service["WorkingDirectory"] == state
    assert service["Environment"] == f"POLLUX_STORE=sqlite:///{state}/pollux.db"
    assert service["ProtectSystem"] == "strict"
    assert service["User"] == "pollux"
    if shutil.which("systemd-analyze"):
        assert verified(tmp_path) == ""


def verified(folder):
    """What systemd itself has to say about the unit, with our own program in the place of the installed one."""
    path = folder / "pollux.service"
    path.write_text(UNIT.read_text().replace("/opt/pollux/bin/pollux", POLLUX))
    command = ["systemd-analyze", "--man=no", "verify", path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout + done.stderr + ("" if done.returncode == 0 else f"exit {done.returncode}")


def as_the_unit_says(config):
    return [
        word.replace("/etc/pollux/pollux.yaml", str(config)) for word in shlex.split(unit()["Service"]["ExecStart"])
    ]


def test_the_unit_starts_a_pollux_that_a_sigterm_ends_well(tmp_path):
    config = tmp_path / "pollux.yaml"
    config.write_text('jobs: [{id: here, python: "os:getcwd", interval: 30s}]\n')
    command = [POLLUX, *as_the_unit_says(config)[1:]]
    variables = {**os.environ, "POLLUX_STORE": f"sqlite:///{tmp_path / 'pollux.db'}"}
    with started(command, cwd=tmp_path, env=variables, until="leads") as process:
        process.send_signal(signal.SIGTERM)
        assert process.wait(SOON_S) == 0


def test_a_mistake_in_the_config_is_not_restarted_and_a_store_that_is_away_is(tmp_path):
    given_up = unit()["Service"]["RestartPreventExitStatus"].split()
    config = tmp_path / "pollux.yaml"
    command = ["pollux", *as_the_unit_says(config)[1:]]

    config.write_text("jobs: [{id: here, interval: 30s}]\n")
    assert str(finished(command, cwd=tmp_path).code) in given_up

    (tmp_path / "file").touch()
    config.write_text(f"store: sqlite:///{tmp_path / 'file' / 'pollux.db'}\n")
    assert finished(command, cwd=tmp_path).code == UNAVAILABLE
    assert str(UNAVAILABLE) not in given_up


def test_a_secret_of_the_unit_is_named_by_its_file(tmp_path):
    page = (ROOT / "docs" / "how-to" / "systemd.md").read_text()
    [job] = re.findall(r"```\n(  - id: api\n.*?)```", page, re.DOTALL)
    (tmp_path / "token").write_text("s3cret-s3cret")
    config = tmp_path / "pollux.yaml"
    config.write_text("jobs:\n" + job.replace("/run/credentials/pollux.service", str(tmp_path)))
    run(["pollux", "check", "-c", config], cwd=tmp_path)

    (tmp_path / "token").unlink()
    done = finished(["pollux", "check", "-c", config], cwd=tmp_path)
    assert done.code == USAGE
    assert "token}: the file cannot be read" in done.err


# APScheduler, and the page on HTTP


async def attempts_of(interval, *, lasting):
    """How often each firing of a job that fails was tried, in order, and how each ended; then one succeeds."""
    app, calls, is_well = Pollux("memory://"), Counter(), False

    @app.job(every(interval))
    async def stock(ctx):
        calls[ctx.run.id] += 1
        if not is_well:
            raise RuntimeError("no stock")

    async with story(app) as tale:
        await tale.advance(lasting)
        ends = {run.id: run.state.value for run in reversed((await tale.app.operations.runs.list_runs(limit=100)).runs)}
        failed = [(count, ends.get(run_id)) for run_id, count in calls.items()]
        is_well = True
        await tale.advance("2m")
        after = Counter(run.state.value for run in (await tale.app.operations.runs.list_runs(limit=1_000)).runs)
    return failed, after["dead"]


async def test_a_job_of_30s_that_fails_is_retried_before_its_next_firing_only_as_the_page_says():
    page = " ".join((ROOT / "docs" / "how-to" / "from-apscheduler.md").read_text().split())
    assert "`stock` above gets at most three attempts a firing" in page
    assert "stays as a dead letter until a success" in page
    failed, left = await attempts_of("30s", lasting="2m")
    assert [count for count, _ in failed] == [3, 3, 3, 2, 1]
    assert [end for _, end in failed] == ["done", "done", "done", "done", "dead"]
    assert left == 0, "a success clears it"


async def test_a_job_of_1s_that_fails_has_one_dead_letter_from_its_fifth_run_on_as_the_page_says():
    assert "its first four runs end as failed, the fifth is a dead letter" in (ROOT / "docs" / "http.md").read_text()
    for seconds, dead in ((3, 0), (4, 1), (8, 1)):
        failed, left = await attempts_of("1s", lasting=f"{seconds}s")
        assert {count for count, _ in failed} == {1}
        assert [end for _, end in failed] == ["done"] * (len(failed) - dead) + ["dead"] * dead
        assert (len(failed) > len("four")) == bool(dead)
        assert left == 0, "a success clears it"


# Celery beat


def celery_beat_page(folder):
    """The page, with the files that it shows written to the folder."""
    page = (ROOT / "docs" / "how-to" / "from-celery-beat.md").read_text()
    for name in ("shop.py", "pollux.yaml"):
        [text] = re.findall(rf"<!-- file: {name} -->\n(?:<!-- .*? -->\n)?```\w+\n(.*?)```", page, re.DOTALL)
        (folder / name).write_text(text)
    return page


def test_the_file_and_the_program_of_that_page_do_not_go_into_one_store(tmp_path):
    assert "a store takes a job from\none source" in celery_beat_page(tmp_path)
    run(["pollux", "reload", "-c", "pollux.yaml", "--store", "sqlite:///shop.db"], cwd=tmp_path)
    done = finished([sys.executable, "shop.py"], cwd=tmp_path)
    assert (done.code, "job 'stock' is in file:pollux.yaml and in code:app" in done.err) == (1, True), done


def test_the_move_from_celery_beat_can_be_done_as_its_page_says(tmp_path):
    """Every command of its blocks in a fresh folder, with the files that the page shows."""
    page = celery_beat_page(tmp_path)
    before, after = re.findall(r"```console\n(.*?)```", page.partition("## The move itself")[2], re.DOTALL)

    def typed(block):
        return [run(["pollux", *shlex.split(line)[2:]], cwd=tmp_path) for line in block.splitlines()]

    assert "job stock" in (listed := typed(before))[0]
    assert listed[-1].count("everything is paused: beat still runs") == len(["stock", "report"])
    with started(["pollux", "serve", "-c", "pollux.yaml"], cwd=tmp_path, env=None, until="leads"):
        assert json.loads(run(["pollux", "runs", "--json"], cwd=tmp_path))["runs"] == []
        assert typed(after) == ["everything goes on\n"]
        jobs = json.loads(run(["pollux", "jobs", "--json"], cwd=tmp_path))["jobs"]
        assert {job["id"]: job["held"] for job in jobs} == {"stock": "", "report": ""}


# Kubernetes


def manifests():
    return {each["kind"]: each for each in yaml.safe_load_all((EXAMPLES / "kubernetes" / "pollux.yaml").read_text())}


def test_the_manifest_is_one_pod_that_is_given_more_time_than_the_grace(tmp_path):
    there = manifests()
    deployment = there["Deployment"]["spec"]
    pod = deployment["template"]["spec"]
    config = tmp_path / "pollux.yaml"
    config.write_text(there["ConfigMap"]["data"]["pollux.yaml"])
    (tmp_path / "checks.py").write_text("def tick(ctx): ...\n")
    run(["pollux", "check", "-c", config.name], cwd=tmp_path)

    grace_s = int(yaml.safe_load(config.read_text())["pool"]["grace"].removesuffix("s"))
    assert pod["terminationGracePeriodSeconds"] >= grace_s + 10
    assert (deployment["replicas"], deployment["strategy"]["type"]) == (1, "Recreate")
    assert there["PersistentVolumeClaim"]["spec"]["accessModes"] == ["ReadWriteOncePod"]
    assert deployment["selector"]["matchLabels"] == deployment["template"]["metadata"]["labels"]
    assert pod["securityContext"]["runAsNonRoot"]


def test_the_containers_have_what_they_mount_and_commands_that_exist(tmp_path):
    pod = manifests()["Deployment"]["spec"]["template"]["spec"]
    volumes = {volume["name"] for volume in pod["volumes"]}
    for container in pod["containers"]:
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert set(mounts) == volumes
        [variable] = container["env"]
        assert variable == {"name": "POLLUX_CONFIG", "value": f"{mounts['config']}/pollux.yaml"}
        program, *words = container["command"]
        assert program == "pollux"
        run(["pollux", *words, "--help"], cwd=tmp_path)
    store = yaml.safe_load(manifests()["ConfigMap"]["data"]["pollux.yaml"])["store"]
    assert store == f"sqlite:///{mounts['data']}/pollux.db"


def test_the_probe_tells_a_store_that_is_there_from_one_that_is_not(tmp_path):
    serve = manifests()["Deployment"]["spec"]["template"]["spec"]["containers"][0]
    for probe in ("startupProbe", "readinessProbe"):
        program, *words = serve[probe]["exec"]["command"]
        assert program == "pollux"
    config = tmp_path / "pollux.yaml"
    config.write_text(f"store: sqlite:///{tmp_path / 'pollux.db'}\n")
    variables = {**os.environ, "POLLUX_CONFIG": str(config)}
    for code in (UNAVAILABLE, 0):
        done = finished(["pollux", *words], cwd=tmp_path, env=variables)
        assert done.code == code, done.err
        asyncio.run(made(f"sqlite:///{tmp_path / 'pollux.db'}"))


async def made(store):
    app = Pollux(store)
    await app.open()
    await app.close()


# processes


def start(command, *, cwd, env, **pipes):
    """`pollux` is forked; a program that is named by its path begins as it does for the reader."""
    program, *words = map(str, command)
    env = env or {**os.environ}
    if program == "pollux":
        return start_pollux(words, cwd=cwd, env=env | {"PYTHONWARNINGS": "error"}, text=True, **pipes)
    return subprocess.Popen([program, *words], cwd=cwd, env=env, text=True, **pipes)


def finished(command, *, cwd, env=None):
    with start(command, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    return Answer(process.returncode, out, err)


def run(command, *, cwd, env=None):
    done = finished(command, cwd=cwd, env=env)
    assert done.code == 0, f"{command}: {done}"
    return done.out


class started:  # noqa: N801  reads as a sentence
    """A process that has said a word; ended at the end, if it was not before."""

    def __init__(self, command, *, cwd, env, until):
        self.until = until
        self.process = start(command, cwd=cwd, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def __enter__(self):
        seen = []
        for line in self.process.stderr:
            seen.append(line)
            if self.until in line:
                return self.process
        raise AssertionError(f"it never said {self.until!r}: {''.join(seen)}")

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stderr.close()
