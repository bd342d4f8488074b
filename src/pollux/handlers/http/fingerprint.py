"""Is it what we saw last time?  A mark of what was seen, kept as the job's fingerprint, short and printable.

    <recipe><digest>[ E<etag> | M<last modified>]

The digest is of what is compared; the recipe is of the question, so that another question never finds "unchanged"; the
validator lets the next run, on whatever node, ask "only if it changed".
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import NamedTuple

from pollux.registry import FINGERPRINT_CHARS_MAX

RECIPE_CHARS = 8
DIGEST_CHARS = 24


class Fingerprint(NamedTuple):
    recipe: str
    digest: str
    validator: str = ""  # E... or M...

    @property
    def text(self) -> str:
        return f"{self.recipe}{self.digest} {self.validator}" if self.validator else self.recipe + self.digest

    def header(self) -> tuple[str, str]:
        """The header that asks for news only."""
        name = "If-None-Match" if self.validator[0] == "E" else "If-Modified-Since"
        return name, self.validator[1:]


def read_mark(text: str) -> Fingerprint | None:
    """The mark that a fingerprint is; None if it is somebody else's."""
    seen, _, validator = text.partition(" ")
    if len(seen) != RECIPE_CHARS + DIGEST_CHARS or (validator and validator[0] not in "EM"):
        return None
    return Fingerprint(seen[:RECIPE_CHARS], seen[RECIPE_CHARS:], validator)


def digest_of(*parts: bytes) -> str:
    return blake2b(b"\0".join(parts), digest_size=DIGEST_CHARS // 2).hexdigest()


def recipe_of(*parts: bytes) -> str:
    return blake2b(b"\0".join(parts), digest_size=RECIPE_CHARS // 2).hexdigest()


def validator_of(headers: Mapping[str, str]) -> str:
    """ETag, else Last-Modified, if it is of a kind that can be kept and sent back."""
    room = FINGERPRINT_CHARS_MAX - RECIPE_CHARS - DIGEST_CHARS - 2
    for kind, value in (("E", headers.get("ETag")), ("M", headers.get("Last-Modified"))):
        if value and len(value) <= room and value.isascii() and value.isprintable():
            return kind + value
    return ""
