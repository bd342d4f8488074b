"""The store in one SQLite file, which several processes may share: the default.

A verb is a function of a transaction, in the file of its group; its statements are in `queries/<verb>.sql`.
`store.py` is the handle: it checks what comes in, sends each verb to the writer or to a reader, and waits.
"""

from pollux.store.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
