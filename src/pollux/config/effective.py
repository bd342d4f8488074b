"""Effective options: each with its value, default and origin, as text that is safe to show."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from pollux.config.descriptions import SETTINGS
from pollux.config.settings import DEFAULT, OPTIONS, Config, Option
from pollux.secrets import hide
from pollux.units import format_ms

_PASSWORD = re.compile(r"(?<=://)([^/@:]*):(?!\$\{)[^/@]*@")
_PASSWORD_OPTION = re.compile(r"(?<=password=)(?!\$\{)[^&]*")


class EffectiveOption(Struct, frozen=True):
    option: str  # the path in the file: "pool.seats"
    value: str
    default: str
    origin: str  # default, file:line, environment NAME, argument
    variable: str  # the environment variable that sets it
    meaning: str
    live: str = ""  # the live value for all nodes, if the environment or an argument overrides it here

    @property
    def is_set(self) -> bool:
        return self.origin != DEFAULT


def told(config: Config, overruled: Mapping[str, str] | None = None) -> list[EffectiveOption]:
    """Return one line for each option, in the order of the file; `overruled`: live values that do not apply here."""
    usual = Config()
    return [
        EffectiveOption(
            option=option.path,
            value=config.written.get(option.path) or hide(shown(option, getattr(config, option.field))),
            default=shown(option, getattr(usual, option.field)),
            origin=config.origins.get(option.path, DEFAULT),
            variable=option.variables[0],
            meaning=plain(SETTINGS.get(option.path, "")),
            live=(overruled or {}).get(option.path, ""),
        )
        for option in OPTIONS
    ]


def shown(option: Option, value: Any) -> str:
    """Return a value as it is written in a file; for one that is not set, what applies instead."""
    if value is None or value == "":
        _, has_words, words = plain(SETTINGS.get(option.path, "")).rpartition("; ")
        return f"({words})" if has_words else "(none)"
    if option.path == "server.token":
        return "***"
    if option.path == "heartbeat.url":
        return f"{'/'.join(str(value).split('/')[:3])}/***"  # knowing it is enough to call it
    if option.field.endswith("_ms"):
        return format_ms(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return without_password(str(value))


def without_password(url: str) -> str:
    """Return the URL without its password; a reference to one stays as it is written."""
    return _PASSWORD_OPTION.sub("***", _PASSWORD.sub(r"\1:***@", url))


def plain(meaning: str) -> str:
    """Return the description without backticks."""
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", meaning).replace("`", "")
