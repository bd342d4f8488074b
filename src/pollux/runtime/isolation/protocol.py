"""What do a node and its child say to each other?  Frames of JSON with a length before them, and nothing else.

    node ──▶ Call, Begin, Cancel, Accepted, Refused
    child ──▶ Ready, Progress, FollowUp, perhaps Free, then Answer, Failure or Stopped

No pickle: what a child sends is data, whatever its code did.  A frame that is too long or is none ends the child.
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
    """The first word: what to find, and with what to run it once the node says `BeginFrame`."""

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
    """The follow-up that was asked for will be this run."""

    run_id: str


class FollowUpRefused(Struct, frozen=True, tag="refused"):
    """The follow-up cannot be: the kind of error, and what it is made of."""

    kind: str
    args: list[str]


class ReadyFrame(Struct, frozen=True, tag="ready"):
    """The function is found: may its handler begin?"""


class ProgressFrame(Struct, frozen=True, tag="progress"):
    words: str


class FollowUpFrame(Struct, frozen=True, tag="follow_up"):
    """`ctx.enqueue` of the child; `job` is an id or a whole job.  What else there is the node looks at, as always."""

    job: str | Job
    params: dict[str, Any] | None = None
    key: Any = None
    delay: Any = 0
    priority: Any = None


class FreeFrame(Struct, frozen=True, tag="free"):
    """Before the last word: the handler left nothing behind, and the child can take another call."""


class ResultFrame(Struct, frozen=True, tag="answer"):
    """What the handler returned: plain, or wrapped in one of `Changed`, `Unchanged`, `Observed`."""

    value: Any = None
    wrap: str = ""
    fingerprint: str = ""
    changed: bool | None = None


class FailureFrame(Struct, frozen=True, tag="failure"):
    """What the handler raised, in the words that it would have got in the node."""

    fault: Fault
    error: str
    place: str
    retry_after: float | None
    traceback: str = ""


class StoppedFrame(Struct, frozen=True, tag="stopped"):
    """It was asked to stop, and did."""


ToChild = CallFrame | BeginFrame | CancelFrame | FollowUpAccepted | FollowUpRefused
ToNode = ReadyFrame | ProgressFrame | FollowUpFrame | FreeFrame | ResultFrame | FailureFrame | StoppedFrame


class BadFrame(Exception):
    """What came is no frame of ours."""


def framed(word: ToChild | ToNode) -> bytes:
    body = msgspec.json.encode(word)
    return len(body).to_bytes(HEADER_BYTES, "big") + body


def check_word(word: FollowUpFrame) -> None:
    """Refuse here what the node could not read: it would take the child for broken."""
    try:
        read_by_node(msgspec.json.encode(word))
    except (TypeError, ValueError, OverflowError, RecursionError, BadFrame) as error:
        cure = "make jobs with the fields and kinds of `Job`, and ask for runs with plain values"
        raise InvalidInput(f"this follow-up cannot be asked for: {error}", cure=cure) from error


def length_of(header: bytes) -> int:
    length = int.from_bytes(header, "big")
    if length > FRAME_BYTES_MAX:
        raise BadFrame(f"a frame of {length} bytes, where {FRAME_BYTES_MAX} are the most")
    return length


def read_by_child(body: bytes) -> ToChild:
    word: ToChild = _for_child.decode(body)
    return word


def read_by_node(body: bytes) -> ToNode:
    try:
        word: ToNode = _for_node.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadFrame(f"no word of ours: {error}") from error
    return word


_for_child: msgspec.json.Decoder[Any] = msgspec.json.Decoder(ToChild)
_for_node: msgspec.json.Decoder[Any] = msgspec.json.Decoder(ToNode)
