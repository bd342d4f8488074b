"""The gate: ordered checks of whether a run may run; the first failing one gives the reason and the key of its cure.

A held run is parked under that key and checked again at the event of the key, never by a scan of all held runs:

    stop:all, stop:job:x, stop:group:x, stop:target:x     the pause ends
    previous:<job>                                        another run of the job ends
    declared:<job>                                        the job is declared again
    handler:<name>                                        a node with the handler sends a heartbeat
    unreadable:<job>                                      the leader can decode the job again

Pauses do not hold a forced run: a person requested it now.

A scheduled run starts only if no other run of its job is live, unless they may overlap (`begins_alone`).  The store
checks that in the write that releases the run; if another one is live, the run waits for the next end.

`HeldRuns` keeps the held runs: to be checked now, later at a time, or parked under a key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from heapq import heappop, heappush

from msgspec import Struct
from msgspec.structs import replace

from pollux.model import Cause, Drained, Job, Node, Note, Overlap, Run, drained_of, stop_key

UNDECLARED = "no node declares it"
RETIRED = "no node declares its job any more"
UNREADABLE = "the leader cannot read its job"
PREVIOUS = "previous"  # the kind of the key under which a firing waits for another run of its job
STOP_ALL = stop_key("all")


class Held(Struct, frozen=True):
    """A run may not run: the reason as text, and the key of the event that cures it."""

    reason: str
    key: str


class GateState:
    """Input of the gate's checks."""

    __slots__ = ("handlers", "now_ms", "stops")

    def __init__(
        self, *, stops: Mapping[str, Note] | None = None, handlers: AbstractSet[str] | None = None, now_ms: int = 0
    ) -> None:
        self.stops: Mapping[str, Note] = stops or {}
        self.handlers = handlers  # of living nodes; None: not yet known
        self.now_ms = now_ms


def gate(run: Run, job: Job, state: GateState) -> Held | None:
    """The first reason why a run may not run; None: it may."""
    for check in CHECKS:
        held = check(run, job, state)
        if held is not None:
            return held
    return None


def is_over(run: Run, job: Job) -> bool:
    """Whether it is a scheduled run of a recurring job that is no longer declared, and so would wait for ever.

    Requested runs, and the only run of a once-job, wait until the job is declared again or deleted.
    """
    return not job.declared and run.cause is Cause.SCHEDULE and job.is_recurring


def begins_alone(run: Run, job: Job) -> bool:
    """Whether it is a scheduled run before its first attempt, of a job whose runs may not overlap.

    A run that was handed back unstarted (its job was paused meanwhile) is; a retry is not.
    """
    is_begun = run.started_ms is not None or bool(run.tried)
    return run.cause is Cause.SCHEDULE and not is_begun and job.overlap is not Overlap.ALLOW


def stop_of(
    stops: Mapping[str, Note], *, job_id: str, group: str = "", target: str = "", now_ms: int = 0
) -> Note | None:
    """The pause that forbids runs of this job, group or target, if there is one that has not expired."""
    return next(stops_of(stops, job_id=job_id, group=group, target=target, now_ms=now_ms), None) if stops else None


def stops_of(
    stops: Mapping[str, Note], *, job_id: str, group: str = "", target: str = "", now_ms: int = 0
) -> Iterator[Note]:
    """All such pauses, the widest first."""
    keys = [STOP_ALL, stop_key("job", job_id)]
    keys += [stop_key("group", group)] if group else []
    keys += [stop_key("target", target)] if target else []
    found = (stops.get(key) for key in keys)
    return (stop for stop in found if stop is not None and (stop.expires_ms is None or stop.expires_ms > now_ms))


def stop_words(stop: Note) -> str:
    """A pause as text: "everything is paused: database moves (by ada)", "group edge is paused"."""
    value = stop.value if isinstance(stop.value, dict) else {}
    what = stop.key.split(":", 2)[1:]
    head = "everything is paused" if what[0] == "all" else f"{' '.join(what)} is paused"
    reason, by = str(value.get("reason") or ""), str(value.get("by") or "")
    return head + (f": {reason}" if reason else "") + (f" (by {by})" if by else "")


def drain_of(stops: Iterable[Note], nodes: Iterable[Node], now_ms: int) -> Drained | None:
    """The drain that keeps all these nodes from claiming: that of all workers, or the first if each node has one."""
    found = [drained_of(stop) for stop in stops if stop.expires_ms is None or stop.expires_ms > now_ms]
    drains = {drain.node: drain for drain in found if drain is not None}
    if not drains or None in drains:
        return drains.get(None)
    names = [node.id for node in nodes]
    return drains[names[0]] if names and all(name in drains for name in names) else None


def handlers_of(nodes: Iterable[Node]) -> frozenset[str]:
    """The names of all handlers of these nodes."""
    return frozenset(name for node in nodes for name in node.handlers)


def no_handler(handler: str) -> str:
    """The report of a handler that no node has; `exec` is off unless a node allows it."""
    if handler == "exec":
        return "no live node may run commands: allow_exec is off on all of them"
    return f"no live node has handler {handler}"


