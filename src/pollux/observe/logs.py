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
from pollux.model import AT_ODDS_CURE, LOOP_CURE, RIVALS_CURE
from pollux.units import SECOND_MS, counted, format_moment, format_ms

log = logging.getLogger("pollux")


def attach_logs(bus: e.Events) -> Callable[[], None]:
    """Put every event of the bus into words on the logger `pollux`; the answer ends it."""
    listeners = [*_ALWAYS.items(), *RepeatedWarning().listeners().items()]
    listeners += _EACH_RUN.items() if log.isEnabledFor(logging.DEBUG) else ()
    leaves = [bus.listen(kind, listener) for kind, listener in listeners]

    def detach() -> None:
        for leave in leaves:
            leave()

    return detach


def _say(level: int, event: e.Event, words: str, *args: Any, error: BaseException | None = None) -> None:
    log.log(level, words, *args, exc_info=error, extra={"event": event})


def say_kept(run_id: str, words: str) -> None:
    """To a program that asked for a run of a known id and another content; it may have no node, and so no events."""
    log.warning("%s", safe(words), extra={"run_id": run_id})


def say_unrecorded(line: str, why: str) -> None:
    """Of runs that were accepted; what they were asked for with is in the line."""
    log.warning("runs were accepted, and the audit log may lack the line %s: %s", safe(line), safe(why))


def say_handler_unknown(job_id: str, handler: str, hint: str) -> None:
    words = "job %s: no live node knows handler %s, nor does this program%s; its runs wait until a node with it starts"
    log.warning(words, job_id, safe(handler), safe(hint), extra={"job_id": job_id})


class RepeatedWarning:
    """What may happen every second: said at once, then sparingly."""

    def __init__(self, sparing: LogThrottle | None = None) -> None:
        self._sparing = sparing or LogThrottle()

    def listeners(self) -> dict[type[e.Event], e.Listener]:
        return {e.FiringSkipped: self.skipped, e.RunFailed: self.failed, e.LoopHeld: self.held}

    def held(self, event: e.LoopHeld) -> None:
        left_out = self._sparing.left_out(("held", event.by))
        if left_out is None:
            return
        by, so_far = safe(event.by) or "something that was not seen", format_ms(event.ms)
        how = f"was held for {so_far} by {by}" if event.is_over else f"is held by {by}, for {so_far} so far"
        words = "the event loop of node %s %s; nothing else is planned, claimed or answered by it meanwhile: %s%s"
        _say(logging.WARNING, event, words, event.node, how, LOOP_CURE, _unsaid(left_out))

    def skipped(self, event: e.FiringSkipped) -> None:
        left_out = self._sparing.left_out(("skipped", event.job_id, event.reason))
        if left_out is None:
            return
        when = format_moment(event.due_ms - event.due_ms % SECOND_MS)
        what = f"the due time {when}" if event.count == 1 else f"{event.count} due times from {when} on"
        words = "job %s: %s skipped: %s%s"
        _say(logging.INFO, event, words, event.job_id, what, safe(event.reason), _unsaid(left_out))

    def failed(self, event: e.RunFailed) -> None:
        left_out = self._sparing.left_out((event.verdict, event.job_id))
        if left_out is not None:
            if not log.isEnabledFor(logging.DEBUG):
                event = replace(event, traceback="")
            follows = _WHAT_FOLLOWS.get(event.verdict, event.verdict)
            said = safe(event.error), follows, _unsaid(left_out)
            _say(logging.WARNING, event, "job %s: run %s failed: %s; %s%s", event.job_id, safe(event.run_id), *said)


_WHAT_FOLLOWS = {
    "retryat": "it is tried again",
    "done": "the next firing is the retry",
    "dead": "it is a dead letter, see `pollux dead`",
}


def _unsaid(count: int) -> str:
    return f" ({count} more like it since the last such line)" if count else ""


def _node_started(event: e.NodeStarted) -> None:
    _say(logging.INFO, event, "node %s started on %s", event.node, event.store)


def _node_stopped(event: e.NodeStopped) -> None:
    _say(logging.INFO, event, "node %s stopped%s", event.node, ", drained" if event.drained else "")


def _term_won(event: e.TermWon) -> None:
    _say(logging.INFO, event, "node %s leads, term %d", event.node, event.term)


def _term_lost(event: e.TermLost) -> None:
    level = logging.INFO if event.resigned else logging.WARNING
    _say(level, event, "node %s no longer leads term %d: %s", event.node, event.term, safe(event.why))


def _plan_fenced(event: e.PlanFenced) -> None:
    words = "a plan of node %s for term %d came too late: its term was over, and nothing of it was written"
    _say(logging.WARNING, event, words, event.node, event.term)


