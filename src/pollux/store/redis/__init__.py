"""The store on Redis or Valkey, for many machines, with streams as the queues that are delivered.

What runs in the server is one library of functions, the files of `functions/`: one call and one round trip per batch,
atomic on the server.  `store.py` is the backend, `verbs.py` calls the functions, `codec.py` encodes and decodes.
"""

from pollux.store.redis.store import RedisStore

__all__ = ["RedisStore"]
