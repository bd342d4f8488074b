"""Handler registry: handlers by name, the context they are called with, and their results.

Only registered code can run: stored rows and API bodies name handlers, never modules.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, MutableMapping, Sequence
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from logging import Logger, LoggerAdapter, getLogger
from threading import Event as Flag
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from pollux.clock import Clock
from pollux.errors import InvalidInput, NotFound
from pollux.ids import check_key
from pollux.model import PROGRESS_CHARS_MAX, Cause, Job, Outcome, Run, run_of
from pollux.model.job import RESULT_BYTES_MAX, priority_of
from pollux.secrets import HIDDEN, check_payload, hide, may_hold_references
from pollux.units import duration_ms, format_size, printable

FOLLOW_UPS_MAX = 100
_LOG = getLogger("pollux.handler")
FINGERPRINT_CHARS_MAX = 400
CODES_MAX = 500  # handlers whose code fingerprint a heartbeat carries
OWN_PACKAGE = "pollux"
_COPIED_TYPES = (str, str, str, int)  # types of the fields that a run copies from its job


class Changed(Struct, frozen=True):
    """Handler result: the target changed, and this is its value."""

    value: Any = None


class Unchanged(Struct, frozen=True):
    """Handler result: the target is unchanged, and the earlier result stays."""


class Observed(Struct, frozen=True):
    """Handler result: a value and its fingerprint; the target changed if the fingerprint differs from the last one.

    For values with parts that must not be compared (a duration, a status).  The last fingerprint is in
    `ctx.job.memory.fingerprint`; a handler that compares by itself sets `changed` to True or False.
    """

    value: Any
    fingerprint: str
    changed: bool | None = None


class Rules(Protocol):
    """A handler's checks of its params, beyond their names."""

    def check(self, params: Mapping[str, Any], *, partial: bool) -> None:
        """Raise `InvalidInput` for invalid params; `partial`: the payload of a run may add more."""
        ...

    def check_by_api(self, params: Mapping[str, Any]) -> None:
        """Raise `InvalidInput` for params that only a job of a file or of code may have."""
        ...

    def target_of(self, params: Mapping[str, Any]) -> str:
        """The target of a job that names none, or an empty text."""
        ...


