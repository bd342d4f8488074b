"""The store on Redis or Valkey, for many machines, with streams as the queues that are delivered.

Each verb is one Lua script, `scripts/<verb>.lua`: one call and one round trip per batch, atomic on the server.
`store.py` is the handle: it checks what comes in, writes it down for the script, and makes values of what comes back.
"""

from pollux.store.redis.store import RedisStore

__all__ = ["RedisStore"]
