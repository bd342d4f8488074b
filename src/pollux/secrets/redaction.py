"""Redaction: hides every resolved secret, and every value under a name that announces a secret.

`HIDDEN` is shared by the whole process on purpose: code that shows a text (a log line, an error, a table) or stores one
(a result) must hide every secret that was resolved anywhere in it.

Of a whole URL only the password is the secret: people must see which server it is.  A URL is taken apart only if
nothing in it is ambiguous; otherwise all of it is hidden.
"""

from __future__ import annotations

import json
import re
import threading
from base64 import b64encode
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Any
from urllib.parse import quote, quote_plus, unquote, unquote_plus

REFERENCE = re.compile(r"(\$?)\$\{(env|file):([^{}]*)(\}?)")
_URL = re.compile(
    r"[a-z][a-z0-9+.-]*://"
    r"(?:[^\s/?#:@]*(?::(?P<password>[^\s/?#@]*))?@)?"
    r"[^\s/?#@]*(?:/[^\s?#@]*)?(?:\?(?P<options>[^\s?#@]*))?",
    re.IGNORECASE,
)


def has_reference(text: str) -> bool:
    return "${" in text and any(not found[1] for found in REFERENCE.finditer(text))


def whole(value: str) -> list[str]:
    return [value]


def secrets_in_url(value: str) -> list[str]:
    """Return the password of a URL, and options that announce one, each as it is written and decoded.

    All of the value if it is no URL, or holds a secret that is too short to be found again by itself.
    """
    found = _URL.fullmatch(value)
    if found is None:
        return [value]
    options = [part.partition("=") for part in (found["options"] or "").split("&")]
    texts = [found["password"] or "", *(text for name, _, text in options if _announces(unquote(name)))]
    forms = {form for text in texts for form in (text, unquote(text), unquote_plus(text)) if form}
    return [value] if any(len(form) < HIDE_CHARS_MIN for form in forms) else sorted(forms)


def _announces(name: str) -> bool:
    """Whether the name announces a secret; also `sslpassword`, which is one word."""
    return looks_secret(name) or "pass" in name.lower() or "pwd" in name.lower()


HIDDEN_MAX = 10_000  # values; beyond it the one resolved longest ago is forgotten
HIDE_CHARS_MIN = 6  # a shorter value would hide parts of every line
LINES_MAX = 100  # of a secret of many lines
LOOK_CHARS_MAX = 100_000  # of a text that is shown
MASK = "***"


@lru_cache(maxsize=4_096)
def looks_secret(key: str) -> bool:
    """Whether this name announces a secret.  By word: `db_password`, `X-Api-Key`, `accessToken`, not `author`."""
    words = [word.lower() for word in _WORD.findall(key[:200])]
    return not _SECRET_WORDS.isdisjoint(words) or any(pair in _SECRET_PAIRS for pair in pairwise(words))


_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_SECRET_WORDS = frozenset(
    {
        *("password", "passwords", "passwd", "pwd", "passphrase", "secret", "secrets", "token", "tokens"),
        *("authorization", "auth", "bearer", "credential", "credentials", "cookie", "cookies", "community", "apikey"),
    }
)
_SECRET_PAIRS = frozenset({("api", "key"), ("access", "key"), ("private", "key"), ("signing", "key")})
# One is in every name that announces a secret: a text without them is not searched by the patterns below.
_STEMS = ("pass", "pwd", "secret", "token", "auth", "bearer", "credential", "cookie", "community", "key")

_USERINFO = re.compile(r"([a-z][a-z0-9+.-]*://[^\s/?#:@]*:)([^\s/?#]+)@", re.IGNORECASE)
_ASSIGNED = re.compile(r"""([A-Za-z][\w.-]{0,63})=("[^"]*"|'[^']*'|[^\s&;,"'<>]+)""")
_QUOTED = re.compile(r"""(\\{0,3}["'])([A-Za-z][\w.-]{0,63})\1(\s*:\s*)(\\{0,3}["'])((?:(?!\4)(?:[^\\]|\\.))*)\4""")
# As in YAML: `token: abc`, `{token: abc}`.  Prose and Python look alike, so the value counts as a secret if the name
# begins a line, a text or a field and nothing follows the value; anywhere else if there is a digit in it.
_FIELD = re.compile(
    r"""(?P<begin>(?:^|\\[nr]|[{,]|(?<![\\\w])["'])[ \t]*(?:-[ \t]+)?)?"""
    r"""(?:(?<=\\[nr])|(?<![\w.\\-]))(?P<name>[A-Za-z][\w.-]{0,63}+)(?P<quote>\\*["'])?(?P<colon>:[ \t]+)"""
    r"""(?P<value>"[^"\\]*"|'[^'\\]*'|[^\s,;"'\\{}\[\]()<>$*]++)(?P<end>(?=[ \t]*(?:$|[,}"'\\]|\#)))?"""
    r"""(?=[\s,;}"'\\]|$)(?![ \t]*=)""",
    re.MULTILINE,
)
_HEADER = re.compile(
    r"\b((?:proxy-)?authorization|(?:set-)?cookie|x-api-key)(\s*:\s*)([^\s\"'][^\"'\r\n]*)", re.IGNORECASE
)


