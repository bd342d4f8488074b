"""How does a file that changed become what runs?  Read and checked whole, then applied; or nothing of it is.

    read ─▶ check: handlers, secrets, params, ids ─▶ compare with the store ─▶ write the difference ─▶ retune the node
              │ anything wrong: nothing has changed, and it is said where

Only jobs that differ are put, so that the others keep their phase and memory.  Options that cannot change while a node
runs are named in every answer until it is restarted.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from pollux.app.configured import missing_secrets, register_python
from pollux.config.load import digest_of, load_config
from pollux.config.reading import FILE_BYTES_MAX
from pollux.config.settings import DEFAULT, OPTIONS, Config
from pollux.config.told import shown
from pollux.config.versions import Kept, Versions
from pollux.errors import InvalidConfig, InvalidInput, PolluxError, StoreError
from pollux.events import ConfigReloaded, ReloadRefused, VersionNotKept
from pollux.model import SETTING, AuditLine, Job, NotePut
from pollux.plan import Diff
from pollux.secrets import hide
from pollux.store.open import sqlite_file

if TYPE_CHECKING:
    from pollux.app.declared import Declared
    from pollux.app.pollux import Pollux
    from pollux.registry import Registry

FILE_NOTE = f"{SETTING}file:"  # and its source: which text of it holds; a node with another one writes none of its jobs
SHOWN_MAX = 10
# Besides the live ones: these hold as soon as the jobs that they are about are written.
_BY_JOBS = frozenset({"release", "job_timeout"})


class OptionChange(Struct, frozen=True):
    path: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.path} {self.before} -> {self.after}"


class Reloaded(Struct, frozen=True):
    """What a reload changed; of a dry run, what it would change."""

    path: str
    digest: str  # of the text that was read
    lines: tuple[str, ...]  # `+` added, `~` changed, `-` gone, one line a job or option
    added: int
    changed: int
    removed: int
    same: int
    options: tuple[OptionChange, ...]  # that hold now
    needs_restart: tuple[OptionChange, ...]
    is_dry: bool
    aside: str = ""  # of a rollback: where the text lies that it replaced, if that one is kept nowhere else

    @property
    def is_empty(self) -> bool:
        return not (self.lines or self.needs_restart)

    def words(self) -> str:
        """In one line, for logs and the audit."""
        parts = [f"jobs: {self.added} added, {self.changed} changed, {self.removed} gone, {self.same} the same"]
        parts += [str(change) for change in self.options]
        if self.needs_restart:
            parts.append(f"needs a restart: {', '.join(map(str, self.needs_restart))}")
        return "; ".join(parts)


class Prepared(Struct):
    """A text that passed every check, and what it comes to."""

    raw: bytes
    config: Config
    jobs: list[Job]
    registry: Registry
    declared: Declared
    diffs: list[Diff]
    options: tuple[OptionChange, ...]
    needs_restart: tuple[OptionChange, ...]


class Reloader:
    """One reload at a time, of one file."""

    def __init__(self, app: Pollux, config: Config, *, plans: bool, runs: bool) -> None:
        self.app, self.plans, self.runs = app, plans, runs
        self.config = self.started = config  # what holds, and what held at the start
        self._refused = ""  # the digest that was last refused: said once
        self._is_unkept_said = False
        self._lock = asyncio.Lock()

    @property
    def versions(self) -> Versions:
        return Versions(self.config.path, store_file=sqlite_file(self.app.store_url))

    async def reload(self, *, by: str, dry_run: bool = False, raw: bytes | None = None) -> Reloaded:
        """Read the file (or `raw` in its place) and make it hold, or raise what stands against it."""
        async with self._lock:
            raw = await asyncio.to_thread(_bytes_of, self.config.path) if raw is None else raw
            try:
                prepared = await self._prepare(raw)
                reloaded = self._told(prepared, is_dry=dry_run)
                if not dry_run:
                    await self._apply(prepared)
            except StoreError:
                raise
            except PolluxError as error:
                self._refuse(raw, error, by, is_dry=dry_run)
                raise
            if not dry_run:
                await self._record(reloaded, by)
            return reloaded

    async def rollback(self, *, by: str, to: str | None = None) -> Reloaded:
        """Put an earlier text back into the file and make it hold; one that fits no more changes nothing."""
        versions = self.versions
        versions.refuse_unwritable()
        there = await asyncio.to_thread(_bytes_of, self.config.path)
        raw = versions.before("" if there is None else digest_of(there), to).read()
        await self.reload(by=by, dry_run=True, raw=raw)
        aside = "" if there is None else await asyncio.to_thread(versions.set_aside, there)
        await asyncio.to_thread(versions.put_back, raw)
        return msgspec.structs.replace(await self.reload(by=by, raw=raw), aside=aside)

    async def began(self) -> bool:
        """The text that the node starts with holds; false if the file has another one by now."""
        raw = await asyncio.to_thread(_bytes_of, self.config.path)
        if raw is None or digest_of(raw) != self.config.digest:
            return False
        await self._keep(raw)
        return True

    def digest_there(self) -> str:
        """Of what the file holds now."""
        raw = _bytes_of(self.config.path)
        return "" if raw is None else digest_of(raw)

    # checking

    async def _prepare(self, raw: bytes | None) -> Prepared:
        config = await asyncio.to_thread(
            load_config, self.config.path, environ=os.environ, arguments=self.config.arguments, raw=raw
        )
        assert raw is not None, "a file that cannot be read was refused"
        app, beside = self.app, self.app.secrets.folder
        registry = app.registry_on_trial(allow_exec=config.allow_exec)
        missing = missing_secrets(config.jobs, app.secrets, config.places) if self.runs else []
        register_python(registry, config, beside=beside, also=missing)
        jobs = [registry.adopt(_under(job, self.config.source)) for job in config.jobs]
        declared = app.declared.trial(registry)
        declared.take_file(self.config.source, jobs, release=config.release)
        diffs = await declared.diff(app.backend, app.node(), only=(self.config.source,)) if self.plans else []
        options = tuple(_changes(self.config, config, is_live=True))
        return Prepared(
            raw, config, jobs, registry, declared, diffs, options, tuple(_changes(self.started, config, is_live=False))
        )

    def _refuse(self, raw: bytes | None, error: PolluxError, by: str, *, is_dry: bool) -> None:
        """Say it, once for each text."""
        digest = "" if raw is None else digest_of(raw)
        if is_dry or digest == self._refused:
            return
        self._refused = digest
        problems = error.problems if isinstance(error, InvalidConfig) else (error,)
        words = tuple(hide(str(problem)) for problem in problems[:SHOWN_MAX])
        self.app.events.emit(ReloadRefused(self.config.path, by, words, len(problems)))

    # applying

    async def _apply(self, prepared: Prepared) -> None:
        """Handlers first, so that a new job finds its own; then the store, then the node."""
        app, config = self.app, prepared.config
        app.know_handlers(prepared.registry)
        if self.plans:
            await self._write(prepared)
        app.declare_anew(prepared.declared)
        self.config, self._refused = config, ""
        if config.allow_exec:
            origins = self.started.origins | {"allow_exec": config.origins["allow_exec"]}
            self.started = msgspec.structs.replace(self.started, allow_exec=True, origins=origins)
        app.retune()
        await self._keep(prepared.raw)

    async def _write(self, prepared: Prepared) -> None:
        """Whoever has an older text of the file is told first, so that it does not undo what follows."""
        if any(diff.newer is not None for diff in prepared.diffs):
            return  # a newer release holds
        await self.tell_text(prepared.config)
        await prepared.declared.write(self.app.backend, self.app.node(), only=(self.config.source,))

    async def tell_text(self, config: Config) -> None:
        """Note which text holds, where others share the store."""
        store = self.app.backend
        if not store.capabilities.shared:
            return
        key = f"{FILE_NOTE}{self.config.source}"
        told = [note.value for note in await store.notes(key) if note.key == key]
        if told and digest_in(told[0]) == config.digest:
            return
        value = {"digest": config.digest, "node": self.app.node_id, "at_ms": self.app.clock.now_ms()}
        await store.put_notes([NotePut(key, value)])
        await store.wake()

    async def is_stale(self) -> bool:
        """Has another node made another text of the file hold since?  Then it is not for us to write its jobs."""
        key = f"{FILE_NOTE}{self.config.source}"
        told = [note.value for note in await self.app.backend.notes(key) if note.key == key]
        return bool(told) and digest_in(told[0]) != self.config.digest

    async def _keep(self, raw: bytes) -> None:
        try:
            await asyncio.to_thread(self.versions.keep, raw, self.app.clock.now_ms())
        except OSError as error:
            if not self._is_unkept_said:
                self._is_unkept_said = True
                self.app.events.emit(VersionNotKept(str(self.versions.folder), error.strerror or str(error)))

    # telling

    def _told(self, prepared: Prepared, *, is_dry: bool) -> Reloaded:
        diffs = prepared.diffs
        return Reloaded(
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
        )

    async def _record(self, reloaded: Reloaded, by: str) -> None:
        if reloaded.is_empty:
            return
        self.app.events.emit(ConfigReloaded(reloaded.path, by, reloaded.words()))
        if reloaded.lines:
            words = hide(reloaded.words())[:1_000]
            line = AuditLine(self.app.clock.now_ms(), by, "reload", reloaded.path[:200], words)
            await self.app.backend.log([line])


class ReloadVerbs:
    """What can be asked of the file that an app was started with."""

    _actor: str
    reloader: Reloader | None

    async def reload(self, *, dry_run: bool = False) -> Reloaded:
        """Read the file again and make it hold; `dry_run`: only say what would change.

        Raises what stands against it (`InvalidConfig` with every problem and its place, `Conflict`), and then nothing
        has changed.
        """
        return await self._reloader().reload(by=self._actor, dry_run=dry_run)

    async def rollback(self, to: str | None = None) -> Reloaded:
        """Put the text before back into the file (or that of the digest `to`) and make it hold."""
        return await self._reloader().rollback(by=self._actor, to=to)

    async def file_versions(self) -> list[Kept]:
        """The texts of the file that were applied, oldest first, the last ten."""
        return self._reloader().versions.all()

    def _reloader(self) -> Reloader:
        if self.reloader is None or not self.reloader.config.path:
            raise InvalidInput(
                "there is no file to read again", cure="start it with a file: pollux serve -c pollux.yaml"
            )
        return self.reloader


def digest_in(value: object) -> str:
    """The text that a file's note names."""
    return str(value.get("digest", "")) if isinstance(value, Mapping) else ""


def _bytes_of(path: str) -> bytes | None:
    """What the file holds; None if it cannot be read, and whoever reads the config says why."""
    try:
        with Path(path).open("rb") as file:
            return file.read(FILE_BYTES_MAX + 1)
    except (OSError, ValueError):
        return None


def _under(job: Job, source: str) -> Job:
    """A file that is called otherwise from now on is another source only after a restart."""
    return job if job.source == source else msgspec.structs.replace(job, source=source)


def _changes(before: Config, after: Config, *, is_live: bool) -> Iterator[OptionChange]:
    """Options that differ, of those that can change while a node runs, or of the others."""
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
    return written or shown(option, getattr(config, option.field))
