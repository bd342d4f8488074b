"""The address of a PostgreSQL store: server, schema and options of the URL; the driver gets the rest."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from msgspec import Struct

from pollux.errors import InvalidInput, did_you_mean

POOL = 8
CACHED = 256
_DRIVERS = frozenset(
    {"host", "port", "user", "password", "dbname", "database", "passfile", "service", "servicefile", "sslmode"}
    | {"sslcert", "sslkey", "sslrootcert", "sslcrl", "sslpassword", "ssl_min_protocol_version", "target_session_attrs"}
    | {"ssl_max_protocol_version", "krbsrvname", "gsslib"}
)
_TLS_FILES = ("sslcert", "sslkey", "sslrootcert", "sslcrl")
_OURS = ("schema", "listen", "pool", "statement_cache_size", "durability")
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,39}")


class PostgresAddress(Struct, frozen=True):
    """`where` names the server without its password."""

    dsn: str
    where: str
    schema: str = "pollux"
    listen: bool = True
    pool: int = POOL
    statement_cache_size: int = CACHED
    is_durable: bool = False  # a server that may lose what it has answered is refused
    sslmode: str = ""  # as the URL says it; nothing: the driver takes TLS where there is some
    tls_files: tuple[str, ...] = ()  # that the URL names

    @property
    def wants_tls(self) -> bool:
        return self.sslmode in ("require", "verify-ca", "verify-full")


def read_address(url: str) -> PostgresAddress:
    try:
        parts = urlsplit(url)
        port = parts.port or 5432
    except ValueError:  # whose words may hold the password
        cure = f"{_EXAMPLE}, with %2F for / and %23 for # in a password"
        raise InvalidInput("the URL of the store cannot be read", where="store", cure=cure) from None
    given = parse_qsl(parts.query, keep_blank_values=True)
    ours = {name: value for name, value in given if name in _OURS}
    for name, _ in given:
        if name not in _OURS and name not in _DRIVERS:
            known = (*_OURS, *sorted(_DRIVERS))
            raise InvalidInput(
                f"{name!r} is no option of a PostgreSQL store{did_you_mean(name, known)}", where="store", cure=_EXAMPLE
            )
    rest = urlencode([(name, value) for name, value in given if name not in _OURS])
    database = parts.path.lstrip("/") or parts.username or ""
    return PostgresAddress(
        urlunsplit(("postgresql", parts.netloc, parts.path, rest, "")),
        f"PostgreSQL at {parts.hostname or 'the local socket'}:{port}/{database}",
        _schema(ours.get("schema", "pollux")),
        _listen(ours.get("listen", "true")),
        _number("pool", ours.get("pool", str(POOL)), 1),
        _number("statement_cache_size", ours.get("statement_cache_size", str(CACHED)), 0),
        _is_durable(ours.get("durability", "usual")),
        dict(given).get("sslmode", ""),
        tuple(value for name, value in given if name in _TLS_FILES),
    )


_EXAMPLE = "use postgresql://user:password@host:5432/database?schema=pollux"


def _schema(name: str) -> str:
    if not _SCHEMA.fullmatch(name) or name.startswith("pg_") or name == "information_schema":
        cure = "use small letters, digits and _, at most 40, such as ?schema=pollux"
        raise InvalidInput(f"{name!r} is no name for a schema of ours", where="store", cure=cure)
    return name


def _listen(value: str) -> bool:
    if value not in ("true", "false"):
        raise InvalidInput(f"listen is {value!r}", where="store", cure="write ?listen=true or ?listen=false")
    return value == "true"


def _is_durable(value: str) -> bool:
    if value not in ("usual", "required"):
        raise InvalidInput(f"durability is {value!r}", where="store", cure="write usual or required")
    return value == "required"


def _number(name: str, value: str, at_least: int) -> int:
    if not value.isascii() or not value.isdecimal() or not at_least <= int(value) <= 10_000:
        raise InvalidInput(f"{name} is {value!r}", where="store", cure=f"write a number from {at_least} to 10000")
    return int(value)