class Redaction:
    """Set of values to hide, and the rules for values under a name that announces a secret."""

    def __init__(self) -> None:
        self._values: dict[str, tuple[str, ...]] = {}  # and the forms in which each may appear
        self._known: dict[str, int] = {}  # all forms, and of how many values
        self._by_head: dict[str, dict[int, int]] = {}  # how a form begins -> its length, and how many have it
        self._lock = threading.Lock()

    def add(self, value: str) -> None:
        """Hide this value from now on."""
        if len(value) < HIDE_CHARS_MIN:
            return
        with self._lock:
            forms = self._values.pop(value, None)
            if forms is None:
                forms = tuple(_forms(value))
                self._add_forms(forms)
            self._values[value] = forms  # moved to the end: it was resolved last
            while len(self._values) > HIDDEN_MAX:
                self._forget(self._values.pop(next(iter(self._values))))

    def clear(self) -> None:
        with self._lock:
            self._values, self._known, self._by_head = {}, {}, {}

    def values(self) -> list[str]:
        with self._lock:
            return list(self._values)

    @property
    def knows_any(self) -> bool:
        return bool(self._by_head)

    def has_value(self, text: str) -> bool:
        """Whether the text holds a known secret."""
        return next(self._found(text), None) is not None

    def hide(self, text: str) -> str:
        """Return the text without known values, passwords in URLs, and values under a name that announces a secret."""
        if not text:
            return text
        if len(text) > LOOK_CHARS_MAX:
            text = f"{text[:LOOK_CHARS_MAX]}..."
        text = self._without_known(text)
        if "://" in text and "@" in text:
            text = _USERINFO.sub(_mask_userinfo, text)
        low = text.lower()
        if not any([stem in low for stem in _STEMS]):  # noqa: C419  few, and no generator
            return text
        if "=" in text:
            text = _ASSIGNED.sub(_mask_assigned, text)
        if ":" in text and ('"' in text or "'" in text):
            text = _QUOTED.sub(_mask_quoted, text)
        if ": " in text:
            text = _FIELD.sub(_mask_field, text)
        if ":" in text:
            text = _HEADER.sub(_mask_header, text)
        return text

    def hide_in(self, value: Any, *, is_secret: bool = False) -> Any:
        """Return a copy of plain data without secrets, also without those under a name that announces one."""
        if isinstance(value, str):
            return MASK if is_secret and value and not has_reference(value) else self._hide_known(value)
        if isinstance(value, dict):
            return {
                self._hide_known(key): self.hide_in(item, is_secret=looks_secret(key)) for key, item in value.items()
            }
        if isinstance(value, list):
            return [self.hide_in(item, is_secret=is_secret) for item in value]
        return value

    def _hide_known(self, text: str) -> str:
        """Hide only known values: a result or a param is no prose, so guesses by name could hide too much."""
        text = self._without_known(text)
        return _USERINFO.sub(_mask_userinfo, text) if "://" in text and "@" in text else text

    def _without_known(self, text: str) -> str:
        if not self._may_hold(text):
            return text
        parts, end = [], 0
        for start, form in self._found(text):
            parts += [text[end:start], MASK]
            end = start + len(form)
        return "".join([*parts, text[end:]]) if parts else text

    def _found(self, text: str) -> Iterator[tuple[int, str]]:
        """Yield the known forms in the text, from left to right, the longest where several begin.

        One table lookup for each position, however many forms are known; adding one rebuilds nothing.
        """
        by_head = self._by_head
        if not self._may_hold(text):
            return
        size, end = HIDE_CHARS_MIN, 0
        for start in [place for place in range(len(text) - size + 1) if text[place : place + size] in by_head]:
            if start < end:
                continue
            for length in sorted(list(by_head.get(text[start : start + size], ())), reverse=True):  # noqa: C414  one step
                form = text[start : start + length]
                if form in self._known:
                    end = start + length
                    yield start, form
                    break

    def _may_hold(self, text: str) -> bool:
        """Whether a known form may be in the text; false is certain.  With few forms, a search for each is faster."""
        heads = self._by_head
        if not heads or len(text) < HIDE_CHARS_MIN:
            return False
        return len(heads) >= len(text) or any([head in text for head in list(heads)])  # noqa: C419  few, and no generator

    def _add_forms(self, forms: Iterable[str]) -> None:
        for form in forms:
            self._known[form] = self._known.get(form, 0) + 1
            lengths = self._by_head.setdefault(form[:HIDE_CHARS_MIN], {})
            lengths[len(form)] = lengths.get(len(form), 0) + 1

    def _forget(self, forms: Iterable[str]) -> None:
        """Drop the forms of a value, each once: another value may have the same form."""
        for form in forms:
            head = form[:HIDE_CHARS_MIN]
            lengths = self._by_head[head]
            for counts, key in ((self._known, form), (lengths, len(form))):
                counts[key] -= 1  # type: ignore[index]
                if not counts[key]:  # type: ignore[index]
                    del counts[key]  # type: ignore[arg-type]
            if not lengths:
                del self._by_head[head]


