"""Response reading: a body within limits, and the fingerprint by which changes are detected.

The reader never holds more than was allowed, packed or unpacked, whatever the server announces.  Unpacking is done
piece by piece with a limit on the output, so that a small bomb stays small.  One layer of gzip or deflate: the request
accepts nothing else.

A fingerprint is short, printable, and kept with the job:

    <recipe><digest>[ E<etag> | M<last modified>]

The digest is of what is compared; the recipe is of the request, so that a changed request never finds "unchanged"; the
validator lets the next run, on whatever node, send a conditional request.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from hashlib import blake2b
from typing import NamedTuple, Protocol

from pollux.handlers.http.errors import BadEncoding, Interrupted, TooBig
from pollux.registry import FINGERPRINT_CHARS_MAX
from pollux.units import format_size

RATIO_MAX = 100
RATIO_FREE = 128 * 1024  # the compression ratio is not checked below this
MEMBERS_MAX = 100  # of one body
PIECE = 64 * 1024
_PLAIN = frozenset({"", "identity"})
_GZIP = frozenset({"gzip", "x-gzip"})


class ByteStream(Protocol):
    async def readany(self) -> bytes: ...


async def read_body(stream: ByteStream, *, encoding: str, announced: str | None, size_max: int, target: str) -> bytes:
    """Return the body, unpacked; raise `TooBig` or `BadEncoding` before more than `size_max` is in memory."""
    kind = encoding.strip().lower()
    unpacker = None if kind in _PLAIN else Unpacker(kind, size_max, target)
    if announced is not None and announced.isdigit() and len(announced) < 20 and int(announced) > size_max:
        raise TooBig(f"{target} announced {format_size(int(announced))}; at most {format_size(size_max)} are taken")
    pieces: list[bytes] = []
    size = 0
    while piece := await stream.readany():
        size += len(piece)
        if size > size_max:
            raise TooBig(f"{target} sent more than {format_size(size_max)}")
        if unpacker is None:
            pieces.append(piece)
        else:
            unpacker.feed(piece)
    if unpacker is not None:
        return unpacker.end() if size else b""
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class Unpacker:
    """Decoder of one layer of gzip (of several members, too) or deflate (with or without its header)."""

    def __init__(self, kind: str, size_max: int, target: str) -> None:
        if kind not in _GZIP and kind != "deflate":
            what = "several encodings" if "," in kind else f"the encoding {kind[:40]!r}"
            raise BadEncoding(f"{target} sent {what}, which was not asked for")
        self._is_gzip, self._size_max, self._target = kind in _GZIP, size_max, target
        self._pieces: list[bytes] = []
        self._size = self._packed = self._members = 0
        self._inflate: zlib._Decompress | None = None

    def feed(self, piece: bytes) -> None:
        self._packed += len(piece)
        while piece:
            if self._inflate is None:
                self._members += 1
                if self._members > MEMBERS_MAX:
                    raise BadEncoding(f"{self._target} sent a packed body of more than {MEMBERS_MAX} members")
                self._inflate = zlib.decompressobj(self._window(piece))
            try:
                self._take(self._inflate.decompress(piece, PIECE))
            except zlib.error as error:
                raise BadEncoding(f"{self._target} sent what cannot be unpacked: {error}") from None
            piece = self._inflate.unconsumed_tail
            if self._inflate.eof:
                piece = self._inflate.unused_data if self._is_gzip else b""
                self._inflate = None if piece else self._inflate

    def end(self) -> bytes:
        if self._inflate is None or not self._inflate.eof:
            raise Interrupted(f"{self._target} sent a packed body that is cut off")
        return b"".join(self._pieces)

    def _window(self, piece: bytes) -> int:
        if self._is_gzip:
            return 16 + zlib.MAX_WBITS
        has_header = piece[0] & 0x0F == 8 and (len(piece) < 2 or (piece[0] << 8 | piece[1]) % 31 == 0)
        return zlib.MAX_WBITS if has_header else -zlib.MAX_WBITS

    def _take(self, unpacked: bytes) -> None:
        self._size += len(unpacked)
        if self._size > self._size_max:
            raise TooBig(f"{self._target} sent more than {format_size(self._size_max)}, unpacked")
        if self._size > RATIO_FREE and self._size > RATIO_MAX * self._packed:
            raise BadEncoding(f"{self._target} sent a body packed more than {RATIO_MAX} to 1")
        if unpacked:
            self._pieces.append(unpacked)


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
