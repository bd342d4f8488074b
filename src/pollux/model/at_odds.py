"""Living nodes whose jobs are not those of the latest text of their source.

A reload or a deploy goes through the nodes one after the other, so they may differ for a while.  Nodes that go on
differing are two files or programs of one name, or one of them missed the edit; each runs what the other one declares.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from pollux.model.node import Declares, Node

SETTLED_MS = 60_000  # so long after a new text and after its own start may a node differ
AT_ODDS_CURE = (
    "if they are two files or programs, give one of them a name of its own (`name: shop` in the file, "
    "Pollux(name=...)); if they are one, let every node have the latest text (pollux reload, or a restart), or give it "
    "a higher release"
)


class Latest(Struct, frozen=True):
    """The set of jobs that holds for a source, and since when."""

    mark: str
    at_ms: int


class AtOdds(Struct, frozen=True):
    """A node that declares other jobs of a source than the latest text, and one that has that text."""

    source: str
    node: str
    holder: str  # "": none lives

    def __str__(self) -> str:
        if not self.holder:
            return f"{self.source}: node {self.node} declares other jobs than the latest text, which no living node has"
        return f"{self.source}: node {self.node} declares other jobs than node {self.holder}, which has the latest text"


def may_be_at_odds(nodes: Iterable[Node]) -> bool:
    """Is the latest text worth a look?  For files always: none of the nodes may have it."""
    marks: dict[str, str] = {}
    told = [each for node in nodes for each in node.declares]
    return any(_is_file(each.source) or marks.setdefault(each.source, each.mark) != each.mark for each in told)


def at_odds(nodes: Iterable[Node], latest: Mapping[str, Latest], *, now_ms: int) -> list[AtOdds]:
    """Of the newest release of each source; who drains is on its way, and an older release is told otherwise."""
    living: dict[str, list[tuple[Node, Declares]]] = {}
    for node in sorted(nodes, key=lambda node: (node.started_ms, node.id)):
        for each in node.declares:
            living.setdefault(each.source, []).append((node, each))
    found = []
    for source, pairs in living.items():
        holds = latest.get(source)
        if holds is None or now_ms - holds.at_ms < SETTLED_MS:
            continue
        newest = max(each.release for _, each in pairs)
        peers = [(node, each) for node, each in pairs if each.release == newest and not node.draining]
        holder = next((node.id for node, each in peers if each.mark == holds.mark), "")
        if not holder and not _is_file(source):
            continue  # code that is alone declares its jobs again by itself; a file waits until it is read again
        others = [node for node, each in peers if each.mark != holds.mark and now_ms - node.started_ms >= SETTLED_MS]
        found += [AtOdds(source, node.id, holder) for node in others]
    return found


def _is_file(source: str) -> bool:
    return source.startswith("file:")
