"""Operations on workers: drain them, resume them, and trigger a planning turn, by notes that every node reads.

A drain lasts until it is resumed, over restarts; that of one node ends with the node, whose id is new at every start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from msgspec import Struct

from pollux.app.operations.context import OperationGroup
from pollux.app.operations.settings import steer
from pollux.errors import Conflict, NotFound, StoreMoved
from pollux.ids import new_id
from pollux.model import DRAIN, TURN, Drained, Node, Note, NotePut, by_term, drain_key, drained_of, leader_of
from pollux.runtime.node import NodeRuntime, TurnResult
from pollux.secrets import hide
from pollux.store.decoding import as_far, stops_as_far
from pollux.store.move_marks import marks_of

LOOKS_MS = (10, 20, 50, 100, *(200,) * 25)  # how long a turn elsewhere is waited for
REASON_CHARS_MAX = 1_000
TURN_MS = 5_000  # how long a turn of this node may take
ASKED_MS = 60_000  # a question that nobody answered is forgotten


class TriggerResult(Struct, frozen=True):
    """What came of a turn that was asked for."""

    leaders: tuple[str, ...]  # the nodes that were asked, one for each version on the store
    answered: tuple[str, ...]  # those that told what came of it in time
    fired: int = 0
    released: int = 0
    skipped: int = 0


class WorkerOperations(OperationGroup):
    """Drain and resume workers, and trigger planning."""

    async def drain_workers(self, node: str | None = None, *, reason: str = "") -> None:
        """Let nobody, or that node, claim a run until `resume_workers`; what runs goes on, and so does planning."""
        nodes = await self._store.nodes()
        if node is not None and node not in {each.id for each in nodes}:
            raise NotFound("node", node, cure="`pollux nodes` lists those that live")
        reason = hide(reason)[:REASON_CHARS_MAX]
        value = {"reason": reason, "by": self._actor, "at_ms": await self._store.now()}
        audit = self._audit.first_on_record("drain", node or "all workers", reason)
        await steer(self._store, [NotePut(drain_key(node), value), *await self._orphans(nodes)], audit)
        self._heed()

    async def resume_workers(self, node: str | None = None) -> bool:
        """Let them claim again: all, or that node.  False if they were not drained."""
        notes, _ = await stops_as_far(self._store.notes(DRAIN))
        key = drain_key(node)
        if key not in {note.key for note in notes}:
            self._heed()
            return False
        for note in notes:
            if note.key == key and note.expires_ms is not None:  # a move of the store asked for it, and keeps it up
                what = "the store is about to be moved elsewhere: they claim again when that is over"
                raise Conflict(what, cure="wait for the end of `pollux store move`, or stop it where it runs")
        if key == DRAIN and (await marks_of(self._store)).to is not None:
            what = "the store was moved elsewhere: nobody claims here before it is unsealed"
            raise StoreMoved(what, cure="use the store that it was moved to: `pollux doctor` names it")
        gone = await self._orphans(await self._store.nodes())
        audit = self._audit.first_on_record("resume", node or "all workers")
        was_drained = await steer(self._store, [NotePut(key), *gone], audit)
        self._heed()
        return was_drained

    async def drained_workers(self) -> list[Drained]:
        """The drains that hold."""
        living = {node.id for node in await self._store.nodes()}
        notes, _ = await stops_as_far(self._store.notes(DRAIN))
        drained = [drained_of(note) for note in notes]
        return [each for each in drained if each is not None and (each.node is None or each.node in living)]

    async def drain_here(self) -> Drained | None:
        """The drain of all workers, if the node of this process has read one; no store call while there is none."""
        crew = self._crew
        if crew is None or not crew.dispatcher.is_drained:
            return None
        return next((each for each in await self.drained_workers() if each.node is None), None)

    async def trigger(self) -> TriggerResult:
        """Plan now and say what that fired and released: here if this node alone leads, else wherever a leader is."""
        crew, node = self._crew, self._context.node
        if crew is None or node is None or len(await self._leaders()) > 1:
            return await self._trigger_elsewhere()
        turned = await crew.turn_now(TURN_MS)
        if turned is None:
            return await self._trigger_elsewhere()
        await self._audit.record("trigger", "the leader", node.node_id)
        us = (node.node_id,)
        return TriggerResult(us, us, turned.fired, turned.released, turned.skipped)

    # inside

    @property
    def _crew(self) -> NodeRuntime | None:
        return None if self._context.node is None else self._context.node.crew

    def _heed(self) -> None:
        """The node of this process looks for the drain now, not with its next claim."""
        if self._crew is not None:
            self._crew.heed()

    async def _trigger_elsewhere(self) -> TriggerResult:
        now_ms = await self._store.now()
        asked = f"{TURN}{new_id(now_ms, self._dice)}:"
        value = {"by": self._actor, "at_ms": now_ms}
        leaders = await self._leaders()
        ask = NotePut(f"{asked}ask", value, expires_ms=now_ms + ASKED_MS)
        await steer(self._store, [ask], self._audit.on_record("trigger", "the leader", ", ".join(leaders)))
        answers = await self._answers(asked, len(leaders))
        turned = [TurnResult(**note.value["turned"]) for note in answers]
        return TriggerResult(
            leaders=leaders,
            answered=tuple(str(note.value["node"]) for note in answers),
            fired=sum(each.fired for each in turned),
            released=sum(each.released for each in turned),
            skipped=sum(each.skipped for each in turned),
        )

    async def _leaders(self) -> tuple[str, ...]:
        return leaders_of(by_term(await self._store.nodes(), await self._store.versions()))

    async def _answers(self, asked: str, count: int) -> list[Note]:
        """What the leaders wrote back, and their questions tidied away."""
        found: list[Note] = []
        for rest_ms in LOOKS_MS if count else ():
            await asyncio.sleep(rest_ms / 1000)
            if len(found) >= count:
                break
            notes, _ = await as_far(self._store.notes(asked))
            found = [note for note in notes if not note.key.endswith("ask")]
        await self._store.put_notes([NotePut(f"{asked}ask"), *(NotePut(note.key) for note in found)])
        return found

    async def _orphans(self, nodes: Sequence[Node]) -> list[NotePut]:
        """Drains of nodes that are gone: their ids never come again."""
        living = {drain_key(node.id) for node in nodes}
        notes, _ = await stops_as_far(self._store.notes(f"{DRAIN}:"))
        return [NotePut(note.key) for note in notes if note.key not in living]


def leaders_of(nodes: Sequence[Node]) -> tuple[str, ...]:
    """Who leads, version by version."""
    versions = sorted({node.scheduler_version for node in nodes})
    found = [leader_of(node for node in nodes if node.scheduler_version == version) for version in versions]
    return tuple(node.id for node in found if node is not None)
