"""How do events read as log lines?  One listener a kind; nothing per run above DEBUG."""

from __future__ import annotations

import logging
from collections.abc import Callable

from pollux import events as e

log = logging.getLogger("pollux")


def attach_logs(bus: e.Events) -> Callable[[], None]:
    """Put every event of the bus into words on the logger `pollux`; the answer ends it."""
    listeners = _ALWAYS | (_EACH_RUN if log.isEnabledFor(logging.DEBUG) else {})
    leaves = [bus.listen(kind, listener) for kind, listener in listeners.items()]

    def detach() -> None:
        for leave in leaves:
            leave()

    return detach


def plain(text: object) -> str:
    """Text that cannot break a log line: control characters are escaped, and it is not endless."""
    shown = str(text)[:2_000]
    return shown if shown.isprintable() else shown.encode("unicode_escape").decode("ascii")


def _node_started(event: e.NodeStarted) -> None:
    log.info("node %s started on %s", event.node, event.store)


def _node_stopped(event: e.NodeStopped) -> None:
    log.info("node %s stopped%s", event.node, ", drained" if event.drained else "")


def _term_won(event: e.TermWon) -> None:
    log.info("node %s leads, term %d", event.node, event.term)


def _term_lost(event: e.TermLost) -> None:
    level = logging.INFO if event.resigned else logging.WARNING
    log.log(level, "node %s no longer leads term %d: %s", event.node, event.term, plain(event.why))


def _skipped(event: e.FiringSkipped) -> None:
    log.info(
        "job %s: %d due time(s) up to %d skipped: %s", event.job_id, event.count, event.due_ms, plain(event.reason)
    )


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
    e.TermWon: _term_won,
    e.TermLost: _term_lost,
    e.FiringSkipped: _skipped,
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
