"""How do operators change options while nodes run?  A note in the store, which every node hears and survives restarts.

`settings`, `set_setting` and `unset_setting` are the verbs; what a node does when it hears is in `app/steward.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from pollux.app.changes import ChangeVerbs
from pollux.config.live import Live, live_option, live_value, read_live, setting_key
from pollux.config.meanings import SETTINGS
from pollux.config.told import plain, shown
from pollux.model import SETTING, NotePut
from pollux.store.contract import Answer, Audit


class Setting(Struct, frozen=True):
    """An option that was changed for all nodes."""

    path: str
    value: str  # as it is written in a file
    by: str
    at_ms: int
    meaning: str


class SettingVerbs(ChangeVerbs):
    """What can be set for all nodes at once."""

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
        new = _setting(said)
        was = "" if before is None else f"{_setting(before).value} -> "
        await self._steer([NotePut(setting_key(path), note)], self._on_record("set", path, f"{was}{new.value}"))
        return new

    async def unset_setting(self, path: str) -> bool:
        """Let the file, or the default, decide again; false if nobody had set it."""
        live_option(path)
        before = read_live(await self._store.notes(setting_key(path))).get(path)
        if before is None:
            return False
        audit = self._on_record("unset", path, f"it was {_setting(before).value}")
        return await self._steer([NotePut(setting_key(path))], audit)

    async def _steer(self, puts: Sequence[NotePut], audit: Audit[list[Answer]]) -> bool:
        """Write it, and ring: whoever waits for work hears of it now.  Was the first of them written?"""
        answers = await self._store.put_notes(puts, audit=audit)
        await self._store.wake()
        return answers[0] is Answer.OK


def _setting(said: Live) -> Setting:
    option = live_option(said.path)
    value = shown(option, live_value(said.path, said.value))
    return Setting(said.path, value, said.by, said.at_ms, plain(SETTINGS.get(said.path, "")))
