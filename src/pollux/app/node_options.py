"""Options of `Pollux` in people's units, converted to those of the runtime."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypedDict

from pollux.errors import InvalidInput, did_you_mean, foreign_word
from pollux.runtime import RuntimeOptions
from pollux.units import duration_ms, size_bytes

Duration = str | float
_OF_THE_APP = (
    "store",
    "name",
    "release",
    "scheduler_version",
    "actor",
    "allow_exec",
    "http_per_target",
    "http_allow_networks",
)


class NodeOptions(TypedDict, total=False):
    """What may be said about a node; what is left out has the default named in `options_of`."""

    seats: int
    lease: Duration
    leader_ttl: Duration
    leader_renew: Duration
    leader_key: str
    grace: Duration
    long_poll: Duration
    min_poll: Duration
    batch: int
    turn_rest: Duration
    ready_max: int
    keep_history: int
    history_age: Duration
    keep_dead: int
    dead_age: Duration
    keep_audit: int
    child_memory: str | int
    traces_endpoint: str
    traces_sample: float
    traces_namespace: str
    heartbeat_url: str
    heartbeat_every: Duration
    metrics_prefix: str
    metrics_port: int
    metrics_host: str
    health_queue_depth: int
    health_staleness: Duration
    health_intervals: int
    health_wait: Duration
    health_loop_lag: Duration
    plans: bool
    runs: bool


def options_of(
    *,
    seats: int = 10,
    lease: Duration = "30s",
    leader_ttl: Duration = "15s",
    leader_renew: Duration | None = None,
    leader_key: str = "",
    grace: Duration = "25s",
    long_poll: Duration = "30s",
    min_poll: Duration | None = None,
    batch: int = 1_000,
    turn_rest: Duration | None = None,
    ready_max: int = 1_000_000,
    keep_history: int = 100,
    history_age: Duration = "7d",
    keep_dead: int = 10_000,
    dead_age: Duration = "90d",
    keep_audit: int = 100_000,
    child_memory: str | int = "1 GB",
    plans: bool = True,
    runs: bool = True,
    **others: Any,
) -> RuntimeOptions:
    """The runtime's options; a third of the leader's time to live is the default for renewing it."""
    alongside = _alongside(others)
    _refuse(others)
    ttl_ms = duration_ms(leader_ttl)
    return RuntimeOptions(
        seats=seats,
        lease_ms=duration_ms(lease),
        leader_ttl_ms=ttl_ms,
        leader_renew_ms=ttl_ms // 3 if leader_renew is None else duration_ms(leader_renew),
        leader_key=leader_key,
        grace_ms=duration_ms(grace),
        long_poll_ms=duration_ms(long_poll),
        min_poll_ms=None if min_poll is None else duration_ms(min_poll),
        batch=batch,
        turn_rest_ms=None if turn_rest is None else duration_ms(turn_rest),
        ready_max=ready_max,
        keep_per_job=keep_history,
        keep_ms=duration_ms(history_age),
        dead_max=keep_dead,
        dead_ms=duration_ms(dead_age),
        log_max=keep_audit,
        child_memory=size_bytes(child_memory),
        **alongside,
        plans=plans,
        runs=runs,
    )


def _alongside(given: dict[str, Any]) -> dict[str, Any]:
    """Those of what goes along with a node, taken out: as they are, and times."""
    names = (
        *("traces_endpoint", "traces_sample", "traces_namespace", "heartbeat_url"),
        *("metrics_prefix", "metrics_port", "metrics_host", "health_queue_depth", "health_intervals"),
    )
    taken = {name: given.pop(name) for name in names if name in given}
    for name in ("heartbeat_every", "health_staleness", "health_wait", "health_loop_lag"):
        if name in given:
            taken[f"{name}_ms"] = duration_ms(given.pop(name))
    return taken


def _refuse(unknown: Iterable[str]) -> None:
    for name in unknown:
        if name == "tz" or foreign_word(name, ["tz"]):
            cure = 'it belongs to a schedule: cron("0 6 * * *", tz="Europe/Berlin")'
            raise InvalidInput(f"unknown option {name!r}", cure=cure)
        known = [*_OF_THE_APP, *sorted(NodeOptions.__annotations__)]
        raise InvalidInput(f"unknown option {name!r}{did_you_mean(name, known)}", cure=f"known are {', '.join(known)}")
