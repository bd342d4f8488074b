"""Explanations of why a job or a run runs or does not, computed from the store alone.

The leader is not asked, so the result is the same on every node, also without a leader.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from pollux.errors import InvalidInput, Unreadable
from pollux.model import (
    AHEAD_MAX,
    API_SOURCE,
    AT_THE_GATE,
    STOP,
    Cause,
    Drained,
    Interval,
    Job,
    Node,
    Note,
    OnEvent,
    Overlap,
    Run,
    RunState,
    blocked_leader,
    leadership,
    serve_words,
    unserved,
)
from pollux.model.leader_notes import CAME_BACK_MS
from pollux.plan.due_decision import lies_ahead
from pollux.plan.gate import UNDECLARED, GateState, drain_of, gate, handlers_of, no_handler, stop_of, stop_words
from pollux.plan.reconcile import is_backed
from pollux.schedule import next_due
from pollux.schedule.interval import next_after
from pollux.units import SECOND_MS, format_ms

_HELD = frozenset({"paused", "disabled", "undeclared", "held", "stranded", "drained", "unreadable"})
CAME_BACK = "it was planned by a clock that was set back since; the leader corrects it"
GRACE_MS = 5_000  # a due time older than this should have been fired


class Why(Struct, frozen=True):
    """`answer` is one word, `reason` a sentence; `expected_ms` is the expected start, `cure` what the user can do."""

    answer: str
    reason: str
    expected_ms: int | None = None
    cure: str = ""

    @property
    def is_held(self) -> bool:
        """Whether it does not run although it should."""
        return self.answer in _HELD


def why_job(
    job: Job,
    *,
    stops: Sequence[Note],
    now_ms: int,
    live: Run | None,
    nodes: Sequence[Node],
    ahead: int | None = None,
    failed: str = "",
) -> Why:
    """Why a job runs or does not, and whether its runs fail.

    `live` is one of its live runs, if there is one, `ahead` as in `why_run`; `nodes` are all living nodes; `failed` is
    the id of its last failed run, if known.
    """
    why = _why_job(job, stops=stops, now_ms=now_ms, live=live, nodes=nodes, ahead=ahead)
    failing = failing_words(job, live, now_ms)
    if not failing or failing in why.reason:
        return why
    seen = live.id if live is not None and not job.memory.failures else failed
    where = f"show {seen}" if seen else f"--job {job.id} --failed"
    cures = (why.cure, "" if why.is_held and why.cure else f"see what went wrong: pollux runs {where}")
    return replace(why, reason=f"{why.reason}; {failing}", cure="; ".join(filter(None, cures)))


def failing_words(job: Job, live: Run | None, now_ms: int) -> str:
    """How often, since when and with which error a job fails, or its live run that waits for a retry; else empty."""
    memory = job.memory
    if not memory.failures:
        return _later(live, now_ms) if live is not None and live.is_retried_at(now_ms) else ""
    error, ago = memory.last_error or "no error message", _ago(memory.failing_since_ms, now_ms)
    if memory.failures == 1:
        return f"its last run failed{ago and f' {ago}'}: {error}"
    return f"it fails: {memory.failures} times in a row{ago and f', first {ago}'}; the last error: {error}"


def _why_job(
    job: Job, *, stops: Sequence[Note], now_ms: int, live: Run | None, nodes: Sequence[Node], ahead: int | None
) -> Why:
    by_key = {stop.key: stop for stop in stops}
    if live is not None and not live.overlaps_at(now_ms) and job.next_due_ms is not None:
        live = None  # it is delayed and does not block the next due time
    if live is not None and live.state is not RunState.HELD:
        why = why_run(live, job, stops=stops, nodes=nodes, ahead=ahead, now_ms=now_ms)
        return replace(why, reason=why.reason + _meanwhile(job, live))
    if not job.enabled:
        words = "it is disabled; its due times do not come" if _has_dues(job) else "it is disabled"
        return Why("disabled", words, cure="enable the job")
    stop = stop_of(by_key, job_id=job.id, group=job.group, target=job.target, now_ms=now_ms)
    if stop is not None:
        words = stop_words(stop) + ("; due times meanwhile are skipped and counted" if job.is_recurring else "")
        return Why("paused", words, _after_pause(job, stop.expires_ms), _resume(stop))
    if live is not None:
        return why_run(live, job, stops=stops, nodes=nodes, ahead=ahead, now_ms=now_ms)
    if not job.declared:
        words = "; its due times are skipped and counted" if _has_dues(job) else ""
        return Why("undeclared", f"{_retired(job)}{words}", cure=_start_one(job, nodes))
    if job.next_due_ms is None:
        return _never(job, nodes)
    coming = _coming(job, job.next_due_ms, nodes, now_ms)
    serving = _serving(job.scheduler_version, nodes)
    drain = None if coming.is_held else drain_of(stops, _having(job, serving), now_ms)
    if drain is None:
        return coming
    words = f"{coming.reason}, and its run will wait: {drain}"
    return Why("drained", words, drain.expires_ms, drain.cure)


def _after_pause(job: Job, end_ms: int | None) -> int | None:
    """The first due time after a pause; that of a job without recurring due times waits for the end of the pause."""
    due_ms = job.next_due_ms
    if end_ms is None or due_ms is None or due_ms >= end_ms:
        return None if end_ms is None else due_ms
    if job.schedule is None or not job.is_recurring:
        return end_ms
    if isinstance(job.schedule, Interval):
        return next_after(job.schedule, job.id, end_ms - 1)
    try:
        return next_due(job.schedule, job.id, end_ms - 1)
    except InvalidInput:  # a schedule that cannot be used has no due time
        return None


def why_unwritten(job: Job, start: str = "") -> Why:
    """Why a declared job that no node has written to the store does not run; `start`: the command for a node."""
    words = f"it is declared here and not in the store yet: no node of {job.source} has started"
    one = f"start one (`{start}`)" if start else "start one"
    return Why("stranded", words, cure=f"{one}; `enqueue` and `run_now` of this program add the job, too")


def why_unreadable(job: Unreadable, run: Run | None = None) -> Why:
    """Why a job that cannot be decoded here, or a waiting run of it, does not run."""
    whose = "it" if run is None else f"its job {job.name}"
    words = f"{whose} cannot be read here ({job.why}): only a node of the release that wrote it fires and runs it"
    cure = f"start such a node; if another program wrote it, put it again or delete it: pollux jobs delete {job.name}"
    return Why("unreadable", words, cure=cure)


def why_unreadable_run(run: Unreadable) -> Why:
    """Why a run that cannot be decoded here does not run; a node that claims it may be able to decode it."""
    words = f"it cannot be read here ({run.why}): a newer release may read it, else it is dead when claimed"
    return Why(
        "unreadable", words, cure=f"start such a node; if another program wrote it: pollux runs cancel {run.name}"
    )


def with_unreadable_runs(why: Why, runs: Sequence[Unreadable]) -> Why:
    """The explanation with a list of the job's live runs that cannot be decoded."""
    named = "".join(f"; {unreadable_words(run)}" for run in runs)
    return replace(why, reason=why.reason + named) if named else why


