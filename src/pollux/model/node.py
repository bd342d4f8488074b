"""Nodes, their leadership, the commands that start them, and conflicts between them.

A node's heartbeat is seconds old, and that of a killed one stays for a while.  Leadership is therefore read from the
term in the store: functions about leaders expect nodes as `by_term` returns them.

*Conflicts of declarations.*  A reload or a deploy reaches the nodes one after the other, so they may differ for a
while. Nodes that still differ later are two files or programs of one name, or one of them missed the edit; each runs
the other's jobs.  *Conflicts of handlers.*  A run goes to any node that has a handler of its job's name.  Nodes of one
source may differ while a release is rolled out; nodes without a common source are different programs, and each would
run its own code for the other's jobs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from itertools import combinations
from typing import Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from pollux.errors import InvalidInput
from pollux.model.note import Note
from pollux.model.results import SCHEDULER_VERSION, Version
from pollux.units import SECOND_MS, format_ms

RENEW_MIN_MS = 250  # slow but ordinary answer time of a store


class Declares(Struct, frozen=True, omit_defaults=True):
    """One source of jobs that a node declares: its release, the number of jobs, and a digest of their ids (`mark`).

    Nodes of one source with equal marks declare the same job ids; the definitions may differ.
    """

    source: str
    release: int = 0
    jobs: int = 0
    mark: str = ""


LOOP_CURE = "a handler computes or blocks on it: make it a plain def, or set isolate: process; or the CPU is full"


class NodeLoad(Struct, frozen=True, omit_defaults=True):
    """What slows a node down, as reported by itself: a blocked event loop, stuck handlers, all seats taken."""

    blocked_ms: int = 0  # the longest block of the event loop in the last minute, if it was long
    blocked_by: str = ""  # the handler and the line, if known: "handler fetch, shop.py:31 in parse"
    stuck: int = 0  # handlers that did not stop at their timeout and occupy a seat each
    stuck_at: tuple[str, ...] = ()  # the first of them, with their lines
    seated: tuple[str, ...] = ()  # handlers with most seats, if all are taken: "fetch (8)"


class Node(Struct, frozen=True, omit_defaults=True):
    """One process, as described by its last heartbeat.  The id is new at every start."""

    id: str
    host: str = ""
    pid: int = 0
    started_ms: int = 0
    seats: int = 0
    busy: int = 0
    handlers: tuple[str, ...] = ()
    codes: tuple[str, ...] = ()  # digests of the files of the first handlers, in their order; "": unknown
    declares: tuple[Declares, ...] = ()  # the sources whose jobs it declares
    version: str = ""
    draining: bool = False
    plans: bool = True  # it can lead; older releases do not report it
    leads: int = 0  # the term it believed to hold at its heartbeat; 0: none.  The term in the store decides: `by_term`
    leads_ms: int = 0  # since when
    key: str = ""  # the name of its leadership
    beat_ms: int = 0
    scheduler_version: int = SCHEDULER_VERSION  # the version it serves
    load: NodeLoad = NodeLoad()

    def serves(self, version: int) -> bool:
        return self.scheduler_version == version

    def does_as(self, other: Node) -> bool:
        """Whether it can run the same runs as the other node."""
        return self.handlers == other.handlers and self.scheduler_version == other.scheduler_version


class Term(Struct, frozen=True):
    """One numbered leadership.  `now_ms` is the store's clock at its answer."""

    number: int
    holder: str
    until_ms: int
    now_ms: int


def declares(source: str, release: int, ids: Iterable[str]) -> Declares:
    """The declaration of a source with these jobs."""
    names = sorted(ids)
    return Declares(source, release, len(names), blake2b("\n".join(names).encode(), digest_size=6).hexdigest())


def unserved(version: int, nodes: Iterable[Node]) -> tuple[str, str] | None:
    """The problem and its cure if nodes are alive and none of them serves this version."""
    served = sorted({node.scheduler_version for node in nodes})
    if not served or version in served:
        return None
    cure = f"start one: {serve_words(version)}; or move what is there to a version that is served: "
    return f"no node serves version {version}", cure + move_words(version, served[-1])


def blocked_leader(nodes: Iterable[Node], version: int) -> str:
    """The report of a blocked event loop of the leader in the last minute, by handler and line; empty if none."""
    for node in nodes:
        if node.leads and node.serves(version) and node.load.blocked_ms:
            by = f" by {node.load.blocked_by}" if node.load.blocked_by else ""
            return (
                f"the event loop of the leader, node {node.id}, was blocked for {format_ms(node.load.blocked_ms)}{by}"
            )
    return ""


def serve_words(version: int) -> str:
    """The command that starts a node that plans this version."""
    return "pollux serve" if version == SCHEDULER_VERSION else f"pollux serve --scheduler-version {version}"


def move_words(version: int, to: int) -> str:
    """The command that moves all jobs of a version into another one."""
    return f"pollux jobs move --from-version {version} --to-version {to}"


def check_term(*, ttl_ms: int, renew_ms: int) -> None:
    """Refuse times that leave no room for a second renewal after a lost one, or none for the store's answer."""
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


NodeRole = Literal["leader", "standby", "silent", "worker"]
BEAT_LATE_MS = 30_000  # two heartbeats: a node sends one every 15 s


