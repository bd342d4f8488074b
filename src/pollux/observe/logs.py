"""Log lines of events.  Above DEBUG only failed runs are logged, one a minute for each job.

Every record carries its event (`extra={"event": ...}`): the text is for people, `pollux.log_format` takes the fields.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable
from typing import Any

from msgspec.structs import replace

from pollux import events as e
from pollux.log_format import safe
from pollux.model import DECLARATION_CURE, HANDLER_CURE, LOOP_CURE
from pollux.units import SECOND_MS, counted, format_moment, format_ms

log = logging.getLogger("pollux")


def attach_logs(bus: e.Events) -> Callable[[], None]:
    """Log every event of the bus on the logger `pollux`; the returned function ends it."""
    listeners = [(kind, listener) for listener, kinds in _ALWAYS.items() for kind in kinds]
    listeners += RepeatedWarning().listeners().items()
    if log.isEnabledFor(logging.DEBUG):
        listeners += [(kind, _log_run) for kind in _EACH_RUN]
    leaves = [bus.listen(kind, listener) for kind, listener in listeners]

    def detach() -> None:
        for leave in leaves:
            leave()

    return detach


def _log(level: int, event: e.Event, words: str, *args: Any, error: BaseException | None = None) -> None:
    log.log(level, words, *args, exc_info=error, extra={"event": event})


def warn_existing_run(run_id: str, words: str) -> None:
    """Warn a program that asked for a run of a known id with another content; it may have no node, so no events."""
    log.warning("%s", safe(words), extra={"run_id": run_id})


def warn_unrecorded(line: str, why: str) -> None:
    """Warn that the audit log may lack the line of accepted runs."""
    log.warning("runs were accepted, and the audit log may lack the line %s: %s", safe(line), safe(why))


def warn_unknown_handler(job_id: str, handler: str, hint: str) -> None:
    words = "job %s: no live node has handler %s, nor does this program%s; its runs wait until a node with it starts"
    log.warning(words, job_id, safe(handler), safe(hint), extra={"job_id": job_id})


class RepeatedWarning:
    """Listener for events that may come every second: the first is logged at once, the others by `LogThrottle`."""

    def __init__(self, throttle: LogThrottle | None = None) -> None:
        self._throttle = throttle or LogThrottle()

    def listeners(self) -> dict[type[e.Event], e.Listener]:
        return {e.FiringSkipped: self.skipped, e.RunFailed: self.failed, e.LoopBlocked: self.blocked}

    def blocked(self, event: e.LoopBlocked) -> None:
        left_out = self._throttle.left_out(("blocked", event.by))
        if left_out is None:
            return
        by, so_far = safe(event.by) or "an unknown handler", format_ms(event.ms)
        how = f"was blocked for {so_far} by {by}" if event.is_over else f"is blocked by {by}, for {so_far} so far"
        words = "the event loop of node %s %s; meanwhile it plans, claims and answers nothing: %s%s"
        _log(logging.WARNING, event, words, event.node, how, LOOP_CURE, _left_out_text(left_out))

    def skipped(self, event: e.FiringSkipped) -> None:
        left_out = self._throttle.left_out(("skipped", event.job_id, event.reason))
        if left_out is None:
            return
        when = format_moment(event.due_ms - event.due_ms % SECOND_MS)
        what = f"the due time {when}" if event.count == 1 else f"{event.count} due times from {when} on"
        words = "job %s: %s skipped: %s%s"
        _log(logging.INFO, event, words, event.job_id, what, safe(event.reason), _left_out_text(left_out))

    def failed(self, event: e.RunFailed) -> None:
        left_out = self._throttle.left_out((event.verdict, event.job_id))
        if left_out is not None:
            if not log.isEnabledFor(logging.DEBUG):
                event = replace(event, traceback="")
            follows = _WHAT_FOLLOWS.get(event.verdict, event.verdict)
            rest = safe(event.error), follows, _left_out_text(left_out)
            _log(logging.WARNING, event, "job %s: run %s failed: %s; %s%s", event.job_id, safe(event.run_id), *rest)


_WHAT_FOLLOWS = {
    "retryat": "it is tried again",
    "done": "the next firing is the retry",
    "dead": "it is a dead letter, see `pollux dead`",
}


def _left_out_text(count: int) -> str:
    return f" ({count} more like it since the last such line)" if count else ""


_UNREADABLE = {
    "job": "it is left unchanged and not fired; all others go on. A newer release may be able to read it; if none "
    "is, put it again or delete it",
    "entry": "it is skipped, all jobs are looked at again, and planning goes on. `pollux store check` shows it for a "
    "week; there is nothing else to do",
    "run": "it is skipped. Delete it",
    "note": "a pause stays in force, any other note is ignored. Write it again or delete it",
}
# Each function below logs one group of events; the type of the event decides level, text and fields.


def _log_node(event: e.Event) -> None:
    match event:
        case e.NodeStarted():
            _log(logging.INFO, event, "node %s started on %s", event.node, event.store)
        case e.NodeStopped():
            _log(logging.INFO, event, "node %s stopped%s", event.node, ", drained" if event.drained else "")
        case e.StoreSealed():
            _log(logging.ERROR, event, "this node plans and claims nothing any more: %s", safe(event.words))
        case e.ClaimsRefused():
            _log(logging.WARNING, event, "the store gives node %s no runs: %s", event.node, safe(event.reason))
        case e.RequestRefused():
            words, more = "the API refused %s (%d): %s%s", _left_out_text(event.more)
            _log(logging.WARNING, event, words, safe(event.caller), event.status, safe(event.why), more)
        case e.TracesLost():
            lost = f"{counted(event.count, 'span')} did not reach the collector" if event.count else "there are none"
            _log(logging.WARNING, event, "traces: %s: %s; runs go on as before", lost, safe(event.why))


def _log_loop(event: e.Event) -> None:
    match event:
        case e.LoopFailed():
            what, count = f"{type(event.error).__name__}: {safe(event.error)}", counted(event.count, "time")
            words = "loop %s: %s (%s); it goes on in %d ms"
            trace = event.error if log.isEnabledFor(logging.DEBUG) else None
            _log(logging.ERROR, event, words, event.loop, what, count, event.rest_ms, error=trace)
        case e.LoopRecovered():
            failures = counted(event.count, "failure")
            _log(logging.INFO, event, "loop %s works again after %s", event.loop, failures)
        case e.ClockJumped():
            words = "the clock jumped by %d ms; due times follow it, leases of living workers are kept"
            _log(logging.WARNING, event, words, event.by_ms)
        case e.HandlerStuck():
            words, stuck = "run %s of job %s ignores its end and keeps its seat; stuck by now: %s", event.stuck
            _log(logging.WARNING, event, words, event.run_id, event.job_id, counted(stuck, "seat"))


def _log_plan(event: e.Event) -> None:
    match event:
        case e.TermWon():
            _log(logging.INFO, event, "node %s leads, term %d", event.node, event.term)
        case e.TermLost():
            level = logging.INFO if event.resigned else logging.WARNING
            _log(level, event, "node %s no longer leads term %d: %s", event.node, event.term, safe(event.why))
        case e.PlanFenced():
            words = "a plan of node %s for term %d came too late: its term was over, and nothing of it was written"
            _log(logging.WARNING, event, words, event.node, event.term)
        case e.RecordUnreadable():
            what = f"entry {event.name} of the feed" if event.kind == "entry" else f"{event.kind} {event.name!r}"
            what += f", and {event.more} more," if event.more else ""
            words, cure = "%s cannot be read by the leader (%s): %s", _UNREADABLE.get(event.kind, "it is skipped")
            _log(logging.WARNING, event, words, safe(what), safe(event.why), cure)
        case e.LeaseWasLost():
            words = "run %s of job %s lost its lease: %s"
            _log(logging.WARNING, event, words, event.run_id, event.job_id, safe(event.why))
        case e.JobRefused():
            _log(logging.ERROR, event, "job %s cannot be planned: %s", event.job_id, safe(event.error))


def _log_jobs(event: e.Event) -> None:
    match event:
        case e.JobsDeclared():
            counts = counted(event.added, "job"), event.changed, event.removed
            _log(logging.INFO, event, "%s: %s added, %d changed, %d removed", event.source, *counts)
        case e.JobsElsewhere():
            words = (
                "%s: %s left in another version (%s in version %d); "
                "to have them here: pollux jobs move %s --to-version %d"
            )
            where = event.job_id, event.version, event.job_id, event.own
            _log(logging.WARNING, event, words, event.source, counted(event.count, "job"), *where)
        case e.CodeDiffers():
            _log(logging.WARNING, event, "%s; %s", safe(event.words), HANDLER_CURE)
        case e.JobsDiffer():
            _log(logging.WARNING, event, "%s; %s", safe(event.words), DECLARATION_CURE)
        case e.JobUnreadable():
            words = (
                "%s: job %r is stored and cannot be read here (%s): it is left as it is, for a node of a newer "
                "release; if there is none, another program wrote it: once it is deleted, it is declared anew"
            )
            _log(logging.WARNING, event, words, event.source, event.job_id, safe(event.why))
        case e.ReleaseIsOld():
            words = (
                "%s: release %d is known, this node has release %d and changes no job; deploy the newer one, or start "
                "this code under a higher number (another app needs a name of its own)"
            )
            _log(logging.WARNING, event, words, event.source, event.newest, event.release)


def _log_config(event: e.Event) -> None:
    match event:
        case e.ConfigReloaded():
            what = safe(event.path), safe(event.by), safe(event.changes)
            _log(logging.INFO, event, "%s was read again (by %s): %s", *what)
        case e.ReloadRefused():
            more = f" and {event.count - len(event.problems)} more" if event.count > len(event.problems) else ""
            words, count = "%s was read again and changes nothing, because of %s: %s%s", counted(event.count, "problem")
            _log(logging.ERROR, event, words, safe(event.path), count, "; ".join(map(safe, event.problems)), more)
        case e.FileDiffers():
            words = (
                "%s: node %s applied another text of this file; this node leaves its jobs unchanged until its own file "
                "has the same text, or is read again: pollux reload"
            )
            _log(logging.WARNING, event, words, safe(event.source), safe(event.node))
        case e.FileVersionUnsaved():
            words = "the text of the config was not kept for `pollux reload --rollback`: %s: %s"
            _log(logging.WARNING, event, words, safe(event.folder), safe(event.why))
        case e.SettingsChanged():
            _log(logging.INFO, event, "changed for all nodes: %s", "; ".join(map(safe, event.changes)))


def _log_run(event: e.Event) -> None:
    match event:
        case e.RunsFired():
            fired = counted(event.count, "run")
            _log(logging.DEBUG, event, "%s fired, at most %d ms late", fired, event.late_ms_max)
        case e.RunFired():
            _log(logging.DEBUG, event, "run %s of job %s fired", event.run_id, event.job_id)
        case e.RunHeld():
            _log(logging.DEBUG, event, "run %s is held: %s", event.run_id, safe(event.reason))
        case e.RunReleased():
            _log(logging.DEBUG, event, "run %s is released", event.run_id)
        case e.RunStarted():
            words = "run %s started, delivery %d, %d ms late"
            _log(logging.DEBUG, event, words, event.run_id, event.fence, event.late_ms)
        case e.RunSettled():
            how = "failed" if event.verdict == "done" and event.error else event.verdict
            answer = "" if event.answer == "ok" else f" (the store answers {event.answer})"
            why = f": {safe(event.error)}" if event.error else ""
            _log(logging.DEBUG, event, "run %s: %s%s in %d ms%s", event.run_id, how, answer, event.duration_ms, why)
        case e.RunStopped():
            words, why = "run %s of job %s is %s, no handler ended: %s", safe(event.why) or "handed back"
            _log(logging.DEBUG, event, words, event.run_id, event.job_id, event.state, why)


_ALWAYS: dict[e.Listener, tuple[type[e.Event], ...]] = {
    _log_node: (e.NodeStarted, e.NodeStopped, e.StoreSealed, e.ClaimsRefused, e.RequestRefused, e.TracesLost),
    _log_loop: (e.LoopFailed, e.LoopRecovered, e.ClockJumped, e.HandlerStuck),
    _log_plan: (e.TermWon, e.TermLost, e.PlanFenced, e.RecordUnreadable, e.LeaseWasLost, e.JobRefused),
    _log_jobs: (e.JobsDeclared, e.JobsElsewhere, e.CodeDiffers, e.JobsDiffer, e.JobUnreadable, e.ReleaseIsOld),
    _log_config: (e.ConfigReloaded, e.ReloadRefused, e.FileDiffers, e.FileVersionUnsaved, e.SettingsChanged),
}
_EACH_RUN = (e.RunsFired, e.RunFired, e.RunHeld, e.RunReleased, e.RunStarted, e.RunSettled, e.RunStopped)


EVERY_SECONDS = 60.0
KEYS_MAX = 10_000  # beyond it every key is logged anew


class LogThrottle:
    """Throttle for repeated log lines: the first at once, then one a minute with the number left out."""

    def __init__(self, *, every_seconds: float = EVERY_SECONDS, now: Callable[[], float] = time.monotonic) -> None:
        self._every, self._now = every_seconds, now
        self._logged_at: dict[Hashable, float] = {}
        self._left_out: dict[Hashable, int] = {}

    def left_out(self, key: Hashable) -> int | None:
        """Return None to leave it out this time, otherwise how many were left out since the last line."""
        now = self._now()
        logged_at = self._logged_at.get(key)
        if logged_at is not None and now - logged_at < self._every:
            self._left_out[key] = self._left_out.get(key, 0) + 1
            return None
        if len(self._logged_at) >= KEYS_MAX:
            self._logged_at.clear()
            self._left_out.clear()
        self._logged_at[key] = now
        return self._left_out.pop(key, 0)
