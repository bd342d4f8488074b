"""Deployment files at work: their commands, environments, probes, health checks and queries are run here.

There is no container engine and no cluster here.  The wheel is built and installed as the Dockerfile says, and the real
program is started with the very words of each file; only its paths and ports are ours (`tests/installed.py`).
"""

import asyncio
import configparser
import copy
import json
import re
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import asyncpg
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from prometheus_client.parser import text_string_to_metric_families

from pollux.units import duration_ms
from tests.acceptance.terminal import PATIENCE_SECONDS, eventually
from tests.deploying import RULES
from tests.installed import DEPLOY, ROOT, Image
from tests.servers.ports import free_port
from tests.servers.postgres import QUICK, PostgresServer
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.xdist_group("deployed")  # one image for all of them

TOKEN = "t0ken-" + "x" * 60
CHECKS = """
import asyncio
from pathlib import Path

from pollux import Permanent


async def fine(ctx):
    Path("fine.ran").touch()


async def refuse(ctx):
    raise Permanent("it never works")


async def patient(ctx):
    Path("patient.started").touch()
    while not Path("may.end").exists():
        await asyncio.sleep(0.02)
    Path("patient.ended").touch()


async def slow(ctx, seconds):
    await asyncio.sleep(seconds)
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    image = Image(tmp_path_factory.mktemp("image"))
    image.at("/srv/checks.py").write_text(CHECKS)
    return image


@pytest.fixture
def image(built):
    """As new: nothing lies where a node writes."""
    for place in ("/var/lib/pollux", "/etc/pollux", "/etc/pollux-secret", "/run/secrets"):
        shutil.rmtree(built.at(place))
        built.at(place).mkdir(mode=0o700)
    return built


def asked(port, path, token=""):
    """Status and text of the answer."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}")
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError as error:
        return None, str(error)


def ended(process):
    """What it said; it was told to stop."""
    _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, err
    assert b"Traceback" not in err, err
    return err.decode()


def secret(image, path, text):
    image.at(path).write_text(text)
    image.at(path).chmod(0o600)


# the image


def test_the_image_starts_is_well_writes_where_it_may_and_stops(image):
    """Its CMD in its environment and folder, its health check, its stop signal."""
    port = free_port()
    image.at("/etc/pollux/pollux.yaml").write_text('jobs:\n  - {id: own, python: "checks:fine", once: true}\n')
    check = [word.replace("8060", str(port)) for word in image.health_check]

    def is_healthy():
        words = {"env": image.environ({}), "capture_output": True, "timeout": PATIENCE_SECONDS}
        return subprocess.run(check, check=False, **words).returncode == 0

    assert not is_healthy()
    before = image.files()
    with image.started(image.command, {"POLLUX_PORT": str(port)}) as process:
        eventually(is_healthy, "it is healthy", process)
        eventually(image.at("/var/lib/pollux/fine.ran").exists, "code of /srv has run", process)
        process.send_signal(signal.SIGSTOP)
        assert not is_healthy()
        process.send_signal(signal.SIGCONT)
        process.send_signal(getattr(signal, image.last["STOPSIGNAL"]))
        said = ended(process)
    assert not is_healthy()
    lines = [json.loads(line) for line in said.splitlines()]  # --log-format json
    assert len(lines) > 2
    written = {path for path in image.files() - before if not path.startswith("var/lib/pollux/")}
    assert written == set(), "it wrote beyond its folder"
    assert "var/lib/pollux/pollux.db" in image.files()