HIDDEN = Redaction()


def hide(text: str) -> str:
    """Return the text as it may be shown."""
    return HIDDEN.hide(text)


def at_place(where: str, what: str) -> str:
    """Join a place and a message in an order that hiding leaves intact.

    What follows `headers.Authorization: ` looks like a secret; here it is the message.
    """
    if not where:
        return what
    words = f"{where}: {what}"
    return words if hide(words) == f"{hide(where)}: {hide(what)}" else f"{what} ({where})"


def _mask_userinfo(match: re.Match[str]) -> str:
    return match[0] if has_reference(match[2]) else f"{match[1]}{MASK}@"


def _mask_assigned(match: re.Match[str]) -> str:
    return match[0] if not looks_secret(match[1]) or has_reference(match[2]) else f"{match[1]}={MASK}"


def _mask_quoted(match: re.Match[str]) -> str:
    if not match[5] or not looks_secret(match[2]) or has_reference(match[5]):
        return match[0]
    return f"{match[1]}{match[2]}{match[1]}{match[3]}{match[4]}{MASK}{match[4]}"


def _mask_field(match: re.Match[str]) -> str:
    name, value = match["name"], match["value"]
    if not looks_secret(name) or has_reference(value):
        return match[0]
    if value.isdecimal() and name.endswith("s"):
        return match[0]  # a count: prompt_tokens: 128000
    is_long, is_quoted = len(value) >= HIDE_CHARS_MIN, value[0] in "\"'"
    is_field = match["begin"] is not None and match["quote"] is None and match["end"] is not None
    if (is_field and (is_long or is_quoted)) or (is_long and any(map(str.isdecimal, value))):
        return match[0].removesuffix(value) + MASK
    return match[0]


def _mask_header(match: re.Match[str]) -> str:
    return match[0] if has_reference(match[3]) else f"{match[1]}{match[2]}{MASK}"


def _forms(value: str) -> Iterator[str]:
    """Yield the forms of a value in a text: itself, its lines, escaped, percent-encoded, in base64 at any offset."""
    lines = [part for part in re.split(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+", value) if part != value][:LINES_MAX]
    for text in (value, *lines):
        raw = text.encode("utf-8", "surrogateescape")
        forms = {text, text.encode("unicode_escape").decode("ascii"), repr(text)[1:-1], repr(raw)[2:-1]}
        forms |= {json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]}
        forms |= {quote(raw), quote(raw, safe=""), quote_plus(raw)}
        forms |= {coded for offset in range(3) for coded in _base64_inside(raw, offset)}
        yield from (form for form in forms if len(form) >= HIDE_CHARS_MIN)


def _base64_inside(raw: bytes, offset: int) -> Iterator[str]:
    """Return the base64 characters of these bytes alone, if `offset` others precede them in their group of three."""
    coded = b64encode(b"\0" * offset + raw).decode("ascii")
    first = (0, 2, 3)[offset]
    last = (offset + len(raw)) * 8 // 6
    inner = coded[first:last]
    yield inner
    yield inner.replace("+", "-").replace("/", "_")
