"""What else must all nodes know?  Notes: small named values with a revision and perhaps an end.

A **stop** is a note that forbids runs: `stop:all`, `stop:job:<id>`, `stop:group:<name>`, `stop:target:<name>`.
`stop:claims` forbids no run by name: while it stands nobody claims any, and what is due is planned all the same;
`stop:claims:<node>` asks that of one node.

A **setting** is a note that says how nodes run: `setting:<option>`, like `setting:pool.seats`.  Stops and settings
**steer**: every node hears of them with its next claim.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

STOP = "stop:"
DRAIN = "stop:claims"
SETTING = "setting:"
STEERING = (STOP, SETTING)  # what the `stops_revision` of a claim tells of
TURN = "turn:"  # asks the leader for a turn now; it answers beside it
NOTE_BYTES_MAX = 64_000


class Note(Struct, frozen=True, omit_defaults=True):
    key: str
    value: Any
    revision: int = 0
    expires_ms: int | None = None


class NotePut(Struct, frozen=True, omit_defaults=True):
    """Write a note.  `revision` None: whatever is there; 0: only if there is none; n: only over that revision.
    `value` None deletes it.
    """

    key: str
    value: Any = None
    revision: int | None = None
    expires_ms: int | None = None


def drain_key(node_id: str | None = None) -> str:
    """The note's key that asks all nodes, or one, to claim nothing."""
    return DRAIN if node_id is None else f"{DRAIN}:{node_id}"


def stop_key(kind: str, name: str = "") -> str:
    """The note's key for a pause of `all`, or of a `job`, `group` or `target` by name."""
    return f"{STOP}{kind}" if kind == "all" else f"{STOP}{kind}:{name}"