class Handler:
    """A function under a name, with the params that its signature and its rules allow."""

    def __init__(
        self, name: str, call: Callable[..., Any], *, timeout_ms: int | None = None, rules: Rules | None = None
    ) -> None:
        if not callable(call):
            raise InvalidInput(f"handler {name!r} is not callable", cure="register a function")
        self.name, self.call, self.timeout_ms, self.rules = name, call, timeout_ms, rules
        self.is_async = inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(
            getattr(call, "__call__", None)  # noqa: B004  an object whose __call__ is async
        )
        self.package = str(getattr(call, "__module__", None) or "").partition(".")[0]
        self._read_signature()

    def _read_signature(self) -> None:
        try:
            parameters = list(inspect.signature(self.call).parameters.values())
        except ValueError as error:  # some built-in functions have no signature
            what = f"handler {self.name!r} has no signature, so its params are unknown"
            raise InvalidInput(what, cure="wrap it in a function of your own") from error
        self.wants_ctx = bool(parameters) and (parameters[0].name == "ctx" or _is_context(parameters[0].annotation))
        named = parameters[1:] if self.wants_ctx else parameters
        self._refuse_late_context(parameters[0].name if parameters else "", named)
        self.takes_any = any(p.kind is p.VAR_KEYWORD for p in named)
        named = [p for p in named if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        self.allowed = frozenset(p.name for p in named)
        self.required = frozenset(p.name for p in named if p.default is p.empty)
        self._fitting: tuple[str, ...] | None = None  # the latest names that fitted: runs mostly have the same ones

    def _refuse_late_context(self, first: str, named: Sequence[inspect.Parameter]) -> None:
        if self.wants_ctx or not any(p.name == "ctx" and p.default is p.empty for p in named):
            return
        if first == "self":
            cure = "register that of an object, as in app.handler(shop.work), or a function outside of the class"
            raise InvalidInput(f"{self.name!r} takes self: a method is no handler", cure=cure)
        others = ", ".join(p.name for p in named if p.name != "ctx")
        raise InvalidInput(f"handler {self.name!r}: ctx comes first", cure=f"write def {self.name}(ctx, {others})")

    @cached_property
    def code(self) -> str:
        """The digest of the function's file; empty for our own code and for files that cannot be read."""
        module = str(getattr(self.call, "__module__", None) or type(self.call).__module__)
        file = getattr(sys.modules.get(module), "__file__", None)
        return "" if self.package == OWN_PACKAGE or not file else _digest_of_file(file)

    def bind(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """The params as keyword arguments; missing or unknown ones raise `InvalidInput`."""
        ordered = tuple(params)
        if ordered == self._fitting:
            return params
        names = params.keys()
        if self.required <= names and (self.takes_any or names <= self.allowed):
            self._fitting = ordered
            return params
        missing = self.required - names
        unknown = () if self.takes_any else names - self.allowed
        raise InvalidInput(
            f"the params do not fit handler {self.name!r}: "
            + "; ".join(
                part
                for part in (
                    f"missing {', '.join(sorted(missing))}" if missing else "",
                    f"unknown {', '.join(sorted(unknown))}" if unknown else "",
                )
                if part
            ),
            cure=f"it takes {', '.join(sorted(self.allowed)) or 'none'}{self._context_hint(missing)}",
        )

    def _context_hint(self, missing: Collection[str]) -> str:
        """A hint if the first parameter looks like a context under another name than `ctx`."""
        first = next(iter(inspect.signature(self.call).parameters), "")
        if self.wants_ctx or first not in missing or first not in {"context", "c", "cx", "_", "_ctx", "self"}:
            return ""
        return f"; if {first!r} is to be the run's context, call it ctx, or annotate it: {first}: Context"

    def check(self, params: Mapping[str, Any], *, partial: bool = False) -> None:
        """Check the params of a job that is declared, or of a run that is enqueued.

        `partial`: the job runs on request, whose payload may add params; only the present ones are checked.
        """
        self.bind({**dict.fromkeys(self.required), **params} if partial else params)
        if self.rules is not None:
            self.rules.check(params, partial=partial)

    def adopt(self, job: Job) -> Job:
        """The job to store: its params are checked and its target is set."""
        self.check(job.params, partial=job.schedule is None)
        if self.rules is None:
            return job
        if not may_hold_references(job.source):
            self.rules.check_by_api(job.params)
        target = job.target or self.rules.target_of(job.params)
        return job if target == job.target else msgspec.structs.replace(job, target=target)

    def invoke(self, ctx: Context, kwargs: Mapping[str, Any]) -> Any:
        """Call the function; an async one returns its coroutine."""
        return self.call(ctx, **kwargs) if self.wants_ctx else self.call(**kwargs)


def _is_context(annotation: Any) -> bool:
    """Whether the annotation is `Context`, also as text: in quotes, or by `from __future__ import annotations`."""
    if isinstance(annotation, str):
        return annotation.strip("'\"").rpartition(".")[2] == "Context"
    return annotation is Context


@lru_cache(maxsize=256)
def _digest_of_file(path: str) -> str:
    """The digest of the file at the first call, soon after its import; cached, as the file may be edited later."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123  a module of the user's
            return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=4)).hexdigest()
    except OSError:
        return ""


class Registry:
    """Handlers by name, and the jobs that this process declares (for follow-ups)."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}
        self._jobs: dict[str, Job] = {}
        self._closers: list[Callable[[], Awaitable[None]]] = []
        self._refused: dict[str, InvalidInput] = {}
        self._written: set[str] = set()  # jobs that this process has read from the store or written to it

    def add(
        self, name: str, call: Callable[..., Any], *, timeout: str | float | None = None, rules: Rules | None = None
    ) -> Handler:
        known = self._handlers.get(name)
        if known is not None and known.call is not call:
            raise InvalidInput(
                f"two handlers are called {name!r}: {_qualified_name(known.call)} and {_qualified_name(call)}",
                cure="give one of them another name: @app.handler(name=...)",
            )
        handler = Handler(name, call, timeout_ms=None if timeout is None else duration_ms(timeout), rules=rules)
        self._handlers[name] = handler
        self._refused.pop(name, None)
        return handler

    def refuse(self, name: str, why: InvalidInput) -> None:
        """Make a handler unavailable in this process: declaring or running a job of it raises `why`."""
        self._refused[name] = why

    def refusal(self, name: str) -> InvalidInput | None:
        return self._refused.get(name)

    def get(self, name: str) -> Handler | None:
        return self._handlers.get(name)

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._handlers))

    def codes(self) -> tuple[str, ...]:
        """Digests of the handlers' files, in the order of `names`, as many as a heartbeat carries."""
        return tuple(self._handlers[name].code for name in self.names()[:CODES_MAX])

    def of(self, call: Callable[..., Any]) -> Handler | None:
        """The handler of this function."""
        return next((handler for handler in self._handlers.values() if handler.call is call), None)

    def adopt(self, job: Job) -> Job:
        """The job to store; a job of an unknown handler is returned unchanged."""
        if (refusal := self._refused.get(job.handler)) is not None:
            raise refusal
        handler = self._handlers.get(job.handler)
        return job if handler is None else handler.adopt(job)

    def trial(self) -> Registry:
        """A copy for trying a new configuration, without effect on this registry."""
        other = Registry()
        other._handlers, other._jobs, other._refused = dict(self._handlers), dict(self._jobs), dict(self._refused)
        return other

    def take(self, other: Registry) -> None:
        """Take over the handlers of a trial; none is removed, as other sources may have jobs of it."""
        self._handlers |= other._handlers
        self._refused = {name: why for name, why in self._refused.items() if name not in self._handlers}

    def at_close(self, close: Callable[[], Awaitable[None]]) -> None:
        """Call `close` after the node has stopped, so that handlers release their resources."""
        self._closers.append(close)

    async def close(self) -> None:
        for close in self._closers:
            await close()

    def add_jobs(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            self._jobs[job.id] = job

    def forget(self, job_ids: Iterable[str]) -> None:
        for job_id in job_ids:
            self._jobs.pop(job_id, None)

    def unwritten(self, job_id: str) -> Job | None:
        """A declared job that has never been in the store; None for others: one that is missing there was deleted."""
        return None if job_id in self._written else self._jobs.get(job_id)

    def mark_written(self, job_ids: Iterable[str]) -> None:
        self._written.update(job_id for job_id in job_ids if job_id in self._jobs)

    def job(self, ref: object) -> Job:
        """The job of a Job, an id or a decorated function."""
        if isinstance(ref, Job):
            return ref
        job = self._jobs.get(job_id_of(ref))
        if job is None:
            raise NotFound(
                "job", job_id_of(ref), cure="declare it in this process, or enqueue it by `await app.enqueue`"
            )
        return job


def job_id_of(ref: object) -> str:
    """The job id of a Job, an id, or a function decorated with `@app.job`."""
    if isinstance(ref, Job):
        return ref.id
    if isinstance(ref, str):
        return ref
    job_id = getattr(ref, "pollux_job_id", None)
    if isinstance(job_id, str):
        return job_id
    raise InvalidInput(f"{ref!r} is not a job", cure="pass a job's id, a Job, or a function decorated with @app.job")


class RunLog(LoggerAdapter[Logger]):
    """A logger that adds the ids of a run to the `extra` fields of each line."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(kwargs.get("extra") or {}), **(self.extra or {})}
        return msg, kwargs


class Context:
    """Context of one attempt, passed to its handler; safe to read from any thread."""

    def __init__(
        self,
        run: Run,
        job: Job,
        handler: Handler,
        clock: Clock,
        deadline_ms: int,
        registry: Registry | None = None,
        *,
        now_ms: Callable[[], int] | None = None,
    ) -> None:
        self.run, self.job, self.handler = run, job, handler
        self._now_ms = now_ms or clock.now_ms  # the estimated time of the store
        self.attempt = run.attempt + 1  # counted from 1; earlier ones failed
        self.delivery = run.fence  # also counts deliveries that were handed back before a handler began
        self.deadline_ms = deadline_ms
        self.follow_ups: list[Run] = []
        self._progress = ""
        self.cancel_reason = ""
        self.traceparent = ""  # of this attempt, if tracing is on
        self._clock, self._registry = clock, registry
        self._cancelled: Flag | None = None

    @property
    def deadline(self) -> datetime:
        """The time at which the attempt times out."""
        return datetime.fromtimestamp(self.deadline_ms / 1000, UTC)

    @property
    def cancelled(self) -> bool:
        """Whether this attempt should stop (cancel, timeout, lost lease, shutdown)."""
        return bool(self.cancel_reason)

    def cancel(self, reason: str) -> None:
        """Request the handler to stop; the first reason is kept."""
        self.cancel_reason = self.cancel_reason or reason
        if self._cancelled is not None:
            self._cancelled.set()

    def wait_cancelled(self, seconds: float) -> bool:
        """Sleep in a sync handler, but wake at once when the attempt should stop."""
        if self._cancelled is None:
            self._cancelled = Flag()
        if self.cancelled:
            return True
        self._clock.wait_in_thread(self._cancelled, seconds)
        return self.cancelled

    @property
    def log(self) -> RunLog:
        """A logger whose lines carry the ids of the run and the job: `ctx.log.info("read %d rows", count)`."""
        return RunLog(_LOG, {"run_id": self.run.id, "job_id": self.job.id, "attempt": self.attempt})

    @property
    def last_progress(self) -> str:
        """The latest progress, as it is shown."""
        return self._progress

    def progress(self, value: float | str, words: str = "", *, of: float | None = None) -> None:
        """Report progress: a fraction (0.4), a count (`progress(3, of=10)`), words, or a number and words.

        The call is cheap: only the latest value is sent to the store, about once a second.
        """
        self._progress = progress_text(value, words, of=of)

    def enqueue(
        self,
        job: object,
        params: dict[str, Any] | None = None,
        *,
        key: str | None = None,
        delay: str | float = 0,
        priority: int | str | None = None,
    ) -> str:
        """Enqueue a follow-up run of another job, in the same write as this run's success or not at all.

        The id of the new run is derived from this run's id, so a second attempt cannot enqueue a second one.
        """
        if self._registry is None:
            raise InvalidInput("this context has no jobs to follow up with")
        if len(self.follow_ups) >= FOLLOW_UPS_MAX:
            raise InvalidInput(f"a run may have {FOLLOW_UPS_MAX} follow-ups", cure="enqueue them in a run of their own")
        target, payload = self._registry.job(job), check_payload(params) if params else None
        handler = self._registry.get(target.handler)
        if handler is not None:
            handler.check({**target.params, **(payload or {})})
        seed = f"{self.run.id}\x1f{len(self.follow_ups)}".encode()
        run = run_of(
            target,
            self._now_ms() + (duration_ms(delay) if delay else 0),
            Cause.ENQUEUED,
            payload,
            id=f"{target.id}>{hashlib.blake2b(seed, digest_size=10).hexdigest()}",
            key=check_key(key),
            priority=None if priority is None else priority_of(priority),
        )
        if (type(run.job_id), type(run.group), type(run.target), type(run.priority)) != _COPIED_TYPES:
            raise InvalidInput(f"{_short(job)} cannot be used", cure="make jobs with the fields and kinds of `Job`")
        self.follow_ups.append(run)
        return run.id


def progress_text(value: float | str, words: str = "", *, of: float | None = None) -> str:
    """Progress as one short line, safe for any store and terminal: "40%", "30% (3 of 10) reading", "reading"."""
    if isinstance(value, str):
        share: str = value
    else:
        share = f"{value / of:.0%} ({value:,} of {of:,})" if of else f"{value:.0%}"
    text = f"{share} {words}"  # an f-string: a plain str, also of subclasses of str
    return printable(hide(text[: 10 * PROGRESS_CHARS_MAX]).strip())[:PROGRESS_CHARS_MAX]


def outcome_of(value: object, *, job: Job, started_ms: int, ended_ms: int) -> Outcome:
    """The outcome of a handler's return value: the result, and whether the target changed."""
    if value is None:
        return Outcome(started_ms=started_ms, ended_ms=ended_ms)
    if inspect.iscoroutine(value):
        value.close()
        raise InvalidInput("the handler returned a coroutine", cure="await it: async def, and `return await ...`")
    if isinstance(value, Unchanged):
        return Outcome(started_ms, ended_ms, changed=False, fingerprint=job.memory.fingerprint)
    if isinstance(value, Observed):
        return _observed(value, job, started_ms=started_ms, ended_ms=ended_ms)
    is_declared = isinstance(value, Changed)
    plain, encoded = as_json(value.value if isinstance(value, Changed) else value)
    fingerprint = hashlib.blake2b(encoded, digest_size=12).hexdigest()
    changed = is_declared or fingerprint != job.memory.fingerprint
    return Outcome(started_ms, ended_ms, result=plain, changed=changed, fingerprint=fingerprint)


def _observed(observed: Observed, job: Job, *, started_ms: int, ended_ms: int) -> Outcome:
    observed = checked(observed)
    fingerprint = HIDDEN.hide_in(observed.fingerprint)
    plain, _ = as_json(observed.value)
    changed = fingerprint != job.memory.fingerprint if observed.changed is None else observed.changed
    return Outcome(started_ms, ended_ms, result=plain, changed=changed, fingerprint=fingerprint)


def checked(observed: Observed) -> Observed:
    """The result with its fingerprint as plain `str`; wrong types fail the run before they reach a store."""
    value: Any = observed.fingerprint
    fingerprint = str.__str__(value) if isinstance(value, str) else ""
    if not 0 < len(fingerprint) <= FINGERPRINT_CHARS_MAX or not fingerprint.isprintable():
        raise InvalidInput(
            f"the handler returned {_short(value)} as a fingerprint",
            cure=f"give text of 1 to {FINGERPRINT_CHARS_MAX} printable characters: a hash of what is compared",
        )
    value = observed.changed
    if value is not None and type(value) is not bool:
        raise InvalidInput(
            f"the handler returned Observed(changed={_short(value)})",
            cure="give True or False, as in changed=bool(...), or leave it out: then the fingerprints are compared",
        )
    return Observed(observed.value, fingerprint, value)


def _short(value: object) -> str:
    try:
        return hide(repr(value))[:60]  # redacted before the cut, which could split a secret
    except Exception:  # noqa: BLE001  `repr` of a user's object may raise anything
        return f"a {type(value).__name__}"


def as_json(value: object) -> tuple[Any, bytes]:
    """A result as plain data and as bytes, both redacted; one that cannot be stored raises `InvalidInput`."""
    try:
        encoded = msgspec.json.encode(value, order="deterministic")
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise InvalidInput(
            f"the handler returned {type(value).__name__}, which is no JSON: {error}",
            cure="return plain values (dict, list, str, numbers, None)",
        ) from error
    if len(encoded) > RESULT_BYTES_MAX:
        raise InvalidInput(
            f"the handler returned {format_size(len(encoded))}, at most {format_size(RESULT_BYTES_MAX)} are kept",
            cure="return a summary and keep the bulk elsewhere",
        )
    plain = msgspec.json.decode(encoded)
    safe = HIDDEN.hide_in(plain)
    return safe, encoded if safe == plain else msgspec.json.encode(safe, order="deterministic")


def _qualified_name(call: Callable[..., Any]) -> str:
    return f"{getattr(call, '__module__', '?')}.{getattr(call, '__qualname__', call)}"
