"""What code runs for a job?  The user's side: handlers by name, the context they are called with, their results.

Only code that was registered here can run: stored rows and API bodies name handlers, never modules.
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
from pollux.model.params import RESULT_BYTES_MAX, priority_of
from pollux.secrets import HIDDEN, check_payload, hide, may_hold_references
from pollux.units import duration_ms, format_size, printable

FOLLOW_UPS_MAX = 100
_LOG = getLogger("pollux.handler")
FINGERPRINT_CHARS_MAX = 400
CODES_MAX = 500  # handlers whose code a beat tells about
OWN_PACKAGE = "pollux"
_KINDS = (str, str, str, int)  # of what a run has of its job


class Changed(Struct, frozen=True):
    """Return it from a handler: the target changed, and this is the result."""

    value: Any = None


class Unchanged(Struct, frozen=True):
    """Return it from a handler: the target is as it was; the earlier result stands."""


class Observed(Struct, frozen=True):
    """Return it from a handler: what was seen and its fingerprint; it changed if that differs from the last one.

    For results that hold more than what is compared (a duration, a status).  The last fingerprint is in
    `ctx.job.memory.fingerprint`; a handler that compares by itself says `changed`: True or False, nothing else.
    """

    value: Any
    fingerprint: str
    changed: bool | None = None


class Rules(Protocol):
    """What a handler knows about its params beyond their names."""

    def check(self, params: Mapping[str, Any], *, partial: bool) -> None:
        """Raise `InvalidInput` for what cannot be used; `partial`: more params come with the asking."""
        ...

    def check_by_api(self, params: Mapping[str, Any]) -> None:
        """Raise `InvalidInput` for what only a job of a file or of code may hold."""
        ...

    def target_of(self, params: Mapping[str, Any]) -> str:
        """The target of a job that names none, or nothing."""
        ...


class Handler:
    """A function under a name, and what its signature and its rules say about its params."""

    def __init__(
        self, name: str, call: Callable[..., Any], *, timeout_ms: int | None = None, rules: Rules | None = None
    ) -> None:
        if not callable(call):
            raise InvalidInput(f"handler {name!r} is not callable", cure="register a function")
        self.name, self.call, self.timeout_ms, self.rules = name, call, timeout_ms, rules
        self.is_async = inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(
            getattr(call, "__call__", None)  # noqa: B004  an object whose __call__ is async
        )
        self.package = str(getattr(call, "__module__", None) or "").partition(".")[0]  # whose code it is
        self._read_signature()

    def _read_signature(self) -> None:
        try:
            parameters = list(inspect.signature(self.call).parameters.values())
        except ValueError as error:  # a function of the interpreter's own that does not tell
            what = f"handler {self.name!r} does not tell which params it takes"
            raise InvalidInput(what, cure="wrap it in a function of your own") from error
        self.wants_ctx = bool(parameters) and (parameters[0].name == "ctx" or _is_context(parameters[0].annotation))
        named = parameters[1:] if self.wants_ctx else parameters
        self._refuse_late_context(parameters[0].name if parameters else "", named)
        self.takes_any = any(p.kind is p.VAR_KEYWORD for p in named)
        named = [p for p in named if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        self.allowed = frozenset(p.name for p in named)
        self.required = frozenset(p.name for p in named if p.default is p.empty)
        self._fitting: tuple[str, ...] | None = None  # names that fitted lately: runs of a job mostly have the same

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
        """A mark of the file that the function is in; nothing if it is ours, or is in no file that can be read."""
        module = str(getattr(self.call, "__module__", None) or type(self.call).__module__)
        file = getattr(sys.modules.get(module), "__file__", None)
        return "" if self.package == OWN_PACKAGE or not file else _mark_of_file(file)

    def bind(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """The params as keyword arguments, or an error that names what is missing or unknown."""
        given = tuple(params)
        if given == self._fitting:
            return params
        names = params.keys()
        if self.required <= names and (self.takes_any or names <= self.allowed):
            self._fitting = given
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
        """The context goes to a first parameter of one name only; people call it otherwise."""
        first = next(iter(inspect.signature(self.call).parameters), "")
        if self.wants_ctx or first not in missing or first not in {"context", "c", "cx", "_", "_ctx", "self"}:
            return ""
        return f"; if {first!r} is to be the run's context, call it ctx, or annotate it: {first}: Context"

    def check(self, params: Mapping[str, Any], *, partial: bool = False) -> None:
        """Would a run with these params be called?  For whoever declares a job or asks for a run.

        `partial`: the params of a job that runs when asked may come with the asking; only what is there is looked at.
        """
        self.bind({**dict.fromkeys(self.required), **params} if partial else params)
        if self.rules is not None:
            self.rules.check(params, partial=partial)

    def adopt(self, job: Job) -> Job:
        """The job as it is to be stored: its params fit, and its target is named."""
        self.check(job.params, partial=job.schedule is None)
        if self.rules is None:
            return job
        if not may_hold_references(job.source):
            self.rules.check_by_api(job.params)
        target = job.target or self.rules.target_of(job.params)
        return job if target == job.target else msgspec.structs.replace(job, target=target)

    def invoke(self, ctx: Context, kwargs: Mapping[str, Any]) -> Any:
        """Call the function; for an async one the answer is its coroutine."""
        return self.call(ctx, **kwargs) if self.wants_ctx else self.call(**kwargs)


def _is_context(annotation: Any) -> bool:
    """Also one that is a text: in quotes, or by `from __future__ import annotations`."""
    if isinstance(annotation, str):
        return annotation.strip("'\"").rpartition(".")[2] == "Context"
    return annotation is Context


@lru_cache(maxsize=256)
def _mark_of_file(path: str) -> str:
    """As it was when the first of its handlers was described, soon after it was imported."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123  a module of the user's
            return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=4)).hexdigest()
    except OSError:
        return ""


