"""Idempotency keys: a repeated request gets the first answer and is executed once.

    note `once:<digest>`   {"digest": of the body, "until_ms": while a request is in progress}
                           {"digest": ..., "status": 201, "parts": 2, ...} after it was answered
    note `once:<digest>#1` a part of the answer

The note is written by compare-and-set, so of two concurrent requests, on any nodes, one is executed and the other waits
for its answer.  If its node dies, the next request takes over after `WORK_MS`; all generated ids are derived from the
key, so nothing is done twice.  Answers are stored for a day.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from hashlib import blake2b
from typing import Any

from starlette.responses import Response

from pollux.app import Operations
from pollux.model import Note
from pollux.server.problems import Problem
from pollux.units import DAY_MS, SECOND_MS

KEY_HEADER = "Idempotency-Key"
REPLAYED = "Idempotent-Replayed"
KEY_CHARS_MAX = 128
KEEP_MS = DAY_MS
WORK_MS = 60 * SECOND_MS  # longer than any store call: the node that had the request is dead
WAIT_MS = 10 * SECOND_MS  # how long the second of two waits for the first
LOOK_MS = 100
PART_CHARS = 15_000  # at most 60 kB in UTF-8; a note holds 64
PREFIX = "once:"
_HEADERS = ("location", "etag")

Call = Callable[[str], Awaitable[Response]]


async def answered_once(operations: Operations, scope: str, key: str, body: bytes, call: Call) -> Response:
    """The answer of `call`, or the stored one; `scope` is caller, method and path."""
    _check(key)
    name = PREFIX + _digest(f"{scope} {key}".encode())
    digest = _digest(body)
    waited_ms = 0
    while True:
        notes = await operations.storage.list_notes(name)
        note = next((each for each in notes if each.key == name), None)
        if note is not None and note.value["digest"] != digest:
            cure = "use a new key for a new request, the same body for the same key"
            raise Problem(422, "idempotency key reused", "it was sent with another body before", cure=cure)
        if note is not None and "status" in note.value:
            return _replayed(note, notes)
        now_ms = await operations.storage.store_now()
        if note is None or note.value["until_ms"] <= now_ms:
            mark = {"digest": digest, "until_ms": now_ms + WORK_MS}
            if await operations.storage.put_notes(
                {name: mark}, revision=0 if note is None else note.revision, ttl_ms=KEEP_MS
            ):
                return await _worked(operations, name, digest, call)
        elif waited_ms >= WAIT_MS:
            cure = "repeat the request with the same key in some seconds"
            raise Problem(
                409, "request in progress", "the first request with this idempotency key is not finished", cure=cure
            )
        await asyncio.sleep(LOOK_MS / SECOND_MS)
        waited_ms += LOOK_MS


async def _worked(operations: Operations, name: str, digest: str, call: Call) -> Response:
    """Call and store the answer.  An exception (a refusal that may pass) releases the key for the next attempt."""
    try:
        response = await call(name.removeprefix(PREFIX))
    except BaseException:
        await asyncio.shield(operations.storage.delete_notes([name]))
        raise
    text = bytes(response.body).decode()
    parts = [text[start : start + PART_CHARS] for start in range(0, len(text), PART_CHARS)]
    head = {"digest": digest, "status": response.status_code, "kind": response.media_type, "parts": len(parts)}
    head["headers"] = {each: response.headers[each] for each in _HEADERS if each in response.headers}
    notes = {**{f"{name}#{n}": part for n, part in enumerate(parts)}, name: head}
    await operations.storage.put_notes(notes, ttl_ms=KEEP_MS)
    return response


def _replayed(note: Note, notes: Sequence[Note]) -> Response:
    by_key: dict[str, Any] = {each.key: each.value for each in notes}
    text = "".join(by_key.get(f"{note.key}#{n}", "") for n in range(note.value["parts"]))
    headers = {**note.value["headers"], REPLAYED: "true"}
    return Response(text.encode(), note.value["status"], headers, media_type=note.value["kind"])


def _check(key: str) -> None:
    if not (0 < len(key) <= KEY_CHARS_MAX and key.isascii() and key.isprintable()):
        cure = f"send 1 to {KEY_CHARS_MAX} printable ASCII characters, a new one for each request"
        raise Problem(
            422,
            "invalid idempotency key",
            f"the header {KEY_HEADER} has characters or a length that are not allowed",
            cure=cure,
        )


def _digest(data: bytes) -> str:
    return blake2b(data, digest_size=16).hexdigest()
