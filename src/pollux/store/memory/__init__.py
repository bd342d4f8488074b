"""Where does it wait when nothing needs to last?  In dicts and heaps of this process.

The plainest of the stores, and the one to read: each verb is one short function over `State`, in the file
of its group, and says in Python what the contract says in words.
"""

from pollux.store.memory.store import MemoryStore

__all__ = ["MemoryStore"]
