"""Live settings: options changed while nodes run, as notes `setting:<option>` in the store, read by all nodes.

Order: defaults < file < **live** < environment < arguments.  A live setting survives restarts, until it is unset.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Struct

from pollux.config.settings import BY_PATH, DEFAULT, ENVIRONMENT, OPTIONS, Config, Option
from pollux.errors import InvalidInput, did_you_mean
from pollux.model import SETTING, Note
from pollux.units import format_moment

LIVE_PATHS = tuple(option.path for option in OPTIONS if option.live)
_TEXT_MAX = 200


class LiveSetting(Struct, frozen=True):
    """An option that was set for all nodes."""

    path: str
    value: Any  # as it was entered: 50, "30s", "debug"
    by: str = ""
    at_ms: int = 0

    @property
    def origin(self) -> str:
        return f"live (by {self.by or 'somebody'}, {format_moment(self.at_ms - self.at_ms % 1_000)})"


def setting_key(path: str) -> str:
    return f"{SETTING}{path}"


def live_option(path: str) -> Option:
    """Return the option of that name, if it can change while a node runs; else raise with the cure."""
    option = BY_PATH.get(path)
    if option is None:
        cure = did_you_mean(path, LIVE_PATHS).strip("; ") or f"these can be set: {', '.join(LIVE_PATHS)}"
        raise InvalidInput("there is no option of that name", where=path[:60], cure=cure)
    if not option.live:
        raise InvalidInput(
            "it cannot change while a node runs",
            where=path,
            cure=f"change it in the file and restart; these can be set: {', '.join(LIVE_PATHS)}",
        )
    return option


def live_value(path: str, value: Any) -> Any:
    """Return the parsed value, checked as in a file."""
    option = live_option(path)
    if not isinstance(value, str | int | float) or (isinstance(value, str) and len(value) > _TEXT_MAX):
        raise InvalidInput("this is no value", where=path, cure='give a number or a text, like 50 or "30s"')
    try:
        return option.read(value)
    except InvalidInput as error:
        raise error.at(path) from error


def read_live(notes: Iterable[Note]) -> dict[str, LiveSetting]:
    """Return the live settings among these notes, without those that only another release can read."""
    found: dict[str, LiveSetting] = {}
    for note in notes:
        path = note.key.removeprefix(SETTING)
        value = note.value if isinstance(note.value, dict) else {}
        if path in LIVE_PATHS and note.key != path and "value" in value:
            said = LiveSetting(path, value["value"], str(value.get("by") or ""), int(value.get("at_ms") or 0))
            try:
                live_value(path, said.value)
            except InvalidInput:
                continue
            found[path] = said
    return found


def is_overruled(config: Config, path: str) -> bool:
    """Whether the environment or an argument overrides it in this process."""
    origin = config.origins.get(path, DEFAULT)
    return origin == "argument" or origin.startswith(ENVIRONMENT)


def with_live(config: Config, live: dict[str, LiveSetting]) -> Config:
    """Return the config with these live settings applied."""
    heard = {path: said for path, said in live.items() if not is_overruled(config, path)}
    if not heard:
        return config
    values = {BY_PATH[path].field: live_value(path, said.value) for path, said in heard.items()}
    origins = config.origins | {path: said.origin for path, said in heard.items()}
    return msgspec.structs.replace(config, **values, origins=origins)
