"""How nodes were started: a note of each source of jobs, so that a cure can name the command that starts it again."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct

from pollux.model.node import serve_words
from pollux.model.note import Note
from pollux.model.partition import SCHEDULER_VERSION

START = "start:"  # and the source
NAMED_MAX = 3
_START_ONE = re.compile(r"start one(?=, or|$)")


class Start(Struct, frozen=True, omit_defaults=True):
    """The latest start of a node that declares this source."""

    source: str
    program: str  # "python app.py", "pollux serve -c pollux.yaml"
    folder: str = ""
    host: str = ""
    version: int = SCHEDULER_VERSION

    def __str__(self) -> str:
        """`python app.py` (in /srv/shop on box-1)"""
        place = " on ".join(filter(None, (self.folder and f"in {self.folder}", self.host)))
        return f"`{self.program}`" + (f" ({place})" if place else "")


def starts_in(notes: Iterable[Note]) -> tuple[Start, ...]:
    """Those that can be read."""
    found = []
    for note in notes:
        try:
            found.append(msgspec.convert(note.value, Start))
        except msgspec.ValidationError:
            continue
    return tuple(found)


def with_start(cure: str, starts: Sequence[Start], *, version: int, source: str = "") -> str:
    """The cure with the command by which this app was started, in place of `serve_words` and behind "start one"."""
    own = [each for each in starts if source and each.source == source]
    known = own or [each for each in starts if each.version == version]
    words = " or ".join(dict.fromkeys(map(str, known[:NAMED_MAX])))
    if not words:
        return cure
    named = cure.replace(serve_words(version), words)
    return _START_ONE.sub(lambda _: f"start one ({words})", named)
