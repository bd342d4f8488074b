"""Jobs declared by this process's code and files, and their reconciliation with the store, source by source.

Several processes may reconcile at the same time, with different code.  Jobs of a newer release are not changed; jobs
that another process has changed since the read are read again later.

A note for each source and version has the marks of the source's sets of jobs, the latest last.  A text whose set is
among them may remove most jobs; the latest set is in force and may start next to any live node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from pollux.app.operations.audit import OnceLine
from pollux.app.process import note_start, program_words
from pollux.clock import Clock
from pollux.errors import Conflict, InvalidInput, Unreadable
from pollux.events import CodeDiffers, Events, JobsDeclared, JobsDiffer, JobsElsewhere, JobUnreadable, ReleaseIsOld
from pollux.job_builder import job_of
from pollux.model import (
    SETTLED_MS,
    SOURCE,
    DeclarationConflict,
    Declares,
    HandlerConflict,
    Isolate,
    Job,
    LatestDeclaration,
    Node,
    Note,
    NotePut,
    Schedule,
    declaration_conflicts,
    declares,
    handler_conflicts,
)
from pollux.plan import Diff, conflicting, reconcile, with_other_jobs
from pollux.registry import Registry
from pollux.runtime.isolation import check_place
from pollux.runtime.loop import Loop, Rest
from pollux.store.contract import BATCH_MAX, PAGE_MAX, Answer, Audit, JobAnswer, JobFilter, JobPut, Store
from pollux.store.decoding import readable_part

if TYPE_CHECKING:
    from pollux.app.reload import Reloader

HAD_MAX = 20


class SourceHistory(Struct, frozen=True):
    """The noted marks of a source."""

    had: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()  # may not return unless `replace` is set; a live node with one of them is outdated
    at_ms: int = 0  # since when the latest mark is in force; 0: an older release wrote it
    revision: int = 0  # of the note; 0: there is none


NONE = SourceHistory()


async def read_histories(store: Store) -> dict[str, SourceHistory]:
    """By source; a note that cannot be read counts as empty."""
    prefix = f"{SOURCE}{store.scheduler_version}:"
    notes, _ = await readable_part(store.notes(prefix))
    return {note.key.removeprefix(prefix): _history_of(note) for note in notes}


def _history_of(note: Note) -> SourceHistory:
    try:
        history = msgspec.convert(note.value, SourceHistory)
    except msgspec.ValidationError:
        history = NONE
    return msgspec.structs.replace(history, revision=note.revision)


async def latest_sets(store: Store) -> dict[str, LatestDeclaration]:
    """The set of jobs in force, by source."""
    histories = await read_histories(store)
    return {source: LatestDeclaration(each.had[-1], each.at_ms) for source, each in histories.items() if each.had}


async def note_set(
    store: Store, source: str, mark: str, *, had: tuple[str, ...], replaces: Collection[str] | None
) -> bool:
    """Note this set as the latest; false if another one was noted since `had` was read.

    `replaces`: it replaces all earlier sets of the source, and these; None: the latest one only.
    """
    there = (await read_histories(store)).get(source, NONE)
    if there.had != had:
        return False
    old = there.replaced if replaces is None else (*there.replaced, *had, *replaces)
    marks = (*_without(had if replaces is None else (), mark), mark)[-HAD_MAX:]
    replaced = _without(tuple(dict.fromkeys(old)), mark)[-HAD_MAX:]
    if (marks, replaced) == (had, there.replaced):
        return True
    value = {"had": list(marks), "replaced": list(replaced), "at_ms": await store.now()}
    key = f"{SOURCE}{store.scheduler_version}:{source}"
    return await store.put_notes([NotePut(key, value, revision=there.revision)]) == [Answer.OK]


def _without(marks: tuple[str, ...], mark: str) -> tuple[str, ...]:
    return tuple(each for each in marks if each != mark)


NOTED_MAX = 5  # comparisons of a source that others change at the same moment
NODES_SHOWN = 5
RELEASE_KNOWN_MS = 1_000  # how long the releases of a source are cached


class PendingDeclaration(Enum):
    """How a text reaches its source."""

    START = "start"  # by a node that starts, or without a node
    RELOAD = "reload"  # by a node that had another text until now
    AGAIN = "again"  # it is in force, and compared once more
    DRAFT = "draft"  # a preview, as if no live node had another text


class Declared:
    """Jobs by source.  Code declares under one source of its own; each file under another."""

    def __init__(self, registry: Registry, *, source: str, release: int) -> None:
        self._registry, self._code = registry, source
        self._by_source: dict[str, dict[str, Job]] = {}
        self._releases = {source: release}

    def add(
        self,
        handler: Callable[..., Any] | str,
        schedule: Schedule | None,
        *,
        id: str | None,
        params: dict[str, Any] | None,
        **options: Any,
    ) -> Job:
        """A job of a registered handler, declared by code."""
        name = self._handler_name(handler)
        known = self._registry.get(name)
        if options.get("timeout") is None and known is not None and known.timeout_ms is not None:
            options["timeout"] = known.timeout_ms / 1000
        job = job_of(
            id=id or name,
            handler=name,
            schedule=schedule,
            params=params,
            source=self._code,
            release=self._releases[self._code],
            **options,
        )
        job = self._registry.adopt(job)
        if known is not None and job.isolate is Isolate.PROCESS:
            check_place(known, is_whole=False)
        self._take(self._code, [job])
        return job

    def trial(self, registry: Registry) -> Declared:
        """A copy of the declarations with another registry."""
        other = Declared(registry, source=self._code, release=self._releases[self._code])
        other._by_source, other._releases = dict(self._by_source), dict(self._releases)
        return other

    def take_file(self, source: str, jobs: Sequence[Job], *, release: int = 0) -> None:
        """Replace the jobs of a file."""
        self._registry.forget(self._by_source.get(source, {}))
        self._by_source[source] = {}
        self._releases[source] = release
        self._take(source, jobs)

    def take_release(self, release: int) -> None:
        """Set the release of the code, from the configuration."""
        self._releases[self._code] = release
        for job_id, job in self._by_source.get(self._code, {}).items():
            self._by_source[self._code][job_id] = msgspec.structs.replace(job, release=release)

    def mark_written(self) -> None:
        """Mark all as stored: one that is missing later was deleted."""
        self._registry.mark_written(job.id for job in self.jobs())

    def sources(self) -> tuple[str, ...]:
        return tuple(self._by_source)

    def jobs(self) -> list[Job]:
        return [job for jobs in self._by_source.values() for job in jobs.values()]

    def declares(self) -> tuple[Declares, ...]:
        """The declarations of this node's heartbeat."""
        return tuple(declares(source, self._releases[source], jobs) for source, jobs in self._by_source.items())

    async def diff(
        self,
        store: Store,
        me: Node | None = None,
        *,
        only: Collection[str] | None = None,
        coming: PendingDeclaration = PendingDeclaration.START,
        replace: bool = False,
    ) -> list[Diff]:
        """What `write` would change, source by source; raises `Conflict` if an id belongs to another source.

        `only`: these sources; None: all.  `me` is the node with its declarations until now.  `replace`: a text in
        force does not leave jobs to live nodes that declare them.
        """
        diffs = []
        peers = declared_by_nodes(await store.nodes(), me)
        histories = await read_histories(store)
        for source, jobs in self._by_source.items():
            if only is not None and source not in only:
                continue
            stored = await _stored(store, source)
            known = {job.id for job in stored}
            others = [job_id for job_id in jobs if job_id not in known]
            owners: dict[str, str] = {}
            elsewhere: dict[str, int] = {}
            unreadable: list[Unreadable] = []
            for start in range(0, len(others), PAGE_MAX):
                there, unread = await readable_part(store.get_jobs(others[start : start + PAGE_MAX]))
                unreadable += unread
                found = [job for job in there if job is not None]
                owners |= {job.id: job.source for job in found}
                away = (job for job in found if job.scheduler_version != store.scheduler_version)
                elsewhere |= {job.id: job.scheduler_version for job in away}
            history = histories.get(source, NONE)
            diffs.append(
                reconcile(
                    stored,
                    list(jobs.values()),
                    source,
                    owners=owners,
                    release=self._releases[source],
                    peers=peers,
                    elsewhere=elsewhere,
                    unreadable=unreadable,
                    had=history.had,
                    conflicting=self._strangers(source, me, peers, history, coming),
                    is_again=not replace and self._holds(source, me, history, coming),
                )
            )
        return diffs

    def _holds(self, source: str, me: Node | None, history: SourceHistory, coming: PendingDeclaration) -> bool:
        """Is this text in force: the latest one of the source, or the one that the node has already?"""
        mark = self._mark(source)
        match coming:
            case PendingDeclaration.AGAIN:
                return True
            case PendingDeclaration.START:
                return history.had[-1:] == (mark,)
            case PendingDeclaration.RELOAD:
                return mark in history.had and _followed(source, me) == mark
            case PendingDeclaration.DRAFT:
                return False

    def _strangers(
        self,
        source: str,
        me: Node | None,
        peers: Collection[Declares],
        history: SourceHistory,
        coming: PendingDeclaration,
    ) -> list[Declares]:
        if coming is PendingDeclaration.DRAFT:
            return []
        mine = declares(source, self._releases[source], self._by_source[source])
        follows = None if coming is PendingDeclaration.START else _followed(source, me)
        if follows is not None and mine.mark in history.had:
            return []  # an edit is reverted, perhaps by a node that missed it
        is_latest = follows is not None and history.had[-1:] == (follows,)
        return conflicting(mine, peers, behind=(follows, *history.had, *history.replaced) if is_latest else (follows,))

    def _mark(self, source: str) -> str:
        return declares(source, 0, self._by_source[source]).mark

    async def write(
        self,
        store: Store,
        me: Node | None = None,
        *,
        only: Collection[str] | None = None,
        audit: OnceLine | None = None,
        coming: PendingDeclaration = PendingDeclaration.START,
        replace: bool = False,
    ) -> list[Diff]:
        """Make the store agree: add, change and remove jobs of these sources; returns the differences.

        Raises `Conflict` before anything is written if a source is refused, unless `replace` is set.
        """
        diffs = await self.diff(store, me, only=only, coming=coming, replace=replace)
        if not replace:
            await refuse(store, diffs)
        written = []
        for diff in diffs:
            await _put(store, [*diff.add, *(new for _, new in diff.change)], audit)
            written.append(await self._noted(store, me, diff, coming, replace=replace))
        for diff in written:
            for start in range(0, len(diff.remove), BATCH_MAX):
                ids = [job.id for job in diff.remove[start : start + BATCH_MAX]]
                answers = await store.delete_jobs(ids, reason=f"no longer in {diff.source}", audit=_line_of(audit))
                _hear(audit, answers)
            # Under this release, so that an older one does not declare them again; one changed meanwhile stays.
            old = [msgspec.structs.replace(job, declared=False, release=diff.release) for job in diff.undeclare]
            for start in range(0, len(old), BATCH_MAX):
                some = [JobPut(job, revision=job.revision) for job in old[start : start + BATCH_MAX]]
                _hear(audit, await store.put_jobs(some, audit=_line_of(audit)))
        return written

    async def _noted(
        self, store: Store, me: Node | None, diff: Diff, coming: PendingDeclaration, *, replace: bool
    ) -> Diff:
        """Note the set in force before any job is removed: of two nodes that start at once the second sees the first.

        The jobs of the second are written by then; the first removes them once it is alone.
        """
        mark = self._mark(diff.source)
        if diff.newer is not None or (diff.is_again and await _is_noted(store, diff, mark)):
            return diff
        for _ in range(NOTED_MAX):
            others = () if diff.refused is None else diff.refused.because_of
            if await note_set(store, diff.source, mark, had=diff.had, replaces=others if replace else None):
                return diff
            [now] = await self.diff(store, me, only=(diff.source,), coming=coming, replace=replace)
            if not replace:
                await refuse(store, [now])
            if now.newer is not None:
                return now
            diff = msgspec.structs.replace(diff, remove=now.remove, undeclare=now.undeclare, left=now.left, had=now.had)
        raise Conflict(f"other nodes keep changing the jobs of {diff.source}", cure="try again")

    def _handler_name(self, handler: Callable[..., Any] | str) -> str:
        if isinstance(handler, str):
            if (refusal := self._registry.refusal(handler)) is not None:
                raise refusal
            if self._registry.get(handler) is None:
                raise InvalidInput(f"no handler is called {handler!r}", cure="register it with @app.handler first")
            return handler
        known = self._registry.of(handler)
        if known is None:
            raise InvalidInput(f"{handler!r} is no handler", cure="decorate it with @app.handler or @app.job first")
        return known.name

    def _take(self, source: str, jobs: Iterable[Job]) -> None:
        for job in jobs:
            for other, declared in self._by_source.items():
                if job.id in declared:
                    where = "twice" if other == source else f"in {other} and in {source}"
                    raise InvalidInput(f"job {job.id!r} is declared {where}", cure="give one of them another id")
            self._by_source.setdefault(source, {})[job.id] = job
        self._registry.add_jobs(self._by_source.get(source, {}).values())