def unreadable_words(run: Unreadable) -> str:
    return f"its run {run.name} cannot be read here ({run.why})"


def _has_dues(job: Job) -> bool:
    return job.schedule is not None and not isinstance(job.schedule, OnEvent)


def _serving(version: int, nodes: Sequence[Node]) -> list[Node]:
    return [node for node in nodes if node.serves(version)]


def _having(job: Job | None, nodes: Sequence[Node]) -> list[Node]:
    """The nodes that can run it."""
    return [node for node in nodes if job is None or job.handler in node.handlers]


def _resume(stop: Note) -> str:
    """The command that ends the pause."""
    kind, _, name = stop.key.removeprefix(STOP).partition(":")
    return f"pollux resume {name if kind == 'job' else f'--{kind} {name}'.rstrip()}"


def _meanwhile(job: Job, live: Run) -> str:
    """What happens to due times while a run of the job is live."""
    if not job.is_recurring or job.next_due_ms is None:
        return ""
    is_waiting = live.state is RunState.READY
    match job.overlap:
        case Overlap.SKIP if is_waiting:
            return "; this one run waits, due times after it are skipped and counted until it has run"
        case Overlap.SKIP:
            return "; due times meanwhile are skipped and counted"
        case Overlap.CANCEL if live.cause is Cause.SCHEDULE:
            return "; the next due time cancels it"
        case Overlap.QUEUE | Overlap.CANCEL:
            return "; one due time meanwhile waits for it"
        case Overlap.ALLOW:
            return "; due times after it wait with it" if is_waiting else ""


