"""How does a handler run apart from the node?  In a child: a fresh interpreter that finds the function by its name.

    node ── Call ──▶ child            the handler, its context and its params travel as JSON
         ◀── Progress, FollowUp ──
         ── Cancel ──▶                asked to stop; after its patience it is killed, with all that it started
         ◀── Answer, Failure ──       the same values and the same words as in the node
         (dies without a word)        a crash: `Crashed`, which the store counts

A child cannot take the node with it, whatever it does.  It is killed at the deadline, on cancel, when the lease is
lost, on drain, and when the node dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
from collections.abc import Callable, Mapping
from typing import Any

from pollux.errors import InvalidInput, NotFound, PolluxError
from pollux.lines import kind_written
from pollux.model import Fault, Isolate, Job, Run
from pollux.processes import Ended, Limits, Process
from pollux.registry import Changed, Context, Handler, Observed, Unchanged
from pollux.runtime.child_words import (
    HEADER_BYTES,
    Accepted,
    Answer,
    Call,
    Cancel,
    Failure,
    FollowUp,
    Place,
    Progress,
    Refused,
    Stopped,
    ToChild,
    ToNode,
    Unreadable,
    framed,
    length_of,
    read_by_node,
)
from pollux.secrets import HIDDEN, texts_of

CHILD_MEMORY = 1_000_000_000  # bytes
CHILD_MEMORY_MIN = 64_000_000  # an interpreter alone needs half of it
# The search path comes as arguments: nothing of ours may be imported before it stands.
_BEGIN = (
    "import sys; pollux_child = True; sys.path[:] = sys.argv[2:]; del sys.argv[2:]; "
    "from pollux.runtime.child_inside import main; main()"
)


class Crashed(PolluxError):
    """A child died without a word: by a signal, or by leaving."""


class Relayed(PolluxError):
    """What a handler raised in its child, in its own words."""

    def __init__(self, failure: Failure) -> None:
        self.fault: Fault = failure.fault
        self.text, self.place, self.retry_after = failure.error, failure.place, failure.retry_after
        super().__init__(failure.error)


def in_child() -> bool:
    """Is this process a child that somebody's handler runs in?"""
    return bool(getattr(sys.modules.get("__main__"), "pollux_child", False))


def isolates(handler: Handler, job: Job, run: Run) -> bool:
    """Is this run to be tried in a child?  If its job says so, or if a worker vanished with it and a child can."""
    if job.isolate is Isolate.SUSPECT:
        return run.lease_losses > 0 and place_in(handler) is not None
    return job.isolate is Isolate.PROCESS


# where a function is


def place_in(handler: Handler) -> Place | None:
    """Where a child finds the handler's function; None if it cannot (a closure, a lambda, a method of an object)."""
    for module, path in _names(handler):
        found: Any = sys.modules.get(module)
        for name in path.split("."):
            found = getattr(found, name, None)
        if found is not None and found == handler.call:
            return _place(module, path)
    return None


def check_place(handler: Handler, *, is_whole: bool) -> None:
    """Refuse what no child can find.  `is_whole`: all modules are loaded; a decorator is called before that."""
    call = handler.call
    path = getattr(call, "__qualname__", "")
    if is_whole and place_in(handler) is not None:
        return
    if _is_ours(getattr(call, "__module__", None) or ""):
        kind, cure = "part of Pollux", "write isolate: never; commands of `exec` have a process of their own anyway"
    elif "<lambda>" in path or "<locals>" in path:
        kind = "a lambda" if "<lambda>" in path else "made inside another function"
        cure = "define it at the top of a module"
    elif getattr(call, "__module__", None) == "__main__" and _place("__main__", path) is None:
        kind, cure = "of a program that has no file", "put it into a module and import that"
    elif is_whole:
        kind = "not what its module has under that name"
        cure = "define it at the top of a module, and put @app.job or @app.handler above all other decorators"
    else:
        return
    raise InvalidInput(f"handler {handler.name!r} is {kind}: no child process can find it", where="isolate", cure=cure)


def _names(handler: Handler) -> list[tuple[str, str]]:
    """What the function may be called by: `module:function` of a file, else what it says itself."""
    module, path = getattr(handler.call, "__module__", None), getattr(handler.call, "__qualname__", None)
    by_file = handler.name.partition(":")
    return [
        *([(by_file[0], by_file[2])] if by_file[2] and by_file[0] in sys.modules else []),
        *([(module, path)] if isinstance(module, str) and isinstance(path, str) and not _is_ours(module) else []),
    ]


def _is_ours(module: str) -> bool:
    """Handlers that come with Pollux hold connections and processes of the node."""
    return module.partition(".")[0] == "pollux"


def _place(module: str, path: str) -> Place | None:
    if module != "__main__":
        return Place(module, "", path)
    program = sys.modules["__main__"]
    spec, file = getattr(program, "__spec__", None), getattr(program, "__file__", None)
    if spec is not None and spec.name != "__main__":
        return Place(spec.name, "", path)  # python -m monitor
    return Place("", os.path.abspath(file), path) if file and os.path.isfile(file) else None  # noqa: PTH100, PTH113


