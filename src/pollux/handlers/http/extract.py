"""Extraction of a value from a response: `json: "data.items[0].price"`, or `regex: "price: ([0-9.]+)"`.

A path is names between dots, `[3]` or `[-1]` for the item of a list, `["any name"]` for names with dots or blanks; a
`$` in front means nothing.  Nothing in it can loop, compute or call.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from pollux.errors import InvalidInput, did_you_mean
from pollux.handlers.http.errors import NothingExtracted

PATH_CHARS_MAX = 256
STEPS_MAX = 32
PATTERN_CHARS_MAX = 256
PATTERN_INPUT_MAX = 64 * 1024

_STEP = re.compile(r"""\.?([^\s.\[\]"'$]+)|\[(-?[0-9]{1,9})\]|\[(?:"([^"]*)"|'([^']*)')\]""")
_NOTHING = object()
_PATH_CURE = 'write it like "data.items[0].price" or ["a name"].x'


class Extraction(Struct, frozen=True):
    """What to extract: exactly one of the two is set."""

    path: tuple[str | int, ...] = ()
    pattern: str = ""
    words: str = ""  # as it was written, for messages


def take_of(value: object) -> Extraction:
    if not isinstance(value, Mapping) or not value:
        cure = 'write {json: "data.price"} or {regex: "price: ([0-9.]+)"}'
        raise InvalidInput("it is not a mapping", cure=cure)
    for key in value:
        if key not in {"json", "regex"}:
            what = f"unknown key {str(key)[:60]!r}{did_you_mean(key, ('json', 'regex'))}"
            raise InvalidInput(what, where=str(key)[:60], cure="known are json, regex")
    if len(value) > 1:
        raise InvalidInput("json and regex are both given", cure="give one of them")
    if "json" in value:
        return Extraction(path=path_of(value["json"]), words=str(value["json"]))
    return Extraction(pattern=pattern_of(value["regex"]), words=str(value["regex"]))


def path_of(text: object) -> tuple[str | int, ...]:
    if not isinstance(text, str) or not text or len(text) > PATH_CHARS_MAX:
        what = f"it is no text of 1 to {PATH_CHARS_MAX} characters"
        raise InvalidInput(what, where="json", cure=_PATH_CURE)
    rest, steps = text.removeprefix("$"), list[str | int]()
    place = 0
    while place < len(rest):
        found = _STEP.match(rest, place)
        if found is None or (found[1] and place and rest[place] != "."):
            what = f"{text!r} cannot be read from {rest[place : place + 20]!r} on"
            raise InvalidInput(what, where="json", cure=_PATH_CURE)
        name, number, quoted, single = found.groups()
        steps.append(int(number) if number else name or (quoted if quoted is not None else single))
        place = found.end()
    if len(steps) > STEPS_MAX:
        raise InvalidInput(f"{len(steps)} steps are too many", where="json", cure=f"at most {STEPS_MAX}")
    return tuple(steps)


def pattern_of(text: object) -> str:
    """Return a pattern that compiles; its run time is bounded when it runs (`regex_worker.py`)."""
    if not isinstance(text, str) or not text or len(text) > PATTERN_CHARS_MAX:
        what = f"it is no text of 1 to {PATTERN_CHARS_MAX} characters"
        raise InvalidInput(what, where="regex", cure='write it like "price: ([0-9.]+)"')
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        what = f"it is no regular expression: {error}"
        raise InvalidInput(
            what, where="regex", cure="mind that a backslash in double quotes is written twice"
        ) from error
    return text


def dig(body: bytes, take: Extraction, target: str) -> Any:
    """Return the value at the path."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NothingExtracted(f"{target} answered no JSON: {str(error)[:200]}") from None
    for number, step in enumerate(take.path, start=1):
        found = _step(value, step)
        if found is _NOTHING:
            raise NothingExtracted(f"{target} answered JSON without {take.words!r}: step {number} is not there")
        value = found
    return value


def _step(value: Any, step: str | int) -> Any:
    if isinstance(step, str):
        return value.get(step, _NOTHING) if isinstance(value, dict) else _NOTHING
    is_there = isinstance(value, list) and -len(value) <= step < len(value)
    return value[step] if is_there else _NOTHING
