"""Config warnings: secrets written out or too short to be hidden, variables without effect.

`pollux check`, `doctor` and a start print them; nothing is refused because of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from pollux.config.settings import ENVIRONMENT, OPTIONS, Config
from pollux.errors import InvalidInput
from pollux.model import Job
from pollux.secrets import Secrets, has_reference, looks_secret

WARNINGS_MAX = 100


def config_warnings(config: Config, environ: Mapping[str, str]) -> list[InvalidInput]:
    """Return every warning with its place, without the values."""
    found: list[InvalidInput] = []
    if _has_password(config.written.get("store", config.store)):
        where = config.origins["store"]
        cure = "write ${env:NAME} in its place"
        if where.startswith(ENVIRONMENT):
            cure = "any user who can see the environment of the process can read it: write ${file:/path} in its place"
        found.append(InvalidInput("store: a password is written out", where=where, cure=cure))
    return [*found, *warnings_of_jobs(config, environ)][:WARNINGS_MAX]


def warnings_of_jobs(config: Config, environ: Mapping[str, str]) -> list[InvalidInput]:
    secrets = Secrets(environ=environ, folder=Path(config.path).resolve().parent if config.path else None)
    found: list[InvalidInput] = []
    for job in config.jobs:
        where = f"{config.places.get(job.id, config.path)}: job {job.id!r}: params"
        found += [warning.at(where) for warning in _written_out(job.params)]
        found += [warning.at(where) for warning in secrets.warnings(job.params)]
        if len(found) > WARNINGS_MAX:
            break
    return found[:WARNINGS_MAX]


def with_jobs_of_code(config: Config, jobs: Iterable[Job]) -> Config:
    """Return the configuration with these jobs added, the app's own included."""
    jobs = tuple(jobs)
    places = {job.id: config.app for job in jobs} | config.places
    return msgspec.structs.replace(config, jobs=jobs, places=places)


def _written_out(value: Any, path: str = "", *, is_secret: bool = False) -> Iterator[InvalidInput]:
    """Yield texts under names that announce a secret, and passwords in URLs, that are not references."""
    if isinstance(value, dict):
        for key, item in value.items():
            below = f"{path}.{key}" if path else key
            yield from _written_out(item, below, is_secret=looks_secret(key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _written_out(item, f"{path}[{index}]", is_secret=is_secret)
    elif isinstance(value, str) and not has_reference(value) and ((is_secret and value) or _has_password(value)):
        yield InvalidInput("a secret is written out", where=path, cure="write ${env:NAME} or ${file:PATH} in its place")


def _has_password(text: str) -> bool:
    if "://" not in text or has_reference(text):
        return False
    try:
        return bool(urlsplit(text).password)
    except ValueError:
        return False


# The beginning of a name, and what it does not do.
NOT_YET = {
    "SCHEDULER_CB_": "there are no circuit breakers yet; a failing target is tried by the jobs' `retry`",
    "ADAPTIVE_POLLING_": "there are no adaptive intervals yet; every job keeps the interval that it names",
}
# What Kubernetes sets for every container of a Service: one called pollux becomes POLLUX_PORT, with this as a value.
_LINK = re.compile(r"(tcp|udp|sctp)://\S+:\d+")


def is_service_link(name: str, value: str) -> bool:
    return name.endswith("_PORT") and _LINK.fullmatch(value) is not None


def ineffective_variables(environ: Mapping[str, str]) -> str:
    """Return one line about all variables that are set and do nothing; empty if there are none."""
    found = []
    for start, means in NOT_YET.items():
        names = sorted(name for name in environ if name.startswith(start))
        if names:
            found.append(f"without effect: {', '.join(names)} ({means})")
    for name, ours in _MISSPELT.items():
        if (value := environ.get(name)) and not is_service_link(name, value):
            found.append(f"without effect: {name} (write {ours})")
    return "; ".join(found)


def _misspelt() -> dict[str, str]:
    """Return names like `POLLUX_POOL_SEATS`, close to the valid `POLLUX_SEATS` and `POLLUX_POOL__SEATS`."""
    known = {name for option in OPTIONS for name in option.variables}
    flat = {name.replace("__", "_"): option.variables for option in OPTIONS for name in option.variables}
    return {name: " or ".join(names[:2]) for name, names in flat.items() if name not in known}


_MISSPELT = _misspelt()
