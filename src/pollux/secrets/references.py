"""References to secrets in params, and the sources that may use them.

    ${env:NAME}    a variable of the process that runs the job
    ${file:PATH}   a file on its machine, without its last newline; relative to the config file's folder
    $${env:NAME}   the text itself

Only what a file or code declares may hold references: a client that may only add jobs or runs must not be able to read
the workers' environment.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from pollux.errors import InvalidInput

REFERENCE = re.compile(r"(\$?)\$\{(env|file):([^{}]*)(\}?)")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_CURE = "write ${env:NAME} or ${file:PATH}; $${env:NAME} is the text itself"


class Reference(NamedTuple):
    kind: str  # env or file
    name: str

    def __str__(self) -> str:
        return f"${{{self.kind}:{self.name}}}"


def has_reference(text: str) -> bool:
    return "${" in text and any(not found[1] for found in REFERENCE.finditer(text))


def references_of(text: str) -> list[Reference]:
    """Return the references in a text; raise for a malformed one."""
    found = []
    for match in REFERENCE.finditer(text) if "${" in text else ():
        escape, kind, name, end = match.groups()
        if escape:
            continue
        if not end:
            raise InvalidInput(f"the reference {match[0][:60]!r} is not closed", cure=_CURE)
        fits = _NAME.fullmatch(name) if kind == "env" else name.strip() and name.isprintable()
        if not fits:
            raise InvalidInput(f"the reference {match[0][:60]!r} names nothing", cure=_CURE)
        found.append(Reference(kind, name))
    return found


def texts_of(value: Any) -> Iterator[tuple[str, str]]:
    """Yield every text in plain data, with its path: `headers.Authorization`, `argv[2]`.  Of any depth."""
    waiting: list[tuple[str, Any]] = [("", value)]
    while waiting:
        path, thing = waiting.pop()
        if isinstance(thing, str):
            yield path, thing
        elif isinstance(thing, dict):
            waiting += [(f"{path}.{key}" if path else str(key), thing[key]) for key in reversed(thing)]
        elif isinstance(thing, list):
            waiting += [(f"{path}[{index}]", thing[index]) for index in reversed(range(len(thing)))]


def may_hold_references(source: str) -> bool:
    """Whether the source is a file or code: the API and payloads may name no variable and no file of a worker."""
    return source.startswith(("file:", "code:"))


def check_references(params: Mapping[str, Any], source: str) -> None:
    """Refuse malformed references in a job's params, and any reference from a source that may hold none."""
    for path, text in texts_of(params):
        try:
            found = references_of(text)
        except InvalidInput as error:
            raise error.at(path) from None
        if found and not may_hold_references(source):
            raise InvalidInput(
                f"{found[0]} is a reference to a secret, which only a config file or code may hold",
                where=path,
                cure="declare the job there; $${env:NAME} is the text itself",
            )


def unescaped(text: str) -> str:
    return REFERENCE.sub(lambda match: match[0].removeprefix("$"), text) if "$${" in text else text


def mapped(value: Any, change: Callable[[str], str]) -> Any:
    """Return a copy of plain data with every text changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {key: mapped(item, change) for key, item in value.items()}
    if isinstance(value, list):
        return [mapped(item, change) for item in value]
    return value