def _followed(source: str, me: Node | None) -> str | None:
    """The mark of the text that the node has had until now, if any."""
    return next((own.mark for own in me.declares if own.source == source), None) if me is not None else None


async def _is_noted(store: Store, diff: Diff, mark: str) -> bool:
    """Is the set noted, perhaps as replaced?  A replaced one does not return while a live node has it."""
    return mark in diff.had or mark in (await read_histories(store)).get(diff.source, NONE).replaced


async def refuse(store: Store, diffs: Iterable[Diff]) -> None:
    """Raise `Conflict` with its cure for the first difference that may not be written."""
    for diff in diffs:
        if diff.refused is not None:
            marks = {(diff.source, mark) for mark in diff.refused.because_of}
            nodes = await store.nodes() if marks else []
            others = [node for node in nodes if marks & {(each.source, each.mark) for each in node.declares}]
            raise Conflict(
                f"{diff.source}: {diff.refused.words}{_names(others)}; nothing was changed",
                found={"living": {node.id: node.beat_ms for node in others}} if others else None,
                cure=_cure(diff.source),
            )


def _names(nodes: Sequence[Node]) -> str:
    names = ", ".join(node.id for node in nodes[:NODES_SHOWN]) + (", ..." if len(nodes) > NODES_SHOWN else "")
    return f" ({names})" if names else ""