class Registry:
    """Handlers by name, and the jobs this process knows (for follow-ups)."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}
        self._jobs: dict[str, Job] = {}
        self._closers: list[Callable[[], Awaitable[None]]] = []
        self._refused: dict[str, InvalidInput] = {}
        self._written: set[str] = set()  # jobs that this process has found in the store, or put there

    def add(
        self,
        name: str,
        call: Callable[..., Any],
        *,
        timeout: str | float | None = None,
        rules: Rules | None = None,
    ) -> Handler:
        known = self._handlers.get(name)
        if known is not None and known.call is not call:
            raise InvalidInput(
                f"two handlers are called {name!r}: {_place(known.call)} and {_place(call)}",
                cure="give one of them another name: @app.handler(name=...)",
            )
        handler = Handler(name, call, timeout_ms=None if timeout is None else duration_ms(timeout), rules=rules)
        self._handlers[name] = handler
        self._refused.pop(name, None)
        return handler

    def refuse(self, name: str, why: InvalidInput) -> None:
        """There is such a handler, but not here: whoever declares a job of it is told why, and so is a run of it."""
        self._refused[name] = why

    def refusal(self, name: str) -> InvalidInput | None:
        return self._refused.get(name)

    def get(self, name: str) -> Handler | None:
        return self._handlers.get(name)

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._handlers))

    def codes(self) -> tuple[str, ...]:
        """Marks of the files with their code, in the order of `names`, of so many as a beat carries."""
        return tuple(self._handlers[name].code for name in self.names()[:CODES_MAX])

    def of(self, call: Callable[..., Any]) -> Handler | None:
        """The handler that was made of this function."""
        return next((handler for handler in self._handlers.values() if handler.call is call), None)

    def adopt(self, job: Job) -> Job:
        """The job as it is to be stored; one of a handler that is not known here is left as it is."""
        if (refusal := self._refused.get(job.handler)) is not None:
            raise refusal
        handler = self._handlers.get(job.handler)
        return job if handler is None else handler.adopt(job)

    def trial(self) -> Registry:
        """One that knows the same: what is tried on it changes nothing here."""
        other = Registry()
        other._handlers, other._jobs, other._refused = dict(self._handlers), dict(self._jobs), dict(self._refused)
        return other

    def take(self, other: Registry) -> None:
        """Handlers that were tried are known from now on; none is forgotten: others may have jobs of it."""
        self._handlers |= other._handlers
        self._refused = {name: why for name, why in self._refused.items() if name not in self._handlers}

    def at_close(self, close: Callable[[], Awaitable[None]]) -> None:
        """Have it called when the node has stopped: handlers give back what they opened."""
        self._closers.append(close)

    async def close(self) -> None:
        for close in self._closers:
            await close()

    def know(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            self._jobs[job.id] = job

    def forget(self, job_ids: Iterable[str]) -> None:
        for job_id in job_ids:
            self._jobs.pop(job_id, None)

    def unwritten(self, job_id: str) -> Job | None:
        """A job that this program declares, unless it has been in the store: what is missing then was deleted."""
        return None if job_id in self._written else self._jobs.get(job_id)

    def mark_written(self, job_ids: Iterable[str]) -> None:
        self._written.update(job_id for job_id in job_ids if job_id in self._jobs)

    def job(self, ref: object) -> Job:
        """The job meant by a Job, an id or a decorated function."""
        if isinstance(ref, Job):
            return ref
        job = self._jobs.get(job_id_of(ref))
        if job is None:
            raise NotFound(
                "job", job_id_of(ref), cure="declare it in this process, or enqueue it by `await app.enqueue`"
            )
        return job


def job_id_of(ref: object) -> str:
    """The id meant by a Job, an id, or a function decorated with `@app.job`."""
    if isinstance(ref, Job):
        return ref.id
    if isinstance(ref, str):
        return ref
    job_id = getattr(ref, "pollux_job_id", None)
    if isinstance(job_id, str):
        return job_id
    raise InvalidInput(f"{ref!r} is not a job", cure="pass a job's id, a Job, or a function decorated with @app.job")


class RunLog(LoggerAdapter[Logger]):
    """A logger whose lines carry whose they are, besides what they are given."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(kwargs.get("extra") or {}), **(self.extra or {})}
        return msg, kwargs


