"""What is asked for, and how does it come?  Filters, and pages with the cursor of the next one."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from pollux.errors import Unreadable
from pollux.model import AuditLine, Job, Run, RunState


class JobFilter(Struct, frozen=True, omit_defaults=True):
    group: str | None = None
    target: str | None = None
    tag: str | None = None
    source: str | None = None
    handler: str | None = None
    text: str | None = None  # part of the id or the name
    scheduler_version: int | None = None  # None: whatever it is, here and below
    priority: int | None = None
    source_id: str | None = None
    enabled: bool | None = None


class JobPage(Struct, frozen=True, omit_defaults=True):
    jobs: tuple[Job, ...]
    next: str | None  # cursor of the next page
    unreadable: tuple[Unreadable, ...] = ()  # jobs that should be among them; where a store finds any, it raises


class RunFilter(Struct, frozen=True, omit_defaults=True):
    states: tuple[RunState, ...] = ()  # none: all
    job_id: str | None = None
    group: str | None = None
    target: str | None = None
    failed: bool | None = None
    finished_after_ms: int | None = None
    error: str | None = None  # part of the error
    scheduler_version: int | None = None


class RunPage(Struct, frozen=True, omit_defaults=True):
    runs: tuple[Run, ...]
    next: str | None
    unreadable: tuple[Unreadable, ...] = ()  # runs that should be among them; where a store finds any, it raises


class LogPage(Struct, frozen=True):
    lines: tuple[AuditLine, ...]
    next: int | None


class DumpPage(Struct, frozen=True):
    """Raw records: `kind` is job, run, note, log or term; `data` is JSON-able."""

    records: tuple[tuple[str, Any], ...]
    next: str | None
