"""Errors of SQLite and of the disk as errors of the store, and what follows from them for the connection."""

from __future__ import annotations

import apsw

from pollux.errors import InvalidInput, PolluxError, StoreBusy, StoreError, StoreFull, StoreRefused, StoreTimeout


def as_store_error(error: Exception) -> Exception:
    """SQLite's errors as errors of the store; any other error stays as it is."""
    if isinstance(error, PolluxError):
        return error
    translated: PolluxError
    if isinstance(error, UnicodeEncodeError):
        translated = InvalidInput(
            "text with characters that cannot be written down", cure="use whole Unicode characters"
        )
    elif getattr(error, "extendedresult", None) == apsw.SQLITE_CONSTRAINT_DATATYPE:
        translated = InvalidInput(
            f"a value of another kind than its column's ({error})", cure="use the kinds of the model"
        )
    else:
        found = [(kind, text) for kinds, kind, text in _MESSAGES if isinstance(error, kinds)]
        if not found:
            return error
        kind, text = found[0]
        translated = kind(text.format(error=error))
    translated.__cause__ = error
    return translated


_MESSAGES: tuple[tuple[tuple[type[Exception], ...], type[StoreError], str], ...] = (
    (
        (apsw.BusyError, apsw.LockedError),
        StoreBusy,
        "busy: another program holds the database; nothing was changed; try again",
    ),
    ((apsw.FullError,), StoreFull, "the disk is full; nothing was changed; make room"),
    (
        (apsw.NotADBError, apsw.CorruptError),
        StoreRefused,
        "the database is damaged ({error}); see `pollux store check`, then stop all processes and restore a backup",
    ),
    (
        (apsw.InterruptError,),
        StoreTimeout,
        "reading took longer than its deadline and was cut off; ask for less at once",
    ),
    (
        (apsw.ReadOnlyError,),
        StoreError,
        "the database cannot be written any more ({error}); nothing was changed; is its file system read-only now?",
    ),
    (
        (apsw.IOError, apsw.CantOpenError, OSError),
        StoreError,
        "the disk failed ({error}): the call may have taken effect; look at the disk; repeat it with the same ids",
    ),
    ((apsw.Error,), StoreError, "the database refused ({error}); nothing was changed"),
)


def affects_all_calls(error: Exception) -> bool:
    """A fault of the disk or of another program: running the calls one by one would only meet it again."""
    return isinstance(error, apsw.IOError | apsw.CantOpenError | apsw.ReadOnlyError | apsw.BusyError | OSError)


def breaks_connection(error: Exception) -> bool:
    """After this error nothing that the connection has cached is valid.

    A sync that failed is never repeated: the kernel has dropped what it could not write, and would report success.
    """
    return isinstance(error, apsw.IOError | apsw.CantOpenError | apsw.ReadOnlyError | apsw.CorruptError)
