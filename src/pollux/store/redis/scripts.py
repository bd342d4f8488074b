"""Where are the scripts, and which keys do they get?  `scripts/<verb>.lua`, each behind what all of them share.

The fixed keys are all in KEYS, in the order of `KEYS`; those of single runs, jobs and claims are made in the script and
begin with the same prefix.  So a prefix in braces (a hash tag) puts everything into one slot of a cluster.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib.resources import files

from msgspec import Struct

from pollux.model import ALL_VERSIONS, SCHEDULER_VERSION

KEYS = (
    "meta",  # first: its name without the last four letters is what all others begin with
    "jobs:high",
    "jobs:normal",
    "jobs:low",
    "line:1",
    "line:2",
    "line:3",
    "leases",
    "live",
    "keys",
    "feed",
    "bell:runs",
    "bell:feed",
    "jobs",
    "due",
    "spent",
    "gone",
    "gone:line",
    "shelf:plain",
    "shelf:unchanged",
    "shelf:dead",
    "tally",
    "notes",
    "notes:keys",
    "notes:ends",
    "nodes",
    "log",
    "home",  # how many writes there were, and on which servers: see homes.py
    "held",
    "versions",  # which versions of the deployment there are; all but one have lines, feed and counts of their own
)
BELL_RUNS, BELL_FEED = "bell:runs", "bell:feed"
LEVEL_NAMES, USES_MAX = 30, 60
_LOCALS = re.compile(r"^local (?:function )?(\w+(?:\s*,\s*\w+)*)", re.MULTILINE)
_ADDS = re.compile(r"^(?!end\b|local\b)(\w+)", re.MULTILINE)
_NAME = re.compile(r"(?<![.\w])[A-Za-z_]\w*")
_TEXT = re.compile(r'"[^"\n]*"')
_COMMENT = re.compile(r"--.*$", re.MULTILINE)


def name_of(version: int, key: str) -> str:
    """A key that each version has for itself, without the prefix; as `key_of` in the scripts."""
    return key if version in (SCHEDULER_VERSION, ALL_VERSIONS) else f"v{version}:{key}"


class Script(Struct, frozen=True):
    text: str
    sha: str
    writes: bool  # it answers its value and the count of writes, else its value alone


@cache
def script(verb: str) -> Script:
    """The script of a verb, ready to be loaded; its first line, which says what it may do, stays the first."""
    first, _, body = _read(f"{verb}.lua").partition("\n")
    writes = "no-writes" not in first
    places = "\n\n" + _read("_places.lua") if verb.startswith(("check_", "mend_")) else ""
    parts = _needed(_shared() + places, body)
    text = "\n".join([first, f"local WRITES = {str(writes).lower()}", *_nested(parts, body)]) + "\n"
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest(), writes)


@cache
def _shared() -> str:
    return "\n".join(_read(f"_{name}.lua") for name in ("house", "writes", "jobs", "notes", "streams", "runs"))


def _needed(shared: str, body: str) -> list[str]:
    """The parts of what is shared that a verb uses: a server makes all of it anew for every call.

    A part is what stands between empty lines.  It is needed if a name of its own is; one that only adds to another
    part says in its first line with which name it goes.
    """
    parts = [(part, _names(part), _owns(part)) for part in re.split(r"\n\n(?=\S)", shared)]
    wanted, taken = _names(body), [False] * len(parts)
    while True:
        new = [n for n, (_, _, owns) in enumerate(parts) if not taken[n] and owns & wanted]
        if not new:
            return [part for (part, _, _), is_taken in zip(parts, taken, strict=True) if is_taken]
        for n in new:
            taken[n] = True
            wanted |= parts[n][1]


def _nested(parts: list[str], body: str) -> list[str]:
    """The parts and the body, each few of them in a function around what follows.

    To make a function that uses names of its own level Lua walks over all that stand there, but what it uses of the
    levels around it has a number.  A function may have 200 names of its own, and use 60 of those around it.
    """
    lines, depth, outer, level = [], 0, {"WRITES"}, set[str]()
    for n, part in enumerate(parts):
        used = _names("\n".join(parts[n:]) + body)
        if len(level) >= LEVEL_NAMES and len((outer | level) & used) <= USES_MAX:
            lines.append("return (function()")
            depth, outer, level = depth + 1, outer | level, set()
        lines.append(part)
        level |= _owns(part)
    return [*lines, "return (function()", body, "end)()", *["end)()"] * depth]


def _owns(part: str) -> set[str]:
    if found := re.match(r"-- goes with (\w+)", part):
        return {found[1]}
    return {name for names in _LOCALS.findall(part) for name in re.findall(r"\w+", names)} or set(_ADDS.findall(part))


def _names(text: str) -> set[str]:
    """All words that may be names: neither in comments nor texts, nor behind a dot."""
    return set(_NAME.findall(_TEXT.sub('""', _COMMENT.sub("", text))))


def verbs() -> list[str]:
    names = (entry.name for entry in files(__package__).joinpath("scripts").iterdir())
    return sorted(name.removesuffix(".lua") for name in names if name.endswith(".lua") and not name.startswith("_"))


def _read(name: str) -> str:
    return files(__package__).joinpath("scripts", name).read_text("utf-8")
