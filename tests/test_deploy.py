"""Files of `deploy/` fit the program; each rule finds the faults that are planted for it.

That they also work is shown by `test_deployed`, which runs them.
"""

import re
import shutil
import tomllib
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.deploying import RULES, bad_command
from tests.promql import bad_query, hidden_versions

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
BESIDE = ("pyproject.toml", "requirements", "README.md", "LICENSE", "src")


@pytest.mark.parametrize("rule", RULES)
def test_what_lies_in_deploy_is_fit(rule):
    wrong = list(RULES[rule](DEPLOY))
    assert not wrong, "\n".join(wrong)


@pytest.fixture
def planted(tmp_path):
    """A copy of `deploy/` with a fault: `text` of a file is `other` there."""
    shutil.copytree(DEPLOY, tmp_path / "deploy")
    for name in BESIDE:
        (tmp_path / name).symlink_to(ROOT / name)

    def plant(name: str, text: str, other: str) -> Path:
        path = tmp_path / "deploy" / name
        before = path.read_text()
        assert text in before, f"{name} has no {text!r} any more: plant the fault elsewhere"
        path.write_text(before.replace(text, other))
        return tmp_path / "deploy"

    return plant


FAULTS = [
    # the image
    ("image", "Dockerfile", "python:3.13-slim-bookworm", "python", "DL3006"),
    ("image", "Dockerfile", "FROM python:3.13-slim-bookworm AS build", "FORM python AS build", ""),
    ("image", "Dockerfile", "USER 10001:10001\n", "", "it runs as root"),
    ("image", "Dockerfile", "USER 10001:10001", "USER 0", "it runs as 0"),
    ("image", "Dockerfile", "USER 10001:10001", "USER pollux", "give a number"),
    ("image", "Dockerfile", "EXPOSE 8060", "EXPOSE 8080", "EXPOSE is not"),
    ("image", "Dockerfile", ":8060/live", ":8060/health", "does not ask /live"),
    ("image", "Dockerfile", "POLLUX_CONFIG=", "POLLUX_CONFG=", "POLLUX_CONFG is no option"),
    ("image", "Dockerfile", 'ENTRYPOINT ["pollux"]', 'ENTRYPOINT ["sh", "-c", "pollux"]', "the entry point"),
    ("image", "Dockerfile", '"--no-watch", "--log-format"', '"--quiet", "--log-format"', "--quiet"),
    ("image", "Dockerfile", "--from=build", "--from=builder", "no such stage"),
    ("image", "Dockerfile", "COPY src", "COPY source", "no such file"),
    ("image", "Dockerfile.dockerignore", "!src\n", "", "keeps it out"),
    ("image", "Dockerfile", "postgres,otel", "postgresql,otel", "no extra postgresql"),
    ("image", "Dockerfile", "--require-hashes ", "", "a lock without --require-hashes"),
    ("image", "Dockerfile", "install --no-deps --require", "install --require", "without --no-deps"),
    ("image", "Dockerfile", "--no-build-isolation ", "", "without --no-build-isolation"),
    ("image", "Dockerfile", " \\\n    && python -m pip --python /opt/pollux check", "", "no pip check"),
    ("image", "Dockerfile", "/image.lock", "/images.lock", "no lock requirements/images.lock"),
    # compose
    ("compose", "compose/postgres.yaml", "restart: unless-stopped", "restarts: always", "restarts"),
    ("compose", "compose/postgres.yaml", "secrets: [api-token, db-password]", "secrets: [api-token]", "db-password"),
    ("compose", "compose/redis.yaml", "secrets: [api-token]", "secrets: []", "api-token is named in the config"),
    ("compose", "compose/redis.yaml", "stop_grace_period: 45s", "stop_grace_period: 30s", "stop_grace_period"),
    ("compose", "compose/redis.yaml", '"127.0.0.1:8060:8060"', '"8060:8060"', "beyond this machine"),
    ("compose", "compose/redis.yaml", "redis://redis:6379/0", "redis://cache:6379/0", "the store is on cache"),
    ("compose", "compose/postgres.yaml", "@postgres:5432", "@db:5432", "the store is on db"),
    ("compose", "compose/redis.yaml", "POLLUX_HOST", "POLLUX_HSOT", "POLLUX_HSOT is no option"),
    ("compose", "compose/redis.yaml", "command: [worker,", "command: [workers,", "no command 'workers'"),
    ("compose", "compose/redis.yaml", "[worker, --no-watch", "[worker, --leader-tl, 5s, --no-watch", "--leader-tl"),
    ("compose", "compose/redis.yaml", "data:/data", "dta:/data", "dta is nowhere declared"),
    ("compose", "compose/redis.yaml", "    healthcheck:", "    x-healthcheck:", "wait for ever"),
    ("compose", "compose/redis.yaml", 'POLLUX_PORT: "8060"', 'POLLUX_PORT: "8061"', "health check asks"),
    ("compose", "compose/redis.yaml", "read_only: true", "read_only: false", "may write"),
    # Kubernetes
    ("kubernetes", "kubernetes/serve.yaml", "replicas: 2", "replica: 2", "replica"),
    ("kubernetes", "kubernetes/serve.yaml", "replicas: 2", 'replicas: "two"', "two"),
    ("kubernetes", "kubernetes/serve.yaml", "path: /ready", "path: /health", "readinessProbe does not ask /ready"),
    ("kubernetes", "kubernetes/worker.yaml", "path: /live, port: http", "path: /live, port: web", "a port that"),
    ("kubernetes", "kubernetes/serve.yaml", "PeriodSeconds: 60", "PeriodSeconds: 30", "less than the 40 s"),
    ("kubernetes", "kubernetes/serve.yaml", "enableServiceLinks: false", "enableServiceLinks: true", "begin like ours"),
    ("kubernetes", "kubernetes/config.yaml", "grace: 25s", "grace: 2m", "terminationGracePeriodSeconds"),
    ("kubernetes", "kubernetes/config.yaml", "port: 8060", "port: 8061", "port of the config"),
    ("kubernetes", "kubernetes/config.yaml", "port: 9091", "port: 9092", "port of the metrics"),
    ("kubernetes", "kubernetes/config.yaml", "host: 0.0.0.0\n", "host: 127.0.0.1\n", "kubelet"),
    ("kubernetes", "kubernetes/config.yaml", "/etc/pollux-secret/store", "/etc/secret/store", "in no secret"),
    ("kubernetes", "kubernetes/config.yaml", "\n  name: pollux\n", "\n  name: polux\n", "no ConfigMap pollux"),
    ("kubernetes", "kubernetes/worker.yaml", "args: [worker,", "args: [wrker,", "no command 'wrker'"),
    ("kubernetes", "kubernetes/worker.yaml", "{name: tmp, mountPath: /tmp}", "{name: temp, mountPath: /tmp}", "temp"),
    ("kubernetes", "kubernetes/worker.yaml", "runAsNonRoot: true", "runAsNonRoot: false", "root"),
    ("kubernetes", "kubernetes/worker.yaml", "limits: {memory: 1Gi}", "limits: {}", "limit of memory"),
    ("kubernetes", "kubernetes/worker.yaml", "drop: [ALL]", "drop: [NET_RAW]", "more than it needs"),
    ("kubernetes", "kubernetes/serve.yaml", "targetPort: http", "targetPort: web", "no pod has a port web"),
    ("kubernetes", "kubernetes/network.yaml", "port: metrics", "port: numbers", "no pod has a port numbers"),
    ("kubernetes", "kubernetes/network.yaml", "podSelector: {matchLabels: {app.kubernetes.io/name: pollux}}",
     "podSelector: {matchLabels: {app.kubernetes.io/name: castor}}", "selects no pod"),
    ("kubernetes", "kubernetes/kustomization.yaml", "  - network.yaml\n", "", "the kustomization lists"),
    # systemd
    ("systemd", "systemd/pollux.service", "ProtectSystem=", "ProtectSytem=", "ProtectSytem: unknown"),
    ("systemd", "systemd/pollux.service", "ProtectSystem=strict\n", "", "ProtectSystem is missing"),
    ("systemd", "systemd/pollux.service", "Type=notify", "Type=simple", "Type=simple"),
    ("systemd", "systemd/pollux.service", "TimeoutStopSec=40s", "TimeoutStopSec=25s", "longer than the grace"),
    ("systemd", "systemd/pollux.service", "User=pollux", "User=root", "User=root"),
    ("systemd", "systemd/pollux.service", "pollux serve -c", "pollux sreve -c", "no command 'sreve'"),
    ("systemd", "systemd/pollux.service", "POLLUX_STORE=", "POLLUX_STOR=", "POLLUX_STOR is no option"),
    ("systemd", "systemd/pollux.service", "-HUP", "-USR1", "ExecReload"),
    # Prometheus and Grafana
    ("alerts", "prometheus/pollux.rules.yaml", "pollux_scheduler_leaders", "pollux_leaders", "no metric"),
    ("alerts", "prometheus/pollux.rules.yaml", "[15m]", "[15m", ""),
    ("alerts", "prometheus/pollux.rules.yaml", "> 50", "> 500", "PolluxQueueDeep: its threshold"),
    ("alerts", "prometheus/pollux.rules.yaml", "clamp_min(3 *", "clamp_min(4 *", "PolluxJobStale: its threshold"),
    ("alerts", "prometheus/pollux.rules.yaml", "_errors_total) >= 3", "_errors_total) >= 9", "Succeeds: its threshold"),
    ("alerts", "prometheus/pollux.rules.yaml", "alert: PolluxDeadLetters", "alert: Dead", "no alert PolluxDeadLetters"),
    ("alerts", "prometheus/pollux.rules.yaml", "pollux why", "pollux explain", "no command `pollux explain`"),
    ("alerts", "prometheus/pollux.rules.yaml", "        for: 1m\n", "        during: 1m\n", "no words of Prometheus"),
    ("alerts", "prometheus/pollux.rules.yaml", "max by (job, scheduler_version) (", "max by (job) (",
     "PolluxNobodyLeads: pollux_scheduler_leaders is of one version"),
    ("alerts", "prometheus/pollux.rules.yaml", "by (job, scheduler_version, priority) (", "by (job, priority) (",
     "PolluxQueueDeep: pollux_scheduler_queue_depth is of one version"),
    ("alerts", "prometheus/prometheus.yaml", "[pollux.rules.yaml]", "[rules.yaml]", "does not read the rules"),
    ("dashboard", "grafana/pollux.json", "pollux_scheduler_nodes{", "pollux_nodes{", "no metric pollux_nodes"),
    ("dashboard", "grafana/pollux.json", "(pollux_scheduler_nodes", "((pollux_scheduler_nodes", ""),
    ("dashboard", "grafana/pollux.json", '"id": 2,', '"id": 3,', "two panels have one id"),
    ("dashboard", "grafana/pollux.json", '=~\\"$job\\"', '=~\\"$jobs\\"', "no variable jobs"),
    ("dashboard", "grafana/pollux.json", '=~\\"$version\\"', '=~\\"$versions\\"', "no variable versions"),
    ("dashboard", "grafana/pollux.json", "max by (scheduler_version) (pollux_scheduler_leaders",
     "max(pollux_scheduler_leaders", "Leader: pollux_scheduler_leaders is of one version"),
    ("dashboard", "grafana/pollux.json", '"w": 8,', '"w": 9,', "lies upon another panel"),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "name", "text", "other", "words"), FAULTS)
