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
from pollux.store.decoding import CONTENT_UNREADABLE, readable_part, readable_stops
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
        """Pause a job, a group, a target or everything, for a `duration` or until resumed; returns the pause's key."""
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
        """End the same pause; false if there was none."""
        key = await self._stop_key(job, group, target, everything)
        audit = self._audit.on_record("resume", key.removeprefix(STOP))
        return await self._store.put_notes([NotePut(key)], audit=audit) == [Answer.OK]

    async def stops(self) -> list[Note]:
        """All pauses, also those that this release cannot decode."""
        return (await readable_stops(self._store.notes(STOP)))[0]

    async def reset_breaker(self, name: str) -> None:
        """Close a breaker."""
        audit = self._audit.on_record("reset", f"breaker {name}")
        await self._store.put_notes([NotePut(f"breaker:{name}")], audit=audit)

    async def _stop_key(self, job: object, group: str | None, target: str | None, everything: object) -> str:
        given = [job is not None, group is not None, target is not None, bool(everything)]
        if sum(given) != 1:
            raise InvalidInput(
                "name exactly one of a job, a group, a target, or everything",
                cure="pause('home'), pause(group='edge'), pause(target='db'), pause(everything=True)",
            )
        check_stop(group=group, target=target)
        if job is not None:
            await self._operations.jobs.find_job(job)
            return stop_key("job", job_id_of(job))
        if group is not None:
            return stop_key("group", group)
        return stop_key("all") if target is None else stop_key("target", target)


LOOKS_MS = (10, 20, 50, 100, *(200,) * 25)  # rests while waiting for the turn of another node
REASON_CHARS_MAX = 1_000
TURN_MS = 5_000  # limit of a turn of this node
ASKED_MS = 60_000  # lifetime of a request for a turn


class TriggerResult(Struct, frozen=True):
    """The result of requested planning turns."""

    leaders: tuple[str, ...]  # one for each version in the store
    answered: tuple[str, ...]  # those that answered in time
    fired: int = 0
    released: int = 0
    skipped: int = 0


class WorkerOperations(OperationGroup):
    """Drain and resume workers, and trigger planning."""

    async def drain_workers(self, node: str | None = None, *, reason: str = "") -> None:
        """Keep all nodes, or one, from claiming runs until `resume_workers`; current runs and planning go on."""
        nodes = await self._store.nodes()
        if node is not None and node not in {each.id for each in nodes}:
            raise NotFound("node", node, cure="`pollux nodes` lists those that live")
        reason = hide(reason)[:REASON_CHARS_MAX]
        value = {"reason": reason, "by": self._actor, "at_ms": await self._store.now()}
        audit = self._audit.first_on_record("drain", node or "all workers", reason)
        await put_and_wake(self._store, [NotePut(drain_key(node), value), *await self._orphans(nodes)], audit)
        self._reread_stops()

    async def resume_workers(self, node: str | None = None) -> bool:
        """Let all nodes, or one, claim again.  False if they were not drained."""
        notes, _ = await readable_stops(self._store.notes(DRAIN))
        key = drain_key(node)
        if key not in {note.key for note in notes}:
            self._reread_stops()
            return False
        for note in notes:
            if note.key == key and note.expires_ms is not None:  # of a move of the store, which renews it
                what = "the store is about to be moved elsewhere: they claim again when that is over"
                raise Conflict(what, cure="wait for the end of `pollux store move`, or stop it where it runs")
        if key == DRAIN and (await marks_of(self._store)).to is not None:
            what = "the store was moved elsewhere: nodes claim here only after it is unsealed"
            raise StoreMoved(what, cure="use the store that it was moved to: `pollux doctor` names it")
        orphans = await self._orphans(await self._store.nodes())
        audit = self._audit.first_on_record("resume", node or "all workers")
        was_drained = await put_and_wake(self._store, [NotePut(key), *orphans], audit)
        self._reread_stops()
        return was_drained

    async def drained_workers(self) -> list[Drained]:
        """The drains in force."""
        living = {node.id for node in await self._store.nodes()}
        notes, _ = await readable_stops(self._store.notes(DRAIN))
        drained = [drained_of(note) for note in notes]
        return [each for each in drained if each is not None and (each.node is None or each.node in living)]

    async def drain_here(self) -> Drained | None:
        """The drain of all workers, if the node of this process knows one; without a drain no store call is made."""
        runtime = self._crew
        if runtime is None or not runtime.dispatcher.is_drained:
            return None
        return next((each for each in await self.drained_workers() if each.node is None), None)

    async def trigger(self) -> TriggerResult:
        """Plan now, and return what that fired and released; on this node if it is the only leader, else elsewhere."""
        runtime, node = self._crew, self._context.node
        if runtime is None or node is None or len(await self._leaders()) > 1:
            return await self._trigger_elsewhere()
        turned = await runtime.turn_now(TURN_MS)
        if turned is None:
            return await self._trigger_elsewhere()
        await self._audit.record("trigger", "the leader", node.node_id)
        us = (node.node_id,)
        return TriggerResult(us, us, turned.fired, turned.released, turned.skipped)

    # inside

    @property
    def _crew(self) -> NodeRuntime | None:
        return None if self._context.node is None else self._context.node.runtime

    def _reread_stops(self) -> None:
        """Make the node of this process read the drains now, not with its next claim."""
        if self._crew is not None:
            self._crew.reread_stops()

    async def _trigger_elsewhere(self) -> TriggerResult:
        now_ms = await self._store.now()
        prefix = f"{TURN}{new_id(now_ms, self._dice)}:"
        value = {"by": self._actor, "at_ms": now_ms}
        leaders = await self._leaders()
        request = NotePut(f"{prefix}ask", value, expires_ms=now_ms + ASKED_MS)
        await put_and_wake(self._store, [request], self._audit.on_record("trigger", "the leader", ", ".join(leaders)))
        answers = await self._answers(prefix, len(leaders))
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

    async def _answers(self, prefix: str, count: int) -> list[Note]:
        """Wait for the answers of the leaders, and delete the notes."""
        found: list[Note] = []
        for rest_ms in LOOKS_MS if count else ():
            await asyncio.sleep(rest_ms / 1000)
            if len(found) >= count:
                break
            notes, _ = await readable_part(self._store.notes(prefix))
            found = [note for note in notes if not note.key.endswith("ask")]
        await self._store.put_notes([NotePut(f"{prefix}ask"), *(NotePut(note.key) for note in found)])
        return found

    async def _orphans(self, nodes: Sequence[Node]) -> list[NotePut]:
        """Deletions of the drains of dead nodes, whose ids never return."""
        living = {drain_key(node.id) for node in nodes}
        notes, _ = await readable_stops(self._store.notes(f"{DRAIN}:"))
        return [NotePut(note.key) for note in notes if note.key not in living]


