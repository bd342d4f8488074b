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


LOOP_CURE = "a handler computes or blocks on it: make it a plain def, or say isolate: process; or the CPU is full"


class NodeLoad(Struct, frozen=True, omit_defaults=True):
    """What holds a node up, as it saw itself: its event loop, handlers that do not stop, who has all its seats."""

    held_ms: int = 0  # the longest that the event loop was held in the last minute, if that was long
    held_by: str = ""  # the handler and the line, if they were seen: "handler fetch, shop.py:31 in parse"
    stuck: int = 0  # handlers that did not stop at their timeout, and hold a seat each
    stuck_at: tuple[str, ...] = ()  # the first of them, and their lines
    seated: tuple[str, ...] = ()  # handlers with most seats, if all are taken: "fetch (8)"


class Node(Struct, frozen=True, omit_defaults=True):
    """One process, as its last beat described it.  The id is new at every start."""

    id: str
    host: str = ""
    pid: int = 0
    started_ms: int = 0
    seats: int = 0
    busy: int = 0
    handlers: tuple[str, ...] = ()
    codes: tuple[str, ...] = ()  # of the first handlers, in their order: a mark of the file with its code; "": unknown
    declares: tuple[Declares, ...] = ()  # the sources it declares jobs of
    version: str = ""
    draining: bool = False
    plans: bool = True  # it can lead; those of older releases do not tell
    leads: int = 0  # the term it believes to hold; 0: none.  Whether it does: `by_term`
    leads_ms: int = 0  # since when
    key: str = ""  # the name of the leadership it belongs to
    beat_ms: int = 0
    scheduler_version: int = SCHEDULER_VERSION  # the one it serves, or `ALL_VERSIONS`
    load: NodeLoad = NodeLoad()

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


def unserved(version: int, nodes: Iterable[Node]) -> tuple[str, str] | None:
    """What is wrong, and what helps, where nodes live and none of them serves this version."""
    served = sorted({node.scheduler_version for node in nodes})
    if not served or version == ALL_VERSIONS or {version, ALL_VERSIONS} & set(served):
        return None
    cure = f"start one: {serve_words(version)}; or move what is there to a version that is served: "
    return f"no node serves version {version}", cure + move_words(version, served[-1])


def held_up(nodes: Iterable[Node], version: int) -> str:
    """That the event loop of the leader was held in the last minute, by which handler and line; nothing if not."""
    for node in nodes:
        if node.leads and node.serves(version) and node.load.held_ms:
            by = f" by {node.load.held_by}" if node.load.held_by else ""
            return f"the event loop of the leader, node {node.id}, was held for {format_ms(node.load.held_ms)}{by}"
    return ""


def serve_words(version: int) -> str:
    """What starts a node that plans this version; where nothing is said it is that of `SCHEDULER_VERSION`."""
    is_meant = version in (SCHEDULER_VERSION, ALL_VERSIONS)
    return "pollux serve" if is_meant else f"pollux serve --scheduler-version {version}"


def move_words(version: int, to: int) -> str:
    """What takes all jobs of a version over into another one."""
    return f"pollux jobs move --from-version {version} --to-version {to}"


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
