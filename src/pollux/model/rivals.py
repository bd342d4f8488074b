"""Living nodes of different sources that would run different code under one handler name.

A run goes to any node that has a handler of its job's name.  Nodes of one source may differ while a release is rolled
out; nodes that have no source in common are different programs, and each would run its own code for the other's jobs.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations

from msgspec import Struct

from pollux.model.node import Node

PROGRAMS_MAX = 50  # different programs on one store that are compared
NAMED_MAX = 5
RIVALS_CURE = (
    "a run of them goes to either node: give the handlers of one program other names (another module, "
    "@app.handler(name=...)), or give it a store or a scheduler_version of its own; if both are to run the same code, "
    "let them have the same files"
)


class Rivals(Struct, frozen=True):
    """Two programs, by one node of each, and the handlers of the same name whose code is not the same."""

    handlers: tuple[str, ...]
    nodes: tuple[str, str]
    sources: tuple[str, str]

    def __str__(self) -> str:
        names = ", ".join(self.handlers[:NAMED_MAX]) + (", ..." if len(self.handlers) > NAMED_MAX else "")
        noun, which = ("handler", "this name") if len(self.handlers) == 1 else ("handlers", "these names")
        (one, other), (its, others) = self.nodes, self.sources
        return f"{noun} {names}: node {one} ({its}) and node {other} ({others}) have different code under {which}"


def rivals(nodes: Iterable[Node]) -> list[Rivals]:
    """Of all pairs of programs that live; one of which no code or no source is known is not compared."""
    programs: dict[tuple[object, ...], Node] = {}
    for node in sorted(nodes, key=lambda node: (node.started_ms, node.id)):
        if node.codes and node.declares:
            programs.setdefault((_sources(node), node.handlers, node.codes, node.scheduler_version), node)
    found = (_between(one, other) for one, other in combinations(list(programs.values())[:PROGRAMS_MAX], 2))
    return [each for each in found if each is not None]


def _between(one: Node, other: Node) -> Rivals | None:
    shares_runs = one.serves(other.scheduler_version) or other.serves(one.scheduler_version)
    if not shares_runs or set(_sources(one)) & set(_sources(other)):
        return None
    codes = dict(zip(other.handlers, other.codes, strict=False))
    mine = zip(one.handlers, one.codes, strict=False)
    names = tuple(name for name, code in mine if code and codes.get(name) and codes[name] != code)
    return Rivals(names, (one.id, other.id), (_sources(one)[0], _sources(other)[0])) if names else None


def _sources(node: Node) -> tuple[str, ...]:
    return tuple(each.source for each in node.declares)
