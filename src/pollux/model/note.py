"""Notes: small named values shared by all nodes, with a revision and optionally an expiry; and audit lines.

A **stop** is a note that forbids runs: `stop:all`, `stop:job:<id>`, `stop:group:<name>`, `stop:target:<name>`.
`stop:claims` suspends all claims while planning goes on (a drain); `stop:claims:<node>` those of one node.

A **setting** is a note that overrides an option of all nodes: `setting:<option>`, like `setting:pool.seats`.  Every
node learns of changed stops and settings (the **steering** notes) with its next claim.
"""

from __future__ import annotations

import hashlib
from typing import Any

from msgspec import Struct

from pollux.units import SECOND_MS, format_moment

STOP = "stop:"
DRAIN = "stop:claims"
MOVE = "a move of the store"  # `Drained.by` of the workers of a store that was moved away
SETTING = "setting:"
STEERING = (STOP, SETTING)  # covered by the `stops_revision` of a claim
TURN = "turn:"  # requests a turn of the leader now; the leader answers in a note of its own
SOURCE = "source:"  # and version and source: the digests of the sets of jobs that it had
NOTE_BYTES_MAX = 64_000


class Note(Struct, frozen=True, omit_defaults=True):
    key: str
    value: Any
    revision: int = 0
    expires_ms: int | None = None


class NotePut(Struct, frozen=True, omit_defaults=True):
    """Write a note.  `revision` None: unconditionally; 0: only if there is none; n: only over that revision.
    `value` None deletes it.
    """

    key: str
    value: Any = None
    revision: int | None = None
    expires_ms: int | None = None


class Drained(Struct, frozen=True):
    """A drain: one or all workers claim nothing."""

    node: str | None  # None: all
    reason: str = ""
    by: str = ""
    at_ms: int = 0
    expires_ms: int | None = None  # of a drain by a move in progress, which renews it
    is_over: bool = False  # the move of the store is complete

    def __str__(self) -> str:
        """`all workers are drained by ann since 2026-11-16T06:48:27Z (database moves)`"""
        words = f"node {self.node} is drained" if self.node else "all workers are drained"
        words += f" by {self.by}" if self.by else ""
        words += f" since {format_moment(self.at_ms // SECOND_MS * SECOND_MS)}" if self.at_ms else ""
        return words + (f" ({self.reason})" if self.reason else "")

    @property
    def cure(self) -> str:
        """The command that ends it, or what to do."""
        if self.expires_ms is not None:
            return "it ends by itself when that is over"
        if self.by == MOVE:
            return "use that store" if self.is_over else "it ends with the move; `pollux store move` again if cut off"
        return f"pollux resume --workers --node {self.node}" if self.node else "pollux resume --workers"

    @property
    def ends(self) -> str:
        """How it ends, as text."""
        return self.cure if self.expires_ms is not None or self.by == MOVE else f"`{self.cure}` ends it"


def drained_of(note: Note) -> Drained | None:
    """The drain of a note; None for any other note."""
    key, _, node = note.key.removeprefix(STOP).partition(":")
    if not note.key.startswith(DRAIN) or key != "claims":
        return None
    value = note.value if isinstance(note.value, dict) else {}
    texts = {name: str(value.get(name) or "") for name in ("reason", "by")}
    return Drained(
        node or None,
        **texts,
        at_ms=int(value.get("at_ms") or 0),
        expires_ms=note.expires_ms,
        is_over=value.get("is_over") is True,
    )


def drain_key(node_id: str | None = None) -> str:
    """The key of the note that drains all nodes, or one."""
    return DRAIN if node_id is None else f"{DRAIN}:{node_id}"


def stop_key(kind: str, name: str = "") -> str:
    """The key of the note that pauses `all`, or a `job`, `group` or `target` by name."""
    return f"{STOP}{kind}" if kind == "all" else f"{STOP}{kind}:{name}"


class AuditLine(Struct, frozen=True, omit_defaults=True):
    """One line of the audit log, chained to the one before by its hash."""

    at_ms: int
    actor: str
    action: str
    subject: str
    detail: str = ""
    count: int = 0  # of jobs, runs or notes that were changed with it; 0: it went with none, or with one of its own
    seq: int = 0
    chain: str = ""  # hash of the predecessor's chain and this line


def chained(line: AuditLine, *, before: str) -> str:
    """The chain value of a line that follows one whose chain value is `before`."""
    numbers = str(line.seq), str(line.at_ms), str(line.count)
    parts = (before, *numbers, line.actor, line.action, line.subject, line.detail)
    return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()
