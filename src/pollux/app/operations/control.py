"""Operations that steer nodes: pauses, drains, requested planning turns, live settings and the config file.

Pauses, drains, requests and settings are notes in the store that every node reads, so they survive restarts.  The drain
of one node ends with the node, whose id is new at every start.  `app/watchers.py` applies live settings on each node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from pollux.app.operations.audit import as_words
from pollux.app.operations.context import OperationGroup
from pollux.app.reload import ConfigDraft, Reloader, ReloadResult, RunningConfig
from pollux.config.descriptions import SETTINGS, EffectiveOption, plain, shown
from pollux.config.file_history import SavedText
from pollux.config.load import file_source
from pollux.config.settings import LiveSetting, live_option, live_value, read_live, setting_key
from pollux.errors import Conflict, InvalidInput, NotFound, StoreMoved, read_at
from pollux.ids import new_id
from pollux.job_builder import check_stop
from pollux.model import (
    DRAIN,
    SETTING,
    STOP,
    TURN,
    Drained,
    Node,
    Note,
    NotePut,
    by_term,
    drain_key,
    drained_of,
    leader_of,
    stop_key,
)
from pollux.registry import job_id_of
from pollux.runtime.node import NodeRuntime, TurnResult
from pollux.secrets import hide
from pollux.store.contract import Answer, Audit, Store
from pollux.store.decoding import ILLEGIBLE, as_far, stops_as_far
from pollux.store.move_marks import marks_of
from pollux.units import duration_ms, format_ms


class PauseOperations(OperationGroup):
    """Pause and resume, and reset breakers."""

    async def pause(
        self,
        job: object = None,
        *,
        group: str | None = None,
        target: str | None = None,
        everything: bool = False,
        reason: str = "",
        duration: str | float | None = None,
    ) -> str:
        """Stop a job, a group, a target or everything, for a `duration` or until resumed; answers the stop's name."""
        key = await self._stop_key(job, group, target, everything)
        now_ms = await self._store.now()
        expires_ms = None if duration is None else now_ms + read_at("duration", duration_ms, duration)
        value = {"reason": as_words(reason), "by": self._actor, "at_ms": now_ms}
        lasts = "" if expires_ms is None else f"for {format_ms(expires_ms - now_ms)}"
        audit = self._audit.on_record("pause", key.removeprefix(STOP), "; ".join(filter(None, (reason, lasts))))
        await self._store.put_notes([NotePut(key, value, expires_ms=expires_ms)], audit=audit)
        return key

    async def resume(
        self, job: object = None, *, group: str | None = None, target: str | None = None, everything: bool = False
    ) -> bool:
        """Take the same pause away; false if there was none."""
        key = await self._stop_key(job, group, target, everything)
        audit = self._audit.on_record("resume", key.removeprefix(STOP))
        return await self._store.put_notes([NotePut(key)], audit=audit) == [Answer.OK]

    async def stops(self) -> list[Note]:
        """All that is paused; one that nobody here can read stands, too."""
        return (await stops_as_far(self._store.notes(STOP)))[0]

    async def reset_breaker(self, name: str) -> None:
        """Forget what a breaker has seen."""
        audit = self._audit.on_record("reset", f"breaker {name}")
        await self._store.put_notes([NotePut(f"breaker:{name}")], audit=audit)

    async def _stop_key(self, job: object, group: str | None, target: str | None, everything: object) -> str:
        given = [job is not None, group is not None, target is not None, bool(everything)]
        if sum(given) != 1:
            raise InvalidInput(
                "say what to stop: exactly one of a job, a group, a target, or everything",
                cure="pause('home'), pause(group='edge'), pause(target='db'), pause(everything=True)",
            )
        check_stop(group=group, target=target)
        if job is not None:
            await self._operations.jobs.find_job(job)
            return stop_key("job", job_id_of(job))
        if group is not None:
            return stop_key("group", group)
        return stop_key("all") if target is None else stop_key("target", target)


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
            self._crew.reread_stops()

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


class Setting(Struct, frozen=True):
    """An option that was changed for all nodes."""

    path: str
    value: str  # as it is written in a file
    by: str
    at_ms: int
    meaning: str


