"""How do operators change options while nodes run?  A note in the store, which every node hears and survives restarts.

`settings`, `set_setting` and `unset_setting` are the verbs; what a node does when it hears is in `app/steward.py`.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from pollux.clock import Clock
from pollux.config.live import Live, live_option, live_value, read_live, setting_key
from pollux.config.meanings import SETTINGS
from pollux.config.told import plain, shown
from pollux.model import SETTING, AuditLine, NotePut
from pollux.store.contract import Store


class Setting(Struct, frozen=True):
    """An option that was changed for all nodes."""

    path: str
    value: str  # as it is written in a file
    by: str
    at_ms: int
    meaning: str


class SettingVerbs:
    """What can be set for all nodes at once."""

    _store: Store
    _clock: Clock
    _actor: str

    async def settings(self) -> list[Setting]:
        """Those that were changed and not unset since, by name."""
        live = read_live(await self._store.notes(SETTING))
        return [_setting(said) for _, said in sorted(live.items())]

    async def set_setting(self, path: str, value: Any) -> Setting:
        """Change an option for all nodes, from now on and over restarts.

        Raises `InvalidInput` for one that needs a restart, and for a value that no file could have.
        """
        live_value(path, value)
        said = Live(path, value, self._actor, self._clock.now_ms())
        before = read_live(await self._store.notes(setting_key(path))).get(path)
        note = {"value": value, "by": said.by, "at_ms": said.at_ms}
        await self._store.put_notes([NotePut(setting_key(path), note)])
        new = _setting(said)
        was = "" if before is None else f"{_setting(before).value} -> "
        await self._steered("set", path, f"{was}{new.value}")
        return new

    async def unset_setting(self, path: str) -> bool:
        """Let the file, or the default, decide again; false if nobody had set it."""
        live_option(path)
        before = read_live(await self._store.notes(setting_key(path))).get(path)
        if before is None:
            return False
        await self._store.put_notes([NotePut(setting_key(path))])
        await self._steered("unset", path, f"it was {_setting(before).value}")
        return True

    async def _steered(self, action: str, subject: str, detail: str = "") -> None:
        """Write down who did it, and ring: whoever waits for work hears of it now."""
        await self._store.log([AuditLine(self._clock.now_ms(), self._actor, action, subject[:200], detail)])
        await self._store.wake()


def _setting(said: Live) -> Setting:
    option = live_option(said.path)
    value = shown(option, live_value(said.path, said.value))
    return Setting(said.path, value, said.by, said.at_ms, plain(SETTINGS.get(said.path, "")))
