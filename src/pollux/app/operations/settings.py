"""Operations on live settings: options that operators change for all nodes while they run.

A setting is a note in the store, so it survives restarts; `app/settings_watcher.py` applies it on each node.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from pollux.app.operations.context import OperationGroup
from pollux.config.descriptions import SETTINGS, plain, shown
from pollux.config.settings import LiveSetting, live_option, live_value, read_live, setting_key
from pollux.model import SETTING, NotePut
from pollux.store.contract import Answer, Audit, Store
from pollux.store.decoding import ILLEGIBLE, as_far


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


async def steer(store: Store, puts: Sequence[NotePut], audit: Audit[list[Answer]]) -> bool:
    """Write the notes and wake every waiting claim; true if the first of them was written."""
    answers = await store.put_notes(puts, audit=audit)
    await store.wake()
    return answers[0] is Answer.OK


def _setting(said: LiveSetting) -> Setting:
    option = live_option(said.path)
    value = shown(option, live_value(said.path, said.value))
    return Setting(said.path, value, said.by, said.at_ms, plain(SETTINGS.get(said.path, "")))
