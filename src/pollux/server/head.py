"""What does a request say before its body?  Its headers, read once for all that the door wants to know."""

from __future__ import annotations

from base64 import b64decode
from binascii import Error

from starlette.types import Scope

_WANTED = frozenset(
    {
        *(b"host", b"authorization", b"origin", b"sec-fetch-site", b"content-length", b"transfer-encoding", b"expect"),
        *(b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host"),
    }
)
_ONCE = frozenset({b"host", b"authorization", b"content-length"})  # twice: each half of the world reads another one


class Head:
    """The headers that matter, and how big all of them are together."""

    __slots__ = ("is_ambiguous", "size", "values")

    def __init__(self, scope: Scope) -> None:
        self.values: dict[bytes, str] = {}
        self.size = len(scope.get("raw_path") or b"") + len(scope.get("query_string", b""))
        self.is_ambiguous = False
        for name, value in scope["headers"]:
            self.size += len(name) + len(value) + 4
            if name in _WANTED:
                text = value.decode("latin-1")
                if name in self.values:
                    self.is_ambiguous = self.is_ambiguous or name in _ONCE
                    text = f"{self.values[name]}, {text}"
                self.values[name] = text
        if b"transfer-encoding" in self.values and b"content-length" in self.values:
            self.is_ambiguous = True  # where does it end?

    def __getitem__(self, name: bytes) -> str:
        return self.values.get(name, "")

    @property
    def token(self) -> str:
        """What came as `Bearer`, or as the password of `Basic`, which is how a .netrc says it; nothing else counts."""
        kind, _, rest = self[b"authorization"].partition(" ")
        match kind.lower():
            case "bearer":
                return rest.strip()
            case "basic":
                try:
                    return b64decode(rest.strip(), validate=True).decode("latin-1").partition(":")[2]
                except (Error, ValueError):
                    return ""
        return ""

    @property
    def body_length(self) -> int | None:
        """Of the body, if it is known: 0 if there is none, None if it comes in pieces."""
        if b"transfer-encoding" in self.values:
            return None
        length = self[b"content-length"].strip()
        return int(length) if length.isascii() and length.isdecimal() and len(length) < 19 else 0