class Leadership(Struct, frozen=True):
    """The leadership of one version as text; the cure is empty if nothing is wrong."""

    seen: str
    cure: str = ""
    is_led: bool = True
    can_be: bool = True  # there is a leader, or a living node that can lead


def by_term(nodes: Iterable[Node], versions: Iterable[Version]) -> list[Node]:
    """The nodes with `leads` set from the terms in the store.

    A node that reported a term it does not hold keeps `leads_ms` without the term: it was killed or is disconnected,
    because a living node that loses its term sends a heartbeat at once.
    """
    held = {version.leader: version for version in versions if version.leader}
    return [_as_held(node, held.get(node.id)) for node in nodes]


def _as_held(node: Node, held: Version | None) -> Node:
    if held is None:
        return replace(node, leads=0, leads_ms=node.leads_ms or node.beat_ms) if node.leads else node
    return node if node.leads == held.term else replace(node, leads=held.term, leads_ms=node.beat_ms)


def leader_of(nodes: Iterable[Node]) -> Node | None:
    """The leader among the nodes of one version; among those of several versions the one of the highest term."""
    return max((node for node in nodes if node.leads), key=lambda node: node.leads, default=None)


def role_of(node: Node) -> NodeRole:
    """The role of a node: leader; standby (takes over if the leader stops); worker (never leads); silent (led until its
    term ended, without a heartbeat since).
    """
    if node.leads:
        return "leader"
    return "silent" if node.leads_ms else "standby" if node.plans else "worker"


def leadership(nodes: Sequence[Node], *, now_ms: int, version: int = SCHEDULER_VERSION) -> Leadership:
    """The leadership of one version, from all living nodes as `by_term` returns them."""
    own = [node for node in nodes if node.serves(version)]
    leader = leader_of(own)
    others = [node for node in own if role_of(node) == "standby" and now_ms - node.beat_ms <= BEAT_LATE_MS]
    if leader is None and others:
        cure = f"{others[0].id} can lead and does so within seconds; if it stays so look at its log"
        return Leadership("no leader: nothing is planned", cure, is_led=False)
    if leader is None:
        cure = f"start one that can: {serve_words(version)} (pollux worker and --no-plans never lead)"
        cure += _or_move(nodes, version, now_ms)
        return Leadership("no leader, and no node can lead: nothing is planned", cure, is_led=False, can_be=False)
    silent_ms = now_ms - leader.beat_ms
    if silent_ms > BEAT_LATE_MS:
        alone = f"no other node can lead: start {serve_words(version)}"
        after = f"{others[0].id} takes over once its term ends" if others else alone
        seen = f"{leader.id} leads, no heartbeat for {format_ms(silent_ms - silent_ms % SECOND_MS)}"
        return Leadership(seen, f"look at that machine; {after}")
    many = f"{len(others)} on standby" if others else "no standby: no other node could take over"
    return Leadership(f"{leader.id} leads, term {leader.leads}; {many}")


def _or_move(nodes: Iterable[Node], version: int, now_ms: int) -> str:
    """The alternative cure if another version has a leader."""
    led = [node.scheduler_version for node in nodes if node.leads and now_ms - node.beat_ms <= BEAT_LATE_MS]
    if not led:
        return ""
    return f"; or move what is there: {move_words(version, max(led))}"


START = "start:"  # and the source
STARTS_MAX = 3
_START_ONE = re.compile(r"start one(?=, or|$)")


class StartCommand(Struct, frozen=True, omit_defaults=True):
    """The latest start of a node that declares this source, kept in a note so that a cure can name the command."""

    source: str
    program: str  # "python app.py", "pollux serve -c pollux.yaml"
    folder: str = ""
    host: str = ""
    version: int = SCHEDULER_VERSION

    def __str__(self) -> str:
        """`python app.py` (in /srv/shop on box-1)"""
        place = " on ".join(filter(None, (self.folder and f"in {self.folder}", self.host)))
        return f"`{self.program}`" + (f" ({place})" if place else "")


def starts_in(notes: Iterable[Note]) -> tuple[StartCommand, ...]:
    """The start commands in these notes; notes that cannot be decoded are skipped."""
    found = []
    for note in notes:
        try:
            found.append(msgspec.convert(note.value, StartCommand))
        except msgspec.ValidationError:
            continue
    return tuple(found)


def with_start(cure: str, starts: Sequence[StartCommand], *, version: int, source: str = "") -> str:
    """The cure with the recorded start command of this app in place of `serve_words` and after "start one"."""
    own = [each for each in starts if source and each.source == source]
    known = own or [each for each in starts if each.version == version]
    words = " or ".join(dict.fromkeys(map(str, known[:STARTS_MAX])))
    if not words:
        return cure
    named = cure.replace(serve_words(version), words)
    return _START_ONE.sub(lambda _: f"start one ({words})", named)


SETTLED_MS = 60_000  # a node may differ for this long after a new text, and after its own start
DECLARATION_CURE = (
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


def may_conflict(nodes: Iterable[Node]) -> bool:
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
NAMES_MAX = 5
HANDLER_CURE = (
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
        names = ", ".join(self.handlers[:NAMES_MAX]) + (", ..." if len(self.handlers) > NAMES_MAX else "")
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
