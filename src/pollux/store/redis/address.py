"""Which server does a URL name, and which keys on it are ours?

    redis://[user:password@]host[:port][/database][?prefix=pollux][&namespace=team-a]
    rediss://...        the same over TLS
    unix:///run/redis.sock[?db=0]

All keys begin with `<prefix>:` or `<prefix>:<namespace>:`, and no other key is ever touched.
"""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from msgspec import Struct

from pollux.errors import InvalidInput

PREFIX = "pollux"
PASSED_ON = frozenset({"db", "username", "password", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs"})
_WORD = re.compile(r"[\w.{}-]{1,100}", re.ASCII)


class Address(Struct, frozen=True):
    url: str  # as the client takes it
    prefix: str  # of all keys, without the last colon
    name: str  # without a password: for messages


def read_address(url: str) -> Address:
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    prefix = _word(url, "prefix", options.pop("prefix", PREFIX))
    if "namespace" in options:
        prefix = f"{prefix}:{_word(url, 'namespace', options.pop('namespace'))}"
    for option in options.keys() - PASSED_ON:
        raise InvalidInput(
            f"{_bare(url)!r} has an option that is not known: {option!r}",
            where="store",
            cure="leave it out, or use ?prefix= or ?namespace=",
        )
    _check_place(url)
    return Address(urlunsplit(parts._replace(query=urlencode(options))), prefix, _bare(url))


def _check_place(url: str) -> None:
    parts = urlsplit(url)
    cure = "use redis://host:6379/0, rediss://host:6379/0 or unix:///run/redis.sock"
    try:
        has_place = bool(parts.path) if parts.scheme == "unix" else bool(parts.hostname) and parts.port != 0
    except ValueError as error:
        raise InvalidInput(f"{_bare(url)!r}: {error}", where="store", cure=cure) from error
    database = parts.path.strip("/")
    if not has_place or (parts.scheme != "unix" and database and not database.isdecimal()):
        raise InvalidInput(f"{_bare(url)!r} names no Redis server and database", where="store", cure=cure)


def _word(url: str, option: str, value: str) -> str:
    if _WORD.fullmatch(value):
        return value
    raise InvalidInput(
        f"{_bare(url)!r}: {option} {value!r} cannot begin a key",
        where="store",
        cure="use letters, digits, dots, dashes and underscores",
    )


def _bare(url: str) -> str:
    """The URL without user, password and options."""
    scheme, _, rest = url.partition("://")
    place = rest.partition("?")[0]
    return f"{scheme}://{place.rpartition('@')[2]}"
