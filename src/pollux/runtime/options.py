"""Options of a node, checked when they are made."""

from __future__ import annotations

import re

from msgspec import Struct

from pollux.errors import InvalidInput, check_number
from pollux.model import check_term
from pollux.outcome import CRASHES_MAX
from pollux.runtime.isolation import CHILD_MEMORY, CHILD_MEMORY_MIN
from pollux.store.contract import BATCH_MAX, FEED_MAX, LOSSES_MAX, READY_MAX

SEATS_MAX = 10_000
LEASE_MIN_MS = 300
HEARTBEAT_MIN_MS = 1_000


class RuntimeOptions(Struct, frozen=True, kw_only=True):
    """`plans`: take part in leading; `runs`: claim and run.  Times are milliseconds."""

    seats: int = 10
    lease_ms: int = 30_000
    leader_ttl_ms: int = 15_000
    leader_renew_ms: int = 5_000
    leader_key: str = ""  # the name of the leadership; a node that names another one is refused
    grace_ms: int = 25_000  # time for handlers to finish when the node drains
    long_poll_ms: int = 30_000
    min_poll_ms: int | None = None  # None: 100 where the store waits, else 1000
    batch: int = BATCH_MAX  # runs in one claim at most
    turn_rest_ms: float | None = None  # None: by how much is due, 20 or 50; 5 or 20 where writes are cheap
    beat_ms: int = 15_000
    beat_ttl_ms: int = 45_000
    ready_max: int = READY_MAX
    feed_max: int = FEED_MAX
    losses_max: int = LOSSES_MAX
    crashes_max: int = CRASHES_MAX
    child_memory: int = CHILD_MEMORY  # bytes that a child process may use
    unchanged_ms: int = 120_000  # polls that changed nothing are pruned after this
    keep_ms: int = 7 * 86_400_000
    keep_per_job: int = 100
    dead_max: int = 10_000  # dead letters that are kept, the newest,
    dead_ms: int = 90 * 86_400_000  # and for how long
    log_max: int = 100_000  # lines of the audit log
    traces_endpoint: str = ""  # of an OpenTelemetry collector; "": from the standard variables, else no traces
    traces_sample: float = 1.0  # the share of runs that have one
    traces_namespace: str = ""  # distinguishes deployments with jobs of the same ids
    heartbeat_url: str = ""  # called by the leader while health is good
    heartbeat_every_ms: int = 60_000
    metrics_prefix: str = "pollux"
    metrics_port: int | None = None  # serves /metrics without a token; None: no such port
    metrics_host: str = "127.0.0.1"
    health_queue_depth: int = 50  # ready runs; health warns above this and the limits below
    health_staleness_ms: int = 5_000
    health_intervals: int = 3  # planned ones without a success
    health_wait_ms: int = 60_000
    health_loop_lag_ms: int = 1_000
    plans: bool = True
    runs: bool = True
    isolates: bool = True  # False: every handler runs in the node, whatever its job says (fake clocks)
    renews_apart: bool = True  # False: leases are renewed on the main loop (fake clocks, simulation)

    def __post_init__(self) -> None:
        check_seats(self.seats)
        check_term(ttl_ms=self.leader_ttl_ms, renew_ms=self.leader_renew_ms)
        self._at_least("lease", self.lease_ms, LEASE_MIN_MS)
        for name in ("grace_ms", "long_poll_ms", "min_poll_ms", "turn_rest_ms", "unchanged_ms", "keep_ms", "dead_ms"):
            self._at_least(name.removesuffix("_ms"), getattr(self, name), 0)
        for name in (
            "beat_ms",
            "batch",
            "ready_max",
            "feed_max",
            "losses_max",
            "crashes_max",
            "keep_per_job",
            "dead_max",
            "log_max",
            "health_intervals",
        ):
            self._at_least(name.removesuffix("_ms"), getattr(self, name), 1)
        if self.batch > BATCH_MAX:
            raise InvalidInput(f"{self.batch} is too much", where="batch", cure=f"use at most {BATCH_MAX}")
        self._at_least("child_memory", self.child_memory, CHILD_MEMORY_MIN)
        self._at_least("heartbeat_every", self.heartbeat_every_ms, HEARTBEAT_MIN_MS)
        if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]{0,49}", self.metrics_prefix):
            raise InvalidInput(f"{self.metrics_prefix!r} cannot begin a name", where="metrics_prefix", cure="a word")
        for name in ("traces_endpoint", "heartbeat_url"):
            if getattr(self, name) and not getattr(self, name).startswith(("http://", "https://")):
                raise InvalidInput("it is no URL of the web", where=name, cure="write it like https://host:port/path")
        check_number("traces_sample", self.traces_sample)
        if not 0 <= self.traces_sample <= 1:
            raise InvalidInput(f"{self.traces_sample} is no share", where="traces_sample", cure="give 0 to 1")
        if self.beat_ttl_ms < 2 * self.beat_ms:
            raise InvalidInput(
                f"a node that beats every {self.beat_ms} ms cannot count as dead after {self.beat_ttl_ms} ms",
                where="beat",
                cure="let `beat_ttl_ms` be at least twice `beat_ms`",
            )

    @staticmethod
    def _at_least(name: str, value: float | None, least: int) -> None:
        if value is None:
            return
        check_number(name, value)
        if value < least:
            raise InvalidInput(f"{value} is too little", where=name, cure=f"use at least {least}")


def check_seats(seats: int) -> int:
    check_number("pool.seats", seats)
    if not 1 <= seats <= SEATS_MAX:
        raise InvalidInput(f"{seats} seats are not possible", where="pool.seats", cure=f"use 1 to {SEATS_MAX}")
    return seats
