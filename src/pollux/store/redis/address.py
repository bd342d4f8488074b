"""Addresses of servers in a URL, and the prefix of the keys.

    redis://[user:password@]host[:port][/database]          one server
    unix:///run/redis.sock[?db=0]                           one server of this machine
    redis+sentinel://[user:password@]host[:port],.../service[/database]
    redis+cluster://[user:password@]host[:port],...

With `rediss` for `redis` the same over TLS.  All keys begin with `<prefix>:` or `<prefix>:<namespace>:`, and no other
key is ever touched.  On a cluster that beginning is a hash tag, `{<prefix>:<namespace>}:`: all keys are in one slot.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from msgspec import Struct

from pollux.errors import InvalidInput, did_you_mean

PREFIX = "pollux"
SERVER, SENTINEL, CLUSTER = "server", "sentinel", "cluster"
PORTS = {SERVER: 6379, SENTINEL: 26379, CLUSTER: 6379}
WAIT_MAX = 10
CURE = "use redis://host:6379/0, rediss://host:6379/0 or unix:///run/redis.sock"
CURES = {
    SERVER: CURE,
    SENTINEL: "use redis+sentinel://host1:26379,host2:26379,host3:26379/service",
    CLUSTER: "use redis+cluster://host1:6379,host2:6379,host3:6379",
}
SIGNS = "write %2F for /, %23 for #, %40 for @ and %5B for [ in a password"
OURS = {"prefix", "namespace", "wait", "durability"}
LOGIN = {"username", "password"}
TLS = {"ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname"}
FILES = {"ssl_ca_certs", "ssl_certfile", "ssl_keyfile"}
SENTINEL_LOGIN = {"sentinel_username", "sentinel_password"}
CHOICES = {"ssl_cert_reqs": ("none", "optional", "required"), "ssl_check_hostname": ("true", "false")}
# namespaces of which a key may be one of the store around them: `job:meta` is its job `meta`, `notes:keys` and
# `bell:feed` are its own, `v3:meta` is that of its version 3
TAKEN = re.compile("bell|dead|job|live|notes|history|failed|run|v(?!2$)[1-9][0-9]{0,3}")
_WORD = re.compile(r"[\w.{}-]{1,100}", re.ASCII)
_TAG = re.compile(r"[^{}]*\{[^{}]+\}[^{}]*")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^\[\]:@/]+)(?::([0-9]{1,5}))?")

Place = tuple[str, int]


class RedisAddress(Struct, frozen=True):
    kind: str  # server, sentinel or cluster
    places: tuple[Place, ...]  # host and port of the server, of the sentinels, of some nodes of the cluster
    path: str  # of a socket, else ""
    service: str  # what the sentinels call it, else ""
    login: dict[str, Any]  # what a connection takes: username, password, db
    sentinel_login: dict[str, Any]  # the same for the sentinels themselves
    tls: dict[str, Any] | None  # options of TLS; None without it
    prefix: str  # of all keys, without the last colon
    wait: int  # replicas that confirm every write; 0: none
    is_durable: bool  # a server without a file, or one that comes to the disk at some time, is refused
    name: str  # without a password: for messages


def read_address(url: str) -> RedisAddress:
    parts = _split(url)
    kind, has_tls = _kind_of(parts.scheme)
    options = _options(url, parts, kind, has_tls=has_tls)
    prefix = _prefix(url, kind, options)
    path, service, database = _path_of(url, parts, kind)
    return RedisAddress(
        kind=kind,
        places=() if path else tuple(_places(url, parts, kind)),
        path=path,
        service=service,
        login=_login(url, parts, options) | _database(url, options, database),
        sentinel_login={name.removeprefix("sentinel_"): options[name] for name in SENTINEL_LOGIN & options.keys()},
        tls=_tls(url, options) if has_tls else None,
        prefix=prefix,
        wait=_wait(url, options),
        is_durable=_is_durable(url, options),
        name=_bare(url),
    )


def _split(url: str) -> SplitResult:
    """A password with signs that mean something in a URL would else be taken for a host, and told in a message."""
    try:
        parts = urlsplit(url)
    except ValueError:  # whose words may hold the password
        raise _wrong(url, "cannot be read", SIGNS) from None
    if parts.fragment or (parts.scheme != "unix" and "@" in parts.path):
        raise _wrong(url, "has a sign where none can be", SIGNS)
    return parts


def _kind_of(scheme: str) -> tuple[str, bool]:
    first, _, second = scheme.partition("+")
    return second or SERVER, first == "rediss"


def _options(url: str, parts: SplitResult, kind: str, *, has_tls: bool) -> dict[str, str]:
    known = OURS | LOGIN | (TLS if has_tls else set()) | (SENTINEL_LOGIN if kind == SENTINEL else set())
    known |= {"db"} if kind == SERVER else set()
    options: dict[str, str] = {}
    for option, value in parse_qsl(parts.query, keep_blank_values=True):
        if "@" in option:
            raise _wrong(url, "has a question mark before its host", "write it %3F if it belongs to the password")
        if option in options:
            raise _wrong(url, f"says {option} twice", "say it once")
        if option in TLS - known:
            raise _wrong(url, f"has {option!r}, which means nothing without TLS", "leave it out, or use rediss")
        if option == "db" and kind == CLUSTER:
            raise _wrong(url, "names a database, and a cluster has only one", "leave it out, and use ?namespace=")
        if option not in known:
            words = ", ".join(f"?{name}=" for name in ("prefix", "namespace", "wait", "durability"))
            cure = f"leave it out, or use one of {words}{did_you_mean(option, known)}"
            raise _wrong(url, f"has an option that is not known: {option!r}", cure)
        options[option] = value
    return options


def _prefix(url: str, kind: str, options: dict[str, str]) -> str:
    prefix = _word(url, "prefix", options.get("prefix", PREFIX))
    if "namespace" in options:
        namespace = _word(url, "namespace", options["namespace"])
        is_tagged = kind == CLUSTER and "{" not in prefix  # then the store around it has another tag
        if TAKEN.fullmatch(namespace) and not is_tagged:
            what = f"has a namespace that a store's own keys begin with: {namespace!r}"
            cure = f"choose another name, as {namespace}-2; what is there is moved by the release that put it there"
            raise _wrong(url, what, cure)
        prefix = f"{prefix}:{namespace}"
    if kind != CLUSTER:
        return prefix
    if "{" not in prefix and "}" not in prefix:
        return f"{{{prefix}}}"
    if _TAG.fullmatch(prefix):
        return prefix
    raise _wrong(url, f"begins its keys with {prefix!r}, which is no hash tag", "leave the braces out: they are added")


def _word(url: str, option: str, value: str) -> str:
    if _WORD.fullmatch(value):
        return value
    cure = "use letters, digits, dots, dashes and underscores"
    raise _wrong(url, f"has a {option} that cannot begin a key: {value!r}", cure)


def _path_of(url: str, parts: SplitResult, kind: str) -> tuple[str, str, str]:
    """The socket's path, the service's name, and the database as it was written."""
    if parts.scheme == "unix":
        path = unquote(parts.path)
        if not path or parts.netloc.rpartition("@")[2]:
            raise _wrong(url, "names no socket", CURE)
        return path, "", ""
    words = [unquote(word) for word in parts.path.strip("/").split("/")] if parts.path.strip("/") else []
    if kind == SENTINEL:
        if len(words) not in (1, 2):
            raise _wrong(url, "names no service of the sentinels", CURES[kind])
        return "", words[0], words[1] if len(words) == 2 else ""
    if kind == CLUSTER and words not in ([], ["0"]):
        raise _wrong(url, "names a database, and a cluster has only one", "leave it out, and use ?namespace=")
    if len(words) > 1:
        raise _wrong(url, "names no Redis server and database", CURES[kind])
    return "", "", words[0] if words else ""


def _places(url: str, parts: SplitResult, kind: str) -> Iterator[Place]:
    written = parts.netloc.rpartition("@")[2].split(",")
    if kind == SERVER and len(written) > 1:
        cure = "name one, or use redis+sentinel:// or redis+cluster:// if they belong together"
        raise _wrong(url, "names several servers", cure)
    for each in written:
        found = _HOST.fullmatch(each)
        port = int(found[2] or PORTS[kind]) if found else 0
        if found is None:
            raise _wrong(url, "names no Redis server and database", CURES[kind])
        if not 0 < port < 65_536:
            raise _wrong(url, f"names a port that is none: {port}", f"use one from 1 to 65535; {PORTS[kind]} is usual")
        yield found[1].strip("[]"), port


def _login(url: str, parts: SplitResult, options: dict[str, str]) -> dict[str, Any]:
    user, has_password, password = parts.netloc.rpartition("@")[0].partition(":")
    written = {"username": unquote(user)} if user else {}
    if has_password:
        written["password"] = unquote(password)
    said = {name: options[name] for name in LOGIN & options.keys()}
    if written.keys() & said.keys():
        raise _wrong(url, "names the user or the password twice", "write user:password@ before the host, or options")
    return written | said


def _database(url: str, options: dict[str, str], written: str) -> dict[str, Any]:
    said = options.get("db", written)
    if "db" in options and written not in ("", said):
        raise _wrong(url, f"names two databases, {written} and {said}", "name one")
    if not re.fullmatch("[0-9]{0,5}", said, re.ASCII):
        raise _wrong(url, f"names a database that is no number: {said!r}", CURE)
    return {"db": int(said)} if said else {}


def _tls(url: str, options: dict[str, str]) -> dict[str, Any]:
    given = {name: options[name] for name in TLS & options.keys()}
    for name, value in given.items():
        if name in CHOICES and value not in CHOICES[name]:
            raise _wrong(url, f"has {name}={value}", f"write one of {', '.join(CHOICES[name])}")
        if name in FILES and not Path(value).is_file():
            raise _wrong(url, f"names a file that is not there: {name}={value}", "correct the path")
    if "ssl_check_hostname" in given or given.get("ssl_cert_reqs") == "none":
        is_checked = given.get("ssl_cert_reqs") != "none" and given.get("ssl_check_hostname") != "false"
        return given | {"ssl_check_hostname": is_checked}
    return given


def _wait(url: str, options: dict[str, str]) -> int:
    said = options.get("wait", "0")
    if not re.fullmatch("[0-9]{1,2}", said, re.ASCII) or int(said) > WAIT_MAX:
        raise _wrong(url, f"has wait={said}", f"write how many replicas confirm a write: 0 to {WAIT_MAX}")
    return int(said)


def _is_durable(url: str, options: dict[str, str]) -> bool:
    said = options.get("durability", "usual")
    if said not in ("usual", "required"):
        raise _wrong(url, f"has durability={said}", "write usual or required")
    return said == "required"


def _wrong(url: str, what: str, cure: str) -> InvalidInput:
    return InvalidInput(f"{_bare(url)!r} {what}", where="store", cure=cure)


def _bare(url: str) -> str:
    """The URL without user, password and options."""
    scheme, _, rest = url.partition("://")
    place, _, options = rest.partition("?")
    if "@" in options and "@" not in place and ":" in place:
        return f"{scheme}://..."  # a question mark in a password that should have been written %3F
    return f"{scheme}://{place.rpartition('@')[2]}"