_UNREADABLE = {
    "job": "it is left as it is, and nothing of it is fired; all others go on. A newer release may know it; if none "
    "does, put it anew or delete it",
    "entry": "it is skipped, all jobs are looked at again, and planning goes on. `pollux store check` shows it for a "
    "week; nothing else is to be done",
    "run": "it is passed over. Delete it",
    "note": "a pause stands, anything else of it is passed over. Write it anew or delete it",
}


def _record_unreadable(event: e.RecordUnreadable) -> None:
    what = f"entry {event.name} of the feed" if event.kind == "entry" else f"{event.kind} {event.name!r}"
    what += f", and {event.more} more," if event.more else ""
    words = "%s cannot be read by the leader (%s): %s"
    _say(logging.WARNING, event, words, safe(what), safe(event.why), _UNREADABLE.get(event.kind, "it is passed over"))


def _jobs_declared(event: e.JobsDeclared) -> None:
    counts = counted(event.added, "job"), event.changed, event.gone
    _say(logging.INFO, event, "%s: %s added, %d changed, %d removed", event.source, *counts)


def _jobs_elsewhere(event: e.JobsElsewhere) -> None:
    words = "%s: %s left in another version (%s in version %d); to have them here: pollux jobs move %s --to-version %d"
    what = event.source, counted(event.count, "job"), event.job_id, event.version, event.job_id, event.own
    _say(logging.WARNING, event, words, *what)


def _code_differs(event: e.CodeDiffers) -> None:
    _say(logging.WARNING, event, "%s; %s", safe(event.words), RIVALS_CURE)


def _jobs_differ(event: e.JobsDiffer) -> None:
    _say(logging.WARNING, event, "%s; %s", safe(event.words), AT_ODDS_CURE)


def _job_unreadable(event: e.JobUnreadable) -> None:
    words = (
        "%s: job %r is stored and cannot be read here (%s): it is left as it is, for a node of a newer release; if "
        "there is none, somebody else wrote it: once it is deleted, it is declared anew"
    )
    _say(logging.WARNING, event, words, event.source, event.job_id, safe(event.why))


def _release_is_old(event: e.ReleaseIsOld) -> None:
    words = (
        "%s: release %d is known, this node has release %d and changes no job; deploy the newer one, or start this "
        "code under a higher number (another app needs a name of its own)"
    )
    _say(logging.WARNING, event, words, event.source, event.newest, event.release)


def _reloaded(event: e.ConfigReloaded) -> None:
    _say(logging.INFO, event, "%s was read again (by %s): %s", safe(event.path), safe(event.by), safe(event.changes))


def _reload_refused(event: e.ReloadRefused) -> None:
    more = f" and {event.count - len(event.problems)} more" if event.count > len(event.problems) else ""
    words = "%s was read again and changes nothing, because of %s: %s%s"
    count = counted(event.count, "problem")
    _say(logging.ERROR, event, words, safe(event.path), count, "; ".join(map(safe, event.problems)), more)


def _file_differs(event: e.FileDiffers) -> None:
    words = (
        "%s: node %s made another text of this file hold; this node leaves its jobs alone until its own file says the "
        "same, or is read again: pollux reload"
    )
    _say(logging.WARNING, event, words, safe(event.source), safe(event.node))


def _sealed(event: e.StoreSealed) -> None:
    _say(logging.ERROR, event, "this node plans and claims nothing more: %s", safe(event.words))


def _not_kept(event: e.FileVersionUnsaved) -> None:
    words = "the text of the config was not kept for `pollux reload --rollback`: %s: %s"
    _say(logging.WARNING, event, words, safe(event.folder), safe(event.why))


def _settings_heard(event: e.SettingsHeard) -> None:
    _say(logging.INFO, event, "changed for all nodes: %s", "; ".join(map(safe, event.changes)))


def _lease_lost(event: e.LeaseWasLost) -> None:
    words = "run %s of job %s lost its lease: %s"
    _say(logging.WARNING, event, words, event.run_id, event.job_id, safe(event.why))


def _loop_failed(event: e.LoopFailed) -> None:
    what = f"{type(event.error).__name__}: {safe(event.error)}"
    words = "loop %s: %s (%s); it goes on in %d ms"
    trace = event.error if log.isEnabledFor(logging.DEBUG) else None
    _say(logging.ERROR, event, words, event.loop, what, counted(event.count, "time"), event.rest_ms, error=trace)


def _loop_recovered(event: e.LoopRecovered) -> None:
    _say(logging.INFO, event, "loop %s works again after %s", event.loop, counted(event.count, "failure"))


def _clock_jumped(event: e.ClockJumped) -> None:
    words = "the clock jumped by %d ms; due times follow it, leases of living workers are kept"
    _say(logging.WARNING, event, words, event.by_ms)


def _claims_refused(event: e.ClaimsRefused) -> None:
    _say(logging.WARNING, event, "node %s is given no runs: %s", event.node, safe(event.reason))


