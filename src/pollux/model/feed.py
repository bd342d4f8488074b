"""Feed entries: the leader's inbox of changes by others, each written atomically with the change it reports."""

from __future__ import annotations

from msgspec import Struct

from pollux.model.run import Cause, RunState


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
