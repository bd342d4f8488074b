"""Reload of a changed config file: read and checked as a whole, then applied, or not at all.

    read ─▶ check: handlers, secrets, params, ids ─▶ compare with the store ─▶ write the difference ─▶ retune the node
              │ any problem: nothing changes, and the message names its place

Only jobs that differ are put, so that the others keep their phase and memory.  Options that cannot change while a node
runs are named in every answer until it is restarted.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from pollux.app.declarations import PendingDeclaration, refuse
from pollux.app.operations.audit import OnceLine
from pollux.app.setup import missing_secrets, register_python
from pollux.config.descriptions import EffectiveOption, effective_options, shown
from pollux.config.file_history import FileHistory
from pollux.config.load import digest_of, load_config
from pollux.config.settings import DEFAULT, OPTIONS, Config, is_overruled, read_live, with_live
from pollux.config.yaml_reader import FILE_BYTES_MAX
from pollux.errors import InvalidConfig, InvalidInput, PolluxError, StoreError
from pollux.events import ConfigReloaded, FileVersionUnsaved, ReloadRefused
from pollux.model import SETTING, AuditLine, Job, NotePut
from pollux.plan import Diff
from pollux.secrets import hide
from pollux.store.decoding import readable_part
from pollux.store.urls import sqlite_file

if TYPE_CHECKING:
    from pollux.app.declarations import Declared
    from pollux.app.pollux import Pollux
    from pollux.registry import Registry

FILE_NOTE = f"{SETTING}file:"  # and the source: the digest in force; a node with another text writes none of its jobs
BY_FILE, BY_SIGNAL = "file watch", "signal HUP"
TEXT = "text"  # the name of a draft without one: the field in which it was sent
SHOWN_MAX = 10
STEADY_S = 0.1  # a file is read once it has not changed for this long
STEADY_LOOKS_MAX = 50
# Besides the live ones: these apply as soon as the jobs are written.
_BY_JOBS = frozenset({"release", "job_timeout"})


class OptionChange(Struct, frozen=True):
    path: str
    before: str
    after: str
    overruled: str = ""  # the live setting that stays in force instead

    def __str__(self) -> str:
        words = f"{self.path} {self.before} -> {self.after}"
        return f"{words}, overruled by live {self.overruled}" if self.overruled else words


class ReloadResult(Struct, frozen=True):
    """What a reload changed; of a dry run, what it would change."""

    path: str
    digest: str  # of the text that was read
    lines: tuple[str, ...]  # `+` added, `~` changed, `-` removed, one line for each job or option
    added: int
    changed: int
    removed: int
    same: int
    options: tuple[OptionChange, ...]  # that apply now
    needs_restart: tuple[OptionChange, ...]
    is_dry: bool
    aside: str = ""  # of a rollback: the file with the replaced text, if that is saved nowhere else
    draft: str = ""  # the name of the text that was previewed instead of the file's own
    source: str = ""  # whose jobs it was compared with
    unseen: tuple[str, ...] = ()  # functions that a draft names and the node has not imported: not checked
    refused: str = ""  # of a dry run: why it would not be applied without `replace`

    @property
    def is_empty(self) -> bool:
        return not (self.lines or self.needs_restart or self.unseen)

    def words(self) -> str:
        """In one line, for logs and the audit."""
        parts = [f"jobs: {self.added} added, {self.changed} changed, {self.removed} removed, {self.same} the same"]
        parts += [str(change) for change in self.options]
        if self.needs_restart:
            parts.append(f"needs a restart: {', '.join(map(str, self.needs_restart))}")
        return "; ".join(parts)


class ConfigDraft(Struct, frozen=True):
    """A text to preview instead of the file's own."""

    text: str
    called: str = ""  # the name of its file
    source: str = ""  # the source that it belongs to, like `file:pollux.yaml`; "": by its name, else the node's

    @property
    def raw(self) -> bytes:
        return self.text.encode("utf-8", "surrogatepass")


