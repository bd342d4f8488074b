"""Watchers of one node: of live settings and requested turns, and of the config file.

    a claim reports new notes ───────────┐
    the leader's feed reports a note ────┼─▶ read the notes ─▶ retune the node, reload the file, run a turn
    the file changed, SIGHUP ────────────┘

`SettingsWatcher` polls nothing: claims and the feed report changes.  Only a node that neither claims nor leads reads
the notes by itself, with its heartbeat.

`FileWatch` watches the directory of the file, and that of every link on the path to it.  An editor renames a new file
over the old one; a release swaps a link to a folder; Kubernetes swaps `..data`.  None of them touches the old file, so
the names are watched: the file's own, and each link's.  The file is also read at intervals, because a network drive
reports no changes of other machines.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from pollux.app.process import OWNS_PROCESS
from pollux.app.reload import BY_FILE, BY_SIGNAL, FILE_NOTE, STEADY_LOOKS_MAX, STEADY_S, digest_in, signature
from pollux.config.settings import LiveSetting, read_live
from pollux.errors import PolluxError, StoreError
from pollux.events import FileDiffers, SettingsChanged, StoreSealed
from pollux.model import SETTING, TURN, Note, NotePut, drain_key
from pollux.runtime.loop import Loop, Rest
from pollux.runtime.node import NodeRuntime
from pollux.store.decoding import readable_part

if TYPE_CHECKING:
    from pollux.app.pollux import Pollux

TURN_MS = 4_000  # limit of a turn that another node requested
ANSWER_MS = 60_000  # lifetime of its answer

LINKS_MAX = 40
DEBOUNCE_MS = 400  # for which events are collected: other files in the folder may change all the time
LOOK_MS = 10_000  # without any event
SOON_S = 1.0
AGAIN_S = 5.0  # after an error of the watch


class SettingsWatcher(Loop):
    """Applies live settings, requested turns and reloads on a running node."""

    def __init__(self, app: Pollux) -> None:
        beat_ms = app.options.beat_ms
        super().__init__("settings_watcher", clock=app.clock, events=app.events, rest_max_ms=beat_ms)
        self.app, self.beat_ms = app, beat_ms
        self.live: dict[str, LiveSetting] = {}
        self.runtime: NodeRuntime | None = None
        self._is_rung = False
        self._wants_reload = ""  # who requested the reload of the file
        self._answered: set[str] = set()  # requests for turns
        self._differs = ""  # the digest that another node applied; it is reported once
        self._sealed = ""  # why the store is not in use, at the last read
        self._watch: FileWatch | None = None
        self._has_terminal = False

    # life

    async def prepare(self) -> None:
        """Before the node starts: apply the live settings to the first run, and handle SIGHUP."""
        if OWNS_PROCESS.get():
            self._has_terminal = _has_terminal()
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._on_hangup)
        self.live = read_live(await self._notes(SETTING))
        self.app.retune()

    async def begin(self, runtime: NodeRuntime) -> None:
        self.runtime, runtime.on_settings_changed = runtime, self.ring
        reloader = self.app.reloader
        if reloader is not None and reloader.config.path:
            if reloader.config.reload and OWNS_PROCESS.get():
                self._watch = FileWatch(reloader.config.path, lambda: self.read_again(BY_FILE))
                self._watch.start()
            if not await reloader.began() and self._watch is not None:
                self.read_again(BY_FILE)  # it changed while we started
        self.start()

    async def end(self) -> None:
        """Stop before the node leaves; a drain of this node ends with it."""
        watch, self._watch = self._watch, None
        if watch is not None:
            await watch.stop()
        await self.stop()
        if self.runtime is not None and self.runtime.dispatcher.is_drained:
            with contextlib.suppress(PolluxError):
                await self.app.backend.put_notes([NotePut(drain_key(self.app.node_id))])

    # requests

    def ring(self) -> None:
        """Read the notes again: they may have changed."""
        self._is_rung = True
        self.nudge()

    def read_again(self, by: str) -> None:
        """Read the file again; if the store does not answer, that is repeated."""
        self._wants_reload = by
        self.nudge()

    def _on_hangup(self) -> None:
        """Read the file again; or end, if the terminal of this process was closed."""
        if self._has_terminal and not _has_terminal():
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            self.read_again(BY_SIGNAL)

    async def turn(self) -> Rest:
        if self._wants_reload:
            await self._read_again()
        if self._is_rung or not self._is_notified():
            self._is_rung = False
            try:
                await self.look()
            except StoreError:
                self._is_rung = True
                raise
        return Rest(self.beat_ms)

    def _is_notified(self) -> bool:
        """Would a claim or the feed report a change?"""
        runtime = self.runtime
        if runtime is None or runtime.leader.term is not None:
            return runtime is not None
        answered_at = None if runtime.dispatcher.is_drained else runtime.dispatcher.answered_at
        return (
            answered_at is not None
            and self.clock.mono_ms() - answered_at <= runtime.options.long_poll_ms + self.beat_ms
        )

    # applying

    async def look(self) -> None:
        """Read the notes and apply them."""
        notes = await self._notes(SETTING)
        self._tune(read_live(notes))
        await self._look_at_file(notes)
        await self._look_at_seal()
        if self.runtime is not None and self.runtime.leader.term is not None:
            await self._give_turns(await self._notes(TURN))

    def _tune(self, live: dict[str, LiveSetting]) -> None:
        before, self.live = self.live, live
        if before != live:
            words = [f"{path} = {new.value} (by {new.by})" for path, new in live.items() if before.get(path) != new]
            words += [f"{path} is unset" for path in before if path not in live]
            self.app.retune()
            self.events.emit(SettingsChanged(tuple(words)))

    async def _read_again(self) -> None:
        by, reloader = self._wants_reload, self.app.reloader
        if reloader is None or not reloader.config.path:
            self._wants_reload = ""
            return
        try:
            await reloader.reload(by=by)
        except StoreError:
            raise  # and again after a rest
        except PolluxError:
            pass  # it was reported, once for each text
        self._wants_reload = ""

    async def _look_at_file(self, notes: list[Note]) -> None:
        """Reload if another node applied another text of the file and the file has that text here too."""
        reloader = self.app.reloader
        if reloader is None or not reloader.config.path:
            return
        key = f"{FILE_NOTE}{reloader.config.source}"
        noted = next((note.value for note in notes if note.key == key), None)
        digest = digest_in(noted)
        if not digest or digest == reloader.config.digest:
            self._differs = ""
        elif digest == await asyncio.to_thread(reloader.digest_there):
            self.read_again(BY_FILE)
        elif digest != self._differs:
            self._differs = digest
            node = str(noted.get("node", "")) if isinstance(noted, dict) else ""
            self.events.emit(FileDiffers(reloader.config.source, node))

    async def _look_at_seal(self) -> None:
        """Report that the store was moved elsewhere, and resign: stops and terms keep the node from working on it."""
        before, self._sealed = self._sealed, await self.app.sealed()
        if self._sealed and self._sealed != before:
            self.events.emit(StoreSealed(self._sealed))
        if self._sealed and self.runtime is not None and self.runtime.leader.term is not None:
            await self.runtime.leader.yield_term(self._sealed)

    async def _give_turns(self, notes: list[Note]) -> None:
        """Run the turns that other nodes requested, and write their results."""
        requested = {note.key.removesuffix("ask") for note in notes if note.key.endswith(":ask")}
        self._answered &= requested
        for key in sorted(requested - self._answered):
            self._answered.add(key)
            turned = await self.runtime.turn_now(TURN_MS) if self.runtime is not None else None
            if turned is None:
                continue
            value = {"node": self.app.node_id, "turned": msgspec.to_builtins(turned)}
            version, expires_ms = self.app.backend.scheduler_version, await self.app.backend.now() + ANSWER_MS
            await self.app.backend.put_notes([NotePut(f"{key}{version}", value, expires_ms=expires_ms)])

    async def _notes(self, prefix: str) -> list[Note]:
        """The readable ones."""
        found, _ = await readable_part(self.app.backend.notes(prefix))
        return found


def _has_terminal() -> bool:
    """Has this process a terminal?"""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


def names_on_the_way(path: str) -> dict[str, str]:
    """Every name on the path of the file (each link, and the file itself), and the directory it is in."""
    names: dict[str, str] = {}
    ahead = list(Path(path).absolute().parts)
    here = Path(ahead.pop(0))
    links = 0
    while ahead:
        part = ahead.pop(0)
        if part == os.pardir:
            here = here.parent
            continue
        found = here / part
        if found.is_symlink() and links < LINKS_MAX:
            links += 1
            names[str(found)] = str(here)
            target = found.readlink()
            if target.is_absolute():
                here = Path(target.anchor)
            ahead = [*target.parts[1 if target.is_absolute() else 0 :], *ahead]
            continue
        if not ahead:
            names[str(found)] = str(here)
        here = found
    return names


def _folders(names: dict[str, str]) -> list[str]:
    return [folder for folder in dict.fromkeys(names.values()) if Path(folder).is_dir()]


class FileWatch:
    """Calls `changed` when the file is another one, from `start` to `stop`."""

    def __init__(self, path: str, changed: Callable[[], None]) -> None:
        self.path, self.changed = path, changed
        self._seen = signature(path)
        self._stop = asyncio.Event()
        self._going: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._going = asyncio.get_running_loop().create_task(self._go(), name="pollux file watch")

    async def stop(self) -> None:
        self._stop.set()
        going, self._going = self._going, None
        if going is not None:
            await asyncio.wait({going}, timeout=2)
            going.cancel()
            await asyncio.gather(going, return_exceptions=True)

    async def _go(self) -> None:
        while not self._stop.is_set():
            soon = asyncio.get_running_loop().create_task(self._look_soon())
            try:
                await self._watch(names_on_the_way(self.path))
            except Exception:  # noqa: BLE001  a removed folder, or no watches left: poll the file
                await self._pause(AGAIN_S)
            finally:
                soon.cancel()
            await self._look()

    async def _look_soon(self) -> None:
        """Check once more: the file may have changed just before the watch began."""
        await self._pause(SOON_S)
        await self._look()

    async def _watch(self, names: dict[str, str]) -> None:
        """Watch until the path of the file changes."""
        from watchfiles import Change, awatch

        def is_ours(_: Change, path: str) -> bool:
            return path in names

        logging.getLogger("watchfiles").setLevel(logging.WARNING)  # it logs every change
        folders = _folders(names)
        async for _ in awatch(
            *folders,
            watch_filter=is_ours,
            debounce=DEBOUNCE_MS,
            rust_timeout=LOOK_MS,
            yield_on_timeout=True,
            stop_event=self._stop,
            recursive=False,
        ):
            await self._look()
            if names_on_the_way(self.path) != names or _folders(names) != folders:
                return

    async def _look(self) -> None:
        """Call `changed` once the file is another one and steady, or once it stays removed."""
        now = signature(self.path)
        for _ in range(STEADY_LOOKS_MAX):
            if now == self._seen or self._stop.is_set():
                return
            await self._pause(STEADY_S)
            before, now = now, signature(self.path)
            if now is not None and now == before:
                self._seen = now
                self.changed()
                return
        if now is None:  # it is not being replaced
            self._seen = None
            self.changed()

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stop.wait()
        except TimeoutError:
            return
