"""Descriptions of all options, one line each, the effective options, and the example file made from them.

Tests check that no description is missing.  Backticks mark what can be written; a tool that shows plain text removes
them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from pollux.config.jobs import JOB_KEYS
from pollux.config.settings import DEFAULT, OPTIONS, Config, Option
from pollux.secrets import hide
from pollux.units import format_ms

# Every key of a job in a file; the keyword of `@app.job` and `app.add` has the same name unless it is a schedule.
JOB = {
    "id": "its name for good: 1 to 200 letters, digits and `. _ : / -`; in code the function's name if left out",
    "python": "`module:function`, the handler; modules next to the file are found",
    "http": '`"https://..."` or `{url: ..., ...}`: polls a URL, see [http](http.md); in code `app.add("http", ...)`',
    "exec": '`["df", "-h"]` or `{argv: [...], ...}`: runs a command, see [exec](isolation.md); `app.add("exec", ...)`',
    "interval": 'every so long: `30s`, `1m30s`, `2h`; in code `every("30s")`',
    "cron": '`"0 6 * * *"`, in quotes; in code `cron("0 6 * * *", tz=...)`',
    "at": "once, at a moment with its offset; in code `once(at=...)`",
    "once": "`true`: once, as soon as it is there; in code `once()`",
    "event": "`true`: never by the clock; in code `on_event()`",
    "tz": "the time zone of `cron`; UTC if left out",
    "start": "the first instant of an `interval`",
    "spread": "`false` puts an `interval` on the full minute or hour",
    "name": "a title for people",
    "params": "the handler's arguments; their names are checked against its signature, their types are not",
    "priority": "`high`, `normal` (default) or `low`",
    "group": "a word; a group is paused together, and `groups:` may hold its defaults",
    "target": "what it talks to (a host, a device); a target is paused together",
    "timeout": "how long an attempt may take; 1h if left out",
    "retry": "a number of attempts, `false` for one, or `{attempts: 5, base: 5s, factor: 2, max: 5m, jitter: 0.2}`; "
    "of a recurring job failures count over firings, and only what falls before the next one is tried again",
    "overlap": "`skip` (default), `queue`, `cancel` or `allow`: see [schedules](schedules.md)",
    "misfire": "`one` (default), `skip` or `all`: see [schedules](schedules.md)",
    "isolate": "`suspect` (default), `process` or `never`: see [isolation](isolation.md)",
    "enabled": "`false` keeps the job, but its due times do not come",
    "tags": "words to choose jobs by: `pollux jobs --tag`",
    "source_id": "its id in the system it was imported from",
}
# Every option but jobs, by its path in the file.
SETTINGS = {
    "store": "where everything is kept",
    "name": "the file's name as a source of jobs; else its file name",
    "app": "`module:attribute` of a `Pollux` in your own code",
    "plans": "`false`: run what others plan, as `pollux worker` does, with the API of `serve`",
    "reload": "`false`: do not read the file again when it changes; SIGHUP and `pollux reload` still do, see "
    "[reload](reload.md)",
    "job_timeout": "how long an attempt may take, for jobs of the file that set no `timeout`; by their handler",
    "pool.seats": "how many runs go on at the same time",
    "pool.lease": "after this long without a sign of life a run is another worker's",
    "pool.grace": "how long handlers may finish after a SIGTERM or Ctrl-C",
    "pool.long_poll": "how long a claim waits for work",
    "pool.min_poll": "how often to look at least; by the kind of store",
    "pool.batch": "how many runs are claimed at once",
    "pool.child_memory": "how much memory each child process may use: see [isolation](isolation.md)",
    "leader.ttl": "after this long a silent leader is replaced",
    "leader.renew": "how often it renews; a third of `leader.ttl`",
    "leader.key": "the name of the leadership: a node that names another one is refused, see "
    "[many machines](many-machines.md)",
    "redis.prefix": "prefix of all keys on a [Redis](stores/redis.md), as `?prefix=` of the store's URL",
    "durability": "`required`: a store that leaves it open when what it has answered comes to a disk is refused: "
    "memory, [Redis](stores/redis.md#the-server) without an append-only file or with `appendfsync no` (with `everysec` "
    "a power cut may still cost a second), [PostgreSQL](stores/postgres.md) that awaits no disk",
    "release": "a number that grows with your releases: an older one changes nothing of a newer one's jobs, see "
    "[many machines](many-machines.md)",
    "scheduler_version": "which deployment on this store it belongs to, see [versions](versions.md)",
    "allow_exec": "`true` lets jobs run commands: see [isolation](isolation.md)",
    "history.keep": "finished runs kept of each job, and as many that failed",
    "history.age": "and for how long",
    "history.dead": "dead letters kept, the newest",
    "history.dead_age": "and for how long",
    "history.audit": "lines of the audit log kept, the newest",
    "log.level": "what `serve` and `worker` write: `debug` (every run), `info`, `warning` or `error`",
    "server.enabled": "`false`: no HTTP API, and no socket for commands on this machine either",
    "server.host": "where the HTTP API listens; `localhost` is 127.0.0.1 and ::1, see [security](security-api.md)",
    "server.port": "and on which port; a `worker` has the API only if this is named",
    "server.hosts": "names by which it may be called, as well as `localhost`, its address and `server.host`; none",
    "server.tls": "`{cert: server.pem, key: server.key}`: what it needs to listen beyond this machine; none",
    "server.behind_proxy": "`true`: a proxy in front encrypts, so it may listen beyond this machine without",
    "server.proxies": "with `behind_proxy`: networks of the proxies whose `X-Forwarded-...` headers are believed",
    "server.token": "an admin's token in addition to those in the store, as `${file:...}` or `${env:...}`; none",
    "server.token_file": "where the first token is written at the first start; next to the store",
    "server.socket": "the unix socket for commands on this machine, or `false`; next to the store",
    "server.rate": "requests a second that one token may send, twice as many at once; `0`: any number",
    "server.connections": "connections at the same time",
    "server.requests": "requests at work at the same time",
    "http.per_target": "polls of one target that go on at the same time in a process",
    "http.allow_networks": "inside networks that jobs which came by API may poll; none",
    "traces.endpoint": "of an OpenTelemetry collector (OTLP over HTTP), like `http://collector:4318`: see "
    "[traces](traces.md); runs have no traces",
    "traces.sample": "the share of runs that have a trace, 0 to 1; the same on all nodes",
    "traces.namespace": "distinguishes deployments with jobs of the same ids; the same on all nodes; none",
    "heartbeat.url": "called by the leader while health is good: see [deploy](deploy.md#heartbeat); no URL is called",
    "heartbeat.every": "and how often",
    "metrics.prefix": "what names of [metrics](metrics.md) begin with; `crawler` or `pulse` keep old dashboards",
    "metrics.port": "serves `/metrics` without a token: see [metrics](metrics.md); no port does",
    "metrics.host": "where that port listens; beyond this machine only if it is named",
    "health.queue_depth": "ready runs beyond which [health](health.md) is degraded",
    "health.staleness": "a last success no older than this is fresh, however short the interval",
    "health.intervals": "and so many planned intervals; a job that never succeeded is stale once it failed that often",
    "health.wait": "how long a due job or a ready run may wait",
    "health.loop_lag": "how long the event loop may be blocked",
    "log.format": "`text` for people or `json` for machines: see [logs](logs.md)",
}


_PASSWORD = re.compile(r"(?<=://)([^/@:]*):(?!\$\{)[^/@]*@")
_PASSWORD_OPTION = re.compile(r"(?<=password=)(?!\$\{)[^&]*")


class EffectiveOption(Struct, frozen=True):
    option: str  # the path in the file: "pool.seats"
    value: str
    default: str
    origin: str  # default, file:line, environment NAME, argument
    variable: str  # the environment variable that sets it
    meaning: str
    live: str = ""  # the live value for all nodes, if the environment or an argument overrides it here

    @property
    def is_set(self) -> bool:
        return self.origin != DEFAULT


def effective_options(config: Config, overruled: Mapping[str, str] | None = None) -> list[EffectiveOption]:
    """Return one line for each option, in the order of the file; `overruled`: live values that do not apply here."""
    usual = Config()
    return [
        EffectiveOption(
            option=option.path,
            value=config.written.get(option.path) or hide(shown(option, getattr(config, option.field))),
            default=shown(option, getattr(usual, option.field)),
            origin=config.origins.get(option.path, DEFAULT),
            variable=option.variables[0],
            meaning=plain(SETTINGS.get(option.path, "")),
            live=(overruled or {}).get(option.path, ""),
        )
        for option in OPTIONS
    ]


def shown(option: Option, value: Any) -> str:
    """Return a value as it is written in a file; for one that is not set, what applies instead."""
    if value is None or value == "":
        _, has_words, words = plain(SETTINGS.get(option.path, "")).rpartition("; ")
        return f"({words})" if has_words else "(none)"
    if option.path == "server.token":
        return "***"
    if option.path == "heartbeat.url":
        return f"{'/'.join(str(value).split('/')[:3])}/***"  # knowing it is enough to call it
    if option.field.endswith("_ms"):
        return format_ms(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return without_password(str(value))


def without_password(url: str) -> str:
    """Return the URL without its password; a reference to one stays as it is written."""
    return _PASSWORD_OPTION.sub("***", _PASSWORD.sub(r"\1:***@", url))


def plain(meaning: str) -> str:
    """Return the description without backticks."""
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", meaning).replace("`", "")


# What to write where the default is empty.
SETTING_EXAMPLES: dict[str, str] = {
    "name": "shop",
    "app": "monitor:app",
    "job_timeout": "5m",
    "pool.min_poll": "1s",
    "leader.renew": "5s",
    "leader.key": "shop-production",
    "redis.prefix": "crawler",
    "http.allow_networks": "[10.0.0.0/8]",
    "server.hosts": "[pollux.example]",
    "server.tls": "{cert: server.pem, key: server.key}",
    "server.token": "${env:POLLUX_ADMIN_TOKEN}",
    "server.token_file": "/var/lib/pollux/admin.token",
    "server.socket": "/run/pollux/pollux.sock",
    "traces.endpoint": "http://127.0.0.1:4318",
    "traces.namespace": "shop",
    "heartbeat.url": "https://example.com/ping/shop",
    "metrics.port": "9091",
}
# The job of the file, which needs no user code: it asks the machine for its name.
JOB_OF_THE_FILE: dict[str, str] = {"id": "home", "python": "platform:node", "interval": "30s"}
JOB_EXAMPLES: dict[str, str] = {
    "http": '"https://example.com/health"',
    "exec": '["df", "-h"]',
    "isolate": "process",
    "cron": '"0 6 * * *"',
    "at": '"2030-01-31T09:00:00+01:00"',
    "once": "true",
    "event": "true",
    "tz": "Europe/Berlin",
    "start": '"2030-01-31T09:00:00+01:00"',
    "spread": "false",
    "name": "The home page",
    "params": "{}",
    "priority": "high",
    "group": "edge",
    "target": "db-1",
    "timeout": "30s",
    "retry": "{attempts: 5, base: 5s, factor: 2, max: 5m, jitter: 0.2}",
    "overlap": "queue",
    "misfire": "skip",
    "enabled": "false",
    "tags": "[fast, eu]",
    "source_id": "crm-42",
}
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9._:/-]*(?<!:)")


def example_config() -> str:
    """Return the whole file as text."""
    return "\n".join(_example_lines()) + "\n"


def _example_lines() -> Iterator[str]:
    yield "# A config of Pollux: `pollux check FILE` looks for mistakes, `pollux serve -c FILE` starts it."
    yield "# Every option is here.  Remove the # of a line like #name: to set it; lines without # show the defaults."
    section = ""
    for option in OPTIONS:
        above, _, key = option.path.rpartition(".")
        if above != section:
            yield from ("", f"{above}:") if above else ()
            section = above
        indent = "  " if above else ""
        if not above:
            yield ""
        yield f"{indent}# {plain(SETTINGS[option.path])}"
        yield f"{indent}{_setting(option, key)}"
    yield from ("", "# defaults of all jobs: any option of a job", "#defaults: {timeout: 30s, retry: 3}")
    yield from ("", "# what the jobs of a group have in common", "#groups: {edge: {defaults: {timeout: 10s}}}")
    yield from ("", "jobs:")
    indent = "  - "
    for key in JOB_KEYS:
        yield f"{indent}# {plain(JOB[key])}"
        indent = "    "
        yield (
            f"{indent}{key}: {JOB_OF_THE_FILE[key]}"
            if key in JOB_OF_THE_FILE
            else f"{indent}#{key}: {JOB_EXAMPLES[key]}"
        )


def _setting(option: Option, key: str) -> str:
    value = getattr(Config(), option.field)
    if value is None or value == "":
        return f"#{key}: {SETTING_EXAMPLES[option.path]}"
    return f"{key}: {format_ms(value) if option.field.endswith('_ms') else _written(value)}"


def _written(value: Any) -> str:
    """Return the value as YAML reads it back."""
    if isinstance(value, str) and _PLAIN.fullmatch(value):
        return value
    return json.dumps(value, ensure_ascii=False)
