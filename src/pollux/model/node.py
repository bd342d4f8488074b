"""Who is there?  Nodes, and the leadership of one of them."""

from __future__ import annotations

from msgspec import Struct


class Node(Struct, frozen=True, omit_defaults=True):
    """One process, as its last beat described it.  The id is new at every start."""

    id: str
    host: str = ""
    pid: int = 0
    started_ms: int = 0
    seats: int = 0
    busy: int = 0
    handlers: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()  # the code sources it declares jobs for
    version: str = ""
    draining: bool = False
    leads: int = 0  # the term it believes to hold; 0: none
    beat_ms: int = 0


class Term(Struct, frozen=True):
    """One leadership, numbered.  `now_ms` is the store's clock when it answered."""

    number: int
    holder: str
    until_ms: int
    now_ms: int
