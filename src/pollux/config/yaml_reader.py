"""YAML reader: text to nodes that have their line and column; no value is guessed.

The rules are those of YAML 1.2, so that no value changes its type: `on`, `yes`, `12:30`, `0123` and `2026-12-01` are
text; only true, false, null and plain decimal numbers are not.  Keys are always text.  Refused, each with its line:
anchors and aliases (`defaults:` does their work), tags, a repeated key, a second document, more than `DEPTH_MAX`
levels.  libyaml gives the events and the places; the tree is built here without recursion, so that a file made to
break parsers breaks nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import yaml

from pollux.errors import InvalidInput
from pollux.units import printable

FILE_BYTES_MAX = 16 * 2**20
DEPTH_MAX = 32
INTEGER_MAX = 2**63 - 1
PROBLEMS_MAX = 100  # further ones are counted

Place = tuple[int, int]  # line and column, counted from 1

BROKEN: Final = object()  # the value of a node with a reported problem: no second one is reported for it

_NO_KEYS: dict[str, Place] = {}  # of everything that is no mapping; never written to
_CONSTANTS = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
}  # fmt: skip
_NUMBER_STARTS = frozenset("0123456789+-.")
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,18})", re.ASCII)
_FLOAT = re.compile(r"[-+]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?", re.ASCII)


class YamlNode:
    """A value and its place.  `value` is None, bool, int, float, text, a list of nodes, or a dict of nodes."""

    __slots__ = ("column", "keys", "line", "text", "value")

    def __init__(self, value: Any, line: int, column: int, text: str = "") -> None:
        self.value = value
        self.line, self.column = line, column
        self.text = text  # a scalar as it is written
        self.keys: dict[str, Place] = {} if type(value) is dict else _NO_KEYS  # the place of each

    def plain(self) -> Any:
        """Return the value without places."""
        if type(self.value) is dict:
            return {key: node.plain() for key, node in self.value.items()}
        if type(self.value) is list:
            return [node.plain() for node in self.value]
        return None if self.value is BROKEN else self.value

    @property
    def place(self) -> Place:
        return self.line, self.column


class Problems:
    """All problems of one file, each with its place."""

    def __init__(self, name: str) -> None:
        self.name = printable(name)  # a file may be called anything
        self.count = 0
        self._found: list[tuple[Place, InvalidInput]] = []

    def add(self, place: Place | None, what: str, *, cure: str = "") -> None:
        where = self.where(place) if place else self.name
        self.keep(InvalidInput(shortened(printable(what), 400), where=where, cure=printable(cure)), place)

    def keep(self, problem: InvalidInput, place: Place | None = None) -> None:
        """Add a problem; also one of the environment, an argument, or of two values together."""
        self.count += 1
        if self.count <= PROBLEMS_MAX:
            self._found.append((place or (0, 0), problem))

    def where(self, place: Place) -> str:
        return f"{self.name}:{place[0]}:{place[1]}"

    def all(self) -> list[InvalidInput]:
        """Return them in the order of the file."""
        found = [problem for _, problem in sorted(self._found, key=lambda entry: entry[0])]
        if self.count > PROBLEMS_MAX:
            found.append(
                InvalidInput(f"and {self.count - PROBLEMS_MAX} more", where=self.name, cure="correct these first")
            )
        return found


class _StopReading(Exception):
    """Stops the reader after a reported problem."""


def read_yaml(text: str, problems: Problems) -> YamlNode | None:
    """Return the document as nodes; None if it is empty, or if it cannot be read at all (then with a problem)."""
    try:
        return _TreeBuilder(problems).grow(_events(text))
    except _StopReading:
        return None
    except yaml.reader.ReaderError as error:
        place = _place_of(text, error.position) if isinstance(error.position, int) else None
        cure = "a config is plain text in UTF-8"
        problems.add(place, f"there is a character that no text holds: {error.reason}", cure=cure)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = ", ".join(part for part in (error.problem, error.context) if part) or "it cannot be read"
        problems.add((mark.line + 1, mark.column + 1) if mark else None, f"no YAML: {what}", cure=_syntax_cure(what))
    except yaml.YAMLError as error:
        problems.add(None, f"no YAML: {error}", cure="look for a stray quote, bracket or tab")
    return None


def _events(text: str) -> Iterator[Any]:
    parser = yaml.CSafeLoader(text)
    try:
        while parser.check_event():
            yield parser.get_event()
    finally:
        parser.dispose()


def _place_of(text: str, position: int) -> Place:
    before = text[:position]
    return before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1


def _syntax_cure(what: str) -> str:
    if "scanning an alias" in what or "scanning an anchor" in what:
        return 'put text that begins with * or & in quotes: cron: "*/5 * * * *"'
    if "cannot start any token" in what:
        return "indent with spaces, not tabs, and put text that begins with @ ` or % in quotes"
    if "mapping values are not allowed" in what:
        return 'put text that holds ": " in quotes, and indent the lines of one thing alike'
    if "unexpected end of stream" in what or "did not find expected" in what:
        return "look above for a quote or bracket that is not closed, or a line indented differently"
    return "look for a stray quote, bracket or tab"


class _TreeBuilder:
    """Builder of the tree from events."""

    def __init__(self, problems: Problems) -> None:
        self.problems = problems
        self._root: YamlNode | None = None
        self._open: list[YamlNode] = []  # collections that are not closed yet,
        self._pending: list[str | None] = []  # and of each the key that waits for its value

    def grow(self, events: Iterator[Any]) -> YamlNode | None:
        for event in events:
            kind = type(event)
            if kind is yaml.ScalarEvent:
                self._scalar(event)
            elif kind is yaml.MappingStartEvent:
                self._begin({}, event)
            elif kind is yaml.SequenceStartEvent:
                self._begin([], event)
            elif kind is yaml.MappingEndEvent or kind is yaml.SequenceEndEvent:
                self._pending.pop()
                self._open.pop()
            elif kind is yaml.AliasEvent:
                self._alias(event)
            elif kind is yaml.DocumentStartEvent and self._root is not None:
                cure = "keep one, and take the line with --- away"
                self.problems.add(_start(event), "a second document begins here", cure=cure)
                raise _StopReading
        root = self._root
        return None if root is None or root.value is None else root

    def _scalar(self, event: Any) -> None:
        self._check_decoration(event)
        mark, text = event.start_mark, event.value
        if self._takes_key():
            self._set_key(text, mark)
            return
        value = resolve(text) if event.implicit[0] and not event.style else text
        self._place(YamlNode(value, mark.line + 1, mark.column + 1, text))

    def _begin(self, value: Any, event: Any) -> None:
        place = _start(event)
        if self._takes_key():
            cure = "keys are plain text; put {{ ... }} and text that begins with { or [ in quotes"
            self.problems.add(place, "there is a list or mapping where a key belongs", cure=cure)
            raise _StopReading
        if len(self._open) >= DEPTH_MAX:
            self.problems.add(place, f"more than {DEPTH_MAX} levels inside each other", cure="flatten it")
            raise _StopReading
        self._check_decoration(event)
        node = YamlNode(value, *place)
        self._place(node)
        self._open.append(node)
        self._pending.append(None)

    def _alias(self, event: Any) -> None:
        what = f"aliases (*{event.anchor}) are not used here"
        if self._takes_key():
            self.problems.add(_start(event), what, cure="write the key itself")
            raise _StopReading
        self.problems.add(_start(event), what, cure="write the values, or share them by a defaults: block")
        self._place(YamlNode(BROKEN, *_start(event)))

    def _check_decoration(self, event: Any) -> None:
        if event.anchor is not None:
            cure = "remove it; values that jobs share go into a defaults: block"
            self.problems.add(_start(event), f"anchors (&{event.anchor}) are not used here", cure=cure)
        if event.tag is not None and not (event.tag == "!" and type(event) is yaml.ScalarEvent):
            cure = "remove it; put text in quotes"
            self.problems.add(_start(event), f"tags ({event.tag}) are not used here", cure=cure)

    def _takes_key(self) -> bool:
        return bool(self._open) and type(self._open[-1].value) is dict and self._pending[-1] is None

    def _set_key(self, key: str, mark: Any) -> None:
        self._pending[-1] = key
        keys = self._open[-1].keys
        if key not in keys:
            keys[key] = (mark.line + 1, mark.column + 1)
            return
        what = f"the key {shortened(key)!r} is there already, in line {keys[key][0]}"
        self.problems.add((mark.line + 1, mark.column + 1), what, cure="keep one of them")

    def _place(self, node: YamlNode) -> None:
        """Add the node to its parent; of a repeated key the first value counts."""
        if not self._open:
            self._root = node
            return
        parent = self._open[-1].value
        if type(parent) is list:
            parent.append(node)
            return
        key = self._pending[-1]
        self._pending[-1] = None
        parent.setdefault(key, node)


def resolve(text: str) -> Any:
    """Return the value of a plain scalar.  Numbers that JSON readers would change stay text."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if text[0] not in _NUMBER_STARTS:
        return text
    if _INTEGER.fullmatch(text):
        number = int(text)
        return number if -INTEGER_MAX - 1 <= number <= INTEGER_MAX else text
    if _FLOAT.fullmatch(text) and len(text) <= 40:
        fraction = float(text)
        return fraction if abs(fraction) != float("inf") else text
    return text


def _start(event: Any) -> Place:
    return event.start_mark.line + 1, event.start_mark.column + 1


def shortened(text: str, length: int = 60) -> str:
    return text if len(text) <= length else f"{text[: length - 3]}..."