def _stuck(event: e.HandlerStuck) -> None:
    words = "run %s of job %s ignores its end and keeps its seat; stuck by now: %s"
    _say(logging.WARNING, event, words, event.run_id, event.job_id, counted(event.stuck, "seat"))


def _refused(event: e.JobRefused) -> None:
    _say(logging.ERROR, event, "job %s cannot be planned: %s", event.job_id, safe(event.error))


def _request_refused(event: e.RequestRefused) -> None:
    words = "the API refused %s (%d): %s%s"
    _say(logging.WARNING, event, words, safe(event.who), event.status, safe(event.why), _unsaid(event.more))


def _traces_lost(event: e.TracesLost) -> None:
    what = f"{counted(event.count, 'span')} did not reach the collector" if event.count else "there are none"
    _say(logging.WARNING, event, "traces: %s: %s; runs go on as before", what, safe(event.why))


def _runs_fired(event: e.RunsFired) -> None:
    _say(logging.DEBUG, event, "%s fired, at most %d ms late", counted(event.count, "run"), event.late_ms_max)


def _fired(event: e.RunFired) -> None:
    _say(logging.DEBUG, event, "run %s of job %s fired", event.run_id, event.job_id)


def _held(event: e.RunHeld) -> None:
    _say(logging.DEBUG, event, "run %s is held: %s", event.run_id, safe(event.reason))


def _released(event: e.RunReleased) -> None:
    _say(logging.DEBUG, event, "run %s is released", event.run_id)


def _started(event: e.RunStarted) -> None:
    words = "run %s started, delivery %d, %d ms late"
    _say(logging.DEBUG, event, words, event.run_id, event.fence, event.late_ms)


def _settled(event: e.RunSettled) -> None:
    how = "failed" if event.verdict == "done" and event.error else event.verdict
    answer = "" if event.answer == "ok" else f" (the store answers {event.answer})"
    why = f": {safe(event.error)}" if event.error else ""
    _say(logging.DEBUG, event, "run %s: %s%s in %d ms%s", event.run_id, how, answer, event.duration_ms, why)


def _stopped(event: e.RunStopped) -> None:
    words = "run %s of job %s is %s, no handler ended: %s"
    _say(logging.DEBUG, event, words, event.run_id, event.job_id, event.state, safe(event.why) or "handed back")


_ALWAYS: dict[type[e.Event], e.Listener] = {
    e.NodeStarted: _node_started,
    e.NodeStopped: _node_stopped,
    e.JobsDeclared: _jobs_declared,
    e.ReleaseIsOld: _release_is_old,
    e.JobsElsewhere: _jobs_elsewhere,
    e.CodeDiffers: _code_differs,
    e.JobsDiffer: _jobs_differ,
    e.JobUnreadable: _job_unreadable,
    e.ConfigReloaded: _reloaded,
    e.ReloadRefused: _reload_refused,
    e.FileDiffers: _file_differs,
    e.StoreSealed: _sealed,
    e.FileVersionUnsaved: _not_kept,
    e.SettingsHeard: _settings_heard,
    e.TermWon: _term_won,
    e.TermLost: _term_lost,
    e.PlanFenced: _plan_fenced,
    e.RecordUnreadable: _record_unreadable,
    e.LeaseWasLost: _lease_lost,
    e.LoopFailed: _loop_failed,
    e.LoopRecovered: _loop_recovered,
    e.ClockJumped: _clock_jumped,
    e.ClaimsRefused: _claims_refused,
    e.HandlerStuck: _stuck,
    e.JobRefused: _refused,
    e.RequestRefused: _request_refused,
    e.TracesLost: _traces_lost,
}
_EACH_RUN: dict[type[e.Event], e.Listener] = {
    e.RunsFired: _runs_fired,
    e.RunFired: _fired,
    e.RunHeld: _held,
    e.RunReleased: _released,
    e.RunStarted: _started,
    e.RunSettled: _settled,
    e.RunStopped: _stopped,
}


EVERY_SECONDS = 60.0
THINGS_MAX = 10_000  # beyond it everything may be said anew


class LogThrottle:
    """Counts what is left unsaid.  A job that fails, or skips, every second must not drown the log."""

    def __init__(self, *, every_seconds: float = EVERY_SECONDS, now: Callable[[], float] = time.monotonic) -> None:
        self._every, self._now = every_seconds, now
        self._said: dict[Hashable, float] = {}
        self._unsaid: dict[Hashable, int] = {}

    def left_out(self, thing: Hashable) -> int | None:
        """None: leave it out this time.  Otherwise say it, and how many were left out since the last time."""
        now = self._now()
        said_at = self._said.get(thing)
        if said_at is not None and now - said_at < self._every:
            self._unsaid[thing] = self._unsaid.get(thing, 0) + 1
            return None
        if len(self._said) >= THINGS_MAX:
            self._said.clear()
            self._unsaid.clear()
        self._said[thing] = now
        return self._unsaid.pop(thing, 0)
