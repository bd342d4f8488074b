"""Decoding of bodies, queries and paths, with every problem at once and its cure.

A body is read as JSON, regardless of its content type: UTF-8, of limited size and depth, every key once, numbers of 64
bits.  It is decoded into a Struct field by field, so that three wrong fields make three problems.
"""

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

_OUT_OF_RANGE = re.compile(r"Expected `([^`]+)` (of length )?(<=|>=|<|>) (\S+)")
_WRONG_TYPE = re.compile(r"Expected `([^`]+)`, got `([^`]+)`")
_TYPE_NAMES = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "nothing",
}


def plain_message(message: str, kind: Any) -> tuple[str, str]:
    """Problem and cure for an error message of msgspec about a value of that kind."""
    if found := _OUT_OF_RANGE.match(message):
        return _out_of_range(found[1], found[2], found[3], found[4], kind)
    if found := _WRONG_TYPE.match(message):
        wanted = _wanted(found[1])
        cure = _range(kind) or meaning(kind) or f"give {wanted}"
        return f"it is {_TYPE_NAMES.get(found[2], found[2])}, not {wanted}", cure
    if "matching regex" in message:
        return "it is not of that form", meaning(kind)
    return f"{message[:1].lower()}{message[1:]}", meaning(kind)


def meaning(kind: Any) -> str:
    """The description of a kind of value."""
    return next((meta.description for meta in _metas(kind) if meta.description), "")


def _out_of_range(of: str, length: str | None, sign: str, bound: str, kind: Any) -> tuple[str, str]:
    most, figure = sign.startswith("<"), _figure(float(bound))
    if length:
        things = counted(int(bound), "character" if of == "str" else "item")
        return f"it has {'more' if most else 'fewer'} than {things}", f"give at {'most' if most else 'least'} {things}"
    what = f"it is {'more' if most else 'less'} than {figure}"
    return what, _range(kind) or f"give at {'most' if most else 'least'} {figure}"


def _range(kind: Any) -> str:
    """The allowed range of a number, as a cure."""
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
    nouns = [_TYPE_NAMES.get(each, each) for each in known if each != "int" or "float" not in known]
    return " or ".join(nouns)


def _figure(number: float) -> str:
    return f"{int(number):,}" if float(number).is_integer() else f"{number:,}"


DEPTH_MAX = 32
QUERY_MAX = 50  # parameters
PART_CHARS_MAX = 400  # of a path
SHOWN = 60  # characters of a value in a message

T = TypeVar("T", bound=Struct)


@lru_cache(maxsize=1_000)
def fields(kind: type[Struct]) -> tuple[FieldInfo, ...]:
    """The fields of a Struct; cached, as evaluating the annotations costs more than a request."""
    return read_annotations(kind)


class UnfitBody(InvalidConfig):
    """Fields that cannot be decoded.  `partial` has the others, if no required one is missing."""

    def __init__(self, problems: Sequence[InvalidInput], partial: Any) -> None:
        super().__init__(problems)
        self.partial = partial


def view(kind: type[T], source: Any, **computed: Any) -> T:
    """A `kind` of an answer: the computed fields, and of `source` the others, by their names."""
    return kind(**{name: getattr(source, name) for name in kind.__struct_fields__ if name not in computed}, **computed)


# bodies


async def read_bytes(request: Request, bytes_max: int = BODY_MAX) -> bytes:
    """The body; refused as soon as it exceeds the limit."""
    length = header_of(request, b"content-length") or ""
    if length.isascii() and length.isdecimal() and int(length) > bytes_max:
        raise _too_big(bytes_max)
    parts: list[bytes] = []
    size, has_more = 0, True
    while has_more:  # as `request.stream`, without its generator: most bodies are a single piece
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        parts.append(message.get("body", b""))
        size, has_more = size + len(parts[-1]), message.get("more_body", False)
        if size > bytes_max:
            raise _too_big(bytes_max)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def header_of(request: Request, name: bytes) -> str | None:
    """One header by its lower-case name; ten times faster than `request.headers`."""
    for known, value in request.scope["headers"]:
        if known == name:
            return str(value, "latin-1")
    return None


def _too_big(bytes_max: int) -> Problem:
    cure = "split it into several requests"
    return Problem(413, "request body too large", f"the limit is {format_size(bytes_max)}", cure=cure)


def json_of(data: bytes) -> Any:
    """The decoded JSON, or a `Problem` with the position."""
    try:
        text = data.removeprefix(BOM_UTF8).decode()
        value = _decoder.decode(text)
        if "\\u" in text:
            msgspec.json.encode(value)  # an unpaired surrogate cannot be encoded
    except UnicodeDecodeError as error:
        what = f"invalid UTF-8 at byte {error.start}"
        raise Problem(400, "invalid JSON", what, cure="send JSON in UTF-8") from None
    except UnicodeEncodeError:
        what = "it has an unpaired surrogate"
        raise Problem(400, "invalid JSON", what, cure="send the characters in UTF-8") from None
    except json.JSONDecodeError as error:
        where = f"{error.msg.lower()}, line {error.lineno}, column {error.colno}"
        cure = 'send a JSON object, like {"id": "home", "url": "https://example.com", "interval": "30s"}'
        raise Problem(400, "invalid JSON", where, cure=cure) from None
    except RecursionError:
        raise _too_deep() from None
    _check_depth(text, value)
    return value


