"""Rules of the files in `deploy/`: one function per kind of file; each returns what is wrong.

There is no container engine and no cluster here, so linters judge the form (hadolint, the schemas of compose and of
Kubernetes, a PromQL parser) and the rest judges what linters cannot know: that names, ports, paths, options, commands
and times fit each other and the program.  Every rule takes the folder it looks at, so that tests can plant a fault.
"""

from __future__ import annotations

import configparser
import fnmatch
import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any

import click
import kubernetes_validate
import yaml
from jsonschema.protocols import Validator
from jsonschema.validators import validator_for

from pollux.cli.command_table import ENTRIES
from pollux.config import Config
from pollux.config.settings import OPTIONS
from pollux.server.routes import OPEN_PATHS
from pollux.units import duration_ms
from tests.promql import bad_query, hidden_versions

BIN = Path(sys.executable).parent
MARGIN_MS = 10_000  # what a node may need after its grace: to stop handlers, to settle, to leave
VARIABLES = {name for option in OPTIONS for name in option.variables} | {"POLLUX_CONFIG"}
KUBERNETES = "1.33"
Problems = Iterator[str]


# what the program knows


def bad_command(words: list[str]) -> str:
    """What the program's own parser says about these arguments, or nothing."""
    name, *arguments = words
    if name not in ENTRIES:
        return f"there is no command {name!r}"
    module, _, attribute = ENTRIES[name].home.partition(":")
    command: click.Command = getattr(import_module(module), attribute)
    try:
        command.make_context(name, [*arguments], resilient_parsing=False)
    except click.ClickException as error:
        return f"pollux {' '.join(words)}: {error.format_message()}"
    return ""


def bad_variables(given: Mapping[str, Any]) -> Problems:
    for name in given:
        if name.startswith(("POLLUX_", "SCHEDULER_")) and name not in VARIABLES:
            yield f"{name} is no option"


def bad_words(text: str) -> Problems:
    """Commands that are named in words."""
    for name in re.findall(r"\bpollux ([a-z]+)\b", text):
        if name not in ENTRIES:
            yield f"there is no command `pollux {name}`"


def yaml_of(path: Path) -> list[Any]:
    return [each for each in yaml.safe_load_all(path.read_text()) if each is not None]


# the image


