"""Stores by URL; each backend is imported on first use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qsl, quote

from pollux.clock import Clock
from pollux.errors import InvalidInput
from pollux.model import SCHEDULER_VERSION
from pollux.store.handle import StoreHandle

REQUIRED = "required"


def open_store(url: str, *, clock: Clock | None = None, scheduler_version: int = SCHEDULER_VERSION) -> StoreHandle:
    """The store of the URL, not yet opened: `memory://`, `sqlite:///file.db`, `sqlite:////absolute/file.db`,
    `redis://host:6379/0` (also `rediss://`, `unix://`, `redis+sentinel://` and `redis+cluster://`), `postgresql://user:password@host:5432/database`.

    A SQLite file on a network file system is refused unless the URL ends in `?allow_network=true`: file locks do not
    work between machines there, and two machines that write one database corrupt it.
    """
    scheme, _, rest = check_url(url).partition("://")
    store = _STORES[scheme](url, rest, clock)
    return store if scheduler_version == store.scheduler_version else store.of_version(scheduler_version)


def check_url(url: str) -> str:
    """The same URL, if its scheme is known; nothing is imported."""
    scheme, found, rest = url.partition("://")
    if not found or scheme not in _STORES:
        raise InvalidInput(
            f"{_shown(url)!r} names no store that is known here",
            where="store",
            cure=f"use one of {', '.join(EXAMPLES)}",
        )
    if scheme == "sqlite":
        _sqlite_file(url, rest)
    return url


def _shown(url: str) -> str:
    """The URL without a possible password."""
    place, _, _ = url.partition("?")
    return f"{url.partition(':')[0]}://..." if "@" in url else place


def _memory(url: str, rest: str, clock: Clock | None) -> StoreHandle:
    from pollux.store.memory import MemoryStore

    if rest:
        raise InvalidInput(f"{url!r}: a memory store has no place", where="store", cure="use memory://")
    return MemoryStore(clock)


def _sqlite(url: str, rest: str, clock: Clock | None) -> StoreHandle:
    from pollux.store.sqlite.store import SqliteStore

    file, allow_network = _sqlite_file(url, rest)
    return SqliteStore(file, clock=clock, allow_network=allow_network)


def _redis(url: str, rest: str, clock: Clock | None) -> StoreHandle:  # noqa: ARG001  as all of them are called
    try:
        from pollux.store.redis import RedisStore
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {"redis", "hiredis"}:
            raise
        raise InvalidInput(
            "a Redis store needs the client, which is not installed",
            where="store",
            cure='pip install "pollux-scheduler[redis]"',
        ) from error
    return RedisStore(url, clock=clock)


def _postgres(url: str, rest: str, clock: Clock | None) -> StoreHandle:  # noqa: ARG001  as all of them are called
    try:
        from pollux.store.postgres.store import PostgresStore
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "asyncpg":
            raise
        raise InvalidInput(
            "a PostgreSQL store needs the client, which is not installed",
            where="store",
            cure='pip install "pollux-scheduler[postgres]"',
        ) from error
    return PostgresStore(url, clock=clock)


async def lacking(url: str) -> str:
    """Why the store does not exist yet; empty if it exists.  Nothing is created.

    If the server cannot be reached, raises the error of opening the store.
    """
    make = _STORES.get(url.partition("://")[0])
    if make is _sqlite:
        return _lacking_file(sqlite_file(url))
    open_store(url)  # raises if the URL is invalid or the client is not installed
    if make is _redis:
        from pollux.store.redis.inspect import lacking as lacking_redis

        return await lacking_redis(url)
    if make is _postgres:
        from pollux.store.postgres.inspect import lacking as lacking_postgres

        return await lacking_postgres(url)
    return ""


def _lacking_file(path: str | None) -> str:
    return "" if path is None or Path(path).exists() else f"no file {path}"


def with_prefix(url: str, prefix: str) -> str:
    """The URL of a Redis store with the key prefix added; other URLs unchanged."""
    if _STORES.get(url.partition("://")[0]) is not _redis:
        return url
    what = f"the keys shall begin with {prefix!r}"
    return _with_option(url, "prefix", prefix, what, where="redis.prefix")


def with_durability(url: str, durability: str) -> str:
    """The URL with `durability=required` added, if `durability` is that: a crash of the server loses nothing."""
    make = _STORES.get(url.partition("://")[0])
    if durability != REQUIRED or make is _sqlite:  # SQLite always syncs to disk
        return url
    if make is _memory:
        cure = "name another store, or leave durability out"
        raise InvalidInput("durability is required, and memory:// keeps nothing", where="durability", cure=cure)
    if "://" not in url:  # a store made in code has no URL for the option
        what = f"durability is required, and the app's own {url} store cannot be told so"
        cure = "put ?durability=required into the store's URL, and leave durability out"
        raise InvalidInput(what, where="durability", cure=cure)
    return _with_option(url, "durability", REQUIRED, "durability is required", where="durability")


def place_of(url: str) -> str:
    """The URL without the durability option, which does not identify the store."""
    place, is_more, options = url.partition("?")
    kept = [part for part in options.split("&") if part.partition("=")[0] != "durability"]
    return f"{place}{is_more if kept else ''}{'&'.join(kept)}"


def _with_option(url: str, name: str, value: str, what: str, *, where: str) -> str:
    scheme, is_url, rest = url.partition("://")
    place, _, options = rest.partition("?")
    present = dict(parse_qsl(options, keep_blank_values=True)).get(name)
    if present == value or not is_url:
        return url
    if present is not None:
        raise InvalidInput(
            f"{what}, but the store's URL says {name}={present}", where=where, cure="leave one of them out"
        )
    return f"{scheme}://{place}?{options}{'&' if options else ''}{name}={quote(value)}"


def sqlite_file(url: str) -> str | None:
    """The file behind the URL, if it names one."""
    scheme, found, rest = url.partition("://")
    return _sqlite_file(url, rest)[0] if found and scheme == "sqlite" else None


def _sqlite_file(url: str, rest: str) -> tuple[str, bool]:
    place, _, options = rest.partition("?")
    if options not in ("", "allow_network=true"):
        raise InvalidInput(
            f"{url!r} has an option that is not known: {options!r}",
            where="store",
            cure="leave it out, or use ?allow_network=true",
        )
    host, slash, path = place.partition("/")
    if host or not slash or not path:
        raise InvalidInput(
            f"{url!r} names no file",
            where="store",
            cure="use sqlite:///pollux.db for a file here, sqlite:////var/lib/pollux.db for an absolute path",
        )
    return path, bool(options)


_STORES: dict[str, Callable[[str, str, Clock | None], StoreHandle]] = {
    "memory": _memory,
    "sqlite": _sqlite,
    "redis": _redis,
    "rediss": _redis,
    "unix": _redis,
    "redis+sentinel": _redis,
    "rediss+sentinel": _redis,
    "redis+cluster": _redis,
    "rediss+cluster": _redis,
    "postgresql": _postgres,
    "postgres": _postgres,
}
EXAMPLES = ("memory://", "sqlite:///pollux.db", "redis://localhost:6379/0", "postgresql://localhost/pollux")
