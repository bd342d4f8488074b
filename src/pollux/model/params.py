"""Checks of params (plain JSON of bounded size) and priorities (1 to 3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from pollux.errors import InvalidInput
from pollux.units import format_size

PAYLOAD_BYTES_MAX = 256_000
RESULT_BYTES_MAX = 64_000
PRIORITIES = {"high": 1, "normal": 2, "low": 3}
_TEXTS = frozenset({str})
_FLAT = frozenset({str, int, bool, type(None)})  # types that JSON returns unchanged
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


def priority_of(value: object) -> int:
    if isinstance(value, str) and value in PRIORITIES:
        return PRIORITIES[value]
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 3:
        return value
    raise InvalidInput(f"{value!r} is not a priority", cure="write high, normal or low (1, 2 or 3)")


def check_params(value: object) -> dict[str, Any]:
    """A copy of the params as plain data; refused if they are not a mapping of names to JSON, or too big."""
    return params_and_json(value)[0]


def params_and_json(value: object) -> tuple[dict[str, Any], bytes]:
    """The result of `check_params`, and its JSON."""
    flat: dict[str, Any] | None = None
    if type(value) is not dict or not _TEXTS.issuperset(map(type, value)):
        _check_names(value)
    elif _FLAT.issuperset(map(type, value.values())):
        flat = value.copy()
    try:
        encoded = _encode(value)
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise InvalidInput(f"params are no JSON: {error}", cure="use dicts, lists, text, numbers") from error
    if len(encoded) > PAYLOAD_BYTES_MAX:
        raise InvalidInput(
            f"params of {format_size(len(encoded))} are too big",
            cure=f"at most {format_size(PAYLOAD_BYTES_MAX)}; keep the bulk elsewhere and pass its name",
        )
    return _decode(encoded) if flat is None else flat, encoded


def _check_names(value: object) -> None:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise InvalidInput(
            f"params are {type(value).__name__}, not a mapping of names", cure="write {url: ..., depth: 2}"
        )
