"""Params of handler `http`, checked as a whole: every problem at once, by its name.

They are parsed twice: where the job is declared, with `${env:X}` and `${file:X}` still in the text, and before a
run, when they are resolved.  So no message quotes a value that may hold a secret.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import Struct
from yarl import URL

from pollux.errors import InvalidConfig, InvalidInput, did_you_mean
from pollux.handlers.http.addresses import AddressPolicy, is_host_name, literal, refused_host
from pollux.handlers.http.extract import Extraction, take_of
from pollux.secrets import has_reference
from pollux.units import MINUTE_MS, SECOND_MS, duration_ms, format_ms, format_size, size_bytes
from pollux.version import __version__

URL_CHARS_MAX = 4_096
HEADERS_MAX = 50
HEADER_CHARS_MAX = 8_000
REDIRECTS_MAX = 10
SIZE_MAX = 16 * 2**20
CONNECT_MAX_MS = MINUTE_MS
TIMEOUT_MAX_MS = 10 * MINUTE_MS
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
USUAL = "2xx or 304"

_REFERENCE = "${"
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
_RANGE = re.compile(r"([1-5])xx|([1-5][0-9]{2})(?:-([1-5][0-9]{2}))?")
_OURS = frozenset({
    "accept-encoding", "connection", "content-length", "expect", "host", "keep-alive", "proxy-authorization",
    "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
})  # fmt: skip
_URL_CURE = "write it like https://example.com/health"
_IN_PLAIN_TEXT = "the secret is written here in plain text"
_HIDE_CURE = "write ${env:NAME} or ${file:PATH} in its place"
_MOVE_CURE = "declare the job in a config file or in code, and write there ${env:NAME} or ${file:PATH} in its place"
_AUTH_CURE = "write {basic: {user: ann, password: '${env:PASSWORD}'}} or {bearer: '${env:TOKEN}'}"
_DEFAULT_HEADERS = {"User-Agent": f"pollux/{__version__}", "Accept": "*/*", "Accept-Encoding": "gzip, deflate"}


class Expect(Struct, frozen=True):
    """The statuses that are a success."""

    statuses: frozenset[int]
    words: str


class HttpOptions(Struct, frozen=True, kw_only=True):
    """Options of a poll, in internal units."""

    url: URL  # empty while its host is not known
    method: str
    headers: dict[str, str]  # all that is sent, `auth` and content type included
    content: bytes | None
    expect: Expect
    take: Extraction | None
    keeps_body: bool
    is_conditional: bool
    redirects: int
    timeout_ms: int
    connect_ms: int
    size_max: int
    verify: bool
    ca: str


def read_options(params: Mapping[str, Any], *, declared: bool = False, partial: bool = False) -> HttpOptions:
    """Return the options, or raise `InvalidInput`, or `InvalidConfig` with all problems, each with its name in `where`.

    `declared`: as they are in a definition, so that secrets must be references.  `partial`: the URL may still come.
    """
    return _options(_values(params, declared=declared, partial=partial))


def check_options(params: Mapping[str, Any], *, partial: bool = False, in_file: bool = False) -> None:
    """Raise if they cannot be parsed in a definition.  `in_file`: words the message for a reader of the file."""
    _values(params, declared=True, partial=partial, in_file=in_file)


def check_by_api(params: Mapping[str, Any]) -> None:
    """Refuse what a definition from the API may not hold: the name of a file, and a secret in a header."""
    problems = []
    if params.get("ca"):
        cure = "declare the job in a config file or in code"
        problems.append(InvalidInput("a job that came by API names no file", where="ca", cure=cure))
    for name, value in (params.get("headers") or {}).items():
        if name.lower() == "authorization" and value:
            problems.append(InvalidInput(_IN_PLAIN_TEXT, where=f"headers.{name}", cure=_MOVE_CURE))
    if problems:
        raise problems[0] if len(problems) == 1 else InvalidConfig(problems)


def _values(params: Mapping[str, Any], *, declared: bool, partial: bool, in_file: bool = False) -> dict[str, Any]:
    problems = [_unknown(str(name)[:60]) for name in params if name not in _READERS]
    values = dict(_USUAL)
    for name, read in _READERS.items():
        if params.get(name) is not None:
            try:
                values[name] = read(params[name])
                if declared and name == "auth":
                    _check_hidden(params[name], _HIDE_CURE if in_file else _MOVE_CURE)
                elif declared and name == "url":
                    _check_reach(values[name])
            except InvalidInput as error:
                problems.append(error.at(name))
    if params.get("url") is None and not partial:
        problems.append(InvalidInput("there is no URL", where="url", cure=_URL_CURE))
    if values["body"] is not None and values["json"] is not None:
        problems.append(InvalidInput("body and json are both given", where="json", cure="give one of them"))
    if problems:
        raise problems[0] if len(problems) == 1 else InvalidConfig(problems)
    return values


def _options(values: dict[str, Any]) -> HttpOptions:
    body, json = values["body"], values["json"]
    headers = dict(_DEFAULT_HEADERS)
    if body is not None or json is not None:
        headers["Content-Type"] = "text/plain; charset=utf-8" if json is None else "application/json"
    own = {name.lower() for name in values["headers"]}
    headers = {name: value for name, value in headers.items() if name.lower() not in own} | values["headers"]
    if values["auth"]:
        headers["Authorization"] = values["auth"]
    return HttpOptions(
        url=values["url"],
        method=values["method"] or ("GET" if body is None and json is None else "POST"),
        headers=headers,
        content=json if body is None else body.encode("utf-8", "replace"),
        expect=values["expect"],
        take=values["take"],
        keeps_body=values["keep"] == "body",
        is_conditional=values["conditional"],
        redirects=values["redirects"],
        timeout_ms=values["timeout"],
        connect_ms=min(values["connect"], values["timeout"]),
        size_max=values["max_size"],
        verify=values["verify"],
        ca=values["ca"],
    )


def target_of(params: Mapping[str, Any]) -> str:
    """Return host and port of the URL, or an empty string while they are not known."""
    url = params.get("url")
    if not isinstance(url, str) or _has_open_host(url):
        return ""
    return target_name(URL(url))


def target_name(url: URL) -> str:
    host = url.host or ""
    return f"[{host}]:{url.port}" if ":" in host else f"{host}:{url.port}"


# parsers, one for each option


def _unknown(name: str) -> InvalidInput:
    cure = did_you_mean(name, _READERS).strip("; ") or f"known are {', '.join(_READERS)}"
    return InvalidInput(f"unknown key {name!r}", where=name, cure=cure)


def _url(value: Any) -> URL:
    text = _line(value, 1, URL_CHARS_MAX)
    if _has_open_host(text):
        return URL()
    if not text.isprintable() or " " in text or "\\" in text:
        raise InvalidInput("it holds blanks, backslashes or control characters", cure=_URL_CURE)
    try:
        url = URL(text)
    except ValueError as error:
        raise InvalidInput("it cannot be read", cure=_URL_CURE) from error
    check_url(url)
    return url


def _has_open_host(text: str) -> bool:
    """Whether the host, or the whole URL, comes from a secret."""
    return _REFERENCE in text and _REFERENCE in re.split(r"[/?#]", text.partition("://")[2] or text)[0]


def check_url(url: URL) -> None:
    """Refuse a URL that is not http or https, has no host, or has a user."""
    if url.scheme not in {"http", "https"}:
        raise InvalidInput(f"it is of {url.scheme or 'no scheme'}, not of http or https"[:80], cure=_URL_CURE)
    if not url.raw_host:
        raise InvalidInput("it names no host", cure=_URL_CURE)
    if url.raw_user is not None or url.raw_password is not None:
        cure = "remove it and write auth: {basic: {user: ..., password: '${env:...}'}}"
        raise InvalidInput("it holds a user or a password", cure=cure)
    if literal(url.raw_host) is None and not is_host_name(url.raw_host):
        raise InvalidInput("its host is no name and no address", cure=_URL_CURE)
    if not url.port:
        raise InvalidInput("port 0 is none", cure=_URL_CURE)


def _method(value: Any) -> str:
    if isinstance(value, str) and value.upper() in METHODS:
        return value.upper()
    raise InvalidInput(
        f"{str(value)[:20]!r} is unknown{did_you_mean(value, METHODS)}", cure=f"one of {', '.join(METHODS)}"
    )


def _headers(value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping) or len(value) > HEADERS_MAX:
        cure = f'write {{Accept: "application/json"}}, at most {HEADERS_MAX}'
        raise InvalidInput("they are not a mapping of names to text", cure=cure)
    found: dict[str, str] = {}
    for name, given in value.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise InvalidInput(f"{str(name)[:60]!r} is no name of a header", cure="use letters, digits and -")
        if name.lower() in _OURS:
            cure = "remove it" + ("; the URL names it" if name.lower() == "host" else "")
            raise InvalidInput(f"{name} is set by Pollux itself", where=name, cure=cure)
        if isinstance(given, bool) or not isinstance(given, str | int | float):
            raise InvalidInput("its value is no text", where=name, cure="write the text in quotes")
        try:
            found[name] = _line(str(given), 0, HEADER_CHARS_MAX)
        except InvalidInput as error:
            raise error.at(name) from None
    return found


def _auth(value: Any) -> str:
    """Return the value of the header Authorization."""
    if not isinstance(value, Mapping) or len(value) != 1 or next(iter(value)) not in {"basic", "bearer"}:
        raise InvalidInput("it is neither basic nor bearer", cure=_AUTH_CURE)
    [(kind, given)] = value.items()
    if kind == "bearer":
        return f"Bearer {_part(given, 'bearer')}"
    if not isinstance(given, Mapping) or set(given) != {"user", "password"}:
        raise InvalidInput("basic needs a user and a password", where="basic", cure=_AUTH_CURE)
    user = _part(given["user"], "basic.user")
    if ":" in user and not has_reference(user):
        raise InvalidInput("the user holds a colon", where="basic.user", cure=_AUTH_CURE)
    pair = f"{user}:{_part(given['password'], 'basic.password')}"
    return f"Basic {base64.b64encode(pair.encode()).decode()}"


def _part(value: Any, where: str) -> str:
    try:
        return _line(value, 0, HEADER_CHARS_MAX)
    except InvalidInput as error:
        raise error.at(where) from None


def _check_hidden(auth: Any, cure: str) -> None:
    """In a definition require a reference for a password or token; nothing else keeps it out of files and databases."""
    kind, given = next(iter(auth.items()))
    secret, where = (given, "bearer") if kind == "bearer" else (given["password"], "basic.password")
    if secret and not has_reference(secret):
        raise InvalidInput(_IN_PLAIN_TEXT, where=where, cure=cure)


def _check_reach(url: URL) -> None:
    """Refuse an address that is never reached, whatever the source."""
    if words := refused_host(url.raw_host or "", AddressPolicy(inside=True)):
        raise InvalidInput(words, cure="name another host; no setting opens this one")


def _body(value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidInput("it is no text", cure="write the text in quotes, or use json:")
    return value


def _json(value: Any) -> bytes:
    return msgspec.json.encode(value)


def _expect(value: Any) -> Expect:
    given = value if isinstance(value, list | tuple) else [value]
    statuses: set[int] = set()
    for each in given:
        found = None if isinstance(each, bool) else _RANGE.fullmatch(str(each).lower())
        if found is None:
            raise InvalidInput(f"{str(each)[:20]!r} is no status", cure='write 200, "2xx", "200-204" or a list of them')
        hundred, first, last = found.groups()
        low = int(hundred) * 100 if hundred else int(first)
        statuses.update(range(low, low + 100) if hundred else range(low, int(last or first) + 1))
    if not statuses:
        raise InvalidInput("there is none", cure='write 200, "2xx", "200-204" or a list of them')
    return Expect(frozenset(statuses), " or ".join(str(each) for each in given)[:100])


def _take(value: Any) -> Extraction:
    return take_of(value)


def _keep(value: Any) -> str:
    if value != "body":
        raise InvalidInput(f"{str(value)[:20]!r} cannot be kept", cure="write keep: body, or remove it")
    return "body"


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidInput(f"{str(value)[:20]!r} is neither true nor false", cure="write true or false")
    return value


def _redirects(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= REDIRECTS_MAX:
        raise InvalidInput(f"{str(value)[:20]!r} cannot be used", cure=f"give 0 to {REDIRECTS_MAX}")
    return value


def _duration(most_ms: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        ms = duration_ms(value)
        if not 1 <= ms <= most_ms:
            raise InvalidInput(f"{format_ms(ms)} is out of range", cure=f"give 1ms to {format_ms(most_ms)}")
        return ms

    return read


def _size(value: Any) -> int:
    size = size_bytes(value)
    if not 1 <= size <= SIZE_MAX:
        raise InvalidInput(f"{format_size(size)} is out of range", cure=f"give 1 B to {format_size(SIZE_MAX)}")
    return size


def _path(value: Any) -> str:
    return _line(value, 1, 1_000)


def _line(value: Any, at_least: int, at_most: int) -> str:
    """Return text of one line; it may be a secret, so it is never quoted."""
    if not isinstance(value, str) or not at_least <= len(value) <= at_most:
        raise InvalidInput(f"it is no text of {at_least} to {at_most} characters", cure="write the text in quotes")
    if _CONTROL.search(value):
        raise InvalidInput("it holds a line break or another control character", cure="remove it")
    return value


_READERS: dict[str, Callable[[Any], Any]] = {
    "url": _url,
    "method": _method,
    "headers": _headers,
    "body": _body,
    "json": _json,
    "auth": _auth,
    "expect": _expect,
    "take": _take,
    "keep": _keep,
    "conditional": _flag,
    "redirects": _redirects,
    "timeout": _duration(TIMEOUT_MAX_MS),
    "connect": _duration(CONNECT_MAX_MS),
    "max_size": _size,
    "verify": _flag,
    "ca": _path,
}
_USUAL: dict[str, Any] = {
    "url": URL(),
    "method": "",
    "headers": {},
    "body": None,
    "json": None,
    "auth": "",
    "expect": Expect(frozenset({*range(200, 300), 304}), USUAL),
    "take": None,
    "keep": "",
    "conditional": True,
    "redirects": 3,
    "timeout": 30 * SECOND_MS,
    "connect": 5 * SECOND_MS,
    "max_size": 1_000_000,
    "verify": True,
    "ca": "",
}
OPTION_NAMES = tuple(_READERS)
