"""What if somebody else wrote into our records?  Whoever reads one that cannot be read is told which it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from pollux.errors import StoreError

UNREADABLE = (msgspec.MsgspecError, LookupError, TypeError, ValueError)  # what reading it may raise
T = TypeVar("T")
Read = TypeVar("Read")


def legible(read: Callable[[Read], T], written: Read, what: str) -> T:
    """As it is read, or told which one cannot be: `what` says it by its kind and name."""
    try:
        return read(written)
    except UNREADABLE as error:
        raise unreadable(what, error) from error


def unreadable(what: str, error: Exception) -> StoreError:
    return StoreError(
        f"{what} cannot be read ({error}): somebody else wrote it; `pollux store check` lists all of them; "
        "correct or delete it"
    )
