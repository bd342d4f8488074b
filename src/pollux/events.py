"""In-process event bus: the engine emits values, `observe/` turns them into log lines, metrics and traces.

Nothing is emitted per run unless that kind has a listener: `if bus.wants(RunSettled)` costs one look-up.
A listener that raises stays registered and does not stop the others: its error is counted in `listener_errors`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct


class Event(Struct, frozen=True):
    """The root of all events."""


class NodeStarted(Event, frozen=True):
    node: str
    store: str


class NodeStopped(Event, frozen=True):
    node: str
    drained: bool


class ReleaseIsOld(Event, frozen=True):
    """A newer release of a source is known; this node runs what it can and writes no job."""

    source: str
    release: int
    newest: int


class JobsElsewhere(Event, frozen=True):
    """Jobs that a source declares here belong to another scheduler version and are left unchanged."""

    source: str
    count: int
    job_id: str  # the first of them
    version: int  # the version of that job
    own: int


class CodeDiffers(Event, frozen=True):
    """A node of another source has other code for handlers of the same names: either may claim a run of them."""

    handlers: tuple[str, ...]
    node_id: str  # the other one
    source: str  # of the other one
    words: str


class JobsDiffer(Event, frozen=True):
    """This node or another one declares other jobs of a source than the latest text of it."""

    source: str
    node_id: str  # the other one; "": no live node has the latest text
    words: str


class JobUnreadable(Event, frozen=True):
    """The stored row of a job that a source declares here cannot be decoded: it is left unchanged."""

    source: str
    job_id: str
    why: str


class JobsDeclared(Event, frozen=True):
    """The jobs of a source (a file, or this process's code) were written to the store."""

    source: str
    added: int
    changed: int
    removed: int


class ConfigReloaded(Event, frozen=True):
    """The file was read again and is in force."""

    path: str
    by: str
    changes: str


class ReloadRefused(Event, frozen=True):
    """The file was read again and refused: the first few of `count` problems."""

    path: str
    by: str
    problems: tuple[str, ...]
    count: int


class FileDiffers(Event, frozen=True):
    """Another node applied another text of the same file: this node's file is older or newer."""

    source: str
    node: str


class StoreSealed(Event, frozen=True):
    """The store was moved elsewhere while this node is running: it stops planning and claiming."""

    words: str  # with the cure


class FileVersionUnsaved(Event, frozen=True):
    """A text of the file was applied and could not be kept for a rollback."""

    folder: str
    why: str


class SettingsChanged(Event, frozen=True):
    """Options that were changed for all nodes are in force here."""

    changes: tuple[str, ...]


class TermWon(Event, frozen=True):
    node: str
    term: int


class TermLost(Event, frozen=True):
    node: str
    term: int
    why: str
    resigned: bool = False


class PlanFenced(Event, frozen=True):
    """The store refused a plan of ours as a whole: our term had ended."""

    node: str
    term: int


class RecordUnreadable(Event, frozen=True):
    """The leader skips a record that it cannot decode; emitted once a record."""

    kind: str  # job, run, note, or entry (of the feed)
    name: str
    why: str
    more: int = 0  # further entries that it skips together with this one


class RunStarted(Event, frozen=True):
    run_id: str
    job_id: str
    fence: int
    late_ms: int
    attempt: int = 1  # which try of the run it is
    ready_ms: int = 0  # when it was due, or visible again
    started_ms: int = 0


class RunSettled(Event, frozen=True):
    run_id: str
    job_id: str
    verdict: str
    answer: str
    duration_ms: int
    error: str
    fence: int = 0
    attempt: int = 1
    due_ms: int = 0
    started_ms: int = 0  # 0: no handler code was called
    ended_ms: int = 0
    settled_ms: int = 0
    has_outcome: bool = False  # False: no handler code ran to its end; the leader reads the end from its feed
    follow_ups: tuple[str, ...] = ()  # the runs that were accepted with it


class RunFailed(Event, frozen=True):
    """An attempt failed; `verdict` is what follows (retryat, done: the next firing is the retry, dead)."""

    run_id: str
    job_id: str
    verdict: str
    error: str
    traceback: str = ""


class RunsFired(Event, frozen=True):
    count: int
    late_ms_max: int


class FiringSkipped(Event, frozen=True):
    job_id: str
    due_ms: int
    count: int
    reason: str


class RunFired(Event, frozen=True):
    run_id: str
    job_id: str
    due_ms: int
    fired_ms: int = 0  # when it was written


class RunReleased(Event, frozen=True):
    """The leader released a held run."""

    run_id: str


class RunStopped(Event, frozen=True):
    """A run was cancelled or handed back, or lost its lease, without an outcome of an attempt."""

    run_id: str
    job_id: str
    state: str  # the run's state now
    why: str
    due_ms: int = 0
    stopped_ms: int = 0


class RunHeld(Event, frozen=True):
    run_id: str
    reason: str


class LeaseWasLost(Event, frozen=True):
    run_id: str
    job_id: str
    why: str
    fence: int = 0
    attempt: int = 1
    started_ms: int = 0  # 0: no handler code was called
    lost_ms: int = 0


class LoopFailed(Event, frozen=True):
    loop: str
    error: BaseException
    count: int
    rest_ms: int


class LoopRecovered(Event, frozen=True):
    loop: str
    count: int


class LoopBlocked(Event, frozen=True):
    """The event loop is blocked, or was.  While it is, another thread emits this event."""

    node: str
    ms: int  # so far, or in all
    by: str  # the handler and the line, if known
    is_over: bool = False


class ClockJumped(Event, frozen=True):
    by_ms: int


class HandlerStuck(Event, frozen=True):
    run_id: str
    job_id: str
    stuck: int


class ClaimsRefused(Event, frozen=True):
    node: str
    reason: str


class JobRefused(Event, frozen=True):
    job_id: str
    error: str


class RequestRefused(Event, frozen=True):
    """The API refused a request whose token is invalid or whose role is insufficient."""

    status: int
    caller: str  # the token's name, or the client's address
    why: str
    more: int  # refusals since the last event that had no event of their own


class TracesLost(Event, frozen=True):
    """Spans that did not reach the trace collector; 0: this process exports none, and why."""

    count: int
    why: str


Listener = Callable[[Any], None]


class Events:
    """Listeners by kind of event."""

    def __init__(self) -> None:
        self._by_kind: dict[type[Event], list[Listener]] = {}
        self.listener_errors = 0

    def listen(self, kind: type[Event], listener: Listener) -> Callable[[], None]:
        """Call `listener` with every event of that kind; returns a function that removes it."""
        self._by_kind.setdefault(kind, []).append(listener)

        def leave() -> None:
            listeners = self._by_kind.get(kind, [])
            if listener in listeners:
                listeners.remove(listener)

        return leave

    def wants(self, kind: type[Event]) -> bool:
        return bool(self._by_kind.get(kind))

    def emit(self, event: Event) -> None:
        for listener in tuple(self._by_kind.get(type(event), ())):
            try:
                listener(event)
            except Exception:  # noqa: BLE001  a faulty listener must not stop the engine
                self.listener_errors += 1
