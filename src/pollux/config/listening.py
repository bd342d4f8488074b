"""Where may the API listen, under which names, with which certificate?  How the options of `server` are read."""

from __future__ import annotations

import re
from typing import Any

from pollux.errors import InvalidInput

OFF = "off"
NAMES_MAX = 100
_NAME = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?\.?|\[?[0-9A-Fa-f:.]{2,45}\]?")
_PATH = re.compile(r"[^\x00-\x1f\x7f,]{1,4000}")
_TLS_CURE = "write {cert: server.pem, key: server.key}"


def names(value: Any) -> str:
    """A list of host names, or text with commas; the answer is such a text."""
    given = [part for part in re.split(r"[,\s]+", value) if part] if isinstance(value, str) else value
    if not isinstance(given, list | tuple) or len(given) > NAMES_MAX:
        raise InvalidInput("it is no list of names", cure="write [pollux.example, 10.0.0.5]")
    for each in given:
        if not isinstance(each, str) or not _NAME.fullmatch(each):
            raise InvalidInput(f"{str(each)[:60]!r} is no name", cure="a name or an address, without a port")
    return ", ".join(given)


def tls(value: Any) -> str:
    """`{cert: ..., key: ...}`, or text `cert,key`; the answer is such a text."""
    if isinstance(value, dict):
        if set(value) != {"cert", "key"}:
            raise InvalidInput("it needs a cert and a key, and nothing else", cure=_TLS_CURE)
        given = [value["cert"], value["key"]]
    else:
        given = [part.strip() for part in value.split(",")] if isinstance(value, str) else []
    if len(given) != 2 or not all(isinstance(each, str) and _PATH.fullmatch(each) for each in given):
        raise InvalidInput("it does not name a certificate and a key", cure=_TLS_CURE)
    return ", ".join(given)


def token(value: Any) -> str:
    """The token itself: no message shows it."""
    if not isinstance(value, str) or not value:
        raise InvalidInput("it is no token", cure="name one by reference: ${file:/run/secrets/token} or ${env:NAME}")
    return value


def path(value: Any) -> str:
    if not isinstance(value, str) or not _PATH.fullmatch(value):
        raise InvalidInput("it is no path of a file", cure="write it like /run/pollux/pollux.token")
    return value


def path_or_off(value: Any) -> str:
    """A path, or `false`."""
    return OFF if value is False or (isinstance(value, str) and value.lower() in {"false", "no", OFF}) else path(value)


def rate(value: Any) -> float:
    try:
        number = -1.0 if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = -1.0
    if not 0 <= number <= 1_000_000:
        raise InvalidInput(f"{str(value)[:60]!r} is no rate", cure="requests a second, like 50; 0: any number")
    return number
