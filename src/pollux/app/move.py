"""Move of everything from one store to another, page by page, so that it resumes wherever it was cut off.

    read both ends ─▶ nodes drain ─▶ seal FROM ─▶ mark TO ─▶ page, page, ... ─▶ count both ─▶ moved, arrived

The marks (`pollux.store.move_marks`) have the id of the move; TO also records the progress of the copy.  Loading a
page twice changes nothing, so a move that was killed between two writes resumes at the page before.  FROM is sealed
before its first record is copied: no job with a copy in TO may fire in FROM.
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
NO_THINGS = ("term", "tomb")  # records of an empty store that was used
DRAIN_MS = 60_000  # lifetime of the drain, which is renewed meanwhile
LOOK_S = 0.25
LEADER_MS = 10_000  # for the leader to read the last ends
PASSES_MAX = 3
SHOWN_MAX = 5
_SUMS = 2**64
_encode = msgspec.json.Encoder(order="deterministic").encode


class MoveStep(Struct, frozen=True):
    """Progress: remaining leases (`draining`), copied records (`copying`), counted records of all (`counting`)."""

    phase: str
    done: int
    total: int | None = None


class MoveReport(Struct, frozen=True):
    """Result of a move."""

    move: str
    source: str
    target: str
    counts: dict[str, int]
    began_ms: int
    ended_ms: int
    nodes: tuple[str, ...]  # live ones of the source, which are drained


class MoveProgress(Struct, frozen=True):
    """Progress of the copy, with counts by kind and sums of the contents of the copied records."""

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
        """Move everything, or the rest after an interruption.  `move_id` is the id of a new move."""
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
        """Put the target into use, once."""
        store, name = self.target.store, self.source.name
        there = (await marks_of(store)).origin
        if there is not None and there.is_over:
            return
        words = f"{counted(sum(mark.counts.values()), 'record')}, move {mark.move}"
        line = AuditLine(mark.ended_ms or 0, actor, "move", f"from {name}"[:200], words)
        free = [NotePut(key) for key in (TRAIL, DRAIN, SEAL)]
        notes = [mark_put(MOVED_FROM, replace(mark, other=name)), *free]
        await store.put_notes(notes, audit=Audit((line,), each=True))  # the line is the mark's, and counts no notes
        await store.wake()

    # beginning

    async def _begin(self, move_id: str, *, live: bool, wait_ms: int) -> MoveMark:
        """Seal the source; returns the existing mark of an interrupted move, else a new one."""
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
                f"{self.target.name} was moved to {there.to.other}, so it is not in use; name another store, or "
                f"unseal it by `pollux store unseal {shell_word(self.target.name)} --force`"
            )

    async def _refuse_filled(self, there: MoveMarks) -> None:
        """Raise unless the target of a new move is empty and without nodes."""
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
                f"{name} is not empty: there is a {found} in it; name an empty store, or delete its content: "
                f"`pollux store drop {shell_word(name)}`"
            )

    async def _refuse_another(self, mark: MoveMark, there: MoveMarks) -> None:
        """Raise for a source that another move has sealed."""
        source, target = self.source.name, self.target.name
        if mark.is_over:
            raise Conflict(
                f"{source} was moved to {mark.other} on {format_moment(mark.ended_ms or 0)}; move from there, or "
                f"unseal it by `pollux store unseal {shell_word(source)} --force`"
            )
        if mark.other != target:
            raise Conflict(
                f"a move of {source} to {mark.other} was begun on {format_moment(mark.began_ms)}; complete that one, "
                f"or abandon it: `pollux store unseal {shell_word(source)}`"
            )
        await self._refuse_filled(there)

    # draining

    async def _quiet(self, *, live: bool, wait_ms: int) -> None:
        """Drain the nodes of the source, or raise."""
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
        """Wait for the runs of live nodes before an interrupted move goes on: the copy would run them again."""
        store, began = self.source.store, self._clock.mono_ms()
        while await store.nodes() and (running := await self._running()):
            self._report(MoveStep("draining", len(running)))
            if self._clock.mono_ms() - began > wait_ms:
                raise Conflict(_still(running, wait_ms, then="nothing more was moved, and no node claims here"))
            await asyncio.sleep(LOOK_S)

    async def _drain(self, wait_ms: int) -> None:
        """Drain all nodes, wait until nothing runs, and until the leader has read the ends."""
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
        """Runs with a valid lease; an expired one is void in the copy."""
        store = self.source.store
        now_ms = (await store.feed(limit=1)).now_ms
        page = await store.list_runs(RunFilter(states=(RunState.LEASED,)), limit=PAGE_MAX)
        return [run for run in page.runs if run.lease_until_ms > now_ms]

    # copying

    async def _copy_whole(self) -> None:
        """Copy until the counts of both ends are equal: something may have been written meanwhile."""
        for _ in range(PASSES_MAX):
            await self._copy()
            levels = [_level(await _counts(end.store)) for end in (self.source, self.target)]
            if levels[0] == levels[1]:
                return
            await self._put_trail(MoveProgress())
        raise Conflict(
            f"something still writes to {self.source.name}, or its counts are wrong: (jobs, held, ready, dead) are "
            f"{levels[0]} there and {levels[1]} in {self.target.name}; stop what enqueues there, "
            f"`pollux store check --store {shell_word(self.source.name)}`, and run the move again"
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

    # counting

    async def _count(self) -> dict[str, int]:
        """Read the whole target, and compare its counts and sums with those of the copied records."""
        copied = await self._trail()
        total = sum(copied.counts.values())
        seen, after = MoveProgress(), None
        while True:
            page = await self.target.store.dump(after=after, limit=self._page)
            seen = _longer(seen, _carried(page.records), page.next)
            self._report(MoveStep("counting", sum(seen.counts.values()), total))
            after = page.next
            if after is None:
                break
        if seen.counts != copied.counts or seen.sums != copied.sums:
            raise Conflict(
                f"{self.target.name} differs from {self.source.name}: {_difference(copied, seen)}; delete what was "
                f"copied (`pollux store drop {shell_word(self.target.name)}`), then move again"
            )
        return copied.counts


def _carried(records: Sequence[tuple[str, Any]]) -> list[tuple[str, Any, Record]]:
    """The records to copy: all but the marks of moves and the drain."""
    read = [(kind, data, read_record(kind, data)) for kind, data in records]
    keys = [record.key if isinstance(record, Note) else "" for _, _, record in read]
    return [each for each, key in zip(read, keys, strict=True) if key != DRAIN and not key.startswith(MARKS)]


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
    """The counted kind; None for terms, tombs, and expiring notes, which may be deleted before the count."""
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
    """A checksum of a record as it is after a load, which voids leases."""
    if isinstance(record, Run) and record.state is RunState.LEASED:
        record = replace(record, state=RunState.READY, token="", owner="", lease_until_ms=0)
    return int.from_bytes(blake2b(_encode(record), digest_size=8).digest(), "big")


def _difference(copied: MoveProgress, seen: MoveProgress) -> str:
    wrong = [
        f"{seen.counts[kind]:,} {kind} instead of {copied.counts[kind]:,}"
        for kind in KINDS
        if seen.counts[kind] != copied.counts[kind]
    ]
    other = [f"other {kind}" for kind in KINDS if seen.sums.get(kind) != copied.sums.get(kind)]
    return ", ".join(wrong or other)


async def _nodes(store: Store) -> list[Node]:
    """The live nodes; the stored term decides which one leads, as a killed leader is listed for a while."""
    nodes = await store.nodes()
    return by_term(nodes, await store.versions()) if nodes else []


async def _counts(store: Store) -> Counts:
    return await store.counts(all_versions=True)


def _level(counts: Counts) -> tuple[int, int, int, int]:
    """The counts that must be equal at both ends; a lease is void in the copy."""
    return counts.jobs, counts.held, counts.ready + counts.leased, counts.dead


async def _first_kind(store: Store) -> str:
    """The kind of the first record; empty if the store is empty, or has only records of moves."""
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
    """The refusal of a partly filled target; if it was filled from this unsealed source, that move was abandoned."""
    ways = f"delete what was copied: `pollux store drop {shell_word(name)}`, or name an empty store"
    part = f"{name} has a part of another move, from {origin.other}, begun on {format_moment(origin.began_ms)}"
    return f"{part}, which was abandoned; {ways}" if origin.other == source else f"{part}; complete that one, {ways}"


def _named(nodes: Sequence[Node]) -> str:
    shown = [f"{node.id}{' (leads)' if node.leads else ''}" for node in nodes[:SHOWN_MAX]]
    more = [f"and {len(nodes) - SHOWN_MAX} more"] if len(nodes) > SHOWN_MAX else []
    return f"{len(nodes)} node{' lives' if len(nodes) == 1 else 's live'} ({', '.join([*shown, *more])})"


def _still(running: Sequence[Run], wait_ms: int, *, then: str) -> str:
    shown = ", ".join(f"{run.id} on {run.owner}" for run in running[:SHOWN_MAX])
    return (
        f"{len(running)} still run after {format_ms(wait_ms)}: {shown}; {then}; "
        "wait longer (--wait), cancel them (`pollux runs cancel`), or stop their nodes"
    )