def _never(job: Job, nodes: Sequence[Node]) -> Why:
    """Why a job without a next due time does not run."""
    if job.schedule is None:
        return Why("waits", "it has no schedule and runs when asked", cure="run or enqueue it")
    if isinstance(job.schedule, OnEvent):
        return Why("waits", "it fires on events only, never by the clock", cure="send the event, or run it")
    if job.last_due_ms is None and (lack := unserved(job.scheduler_version, nodes)):
        return Why("stranded", f"{lack[0]}: it is neither fired nor run", cure=lack[1])
    if not job.is_recurring and job.last_due_ms is not None:
        return Why("done", "it has fired; a once-job fires once per id", cure="run it, or add it under another id")
    if job.memory.last_error and job.memory.skips.get("broken", 0):
        return Why("held", f"its schedule cannot be used: {job.memory.last_error}", cure="put a schedule that works")
    if job.memory.last_error and job.last_due_ms is None and job.memory.ended == 0:
        return Why("held", f"its schedule cannot be used: {job.memory.last_error}", cure="put a schedule that works")
    if not _serving(job.scheduler_version, nodes):
        return _no_node(job)
    cure = "if it stays so, see that a node leads: pollux nodes"
    return Why("waits", "it was put just now; the leader has not planned it yet", cure=cure)


def _no_node(job: Job) -> Why:
    cure = f"start a node: {serve_words(job.scheduler_version)}"
    return Why("stranded", "no live node: it is neither fired nor run", cure=cure)


def _coming(job: Job, due_ms: int, nodes: Sequence[Node], now_ms: int) -> Why:
    """Why a job with a known next due time does not run now."""
    if lack := unserved(job.scheduler_version, nodes):
        return Why("stranded", f"{lack[0]}: it is neither fired nor run", cure=lack[1])
    all_nodes, nodes = nodes, _serving(job.scheduler_version, nodes)
    if not nodes:
        return _no_node(job)
    if job.handler not in handlers_of(nodes):
        return Why("stranded", no_handler(job.handler), cure=_start_one(job, nodes))
    late_ms = now_ms - due_ms
    led = leadership(all_nodes, now_ms=now_ms, version=job.scheduler_version)
    held = blocked_leader(all_nodes, job.scheduler_version)
    held = held and f"; {held}"
    if late_ms > GRACE_MS and not led.is_led:
        return Why("stranded", f"it was due {_span(late_ms)} ago, and {led.seen}", cure=led.cure)
    if late_ms > GRACE_MS:
        words = f"it was due {_span(late_ms)} ago; missed due times are made up for step by step"
        cure = "if it stays so, look at the CPU and the log of the leader: pollux nodes"
        return Why("due", words + held, now_ms, "pollux health shows the cure" if held else cure)
    if late_ms >= 0:
        return Why("due", f"it is due now{held}", due_ms, "pollux health shows the cure" if held else "")
    words = f"it is due in {_span(-late_ms)}"
    if lies_ahead(job, now_ms):
        words += f", further ahead than its schedule allows: {CAME_BACK}"
        return Why("waits", words, due_ms, "it takes seconds; if it stays so, see that a node leads: pollux nodes")
    return Why("waits", words, due_ms)