def leaders_of(nodes: Sequence[Node]) -> tuple[str, ...]:
    """The leader of each version."""
    versions = sorted({node.scheduler_version for node in nodes})
    found = [leader_of(node for node in nodes if node.scheduler_version == version) for version in versions]
    return tuple(node.id for node in found if node is not None)


class Setting(Struct, frozen=True):
    """An option that was changed for all nodes."""

    path: str
    value: str  # as in a file
    by: str
    at_ms: int
    meaning: str


class SettingOperations(OperationGroup):
    """Set and unset options for all nodes."""

    async def list_settings(self) -> list[Setting]:
        """All live settings, by name."""
        live, _ = await self._live(SETTING)
        return [_setting(each) for _, each in sorted(live.items())]

    async def set_setting(self, path: str, value: Any) -> Setting:
        """Change an option for all nodes, also across restarts.

        Raises `InvalidInput` for an option that needs a restart, and for an invalid value.
        """
        live_value(path, value)
        setting = LiveSetting(path, value, self._actor, self._clock.now_ms())
        live, _ = await self._live(setting_key(path))
        note = {"value": value, "by": setting.by, "at_ms": setting.at_ms}
        new = _setting(setting)
        was = f"{_setting(live[path]).value} -> " if path in live else ""
        audit = self._audit.on_record("set", path, f"{was}{new.value}")
        await put_and_wake(self._store, [NotePut(setting_key(path), note)], audit)
        await self._apply_here()
        return new

    async def unset_setting(self, path: str) -> bool:
        """Remove a setting, so that the file or the default applies; false if it was not set."""
        live_option(path)
        key = setting_key(path)
        live, there = await self._live(key)
        if key not in there:
            await self._apply_here()
            return False
        audit = self._audit.on_record(
            "unset", path, f"it was {_setting(live[path]).value}" if path in live else CONTENT_UNREADABLE
        )
        was_set = await put_and_wake(self._store, [NotePut(key)], audit)
        await self._apply_here()
        return was_set

    async def _live(self, prefix: str) -> tuple[dict[str, LiveSetting], set[str]]:
        """The readable settings under a prefix, and all keys under it."""
        notes, unreadable = await readable_part(self._store.notes(prefix))
        return read_live(notes), {note.key for note in notes} | {each.name for each in unreadable}

    async def _apply_here(self) -> None:
        """Make the node of this process apply the change before the caller is answered."""
        node = self._context.node
        if node is not None and node.settings_watcher is not None and node.runtime is not None:
            await node.settings_watcher.look()


async def put_and_wake(store: Store, puts: Sequence[NotePut], audit: Audit) -> bool:
    """Write the notes and wake every waiting claim; true if the first of them was written."""
    answers = await store.put_notes(puts, audit=audit)
    await store.wake()
    return answers[0] is Answer.OK


def _setting(live: LiveSetting) -> Setting:
    value = shown(live_option(live.path), live_value(live.path, live.value))
    return Setting(live.path, value, live.by, live.at_ms, plain(SETTINGS.get(live.path, "")))


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
        """Read the file again and apply it; `dry_run`: only return what would change.

        If it raises (`InvalidConfig` with every problem and its place, `Conflict`), nothing has changed.  With `text`
        (and `dry_run`): what would change if the file had that text; `called` is its name in messages, `source` the
        source that it belongs to, if not this file's.  `only`: the digest of the expected text.  `replace`: also if it
        removes jobs that another text of that name declares, or most of them.
        """
        reloader = self._reloader
        if text is None:
            return await reloader.reload(by=self._actor, dry_run=dry_run, only=only, replace=replace)
        if not dry_run:
            cure = f"set dry_run, or write it to {reloader.place}: it is read again by itself"
            raise InvalidInput("a text that is sent is compared, and never applied", where="text", cure=cure)
        return await reloader.preview(ConfigDraft(text, called, file_source(source) if source else ""))

    async def file_in_force(self) -> RunningConfig:
        """The options in force on this node, and whether its file has the same."""
        return await asyncio.to_thread(self._reloader.in_force)

    async def rollback(self, to: str | None = None, *, replace: bool = False) -> ReloadResult:
        """Write the previous text (or that of the digest `to`) back into the file and apply it; `replace` as above."""
        return await self._reloader.rollback(by=self._actor, to=to, replace=replace)

    async def file_versions(self) -> list[SavedText]:
        """The texts of the file that were applied, oldest first, the last ten."""
        return self._reloader.versions.all()

    async def options_in_force(self) -> list[EffectiveOption]:
        """Every option of this node, with its origin."""
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