class RunningConfig(Struct, frozen=True):
    """The configuration in force on a node, and whether its file still has it."""

    path: str  # of the file, absolute
    digest: str  # of the text in force
    is_there: bool  # the file has that text
    refused: tuple[str, ...]  # problems of the text that it has instead
    options: tuple[EffectiveOption, ...]
    needs_restart: tuple[OptionChange, ...]


class CheckedConfig(Struct):
    """A text that passed every check, and its effects."""

    raw: bytes
    config: Config
    jobs: list[Job]
    registry: Registry
    declared: Declared
    diffs: list[Diff]
    options: tuple[OptionChange, ...]
    needs_restart: tuple[OptionChange, ...]
    source: str
    unseen: tuple[str, ...]


class Reloader:
    """One reload at a time, of one file."""

    def __init__(self, app: Pollux, config: Config, *, plans: bool, runs: bool) -> None:
        self.app, self.plans, self.runs = app, plans, runs
        self.config = self.started = config  # in force now, and at the start
        self.refused: tuple[str, ...] = ()  # problems of the text that was last refused
        self._refused = ""  # its digest: it is reported once
        self._is_unsaved_reported = False
        self._lock = asyncio.Lock()

    @property
    def place(self) -> str:
        """The absolute path of the file."""
        return str(Path(self.config.path).absolute())

    @property
    def versions(self) -> FileHistory:
        return FileHistory(self.config.path, store_file=sqlite_file(self.app.store_url))

    async def reload(
        self, *, by: str, dry_run: bool = False, raw: bytes | None = None, only: str = "", replace: bool = False
    ) -> ReloadResult:
        """Read the file (or take `raw` instead) and apply it, or raise why not.

        `only`: the digest of the expected text; any other one is refused.  `replace`: whatever the source has.
        """
        async with self._lock:
            if raw is None:
                raw = await self._read(by)
            if only and (raw is None or digest_of(raw) != only):
                raise self._other_file()
            try:
                prepared = await self._prepare(raw, replace=replace)
                if replace:
                    prepared.diffs = [msgspec.structs.replace(diff, refused=None) for diff in prepared.diffs]
                reloaded = self._result(prepared, is_dry=dry_run)
                words = hide(reloaded.words())[:1_000]
                audit = OnceLine(AuditLine(self.app.clock.now_ms(), by, "reload", reloaded.path[:200], words))
                if not dry_run:
                    await refuse(self.app.backend, prepared.diffs)
                    await self._apply(prepared, audit, replace=replace)
            except StoreError:
                raise
            except PolluxError as error:
                self._refuse(raw, error, by, is_dry=dry_run)
                raise
            if not dry_run:
                await self._record(reloaded, by, audit)
            return reloaded

    async def preview(self, draft: ConfigDraft) -> ReloadResult:
        """What would change if the file had this text; nothing is changed or imported."""
        if not draft.source and digest_of(draft.raw) == await asyncio.to_thread(self.digest_there):
            return await self.reload(by="", dry_run=True)
        async with self._lock:
            reloaded = self._result(await self._prepare(draft.raw, draft), is_dry=True)
        return msgspec.structs.replace(reloaded, draft=draft.called or TEXT)

    def in_force(self) -> RunningConfig:
        """The configuration in force: options that need a restart are as at the start."""
        steady = {option.field for option in OPTIONS if not (option.live or option.path in _BY_JOBS)}
        paths = {option.path for option in OPTIONS if option.field in steady}
        values = {field: getattr(self.started, field) for field in steady}
        origins = self.config.origins | {path: origin for path, origin in self.started.origins.items() if path in paths}
        written = {path: text for path, text in self.config.written.items() if path not in paths}
        written |= {path: text for path, text in self.started.written.items() if path in paths}
        config = msgspec.structs.replace(self.config, **values, origins=origins, written=written)
        there = self.digest_there()
        return RunningConfig(
            path=self.place,
            digest=self.config.digest,
            is_there=there == self.config.digest,
            refused=self.refused if there == self._refused else (),
            options=tuple(
                effective_options(
                    with_live(config, self.app.settings_watcher.live if self.app.settings_watcher is not None else {})
                )
            ),
            needs_restart=tuple(_changes(self.started, self.config, is_live=False)),
        )

    async def rollback(self, *, by: str, to: str | None = None, replace: bool = False) -> ReloadResult:
        """Write an earlier text back into the file and apply it; one that is refused changes nothing."""
        versions = self.versions
        versions.refuse_unwritable()
        there = await asyncio.to_thread(_bytes_of, self.config.path)
        raw = versions.before("" if there is None else digest_of(there), to).read()
        would = await self.reload(by=by, dry_run=True, raw=raw, replace=replace)
        if would.refused:
            await self.reload(by=by, raw=raw)  # raises, and the file is unchanged
        aside = "" if there is None else await asyncio.to_thread(versions.keep_replaced, there)
        await asyncio.to_thread(versions.put_back, raw)
        return msgspec.structs.replace(await self.reload(by=by, raw=raw, replace=replace), aside=aside)

    async def began(self) -> bool:
        """Save the text that the node starts with; false if the file has another one by now."""
        raw = await asyncio.to_thread(_bytes_of, self.config.path)
        if raw is None or digest_of(raw) != self.config.digest:
            return False
        await self._keep(raw)
        return True

    def digest_there(self) -> str:
        """The digest of the file as it is now; empty if it cannot be read."""
        raw = _bytes_of(self.config.path)
        return "" if raw is None else digest_of(raw)

    async def _read(self, by: str) -> bytes | None:
        """The text; a file that was seen to change is read once it is steady, on request it is read as it is."""
        if by == BY_FILE:
            return await steady_bytes(self.config.path, _bytes_of)
        return await asyncio.to_thread(_bytes_of, self.config.path)

    # checking

    async def _prepare(
        self, raw: bytes | None, draft: ConfigDraft | None = None, *, replace: bool = False
    ) -> CheckedConfig:
        """Check a text; for a draft nothing is imported, as it comes from outside."""
        if raw is None and not await asyncio.to_thread(Path(self.config.path).exists):
            cure = "put it back: pollux reload --rollback"
            raise InvalidConfig([InvalidInput("the file was removed", where=self.config.path, cure=cure)])
        config = await asyncio.to_thread(
            load_config,
            self.config.path,
            environ={name: value for name, value in os.environ.items() if name not in self.config.ignored_variables},
            arguments=self.config.arguments,
            raw=raw,
            called="" if draft is None else draft.called or TEXT,
        )
        assert raw is not None, "a file that cannot be read was refused"
        source = self.config.source if draft is None else await self._source_of(draft, config)
        app, beside = self.app, self.app.secrets.folder
        registry = app.registry_on_trial(allow_exec=config.allow_exec)
        missing = missing_secrets(config.jobs, app.secrets, config.places) if self.runs else []
        unseen = register_python(registry, config, beside=beside, also=missing, may_import=draft is None)
        jobs = [registry.adopt(_under(job, source)) for job in config.jobs]
        declared = app.declared.trial(registry)
        declared.take_file(source, jobs, release=config.release)
        writes = self.plans or draft is not None
        coming = PendingDeclaration.RELOAD if source == self.config.source else PendingDeclaration.DRAFT
        only = (source,) if writes else ()
        diffs = await declared.diff(app.backend, app.node(), only=only, coming=coming, replace=replace) if only else []
        is_ours = source == self.config.source  # the options of another file are another node's
        return CheckedConfig(
            raw,
            config,
            jobs,
            registry,
            declared,
            diffs,
            await self._live_changes(config) if is_ours else (),
            tuple(_changes(self.started, config, is_live=False)) if is_ours else (),
            source,
            unseen,
        )

    async def _live_changes(self, config: Config) -> tuple[OptionChange, ...]:
        """The changes of options that need no restart; some are overruled by live settings."""
        changes = tuple(_changes(self.config, config, is_live=True))
        notes, _ = await readable_part(self.app.backend.notes(SETTING))
        live = read_live(notes) if changes else {}
        in_force = {path: str(setting.value) for path, setting in live.items() if not is_overruled(config, path)}
        return tuple(msgspec.structs.replace(each, overruled=in_force.get(each.path, "")) for each in changes)

    async def _source_of(self, draft: ConfigDraft, config: Config) -> str:
        """The source of a draft: the given one, else that of a live node with a file of its name, else this node's."""
        if draft.source:
            return draft.source
        own = f"file:{config.name or Path(draft.called).name}"
        nodes = await self.app.backend.nodes()
        is_known = any(declared.source == own for node in nodes for declared in node.declares)
        return own if is_known else self.config.source

    def _other_file(self) -> InvalidInput:
        return InvalidInput(
            f"the node that answers here reads {self.place}, which has another text",
            cure=f"write it to {self.place} (it is read again by itself); --dry-run shows what it would change",
        )

    def _refuse(self, raw: bytes | None, error: PolluxError, by: str, *, is_dry: bool) -> None:
        """Report a refusal, once for each text."""
        digest = "" if raw is None else digest_of(raw)
        if is_dry or (digest == self._refused and self.refused):
            return
        problems = error.problems if isinstance(error, InvalidConfig) else (error,)
        self._refused = digest
        self.refused = tuple(hide(str(problem)) for problem in problems[:SHOWN_MAX])
        self.app.events.emit(ReloadRefused(self.config.path, by, self.refused, len(problems)))

    # applying

    async def _apply(self, prepared: CheckedConfig, audit: OnceLine, *, replace: bool) -> None:
        """Apply: handlers first, as new jobs need theirs, then the store, then the node."""
        app, config = self.app, prepared.config
        app.know_handlers(prepared.registry)
        if self.plans:
            await self._write(prepared, audit, replace=replace)
        app.declare_anew(prepared.declared)
        self.config, self._refused, self.refused = config, "", ()
        if config.allow_exec:
            origins = self.started.origins | {"allow_exec": config.origins["allow_exec"]}
            self.started = msgspec.structs.replace(self.started, allow_exec=True, origins=origins)
        app.retune()
        await self._keep(prepared.raw)

    async def _write(self, prepared: CheckedConfig, audit: OnceLine, *, replace: bool) -> None:
        """Write the jobs; the digest first, so that a node with an older text does not undo it."""
        if any(diff.newer is not None for diff in prepared.diffs):
            return  # a newer release is in force
        await self.note_text(prepared.config)
        store, me, only = self.app.backend, self.app.node(), (self.config.source,)
        await prepared.declared.write(
            store, me, only=only, audit=audit, coming=PendingDeclaration.RELOAD, replace=replace
        )

    async def note_text(self, config: Config) -> None:
        """Note the digest in force, if other nodes may share the store."""
        store = self.app.backend
        if not store.capabilities.shared:
            return
        if await self._noted_digest() == config.digest:
            return
        value = {"digest": config.digest, "node": self.app.node_id, "at_ms": self.app.clock.now_ms()}
        await store.put_notes([NotePut(self._text_key, value)])
        await store.wake()

    async def is_stale(self) -> bool:
        """Has another node applied another text of the file since?  Then its jobs are not written from here."""
        return await self._noted_digest() not in (None, self.config.digest)

    @property
    def _text_key(self) -> str:
        return f"{FILE_NOTE}{self.config.source}"

    async def _noted_digest(self) -> str | None:
        """The digest in force, if it is noted and readable."""
        notes, _ = await readable_part(self.app.backend.notes(self._text_key))
        return next((digest_in(note.value) for note in notes if note.key == self._text_key), None)

    async def _keep(self, raw: bytes) -> None:
        try:
            await asyncio.to_thread(self.versions.keep, raw, self.app.clock.now_ms())
        except OSError as error:
            if not self._is_unsaved_reported:
                self._is_unsaved_reported = True
                self.app.events.emit(FileVersionUnsaved(str(self.versions.folder), error.strerror or str(error)))

    # reporting

    def _result(self, prepared: CheckedConfig, *, is_dry: bool) -> ReloadResult:
        diffs = prepared.diffs
        return ReloadResult(
            path=self.config.path,
            digest=prepared.config.digest,
            lines=(*(line for diff in diffs for line in diff.lines()), *(f"~ {change}" for change in prepared.options)),
            added=sum(len(diff.add) for diff in diffs),
            changed=sum(len(diff.change) for diff in diffs),
            removed=sum(len(diff.remove) for diff in diffs),
            same=sum(diff.same for diff in diffs),
            options=prepared.options,
            needs_restart=prepared.needs_restart,
            is_dry=is_dry,
            source=prepared.source,
            unseen=prepared.unseen,
            refused="; ".join(diff.refused.words for diff in diffs if diff.refused),
        )

    async def _record(self, reloaded: ReloadResult, by: str, audit: OnceLine) -> None:
        """Report the reload; the audit line went with the first write of a job, if there was one."""
        if reloaded.is_empty:
            if by == BY_SIGNAL:  # its sender has no other answer
                self.app.events.emit(ConfigReloaded(reloaded.path, by, "nothing changed"))
            return
        self.app.events.emit(ConfigReloaded(reloaded.path, by, reloaded.words()))
        if reloaded.lines and not audit.is_written:
            await self.app.backend.log([audit.line])