def _check_depth(text: str, value: Any) -> None:
    if text.count("[") + text.count("{") <= DEPTH_MAX:
        return  # the depth is at most the number of brackets
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
    return Problem(400, "JSON nested too deeply", cure=f"send at most {DEPTH_MAX} levels of lists and objects")


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise Problem(400, "duplicate key in JSON object", shortened(twice), cure="keep one of them")
    return found


def _int64(text: str) -> int:
    number = int(text) if len(text) < 20 else 2**64
    if not -(2**63) <= number < 2**63:
        raise Problem(422, "number out of range", shortened(text), cure="send integers of at most 64 bits")
    return number


def _finite(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise Problem(422, "number out of range", shortened(text), cure="send numbers in the range of a double")
    return number


def _no_number(text: str) -> Any:
    raise Problem(400, "invalid JSON", f"{text} is not a JSON number", cure="send null, or omit it")


_decoder = json.JSONDecoder(
    object_pairs_hook=_each_once, parse_int=_int64, parse_float=_finite, parse_constant=_no_number
)


# fields


def read_body(kind: type[T], value: Any) -> T:
    """The object as that Struct, or an error with every problem."""
    if type(value) is not dict:
        what = f"the body is {_kind_of(value)}, not an object"
        raise InvalidInput(what, cure=f"send {{...}} with {_names(kind)}")
    return read_fields(kind, value)


def read_fields(kind: type[T], sent: Mapping[str, Any], *, is_text: bool = False) -> T:
    """Decode field by field if that fails as a whole; `is_text`: numbers and flags are text, as in a query."""
    try:
        return msgspec.convert(sent, kind, strict=not is_text)
    except msgspec.ValidationError:
        pass
    known = {field.encode_name: field for field in fields(kind)}
    problems = [_unknown(name, known) for name in sent if name not in known]
    values: dict[str, Any] = {}
    for name, field in known.items():
        if name not in sent:
            if field.required:
                problems.append(InvalidInput("it is required", where=name, cure=_cure(kind)))
            continue
        try:
            values[field.name] = _value(sent[name], field, is_text=is_text)
        except msgspec.ValidationError as error:
            problems.append(_refusal(name, str(error), sent[name], field))
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


def _refusal(name: str, message: str, value: Any, field: FieldInfo) -> InvalidInput:
    what, _, place = message.partition(" - at `$")
    where = name + place.removesuffix("`")
    if choices := _choices(field.type):
        near = did_you_mean(shortened(value), choices)
        return InvalidInput(f"{shortened(value)!r} is unknown{near}", where=where, cure=f"one of {', '.join(choices)}")
    wrong, cure = plain_message(what, field.type)
    return InvalidInput(wrong if place else wrong + _shown(value), where=where, cure=cure)


def _shown(value: object) -> str:
    if isinstance(value, str):
        return f" ({shortened(value)!r})"
    return f" ({shortened(value)})" if type(value) in (int, float) else ""


def _choices(kind: Any) -> list[str]:
    """The values of a `Literal`."""
    if get_origin(kind) is Literal:
        return [str(each) for each in get_args(kind)]
    return [choice for each in get_args(kind) for choice in _choices(each)] if get_args(kind) else []


def _unknown(name: str, known: Mapping[str, Any]) -> InvalidInput:
    near = did_you_mean(name[:SHOWN], known).strip("; ")
    return InvalidInput("unknown field", where=shortened(name), cure=near or f"known are {', '.join(known)}")


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


# query and path


def read_query(kind: type[T], query: bytes) -> T:
    """The query string as that Struct; each name once."""
    try:
        pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, max_num_fields=QUERY_MAX, errors="strict")
    except ValueError:
        cure = f"send at most {QUERY_MAX} parameters, percent-encoded UTF-8"
        raise Problem(400, "invalid query string", cure=cure) from None
    sent = dict(pairs)
    if len(sent) != len(pairs):
        raise Problem(400, "duplicate query parameter", cure="keep one of them")
    return read_fields(kind, sent, is_text=True)


def unquoted(segment: str) -> str:
    """A decoded segment of the path; `%2F` becomes a slash in it."""
    try:
        text = unquote_to_bytes(segment).decode()
    except UnicodeDecodeError:
        text = "\0"
    if len(text) > PART_CHARS_MAX or not text.isprintable():
        cure = f"use at most {PART_CHARS_MAX} printable characters, as percent-encoded UTF-8"
        raise Problem(404, "not found", "a segment of the path is not a valid name", cure=cure)
    return text