class SettingOperations(OperationGroup):
    """Set and unset options for all nodes."""

    async def list_settings(self) -> list[Setting]:
        """Those that were changed and not unset since, by name."""
        live, _ = await self._live(SETTING)
        return [_setting(said) for _, said in sorted(live.items())]

    async def set_setting(self, path: str, value: Any) -> Setting:
        """Change an option for all nodes, from now on and over restarts.

        Raises `InvalidInput` for one that needs a restart, and for a value that no file could have.
        """
        live_value(path, value)
        said = LiveSetting(path, value, self._actor, self._clock.now_ms())
        live, _ = await self._live(setting_key(path))
        note = {"value": value, "by": said.by, "at_ms": said.at_ms}
        new = _setting(said)
        was = f"{_setting(live[path]).value} -> " if path in live else ""
        audit = self._audit.on_record("set", path, f"{was}{new.value}")
        await steer(self._store, [NotePut(setting_key(path), note)], audit)
        await self._look_here()
        return new

    async def unset_setting(self, path: str) -> bool:
        """Let the file, or the default, decide again; false if nobody had set it."""
        live_option(path)
        key = setting_key(path)
        live, there = await self._live(key)
        if key not in there:
            await self._look_here()
            return False
        audit = self._audit.on_record(
            "unset", path, f"it was {_setting(live[path]).value}" if path in live else ILLEGIBLE
        )
        was_set = await steer(self._store, [NotePut(key)], audit)
        await self._look_here()
        return was_set

    async def _live(self, prefix: str) -> tuple[dict[str, LiveSetting], set[str]]:
        """What is set under keys that begin so, as far as it can be read, and which keys there are."""
        notes, unreadable = await as_far(self._store.notes(prefix))
        return read_live(notes), {note.key for note in notes} | {each.name for each in unreadable}

    async def _look_here(self) -> None:
        """A node of this process applies the change before the caller gets its answer."""
        node = self._context.node
        if node is not None and node.steward is not None and node.crew is not None:
            await node.steward.look()


async def steer(store: Store, puts: Sequence[NotePut], audit: Audit) -> bool:
    """Write the notes and wake every waiting claim; true if the first of them was written."""
    answers = await store.put_notes(puts, audit=audit)
    await store.wake()
    return answers[0] is Answer.OK


def _setting(said: LiveSetting) -> Setting:
    option = live_option(said.path)
    value = shown(option, live_value(said.path, said.value))
    return Setting(said.path, value, said.by, said.at_ms, plain(SETTINGS.get(said.path, "")))


class ConfigFileOperations(OperationGroup):
    """Reload and roll back the file that the node of this process was started with."""

    async def reload(
        self,
        *,
        dry_run: bool = False,
        text: str | None = None,
        called: str = "",
        source: str = "",
        only: str = "",
        replace: bool = False,
    ) -> ReloadResult:
        """Read the file again and make it hold; `dry_run`: only say what would change.

        Raises what stands against it (`InvalidConfig` with every problem and its place, `Conflict`), and then nothing
        has changed.  With `text` (and `dry_run`): what would change if the file held that; `called` is its name for
        messages, `source` whose next text it is if not this file's.  `only`: the digest of the text that is meant.
        `replace`: also where it takes away jobs that another text of that name declares, or most of them.
        """
        reloader = self._reloader
        if text is None:
            return await reloader.reload(by=self._actor, dry_run=dry_run, only=only, replace=replace)
        if not dry_run:
            cure = f"say dry_run, or write it to {reloader.place}: it is read again by itself"
            raise InvalidInput("a text that is sent is looked at, and never applied", where="text", cure=cure)
        return await reloader.preview(ConfigDraft(text, called, file_source(source) if source else ""))

    async def file_in_force(self) -> RunningConfig:
        """By which options this node runs, and whether its file says the same."""
        reloader = self._reloader
        return await asyncio.to_thread(reloader.in_force)

    async def rollback(self, to: str | None = None, *, replace: bool = False) -> ReloadResult:
        """Put the text before back into the file (or that of the digest `to`) and make it hold; `replace` as above."""
        return await self._reloader.rollback(by=self._actor, to=to, replace=replace)

    async def file_versions(self) -> list[SavedText]:
        """The texts of the file that were applied, oldest first, the last ten."""
        return self._reloader.versions.all()

    async def options_in_force(self) -> list[EffectiveOption]:
        """Every option by which this node runs, with its origin."""
        assert self._context.node is not None, "options are read by an app"
        return self._context.node.options_in_force()

    @property
    def _reloader(self) -> Reloader:
        node = self._context.node
        if node is None or node.reloader is None or not node.reloader.config.path:
            raise InvalidInput(
                "there is no file to read again",
                where="config",
                cure="start it with one: pollux serve -c FILE; `pollux check --diff -c FILE` compares with the store",
            )
        return node.reloader
