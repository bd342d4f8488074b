"""What did the server mean?  Its errors in our words, with the cure."""

from __future__ import annotations

from asyncpg import exceptions as pg

from pollux.errors import InvalidInput, PolluxError, StoreBusy, StoreError, StoreFull, StoreRefused, system_words

MAY_HAVE = "the call may have taken effect; repeat it with the same ids"
AGAIN = (pg.DeadlockDetectedError, pg.SerializationError)
GONE = (
    pg.PostgresConnectionError,
    pg.AdminShutdownError,
    pg.CrashShutdownError,
    pg.CannotConnectNowError,
    pg.InterfaceError,
    pg.InternalClientError,  # the server's last words came while nobody asked
    pg.IdleInTransactionSessionTimeoutError,
    OSError,
    EOFError,
)

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
    (
        (pg.InsufficientPrivilegeError,),
        StoreRefused,
        "{where}: this user may not do that ({error}); GRANT CREATE ON DATABASE, or let the owner open it once",
    ),
    (
        (pg.ReadOnlySQLTransactionError,),
        StoreError,
        "{where} is read-only ({error}); nothing was changed; name the primary server",
    ),
    ((pg.DiskFullError,), StoreFull, "{where} has no room ({error}); nothing was changed; make room on its disk"),
    (
        (pg.LockNotAvailableError,),
        StoreBusy,
        "{where}: somebody held a lock for too long; nothing was changed; end their transaction, or try again",
    ),
    (
        AGAIN,
        StoreBusy,
        "{where}: this call stood against others again and again ({error}); nothing was changed; try again",
    ),
    (
        (pg.TooManyConnectionsError,),
        StoreBusy,
        "{where} has no connection left ({error}); raise max_connections, or lower `?pool=` of the processes",
    ),
    (
        (pg.CannotConnectNowError,),
        StoreBusy,
        "{where} is not ready yet ({error}); nothing was changed; try again",
    ),
    (
        (pg.UndefinedTableError, pg.InvalidSchemaNameError, pg.UndefinedFunctionError),
        StoreRefused,
        "{where}: the tables are gone ({error}); open the store anew, or restore a backup",
    ),
    (GONE, StoreError, f"the connection to {{where}} was lost ({{error}}): {MAY_HAVE}"),
    ((pg.PostgresError,), StoreError, "{where} said no ({error}); nothing was changed"),
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


def unreachable(error: BaseException, where: str) -> StoreError:
    ours = StoreError(f"{where} cannot be reached ({system_words(error)}); start the server, or correct the URL")
    ours.__cause__ = error
    return ours
