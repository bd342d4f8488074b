"""What is wrong with a value?  The reader of JSON says it in its own words; here it becomes ours, with the cure."""

from __future__ import annotations

import re
from typing import Any, get_args

from msgspec import Meta

from pollux.units import counted

_BEYOND = re.compile(r"Expected `([^`]+)` (of length )?(<=|>=|<|>) (\S+)")
_OTHER = re.compile(r"Expected `([^`]+)`, got `([^`]+)`")
_NOUNS = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "nothing",
}


def in_our_words(said: str, kind: Any) -> tuple[str, str]:
    """What is wrong, and the cure, of what the reader said about a value of that kind."""
    if found := _BEYOND.match(said):
        return _beyond(found[1], found[2], found[3], found[4], kind)
    if found := _OTHER.match(said):
        wanted = _wanted(found[1])
        cure = _range(kind) or meaning(kind) or f"give {wanted}"
        return f"it is {_NOUNS.get(found[2], found[2])}, not {wanted}", cure
    if "matching regex" in said:
        return "it is not of that form", meaning(kind)
    return f"{said[:1].lower()}{said[1:]}", meaning(kind)


def meaning(kind: Any) -> str:
    """What is said about a kind of value."""
    return next((meta.description for meta in _metas(kind) if meta.description), "")


def _beyond(of: str, length: str | None, sign: str, bound: str, kind: Any) -> tuple[str, str]:
    most, figure = sign.startswith("<"), _figure(float(bound))
    if length:
        things = counted(int(bound), "character" if of == "str" else "item")
        return f"it has {'more' if most else 'fewer'} than {things}", f"give at {'most' if most else 'least'} {things}"
    what = f"it is {'more' if most else 'less'} than {figure}"
    return what, _range(kind) or f"give at {'most' if most else 'least'} {figure}"


def _range(kind: Any) -> str:
    """Between what a number has to be."""
    for meta in _metas(kind):
        if meta.ge is not None and meta.le is not None:
            return f"give {_figure(meta.ge)} to {_figure(meta.le)}"
        if meta.ge is not None:
            return f"give {_figure(meta.ge)} or more"
    return ""


def _metas(kind: Any) -> list[Meta]:
    own = [each for each in getattr(kind, "__metadata__", ()) if isinstance(each, Meta)]
    return [*own, *(meta for each in get_args(kind) for meta in _metas(each))]


def _wanted(kinds: str) -> str:
    known = [each for each in kinds.split(" | ") if each != "null"]
    nouns = [_NOUNS.get(each, each) for each in known if each != "int" or "float" not in known]
    return " or ".join(nouns)


def _figure(number: float) -> str:
    return f"{int(number):,}" if float(number).is_integer() else f"{number:,}"
