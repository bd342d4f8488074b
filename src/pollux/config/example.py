"""Example config: a commented file with every option, made from the tables that read it, so it cannot go stale.

The lines without `#` are the defaults and one job; with the `#` removed every line is valid as well.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from pollux.config.descriptions import JOB, SETTINGS
from pollux.config.effective import plain
from pollux.config.jobs import JOB_KEYS
from pollux.config.settings import OPTIONS, Config, Option
from pollux.units import format_ms

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
    return "\n".join([*_head(), *_settings(), *_shared(), *_jobs()]) + "\n"


def _head() -> Iterator[str]:
    yield "# A config of Pollux: `pollux check FILE` looks for mistakes, `pollux serve -c FILE` starts it."
    yield "# Every option is here.  Take the # of a line like #name: away to set it; what has none holds anyway."


def _settings() -> Iterator[str]:
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


def _shared() -> Iterator[str]:
    yield ""
    yield "# what jobs have in common unless they say otherwise: any option of a job"
    yield "#defaults: {timeout: 30s, retry: 3}"
    yield ""
    yield "# what the jobs of a group have in common"
    yield "#groups: {edge: {defaults: {timeout: 10s}}}"


def _jobs() -> Iterator[str]:
    yield from ("", "jobs:")
    lines: list[str] = []
    for key in JOB_KEYS:
        lines.append(f"# {plain(JOB[key])}")
        lines.append(f"{key}: {JOB_OF_THE_FILE[key]}" if key in JOB_OF_THE_FILE else f"#{key}: {JOB_EXAMPLES[key]}")
    yield f"  - {lines[0]}"
    yield from (f"    {line}" for line in lines[1:])
