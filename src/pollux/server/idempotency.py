"""Was this asked before?  A request with the same idempotency key is answered the same way, and done once.

    note `once:<digest>`   {"digest": of the body, "until_ms": while somebody works on it}
                           {"digest": ..., "status": 201, "parts": 2, ...} once it is answered
    note `once:<digest>#1` a part of the answer

The note is taken by compare-and-set, so of two racing requests, on whatever nodes, one works and the other waits for
the answer.  If the worker dies, the next one takes over after a while; all ids that are made come from the key, so what
was done already is not done again.  Answers are kept for a day.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from hashlib import blake2b
from typing import Any

from starlette.responses import Response

from pollux.app import Pollux
from pollux.model import Note
from pollux.server.problems import Problem
from pollux.units import DAY_MS, SECOND_MS

KEY_HEADER = "Idempotency-Key"
REPLAYED = "Idempotent-Replayed"
KEY_CHARS_MAX = 128
KEEP_MS = DAY_MS
WORK_MS = 60 * SECOND_MS  # a worker that says nothing for so long is dead: every store call of its has ended
WAIT_MS = 10 * SECOND_MS  # how long the second of two waits for the first
LOOK_MS = 100
PART_CHARS = 15_000  # at most 60 kB in UTF-8; a note holds 64
PREFIX = "once:"
_HEADERS = ("location", "etag")

Call = Callable[[str], Awaitable[Response]]


async def answered_once(app: Pollux, scope: str, key: str, body: bytes, call: Call) -> Response:
    """The answer of `call`, or the one it gave before; `scope` is who asks for what."""
    _check(key)
    name = PREFIX + _digest(f"{scope} {key}".encode())
    digest = _digest(body)
    waited_ms = 0
    while True:
        notes = await app.kept(name)
        note = next((each for each in notes if each.key == name), None)
        if note is not None and note.value["digest"] != digest:
            cure = "use a new key for a new request, the same body for the same key"
            raise Problem(422, "this key was used for another request", cure=cure)
        if note is not None and "status" in note.value:
            return _replayed(note, notes)
        now_ms = await app.store_now()
        if note is None or note.value["until_ms"] <= now_ms:
            mark = {"digest": digest, "until_ms": now_ms + WORK_MS}
            if await app.keep({name: mark}, revision=0 if note is None else note.revision, keep_ms=KEEP_MS):
                return await _worked(app, name, digest, call)
        elif waited_ms >= WAIT_MS:
            cure = "ask again with the same key in some seconds"
            raise Problem(409, "the first request with this key is still at work", cure=cure)
        await asyncio.sleep(LOOK_MS / SECOND_MS)
        waited_ms += LOOK_MS


async def _worked(app: Pollux, name: str, digest: str, call: Call) -> Response:
    """Do it.  A refusal that may pass (or nobody's answer at all) leaves the key free for the next try."""
    try:
        response = await call(name.removeprefix(PREFIX))
    except BaseException:
        await asyncio.shield(app.forget([name]))
        raise
    text = bytes(response.body).decode()
    parts = [text[start : start + PART_CHARS] for start in range(0, len(text), PART_CHARS)]
    head = {"digest": digest, "status": response.status_code, "kind": response.media_type, "parts": len(parts)}
    head["headers"] = {each: response.headers[each] for each in _HEADERS if each in response.headers}
    await app.keep({**{f"{name}#{n}": part for n, part in enumerate(parts)}, name: head}, keep_ms=KEEP_MS)
    return response


def _replayed(note: Note, notes: Sequence[Note]) -> Response:
    by_key: dict[str, Any] = {each.key: each.value for each in notes}
    text = "".join(by_key.get(f"{note.key}#{n}", "") for n in range(note.value["parts"]))
    headers = {**note.value["headers"], REPLAYED: "true"}
    return Response(text.encode(), note.value["status"], headers, media_type=note.value["kind"])


def _check(key: str) -> None:
    if not (0 < len(key) <= KEY_CHARS_MAX and key.isascii() and key.isprintable()):
        cure = f"send 1 to {KEY_CHARS_MAX} printable ASCII characters, a new one for each request"
        raise Problem(422, f"the header {KEY_HEADER} cannot be used", cure=cure)


def _digest(data: bytes) -> str:
    return blake2b(data, digest_size=16).hexdigest()
