"""Extraction of a value from a response: `json: "data.items[0].price"`, or `regex: "price: ([0-9.]+)"`.

A path is names between dots, `[3]` or `[-1]` for the item of a list, `["any name"]` for names with dots or blanks; a
`$` in front means nothing.  Nothing in it can loop, compute or call.

Regex searches run in a child process, because Python's `re` cannot be interrupted: a pattern like `(a+)+$` needs years
for a few dozen characters, and nothing else in its process runs meanwhile.  The child is started at the first use, has
`BUDGET_S` for each search, and is ended by its own alarm after that; such a pattern is refused from then on, at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from pollux.errors import InvalidInput, did_you_mean
from pollux.handlers.http.errors import Interrupted, NothingExtracted, SlowPattern
from pollux.units import format_size

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
    """Return a pattern that compiles; its run time is bounded when it runs (`RegexWorker`)."""
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


BUDGET_S = 0.5
CHILD_SECONDS_MAX = 10.0  # for a child that neither answers nor dies (the machine is that busy)
GONE_S = 5.0  # until a child whose pipe was closed has exited
SLOW_MAX = 1_000
_CHILD = Path(__file__).with_name("regex_child.py")
_HEAD = 4


class RegexWorker:
    """One child for all patterns of a process; one search at a time."""

    def __init__(self) -> None:
        self._child: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()
        self._slow: dict[str, None] = {}

    async def search(self, pattern: str, text: str, target: str) -> str:
        """Return the first group of the first match (the whole match, if the pattern has no group)."""
        async with self._turn:
            if pattern in self._slow:
                raise _slow_pattern()
            try:
                found = await self._ask(pattern, text[:PATTERN_INPUT_MAX])
            except (asyncio.IncompleteReadError, ConnectionError, TimeoutError) as error:
                timeout_s = 0.0 if isinstance(error, TimeoutError) else GONE_S
                if await self._end(timeout_s) != -signal.SIGVTALRM:
                    raise Interrupted("the process that searches was ended, or the machine is too busy") from None
                if len(self._slow) >= SLOW_MAX:
                    self._slow.pop(next(iter(self._slow)))
                self._slow[pattern] = None
                raise _slow_pattern() from None
            except BaseException:
                await self._end()  # half an answer may be under way
                raise
        if found is None:
            raise NothingExtracted(f"{target} answered nothing that the regex matches")
        return found

    async def close(self) -> None:
        async with self._turn:
            await self._end()

    async def _ask(self, pattern: str, text: str) -> str | None:
        if self._child is None or self._child.returncode is not None:
            self._child = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-S", str(_CHILD), str(BUDGET_S),
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            )  # fmt: skip
        stdin, stdout = self._child.stdin, self._child.stdout
        assert stdin is not None
        assert stdout is not None
        question = msgspec.json.encode([pattern, text])
        stdin.write(len(question).to_bytes(_HEAD, "big") + question)
        async with asyncio.timeout(CHILD_SECONDS_MAX):
            await stdin.drain()
            size = int.from_bytes(await stdout.readexactly(_HEAD), "big")
            found: str | None = msgspec.json.decode(await stdout.readexactly(size))
        return found

    async def _end(self, timeout_s: float = 0.0) -> int | None:
        """End the child and return its exit status, if there was one.

        A child that is dying gets time to do so: a kill at that moment would replace its status.
        """
        child, self._child = self._child, None
        if child is None:
            return None
        assert child.stdin is not None
        child.stdin.close()
        if timeout_s:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    return await child.wait()
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        return await child.wait()


def _slow_pattern() -> SlowPattern:
    return SlowPattern(
        f"the regex needs more than {BUDGET_S:g} s for an answer of at most {format_size(PATTERN_INPUT_MAX)}; "
        "avoid repeats inside repeats, anchor it, or take a json path"
    )