def why_run(
    run: Run, job: Job | None, *, stops: Sequence[Note], nodes: Sequence[Node], ahead: int | None, now_ms: int
) -> Why:
    """Why a run runs or does not; `nodes` are all living nodes.

    `ahead`: the number of ready runs that are claimed before it, counted up to `AHEAD_MAX` + 1; None: not counted.
    """
    lack, nodes = unserved(run.scheduler_version, nodes), _serving(run.scheduler_version, nodes)
    match run.state:
        case RunState.HELD | RunState.READY if lack is not None and run.visible_ms <= now_ms:
            return Why("stranded", f"it waits, but {lack[0]}", cure=lack[1])
        case RunState.HELD:
            return _held(run, job, {stop.key: stop for stop in stops}, nodes, now_ms)
        case RunState.READY:
            drain = drain_of(stops, _having(job, nodes), now_ms)
            return _ready(run, job, nodes, ahead, now_ms) if drain is None else _drained(run, drain, now_ms)
        case RunState.LEASED:
            return _leased(run, now_ms)
        case RunState.DONE if run.failed:
            error = run.error or "no error message"
            return Why("failed", f"it failed: {error}; it is not tried again, its job fires anew")
        case RunState.DONE:
            return Why(
                "done", "it is done" if run.finished_ms is None else f"it is done, {_ago(run.finished_ms, now_ms)}"
            )
        case RunState.DEAD:
            cure = f"fix the cause, then revive it: pollux dead revive {run.id}"
            return Why("dead", f"it is a dead letter: {run.error or 'no error message'}", cure=cure)
        case RunState.CANCELLED:
            return Why("cancelled", f"it was cancelled: {run.cancel or run.error or 'no reason recorded'}")


def _held(run: Run, job: Job | None, stops: Mapping[str, Note], nodes: Sequence[Node], now_ms: int) -> Why:
    if run.visible_ms > now_ms:
        return Why("waits", _later(run, now_ms), run.visible_ms)
    if job is not None:
        held = gate(run, job, GateState(stops=stops, handlers=handlers_of(nodes), now_ms=now_ms))
        if held is not None:
            stop = stops.get(held.key)
            if stop is not None:
                return Why("paused", held.reason, stop.expires_ms, _resume(stop))
            reason = held.reason if job.declared else f"{_retired(job)}; it waits until one does"
            return Why("held", reason, cure=_start_one(job, nodes))
    reason = "it is at the gate; the leader checks it next" if run.held_reason in {"", AT_THE_GATE} else ""
    return Why(
        "held", reason or run.held_reason, cure="" if nodes else f"no node lives: {serve_words(run.scheduler_version)}"
    )


def _drained(run: Run, drain: Drained, now_ms: int) -> Why:
    if run.visible_ms > now_ms:
        return Why("waits", _later(run, now_ms), run.visible_ms)
    return Why("drained", f"it is ready, but {drain}", drain.expires_ms, drain.cure)


def _ready(run: Run, job: Job | None, nodes: Sequence[Node], ahead: int | None, now_ms: int) -> Why:
    if run.visible_ms > now_ms:
        return Why("waits", _later(run, now_ms), run.visible_ms)
    if not nodes:
        cure = f"start a node: {serve_words(run.scheduler_version)}"
        return Why("stranded", "it is ready, but no node lives", cure=cure)
    if job is not None and job.handler not in handlers_of(nodes):
        return Why("stranded", f"it is ready, but {no_handler(job.handler)}", cure=_start_one(job, nodes))
    working = [node for node in nodes if not node.draining]
    if not working:
        return Why("stranded", "it is ready, but every live node drains", cure="resume a node, or start one")
    seats = sum(node.seats for node in working)
    free = sum(max(0, node.seats - node.busy) for node in working)
    expected_ms = None if ahead is None else _expected_ms(job, ahead, seats, free, now_ms)
    position = f"; {_runs_ahead(ahead)}" if ahead else ""
    if free == 0:
        words = f"it is ready, but all {seats} seats are busy{position}"
        return Why("ready", words, expected_ms, "add seats or nodes, or wait")
    if ahead is None:
        return Why("ready", "it is ready")
    if ahead >= free:
        return Why(
            "ready", f"it is ready{position}", expected_ms, "add seats or nodes, give it a higher priority, or wait"
        )
    return Why("ready", f"it is ready and will be claimed next{position}", now_ms)


