"""Frames between a node and its child: JSON with a length before it, and nothing else.

    node ──▶ Call, Begin, Cancel, Accepted, Refused
    child ──▶ Ready, Progress, FollowUp, perhaps Free, then Result, Failure or Stopped

No pickle: what a child sends is data, whatever its code did.  A frame that is too long or malformed ends the child.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from pollux.errors import InvalidInput
from pollux.model import Fault, Job, Run

FRAME_BYTES_MAX = 4_000_000  # params, payload and the job's own memory are bounded far below
HEADER_BYTES = 4


class FunctionRef(Struct, frozen=True):
    """Where a function is found: in a module, or in the script that the node itself was started with."""

    module: str  # "" if it is in the script
    script: str
    path: str  # the function inside, like "Checks.home"


class CallFrame(Struct, frozen=True, tag="call"):
    """The first frame: what to find, and with what to run it after `BeginFrame`."""

    place: FunctionRef
    handler: str
    run: Run
    job: Job
    kwargs: dict[str, Any]
    deadline_ms: int
    log_level: int | None  # of the node, if it logs
    log_kind: str  # text or json
    hidden: list[str]  # secrets that it must not show
    traceparent: str = ""
    stays: bool = False  # another call may follow
    package: str = ""  # of the handler, whose frames are the user's


class BeginFrame(Struct, frozen=True, tag="begin"):
    """Begin the handler before `by` on this machine's monotonic clock; later the lease may be over: ask again."""

    by: float


class CancelFrame(Struct, frozen=True, tag="cancel"):
    """Stop, for that reason."""

    reason: str


class FollowUpAccepted(Struct, frozen=True, tag="accepted"):
    """The follow-up is accepted as this run."""

    run_id: str


class FollowUpRefused(Struct, frozen=True, tag="refused"):
    """The follow-up is refused: the kind of error, and its arguments."""

    kind: str
    args: list[str]


class ReadyFrame(Struct, frozen=True, tag="ready"):
    """The function is found: may its handler begin?"""


class ProgressFrame(Struct, frozen=True, tag="progress"):
    words: str


class FollowUpFrame(Struct, frozen=True, tag="follow_up"):
    """`ctx.enqueue` of the child; `job` is an id or a whole job.  The node checks the rest, as for any `enqueue`."""

    job: str | Job
    params: dict[str, Any] | None = None
    key: Any = None
    delay: Any = 0
    priority: Any = None


class FreeFrame(Struct, frozen=True, tag="free"):
    """Sent before the result: the handler left nothing behind, and the child can take another call."""


class ResultFrame(Struct, frozen=True, tag="answer"):
    """The handler's result: plain, or wrapped in one of `Changed`, `Unchanged`, `Observed`."""

    value: Any = None
    wrap: str = ""
    fingerprint: str = ""
    changed: bool | None = None


class FailureFrame(Struct, frozen=True, tag="failure"):
    """The handler's error, with the texts that it would have in the node."""

    fault: Fault
    error: str
    place: str
    retry_after: float | None
    traceback: str = ""


class StoppedFrame(Struct, frozen=True, tag="stopped"):
    """The handler stopped on request."""


ToChild = CallFrame | BeginFrame | CancelFrame | FollowUpAccepted | FollowUpRefused
ToNode = ReadyFrame | ProgressFrame | FollowUpFrame | FreeFrame | ResultFrame | FailureFrame | StoppedFrame


class BadFrame(Exception):
    """Bytes that are not a frame of this protocol."""


def framed(frame: ToChild | ToNode) -> bytes:
    body = msgspec.json.encode(frame)
    return len(body).to_bytes(HEADER_BYTES, "big") + body


def check_follow_up(frame: FollowUpFrame) -> None:
    """Refuse here what the node could not decode: it would take the child for broken."""
    try:
        read_by_node(msgspec.json.encode(frame))
    except (TypeError, ValueError, OverflowError, RecursionError, BadFrame) as error:
        cure = "make jobs with the fields and kinds of `Job`, and ask for runs with plain values"
        raise InvalidInput(f"this follow-up cannot be asked for: {error}", cure=cure) from error


def length_of(header: bytes) -> int:
    length = int.from_bytes(header, "big")
    if length > FRAME_BYTES_MAX:
        raise BadFrame(f"a frame of {length} bytes, where {FRAME_BYTES_MAX} are the most")
    return length


def read_by_child(body: bytes) -> ToChild:
    frame: ToChild = _for_child.decode(body)
    return frame


def read_by_node(body: bytes) -> ToNode:
    try:
        frame: ToNode = _for_node.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadFrame(f"not a frame of this protocol: {error}") from error
    return frame


_for_child: msgspec.json.Decoder[Any] = msgspec.json.Decoder(ToChild)
_for_node: msgspec.json.Decoder[Any] = msgspec.json.Decoder(ToNode)
