"""Stacks of running handlers: which handler a thread executes, and on which line of the user's code.

Nothing is recorded while handlers run: whoever asks walks the stacks of the threads as they are.  The frames of
`Attempt._await` and `Handler.invoke` tell which run a stack belongs to.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from types import FrameType

from pollux.model import NodeLoad
from pollux.outcome.fault import is_own_code, place_words
from pollux.registry import Handler
from pollux.runtime.attempt import Attempt
from pollux.runtime.lag import LATE_MS, Hold
from pollux.runtime.pool import Pool

NAMED_MAX = 5  # handlers that are named
_LOOPS = ("asyncio.base_events", "asyncio.runners")  # below these frames nothing is run by the loop
_AWAIT, _INVOKE = Attempt._await.__code__, Handler.invoke.__code__  # noqa: SLF001  the frames of our own code


def holder_of(thread_id: int, running: Collection[Attempt], *, is_frozen: bool) -> str:
    """What the thread of the event loop executes, in words; nothing if it waits for events.

    `is_frozen`: all threads stood still.  Then a handler in another thread may have kept the interpreter.
    """
    frames = sys._current_frames()  # noqa: SLF001  the one way to see another thread
    stack = [] if thread_id not in frames else list(_of_loop(frames[thread_id]))
    attempt = next((_local(frame, "self") for frame in stack if frame.f_code is _AWAIT), None)
    place = _place(stack)
    if isinstance(attempt, Attempt):
        return f"{handler_words(attempt)}{_at(place)}"
    if place or not is_frozen:
        return place
    others = [words for attempt in running if (words := where(attempt))]
    return f"the whole process stood still; at work in threads: {', '.join(others)}" if others else ""


def load_of(worst: Hold, pool: Pool, running: Sequence[Attempt]) -> NodeLoad:
    """What holds a node up: its loop, handlers that do not stop, and who has the seats if all are taken."""
    stuck = [where(attempt) for attempt in running if attempt.is_stuck]
    seated = Counter(attempt.handler.name for attempt in running if pool.busy >= pool.seats)
    return NodeLoad(
        held_ms=worst.ms if worst.ms > LATE_MS else 0,
        held_by=worst.by if worst.ms > LATE_MS else "",
        stuck=len(stuck),
        stuck_at=tuple(dict.fromkeys(stuck))[:NAMED_MAX],
        seated=tuple(f"{name} ({many})" for name, many in seated.most_common(NAMED_MAX)),
    )


def where(attempt: Attempt) -> str:
    """The handler of an attempt and the line at which it is; only the handler if that cannot be seen."""
    if attempt.work is not None:
        stack = _suspended(attempt.work.get_coro())
    else:
        stack = next((found for found in map(_walk, _threads()) if _belongs(found, attempt)), [])
    return f"{handler_words(attempt)}{_at(_place(stack))}"


def handler_words(attempt: Attempt) -> str:
    name, job_id = attempt.handler.name, attempt.run.job_id
    return f"handler {name}" if name == job_id else f"handler {name} (job {job_id})"


def _threads() -> list[FrameType]:
    return list(sys._current_frames().values())  # noqa: SLF001  the one way to see another thread


def _belongs(stack: list[FrameType], attempt: Attempt) -> bool:
    return any(frame.f_code is _INVOKE and _local(frame, "ctx") is attempt.ctx for frame in stack)


def _suspended(awaited: object) -> list[FrameType]:
    """The frames of a coroutine that waits, innermost first."""
    found: list[FrameType] = []
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is not None:
            found.insert(0, frame)
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
    return found


def _walk(frame: FrameType | None) -> list[FrameType]:
    """The frames of a stack, innermost first."""
    found = []
    while frame is not None:
        found.append(frame)
        frame = frame.f_back
    return found


def _of_loop(innermost: FrameType) -> Iterator[FrameType]:
    """The frames of what the loop calls: those of whoever started the loop hold nothing."""
    for frame in _walk(innermost):
        if _module(frame) in _LOOPS:
            return
        yield frame


def _place(stack: list[FrameType]) -> str:
    """The innermost line of the user's own code, else of a library that it uses: "shop.py:31 in fetch"."""
    own = (frame for frame in stack if is_own_code(frame.f_code.co_filename, _package(frame)))
    used = (frame for frame in stack if _is_library(frame))
    frame = next(own, None) or next(used, None)
    return place_words(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name) if frame is not None else ""


def _is_library(frame: FrameType) -> bool:
    """Neither ours nor Python's?"""
    package = _package(frame)
    is_pythons = package in sys.stdlib_module_names or frame.f_code.co_filename.startswith("<frozen")
    return package != "pollux" and not is_pythons


def _package(frame: FrameType) -> str:
    return _module(frame).partition(".")[0]


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _local(frame: FrameType, name: str) -> object:
    return frame.f_locals.get(name)


def _at(place: str) -> str:
    return f", {place}" if place else ""