def handler_key(name: str) -> str:
    return f"handler:{name}"


def previous_key(job_id: str) -> str:
    return f"{PREVIOUS}:{job_id}"


def declared_key(job_id: str) -> str:
    return f"declared:{job_id}"


def unreadable_key(job_id: str) -> str:
    return f"unreadable:{job_id}"


# the checks


def _stopped(run: Run, job: Job, state: GateState) -> Held | None:
    if run.cause is Cause.FORCED:
        return None
    stop = stop_of(state.stops, job_id=job.id, group=run.group, target=run.target, now_ms=state.now_ms)
    return None if stop is None else Held(stop_words(stop), stop.key)


def _undeclared(run: Run, job: Job, _: GateState) -> Held | None:
    if job.declared or run.cause is Cause.FORCED:
        return None
    return Held(UNDECLARED, declared_key(job.id))


def _unknown_handler(_: Run, job: Job, state: GateState) -> Held | None:
    if state.handlers is None or job.handler in state.handlers:
        return None
    return Held(no_handler(job.handler), handler_key(job.handler))


CHECKS: tuple[Callable[[Run, Job, GateState], Held | None], ...] = (_stopped, _undeclared, _unknown_handler)


def _due(run: Run) -> int:
    return run.due_ms


class HeldRun:
    """A run at the gate, and the feed entries that are paid once it is released or parked."""

    __slots__ = ("feeds", "run")

    def __init__(self, run: Run, feeds: Iterable[int] = ()) -> None:
        self.run = run
        self.feeds = list(feeds)


class HeldRuns:
    """All held runs of a version, as the leader has read them."""

    def __init__(self) -> None:
        self.to_check: dict[str, HeldRun] = {}  # to be checked, in order of arrival
        self.held: dict[str, int] = {}  # number of parked runs, by the kind of key
        self._parked: dict[str, dict[str, Run]] = {}
        self._key_of: dict[str, str] = {}
        self._later: dict[str, tuple[int, Run]] = {}
        self._times: list[tuple[int, str]] = []

    def __len__(self) -> int:
        return len(self.to_check) + len(self._key_of) + len(self._later)

    @property
    def is_open(self) -> bool:
        """Whether there is any held run."""
        return bool(self._key_of or self.to_check or self._later)

    @property
    def later(self) -> int:
        """The number of runs that are checked later."""
        return len(self._later)

    def admit(self, run: Run, feeds: Iterable[int]) -> None:
        """Check the run in the next plan."""
        old = self.to_check.get(run.id)
        self.forget(run.id)
        self.to_check[run.id] = HeldRun(run, [*(old.feeds if old else ()), *feeds])

    def admit_later(self, run: Run, at_ms: int) -> None:
        """Check the run at `at_ms`."""
        self.forget(run.id)
        self._later[run.id] = (at_ms, run)
        heappush(self._times, (at_ms, run.id))

    def bring_forward(self, run_id: str, at_ms: int) -> None:
        """Check a run that waits for its time at `at_ms` instead."""
        _, run = self._later.get(run_id, (None, None))
        if run is not None:
            self.admit_later(replace(run, visible_ms=at_ms), at_ms)

    def park(self, run: Run, key: str) -> None:
        """Skip the run until the key is woken."""
        self.forget(run.id)
        self._key_of[run.id] = key
        self._count(key, 1)
        self._parked.setdefault(key, {})[run.id] = run

    def wake(self, key: str, feed: int | None = None) -> int:
        """Check all runs parked under this key again, the oldest due first; returns their number."""
        runs = self.waiting(key)
        if runs:
            self._count(key, -len(runs))
            del self._parked[key]
        for run in runs:
            del self._key_of[run.id]
            self.to_check[run.id] = HeldRun(run, () if feed is None else (feed,))
        return len(runs)

    def waiting(self, key: str) -> list[Run]:
        """The runs parked under this key, the oldest due first."""
        return sorted(self._parked.get(key, {}).values(), key=_due)

    def forget(self, run_id: str) -> list[int]:
        """Remove the run; returns the feed entries that owe its check."""
        self._later.pop(run_id, None)
        key = self._key_of.pop(run_id, None)
        if key is not None:
            self._count(key, -1)
            parked = self._parked[key]
            del parked[run_id]
            if not parked:
                del self._parked[key]
        removed = self.to_check.pop(run_id, None)
        return removed.feeds if removed is not None else []

    def _count(self, key: str, by: int) -> None:
        kind = key.partition(":")[0]
        self.held[kind] = self.held.get(kind, 0) + by

    def come_due(self, now_ms: int) -> None:
        """Move the runs whose time has come to those that are checked in the next plan."""
        while self._times and self._times[0][0] <= now_ms:
            at_ms, run_id = heappop(self._times)
            when, run = self._later.get(run_id, (None, None))
            if run is not None and when == at_ms:
                del self._later[run_id]
                self.to_check[run_id] = HeldRun(run)

    def next_ms(self) -> int | None:
        while self._times:
            at_ms, run_id = self._times[0]
            if self._later.get(run_id, (None, None))[0] == at_ms:
                return at_ms
            heappop(self._times)
        return None