class Context:
    """What a handler may know and do while it runs.  Its own values, safe to read from any thread."""

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
        self._now_ms = now_ms or clock.now_ms  # the store's time, as well as it is known
        self.attempt = run.attempt + 1  # failures before this one, and one
        self.delivery = run.fence  # deliveries, with those that were handed back before a handler began
        self.deadline_ms = deadline_ms
        self.follow_ups: list[Run] = []
        self._progress = ""
        self.cancel_reason = ""
        self.traceparent = ""  # of this attempt, where runs have traces
        self._clock, self._registry = clock, registry
        self._cancelled: Flag | None = None

    @property
    def deadline(self) -> datetime:
        """When the attempt is cut off."""
        return datetime.fromtimestamp(self.deadline_ms / 1000, UTC)

    @property
    def cancelled(self) -> bool:
        """Has somebody asked this attempt to stop (cancel, timeout, lost lease, shutdown)?"""
        return bool(self.cancel_reason)

    def cancel(self, reason: str) -> None:
        """Ask the handler to stop; the first reason stands."""
        self.cancel_reason = self.cancel_reason or reason
        if self._cancelled is not None:
            self._cancelled.set()

    def wait_cancelled(self, seconds: float) -> bool:
        """For sync handlers: sleep, but wake at once when asked to stop."""
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
        """What `progress` was told last, as it is shown."""
        return self._progress

    def progress(self, value: float | str, words: str = "", *, of: float | None = None) -> None:
        """Say how far it is: a fraction (0.4), a count (`progress(3, of=10)`), words, or a number and words.

        It costs next to nothing: what was said last is sent to the store about once a second.
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
        """Follow up with a run of another job; it is accepted in the same write as this run's success, or not at all.

        The id of the new run is derived from this one, so a second attempt cannot make a second one.
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
        if (type(run.job_id), type(run.group), type(run.target), type(run.priority)) != _KINDS:
            raise InvalidInput(f"{_short(job)} cannot be used", cure="make jobs with the fields and kinds of `Job`")
        self.follow_ups.append(run)
        return run.id


