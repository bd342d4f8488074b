"""What is wrong with a value?  The reader of JSON says it in its own words; here it becomes ours, with the cure."""

from __future__ import annotations

import json
import re
from codecs import BOM_UTF8
from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import isfinite
from typing import Any, Literal, TypeVar, get_args, get_origin
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import FieldInfo
from msgspec.structs import fields as read_annotations
from starlette.requests import ClientDisconnect, Request

from pollux.errors import InvalidConfig, InvalidInput, did_you_mean
from pollux.server.limits import BODY_MAX
from pollux.server.problems import Problem
from pollux.units import counted, format_size

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


DEPTH_MAX = 32
QUERY_MAX = 50  # parameters
PART_CHARS_MAX = 400  # of a path
SHOWN = 60  # characters of somebody's value in a message

T = TypeVar("T", bound=Struct)


@lru_cache(maxsize=1_000)
def fields(kind: type[Struct]) -> tuple[FieldInfo, ...]:
    """The fields of a Struct; msgspec evaluates its annotations anew each time, which costs more than a request."""
    return read_annotations(kind)


class UnfitBody(InvalidConfig):
    """Fields that are not of their kind.  `partial` is the rest of them, if that can be looked at."""

    def __init__(self, problems: Sequence[InvalidInput], partial: Any) -> None:
        super().__init__(problems)
        self.partial = partial


# bodies


async def read_bytes(request: Request, bytes_max: int = BODY_MAX) -> bytes:
    """The body, refused as soon as it is known to be too big."""
    said = header_of(request, b"content-length") or ""
    if said.isascii() and said.isdecimal() and int(said) > bytes_max:
        raise _too_big(bytes_max)
    parts: list[bytes] = []
    size, has_more = 0, True
    while has_more:  # as `request.stream` does, which is a generator, and most bodies are a single piece
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        parts.append(message.get("body", b""))
        size, has_more = size + len(parts[-1]), message.get("more_body", False)
        if size > bytes_max:
            raise _too_big(bytes_max)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def header_of(request: Request, name: bytes) -> str | None:
    """One header by its name in small letters, in a tenth of the time that `request.headers` takes."""
    for known, value in request.scope["headers"]:
        if known == name:
            return str(value, "latin-1")
    return None


def _too_big(bytes_max: int) -> Problem:
    cure = f"send at most {format_size(bytes_max)}; many jobs or runs go in parts"
    return Problem(413, "the body is too big", cure=cure)


def json_of(data: bytes) -> Any:
    """What the bytes say as JSON, or a refusal with the place."""
    try:
        text = data.removeprefix(BOM_UTF8).decode()
        value = _decoder.decode(text)
        if "\\u" in text:
            msgspec.json.encode(value)  # half a pair of surrogates is no text
    except UnicodeDecodeError as error:
        what = f"the body is no UTF-8, at byte {error.start}"
        raise Problem(400, "the body is no JSON", what, cure="send JSON in UTF-8") from None
    except UnicodeEncodeError:
        what = "it holds half a pair of surrogates"
        raise Problem(400, "the body is no JSON", what, cure="write such characters as themselves") from None
    except json.JSONDecodeError as error:
        where = f"{error.msg.lower()}, line {error.lineno}, column {error.colno}"
        cure = 'send a JSON object, like {"id": "home", "url": "https://example.com", "interval": "30s"}'
        raise Problem(400, "the body is no JSON", where, cure=cure) from None
    except RecursionError:
        raise _too_deep() from None
    _check_depth(text, value)
    return value


def _check_depth(text: str, value: Any) -> None:
    if text.count("[") + text.count("{") <= DEPTH_MAX:
        return  # no deeper than it has brackets
    level = [value]
    for _ in range(DEPTH_MAX):
        inner: list[Any] = []
        for each in level:
            if type(each) is dict:
                inner += [item for item in each.values() if type(item) in (dict, list)]
            elif type(each) is list:
                inner += [item for item in each if type(item) in (dict, list)]
        if not inner:
            return
        level = inner
    raise _too_deep()


def _too_deep() -> Problem:
    return Problem(400, "the body is too deep", cure=f"send at most {DEPTH_MAX} levels of lists and objects")


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise Problem(400, "a key stands twice in an object", shortened(twice), cure="keep one of them")
    return found


def _int64(text: str) -> int:
    number = int(text) if len(text) < 20 else 2**64
    if not -(2**63) <= number < 2**63:
        raise Problem(422, "a number is too big", shortened(text), cure="send integers that fit in 64 bits")
    return number


