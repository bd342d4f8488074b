"""What did the leader not do itself?  The entries of its inbox, each written in the write that did it."""

from __future__ import annotations

from msgspec import Struct

from pollux.model.run import Cause, RunState


class End(Struct, frozen=True, array_like=True, gc=False):  # gc: a value holds no cycle, and there are many
    """The end of one attempt, by whatever path, and what became of the run."""

    run_id: str
    job_id: str
    state: RunState  # what the run is now
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
    """All that one settle, cancel, claim or delete call ended."""

    ends: tuple[End, ...]

    def mark(self, entry_id: int) -> tuple[int, int]:
        """By which a job knows that it has learnt from this entry.

        The number alone would not do: in another version or store, or in one that was restored, numbers come again.
        """
        return entry_id, self.ends[0].ended_ms if self.ends else 0


class JobsPut(Struct, frozen=True, tag="put"):
    """Jobs were added or changed in one put; `added` of them were new."""

    ids: tuple[str, ...]
    added: int


class JobsDeleted(Struct, frozen=True, tag="deleted"):
    ids: tuple[str, ...]


class JobsMoved(Struct, frozen=True, tag="moved"):
    """Jobs that came into this version, or left it; where they are now is read."""

    ids: tuple[str, ...]


class Arrived(Struct, frozen=True, tag="arrived"):
    """Runs that came to the gate: made gated by somebody else, retried, revived, handed back or moved here."""

    run_ids: tuple[str, ...]


class NotesChanged(Struct, frozen=True, tag="notes"):
    keys: tuple[str, ...]


class NodeSeen(Struct, frozen=True, tag="node"):
    """A node beat for the first time, or with other handlers."""

    node: str


Entry = Ended | JobsPut | JobsDeleted | JobsMoved | Arrived | NotesChanged | NodeSeen


class Spoilt(Struct, frozen=True):
    """An entry that cannot be read: put there by hand, cut off, or of a newer release."""

    why: str
    text: str = ""  # how it stands there, as far as it can be shown


class FeedItem(Struct, frozen=True):
    id: int
    entry: Entry | Spoilt
