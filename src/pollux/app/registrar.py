"""Do the jobs in the store agree with the code that lives?  Asked at the start, and whenever other code comes or goes.

A deploy takes its time: nodes of the old code live beside those of the new.  Whatever could not be decided while they
did (a job that only the old code declares, a write that crossed another) is decided once they are gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from pollux.app.declared import Coming, Declared, declared_by_nodes
from pollux.app.process import program_words
from pollux.app.source_history import latest_sets
from pollux.app.starts import note_start
from pollux.clock import Clock
from pollux.events import CodeDiffers, Events, JobsDeclared, JobsDiffer, JobsElsewhere, JobUnreadable, ReleaseIsOld
from pollux.model import SETTLED_MS, AtOdds, Declares, Node, Rivals, at_odds, rivals
from pollux.plan import Diff, with_other_jobs
from pollux.runtime.loop import Loop, Rest
from pollux.store.contract import Store

if TYPE_CHECKING:
    from pollux.app.reload import Reloader

QUIET_BEATS = 4  # with no other code about, who lives is asked less often than we beat
LOOKS = 2  # after a change: at once, and again when what crossed it is written


class Registrar(Loop):
    """Write what this node declares, as far as its release may."""

    def __init__(
        self,
        store: Store,
        declared: Declared,
        me: Node,
        *,
        clock: Clock,
        events: Events,
        beat_ms: int,
        reloader: Reloader | None = None,
        program: str = "",
        replace: bool = False,
    ) -> None:
        super().__init__("registrar", clock=clock, events=events, rest_max_ms=QUIET_BEATS * beat_ms)
        self.store, self.declared, self.me, self.beat_ms = store, declared, me, beat_ms
        self.reloader, self.program = reloader, program
        self._replaces = replace  # at the start: whatever the sources had, this stands in its place
        self._is_first = True
        self._others: set[Declares] = set()
        self._looks = 1
        self._is_begun = False
        self._is_old: set[str] = set()  # sources of which a newer release is known; said once
        self._elsewhere: dict[str, int] = {}  # how many jobs of a source are in another version; said when it changes
        self._rivals: set[Rivals] = set()
        self._at_odds: set[AtOdds] = set()
        self._odds_at: float | None = None  # when other jobs of our sources, if they are still declared, are told of
        self._unreadable: dict[str, set[str]] = {}  # jobs of a source that are left alone; each said once

    async def begin(self) -> None:
        """The first look; what stands against it is an error of the start.  The loop has the next one a beat later."""
        await self.turn()
        await note_start(self.store, self.declared.sources(), self.program or program_words())
        self.declared.mark_written()
        self._is_begun = True

    def declare_anew(self, declared: Declared) -> None:
        """The file says something else now, and it is written."""
        self.declared, self.me = declared, msgspec.structs.replace(self.me, declares=declared.declares())
        declared.mark_written()

    async def turn(self) -> Rest:
        if self._is_begun:
            self._is_begun = False
            return Rest(self.beat_ms)
        nodes = await self.store.nodes()
        self._say_rivals(nodes)
        peers = declared_by_nodes(nodes, self.me)
        others = {other for mine in self.me.declares for other in with_other_jobs(mine, peers)}
        if others != self._others:
            self._others, self._looks = others, LOOKS
            self._odds_at = self.clock.mono_ms() + 2 * SETTLED_MS  # a deploy is under way until then
        if self._looks:
            await self._write()
            self._looks -= 1
        if self._odds_at is not None and self.clock.mono_ms() >= self._odds_at:
            await self._say_at_odds(nodes)
            self._odds_at = None
        if any(self._elsewhere.values()) or any(self._unreadable.values()):
            self._looks = max(1, self._looks)  # somebody may move them here, or delete them
            return Rest(QUIET_BEATS * self.beat_ms)
        return Rest(self.beat_ms if others or self._looks else QUIET_BEATS * self.beat_ms)

    async def _sources(self) -> list[str]:
        """Those that are ours to write: of a file whose text changed elsewhere since we read it we keep our hands."""
        sources, reloader = list(self.declared.sources()), self.reloader
        if reloader is None or self._is_first or not await reloader.is_stale():  # what a start says counts
            return sources
        return [source for source in sources if source != reloader.config.source]

    async def _write(self) -> None:
        only = await self._sources()
        coming, replace = (Coming.START, self._replaces) if self._is_first else (Coming.AGAIN, False)
        for diff in await self.declared.write(self.store, self.me, only=only, coming=coming, replace=replace):
            if self.reloader is not None and diff.source == self.reloader.config.source and diff.newer is None:
                await self.reloader.tell_text(self.reloader.config)
            if diff.newer is not None and diff.source not in self._is_old:
                self._is_old.add(diff.source)
                self.events.emit(ReleaseIsOld(diff.source, diff.release, diff.newer))
            self._say_elsewhere(diff)
            self._say_unreadable(diff)
            if not diff.is_empty:
                gone = len(diff.remove) + len(diff.undeclare)
                self.events.emit(JobsDeclared(diff.source, len(diff.add), len(diff.change), gone))
        self._is_first = False

    def _say_rivals(self, nodes: list[Node]) -> None:
        """Programs with other code under the names of our handlers: each is said once, as long as it lives."""
        found = {each for each in rivals(nodes) if self.me.id in each.nodes}
        for each in sorted(found - self._rivals, key=str):
            [(other, source)] = [pair for pair in zip(each.nodes, each.sources, strict=True) if pair[0] != self.me.id]
            self.events.emit(CodeDiffers(each.handlers, other, source, str(each)))
        self._rivals = found

    async def _say_at_odds(self, nodes: list[Node]) -> None:
        """Nodes of our sources that go on declaring other jobs, we or they: said once, until somebody comes or goes."""
        near = [node for node in nodes if node.scheduler_version == self.me.scheduler_version]
        all_found = at_odds(near, await latest_sets(self.store), now_ms=await self.store.now())
        found = {each for each in all_found if self.me.id in (each.node, each.holder)}
        for each in sorted(found - self._at_odds, key=str):
            other = each.holder if each.node == self.me.id else each.node
            self.events.emit(JobsDiffer(each.source, other, str(each)))
        self._at_odds = found

    def _say_elsewhere(self, diff: Diff) -> None:
        """A deployment may stand beside another one for days, with the same jobs: said when it changes."""
        count = len(diff.elsewhere)
        if count and count != self._elsewhere.get(diff.source):
            job_id, version = diff.elsewhere[0]
            own = self.store.scheduler_version
            self.events.emit(JobsElsewhere(diff.source, count, job_id, version, own))
        self._elsewhere[diff.source] = count

    def _say_unreadable(self, diff: Diff) -> None:
        """A newer release wrote them: what this one declares under their ids is not written."""
        before = self._unreadable.get(diff.source, set())
        self._unreadable[diff.source] = {job.name for job in diff.unreadable}
        for job in diff.unreadable:
            if job.name not in before:
                self.events.emit(JobUnreadable(diff.source, job.name, job.why))