def _finite(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise Problem(422, "a number is too big", shortened(text), cure="send numbers that a double can hold")
    return number


def _no_number(text: str) -> Any:
    raise Problem(400, "the body is no JSON", f"{text} is no JSON", cure="send null, or leave it out")


_decoder = json.JSONDecoder(
    object_pairs_hook=_each_once, parse_int=_int64, parse_float=_finite, parse_constant=_no_number
)


# fields


def read_body(kind: type[T], value: Any) -> T:
    """The object as that Struct, or every problem of it."""
    if type(value) is not dict:
        what = f"the body is {_kind_of(value)}, not an object"
        raise InvalidInput(what, cure=f"send {{...}} with {_names(kind)}")
    return read_fields(kind, value)


def read_fields(kind: type[T], given: Mapping[str, Any], *, is_text: bool = False) -> T:
    """Read field by field where it is not right at once; `is_text`: numbers and flags come as text, as in a query."""
    try:
        return msgspec.convert(given, kind, strict=not is_text)
    except msgspec.ValidationError:
        pass
    known = {field.encode_name: field for field in fields(kind)}
    problems = [_unknown(name, known) for name in given if name not in known]
    values: dict[str, Any] = {}
    for name, field in known.items():
        if name not in given:
            if field.required:
                problems.append(InvalidInput("it is missing", where=name, cure=_cure(kind)))
            continue
        try:
            values[field.name] = _value(given[name], field, is_text=is_text)
        except msgspec.ValidationError as error:
            problems.append(_refusal(name, str(error), given[name], field))
    if problems:
        is_whole = all(field.name in values for field in known.values() if field.required)
        raise UnfitBody(problems, kind(**values) if is_whole else None)
    return kind(**values)


def _value(value: Any, field: FieldInfo, *, is_text: bool) -> Any:
    if isinstance(value, float) and value.is_integer():  # 8.0 is an integer to JSON
        try:
            return msgspec.convert(int(value), field.type)
        except msgspec.ValidationError:
            pass
    return msgspec.convert(value, field.type, strict=not is_text)


def _refusal(name: str, said: str, value: Any, field: FieldInfo) -> InvalidInput:
    what, _, place = said.partition(" - at `$")
    where = name + place.removesuffix("`")
    if choices := _choices(field.type):
        near = did_you_mean(shortened(value), choices)
        return InvalidInput(f"{shortened(value)!r} is unknown{near}", where=where, cure=f"one of {', '.join(choices)}")
    wrong, cure = in_our_words(what, field.type)
    return InvalidInput(wrong if place else wrong + _shown(value), where=where, cure=cure)


def _shown(value: object) -> str:
    if isinstance(value, str):
        return f" ({shortened(value)!r})"
    return f" ({shortened(value)})" if type(value) in (int, float) else ""


def _choices(kind: Any) -> list[str]:
    """What a closed choice may be."""
    if get_origin(kind) is Literal:
        return [str(each) for each in get_args(kind)]
    return [choice for each in get_args(kind) for choice in _choices(each)] if get_args(kind) else []


def _unknown(name: str, known: Mapping[str, Any]) -> InvalidInput:
    near = did_you_mean(name[:SHOWN], known).strip("; ")
    return InvalidInput("nothing is called so", where=shortened(name), cure=near or f"known are {', '.join(known)}")


def _cure(kind: type[Struct]) -> str:
    return f"give {', '.join(field.encode_name for field in fields(kind) if field.required)}"


def _names(kind: type[Struct]) -> str:
    names = [field.encode_name for field in fields(kind)]
    return ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")


def _kind_of(value: Any) -> str:
    return {list: "a list", str: "a text", type(None): "null", bool: "true or false"}.get(type(value), "a number")


def shortened(value: object) -> str:
    text = str(value)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."


# the line of the request


def read_query(kind: type[T], query: bytes) -> T:
    """What stands behind the question mark; each name once."""
    try:
        pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, max_num_fields=QUERY_MAX, errors="strict")
    except ValueError:
        cure = f"send at most {QUERY_MAX} parameters, percent-encoded UTF-8"
        raise Problem(400, "the query cannot be read", cure=cure) from None
    given = dict(pairs)
    if len(given) != len(pairs):
        raise Problem(400, "a parameter stands twice in the query", cure="keep one of them")
    return read_fields(kind, given, is_text=True)


def unquoted(segment: str) -> str:
    """A part of the path as text; `%2F` is a slash inside of it."""
    try:
        text = unquote_to_bytes(segment).decode()
    except UnicodeDecodeError:
        text = "\0"
    if len(text) > PART_CHARS_MAX or not text.isprintable():
        cure = f"use at most {PART_CHARS_MAX} printable characters, as percent-encoded UTF-8"
        raise Problem(404, "there is no such thing", "a part of the path is no name", cure=cure)
    return text
