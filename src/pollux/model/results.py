"""What does a store say?  The answers that the pure rooms read too."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class Answer(StrEnum):
    OK = "ok"
    ALREADY = "already"  # the same id or token did it before: as good as ok
    LOST = "lost"  # the token is no longer current, or the thing is gone
    CONFLICT = "conflict"  # a key, a revision, a release or a source stands against it
    STALE = "stale"  # computed from an older revision, or of a job that is not there
    FENCED = "fenced"  # the term is not the current one
    FULL = "full"  # a line is full
    BUSY = "busy"  # try again
    OVERLAPPED = "overlapped"  # no run was made: another of the job is live (see `Run.overlaps_at`)
    WAITS = "waits"  # advance only: made, but held behind other runs of the job
    UNREAD = "unread"  # advance only: no run was made, an end of the job is in the feed that the plan has not read


class Counts(Struct, frozen=True):
    """How many there are: exact to 10,000 and at least 10,001 beyond, so that a count never scans a store."""

    held: int
    ready: int  # waiting for a retry or a later time counts as ready
    leased: int
    dead: int
    feed: int  # unread entries
    ends: int  # unread ends inside them
    jobs: int


def queue_words(counts: Counts, waiting: int) -> str:
    """How many runs are live, by state, as `pollux runs --state` lists them; `waiting`: of them could be claimed."""
    later = max(0, counts.ready - waiting)
    some = f" ({later:,} of them for later)" if later else ""
    many = f"{counts.ready:,} run{'' if counts.ready == 1 else 's'}"
    return f"{many} ready{some}, {counts.held:,} held, {counts.leased:,} leased"


AHEAD_MAX = 100_000  # ready runs ahead of one that a store counts exactly


class QueueDepth(Struct, frozen=True):
    """The ready runs of one priority: how many are visible by now (as in `Counts`), and since when the first."""

    ready: int
    first_ms: int | None  # of those that are not yet visible, too; None: there is none at all


class Advanced(Struct, frozen=True):
    """`answer` ok: the plan is written, item by item as told below.  fenced: nothing is."""

    answer: Answer
    now_ms: int
    firings: tuple[Answer, ...] = ()  # ok, already, overlapped, waits, unread, stale
    updates: tuple[Answer, ...] = ()  # ok, stale
    ready: int = 0  # ready runs now
    seats: int = 0  # of living nodes
    waiting: tuple[str, ...] = ()  # of the releases: those that wait on, because they are not alone