def _cure(source: str) -> str:
    kind, _, name = source.partition(":")
    if kind == "file":
        own = f"if it is another file than the {name} that had them, give it a name of its own (`name: shop`)"
        return f"{own}; if it is the next text of it, give it a higher `release`, or use --replace once"
    own = f"if it is another program than the {name!r} that had them, give it a name of its own: Pollux(name=...)"
    once = "use --replace once (`pollux serve`; in Python app.run(replace=True))"
    return f"{own}; if it is the next release of it, give it a higher `release`, or {once}"


async def _stored(store: Store, source: str) -> list[Job]:
    """The readable jobs of the source: an unreadable one is never removed, and is found by its id if declared."""
    jobs: list[Job] = []
    after: str | None = None
    while True:
        where = JobFilter(source=source, scheduler_version=store.scheduler_version)
        page, _ = await readable_part(store.list_jobs(where, after=after, limit=PAGE_MAX))
        jobs += page.jobs
        after = page.next
        if after is None:
            return jobs


class NewestReleases:
    """The newest known release of each source, at most `RELEASE_KNOWN_MS` old: concurrent callers share one read."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._looks: dict[tuple[str, int], tuple[float, asyncio.Task[int]]] = {}

    async def of(self, store: Store, source: str) -> int:
        """The newest release among its stored jobs and the declarations of live nodes."""
        loop, at, place = asyncio.get_running_loop(), self._clock.mono_ms(), (source, store.scheduler_version)
        looked_at, look = self._looks.get(place, (0.0, None))
        if look is None or look.get_loop() is not loop or _has_failed(look) or at >= looked_at + RELEASE_KNOWN_MS:
            look = loop.create_task(_newest_release(store, source))
            self._looks[place] = at, look
        return await asyncio.shield(look)


def _has_failed(look: asyncio.Task[int]) -> bool:
    return look.done() and (look.cancelled() or look.exception() is not None)


async def _newest_release(store: Store, source: str) -> int:
    declared = [each.release for node in await store.nodes() for each in node.declares if each.source == source]
    return max([*declared, *(job.release for job in await _stored(store, source))], default=0)


def _line_of(audit: OnceLine | None) -> Audit | None:
    return None if audit is None else audit.audit


def _hear(audit: OnceLine | None, answers: Sequence[Answer | JobAnswer]) -> None:
    if audit is not None:
        audit.heard(answers)


async def _put(store: Store, jobs: Sequence[Job], audit: OnceLine | None) -> None:
    for start in range(0, len(jobs), BATCH_MAX):
        some = jobs[start : start + BATCH_MAX]
        answers = await store.put_jobs([JobPut(job) for job in some], audit=_line_of(audit))
        _hear(audit, answers)
        refused = {answer.id: answer.detail for answer in answers if answer.answer not in (Answer.OK, Answer.ALREADY)}
        if not refused:
            continue
        there, unreadable = await readable_part(store.get_jobs(list(refused)))
        left = {job.id for job in there if job is not None and _is_left(job, some, store.scheduler_version)}
        left |= {each.name for each in unreadable}  # written by a newer release
        wrong = [f"job {job_id!r}: {detail}" for job_id, detail in refused.items() if job_id not in left]
        if wrong:
            raise Conflict("; ".join(wrong[:20]))


def _is_left(there: Job, ours: Sequence[Job], version: int) -> bool:
    """Is the stored job one of a newer release of the source, or of another version?"""
    if there.scheduler_version != version:
        return True
    return any(job.id == there.id and job.source == there.source and job.release < there.release for job in ours)


def declared_by_nodes(nodes: Iterable[Node], me: Node | None) -> list[Declares]:
    """The declarations of the live nodes of this node's version; without `me`, of all versions."""
    near = [node for node in nodes if me is None or node.serves(me.scheduler_version)]
    return [declared for node in near for declared in node.declares]


