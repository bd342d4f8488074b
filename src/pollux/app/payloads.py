"""Which data may a run be given?  Such as its handler takes and no secret is in; they are checked and written once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from pollux.errors import InvalidInput, placed
from pollux.model import Job
from pollux.registry import Registry
from pollux.secrets import payload_and_json

SLICE = 1_000  # checked at a stretch; then others get their turn
Payload = tuple[dict[str, Any] | None, bytes | None]  # as it is, and as it is stored


async def bodies_for(registry: Registry, job: Job, many: Iterable[Mapping[str, Any] | None]) -> list[bytes | None]:
    """Of many runs, as they are stored."""
    left, bodies = iter(many), list[bytes | None]()
    while some := list(islice(left, SLICE)):
        bodies += [body for _, body in payloads_for(registry, job, some)]
        await asyncio.sleep(0)
    return bodies


def payloads_for(registry: Registry, job: Job, many: Iterable[Mapping[str, Any] | None]) -> list[Payload]:
    try:
        payloads: list[Payload] = [payload_and_json(params) if params else (None, None) for params in many]
        if (handler := registry.get(job.handler)) is not None:
            for payload, _ in payloads:
                handler.check({**job.params, **payload} if payload and job.params else payload or job.params)
    except InvalidInput as error:
        raise placed(error, "params") from error
    return payloads
