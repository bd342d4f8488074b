"""Errors of the client and the server as errors of Pollux, with the cure."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator
from contextlib import contextmanager

from redis import exceptions

from pollux.errors import StoreAway, StoreBusy, StoreError, StoreFull, StoreRefused, system_words
from pollux.store.backend import MovedAway
from pollux.store.redis.server import foreign_format

# The server did nothing: our slot has gone to another node or is on its way, or the cluster is choosing a new primary.
PASSING = (exceptions.MovedError, exceptions.AskError, exceptions.TryAgainError, exceptions.ClusterDownError)

# How servers refuse a user without the right: Redis, Valkey, and Redis 7.0 from within a function.
FORBIDDEN = ("NOPERM", "ACL failure", "The user executing the script can't")


# Which function it was, and where in the library: `WRONGTYPE ... value script: pollux_be80f8_settle, on
# @user_function:47.` of Redis, and the same without its name of Valkey.  No file of ours has that line.
_IN_A_FUNCTION = re.compile(r",? ?script: (?:\w+, )?on @?user_function:\d+\.?$")


class DeleteUnfinished(StoreBusy):
    """A job cannot be added yet: runs of the one that was deleted in its place still wait, and end first."""


@contextmanager
def in_our_words(name: str) -> Iterator[None]:
    try:
        yield
    except (exceptions.RedisError, OSError) as error:
        raise translated(error, name) from error


def translated(error: Exception, name: str) -> StoreError:
    text = _IN_A_FUNCTION.sub("", str(error)).strip()
    if (ours := _our_refusal(text, name)) is not None:
        return ours
    match error:
        case exceptions.AuthenticationError() | exceptions.AuthorizationError():
            return StoreRefused(f"the server {name} does not let us in ({text}); check user and password in the URL")
        case exceptions.MovedError():
            return StoreRefused(f"the server {name} is part of a cluster; use redis+cluster://host:port,... in the URL")
        case exceptions.BusyLoadingError():
            return StoreAway(f"the server {name} is still loading its data; it answers when that is done")
        case exceptions.InvalidResponse():
            return StoreRefused(f"the server at {name} is no Redis ({text}); correct host and port of the URL")
        case exceptions.ConnectionError() | exceptions.TimeoutError() | OSError():
            return _unreachable(error, text, name)
    if isinstance(error, exceptions.OutOfMemoryError) or "OOM" in text or "MISCONF" in text:
        return StoreFull(f"the server {name} has no room ({text}); raise maxmemory, free its disk, or prune")
    return _refused(text, name, is_forbidden=isinstance(error, exceptions.NoPermissionError))


def _our_refusal(text: str, name: str) -> StoreError | None:
    """What our own functions refuse, by its first word.

    Ids and keys follow, which may contain any of the words by which the server's refusals are known: so those are
    looked for after it.
    """
    match text.partition(" ")[0]:
        case "UNFINISHED":
            return DeleteUnfinished(
                f"on {name} runs of a deleted job still wait in the place of the new one ({text}); try again"
            )
        case "SEALED":
            return MovedAway()
        case "FORMAT":
            return foreign_format(text.split()[1], name)
        case "WRONGTYPE":
            return StoreRefused(
                f"a key under our prefix on {name} is not ours ({text}); delete it (`pollux store check` names it), or "
                "choose another ?prefix= or ?namespace="
            )
    return None


def _unreachable(error: Exception, text: str, name: str) -> StoreError:
    cause = next((each for each in _beneath(error) if isinstance(each, ssl.SSLError)), None)
    if isinstance(cause, ssl.SSLCertVerificationError):
        return StoreRefused(
            f"the certificate of {name} is not trusted ({cause.verify_message}); name its authority by ssl_ca_certs"
        )
    if cause is not None:
        return StoreRefused(
            f"{name} does not speak TLS as we do ({system_words(cause)}); use redis for rediss if it has none"
        )
    hint = ""
    if name.startswith("rediss"):
        hint = " (redis:// if it has no TLS)"
    elif "closed by server" in text:
        hint = " (rediss:// if it wants TLS)"
    why = _why(error, text, name)
    return StoreAway(f"the server {name} cannot be reached ({why}); start it, or correct the store's URL{hint}")


def _why(error: Exception, text: str, name: str) -> str:
    """The system's own words, without the client's; and of which server, where the URL names several."""
    beneath = next((each for each in _beneath(error) if isinstance(each, OSError) and str(each)), None)
    if beneath is None:
        return system_words(error).removesuffix(".")
    found = re.search(r"connecting to (\S+)\.(?: |$)", text)
    place = f"{found[1]}: " if found and (found[1] not in name or "," in name) else ""
    return f"{place}{system_words(beneath)}"


def _beneath(error: BaseException) -> Iterator[BaseException]:
    """The error, and those that it came of."""
    each: BaseException | None = error
    while each is not None:
        yield each
        each = each.__cause__ or each.__context__


def _refused(text: str, name: str, *, is_forbidden: bool) -> StoreError:
    if is_forbidden or any(words in text for words in FORBIDDEN):
        return StoreRefused(
            f"the user of {name} may not do what we need ({text}); let it load and call functions and touch our keys: "
            "ACL SETUSER <user> ~<prefix>:* +@all -@dangerous +info"
        )
    if "DB index" in text or "Invalid Database" in text:
        return StoreRefused(f"the server {name} has no such database ({text}); name one from 0 to 15, or as it is set")
    if "READONLY" in text or "replica" in text:
        return StoreError(
            f"the server {name} only reads: it is a replica ({text}); name the primary in the store's URL"
        )
    if "cluster support disabled" in text:
        return StoreRefused(f"the server {name} is no cluster; use redis://host:port/0 in the store's URL")
    if "No such master" in text:
        return StoreRefused(f"the sentinels know no such service as {name} names; correct it in the store's URL")
    if "SENTINEL" in text.upper() and "unknown command" in text:
        return StoreRefused(f"{name} names no sentinel but a server ({text}); use redis://host:port/0")
    return StoreError(f"the server {name} refused: {text}")