QUIET_BEATS = 4  # heartbeats between two reads of the live nodes, while all declare the same
LOOKS = 2  # comparisons after a change: at once, and after concurrent writes


class Registrar(Loop):
    """Writes the declarations of this node, and compares them with those of other nodes while it runs."""

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
        self._replaces = replace  # at the start: replace the sets of other nodes
        self._is_first = True
        self._others: set[Declares] = set()
        self._looks = 1
        self._is_begun = False
        self._is_old: set[str] = set()  # sources of which a newer release is known; reported once
        self._elsewhere: dict[str, int] = {}  # jobs of a source in another version; reported when the number changes
        self._rivals: set[HandlerConflict] = set()
        self._at_odds: set[DeclarationConflict] = set()
        self._odds_at: float | None = None  # when a difference between nodes, if it is still there, is reported
        self._unreadable: dict[str, set[str]] = {}  # jobs of a source that are not changed; each reported once

    async def begin(self) -> None:
        """Write the declarations; a refusal is an error of the start.  The loop compares again a heartbeat later."""
        await self.turn()
        await note_start(self.store, self.declared.sources(), self.program or program_words())
        self.declared.mark_written()
        self._is_begun = True

    def declare_anew(self, declared: Declared) -> None:
        """Take over declarations that a reload has written."""
        self.declared, self.me = declared, msgspec.structs.replace(self.me, declares=declared.declares())
        declared.mark_written()

    async def turn(self) -> Rest:
        if self._is_begun:
            self._is_begun = False
            return Rest(self.beat_ms)
        nodes = await self.store.nodes()
        self._report_rivals(nodes)
        peers = declared_by_nodes(nodes, self.me)
        others = {other for mine in self.me.declares for other in with_other_jobs(mine, peers)}
        if others != self._others:
            self._others, self._looks = others, LOOKS
            self._odds_at = self.clock.mono_ms() + 2 * SETTLED_MS  # a deploy is under way until then
        if self._looks:
            await self._write()
            self._looks -= 1
        if self._odds_at is not None and self.clock.mono_ms() >= self._odds_at:
            await self._report_differences(nodes)
            self._odds_at = None
        if any(self._elsewhere.values()) or any(self._unreadable.values()):
            self._looks = max(1, self._looks)  # they may be moved here, or deleted
            return Rest(QUIET_BEATS * self.beat_ms)
        return Rest(self.beat_ms if others or self._looks else QUIET_BEATS * self.beat_ms)

    async def _sources(self) -> list[str]:
        """The sources to write: not a file of which another node has since read another text."""
        sources, reloader = list(self.declared.sources()), self.reloader
        if reloader is None or self._is_first or not await reloader.is_stale():
            return sources
        return [source for source in sources if source != reloader.config.source]

    async def _write(self) -> None:
        only = await self._sources()
        coming, replace = (
            (PendingDeclaration.START, self._replaces) if self._is_first else (PendingDeclaration.AGAIN, False)
        )
        for diff in await self.declared.write(self.store, self.me, only=only, coming=coming, replace=replace):
            if self.reloader is not None and diff.source == self.reloader.config.source and diff.newer is None:
                await self.reloader.note_text(self.reloader.config)
            if diff.newer is not None and diff.source not in self._is_old:
                self._is_old.add(diff.source)
                self.events.emit(ReleaseIsOld(diff.source, diff.release, diff.newer))
            self._report_elsewhere(diff)
            self._report_unreadable(diff)
            if not diff.is_empty:
                removed = len(diff.remove) + len(diff.undeclare)
                self.events.emit(JobsDeclared(diff.source, len(diff.add), len(diff.change), removed))
        self._is_first = False

    def _report_rivals(self, nodes: list[Node]) -> None:
        """Report each program with other code under the names of this node's handlers, once while it lives."""
        found = {each for each in handler_conflicts(nodes) if self.me.id in each.nodes}
        for each in sorted(found - self._rivals, key=str):
            [(other, source)] = [pair for pair in zip(each.nodes, each.sources, strict=True) if pair[0] != self.me.id]
            self.events.emit(CodeDiffers(each.handlers, other, source, str(each)))
        self._rivals = found

    async def _report_differences(self, nodes: list[Node]) -> None:
        """Report nodes that keep declaring other jobs of the same sources, once until the nodes change."""
        near = [node for node in nodes if node.scheduler_version == self.me.scheduler_version]
        all_found = declaration_conflicts(near, await latest_sets(self.store), now_ms=await self.store.now())
        found = {each for each in all_found if self.me.id in (each.node, each.holder)}
        for each in sorted(found - self._at_odds, key=str):
            other = each.holder if each.node == self.me.id else each.node
            self.events.emit(JobsDiffer(each.source, other, str(each)))
        self._at_odds = found

    def _report_elsewhere(self, diff: Diff) -> None:
        """Report jobs that belong to another version when their number changes: that may take days."""
        count = len(diff.elsewhere)
        if count and count != self._elsewhere.get(diff.source):
            job_id, version = diff.elsewhere[0]
            own = self.store.scheduler_version
            self.events.emit(JobsElsewhere(diff.source, count, job_id, version, own))
        self._elsewhere[diff.source] = count

    def _report_unreadable(self, diff: Diff) -> None:
        """Report jobs of a newer release, whose declarations by this one are not written."""
        before = self._unreadable.get(diff.source, set())
        self._unreadable[diff.source] = {job.name for job in diff.unreadable}
        for job in diff.unreadable:
            if job.name not in before:
                self.events.emit(JobUnreadable(diff.source, job.name, job.why))
