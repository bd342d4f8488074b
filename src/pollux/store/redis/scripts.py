"""The linker of scripts, and the names of the keys: `scripts/<verb>.lua`, each behind the shared parts that it uses.

A script gets only the first key, and derives the names of all others from it: each name costs every call, whether it
is used or not.  All begin with the same prefix.  So one in braces (a hash tag) puts all into one slot of a cluster.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from msgspec import Struct

from pollux.model import SCHEDULER_VERSION

KEYS = (
    "meta",  # first: its name without the last four letters is what all others begin with
    "jobs:high",
    "jobs:normal",
    "jobs:low",
    "queue:1",
    "queue:2",
    "queue:3",
    "leases",
    "live",
    "keys",
    "feed",
    "bell:runs",
    "bell:feed",
    "jobs",
    "due",
    "spent",
    "tombs",
    "tombs:order",
    "finished:plain",
    "finished:unchanged",
    "finished:dead",
    "counters",
    "notes",
    "notes:keys",
    "notes:ends",
    "nodes",
    "log",
    "home",  # how many writes there were, and on which servers: see homes.py
    "held",
    "unfinished",  # jobs that were deleted or moved, while not all of their runs have ended or come along
    "versions",  # which versions of the deployment there are; all but one have queues, feed and counts of their own
)
BELL_RUNS, BELL_FEED = "bell:runs", "bell:feed"
SHARED = tuple(f"_{name}.lua" for name in ("keys", "writes", "jobs", "notes", "streams", "runs", "moves", "overlap"))
PLAIN = "_plain"  # how a script ends that works on plain runs alone: see plain.py
FLUSHES, WRAPPER = "fresh", "to_its_end"  # who writes before its end, and what takes that back if it comes to none
LEVEL_NAMES, USES_MAX = 30, 60
_LOCALS = re.compile(r"^local (?:function )?(\w+(?:\s*,\s*\w+)*)", re.MULTILINE)
_ADDS = re.compile(r"^(?!end\b|local\b)(\w+)", re.MULTILINE)
_NAME = re.compile(r"(?<![.\w])[A-Za-z_]\w*")
_TEXT = re.compile(r'"[^"\n]*"')
_COMMENT = re.compile(r"--.*$", re.MULTILINE)


def name_of(version: int, key: str) -> str:
    """A key that each version has for itself, without the prefix; as `key_of` in the scripts."""
    return key if version == SCHEDULER_VERSION else f"v{version}:{key}"


class Script(Struct, frozen=True):
    text: str
    sha: str
    writes: bool  # it answers its value and the count of writes, else its value alone


class ScriptPart(NamedTuple):
    """What stands between empty lines in what is shared: all names in it, and its own."""

    text: str
    names: frozenset[str]
    owns: frozenset[str]


@cache
def script(verb: str) -> Script:
    """The script of a verb, ready to be loaded; its first line, which says what it may do, stays the first."""
    whole = _read(f"{verb}.lua")
    if verb.endswith(PLAIN):  # as lean as can be: it shares nothing
        return _script(whole, writes=True)
    first, _, body = whole.partition("\n")
    writes = "no-writes" not in first
    places = _parts("_check.lua") if verb.startswith(("check_", "mend_")) else ()
    parts = _needed((*_parts(*SHARED), *places), _names(body))
    if writes and any(FLUSHES in part.owns for part in parts):
        body = f"return {WRAPPER}(function()\n{body}\nend)"
        parts = _needed((*_parts(*SHARED), *places), _names(body))
    text = "\n".join([first, *_plain(verb), f"local WRITES = {str(writes).lower()}", *_nested(parts, body)]) + "\n"
    return _script(text, writes=writes)


def _script(text: str, *, writes: bool) -> Script:
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest(), writes)


def _plain(verb: str) -> list[str]:
    """What is tried first, before anything of all that is made: its answer, if it has one, is the script's."""
    if verb != "claim":
        return []
    first = _read("claim_plain.lua").partition("\n")[2]
    return ["local plain = (function()", first, "end)()", "if plain then", "return plain", "end"]


@cache
def _parts(*names: str) -> tuple[ScriptPart, ...]:
    texts = re.split(r"\n\n(?=\S)", "\n".join(_read(name) for name in names))
    return tuple(ScriptPart(text, _names(text), _owns(text)) for text in texts)


def _needed(parts: Sequence[ScriptPart], wanted: frozenset[str]) -> list[ScriptPart]:
    """The parts of what is shared that a verb uses: a server makes all of it anew for every call.

    A part is needed if a name of its own is; one that only adds to another part says in its first line with which name
    it goes.
    """
    taken = [False] * len(parts)
    while True:
        new = [n for n, part in enumerate(parts) if not taken[n] and part.owns & wanted]
        if not new:
            return [part for part, is_taken in zip(parts, taken, strict=True) if is_taken]
        for n in new:
            taken[n] = True
            wanted |= parts[n].names


def _nested(parts: Sequence[ScriptPart], body: str) -> list[str]:
    """The parts and the body, each few of them in a function around what follows.

    To make a function that uses names of its own level Lua walks over all that stand there, but what it uses of the
    levels around it has a number.  A function may have 200 names of its own, and use 60 of those around it.
    """
    used, later = [], _names(body)
    for part in reversed(parts):
        later |= part.names
        used.append(later)
    lines, depth, outer, level = [], 0, {"WRITES"}, set[str]()
    for part, names in zip(parts, reversed(used), strict=True):
        if len(level) >= LEVEL_NAMES and len((outer | level) & names) <= USES_MAX:
            lines.append("return (function()")
            depth, outer, level = depth + 1, outer | level, set()
        lines.append(part.text)
        level |= part.owns
    return [*lines, "return (function()", body, "end)()", *["end)()"] * depth]


def _owns(part: str) -> frozenset[str]:
    if found := re.match(r"-- goes with (\w+)", part):
        return frozenset({found[1]})
    names = {name for names in _LOCALS.findall(part) for name in re.findall(r"\w+", names)}
    return frozenset(names or _ADDS.findall(part))


def _names(text: str) -> frozenset[str]:
    """All words that may be names: neither in comments nor texts, nor behind a dot."""
    return frozenset(_NAME.findall(_TEXT.sub('""', _COMMENT.sub("", text))))


def verbs() -> list[str]:
    names = (entry.name for entry in files(__package__).joinpath("scripts").iterdir())
    return sorted(name.removesuffix(".lua") for name in names if name.endswith(".lua") and not name.startswith("_"))


def _read(name: str) -> str:
    return files(__package__).joinpath("scripts", name).read_text("utf-8")