# one call


async def call_in_child(
    handler: Handler,
    ctx: Context,
    kwargs: Mapping[str, Any],
    *,
    memory: int,
    patience: Callable[[], float],
) -> Any:
    """What the handler returns or raises, had from a child; `Crashed` if the child dies without a word.

    Cancelled, it asks the handler to stop, gives it `patience` seconds, and kills it; cancelled again, at once.
    """
    place = place_in(handler)
    assert place is not None, "whoever calls has looked (`check_place`)"
    child = Child(memory)
    try:
        talk = asyncio.get_running_loop().create_task(child.talk(_call(place, handler, ctx, kwargs), ctx))
        talk.add_done_callback(lambda over: over.cancelled() or over.exception())  # nobody may be left to ask for it
        try:
            value = await asyncio.shield(talk)
        except asyncio.CancelledError:
            if talk.cancelled():
                raise  # it stopped by itself
            child.say(Cancel(ctx.cancel_reason))
            await asyncio.wait({talk}, timeout=patience())
            if not talk.done():
                talk.cancel()
                raise
            value = talk.result()
    except BaseException:
        await child.end()
        raise
    with contextlib.suppress(asyncio.CancelledError):  # asked to stop after it had answered: the answer counts
        await child.end()
    return value


def _call(place: Place, handler: Handler, ctx: Context, kwargs: Mapping[str, Any]) -> Call:
    root = logging.getLogger()
    level = root.level if root.handlers else None
    kind = kind_written() or "text"
    hidden, traceparent = _to_hide(kwargs), ctx.traceparent
    told = ctx.run, ctx.job, dict(kwargs), ctx.deadline_ms, level, kind, hidden, traceparent
    return Call(place, handler.name, *told)


def _to_hide(kwargs: Mapping[str, Any]) -> list[str]:
    """The secrets that a child can know: those it is given, and those of the environment it inherits."""
    texts = ["\0".join(os.environ.values()), *(text for _, text in texts_of(dict(kwargs)))]  # a part may be secret
    return [value for value in HIDDEN.values() if any(value in text for text in texts)]


class Child:
    """A fresh interpreter and the line to it."""

    def __init__(self, memory: int) -> None:
        self._socket, theirs = socket.socketpair()
        try:
            self.process = Process(
                [sys.executable, "-P", "-c", _BEGIN, str(theirs.fileno()), *sys.path],
                env=os.environ,
                limits=Limits(memory=memory),
                keep=(theirs.fileno(),),
            )
        except BaseException:
            self._socket.close()
            raise
        finally:
            theirs.close()
        self._writer: asyncio.StreamWriter | None = None
        self._unsaid: list[ToChild] = []  # before the line stood

    async def talk(self, call: Call, ctx: Context) -> Any:
        """Tell it what to run, hear it out."""
        reader, self._writer = await asyncio.open_unix_connection(sock=self._socket)
        for first in (call, *self._unsaid):
            self.say(first)
        while True:
            try:
                word = await _heard(reader)
            except (asyncio.IncompleteReadError, ConnectionError):
                raise Crashed(_crash(await self.process.ended())) from None
            except Unreadable as error:
                raise Crashed(f"its child said what cannot be read: {error}") from error
            match word:
                case Progress():
                    ctx.progress(word.words)
                case FollowUp():
                    self.say(_followed(word, ctx))
                case Answer():
                    return _value(word)
                case Failure():
                    raise Relayed(word)
                case Stopped():
                    raise asyncio.CancelledError

    def say(self, word: ToChild) -> None:
        if self._writer is None:
            self._unsaid.append(word)
        elif not self._writer.is_closing():
            self._writer.write(framed(word))

    async def end(self) -> None:
        """Kill it, with whatever it started, and wait until nothing of it is left."""
        self.process.stop()
        if self._writer is not None:
            self._writer.close()
        else:
            self._socket.close()
        await self.process.ended()


async def _heard(reader: asyncio.StreamReader) -> ToNode:
    length = length_of(await reader.readexactly(HEADER_BYTES))
    return read_by_node(await reader.readexactly(length))


def _value(answer: Answer) -> Any:
    match answer.wrap:
        case "changed":
            return Changed(answer.value)
        case "unchanged":
            return Unchanged()
        case "observed":
            return Observed(answer.value, answer.fingerprint, answer.changed)
        case _:
            return answer.value


def _followed(asked: FollowUp, ctx: Context) -> Accepted | Refused:
    try:
        run_id = ctx.enqueue(asked.job, asked.params, key=asked.key, delay=asked.delay, priority=asked.priority)
    except InvalidInput as error:
        return Refused("InvalidInput", [error.what, error.where, error.cure])
    except NotFound as error:
        return Refused("NotFound", [error.kind, error.name, error.cure])
    except Exception as error:  # noqa: BLE001  what came from the child may be anything
        return Refused("", [str(error)])
    return Accepted(run_id)


def _crash(ended: Ended) -> str:
    if ended.signal is not None or ended.errno is not None:
        return f"its child {ended.words}"
    return f"its child {ended.words} before its handler did"
