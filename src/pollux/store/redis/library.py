"""Function library of the server, and the names of the keys.

What runs in the server are the files of `functions/`, one behind the other: modules in the order in which they need
each other, then the functions, each file in a block of its own.  The library and its functions are named after a hash
of the text, so the libraries of several releases live on one server.  It is loaded by the first call that finds no such
function: see `connection.py`.

A function gets only the first key, and derives the names of all others from it: each name costs every call, whether it
is used or not.  All begin with the same prefix.  So one in braces (a hash tag) puts all into one slot of a cluster.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib.resources import files

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
    "home",  # how many writes there were, and on which servers: see failover_detection.py
    "held",
    "unfinished",  # jobs that were deleted or moved, while not all of their runs have ended or come along
    "versions",  # which versions of the deployment there are; all but one have queues, feed and counts of their own
)
BELL_RUNS, BELL_FEED = "bell:runs", "bell:feed"
MODULES = (
    *("op", "writes", "versions", "feed", "sha256", "audit", "notes", "jobs", "streams", "runs", "overlap", "moves"),
    *("places", "register"),
)
UNKNOWN = "Function not found"  # the server's answer to a call before the library was loaded
LOADED = "already exists"  # and to a load after another client's
_REGISTERED = re.compile(r'^register\.(\w+)\("(\w+)"', re.MULTILINE)


def name_of(version: int, key: str) -> str:
    """A key that each version has for itself, without the prefix; as `op.keys_in` in the library."""
    return key if version == SCHEDULER_VERSION else f"v{version}:{key}"


class Library(Struct, frozen=True):
    name: str
    text: str
    writing: frozenset[str]  # functions that answer their value and the count of writes
    reading: frozenset[str]  # those that answer their value alone

    @property
    def functions(self) -> list[str]:
        return sorted(self.writing | self.reading)

    def full_name(self, function: str) -> str:
        return f"{self.name}_{function}"


@cache
def library() -> Library:
    folder = files(__package__).joinpath("functions")
    texts = {entry.name.removesuffix(".lua"): entry.read_text("utf-8") for entry in folder.iterdir()}
    modules = [f"local {name} = (function()\n{texts.pop(name)}end)()\n" for name in MODULES]
    functions = [f"do\n{texts[name]}end\n" for name in sorted(texts)]
    body = "\n".join([*modules, *functions])
    name = f"pollux_{hashlib.sha256(body.encode()).hexdigest()[:12]}"
    registered: list[tuple[str, str]] = _REGISTERED.findall(body)
    writing = frozenset(function for kind, function in registered if kind == "write")
    reading = frozenset(function for kind, function in registered if kind != "write")
    return Library(name, f'#!lua name={name}\nlocal LIBRARY = "{name}"\n{body}', writing, reading)
