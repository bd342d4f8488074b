"""Warning about variables that do nothing here although their name suggests it; written once, at the start.

Variables of older schedulers that have an effect are in the table of options (`also`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from pollux.config.settings import OPTIONS

# The beginning of a name, and what it does not do.
NOT_YET = {
    "SCHEDULER_CB_": "there are no circuit breakers yet; a failing target is tried as the jobs' `retry` says",
    "ADAPTIVE_POLLING_": "there are no adaptive intervals yet; every job keeps the interval that it names",
}
# What Kubernetes sets for every container of a Service: one called pollux becomes POLLUX_PORT, with this as a value.
_LINK = re.compile(r"(tcp|udp|sctp)://\S+:\d+")


def is_service_link(name: str, value: str) -> bool:
    return name.endswith("_PORT") and _LINK.fullmatch(value) is not None


def unheeded(environ: Mapping[str, str]) -> str:
    """Return one line about all variables that are set and do nothing; empty if there are none."""
    told = []
    for start, means in NOT_YET.items():
        names = sorted(name for name in environ if name.startswith(start))
        if names:
            told.append(f"without effect: {', '.join(names)} ({means})")
    for name, ours in _MISSPELT.items():
        if (value := environ.get(name)) and not is_service_link(name, value):
            told.append(f"without effect: {name} (write {ours})")
    return "; ".join(told)


def _misspelt() -> dict[str, str]:
    """Return names like `POLLUX_POOL_SEATS`, close to the valid `POLLUX_SEATS` and `POLLUX_POOL__SEATS`."""
    known = {name for option in OPTIONS for name in option.variables}
    flat = {name.replace("__", "_"): option.variables for option in OPTIONS for name in option.variables}
    return {name: " or ".join(names[:2]) for name, names in flat.items() if name not in known}


_MISSPELT = _misspelt()