def _runs_ahead(ahead: int) -> str:
    many = f"{ahead:,}" if ahead <= AHEAD_MAX else f"more than {AHEAD_MAX:,}"
    return f"{many} {'run is' if ahead == 1 else 'runs are'} ahead of it"


def _expected_ms(job: Job | None, ahead: int, seats: int, free: int, now_ms: int) -> int | None:
    """When a seat is free for it if all runs ahead take as long as its own job's last run; None: unknown."""
    if job is None or not job.memory.duration_ms or not seats or ahead > AHEAD_MAX:
        return None
    return now_ms + (ahead + seats - free) // seats * job.memory.duration_ms


def _leased(run: Run, now_ms: int) -> Why:
    if run.cancel:
        return Why("running", f"node {run.owner} runs it and was asked to stop: {run.cancel}")
    if run.lease_until_ms <= now_ms:
        words = f"node {run.owner} had it, but its lease is over: the next claim takes it back"
        return Why("ready", words, now_ms, "start a node if none lives")
    return Why("running", f"node {run.owner} runs it, delivery {run.fence}{_failed_before(run)}")


def _failed_before(run: Run) -> str:
    if not run.attempt:
        return ""
    times, error = "once before" if run.attempt == 1 else f"{run.attempt} times before, the last", run.error
    return f"; it failed {times}: {error or 'no error message'}"


def _start_one(job: Job, nodes: Sequence[Node]) -> str:
    """The cure for a job that no living node declares or can run."""
    if not job.declared:
        return f"declare it again, in a release that is not older; or delete it with its waiting runs: {_delete(job)}"
    if job.source == API_SOURCE or is_backed(job, nodes):
        return "start a node that has it"
    return f"no node of {job.source} is alive: start one, or delete the job: {_delete(job)}"


def _retired(job: Job) -> str:
    return f"{UNDECLARED}: {job.source} has no such job" + (f" since release {job.release}" if job.release else "")


def _delete(job: Job) -> str:
    return f"pollux jobs delete {job.id}"


def _later(run: Run, now_ms: int) -> str:
    wait, last = _span(run.visible_ms - now_ms), f"; last progress: {run.progress}" if run.progress else ""
    last += f"; {CAME_BACK}" if _is_ahead(run, now_ms) else ""
    if run.attempt:
        ago, error = _ago(run.failing_since_ms, now_ms), run.error or "no error message"
        times = f"once{ago and f', {ago}'}" if run.attempt == 1 else f"{run.attempt} times{ago and f' since {ago}'}"
        return f"it failed {times} ({error}); tried again in {wait}{last}"
    return f"its time comes in {wait}{last}"


def _is_ahead(run: Run, now_ms: int) -> bool:
    """Whether its last attempt ended, or it was due, in the future: the clock was ahead then."""
    ended_ms = run.tried[-1].ended_ms if run.tried else run.due_ms if run.cause is Cause.SCHEDULE else 0
    return ended_ms > now_ms + CAME_BACK_MS


def _ago(at_ms: int | None, now_ms: int) -> str:
    return "" if at_ms is None else f"{_span(max(0, now_ms - at_ms))} ago"


def _span(ms: int) -> str:
    """A duration for display: without milliseconds from one second on."""
    return format_ms(ms if abs(ms) < SECOND_MS else ms - ms % SECOND_MS)