def signature(path: str) -> tuple[int, int, int, int] | None:
    """Values that change whenever the file does; None if it does not exist."""
    try:
        seen = Path(path).stat()
    except OSError:
        return None
    return seen.st_dev, seen.st_ino, seen.st_mtime_ns, seen.st_size


async def steady_bytes(path: str, read: Callable[[str], bytes | None]) -> bytes | None:
    """The text once the file has not changed for `STEADY_S`: an editor may empty it first."""
    raw = None
    for _ in range(STEADY_LOOKS_MAX):
        before = signature(path)
        raw = await asyncio.to_thread(read, path)
        await asyncio.sleep(STEADY_S)
        if signature(path) == before:
            break
    return raw


def digest_in(value: object) -> str:
    """The digest in the value of a file's note."""
    return str(value.get("digest", "")) if isinstance(value, Mapping) else ""


def _bytes_of(path: str) -> bytes | None:
    """The content of the file; None if it cannot be read: `load_config` raises why."""
    try:
        with Path(path).open("rb") as file:
            return file.read(FILE_BYTES_MAX + 1)
    except (OSError, ValueError):
        return None


def _under(job: Job, source: str) -> Job:
    """The job under that source: a new name of the file applies with a restart."""
    return job if job.source == source else msgspec.structs.replace(job, source=source)


def _changes(before: Config, after: Config, *, is_live: bool) -> Iterator[OptionChange]:
    """Options that differ, of those that can change while a node runs or of the others."""
    for option in OPTIONS:
        if option.path in _BY_JOBS or (option.live or _is_allowed_now(option.path, after)) is not is_live:
            continue
        was, now = (_value(config, option) for config in (before, after))
        if was != now:
            yield OptionChange(option.path, was, now)


def _is_allowed_now(path: str, after: Config) -> bool:
    """Commands can be allowed at any time, and forbidden with a restart."""
    return path == "allow_exec" and after.allow_exec


def _value(config: Config, option: Any) -> str:
    written = config.written.get(option.path)
    if config.origins.get(option.path, DEFAULT) == DEFAULT:
        return shown(option, getattr(Config(), option.field))
    return written or hide(shown(option, getattr(config, option.field)))  # a list may have references, too