def image(deploy: Path) -> Problems:
    path = deploy / "Dockerfile"
    done = subprocess.run(
        [BIN / "hadolint", "--format", "json", path], capture_output=True, text=True, timeout=60, check=False
    )
    yield from (f"{each['code']}: {each['message']}" for each in json.loads(done.stdout or "[]"))
    steps = steps_of(path.read_text())
    froms = [n for n, (word, _) in enumerate(steps) if word == "FROM"]
    if len(froms) < 2:
        yield "one stage: the tools that build would be in the image"
        return
    last = dict(steps[froms[-1] :])
    user = last.get("USER", "root").partition(":")[0]
    if not user.isdecimal() or user == "0":
        yield f"it runs as {user}: give a number that is not 0, so that runAsNonRoot can be checked"
    if last.get("EXPOSE") != str(Config().server_port):
        yield "EXPOSE is not the port of the API"
    yield from _health_check(last.get("HEALTHCHECK", ""))
    yield from bad_variables(dict.fromkeys(re.findall(r"\b([A-Z_]+)=", " ".join(v for k, v in steps if k == "ENV"))))
    if json.loads(last["ENTRYPOINT"]) != ["pollux"]:
        yield "the entry point is not pollux: signals and arguments would not reach it"
    if wrong := bad_command(json.loads(last["CMD"])):
        yield wrong
    yield from _copied(steps, deploy)
    yield from _installed(steps, deploy)
    extras = tomllib.loads((deploy.parent / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for found in re.findall(r"\.\[([a-z,]+)\]", path.read_text()):
        yield from (f"there is no extra {name}" for name in found.split(",") if name not in extras)


def _installed(steps: list[tuple[str, str]], deploy: Path) -> Problems:
    """Only what the locks say, whatever was released since."""
    commands = [each.strip() for word, said in steps if word == "RUN" for each in said.split("&&") if " pip " in each]
    for command in commands:
        if " install " not in command:
            continue
        locks = re.findall(r"-r (\S+)", command)
        yield from (f"there is no lock {name}" for name in locks if not (deploy.parent / name).is_file())
        needed = ["--no-deps", "--require-hashes" if locks else "--no-build-isolation"]
        what = "a lock" if locks else "the package"
        yield from (f"{what} without {option}" for option in needed if option not in command.split())
    if not commands or not commands[-1].endswith(" check"):
        yield "no pip check: what a lock misses would be found when it runs"


def _health_check(words: str) -> Problems:
    found = re.search(r"http://127\.0\.0\.1:(\d+)(/\w+)", words)
    if found is None or found[1] != str(Config().server_port) or found[2] != "/live":
        yield "the health check does not ask /live on the port of the API"


def steps_of(text: str) -> list[tuple[str, str]]:
    joined = re.sub(r"\\\n", " ", re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE))
    return [
        (line.split()[0].upper(), line.split(maxsplit=1)[1].strip()) for line in joined.splitlines() if line.strip()
    ]


def _copied(steps: list[tuple[str, str]], deploy: Path) -> Problems:
    allowed = [line[1:] for line in (deploy / "Dockerfile.dockerignore").read_text().splitlines() if line[:1] == "!"]
    stages = {said.split()[-1] for word, said in steps if word == "FROM" and " AS " in said}
    for word, said in steps:
        if word != "COPY":
            continue
        first, *others = said.split()
        if first.startswith("--from="):
            if first.removeprefix("--from=") not in stages:
                yield f"COPY {first}: there is no such stage"
            continue
        for source in [first, *others[:-1]]:
            if not (deploy.parent / source).exists():
                yield f"COPY {source}: there is no such file"
            elif not any(fnmatch.fnmatch(source.removeprefix("./"), each) for each in allowed):
                yield f"COPY {source}: Dockerfile.dockerignore keeps it out"


# compose


def compose(deploy: Path) -> Problems:
    files = sorted(path for path in (deploy / "compose").glob("*.yaml") if path.name != "pollux.yaml")
    if not files:
        yield "no compose file"
    for path in files:
        yield from (f"{path.name}: {each}" for each in _compose_file(path))


def _compose_file(path: Path) -> Problems:
    [whole] = yaml_of(path)
    wrong = [f"{error.json_path}: {error.message}" for error in _compose_schema().iter_errors(whole)]
    if wrong:
        yield from wrong
        return
    services = whole["services"]
    for name, service in services.items():
        yield from (f"{name}: {each}" for each in _service(service, whole))
        if service["image"] == "pollux":
            yield from (f"{name}: {each}" for each in _our_service(service, services, path.parent))
    for kind in ("secrets", "configs", "volumes", "networks"):
        used = {each for service in services.values() for each in _names_of(service.get(kind, ()))}
        yield from (f"{kind}: nobody uses {each}" for each in whole.get(kind, {}) if each not in used)


@cache
def _compose_schema() -> Validator:
    """The schema of the compose specification, as check-jsonschema brings it."""
    place = files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json"
    schema = json.loads(place.read_text())
    return validator_for(schema)(schema)


def _names_of(given: Any) -> list[str]:
    """Of a list of names, of `name:path` or of mappings with a source."""
    return [each["source"] if isinstance(each, dict) else each.partition(":")[0] for each in given]


def _service(service: dict[str, Any], whole: dict[str, Any]) -> Problems:
    for kind in ("secrets", "configs", "volumes", "networks"):
        for name in _names_of(service.get(kind, ())):
            if name not in whole.get(kind, {}):
                yield f"{kind}: {name} is nowhere declared"
    for other, how in service.get("depends_on", {}).items():
        if other not in whole["services"]:
            yield f"depends_on: there is no service {other}"
        elif how["condition"] == "service_healthy" and "healthcheck" not in whole["services"][other]:
            yield f"depends_on: {other} has no health check, so this would wait for ever"
    for secret in re.findall(r"/run/secrets/([\w-]+)", str(service)):
        if secret not in service.get("secrets", ()):
            yield f"secret {secret} is named and not given"


def _our_service(service: dict[str, Any], services: dict[str, Any], folder: Path) -> Problems:
    environment = service["environment"]
    yield from bad_variables(environment)
    if wrong := bad_command(service["command"]):
        yield wrong
    [config] = [each for each in service["configs"] if each["target"] == "/etc/pollux/pollux.yaml"]
    text = (folder / f"{config['source']}.yaml").read_text()
    grace = yaml.safe_load(text)["pool"]["grace"]
    if duration_ms(service["stop_grace_period"]) < duration_ms(grace) + MARGIN_MS:
        yield f"stop_grace_period is not {MARGIN_MS // 1000} s longer than pool.grace"
    for secret in re.findall(r"/run/secrets/([\w-]+)", text):
        if secret not in service["secrets"]:
            yield f"secret {secret} is named in the config and not given"
    host = re.split(r"[/@:]", environment["POLLUX_STORE"].rpartition("@")[2].removeprefix("redis://"))[0]
    if host not in services or host not in service["depends_on"]:
        yield f"the store is on {host}, which it does not depend on"
    if environment.get("POLLUX_PORT") != str(Config().server_port):
        yield "POLLUX_PORT is not the one that the image's health check asks"
    for port in service.get("ports", ()):
        if not port.startswith("127.0.0.1:") or not port.endswith(f":{environment['POLLUX_PORT']}"):
            yield f"port {port} is published beyond this machine, or is another"
    if not (service["read_only"] and service["cap_drop"] == ["ALL"]):
        yield "it may write to its image, or has capabilities"


# Kubernetes


def kubernetes(deploy: Path) -> Problems:
    folder = deploy / "kubernetes"
    [kustomization] = yaml_of(folder / "kustomization.yaml")
    listed, there = set(kustomization["resources"]), {path.name for path in folder.glob("*.yaml")}
    if listed != there - {"kustomization.yaml"}:
        yield f"the kustomization lists {sorted(listed)}, there are {sorted(there)}"
    objects = [each for path in sorted(folder.glob("*.yaml")) for each in yaml_of(path) if path.name in listed]
    for each in objects:
        if wrong := _misshapen(json.dumps(each)):
            yield f"{each['kind']} {each['metadata']['name']}: {wrong}"
            return
    pods = [each for each in objects if each["kind"] == "Deployment"]
    if {each["metadata"]["name"] for each in pods} != {"pollux-serve", "pollux-worker"}:
        yield "there is not one Deployment that serves and one of workers"
    for each in pods:
        yield from (f"{each['metadata']['name']}: {wrong}" for wrong in _deployment(each, objects))
    yield from _around(objects, pods)


@cache
def _misshapen(text: str) -> str:
    """What the schemas of Kubernetes say about an object; they are large, so each object is judged once."""
    try:
        kubernetes_validate.validate(json.loads(text), KUBERNETES, strict=True)
    except kubernetes_validate.ValidationError as error:
        return str(error.message)
    return ""


def _deployment(deployment: dict[str, Any], objects: list[dict[str, Any]]) -> Problems:
    spec = deployment["spec"]
    pod = spec["template"]["spec"]
    if spec["selector"]["matchLabels"] != spec["template"]["metadata"]["labels"]:
        yield "it does not select its own pods"
    if not pod["securityContext"]["runAsNonRoot"] or pod.get("automountServiceAccountToken", True):
        yield "it may run as root, or holds a token of the cluster"
    if pod.get("enableServiceLinks", True):
        yield "services of the cluster put variables into it that begin like ours"
    volumes = {each["name"]: each for each in pod["volumes"]}
    maps = {each["metadata"]["name"]: each for each in objects if each["kind"] == "ConfigMap"}
    for volume in volumes.values():
        if "configMap" in volume and volume["configMap"]["name"] not in maps:
            yield f"there is no ConfigMap {volume['configMap']['name']}"
    if "pollux" not in maps:
        return
    for container in pod["containers"]:
        yield from _container(container, volumes)
        grace = yaml.safe_load(maps["pollux"]["data"]["pollux.yaml"])["pool"]["grace"]
        stop = container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", ["sleep", "0"])
        needed = duration_ms(grace) + int(stop[1]) * 1000 + MARGIN_MS
        if pod["terminationGracePeriodSeconds"] * 1000 < needed:
            yield f"terminationGracePeriodSeconds is less than the {needed // 1000} s that it may need"
        yield from _config(maps["pollux"], container, volumes)


def _container(container: dict[str, Any], volumes: dict[str, Any]) -> Problems:
    if wrong := bad_command(container["args"]):
        yield wrong
    yield from bad_variables({each["name"]: each for each in container.get("env", ())})
    mounted = {each["name"] for each in container["volumeMounts"]}
    if mounted != set(volumes):
        yield f"volumes {sorted(mounted ^ set(volumes))} are mounted and not there, or there and not mounted"
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    paths = {"startupProbe": "/live", "livenessProbe": "/live", "readinessProbe": "/ready"}
    for probe, path in paths.items():
        asked = container.get(probe, {}).get("httpGet", {})
        if asked.get("path") != path or path not in OPEN_PATHS:
            yield f"{probe} does not ask {path}"
        if asked.get("port") not in ports:
            yield f"{probe} asks a port that the container has not"
    locked = container["securityContext"]
    if (
        locked["allowPrivilegeEscalation"]
        or not locked["readOnlyRootFilesystem"]
        or "ALL" not in locked["capabilities"]["drop"]
    ):
        yield "the container may do more than it needs"
    if "memory" not in container["resources"].get("limits", {}):
        yield "it has no limit of memory"


def _config(config: dict[str, Any], container: dict[str, Any], volumes: dict[str, Any]) -> Problems:
    said = yaml.safe_load(config["data"]["pollux.yaml"])
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    if said["server"]["port"] != ports["http"]:
        yield "the port of the config is not that of the container"
    if said["metrics"]["port"] != ports["metrics"]:
        yield "the port of the metrics is not that of the container"
    if said["server"]["host"] != "0.0.0.0":
        yield "the probes of the kubelet come from outside the pod: listen on 0.0.0.0"
    [place] = [each["mountPath"] for each in container["volumeMounts"] if "secret" in volumes.get(each["name"], {})]
    for reference in re.findall(r"\$\{file:([^}]+)\}", config["data"]["pollux.yaml"]):
        if not reference.startswith(f"{place}/"):
            yield f"{reference} is in no secret that is mounted"


def _around(objects: list[dict[str, Any]], pods: list[dict[str, Any]]) -> Problems:
    labels = {each["metadata"]["name"]: each["spec"]["template"]["metadata"]["labels"] for each in pods}

    def selected(selector: dict[str, str]) -> list[str]:
        return [name for name, has in labels.items() if selector.items() <= has.items()]

    ports = {
        each["name"] for pod in pods for box in pod["spec"]["template"]["spec"]["containers"] for each in box["ports"]
    }
    kinds: dict[str, list[list[str]]] = {}
    for each in objects:
        where, spec = f"{each['kind']} {each['metadata']['name']}", each.get("spec", {})
        match each["kind"]:
            case "Service":
                found, used = selected(spec["selector"]), [port["targetPort"] for port in spec["ports"]]
            case "PodDisruptionBudget":
                found, used = selected(spec["selector"]["matchLabels"]), []
            case "NetworkPolicy":
                found = selected(spec["podSelector"]["matchLabels"])
                used = [port["port"] for rule in spec["ingress"] for port in rule["ports"]]
            case _:
                continue
        kinds.setdefault(each["kind"], []).append(found)
        if not found:
            yield f"{where} selects no pod"
        yield from (f"{where}: no pod has a port {port}" for port in used if port not in ports)
    for kind in ("PodDisruptionBudget", "NetworkPolicy"):
        left = set(labels) - {name for found in kinds.get(kind, ()) for name in found}
        yield from (f"{name} has no {kind}" for name in sorted(left))


# systemd

UNIT: dict[str, dict[str, str]] = {
    "Unit": {
        "Description": r".+",
        "Wants": r"[\w.@ -]+\.target",
        "After": r"[\w.@ -]+\.target",
        "StartLimitIntervalSec": r"\d+(s|min)",
        "StartLimitBurst": r"\d+",
    },
    "Service": {
        "Type": "notify",
        "WatchdogSec": r"\d+(s|min)",
        "ExecStart": r"/opt/pollux/bin/pollux .+",
        "ExecReload": r"/bin/kill -HUP \$MAINPID",
        "Environment": r"[A-Z_]+=\S+",
        "WorkingDirectory": r"/var/lib/\w+",
        "KillMode": "mixed",
        "TimeoutStopSec": r"\d+s",
        "Restart": "on-failure",
        "RestartSec": r"\d+s",
        "RestartPreventExitStatus": r"\d+",
        "User": r"(?!root)\w+",
        "Group": r"(?!root)\w+",
        "StateDirectory": r"\w+",
        "StateDirectoryMode": "0700",
        "UMask": "0077",
        "LimitNOFILE": r"\d+",
        "MemoryMax": r"\d+[MG]",
        "ProtectSystem": "strict",
        "ProtectProc": "invisible",
        "CapabilityBoundingSet": "",
        "RestrictAddressFamilies": r"AF_UNIX AF_INET AF_INET6",
        "SystemCallArchitectures": "native",
        "SystemCallFilter": r"~?@[\w-]+",
        **dict.fromkeys(
            [
                *("NoNewPrivileges", "ProtectHome", "ProtectClock", "ProtectHostname", "ProtectControlGroups"),
                *("ProtectKernelLogs", "ProtectKernelModules", "ProtectKernelTunables", "PrivateTmp", "PrivateDevices"),
                *("RestrictNamespaces", "RestrictRealtime", "RestrictSUIDSGID", "LockPersonality", "RemoveIPC"),
            ],
            "yes",
        ),
    },
    "Install": {"WantedBy": r"multi-user\.target"},
}


def systemd(deploy: Path) -> Problems:
    """Each line of the unit, against what it may say; systemd itself would pass over a word that it does not know."""
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    text = (deploy / "systemd" / "pollux.service").read_text()
    parser.read_string(text)
    for section in parser.sections():
        known = UNIT.get(section, {})
        for name, value in parser[section].items():
            if name not in known:
                yield f"[{section}] {name}: unknown"
            elif not re.fullmatch(known[name], value):
                yield f"[{section}] {name}={value}: it should be {known[name]}"
        yield from (f"[{section}] {name} is missing" for name in known if name not in parser[section])
    service = parser["Service"]
    if wrong := bad_command(shlex.split(service.get("ExecStart", ""))[1:]):
        yield wrong
    yield from bad_variables(dict.fromkeys(re.findall(r"^Environment=(\w+)=", text, re.MULTILINE)))
    if duration_ms(service.get("TimeoutStopSec", "0s")) < Config().grace_ms + MARGIN_MS:
        yield f"TimeoutStopSec is not {MARGIN_MS // 1000} s longer than the grace"


# Prometheus and Grafana


def alerts(deploy: Path) -> Problems:
    [rules] = yaml_of(deploy / "prometheus" / "pollux.rules.yaml")
    [reading] = yaml_of(deploy / "prometheus" / "prometheus.yaml")
    if reading["rule_files"] != ["pollux.rules.yaml"]:
        yield "prometheus.yaml does not read the rules"
    seen: dict[str, str] = {}
    for rule in (rule for group in rules["groups"] for rule in group["rules"]):
        name, text = rule["alert"], rule["expr"]
        if name in seen:
            yield f"{name} is there twice"
        seen[name] = text
        if unknown := set(rule) - {"alert", "expr", "for", "labels", "annotations"}:
            yield f"{name}: {sorted(unknown)} are no words of Prometheus"
        yield from (f"{name}: {wrong}" for wrong in (*bad_query(text), *hidden_versions(text)))
        if set(rule["annotations"]) != {"summary", "cure"} or rule["labels"]["severity"] not in {"warning", "critical"}:
            yield f"{name} says no summary, cure or severity"
        yield from (f"{name}: {wrong}" for wrong in bad_words(str(rule["annotations"])))
    yield from _thresholds(seen)


def _thresholds(seen: Mapping[str, str]) -> Problems:
    usual = Config()
    planned = f"{usual.health_intervals} * max by (exported_instance) (pollux_monitor_poll_planned_seconds)"
    for name, ending in (
        ("PolluxQueueDeep", f"> {usual.health_queue_depth}"),
        ("PolluxJobStale", f"clamp_min({planned}, {usual.health_staleness_ms // 1000})"),
        ("PolluxJobNeverSucceeds", f">= {usual.health_intervals}"),
        ("PolluxDueButNotFired", f"> {usual.health_wait_ms // 1000}"),
        ("PolluxReadyButNotClaimed", f"> {usual.health_wait_ms // 1000}"),
        ("PolluxNobodyLeads", "== 0"),
        ("PolluxDeadLetters", "> 0"),
        ("PolluxStoreErrors", "> 0.1"),
    ):
        if name not in seen:
            yield f"there is no alert {name}"
        elif not seen[name].strip().endswith(ending):
            yield f"{name}: its threshold is not that of the settings ({ending})"


def dashboard(deploy: Path) -> Problems:
    board = json.loads((deploy / "grafana" / "pollux.json").read_text())
    panels = board["panels"]
    if len({each["id"] for each in panels}) != len(panels):
        yield "two panels have one id"
    variables = {each["name"] for each in board["templating"]["list"]}
    cells: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        own = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        if own & cells or at["x"] + at["w"] > 24:
            yield f"{panel['title']} lies upon another panel, or beyond the edge"
        cells |= own
        if panel["type"] == "row":
            continue
        if not panel["targets"] or not panel["description"]:
            yield f"{panel['title']} shows nothing, or does not say what"
        for target in panel["targets"]:
            asked = target["expr"]
            yield from (f"{panel['title']}: {wrong}" for wrong in (*bad_query(asked), *hidden_versions(asked)))
            used = set(re.findall(r"\$\{?([a-z]\w*)", f"{target['expr']} {target['datasource']['uid']}"))
            yield from (f"{panel['title']}: there is no variable {name}" for name in sorted(used - variables))


RULES: dict[str, Callable[[Path], Problems]] = {
    rule.__name__: rule for rule in (image, compose, kubernetes, systemd, alerts, dashboard)
}
