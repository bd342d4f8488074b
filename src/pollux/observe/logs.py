"""How do events read as log lines?  Above DEBUG a run is told of only if it failed, and of one job once a minute."""

from __future__ import annotations

import logging
from collections.abc import Callable

from pollux import events as e
from pollux.observe.sparing import Sparing
from pollux.units import SECOND_MS, format_moment

log = logging.getLogger("pollux")


def attach_logs(bus: e.Events) -> Callable[[], None]:
    """Put every event of the bus into words on the logger `pollux`; the answer ends it."""
    listeners = [*_ALWAYS.items(), *Often().listeners().items()]
    listeners += _EACH_RUN.items() if log.isEnabledFor(logging.DEBUG) else ()
    leaves = [bus.listen(kind, listener) for kind, listener in listeners]

    def detach() -> None:
        for leave in leaves:
            leave()

    return detach


def plain(text: object) -> str:
    """Text that cannot break a log line: control characters are escaped, and it is not endless."""
    shown = str(text)[:2_000]
    return shown if shown.isprintable() else shown.encode("unicode_escape").decode("ascii")


class Often:
    """What may happen every second: said at once, then sparingly."""

    def __init__(self, sparing: Sparing | None = None) -> None:
        self._sparing = sparing or Sparing()

    def listeners(self) -> dict[type[e.Event], e.Listener]:
        return {e.FiringSkipped: self.skipped, e.RunFailed: self.failed}

    def skipped(self, event: e.FiringSkipped) -> None:
        left_out = self._sparing.left_out(("skipped", event.job_id, event.reason))
        if left_out is None:
            return
        when = format_moment(event.due_ms - event.due_ms % SECOND_MS)
        what = f"the due time {when}" if event.count == 1 else f"{event.count} due times from {when} on"
        log.info("job %s: %s skipped: %s%s", event.job_id, what, plain(event.reason), _unsaid(left_out))

    def failed(self, event: e.RunFailed) -> None:
        left_out = self._sparing.left_out((event.verdict, event.job_id))
        if left_out is not None:
            follows = _WHAT_FOLLOWS.get(event.verdict, event.verdict)
            log.warning(
                "job %s: run %s failed: %s; %s%s",
                event.job_id,
                plain(event.run_id),
                plain(event.error),
                follows,
                _unsaid(left_out),
            )


_WHAT_FOLLOWS = {
    "retryat": "it is tried again",
    "done": "the next firing is the retry",
    "dead": "it is given up on, see `pollux dead`",
}


def _unsaid(count: int) -> str:
    return f" ({count} more like it since the last such line)" if count else ""


def _node_started(event: e.NodeStarted) -> None:
    log.info("node %s started on %s", event.node, event.store)


def _node_stopped(event: e.NodeStopped) -> None:
    log.info("node %s stopped%s", event.node, ", drained" if event.drained else "")


def _term_won(event: e.TermWon) -> None:
    log.info("node %s leads, term %d", event.node, event.term)


def _term_lost(event: e.TermLost) -> None:
    level = logging.INFO if event.resigned else logging.WARNING
    log.log(level, "node %s no longer leads term %d: %s", event.node, event.term, plain(event.why))


def _jobs_declared(event: e.JobsDeclared) -> None:
    log.info("%s: %d jobs added, %d changed, %d gone", event.source, event.added, event.changed, event.gone)


def _held(event: e.RunHeld) -> None:
    log.debug("run %s is held: %s", event.run_id, plain(event.reason))


def _lease_lost(event: e.LeaseWasLost) -> None:
    log.warning("run %s of job %s lost its lease: %s", event.run_id, event.job_id, plain(event.why))


def _loop_failed(event: e.LoopFailed) -> None:
    log.error(
        "loop %s: %s: %s (%d time(s)); it goes on in %d ms",
        event.loop,
        type(event.error).__name__,
        plain(event.error),
        event.count,
        event.rest_ms,
        exc_info=event.error if log.isEnabledFor(logging.DEBUG) else None,
    )


def _loop_recovered(event: e.LoopRecovered) -> None:
    log.info("loop %s works again after %d failure(s)", event.loop, event.count)


def _clock_jumped(event: e.ClockJumped) -> None:
    log.warning("the clock jumped by %d ms; due times follow it, leases of living workers are kept", event.by_ms)


def _stuck(event: e.HandlerStuck) -> None:
    log.warning(
        "run %s of job %s ignores its end and keeps its seat; %d seat(s) are stuck",
        event.run_id,
        event.job_id,
        event.stuck,
    )


def _refused(event: e.JobRefused) -> None:
    log.error("job %s cannot be planned: %s", event.job_id, plain(event.error))


def _run_started(event: e.RunStarted) -> None:
    log.debug("run %s started, %d ms late", event.run_id, event.late_ms)


def _run_settled(event: e.RunSettled) -> None:
    log.debug(
        "run %s: %s (%s) in %d ms %s", event.run_id, event.verdict, event.answer, event.duration_ms, plain(event.error)
    )


def _runs_fired(event: e.RunsFired) -> None:
    log.debug("%d run(s) fired, at most %d ms late", event.count, event.late_ms_max)


_ALWAYS: dict[type[e.Event], e.Listener] = {
    e.NodeStarted: _node_started,
    e.NodeStopped: _node_stopped,
    e.JobsDeclared: _jobs_declared,
    e.TermWon: _term_won,
    e.TermLost: _term_lost,
    e.LeaseWasLost: _lease_lost,
    e.LoopFailed: _loop_failed,
    e.LoopRecovered: _loop_recovered,
    e.ClockJumped: _clock_jumped,
    e.HandlerStuck: _stuck,
    e.JobRefused: _refused,
}
_EACH_RUN: dict[type[e.Event], e.Listener] = {
    e.RunHeld: _held,
    e.RunStarted: _run_started,
    e.RunSettled: _run_settled,
    e.RunsFired: _runs_fired,
}
