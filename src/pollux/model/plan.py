"""Feed and plan: what the leader reads and writes in one turn.

The feed is its inbox of changes by others; each entry is written atomically with the change it reports.  A plan is one
atomic write of absolute values, safe to repeat.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from pollux.model.job import Memory, Overlap
from pollux.model.note import NotePut
from pollux.model.results import Answer
from pollux.model.run import Cause, Run, RunState


class End(Struct, frozen=True, array_like=True, gc=False):  # gc: a value holds no cycle, and there are many
    """The end of one attempt, by any verb, and the state of its run afterwards."""

    run_id: str
    job_id: str
    state: RunState  # the run's state now
    cause: Cause
    due_ms: int
    ended_ms: int
    duration_ms: int = 0
    failed: bool = False
    changed: bool | None = None
    fingerprint: str = ""
    error: str = ""
    gated: bool = False
    ran: bool = True  # False: no handler code ran to its end (cancelled waiting, handed back, lease lost)


class Ended(Struct, frozen=True, tag="ended"):
    """All ends of one settle, cancel, claim or delete call."""

    ends: tuple[End, ...]

    def mark(self, entry_id: int) -> tuple[int, int]:
        """The key by which a job's memory records that it includes this entry.

        The id alone is not unique: another version, another store or a restored one uses the same ids.
        """
        return entry_id, self.ends[0].ended_ms if self.ends else 0


class JobsPut(Struct, frozen=True, tag="put"):
    """Jobs were added or changed in one put; `added` of them were new."""

    ids: tuple[str, ...]
    added: int


class JobsDeleted(Struct, frozen=True, tag="deleted"):
    ids: tuple[str, ...]


class JobsMoved(Struct, frozen=True, tag="moved"):
    """Jobs that were moved into this version or out of it; the leader reads where they are now."""

    ids: tuple[str, ...]


class Arrived(Struct, frozen=True, tag="arrived"):
    """Runs that arrived at the gate: enqueued gated, retried, revived, handed back or moved here."""

    run_ids: tuple[str, ...]


class NotesChanged(Struct, frozen=True, tag="notes"):
    keys: tuple[str, ...]


class NodeSeen(Struct, frozen=True, tag="node"):
    """The first heartbeat of a node, or one with other handlers."""

    node: str


Entry = Ended | JobsPut | JobsDeleted | JobsMoved | Arrived | NotesChanged | NodeSeen


class Spoilt(Struct, frozen=True):
    """An entry that cannot be decoded: written by hand, truncated, or of a newer release."""

    why: str
    text: str = ""  # its raw content, as far as it can be shown


class FeedItem(Struct, frozen=True):
    id: int
    entry: Entry | Spoilt


FIRINGS_MAX = 100  # firings and releases together
UPDATES_MAX = 100
NOTES_MAX = 50
UNREAD_MAX = 1_000  # unread ends that a firing checks, the latest first
BEHIND_MAX = 1_000  # live runs of its job behind which a firing waits


class Firing(Struct, frozen=True, omit_defaults=True):
    """Insert `run` if the job still has `revision` and its last due time is before the run's; advance the job.

    `overlap` is checked inside the write, against the live runs of the job that overlap (`Run.overlaps_at`): firings,
    and requested runs from when they can start.  SKIP inserts no run while there is one.  QUEUE and CANCEL insert it
    held ("waits for the previous run"), or not at all if another one is held so or more than `BEHIND_MAX` overlap.
    ALLOW checks nothing.  CANCEL also requests the leased scheduled runs to stop and, if the new run is inserted,
    cancels those that were waiting; it never cancels requested runs, but waits for them.
    If no run is inserted for that reason, `if_overlapped` becomes the job's memory.

    If none overlaps, all but ALLOW check the feed: the job's memory does not include a run that ended after the plan
    read the feed.  Such a firing is *unread*: no run is inserted, and the job stays due at the same time.
    """

    run: Run
    revision: int
    next_due_ms: int | None
    overlap: Overlap = Overlap.SKIP
    if_overlapped: Memory | None = None


class Release(Struct, frozen=True, omit_defaults=True):
    """Held -> ready.

    `alone`: set for the first attempt of a firing whose job allows no overlap.  The run stays held ("waits for the
    previous run") while another run of its job overlaps that does not wait so itself, or while an end of its job is
    unread (see `Firing`); the answer then names it.  Of several runs of a job in one plan the first is released,
    whatever they were held for.
    """

    run_id: str
    alone: bool = False


class Holding(Struct, frozen=True):
    """The new reason of a held run."""

    run_id: str
    reason: str


class Earlier(Struct, frozen=True):
    """Lower the visible time of a held or ready run to `visible_ms`; no effect if it is earlier already."""

    run_id: str
    visible_ms: int


class CancelOrder(Struct, frozen=True):
    run_id: str
    reason: str


class JobUpdate(Struct, frozen=True, omit_defaults=True):
    """The leader's columns of a job, written only if it still has `revision`.  `last_due_ms` never decreases."""

    job_id: str
    revision: int
    next_due_ms: int | None
    memory: Memory
    last_due_ms: int | None = None


class Plan(Struct, frozen=True, omit_defaults=True):
    consumed: tuple[int, ...] = ()
    spoilt: tuple[int, ...] = ()  # consumed entries that could not be decoded; it is unknown whether they were counted
    read: tuple[int, ...] = ()  # entries that were read but stay; listed if something fires or is released `alone`
    firings: tuple[Firing, ...] = ()
    releases: tuple[Release, ...] = ()
    holds: tuple[Holding, ...] = ()
    earlier: tuple[Earlier, ...] = ()
    cancels: tuple[CancelOrder, ...] = ()
    updates: tuple[JobUpdate, ...] = ()
    notes: tuple[NotePut, ...] = ()

    @property
    def known(self) -> tuple[int, ...]:
        """All entries that were read, consumed or not."""
        return self.read + self.consumed

    @property
    def moves_runs(self) -> bool:
        """Whether it inserts, releases, holds or cancels any run, or lowers its visible time."""
        return bool(self.firings or self.releases or self.holds or self.earlier or self.cancels)

    def kept(self, answers: Sequence[Answer]) -> frozenset[int]:
        """The consumed entries that stay in the feed because the update that includes them was answered STALE."""
        if Answer.STALE not in answers:
            return frozenset()
        stale = [update for update, answer in zip(self.updates, answers, strict=True) if answer is Answer.STALE]
        return frozenset(self.consumed).intersection(number for each in stale for number, _ in each.memory.learnt)

    def is_empty(self) -> bool:
        return not (self.consumed or self.updates or self.notes or self.moves_runs)
