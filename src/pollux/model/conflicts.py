"""Conflicts between living nodes: different jobs under one source, or different code under one handler name.

*Declarations.*  A reload or a deploy reaches the nodes one after the other, so they may differ for a while.  Nodes that
still differ later are two files or programs of one name, or one of them missed the edit; each runs the other's jobs.

*Handlers.*  A run goes to any node that has a handler of its job's name.  Nodes of one source may differ while a
release is rolled out; nodes without a common source are different programs, and each would run its own code for the
other's jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations

from msgspec import Struct

from pollux.model.node import Declares, Node

SETTLED_MS = 60_000  # a node may differ for this long after a new text, and after its own start
AT_ODDS_CURE = (
    "if they are two files or programs, give one of them a name of its own (`name: shop` in the file, "
    "Pollux(name=...)); if they are one, let every node have the latest text (pollux reload, or a restart), or give it "
    "a higher release"
)


class LatestDeclaration(Struct, frozen=True):
    """The set of jobs in force for a source, and since when."""

    mark: str
    at_ms: int


class DeclarationConflict(Struct, frozen=True):
    """A node that declares other jobs of a source than the latest text, and a node that has that text."""

    source: str
    node: str
    holder: str  # "": no living node has it

    def __str__(self) -> str:
        if not self.holder:
            return f"{self.source}: node {self.node} declares other jobs than the latest text, which no living node has"
        return f"{self.source}: node {self.node} declares other jobs than node {self.holder}, which has the latest text"


def may_be_at_odds(nodes: Iterable[Node]) -> bool:
    """Whether the latest texts must be read for a comparison: always for files, which no node may have read lately."""
    marks: dict[str, str] = {}
    declared = [each for node in nodes for each in node.declares]
    return any(_is_file(each.source) or marks.setdefault(each.source, each.mark) != each.mark for each in declared)


def declaration_conflicts(
    nodes: Iterable[Node], latest: Mapping[str, LatestDeclaration], *, now_ms: int
) -> list[DeclarationConflict]:
    """Conflicts within the newest release of each source.

    Draining nodes are leaving and do not count; an older release is reported elsewhere.
    """
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
            continue  # a single program declares its jobs again by itself; a file waits until it is read again
        others = [node for node, each in peers if each.mark != holds.mark and now_ms - node.started_ms >= SETTLED_MS]
        found += [DeclarationConflict(source, node.id, holder) for node in others]
    return found


def _is_file(source: str) -> bool:
    return source.startswith("file:")


PROGRAMS_MAX = 50  # programs on one store that are compared
NAMED_MAX = 5
RIVALS_CURE = (
    "a run of them goes to either node: give the handlers of one program other names (another module, "
    "@app.handler(name=...)), or give it a store or a scheduler_version of its own; if both are to run the same code, "
    "let them have the same files"
)


class HandlerConflict(Struct, frozen=True):
    """Handler names under which two programs, represented by a node each, have different code."""

    handlers: tuple[str, ...]
    nodes: tuple[str, str]
    sources: tuple[str, str]

    def __str__(self) -> str:
        names = ", ".join(self.handlers[:NAMED_MAX]) + (", ..." if len(self.handlers) > NAMED_MAX else "")
        noun, which = ("handler", "this name") if len(self.handlers) == 1 else ("handlers", "these names")
        (one, other), (its, others) = self.nodes, self.sources
        return f"{noun} {names}: node {one} ({its}) and node {other} ({others}) have different code under {which}"


def handler_conflicts(nodes: Iterable[Node]) -> list[HandlerConflict]:
    """Conflicts between all pairs of living programs; those without known code or source are skipped."""
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
