"""Who is there?  Nodes, and the leadership of one of them."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

from msgspec import Struct

from pollux.errors import InvalidInput
from pollux.model.partition import ALL_VERSIONS, SCHEDULER_VERSION
from pollux.units import format_ms

RENEW_MIN_MS = 250  # what a store may take to answer on an ordinary bad day


class Declares(Struct, frozen=True, omit_defaults=True):
    """What a node says of one source of jobs: which release of it this is, how many jobs, and a mark of their ids.

    Nodes of one source with the same mark declare the same jobs, if perhaps not alike.
    """

    source: str
    release: int = 0
    jobs: int = 0
    mark: str = ""


class Node(Struct, frozen=True, omit_defaults=True):
    """One process, as its last beat described it.  The id is new at every start."""

    id: str
    host: str = ""
    pid: int = 0
    started_ms: int = 0
    seats: int = 0
    busy: int = 0
    handlers: tuple[str, ...] = ()
    declares: tuple[Declares, ...] = ()  # the sources it declares jobs of
    version: str = ""
    draining: bool = False
    leads: int = 0  # the term it believes to hold; 0: none
    leads_ms: int = 0  # since when
    key: str = ""  # the name of the leadership it belongs to
    beat_ms: int = 0
    scheduler_version: int = SCHEDULER_VERSION  # the one it serves, or `ALL_VERSIONS`

    def serves(self, version: int) -> bool:
        return self.scheduler_version in (version, ALL_VERSIONS)

    def does_as(self, other: Node) -> bool:
        """Is it of use for the same runs?"""
        return self.handlers == other.handlers and self.scheduler_version == other.scheduler_version


class Term(Struct, frozen=True):
    """One leadership, numbered.  `now_ms` is the store's clock when it answered."""

    number: int
    holder: str
    until_ms: int
    now_ms: int


def declares(source: str, release: int, ids: Iterable[str]) -> Declares:
    """What a node says of a source with these jobs."""
    names = sorted(ids)
    return Declares(source, release, len(names), blake2b("\n".join(names).encode(), digest_size=6).hexdigest())


def leader_of(nodes: Iterable[Node]) -> Node | None:
    """Who leads, of the nodes of one version: one that died believed so in its last beat, but terms only rise."""
    return max((node for node in nodes if node.leads), key=lambda node: node.leads, default=None)


def unserved(version: int, nodes: Iterable[Node]) -> tuple[str, str] | None:
    """What is wrong, and what helps, where nodes live and none of them serves this version."""
    served = sorted({node.scheduler_version for node in nodes})
    if not served or {version, ALL_VERSIONS} & set(served):
        return None
    others = " or ".join(map(str, served))
    cure = f"start one with `--scheduler-version {version}`, or move what is there to version {others}, which is served"
    return f"no node serves version {version}", cure


def check_term(*, ttl_ms: int, renew_ms: int) -> None:
    """Refuse times by which a term cannot be kept: a lost renewal must leave time for another, each for an answer."""
    if renew_ms < RENEW_MIN_MS:
        raise InvalidInput(
            f"leader.renew of {format_ms(renew_ms)} is shorter than a store may take to answer",
            cure=f"give at least {format_ms(RENEW_MIN_MS)}",
        )
    if renew_ms * 5 > ttl_ms * 2:
        raise InvalidInput(
            f"leader.renew of {format_ms(renew_ms)} leaves a leader of {format_ms(ttl_ms)} no second try",
            cure="give at most two fifths of leader.ttl; a third is usual (5s and 15s)",
        )
