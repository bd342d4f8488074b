"""Which store does a URL name?  One line per kind, each imported only when it is asked for."""

from __future__ import annotations

from collections.abc import Callable

from pollux.clock import Clock
from pollux.errors import InvalidInput
from pollux.store.contract import Store


def open_store(url: str, *, clock: Clock | None = None) -> Store:
    """The store that the URL names, not yet opened: `memory://`, `sqlite:///file.db`, `sqlite:////absolute/file.db`."""
    scheme, found, rest = url.partition("://")
    make = _STORES.get(scheme) if found else None
    if make is None:
        raise InvalidInput(
            f"{url!r} names no store that is known here",
            where="store",
            cure=f"use one of {', '.join(_EXAMPLES)}",
        )
    return make(url, rest, clock)


def _memory(url: str, rest: str, clock: Clock | None) -> Store:
    from pollux.store.memory import MemoryStore

    if rest:
        raise InvalidInput(f"{url!r}: a memory store has no place", where="store", cure="use memory://")
    return MemoryStore(clock)


def _sqlite(url: str, rest: str, clock: Clock | None) -> Store:
    from pollux.store.sqlite.store import SqliteStore

    host, slash, path = rest.partition("/")
    if host or not slash or not path:
        raise InvalidInput(
            f"{url!r} names no file",
            where="store",
            cure="use sqlite:///pollux.db for a file here, sqlite:////var/lib/pollux.db for an absolute path",
        )
    return SqliteStore(path, clock=clock)


_STORES: dict[str, Callable[[str, str, Clock | None], Store]] = {"memory": _memory, "sqlite": _sqlite}
_EXAMPLES = ("memory://", "sqlite:///pollux.db")
