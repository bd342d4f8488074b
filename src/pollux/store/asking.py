"""What does one claim ask for?  The same of every store that keeps its values by itself."""

from __future__ import annotations

from msgspec import Struct

from pollux.store.limits import PRIORITIES


class Asking(Struct, frozen=True):
    """What one claim asks for."""

    node: str
    token: str
    limit: int
    lease_ms: int
    first: int
    losses_max: int
    feed_max: int

    @property
    def order(self) -> tuple[int, ...]:
        """The priorities as they are asked: from `first` on, then the higher ones."""
        return (*PRIORITIES[self.first - 1 :], *PRIORITIES[: self.first - 1])
