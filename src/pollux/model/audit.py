"""Who changed what?  One line of the audit log, chained to the one before by its hash."""

from __future__ import annotations

import hashlib

from msgspec import Struct


class AuditLine(Struct, frozen=True, omit_defaults=True):
    at_ms: int
    actor: str
    action: str
    subject: str
    detail: str = ""
    seq: int = 0
    chain: str = ""  # hash over the predecessor's chain and this line


def chained(line: AuditLine, *, before: str) -> str:
    """The chain value of a line that follows one whose chain value is `before`."""
    parts = (before, str(line.seq), str(line.at_ms), line.actor, line.action, line.subject, line.detail)
    return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()