def progress_text(value: float | str, words: str = "", *, of: float | None = None) -> str:
    """One short line that any store and terminal can take: "40%", "30% (3 of 10) reading", "reading"."""
    if isinstance(value, str):
        share: str = value
    else:
        share = f"{value / of:.0%} ({value:,} of {of:,})" if of else f"{value:.0%}"
    said = f"{share} {words}"  # joined: plain text, whatever kind of text they were
    return printable(hide(said[: 10 * PROGRESS_CHARS_MAX]).strip())[:PROGRESS_CHARS_MAX]


def outcome_of(value: object, *, job: Job, started_ms: int, ended_ms: int) -> Outcome:
    """What a handler's return value means: the result, and whether the target changed."""
    if value is None:
        return Outcome(started_ms=started_ms, ended_ms=ended_ms)
    if inspect.iscoroutine(value):
        value.close()
        raise InvalidInput("the handler returned a coroutine", cure="await it: async def, and `return await ...`")
    if isinstance(value, Unchanged):
        return Outcome(started_ms, ended_ms, changed=False, fingerprint=job.memory.fingerprint)
    if isinstance(value, Observed):
        return _observed(value, job, started_ms=started_ms, ended_ms=ended_ms)
    said = isinstance(value, Changed)
    plain, encoded = as_json(value.value if isinstance(value, Changed) else value)
    fingerprint = hashlib.blake2b(encoded, digest_size=12).hexdigest()
    changed = said or fingerprint != job.memory.fingerprint
    return Outcome(started_ms, ended_ms, result=plain, changed=changed, fingerprint=fingerprint)


def _observed(seen: Observed, job: Job, *, started_ms: int, ended_ms: int) -> Outcome:
    seen = checked(seen)
    mark = HIDDEN.hide_in(seen.fingerprint)
    plain, _ = as_json(seen.value)
    changed = mark != job.memory.fingerprint if seen.changed is None else seen.changed
    return Outcome(started_ms, ended_ms, result=plain, changed=changed, fingerprint=mark)


def checked(seen: Observed) -> Observed:
    """As it may be recorded; what is of another kind fails the run that made it, before a store sees it."""
    given: Any = seen.fingerprint
    mark = str.__str__(given) if isinstance(given, str) else ""
    if not 0 < len(mark) <= FINGERPRINT_CHARS_MAX or not mark.isprintable():
        raise InvalidInput(
            f"the handler returned {_short(given)} as a fingerprint",
            cure=f"give text of 1 to {FINGERPRINT_CHARS_MAX} printable characters: a hash of what is compared",
        )
    given = seen.changed
    if given is not None and type(given) is not bool:
        raise InvalidInput(
            f"the handler returned Observed(changed={_short(given)})",
            cure="give True or False, as in changed=bool(...), or leave it out: then the fingerprints are compared",
        )
    return Observed(seen.value, mark, given)


def _short(value: object) -> str:
    try:
        return hide(repr(value))[:60]  # before it is cut: half a secret is one, too
    except Exception:  # noqa: BLE001  the handler's own object
        return f"a {type(value).__name__}"


def as_json(value: object) -> tuple[Any, bytes]:
    """A result as plain data and as bytes, or an error that says why it cannot be kept."""
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


def _place(call: Callable[..., Any]) -> str:
    return f"{getattr(call, '__module__', '?')}.{getattr(call, '__qualname__', call)}"
