"""Move of everything from one store to another, page by page, so that it resumes wherever it was cut off.

    read both ends ─▶ nodes drain ─▶ seal FROM ─▶ mark TO ─▶ page, page, ... ─▶ count both ─▶ moved, arrived

The marks (`pollux.store.move_marks`) carry the id of the move; TO also records how far the copy has come.  A page
that is loaded a second time changes nothing, so a move that was killed between two writes resumes at the page before.
FROM is sealed before its first record leaves: no job of which TO has a copy may go on there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from pollux.clock import Clock
from pollux.errors import Conflict
from pollux.model import DRAIN, FINISHED, AuditLine, Job, Node, Note, NotePut, Run, RunState, by_term, leader_of
from pollux.store.contract import PAGE_MAX, Audit, Counts, RunFilter, Store
from pollux.store.dump_format import Record, read_record
from pollux.store.move_marks import (
    MARKS,
    MOVED_FROM,
    SEAL,
    MoveMark,
    MoveMarks,
    begin_filling,
    mark_put,
    marks_of,
    seal,
    seal_for_good,
    unseal,
)
from pollux.units import counted, format_moment, format_ms, shell_word

TRAIL = "move:trail"
KINDS = ("jobs", "live runs", "dead letters", "finished runs", "notes", "audit lines")
NO_THINGS = ("term", "tomb")  # a store that was used and emptied has them, too
DRAIN_MS = 60_000  # a request to drain that nobody keeps up ends by itself
LOOK_S = 0.25
LEADER_MS = 10_000  # so long a leader may take to read the last ends
PASSES_MAX = 3
SHOWN_MAX = 5
_SUMS = 2**64
_encode = msgspec.json.Encoder(order="deterministic").encode


class MoveStep(Struct, frozen=True):
    """How far it is: `draining` leases that are left, `copying` records so far, `counting` records of how many."""

    phase: str
    done: int
    total: int | None = None


class MoveReport(Struct, frozen=True):
    """What was moved, and when."""

    move: str
    source: str
    target: str
    counts: dict[str, int]
    began_ms: int
    ended_ms: int
    nodes: tuple[str, ...]  # that still live on the source, and do nothing there


class MoveProgress(Struct, frozen=True):
    """How far the copy is, and what it has carried so far: how many of a kind, and a sum over all that is in them."""

    after: str | None = None
    is_complete: bool = False
    counts: dict[str, int] = {}
    sums: dict[str, int] = {}


class MoveEnd(Struct, frozen=True):
    """One end of a move: the store, and its URL without a password."""

    store: Store
    name: str


Report = Callable[[MoveStep], None]


class Move:
    """One move from one store to another; both are open."""

    def __init__(self, source: MoveEnd, target: MoveEnd, *, clock: Clock, report: Report, page: int = PAGE_MAX) -> None:
        self.source, self.target = source, target
        self._clock, self._report, self._page = clock, report, page

    async def run(self, move_id: str, *, actor: str, live: bool, wait_ms: int) -> MoveReport:
        """All of it; called again after it was cut off, the rest of it.  `move_id` names a move that begins."""
        mark = await self._begin(move_id, live=live, wait_ms=wait_ms)
        if not mark.is_over:
            await self._copy_whole()
            counts = await self._count()
            mark = replace(mark, ended_ms=self._clock.now_ms(), counts=counts)
            await seal_for_good(self.source.store, mark)
        await self._hand_over(mark, actor)
        left = tuple(node.id for node in await self.source.store.nodes())
        ends = self.source.name, self.target.name
        return MoveReport(mark.move, *ends, mark.counts, mark.began_ms, mark.ended_ms or 0, left)

    async def _hand_over(self, mark: MoveMark, actor: str) -> None:
        """From here on the target is in use; done once."""
        store, name = self.target.store, self.source.name
        there = (await marks_of(store)).origin
        if there is not None and there.is_over:
            return
        words = f"{counted(sum(mark.counts.values()), 'record')}, move {mark.move}"
        line = AuditLine(mark.ended_ms or 0, actor, "move", f"from {name}"[:200], words)
        free = [NotePut(key) for key in (TRAIL, DRAIN, SEAL)]
        await store.put_notes([mark_put(MOVED_FROM, replace(mark, other=name)), *free], audit=Audit((line,)))
        await store.wake()

    # beginning

    async def _begin(self, move_id: str, *, live: bool, wait_ms: int) -> MoveMark:
        """The mark of this move: the one that stands if it goes on, else a new one, with the source sealed."""
        here, there = await marks_of(self.source.store), await marks_of(self.target.store)
        self._refuse_chain(here, there)
        mark = here.to
        if mark is None:
            await self._refuse_filled(there)
            await self._quiet(live=live, wait_ms=wait_ms)
            mark = MoveMark(move_id, self.target.name, self._clock.now_ms())
        elif there.origin is None or there.origin.move != mark.move:
            await self._refuse_another(mark, there)
        if not mark.is_over:
            await seal(self.source.store, mark)
            await self._let_end(wait_ms)
        if there.origin is None or there.origin.move != mark.move:
            await self._mark_target(mark)
        return mark

    async def _mark_target(self, mark: MoveMark) -> None:
        same = (await marks_of(self.target.store)).to
        if same is not None and same.move == mark.move:
            await unseal(self.source.store)
            raise Conflict(f"{self.source.name} and {self.target.name} are the same store; name another one")
        await begin_filling(self.target.store, replace(mark, other=self.source.name))

    def _refuse_chain(self, here: MoveMarks, there: MoveMarks) -> None:
        if here.origin is not None and not here.origin.is_over:
            raise Conflict(
                f"{self.source.name} is itself being filled from {here.origin.other}; complete that move first"
            )
        if there.to is not None and (here.to is None or there.to.move != here.to.move):
            raise Conflict(
                f"{self.target.name} was moved to {there.to.other}, so nobody works on it; name another store, or "
                f"unseal it by `pollux store unseal {shell_word(self.target.name)} --force`"
            )

    async def _refuse_filled(self, there: MoveMarks) -> None:
        """The target of a new move must be empty, and nobody may work on it."""
        name = self.target.name
        if there.origin is not None and not there.origin.is_over:
            raise Conflict(_part_of_another(there.origin, self.source.name, name))
        found, nodes = await _first_kind(self.target.store), await _nodes(self.target.store)
        if found and nodes:
            raise Conflict(f"{name} is in use: {_named(nodes)} on it, and it holds a {found}; name an empty store")
        if nodes:
            raise Conflict(f"{_named(nodes)} on {name}; start nodes there when the move is over")
        if found:
            raise Conflict(
                f"{name} is not empty: there is a {found} in it; name an empty store, or throw away what is there: "
                f"`pollux store drop {shell_word(name)}`"
            )

    async def _refuse_another(self, mark: MoveMark, there: MoveMarks) -> None:
        """The source was sealed by a move whose mark the target does not bear."""
        source, target = self.source.name, self.target.name
        if mark.is_over:
            raise Conflict(
                f"{source} was moved to {mark.other} on {format_moment(mark.ended_ms or 0)}; move from there, or "
                f"unseal it by `pollux store unseal {shell_word(source)} --force`"
            )
        if mark.other != target:
            raise Conflict(
                f"a move of {source} to {mark.other} was begun on {format_moment(mark.began_ms)}; complete that one, "
                f"or give it up: `pollux store unseal {shell_word(source)}`"
            )
        await self._refuse_filled(there)

    # draining

    async def _quiet(self, *, live: bool, wait_ms: int) -> None:
        """Nobody works on the source any more, or it is refused."""
        nodes = await _nodes(self.source.store)
        if nodes and not live:
            raise Conflict(
                f"{_named(nodes)} on {self.source.name}; stop them (one that was killed is seen for some seconds "
                "more), or add --live, which asks them to drain first"
            )
        if not nodes:
            return
        try:
            await self._drain(wait_ms)
        except BaseException:
            await self.source.store.put_notes([NotePut(DRAIN)])
            await self.source.store.wake()
            raise

    async def _let_end(self, wait_ms: int) -> None:
        """What living nodes still run, of a move that was cut off, ends first: it would be run again in the copy."""
        store, began = self.source.store, self._clock.mono_ms()
        while await store.nodes() and (running := await self._running()):
            self._report(MoveStep("draining", len(running)))
            if self._clock.mono_ms() - began > wait_ms:
                raise Conflict(_still(running, wait_ms, then="nothing more was moved, and nobody claims here"))
            await asyncio.sleep(LOOK_S)

    async def _drain(self, wait_ms: int) -> None:
        """Ask all nodes to claim nothing, wait until nothing runs, and until the leader has read how it ended."""
        store, began = self.source.store, self._clock.mono_ms()
        asked_at: float | None = None
        read_by = float("inf")
        while True:
            now = self._clock.mono_ms()
            if asked_at is None or now - asked_at > DRAIN_MS / 4:
                asked_at = now
                expires_ms = (await store.feed(limit=1)).now_ms + DRAIN_MS
                await store.put_notes([NotePut(DRAIN, {"reason": "it is about to be moved"}, expires_ms=expires_ms)])
                await store.wake()
            running = await self._running()
            self._report(MoveStep("draining", len(running)))
            if running and now - began > wait_ms:
                raise Conflict(_still(running, wait_ms, then="nothing was moved, and the nodes go on"))
            if not running:
                read_by = min(read_by, now + LEADER_MS)
                is_led = leader_of(await _nodes(store)) is not None
                if not is_led or now >= read_by or not (await _counts(store)).ends:
                    return
            await asyncio.sleep(LOOK_S)

    async def _running(self) -> list[Run]:
        """Leases that still stand; one that ended belongs to nobody, and is void in the copy."""
        store = self.source.store
        now_ms = (await store.feed(limit=1)).now_ms
        page = await store.list_runs(RunFilter(states=(RunState.LEASED,)), limit=PAGE_MAX)
        return [run for run in page.runs if run.lease_until_ms > now_ms]

    # copying

    async def _copy_whole(self) -> None:
        """Until a pass ends with as much on one end as on the other: somebody may have written meanwhile."""
        for _ in range(PASSES_MAX):
            await self._copy()
            if await self._is_level():
                return
            await self._put_trail(MoveProgress())
        raise Conflict(
            f"somebody still writes to {self.source.name}, or its counts are wrong: {await self._levels()}; stop "
            f"what enqueues there, `pollux store check --store {shell_word(self.source.name)}`, and run the move "
            "again"
        )

    async def _copy(self) -> None:
        trail = await self._trail()
        while not trail.is_complete:
            page = await self.source.store.dump(after=trail.after, limit=self._page)
            carried = _carried(page.records)
            await self.target.store.load([(kind, data) for kind, data, _ in carried])
            trail = _longer(trail, carried, page.next)
            await self._put_trail(trail)
            self._report(MoveStep("copying", sum(trail.counts.values())))

    async def _trail(self) -> MoveProgress:
        found = [note for note in await self.target.store.notes(TRAIL) if note.key == TRAIL]
        return msgspec.convert(found[0].value, MoveProgress) if found else MoveProgress()

    async def _put_trail(self, trail: MoveProgress) -> None:
        await self.target.store.put_notes([NotePut(TRAIL, msgspec.to_builtins(trail))])

    async def _is_level(self) -> bool:
        return _level(await _counts(self.source.store)) == _level(await _counts(self.target.store))

    async def _levels(self) -> str:
        one, other = _level(await _counts(self.source.store)), _level(await _counts(self.target.store))
        return f"(jobs, held, ready, dead) are {one} there and {other} in {self.target.name}"

    # counting

    async def _count(self) -> dict[str, int]:
        """Read the target once through: as many of each kind as were carried, and the same in them."""
        told = await self._trail()
        total = sum(told.counts.values())
        seen, after = MoveProgress(), None
        while True:
            page = await self.target.store.dump(after=after, limit=self._page)
            seen = _longer(seen, _carried(page.records), page.next)
            self._report(MoveStep("counting", sum(seen.counts.values()), total))
            after = page.next
            if after is None:
                break
        if seen.counts != told.counts or seen.sums != told.sums:
            raise Conflict(
                f"{self.target.name} does not hold what {self.source.name} does: {_difference(told, seen)}; throw away "
                f"what came (`pollux store drop {shell_word(self.target.name)}`), then move again"
            )
        return told.counts


def _carried(records: Sequence[tuple[str, Any]]) -> list[tuple[str, Any, Record]]:
    """What goes over: all but the marks of moves and the request to drain."""
    read = [(kind, data, read_record(kind, data)) for kind, data in records]
    return [each for each in read if not (isinstance(each[2], Note) and _is_ours(each[2].key))]


def _is_ours(key: str) -> bool:
    return key == DRAIN or key.startswith(MARKS)


def _longer(trail: MoveProgress, carried: Sequence[tuple[str, Any, Record]], after: str | None) -> MoveProgress:
    counts, sums = dict(trail.counts) or dict.fromkeys(KINDS, 0), dict(trail.sums)
    for _, _, record in carried:
        kind = _kind_of(record)
        if kind is None:
            continue
        counts[kind] += 1
        sums[kind] = (sums.get(kind, 0) + _sum_of(record)) % _SUMS
    return MoveProgress(after, after is None, counts, sums)


def _kind_of(record: Record) -> str | None:
    """None: it is not counted.  A term and a tomb are no things, and a note with an end may be gone when we count."""
    match record:
        case Job():
            return "jobs"
        case Run(state=RunState.DEAD):
            return "dead letters"
        case Run():
            return "finished runs" if record.state in FINISHED else "live runs"
        case Note():
            return "notes" if record.expires_ms is None else None
        case AuditLine():
            return "audit lines"
    return None


def _sum_of(record: Record) -> int:
    """Of all that is in a record, as it is after a load: a lease is void."""
    if isinstance(record, Run) and record.state is RunState.LEASED:
        record = replace(record, state=RunState.READY, token="", owner="", lease_until_ms=0)
    return int.from_bytes(blake2b(_encode(record), digest_size=8).digest(), "big")


def _difference(told: MoveProgress, seen: MoveProgress) -> str:
    wrong = [
        f"{seen.counts[kind]:,} {kind} instead of {told.counts[kind]:,}"
        for kind in KINDS
        if seen.counts[kind] != told.counts[kind]
    ]
    other = [f"other {kind}" for kind in KINDS if seen.sums.get(kind) != told.sums.get(kind)]
    return ", ".join(wrong or other)


async def _nodes(store: Store) -> list[Node]:
    """As their terms stand: of a killed leader the last beat is there for a while, and reads no ends."""
    nodes = await store.nodes()
    return by_term(nodes, await store.versions()) if nodes else []


async def _counts(store: Store) -> Counts:
    return await store.counts(all_versions=True)


def _level(counts: Counts) -> tuple[int, int, int, int]:
    """What must be equal at both ends; a lease is void in the copy."""
    return counts.jobs, counts.held, counts.ready + counts.leased, counts.dead


async def _first_kind(store: Store) -> str:
    """What is there; nothing if the store is empty, but for what only moves write."""
    after = None
    while True:
        page = await store.dump(after=after, limit=10)
        for kind, _, _ in _carried(page.records):
            if kind not in NO_THINGS:
                return "line of audit" if kind == "log" else kind
        after = page.next
        if after is None:
            return ""


def _part_of_another(origin: MoveMark, source: str, name: str) -> str:
    """A half-filled target; if it came from this very source, whose seal is gone, that move was given up."""
    ways = f"throw away what came: `pollux store drop {shell_word(name)}`, or name an empty store"
    part = f"{name} holds a part of another move, from {origin.other}, begun on {format_moment(origin.began_ms)}"
    return (
        f"{part}, which was given up there; {ways}" if origin.other == source else f"{part}; complete that one, {ways}"
    )


def _named(nodes: Sequence[Node]) -> str:
    shown = [f"{node.id}{' (leads)' if node.leads else ''}" for node in nodes[:SHOWN_MAX]]
    more = [f"and {len(nodes) - SHOWN_MAX} more"] if len(nodes) > SHOWN_MAX else []
    return f"{len(nodes)} node{' lives' if len(nodes) == 1 else 's live'} ({', '.join([*shown, *more])})"


def _still(running: Sequence[Run], wait_ms: int, *, then: str) -> str:
    shown = ", ".join(f"{run.id} on {run.owner}" for run in running[:SHOWN_MAX])
    return (
        f"after {format_ms(wait_ms)} there still run {len(running)}: {shown}; {then}; "
        "wait longer (--wait), cancel them (`pollux runs cancel`), or stop their nodes"
    )
