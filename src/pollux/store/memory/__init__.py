"""Store in the memory of one process, for tests and for work that need not survive it.

The simplest store, and the reference for readers: each verb of the contract is one short function over `VersionState`,
in the file of its group.
"""

from pollux.store.memory.store import MemoryStore

__all__ = ["MemoryStore"]
