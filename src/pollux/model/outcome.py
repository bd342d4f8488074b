"""Outcome (how an attempt ended) and verdict (what follows for its run)."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from msgspec import Struct


class Fault(StrEnum):
    TRANSIENT = "transient"
    PERMANENT = "permanent"


class Outcome(Struct, frozen=True, omit_defaults=True, gc=False):  # gc: a value holds no cycle, and there are many
    """How one attempt ended."""

    started_ms: int
    ended_ms: int
    fault: Fault | None = None
    error: str = ""  # "ConnectionError: refused", capped
    result: Any = None  # JSON
    changed: bool | None = None  # None: unknown
    fingerprint: str = ""
    retry_after_ms: int | None = None  # earliest retry that the target asked for
    crashed: bool = False  # its child process died without a result; the run's `crashes` is incremented
    traceback: str = ""  # lines: the last frames of the user's code, capped


class Done(Struct, frozen=True, tag="done", omit_defaults=True, gc=False):
    """The run is finished.  `failed`: it failed, and the next firing of its job serves as the retry."""

    failed: bool = False
    clears: bool = False  # a success that deletes its recurring job's dead letter


class RetryAt(Struct, frozen=True, tag="retry"):
    """Retry, not before `at_ms`; counted as a failure."""

    at_ms: int


class Dead(Struct, frozen=True, tag="dead", omit_defaults=True):
    """Becomes a dead letter.  `sole`: it replaces the job's earlier dead letter and continues its count."""

    reason: str
    sole: bool = False


class Cancelled(Struct, frozen=True, tag="cancelled"):
    reason: str


class Back(Struct, frozen=True, tag="back", omit_defaults=True):
    """Handed back without counting a failure, ready at once (drain) or not before `at_ms` (a suspect run)."""

    at_ms: int = 0


class Hold(Struct, frozen=True, tag="hold"):
    """Handed back to the gate without counting a failure, with the reason as text (stopped, unknown handler)."""

    reason: str


Verdict = Done | RetryAt | Dead | Cancelled | Back | Hold
