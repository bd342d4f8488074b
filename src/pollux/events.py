"""What just happened here?  An in-process bus: the engine emits values, `observe/` puts them into words.

Nothing is emitted per run unless somebody listens for that kind: `if bus.wants(RunSettled)` costs one look-up.
A listener that raises is dropped from nothing and stops nobody: its error is handed to `on_error`.
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
    """A newer release of a source is known; this node runs what it can and changes no job."""

    source: str
    release: int
    newest: int


class JobsElsewhere(Event, frozen=True):
    """Jobs that a source declares here are in another version: they are left there."""

    source: str
    count: int
    job_id: str  # the first of them
    version: int  # where it is
    own: int


class CodeDiffers(Event, frozen=True):
    """A node of another source has other code for handlers of the same names: either may get a run of them."""

    handlers: tuple[str, ...]
    node_id: str  # the other one
    source: str  # of the other one
    words: str


class JobsDiffer(Event, frozen=True):
    """This node declares other jobs of a source than the latest text of it, or has that text and another node not."""

    source: str
    node_id: str  # the other one; "": none lives
    words: str


class JobUnreadable(Event, frozen=True):
    """A job that a source declares here is stored, and cannot be read here: it is left as it is."""

    source: str
    job_id: str
    why: str


class JobsDeclared(Event, frozen=True):
    """The store was made to agree with a source: a file, or this process's code."""

    source: str
    added: int
    changed: int
    gone: int


class ConfigReloaded(Event, frozen=True):
    """The file was read again, and what it says holds."""

    path: str
    by: str
    changes: str


class ReloadRefused(Event, frozen=True):
    """The file was read again, and nothing of it holds: what stands against it, the first few of so many."""

    path: str
    by: str
    problems: tuple[str, ...]
    count: int


class FileDiffers(Event, frozen=True):
    """Another node made another text of the same file hold: this node's file is an older or a newer one."""

    source: str
    node: str


class StoreSealed(Event, frozen=True):
    """The store was moved elsewhere while this node lives: it plans and claims nothing more."""

    words: str  # with the cure


class VersionNotKept(Event, frozen=True):
    """A text of the file was applied and could not be kept for a rollback."""

    folder: str
    why: str


class SettingsHeard(Event, frozen=True):
    """Somebody changed options for all nodes, and they hold here."""

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
    """A plan of ours came after our term: the store refused it whole."""

    node: str
    term: int


class RecordUnreadable(Event, frozen=True):
    """The leader met a record that it cannot read, and goes on beside it; said once of each."""

    kind: str  # job, run, note, or entry (of the feed)
    name: str
    why: str
    more: int = 0  # entries that it takes together with this one


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
    has_outcome: bool = False  # False: no handler code came to its end, and the leader hears of it by its feed
    follow_ups: tuple[str, ...] = ()  # the runs that were accepted with it


class RunFailed(Event, frozen=True):
    """An attempt failed; `verdict` says what follows (retryat, done: the next firing is the retry, dead)."""

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
    """Held no longer."""

    run_id: str


class RunStopped(Event, frozen=True):
    """An attempt, or the waiting for one, ended without an outcome: cancelled, handed back, its lease lost."""

    run_id: str
    job_id: str
    state: str  # what the run is now
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


class LoopHeld(Event, frozen=True):
    """Something holds the event loop, or did.  While it does it is told by another thread: the loop itself cannot."""

    node: str
    ms: int  # so far, or in all
    by: str  # the handler and the line, if they were seen
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
    """The API turned somebody away who came with a token: it is not good, or its role is not enough."""

    status: int
    who: str  # the token's name, or the address it came from
    why: str
    more: int  # how many were not told of since the last time


class TracesLost(Event, frozen=True):
    """Spans did not reach the collector; 0: there are none, and why."""

    count: int
    why: str


Listener = Callable[[Any], None]


class Events:
    """Listeners by kind of event."""

    def __init__(self) -> None:
        self._by_kind: dict[type[Event], list[Listener]] = {}
        self.listener_errors = 0

    def listen(self, kind: type[Event], listener: Listener) -> Callable[[], None]:
        """Call `listener` with every event of that kind; the answer takes it away again."""
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
            except Exception:  # noqa: BLE001  a listener's fault is not the engine's
                self.listener_errors += 1
