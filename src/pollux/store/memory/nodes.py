"""Verbs of nodes, terms and versions: beat, nodes, elect, resign, versions."""

from __future__ import annotations

from msgspec.structs import replace

from pollux.model import Node, NodeSeen, Term, Version
from pollux.store.memory.runs import counts
from pollux.store.memory.state import HeldTerm, LivingNode, VersionState


def beat(state: VersionState, node: Node, ttl_ms: int, now_ms: int) -> None:
    if not ttl_ms:
        state.nodes.pop(node.id, None)
        return
    before = state.nodes.get(node.id)
    is_known = before is not None and before.until_ms > now_ms and before.node.does_as(node)
    state.nodes[node.id] = LivingNode(replace(node, beat_ms=now_ms), now_ms + ttl_ms)
    if not is_known:
        _remove_dead(state, now_ms)
        served = state.of(node.scheduler_version)
        served.is_there = True
        served.tell(NodeSeen(node.id))


def _remove_dead(state: VersionState, now_ms: int) -> None:
    """Remove dead nodes: node ids are new at every start, so their rows would accumulate."""
    for node_id in [node_id for node_id, living in state.nodes.items() if living.until_ms <= now_ms]:
        del state.nodes[node_id]


def nodes(state: VersionState, now_ms: int) -> list[Node]:
    return sorted((living.node for living in state.nodes.values() if living.until_ms > now_ms), key=lambda n: n.id)


def elect(state: VersionState, node_id: str, ttl_ms: int, now_ms: int) -> Term:
    state.is_there = True
    current = state.leadership
    if current.until_ms > now_ms + current.ttl_ms:  # the clock was set back: cut the term to its length from now
        current = state.leadership = replace(current, until_ms=now_ms + current.ttl_ms)
    is_vacant = not current.holder or current.until_ms <= now_ms
    if is_vacant or current.holder == node_id:
        current = state.leadership = HeldTerm(current.number + is_vacant, node_id, now_ms + ttl_ms, ttl_ms)
    return Term(current.number, current.holder, current.until_ms, now_ms)


def resign(state: VersionState, node_id: str, term: int) -> None:
    current = state.leadership
    if current.holder == node_id and current.number == term:
        state.leadership = HeldTerm(number=term)


def is_current(state: VersionState, term: int) -> bool:
    return state.leadership.number == term and bool(state.leadership.holder)


def versions(state: VersionState, now_ms: int) -> list[Version]:
    return [
        Version(each.version, counts(each), each.leadership.number, _leader(each, now_ms)) for each in state.there()
    ]


def drop_version(state: VersionState, number: int, now_ms: int) -> int:
    """Remove an unused version; 1 if it existed.  Its term number is kept, because terms only rise."""
    old = state.of(number)
    if not old.is_there or old.job_count or old.held or old.ready or old.leased or _leader(old, now_ms):
        return 0
    old.entries.clear()
    old.ends = 0
    old.leadership = HeldTerm(number=old.leadership.number)
    old.is_there = False
    return 1


def _leader(state: VersionState, now_ms: int) -> str:
    return state.leadership.holder if state.leadership.until_ms > now_ms else ""
