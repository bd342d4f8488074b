"""Who leads, and who could?  Judged by the term that stands in the store.

A node's beat tells what the node believed seconds ago, and that of a killed one is kept for a while.  So whoever asks
looks at nodes as `by_term` shows them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from pollux.model.node import Node, move_words, serve_words
from pollux.model.partition import ALL_VERSIONS, Version
from pollux.units import SECOND_MS, format_ms

NodeRole = Literal["leader", "standby", "silent", "worker"]
BEAT_LATE_MS = 30_000  # a node that lives says so every 15 s


class Leadership(Struct, frozen=True):
    """How one version is led, in words; the cure is empty if nothing is wrong."""

    seen: str
    cure: str = ""
    is_led: bool = True
    can_be: bool = True  # somebody leads, or lives and can


def by_term(nodes: Iterable[Node], versions: Iterable[Version]) -> list[Node]:
    """The nodes, each leading if the store says so now.

    One that believed so in its last beat, and does not, keeps the time since when (`leads_ms`) without the term: it was
    killed, or is cut off.  Whoever loses a term and lives says so at once.
    """
    held = {version.leader: version for version in versions if version.leader}
    return [_as_held(node, held.get(node.id)) for node in nodes]


def _as_held(node: Node, held: Version | None) -> Node:
    if held is None:
        return replace(node, leads=0, leads_ms=node.leads_ms or node.beat_ms) if node.leads else node
    return node if node.leads == held.term else replace(node, leads=held.term, leads_ms=node.beat_ms)


def leader_of(nodes: Iterable[Node]) -> Node | None:
    """Who leads, of the nodes of one version; of several versions the one of the highest term."""
    return max((node for node in nodes if node.leads), key=lambda node: node.leads, default=None)


def role_of(node: Node) -> NodeRole:
    """leader; standby: it takes over if the leader goes; worker: it never leads; silent: it led, its term ended, and it
    has not been heard of since.
    """
    if node.leads:
        return "leader"
    return "silent" if node.leads_ms else "standby" if node.plans else "worker"


def leadership(nodes: Sequence[Node], *, now_ms: int, version: int = ALL_VERSIONS) -> Leadership:
    """How one version is led, by all nodes that live, as their terms stand."""
    own = [node for node in nodes if version == ALL_VERSIONS or node.serves(version)]
    leader = leader_of(own)
    others = [node for node in own if role_of(node) == "standby" and now_ms - node.beat_ms <= BEAT_LATE_MS]
    if leader is None and others:
        cure = f"{others[0].id} can lead and does so within seconds; if it stays so look at its log"
        return Leadership("nobody leads: nothing is planned", cure, is_led=False)
    if leader is None:
        cure = f"start one that can: {serve_words(version)} (pollux worker and --no-plans never lead)"
        cure += _or_move(nodes, version, now_ms)
        return Leadership("nobody leads and no node can: nothing is planned", cure, is_led=False, can_be=False)
    silent_ms = now_ms - leader.beat_ms
    if silent_ms > BEAT_LATE_MS:
        alone = f"no other node can lead: start {serve_words(version)}"
        after = f"{others[0].id} takes over once its term ends" if others else alone
        seen = f"{leader.id} leads, not heard of for {format_ms(silent_ms - silent_ms % SECOND_MS)}"
        return Leadership(seen, f"look at that machine; {after}")
    many = f"{len(others)} on standby" if others else "no standby: no other node could take over"
    return Leadership(f"{leader.id} leads, term {leader.leads}; {many}")


def _or_move(nodes: Iterable[Node], version: int, now_ms: int) -> str:
    """The other cure, where another version is led."""
    led = [node.scheduler_version for node in nodes if node.leads and now_ms - node.beat_ms <= BEAT_LATE_MS]
    if version == ALL_VERSIONS or not led:
        return ""
    return f"; or move what is there: {move_words(version, max(led))}"
