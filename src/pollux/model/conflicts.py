"""Living nodes whose jobs are not those of the latest text of their source.

A reload or a deploy goes through the nodes one after the other, so they may differ for a while.  Nodes that go on
differing are two files or programs of one name, or one of them missed the edit; each runs what the other one declares.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations

from msgspec import Struct

from pollux.model.node import Declares, Node

SETTLED_MS = 60_000  # so long after a new text and after its own start may a node differ
AT_ODDS_CURE = (
    "if they are two files or programs, give one of them a name of its own (`name: shop` in the file, "
    "Pollux(name=...)); if they are one, let every node have the latest text (pollux reload, or a restart), or give it "
    "a higher release"
)


class LatestDeclaration(Struct, frozen=True):
    """The set of jobs that holds for a source, and since when."""

    mark: str
    at_ms: int


class DeclarationConflict(Struct, frozen=True):
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


def declaration_conflicts(
    nodes: Iterable[Node], latest: Mapping[str, LatestDeclaration], *, now_ms: int
) -> list[DeclarationConflict]:
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
        found += [DeclarationConflict(source, node.id, holder) for node in others]
    return found


def _is_file(source: str) -> bool:
    return source.startswith("file:")


PROGRAMS_MAX = 50  # different programs on one store that are compared
NAMED_MAX = 5
RIVALS_CURE = (
    "a run of them goes to either node: give the handlers of one program other names (another module, "
    "@app.handler(name=...)), or give it a store or a scheduler_version of its own; if both are to run the same code, "
    "let them have the same files"
)


class HandlerConflict(Struct, frozen=True):
    """Two programs, by one node of each, and the handlers of the same name whose code is not the same."""

    handlers: tuple[str, ...]
    nodes: tuple[str, str]
    sources: tuple[str, str]

    def __str__(self) -> str:
        names = ", ".join(self.handlers[:NAMED_MAX]) + (", ..." if len(self.handlers) > NAMED_MAX else "")
        noun, which = ("handler", "this name") if len(self.handlers) == 1 else ("handlers", "these names")
        (one, other), (its, others) = self.nodes, self.sources
        return f"{noun} {names}: node {one} ({its}) and node {other} ({others}) have different code under {which}"


def handler_conflicts(nodes: Iterable[Node]) -> list[HandlerConflict]:
    """Of all pairs of programs that live; one of which no code or no source is known is not compared."""
    programs: dict[tuple[object, ...], Node] = {}
    for node in sorted(nodes, key=lambda node: (node.started_ms, node.id)):
        if node.codes and node.declares:
            programs.setdefault((_sources(node), node.handlers, node.codes, node.scheduler_version), node)
    found = (_between(one, other) for one, other in combinations(list(programs.values())[:PROGRAMS_MAX], 2))
    return [each for each in found if each is not None]


def _between(one: Node, other: Node) -> HandlerConflict | None:
    shares_runs = one.serves(other.scheduler_version) or other.serves(one.scheduler_version)
    if not shares_runs or set(_sources(one)) & set(_sources(other)):
        return None
    codes = dict(zip(other.handlers, other.codes, strict=False))
    mine = zip(one.handlers, one.codes, strict=False)
    names = tuple(name for name, code in mine if code and codes.get(name) and codes[name] != code)
    return HandlerConflict(names, (one.id, other.id), (_sources(one)[0], _sources(other)[0])) if names else None


def _sources(node: Node) -> tuple[str, ...]:
    return tuple(each.source for each in node.declares)
