"""Who asks, and what may they do?  Three roles, each of which may all that the ones before it may."""

from __future__ import annotations

from enum import IntEnum

from msgspec import Struct


class Role(IntEnum):
    NOBODY = 0  # asks whether it is alive; no token is of this role
    VIEWER = 1  # looks
    OPERATOR = 2  # runs, pauses, cancels, revives; adds and changes jobs
    ADMIN = 3  # tokens, settings, reload, commands to execute

    @property
    def word(self) -> str:
        return self.name.lower()


class Identity(Struct, frozen=True):
    name: str  # as it stands in the audit log
    role: Role
    budget: str = ""  # whose requests are counted together; "": they are not counted