def test_a_planted_fault_is_found(planted, rule, name, text, other, words):
    wrong = list(RULES[rule](planted(name, text, other)))
    assert any(words in each for each in wrong), wrong


def locked(name: str) -> dict[str, str]:
    """The packages of a lock, each with its pin, its marker and its hashes."""
    blocks = re.split(r"\n(?=\S)", (ROOT / "requirements" / name).read_text().rstrip())
    return {block.partition(" ")[0]: block for block in blocks}


def test_the_lock_of_the_image_pins_what_was_tested():
    image, tested = locked("image.lock"), locked("test.lock")
    assert image, "an empty lock"
    assert {name: block for name, block in image.items() if tested.get(name) != block} == {}


def test_the_locks_hold_all_that_the_image_installs():
    """The package with the extras of the image, and whatever that requires, as it is installed for the tests."""
    pins = {**locked("run.lock"), **locked("image.lock")}
    names = {pin.partition("==")[0] for pin in pins}
    extras = re.search(r"\.\[([a-z,]+)\]", (DEPLOY / "Dockerfile").read_text())[1]
    waiting, seen, missing = [Requirement(f"pollux-scheduler[{extras}]")], set(), []
    while waiting:
        now = waiting.pop()
        name = canonicalize_name(now.name)
        if (name, frozenset(now.extras)) in seen:
            continue
        seen.add((name, frozenset(now.extras)))
        if name not in names and name != "pollux-scheduler":
            missing.append(name)
        waiting += [
            each
            for each in map(Requirement, requires(name) or [])
            if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in ("", *now.extras))
        ]
    assert missing == []
    backend = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    assert {Requirement(each).name for each in backend} <= names, "it is built without isolation"


