"""The store in the memory of one process, for tests and work that need not last.

The plainest of the stores, and the one to read: each verb is one short function over `VersionState`, in the
file of its group: the contract in Python.
"""

from pollux.store.memory.store import MemoryStore

__all__ = ["MemoryStore"]
