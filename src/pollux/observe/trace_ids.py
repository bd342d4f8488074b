"""Trace ids, computed from the id of the run, so that nodes agree without a message.

    sha256 of the run's id:   16 bytes trace id │ 8 bytes id of the root span │ 8 bytes: is it sampled?

Nothing is stored with the run, and nothing of OpenTelemetry is imported here.  Two deployments that send to one
collector and have jobs of the same ids name themselves by a `namespace`, which is hashed with the id.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Any

from msgspec import Struct

LINKS_MAX = 100  # of one call that enqueued many
_ALL = 1 << 64


class TracePosition(Struct, frozen=True):
    """Where a run's spans belong."""

    trace_id: str  # 32 hex digits
    root_id: str  # 16
    roll: float  # in [0, 1): below the share that is sampled, it is

    def span_id(self, step: str, fence: int = 0) -> str:
        """The id of a step of the run; the same step told twice is the same span."""
        return sha256(f"{self.trace_id}\x1f{step}\x1f{fence}".encode()).hexdigest()[:16]


def mark_of(run_id: str, namespace: str = "") -> TracePosition:
    digest = sha256((f"{namespace}\x1f{run_id}" if namespace else run_id).encode("utf-8", "surrogateescape")).digest()
    return TracePosition(digest[:16].hex(), digest[16:24].hex(), int.from_bytes(digest[24:]) / _ALL)


def traceparent_of(mark: TracePosition, span_id: str, *, is_sampled: bool) -> str:
    """As W3C writes it."""
    return f"00-{mark.trace_id}-{span_id}-{'01' if is_sampled else '00'}"


def link_runs(run_ids: Sequence[str], namespace: str = "") -> None:
    """Let the caller's own span, if it has one, link to the traces of the runs it just enqueued.

    The link is in the caller's trace, where it costs the run nothing and needs no field in the store.  Without
    OpenTelemetry in the process this is one look into a table.
    """
    api = sys.modules.get("opentelemetry.trace")
    if api is not None:
        with suppress(Exception):  # whatever version of it the process has: the runs are accepted already
            _link(api, run_ids[:LINKS_MAX], namespace)


def _link(api: Any, run_ids: Sequence[str], namespace: str) -> None:
    span = api.get_current_span()
    if not span.is_recording():
        return
    for run_id in run_ids:
        mark = mark_of(run_id, namespace)
        ids = int(mark.trace_id, 16), int(mark.root_id, 16)
        flags = api.TraceFlags(api.TraceFlags.SAMPLED)
        span.add_link(api.SpanContext(*ids, is_remote=True, trace_flags=flags), {"pollux.run.id": run_id})