def test_nobody_is_told_to_keep_a_label_that_rules_and_dashboard_expect_to_be_renamed():
    """With `honor_labels` there is no `exported_instance`: all jobs would be one to the rules."""
    rules = (DEPLOY / "prometheus" / "pollux.rules.yaml").read_text()
    assert "by (exported_instance)" in rules
    pages = [path for path in (*(ROOT / "docs").rglob("*.md"), *DEPLOY.rglob("*")) if path.is_file()]
    assert [path.name for path in pages if "honor_labels: true" in path.read_text()] == []


def test_a_command_is_judged_by_the_programs_own_parser():
    assert bad_command(["serve", "--no-watch", "--seats", "5"]) == ""
    assert "--seets" in bad_command(["serve", "--seets", "5"])
    assert bad_command(["surf"]) == "there is no command 'surf'"


def test_a_query_is_judged_by_its_form_and_by_what_it_asks_for():
    assert list(bad_query("max(pollux_scheduler_leaders) == 0")) == []
    assert list(bad_query("max(pollux_scheduler_leaders")) != []
    assert list(bad_query("max(pollux_scheduler_leader)")) == ["there is no metric pollux_scheduler_leader"]
    assert list(bad_query("vector(1)")) == ["vector(1): it asks for no metric of ours"]


def test_a_number_of_one_version_is_looked_at_by_version():
    """Whatever is told of a version alone; what is of all of them, of a node or of a job is not."""
    joined = "pollux_scheduler_leaders * on (job, instance) group_left (scheduler_version) pollux_build_info"
    wrong = "pollux_scheduler_leaders is of one version: without scheduler_version another one hides it"
    assert list(hidden_versions("max(pollux_scheduler_leaders) == 0")) == [wrong]
    assert list(hidden_versions(f"max by (job) ({joined}) == 0")) == [wrong]
    assert list(hidden_versions(f"max by (job, scheduler_version) ({joined}) == 0")) == []
    assert list(hidden_versions(f"max(sum by (scheduler_version) ({joined}))")) == []
    assert list(hidden_versions("absent(pollux_scheduler_leaders)")) == []
    for of_all in ("dead_letter_depth", "runs_dead_total", "worker_pool_size"):
        assert list(hidden_versions(f"max(pollux_scheduler_{of_all})")) == []
    assert list(hidden_versions("max by (exported_instance) (pollux_monitor_poll_staleness_seconds)")) == []