def test_what_runs_is_the_wheel(image):
    """Else all of this would prove something about the working tree, which is not in the image."""
    words = [image.at("/opt/pollux/bin/python"), "-c", "import pollux; print(pollux.__file__)"]
    done = subprocess.run(words, env=image.environ({}), capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.startswith(str(image.at("/opt/pollux")))
    assert {"py.typed"} <= {path.name for path in Path(done.stdout.strip()).parent.iterdir()}


def test_the_locks_that_the_image_reads_pin_what_the_wheel_asks_for(built):
    """Versions that fit, on the Python of the image."""
    [run] = [said for word, said in built.build if word == "RUN"]
    locks = "\n".join((ROOT / name).read_text() for name in re.findall(r"-r (\S+)", run))
    lines = re.findall(r"^([^\s#].*?) *\\$", locks, re.MULTILINE)
    version = re.match(r"python:(\d+\.\d+)", built.last["FROM"])[1]
    inside = {"python_version": version, "python_full_version": f"{version}.0", "sys_platform": "linux"}
    inside |= {"implementation_name": "cpython", "platform_python_implementation": "CPython"}
    pins = {}
    for requirement in map(Requirement, lines):
        if requirement.marker is None or requirement.marker.evaluate({**inside, "extra": ""}):
            [pin] = requirement.specifier
            assert pin.operator == "==", requirement
            pins[canonicalize_name(requirement.name)] = pin.version
    extras = re.search(r'"\.\[([a-z,]+)\]"', run)[1].split(",")
    wanted = [Requirement(line) for line in built.metadata.get_all("Requires-Dist")]
    wanted = [
        each
        for each in wanted
        if each.marker is None or any(each.marker.evaluate({**inside, "extra": extra}) for extra in ("", *extras))
    ]
    assert len(wanted) > 20
    for each in wanted:
        pin = pins.get(canonicalize_name(each.name))
        assert pin is not None, f"{each} is not in the lock"
        assert each.specifier.contains(pin, prereleases=True), f"{each}, and the lock says {pin}"


# systemd


def unit_of(text):
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str
    parser.read_string(text)
    return parser["Service"]


def by_our_list(unit, folder):
    """What is wrong with it, by what each line may say."""
    (folder / "systemd").mkdir(exist_ok=True)
    (folder / "systemd" / "pollux.service").write_text(unit)
    return list(RULES["systemd"](folder))


def by_systemd(unit, folder):
    (folder / "pollux.service").write_text(unit)
    command = ["systemd-analyze", "verify", "--man=no", str(folder / "pollux.service")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS)
    return [line for line in done.stderr.splitlines() if "pollux.service" in line]


def test_every_line_of_the_unit_is_known(image, tmp_path):
    """To a list of our own, and where there is a systemd to ask, to that, which also looks for the program."""
    text = (DEPLOY / "systemd" / "pollux.service").read_text()
    judges = [(by_our_list, text)]
    if shutil.which("systemd-analyze"):
        installed = image.within(text)
        judges.append((by_systemd, installed))
        assert by_systemd(installed.replace("bin/pollux serve", "bin/polux serve"), tmp_path)
    for judge, unit in judges:
        assert judge(unit, tmp_path) == []
        assert judge(unit.replace("ProtectHome=", "ProtectHouse="), tmp_path)
        assert judge(unit.replace("KillMode=mixed", "KillMode=gently"), tmp_path)


def test_the_unit_is_started_watched_reloaded_and_stopped_as_systemd_would(image):
    """ExecStart with its environment and umask, READY, WATCHDOG, ExecReload, SIGTERM, STOPPING; and a start in vain."""
    service = unit_of(image.within((DEPLOY / "systemd" / "pollux.service").read_text()))
    assert (service["Type"], service["KillMode"]) == ("notify", "mixed")
    environ = dict(each.split("=", 1) for each in shlex.split(service["Environment"])) | {"POLLUX_SERVER": "false"}
    command, config = shlex.split(service["ExecStart"]), image.at("/etc/pollux/pollux.yaml")
    config.write_text('jobs:\n  - {id: old, python: "checks:fine"}\n')
    address = str(image.folder / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        line.bind(address)
        line.settimeout(PATIENCE_SECONDS)
        every_us = duration_ms(service["WatchdogSec"].replace("min", "m")) * 1000 // 200  # we are less patient
        environ |= {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": str(every_us)}
        options = {"cwd": service["WorkingDirectory"], "umask": int(service["UMask"], 8)}
        with image.started(command, environ, **options) as process:
            assert [line.recv(100) for _ in range(3)] == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1"]
            config.write_text('jobs:\n  - {id: new, python: "checks:fine", once: true}\n')
            reload = service["ExecReload"].replace("$MAINPID", str(process.pid))
            subprocess.run(shlex.split(reload), check=True, timeout=PATIENCE_SECONDS)
            eventually(image.at("/var/lib/pollux/fine.ran").exists, "the new file holds", process)
            process.send_signal(signal.SIGTERM)
            heard = b"WATCHDOG=1"
            while heard == b"WATCHDOG=1":
                heard = line.recv(100)
            assert heard == b"STOPPING=1"
            ended(process)
    Path(address).unlink()
    database = image.at("/var/lib/pollux/pollux.db")
    assert stat.S_IMODE(database.stat().st_mode) == 0o600
    config.write_text("jobs: 7\n")
    with image.started(command, environ, **options) as process:
        process.communicate(timeout=PATIENCE_SECONDS)
    assert str(process.returncode) == service["RestartPreventExitStatus"], "else it would be started again and again"


# Kubernetes


PATIENT = '  - {id: patient, python: "checks:patient", once: true}\n'


def pod_of(name):
    """The container of a Deployment, and the text of the config that is mounted into it."""
    [deployment] = [
        each
        for each in yaml.safe_load_all((DEPLOY / "kubernetes" / f"{name}.yaml").read_text())
        if each["kind"] == "Deployment"
    ]
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    config = yaml.safe_load((DEPLOY / "kubernetes" / "config.yaml").read_text())["data"]["pollux.yaml"]
    return container, config


@pytest.mark.parametrize("name", ["serve", "worker"])
def test_a_pod_answers_its_probes_on_the_ports_that_it_names(image, name):
    """With the args and the config of the cluster: ready while it works, not while it drains, alive all the time."""
    container, config = pod_of(name)
    ports = {each["name"]: (each["containerPort"], free_port()) for each in container["ports"]}
    config = image.within(config).replace("host: 0.0.0.0", "host: 127.0.0.1")
    for named, ours in ports.values():
        config = config.replace(str(named), str(ours))
    image.at("/etc/pollux/pollux.yaml").write_text(config + PATIENT)
    secret(image, "/etc/pollux-secret/store", f"sqlite:///{image.at('/var/lib/pollux')}/p.db\n")
    secret(image, "/etc/pollux-secret/api-token", TOKEN)

    def probed(probe):
        get = container[probe]["httpGet"]
        return asked(ports[get["port"]][1], get["path"])[0]

    command = [*json.loads(image.last["ENTRYPOINT"]), *container["args"]]
    with image.started(command, {}) as process:
        eventually(lambda: probed("startupProbe") == 200, "it has started", process)
        eventually(lambda: probed("readinessProbe") == 200, "it is ready", process)
        assert probed("livenessProbe") == 200
        status, numbers = asked(ports["metrics"][1], "/metrics")
        assert (status, "pollux_build_info" in numbers) == (200, True)
        api = ports["http"][1]
        assert [asked(api, "/api/v2/nodes", token)[0] for token in ("", TOKEN)] == [401, 200]
        if name == "serve":
            hook = container["lifecycle"]["preStop"]["exec"]["command"]
            assert shutil.which(hook[0]), "the image has no such command"
            eventually(image.at("/var/lib/pollux/patient.started").exists, "a job runs", process)
        process.send_signal(signal.SIGTERM)
        if name == "serve":
            eventually(lambda: probed("readinessProbe") == 503, "it is no longer ready", process)
            assert probed("livenessProbe") == 200
        image.at("/var/lib/pollux/may.end").touch()
        ended(process)
    if name == "serve":
        assert image.at("/var/lib/pollux/patient.ended").exists(), "it did not wait for what ran"


# compose


def services_of(image, name, store):
    """Its services with the paths and ports of this test; the store is where `store` says."""
    whole = yaml.safe_load((DEPLOY / "compose" / f"{name}.yaml").read_text())
    services = [copy.deepcopy(each) for each in whole["services"].values() if each["image"] == "pollux"]
    for each in services:
        said = each["environment"]
        place = re.search(rf"{name}:\d+", said["POLLUX_STORE"])[0]
        said["POLLUX_STORE"] = image.within(said["POLLUX_STORE"].replace("$$", "$")).replace(place, store)
        said |= {"POLLUX_HOST": said["POLLUX_HOST"].replace("0.0.0.0", "127.0.0.1"), "POLLUX_PORT": str(free_port())}
    [file] = {each["configs"][0]["source"] for each in services}
    text = (DEPLOY / "compose" / whole["configs"][file]["file"]).read_text()
    image.at("/etc/pollux/pollux.yaml").write_text(image.within(text))
    secret(image, "/run/secrets/api-token", TOKEN)
    return whole, services


def force_run(port, job):
    request = urllib.request.Request(f"http://127.0.0.1:{port}/api/v2/jobs/{job}/force-run", b'{"anyway": true}')
    request.add_header("Authorization", f"Bearer {TOKEN}")
    with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
        return json.load(answer)["run"]["id"]


def check_composed(image, services):
    """Both start, the token of the secret lets in, a run of theirs ends well, both stop in their grace."""
    serve, worker = services
    entry = json.loads(image.last["ENTRYPOINT"])
    with (
        image.started([*entry, *serve["command"]], serve["environment"]) as first,
        image.started([*entry, *worker["command"]], worker["environment"]) as second,
    ):
        for process, service in ((first, serve), (second, worker)):
            port = service["environment"]["POLLUX_PORT"]
            eventually(lambda port=port: asked(port, "/ready")[0] == 200, "it is ready", process)
        port = serve["environment"]["POLLUX_PORT"]

        def is_there():
            return asked(port, "/api/v2/jobs/beat", TOKEN)[0] == 200

        eventually(is_there, "the job of the config is there", first)
        run = force_run(port, "beat")

        def is_done():
            return json.loads(asked(port, f"/api/v2/runs/{run}", TOKEN)[1]).get("state") == "done"

        eventually(is_done, "the run is done", first)
        assert len(json.loads(asked(port, "/api/v2/nodes", TOKEN)[1])["nodes"]) == 2
        for process in (second, first):
            process.send_signal(signal.SIGTERM)
            ended(process)


def test_the_services_of_compose_work_on_redis(image, tmp_path):
    """A Redis with the very arguments of the file, which the start would refuse if they were others."""
    server = RedisServer(tmp_path)
    whole, services = services_of(image, "redis", f"127.0.0.1:{server.port}")
    program, *arguments = whole["services"]["redis"]["command"]
    assert program == "redis-server"
    server.options = tuple(arguments)
    server.start()
    try:
        check_composed(image, services)
    finally:
        server.stop()


def test_the_services_of_compose_work_on_postgres(image):
    """A PostgreSQL that wants the password, which is in a secret that the URL of the store names."""
    server = PostgresServer(*QUICK)
    try:
        server.start()
        _, services = services_of(image, "postgres", f"127.0.0.1:{server.port}")
        asyncio.run(make_database(server))
        secret(image, "/run/secrets/db-password", "pollux\n")
        check_composed(image, services)
    finally:
        server.stop()


async def make_database(server):
    """As its own image would: a database of the name of its user, and nobody in without the password."""
    connection = await asyncpg.connect(server.url())
    await connection.execute("CREATE DATABASE pollux")
    await connection.close()
    rules = server.folder / "data" / "pg_hba.conf"
    rules.write_text("host all all 127.0.0.1/32 scram-sha-256\n")
    server.kill(signal.SIGINT)  # it writes down what it was told
    server.start()
    with pytest.raises(asyncpg.InvalidPasswordError):
        await asyncpg.connect(server.url("pollux").replace("pollux:pollux", "pollux:guessed"))


# Prometheus and Grafana

BUSY = """
server: {token: "${file:/run/secrets/api-token}", rate: 0}
pool: {seats: 4}
jobs:
  - {id: fine, python: "checks:fine", interval: 200ms, source_id: crm}
  - {id: broken, python: "checks:refuse", interval: 200ms}
  - {id: hangs, python: "checks:slow", interval: 200ms, params: {seconds: 600}}
"""
BRINGS = "pollux_build_info"  # the labels that a query joins come from it
OF_PROMETHEUS = {"job", "instance"}  # labels that it adds itself; of ours, `instance` becomes `exported_instance`


def queries():
    rules = yaml.safe_load((DEPLOY / "prometheus" / "pollux.rules.yaml").read_text())
    board = json.loads((DEPLOY / "grafana" / "pollux.json").read_text())
    told = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    return told + [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]


def missing(text):
    """What the queries ask for and this scrape does not tell."""
    labels = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
    for query in queries():
        grouped = {label.strip() for part in re.findall(r"\b(?:by|on) \(([^)]*)\)", query) for label in part.split(",")}
        brought = {
            label.strip() for part in re.findall(r"\bgroup_left \(([^)]*)\)", query) for label in part.split(",")
        }
        ours = {"instance" if label == "exported_instance" else label for label in grouped - OF_PROMETHEUS - brought}
        for name in set(re.findall(r"\b(?:pollux|process)_[a-z0-9_]+\b", query)):
            if name not in labels:
                yield f"{name} has no sample"
            elif name != BRINGS and ours - labels[name]:
                yield f"{name} has no label {sorted(ours - labels[name])}"
        if brought and brought - labels.get(BRINGS, set()):
            yield f"{BRINGS} has no label {sorted(brought)}"


def test_all_that_alerts_and_dashboard_ask_for_is_in_a_real_scrape(image):
    """By the path and the token with which Prometheus asks; with jobs that succeed, fail and overlap."""
    [scrape] = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yaml").read_text())["scrape_configs"]
    assert scrape["authorization"]["type"] == "Bearer"
    port = free_port()
    secret(image, "/run/secrets/api-token", TOKEN)
    image.at("/etc/pollux/pollux.yaml").write_text(image.within(BUSY))
    seen = [""]

    def all_is_there():
        status, seen[0] = asked(port, scrape["metrics_path"], TOKEN)
        return status == 200 and not set(missing(seen[0]))

    with image.started([*image.command, "--grace", "0s"], {"POLLUX_PORT": str(port)}) as process:
        eventually(lambda: asked(port, "/ready")[0] == 200, "it is ready", process)
        try:
            eventually(all_is_there, "every query finds what it asks for")
        except AssertionError as error:
            raise AssertionError(sorted(set(missing(seen[0])))) from error
        assert asked(port, scrape["metrics_path"])[0] == 401
        process.send_signal(signal.SIGTERM)
        ended(process)
    without = "\n".join(line for line in seen[0].splitlines() if "pollux_scheduler_leaders" not in line)
    assert set(missing(without)) == {"pollux_scheduler_leaders has no sample"}
    assert any("no label ['priority']" in each for each in missing(seen[0].replace("priority=", "rank=")))
