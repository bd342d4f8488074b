"""What does Redis itself cost from Python?  A bare stream loop, and a bare script that makes the writes of an enqueue.

The loop reads up to 100 entries, decodes each, calls the no-op, acknowledges and deletes them together; it keeps no
lease, no history and no feed.  The script writes what `enqueue` writes for a ready run and asks nothing first.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import Any

import msgspec

from benchmarks.child import Pace, parent_is_done, run_async, say_ready
from benchmarks.ours import BATCH, PAYLOAD

STREAM, GROUP = "bare", "workers"
COUNT = 100

# The writes of `enqueue` for ready runs without a key, with its keys and sizes, what goes to one key in one command;
# nothing is asked or checked, and all runs stand alike.
BARE = """
local P, rows, now = KEYS[1], cmsgpack.unpack(ARGV[1]), tonumber(ARGV[2])
local call = redis.call
local seq = tonumber(call("HGET", P .. "meta", "seq") or 0)
local state = cmsgpack.pack({ job = "noop", due = now, vis = now, st = "ready", cause = "enqueued", n = seq, q = seq })
local due = string.format("%015.0f", now + 1e14)
local live, line = {}, {}
for n, row in ipairs(rows) do
  local id = row[1]
  call("HSET", P .. "run:" .. id, "s", state, "b", row[2])
  call("XADD", P .. "jobs:normal", "*", "at", now)
  seq = seq + 2
  live[2 * n - 1], live[2 * n] = 0, due .. id
  line[2 * n - 1], line[2 * n] = now, string.format("%014.0f", seq) .. id
end
call("ZADD", P .. "live", unpack(live))
call("ZADD", P .. "live:noop", unpack(live))
call("ZADD", P .. "queue:2", unpack(line))
call("HSET", P .. "meta", "seq", seq, "seen", now)
call("XADD", P .. "bell:runs", "MAXLEN", "~", 1000, "*", "kind", "runs")
call("HINCRBY", P .. "home", "count", 1)
return #rows
"""


def client(url: str) -> Any:
    from redis.asyncio import Redis

    return Redis.from_url(url, protocol=2)


async def noop(i: int) -> None: ...


def fill(url: str, n: int) -> None:
    async def fill_all() -> None:
        redis = client(url)
        await redis.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
        for start in range(0, n, BATCH):
            pipe = redis.pipeline(transaction=False)
            for i in range(start, min(start + BATCH, n)):
                pipe.xadd(STREAM, {"data": msgspec.json.encode({"i": i})})
            await pipe.execute()
        await redis.aclose()

    run_async(fill_all())


def work(url: str, name: str) -> list[list[float]]:
    async def work_on() -> list[list[float]]:
        pace = Pace()
        redis = client(url)
        say_ready()
        done = asyncio.create_task(parent_is_done())
        while not done.done():
            for i in await read(redis, name):
                await noop(i)
                pace.step()
        await redis.aclose()
        return pace.marks

    return run_async(work_on())


async def read(redis: Any, name: str) -> list[int]:
    """Take, decode, acknowledge and delete up to so many."""
    found = await redis.xreadgroup(GROUP, name, {STREAM: ">"}, count=COUNT, block=500)
    if not found:
        return []
    entries = found[0][1]
    ids = [entry_id for entry_id, _ in entries]
    pipe = redis.pipeline(transaction=False)
    pipe.xack(STREAM, GROUP, *ids)
    pipe.xdel(STREAM, *ids)
    await pipe.execute()
    return [msgspec.json.decode(fields[b"data"])["i"] for _, fields in entries]


def serve_marks(url: str) -> list[list[int]]:
    async def serve() -> list[list[int]]:
        redis = client(url)
        await redis.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
        started: list[list[int]] = []
        say_ready()
        done = asyncio.create_task(parent_is_done())
        while not done.done():
            found = await redis.xreadgroup(GROUP, "one", {STREAM: ">"}, count=COUNT, block=500)
            for entry_id, fields in found[0][1] if found else ():
                started.append([msgspec.json.decode(fields[b"data"])["i"], time.monotonic_ns()])
                pipe = redis.pipeline(transaction=False)
                pipe.xack(STREAM, GROUP, entry_id)
                pipe.xdel(STREAM, entry_id)
                await pipe.execute()
        await redis.aclose()
        return started

    return run_async(serve())


def ask_marks(url: str, n: int, gap_s: float) -> list[list[int]]:
    async def ask() -> list[list[int]]:
        redis = client(url)
        await redis.ping()
        asked = []
        for i in range(n):
            asked.append([i, time.monotonic_ns()])
            await redis.xadd(STREAM, {"data": msgspec.json.encode({"i": i})})
            await asyncio.sleep(gap_s)
        await redis.aclose()
        return asked

    return run_async(ask())


def enqueue(url: str, n: int) -> dict[str, float]:
    """The bare script, in batches as large as ours."""

    async def enqueue_all() -> dict[str, float]:
        redis = client(url)
        sha = await redis.script_load(BARE)
        due_ms = time.time_ns() // 1_000_000
        payload = msgspec.json.encode(PAYLOAD).decode()
        ids = [f"{due_ms:012x}{secrets.token_hex(8)}" for _ in range(n)]
        begun = time.monotonic()
        for start in range(0, n, BATCH):
            rows = msgspec.msgpack.encode([(run_id, payload) for run_id in ids[start : start + BATCH]])
            await redis.evalsha(sha, 1, "bare:", rows, due_ms)
        took = time.monotonic() - begun
        await redis.aclose()
        return {"rate": n / took}

    return run_async(enqueue_all())
