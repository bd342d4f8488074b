"""Which variables of older schedulers are known, and do nothing yet?  Said once, at the start.

Those that do something stand beside our own in the table of options (`also`).
"""

from __future__ import annotations

from collections.abc import Mapping

# The beginning of a name, and what it does not do.
NOT_YET = {
    "SCHEDULER_CB_": "there are no circuit breakers yet; a failing target is tried as the jobs' `retry` says",
    "ADAPTIVE_POLLING_": "there are no adaptive intervals yet; every job keeps the interval that it names",
}


def unheeded(environ: Mapping[str, str]) -> str:
    """One line about all variables that are set and do nothing; empty if there are none."""
    told = []
    for start, means in NOT_YET.items():
        names = sorted(name for name in environ if name.startswith(start))
        if names:
            told.append(f"without effect: {', '.join(names)} ({means})")
    return "; ".join(told)
