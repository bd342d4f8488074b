"""Identity and role of a caller.  Each role includes the rights of the ones before it."""

from __future__ import annotations

from enum import IntEnum

from msgspec import Struct


class Role(IntEnum):
    NOBODY = 0  # probes; no token has this role
    VIEWER = 1  # reads
    OPERATOR = 2  # runs, pauses, cancels, revives; adds and changes jobs
    ADMIN = 3  # tokens, settings, reload, commands to execute

    @property
    def word(self) -> str:
        return self.name.lower()


class Identity(Struct, frozen=True):
    name: str  # as in the audit log
    role: Role
    budget: str = ""  # key of the rate limit; "": unlimited
