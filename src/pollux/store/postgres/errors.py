"""Server errors as errors of Pollux, with the cure."""

from __future__ import annotations

import os
import ssl

from asyncpg import exceptions as pg

from pollux.errors import (
    InvalidInput,
    PolluxError,
    StoreAway,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreRefused,
    system_words,
)
from pollux.store.postgres.address import PostgresAddress

MAY_HAVE = "the call may have taken effect; repeat it with the same ids"
LET_IN = "the owner of the database can let it in: GRANT CONNECT ON DATABASE"
LET_IT = "the owner of the schema can let it: GRANT USAGE ON SCHEMA, then ALL ON ALL TABLES IN SCHEMA and ALL SEQUENCES"
NO_ANSWER = (
    "no answer as PostgreSQL gives it; if something else listens there, correct host and port of the URL; if the "
    "server hangs, restart it; if the way to it is cut, repair the network or open the firewall"
)
NO_TLS = "rejected SSL upgrade"  # in the driver's words, of a server that answers, but not with TLS
AGAIN = (pg.DeadlockDetectedError, pg.SerializationError)


class PlainWriteRefused(pg.PostgresError):  # type: ignore[misc]  # the driver has no types
    """A plain write found a condition that does not hold (see the functions of the schema) and was undone."""

    sqlstate = "PX001"


NOT_PLAINLY = (PlainWriteRefused, pg.UniqueViolationError, *AGAIN)  # the long way follows
GONE = (
    pg.PostgresConnectionError,
    pg.AdminShutdownError,
    pg.CrashShutdownError,
    pg.CannotConnectNowError,
    pg.InterfaceError,
    pg.InternalClientError,  # the server's last message came without a request
    pg.IdleInTransactionSessionTimeoutError,
    OSError,
    EOFError,
)

DOOR = (pg.PostgresConnectionError, pg.InsufficientPrivilegeError, pg.ClientConfigurationError, OSError)
THEIRS = (pg.PostgresError, pg.InterfaceError, pg.InternalClientError, OSError, EOFError, UnicodeEncodeError)

_WORDS: tuple[tuple[tuple[type[BaseException], ...], type[StoreError], str], ...] = (
    (
        (pg.InvalidPasswordError, pg.InvalidAuthorizationSpecificationError),
        StoreRefused,
        "{where} refuses this user or password ({error}); correct the URL",
    ),
    (
        (pg.InvalidCatalogNameError,),
        StoreRefused,
        "{where} has no such database ({error}); create it (`createdb`), or correct the URL",
    ),
    ((pg.InsufficientPrivilegeError,), StoreRefused, "{where}: this user may not do that ({error}); " + LET_IT),
    (
        (pg.ReadOnlySQLTransactionError,),
        StoreError,
        "{where} is read-only ({error}); nothing was changed; name the primary server",
    ),
    ((pg.DiskFullError,), StoreFull, "{where} has no room ({error}); nothing was changed; make room on its disk"),
    (
        (pg.LockNotAvailableError,),
        StoreBusy,
        "{where}: another transaction held a lock for too long; nothing was changed; end it, or try again",
    ),
    (
        AGAIN,
        StoreBusy,
        "{where}: this call conflicted with others again and again ({error}); nothing was changed; try again",
    ),
    (
        (pg.TooManyConnectionsError,),
        StoreBusy,
        "{where} has no connection left ({error}); raise max_connections, or lower `?pool=` of the processes",
    ),
    ((pg.CannotConnectNowError,), StoreBusy, "{where} is not ready yet ({error}); nothing was changed; try again"),
    (
        (pg.UndefinedTableError, pg.InvalidSchemaNameError, pg.UndefinedFunctionError),
        StoreRefused,
        "{where}: the tables are missing ({error}); open the store anew, or restore a backup",
    ),
    (GONE, StoreError, f"the connection to {{where}} was lost ({{error}}): {MAY_HAVE}"),
    ((pg.PostgresError,), StoreError, "{where} refused the statement ({error}); nothing was changed"),
)


def in_our_words(error: BaseException, where: str) -> BaseException:
    """Ours for what the server or the way to it is to blame for; anything else stays what it is."""
    if isinstance(error, PolluxError):
        return error
    ours: PolluxError
    if isinstance(error, pg.DataError | UnicodeEncodeError):
        ours = InvalidInput(
            f"text or numbers that cannot be written down ({system_words(error)})",
            cure="use whole Unicode characters without NUL in ids, and numbers of 64 bits",
        )
    else:
        found = [(kind, words) for theirs, kind, words in _WORDS if isinstance(error, theirs)]
        if not found:
            return error
        kind, words = found[0]
        ours = kind(words.format(where=where, error=system_words(error)))
    ours.__cause__ = error
    return ours


def at_the_door(error: BaseException, address: PostgresAddress) -> StoreError:
    """No connection could be made (one of `DOOR`): nothing was asked of the server yet."""
    where, said = address.where, system_words(error)
    ours: StoreError = StoreAway(f"{where} cannot be reached ({said}); start the server, or correct the URL")
    match error:
        case pg.InsufficientPrivilegeError():  # for other rights a connection is needed first
            ours = StoreRefused(f"{where}: this user may not connect ({said}); {LET_IN}")
        case pg.ClientConfigurationError():
            ours = StoreRefused(f"{where}: the URL asks for what cannot be done ({said}); correct it")
        case OSError() if lost := [name for name in address.tls_files if not os.access(name, os.R_OK)]:
            ours = StoreRefused(f"{where}: the URL names {lost[0]}, which cannot be read ({said}); correct it")
        case ssl.SSLCertVerificationError():
            ours = StoreRefused(
                f"the certificate of {where} is not trusted ({error.verify_message}); name its authority by sslrootcert"
            )
        case ConnectionError() if address.wants_tls and NO_TLS in said:
            ours = StoreRefused(
                f"{where} speaks no TLS, and sslmode={address.sslmode} wants it; switch it on there (ssl = on), or "
                "take sslmode out of the URL"
            )
        case TimeoutError():
            ours = StoreAway(f"{where} cannot be reached: {NO_ANSWER}")
    ours.__cause__ = error
    return ours
