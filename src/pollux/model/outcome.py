"""How did an attempt end (outcome), and what follows from it (verdict)?"""

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
    changed: bool | None = None  # None: nobody knows
    fingerprint: str = ""
    retry_after_ms: int | None = None  # the source said not before
    crashed: bool = False  # the child that it ran in died without a word; the run's `crashes` go up
    traceback: str = ""  # lines: the last frames of the user's code where it broke, capped


class Done(Struct, frozen=True, tag="done", omit_defaults=True, gc=False):
    """The run is over.  `failed`: it did not succeed, and the next firing of its job is the retry."""

    failed: bool = False
    clears: bool = False  # a success that takes its recurring job's dead letter away


class RetryAt(Struct, frozen=True, tag="retry"):
    """Again, not before `at_ms`; charged as a failure."""

    at_ms: int


class Dead(Struct, frozen=True, tag="dead", omit_defaults=True):
    """Given up on.  `sole`: it takes the place of the job's earlier dead letter and carries its count on."""

    reason: str
    sole: bool = False


class Cancelled(Struct, frozen=True, tag="cancelled"):
    reason: str


class Back(Struct, frozen=True, tag="back", omit_defaults=True):
    """Handed back uncharged, ready at once (drain), or not before `at_ms` (a suspect waits for its turn)."""

    at_ms: int = 0


class Hold(Struct, frozen=True, tag="hold"):
    """Handed back to the gate uncharged, with the reason in words (stopped, unknown handler)."""

    reason: str


Verdict = Done | RetryAt | Dead | Cancelled | Back | Hold
