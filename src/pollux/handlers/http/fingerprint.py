"""Fingerprint of a response: short, printable, kept as the job's fingerprint.

    <recipe><digest>[ E<etag> | M<last modified>]

The digest is of what is compared; the recipe is of the request, so that a changed request never finds "unchanged"; the
validator lets the next run, on whatever node, send a conditional request.
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
        """Return the header of a conditional request."""
        name = "If-None-Match" if self.validator[0] == "E" else "If-Modified-Since"
        return name, self.validator[1:]


def parse_fingerprint(text: str) -> Fingerprint | None:
    """Parse a stored fingerprint; None if this handler did not write it."""
    seen, _, validator = text.partition(" ")
    if len(seen) != RECIPE_CHARS + DIGEST_CHARS or (validator and validator[0] not in "EM"):
        return None
    return Fingerprint(seen[:RECIPE_CHARS], seen[RECIPE_CHARS:], validator)


def digest_of(*parts: bytes) -> str:
    return blake2b(b"\0".join(parts), digest_size=DIGEST_CHARS // 2).hexdigest()


def recipe_of(*parts: bytes) -> str:
    return blake2b(b"\0".join(parts), digest_size=RECIPE_CHARS // 2).hexdigest()


def validator_of(headers: Mapping[str, str]) -> str:
    """Return ETag, else Last-Modified, if it is of a kind that can be kept and sent back."""
    room = FINGERPRINT_CHARS_MAX - RECIPE_CHARS - DIGEST_CHARS - 2
    for kind, value in (("E", headers.get("ETag")), ("M", headers.get("Last-Modified"))):
        if value and len(value) <= room and value.isascii() and value.isprintable():
            return kind + value
    return ""
