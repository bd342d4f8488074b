"""Stores by URL: one line per kind, each imported on first use."""

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
    """The store that the URL names, not yet opened: `memory://`, `sqlite:///file.db`, `sqlite:////absolute/file.db`,
    `redis://host:6379/0` (also `rediss://`, `unix://`, `redis+sentinel://` and `redis+cluster://`), `postgresql://user:password@host:5432/database`.

    A SQLite file on a network file system is refused unless the URL ends in `?allow_network=true`: there locks do not
    hold between machines, and a database that two of them use is damaged sooner or later.
    """
    scheme, _, rest = check_url(url).partition("://")
    store = _STORES[scheme](url, rest, clock)
    return store if scheduler_version == store.scheduler_version else store.of_version(scheduler_version)


def check_url(url: str) -> str:
    """The same URL, if it names a kind of store that is known here; nothing is imported to tell."""
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
    """The URL without what may be a password."""
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
    """What is missing for the store to be there, in words; nothing if it is.  Looking makes nothing.

    Raises what opening it would raise if the server cannot be asked.
    """
    make = _STORES.get(url.partition("://")[0])
    if make is _sqlite:
        return _lacking_file(sqlite_file(url))
    open_store(url)  # refuses what names none, and tells of a client that is not installed
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
    """The URL of a Redis store with that prefix for its keys; any other as it is."""
    if _STORES.get(url.partition("://")[0]) is not _redis:
        return url
    what = f"the keys shall begin with {prefix!r}"
    return _with_option(url, "prefix", prefix, what, where="redis.prefix")


def with_durability(url: str, durability: str) -> str:
    """The URL of a store that is to lose nothing when its server crashes, if that is required."""
    make = _STORES.get(url.partition("://")[0])
    if durability != REQUIRED or make is _sqlite:  # which waits for the disk, always
        return url
    if make is _memory:
        cure = "name another store, or leave durability out"
        raise InvalidInput("durability is required, and memory:// keeps nothing", where="durability", cure=cure)
    if "://" not in url:  # a store that was made in code: there is no URL to say it in
        what = f"durability is required, and the app's own {url} store cannot be told so"
        cure = "put ?durability=required into the store's URL, and leave durability out"
        raise InvalidInput(what, where="durability", cure=cure)
    return _with_option(url, "durability", REQUIRED, "durability is required", where="durability")


def place_of(url: str) -> str:
    """The URL without what is only asked of the store: whoever asks for more means the same one."""
    place, is_more, options = url.partition("?")
    kept = [part for part in options.split("&") if part.partition("=")[0] != "durability"]
    return f"{place}{is_more if kept else ''}{'&'.join(kept)}"


def _with_option(url: str, name: str, value: str, what: str, *, where: str) -> str:
    scheme, is_url, rest = url.partition("://")
    place, _, options = rest.partition("?")
    said = dict(parse_qsl(options, keep_blank_values=True)).get(name)
    if said == value or not is_url:
        return url
    if said is not None:
        raise InvalidInput(f"{what}, but the store's URL says {name}={said}", where=where, cure="leave one of them out")
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
