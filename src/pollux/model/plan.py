"""What does the leader write in one turn?  A plan: one atomic write of absolute values, harmless to repeat."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from pollux.model.job import Memory, Overlap
from pollux.model.note import NotePut
from pollux.model.results import Answer
from pollux.model.run import Run

FIRINGS_MAX = 100  # firings and releases together
UPDATES_MAX = 100
NOTES_MAX = 50
UNREAD_MAX = 1_000  # unread ends that a firing looks at, the latest first
BEHIND_MAX = 1_000  # live runs of its job behind which a firing waits


class Firing(Struct, frozen=True, omit_defaults=True):
    """Make `run`, if the job still has `revision` and its last due lies before the run's; move the job on.

    `overlap` is a guard kept inside the write, against the live runs of the job that overlap (`Run.overlaps_at`): its
    firings, and what somebody asked for as soon as it could start.  SKIP makes no run while there is one; QUEUE and
    CANCEL make it held ("waits for the previous run"), or none if one waits so already or there are more than
    `BEHIND_MAX`; ALLOW looks at nothing.  CANCEL besides asks the leased runs of the schedule to stop, and if the new
    one is made those that only waited end; what somebody asked for is let be, and waited for.
    Where no run is made for that reason `if_overlapped` becomes the job's memory.

    Where none overlaps, all but ALLOW look into the feed: a run that ended after the plan had read it has taught the
    job nothing yet.  Then the firing is *unread*: no run is made, and the job stays due at this very time.
    """

    run: Run
    revision: int
    next_due_ms: int | None
    overlap: Overlap = Overlap.SKIP
    if_overlapped: Memory | None = None


class Release(Struct, frozen=True, omit_defaults=True):
    """Held -> ready.

    `alone`: a firing that begins, unless its runs may overlap.  It stays held ("waits for the previous run") while
    another run of its job overlaps, but for those that wait so themselves, or while an end of its job is unread (see
    `Firing`); the answer then names it.  Of several of a job in one plan the first begins, whatever they were held for.
    """

    run_id: str
    alone: bool = False


class Holding(Struct, frozen=True):
    """A held run's reason, whenever it changes."""

    run_id: str
    reason: str


class Earlier(Struct, frozen=True):
    """A held or ready run that becomes visible later than at that time: it does then.  Of any other: nothing."""

    run_id: str
    visible_ms: int


class CancelOrder(Struct, frozen=True):
    run_id: str
    reason: str


class JobUpdate(Struct, frozen=True, omit_defaults=True):
    """The leader's own columns of a job, applied only if it still has `revision`.  `last_due_ms` never goes back."""

    job_id: str
    revision: int
    next_due_ms: int | None
    memory: Memory
    last_due_ms: int | None = None


class Plan(Struct, frozen=True, omit_defaults=True):
    consumed: tuple[int, ...] = ()
    spoilt: tuple[int, ...] = ()  # of them: those that could not be read; whether they were ever counted nobody knows
    read: tuple[int, ...] = ()  # entries that it knows, too, but leaves; said if something fires or goes on alone
    firings: tuple[Firing, ...] = ()
    releases: tuple[Release, ...] = ()
    holds: tuple[Holding, ...] = ()
    earlier: tuple[Earlier, ...] = ()
    cancels: tuple[CancelOrder, ...] = ()
    updates: tuple[JobUpdate, ...] = ()
    notes: tuple[NotePut, ...] = ()

    @property
    def known(self) -> tuple[int, ...]:
        """The entries that it has read, consumed or not."""
        return self.read + self.consumed

    @property
    def moves_runs(self) -> bool:
        """Does any run come, go, or go on with it?"""
        return bool(self.firings or self.releases or self.holds or self.earlier or self.cancels)

    def kept(self, answers: Sequence[Answer]) -> frozenset[int]:
        """The consumed entries that stay: an update that was to learn from them is stale, as these answers tell."""
        if Answer.STALE not in answers:
            return frozenset()
        stale = [update for update, answer in zip(self.updates, answers, strict=True) if answer is Answer.STALE]
        return frozenset(self.consumed).intersection(number for each in stale for number, _ in each.memory.learnt)

    def is_empty(self) -> bool:
        return not (self.consumed or self.updates or self.notes or self.moves_runs)
