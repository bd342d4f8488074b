"""What code runs for a job?  The user's side: handlers by name, the context they are called with, their results.

Only code that was registered here can run: stored rows and API bodies name handlers, never modules.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from threading import Event as Flag
from typing import Any

import msgspec
from msgspec import Struct

from pollux.clock import Clock
from pollux.errors import InvalidInput, NotFound
from pollux.ids import check_key
from pollux.model import Cause, Job, Outcome, Run, run_of
from pollux.model.params import RESULT_BYTES_MAX, check_params, priority_of
from pollux.units import duration_ms, format_size

FOLLOW_UPS_MAX = 100


class Changed(Struct, frozen=True):
    """Return it from a handler: the target changed, and this is the result."""

    value: Any = None


class Unchanged(Struct, frozen=True):
    """Return it from a handler: the target is as it was; the earlier result stands."""


class Handler:
    """A function under a name, and what its signature says about its params."""

    def __init__(self, name: str, call: Callable[..., Any], *, timeout_ms: int | None = None) -> None:
        if not callable(call):
            raise InvalidInput(f"handler {name!r} is not callable", cure="register a function")
        self.name, self.call, self.timeout_ms = name, call, timeout_ms
        self.is_async = inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(
            getattr(call, "__call__", None)  # noqa: B004  an object whose __call__ is async
        )
        self._read_signature()

    def _read_signature(self) -> None:
        parameters = list(inspect.signature(self.call).parameters.values())
        self.wants_ctx = bool(parameters) and (
            parameters[0].name == "ctx" or parameters[0].annotation in (Context, "Context")
        )
        named = parameters[1:] if self.wants_ctx else parameters
        self.takes_any = any(p.kind is p.VAR_KEYWORD for p in named)
        named = [p for p in named if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        self.allowed = frozenset(p.name for p in named)
        self.required = frozenset(p.name for p in named if p.default is p.empty)

    def bind(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """The params as keyword arguments, or an error that names what is missing or unknown."""
        if not params and not self.required:
            return params
        names = params.keys()
        missing = self.required - names
        unknown = () if self.takes_any else names - self.allowed
        if missing or unknown:
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
                cure=f"it takes {', '.join(sorted(self.allowed)) or 'none'}",
            )
        return params

    def invoke(self, ctx: Context, kwargs: Mapping[str, Any]) -> Any:
        """Call the function; for an async one the answer is its coroutine."""
        return self.call(ctx, **kwargs) if self.wants_ctx else self.call(**kwargs)


class Registry:
    """Handlers by name, and the jobs this process knows (for follow-ups)."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}
        self._jobs: dict[str, Job] = {}

    def add(self, name: str, call: Callable[..., Any], *, timeout: str | float | None = None) -> Handler:
        known = self._handlers.get(name)
        if known is not None and known.call is not call:
            raise InvalidInput(
                f"two handlers are called {name!r}: {_place(known.call)} and {_place(call)}",
                cure="give one of them another name: @app.handler(name=...)",
            )
        handler = Handler(name, call, timeout_ms=None if timeout is None else duration_ms(timeout))
        self._handlers[name] = handler
        return handler

    def get(self, name: str) -> Handler | None:
        return self._handlers.get(name)

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._handlers))

    def of(self, call: Callable[..., Any]) -> Handler | None:
        """The handler that was made of this function."""
        return next((handler for handler in self._handlers.values() if handler.call is call), None)

    def know(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            self._jobs[job.id] = job

    def forget(self, job_ids: Iterable[str]) -> None:
        for job_id in job_ids:
            self._jobs.pop(job_id, None)

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


class Context:
    """What a handler may know and do while it runs.  Its own values, safe to read from any thread."""

    def __init__(
        self, run: Run, job: Job, handler: Handler, clock: Clock, deadline_ms: int, registry: Registry | None = None
    ) -> None:
        self.run, self.job, self.handler = run, job, handler
        self.attempt = run.attempt + 1
        self.deadline_ms = deadline_ms
        self.follow_ups: list[Run] = []
        self.last_progress: str = ""
        self.cancel_reason = ""
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
        return self._cancelled.wait(seconds)

    def progress(self, value: float | str, of: float | None = None) -> None:
        """Say how far it is: a fraction (0.4), a count (`progress(3, of=10)`) or words."""
        if isinstance(value, str):
            self.last_progress = value[:200]
        else:
            self.last_progress = f"{value / of if of else value:.0%}"

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
        target, payload = self._registry.job(job), check_params(params) if params else None
        handler = self._registry.get(target.handler)
        if handler is not None:
            handler.bind({**target.params, **(payload or {})})
        seed = f"{self.run.id}\x1f{len(self.follow_ups)}".encode()
        run = run_of(
            target,
            self._clock.now_ms() + (duration_ms(delay) if delay else 0),
            Cause.ENQUEUED,
            payload,
            id=f"{target.id}>{hashlib.blake2b(seed, digest_size=10).hexdigest()}",
            key=check_key(key),
            priority=None if priority is None else priority_of(priority),
        )
        self.follow_ups.append(run)
        return run.id


def outcome_of(value: object, *, job: Job, started_ms: int, ended_ms: int) -> Outcome:
    """What a handler's return value means: the result, and whether the target changed."""
    if value is None:
        return Outcome(started_ms=started_ms, ended_ms=ended_ms)
    if isinstance(value, Unchanged):
        return Outcome(started_ms, ended_ms, changed=False, fingerprint=job.memory.fingerprint)
    said = isinstance(value, Changed)
    plain, encoded = _as_json(value.value if isinstance(value, Changed) else value)
    fingerprint = hashlib.blake2b(encoded, digest_size=12).hexdigest()
    changed = said or fingerprint != job.memory.fingerprint
    return Outcome(started_ms, ended_ms, result=plain, changed=changed, fingerprint=fingerprint)


def _as_json(value: object) -> tuple[Any, bytes]:
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
    return msgspec.json.decode(encoded), encoded


def _place(call: Callable[..., Any]) -> str:
    return f"{getattr(call, '__module__', '?')}.{getattr(call, '__qualname__', call)}"
