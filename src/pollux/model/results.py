"""Results of store calls that the pure packages read too, and the scheduler version.

Several versions of a deployment can share one store: each has its own jobs, live runs, leader, timers, queues and feed.
The default is `SCHEDULER_VERSION`.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from pollux.errors import InvalidInput


class Answer(StrEnum):
    OK = "ok"
    ALREADY = "already"  # an earlier call with the same id or token did it: equivalent to ok
    LOST = "lost"  # the token is no longer current, or the object no longer exists
    CONFLICT = "conflict"  # of a key, a revision, a release or a source
    STALE = "stale"  # computed from an older revision, or for a job that does not exist
    FENCED = "fenced"  # the term is not the current one
    FULL = "full"  # a queue is full
    BUSY = "busy"  # retry
    OVERLAPPED = "overlapped"  # no run was inserted: another one of the job is live (see `Run.overlaps_at`)
    WAITS = "waits"  # advance only: inserted, but held behind other runs of the job
    UNREAD = "unread"  # advance only: no run was inserted, the feed has an end of the job that the plan has not read


class Counts(Struct, frozen=True):
    """Counts of a version: exact up to 10,000, beyond that at least 10,001, so that a count never scans a store."""

    held: int
    ready: int  # includes runs that wait for a retry or a later time
    leased: int
    dead: int
    feed: int  # unread entries
    ends: int  # unread ends inside them
    jobs: int


def queue_words(counts: Counts, waiting: int) -> str:
    """How many runs are live, by state as `pollux runs` shows it; `waiting` of the ready ones could be claimed.

    Held runs whose time is to come are counted as held: no store counts them apart.
    """
    ready = min(counts.ready, waiting)
    later = counts.ready - ready
    scheduled = f", {later:,} scheduled" if later else ""
    return f"{ready:,} run{'' if ready == 1 else 's'} ready{scheduled}, {counts.held:,} held, {counts.leased:,} leased"


AHEAD_MAX = 100_000  # ready runs ahead of one that a store counts exactly


class QueueDepth(Struct, frozen=True):
    """The ready runs of one priority: the number of visible ones (limited as in `Counts`), and the earliest time."""

    ready: int
    first_ms: int | None  # earliest visible time, also of runs that are not yet visible; None: there is no ready run


class Advanced(Struct, frozen=True):
    """Result of `advance`.  `answer` ok: the plan is written, with an answer for each item; fenced: nothing is."""

    answer: Answer
    now_ms: int
    firings: tuple[Answer, ...] = ()  # ok, already, overlapped, waits, unread, stale
    updates: tuple[Answer, ...] = ()  # ok, stale
    ready: int = 0  # ready runs now
    seats: int = 0  # of living nodes
    waiting: tuple[str, ...] = ()  # releases with `alone` that stay held


SCHEDULER_VERSION = 2
VERSION_MAX = 9_999


class Version(Struct, frozen=True):
    """One version in the store."""

    number: int
    counts: Counts  # `dead` counts all versions: a dead letter belongs to its job, whatever the version of that is
    term: int
    leader: str  # the current leader's node id; empty: none


def check_version(number: int, *, where: str = "scheduler_version") -> int:
    """The number itself; one that no job can be in raises `InvalidInput`."""
    if isinstance(number, bool) or not 1 <= number <= VERSION_MAX:
        raise InvalidInput(f"{number} is no version", where=where, cure=f"use a number from 1 to {VERSION_MAX}")
    return number
