"""What does the server's refusal mean, and what is the cure?  Every error of the client and the server in our words."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager

from redis import exceptions

from pollux.errors import StoreError, StoreFull, StoreRefused

# The server did nothing: a slot is on its way to another node, or the cluster is choosing a new primary.
PASSING = (exceptions.AskError, exceptions.TryAgainError, exceptions.ClusterDownError)

# How servers say that a user lacks a right: Redis, Valkey, and Redis 7.0 from within a script.
FORBIDDEN = ("NOPERM", "ACL failure", "The user executing the script can't")


@contextmanager
def in_our_words(name: str) -> Iterator[None]:
    try:
        yield
    except (exceptions.RedisError, OSError) as error:
        raise translated(error, name) from error


def translated(error: Exception, name: str) -> StoreError:
    said = str(error)
    match error:
        case exceptions.AuthenticationError() | exceptions.AuthorizationError():
            return StoreRefused(f"the server {name} does not let us in ({said}); check user and password in the URL")
        case exceptions.MovedError():
            return StoreRefused(f"the server {name} is part of a cluster; use redis+cluster://host:port,... in the URL")
        case exceptions.BusyLoadingError():
            return StoreError(f"the server {name} is still loading its data; it answers when that is done")
        case exceptions.ConnectionError() | exceptions.TimeoutError() | OSError():
            return _unreachable(error, said, name)
    if isinstance(error, exceptions.OutOfMemoryError) or "OOM" in said or "MISCONF" in said:
        return StoreFull(f"the server {name} has no room ({said}); raise maxmemory, free its disk, or prune")
    return _refused(said, name, is_forbidden=isinstance(error, exceptions.NoPermissionError))


def _unreachable(error: Exception, said: str, name: str) -> StoreError:
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    if isinstance(cause, ssl.SSLCertVerificationError):
        return StoreRefused(
            f"the certificate of {name} is not trusted ({cause.verify_message}); name its authority by ssl_ca_certs"
        )
    if cause is not None:
        return StoreRefused(f"{name} does not speak TLS as we do ({cause}); use redis for rediss if it has none")
    hint = ""
    if name.startswith("rediss"):
        hint = " (redis:// if it has no TLS)"
    elif "closed by server" in said:
        hint = " (rediss:// if it wants TLS)"
    return StoreError(f"the server {name} cannot be reached ({said}); start it, or correct the store's URL{hint}")


def _refused(said: str, name: str, *, is_forbidden: bool) -> StoreError:
    if is_forbidden or any(words in said for words in FORBIDDEN):
        return StoreRefused(
            f"the user of {name} may not do what we need ({said}); let it run scripts and touch our keys: "
            "ACL SETUSER <user> ~<prefix>:* +@all -@dangerous +info"
        )
    if "DB index" in said or "Invalid Database" in said:
        return StoreRefused(f"the server {name} has no such database ({said}); name one from 0 to 15, or as it is set")
    if "READONLY" in said or "replica" in said:
        return StoreError(
            f"the server {name} only reads: it is a replica ({said}); name the primary in the store's URL"
        )
    if "cluster support disabled" in said:
        return StoreRefused(f"the server {name} is no cluster; use redis://host:port/0 in the store's URL")
    if "No such master" in said:
        return StoreRefused(f"the sentinels know no such service as {name} names; correct it in the store's URL")
    if "SENTINEL" in said.upper() and "unknown command" in said:
        return StoreRefused(f"{name} names no sentinel but a server ({said}); use redis://host:port/0")
    if "WRONGTYPE" in said:
        return StoreRefused(
            f"a key under our prefix on {name} is not ours ({said}); choose another ?prefix= or ?namespace="
        )
    return StoreError(f"the server {name} refused: {said}")
