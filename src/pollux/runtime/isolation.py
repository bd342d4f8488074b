"""Handlers in child processes: fresh interpreters that find the function by its name.

    node ── Call ──▶ child            the handler, its context and its params travel as JSON
         ◀── Ready ──                 the function is found
         ── Begin ──▶                 only while the lease is trusted; the permit ends with it
         ◀── Progress, FollowUp ──
         ── Cancel ──▶                asked to stop; when its time is over it is killed, with all that it started
         ◀── Result, Failure ──       the same values and the same texts as in the node
         (exits without a result)     a crash: `Crashed`, which the store counts

A child cannot take the node with it, whatever it does.  It is killed at the deadline, on cancel, when the lease is
lost, on drain, and when the node dies.  Runs of `isolate: process` have a child each.  Suspects (runs that two workers
died with) share children, one after another: starting an interpreter for each of a hundred would take minutes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from pollux.errors import InvalidInput, NotFound, PolluxError
from pollux.log_format import kind_written
from pollux.model import Fault, Isolate, Job, Run
from pollux.registry import Changed, Context, Handler, Observed, Unchanged
from pollux.runtime.child_protocol import (
    HEADER_BYTES,
    BadFrame,
    BeginFrame,
    CallFrame,
    CancelFrame,
    FailureFrame,
    FollowUpAccepted,
    FollowUpFrame,
    FollowUpRefused,
    FreeFrame,
    FunctionRef,
    ProgressFrame,
    ReadyFrame,
    ResultFrame,
    StoppedFrame,
    ToChild,
    ToNode,
    framed,
    length_of,
    read_by_node,
)
from pollux.secrets import HIDDEN, texts_of
from pollux.subprocesses import Process, ProcessEnd, ProcessLimits

CHILD_MEMORY = 1_000_000_000  # bytes
CHILD_MEMORY_MIN = 64_000_000  # an interpreter alone needs half of it
SUSPECT_LOSSES = 2  # workers that may die with a run before it is tried in a child
SUSPECTS_MAX = 8  # suspects that run at a time on one node
IDLE_SECONDS = 5.0  # how long a child waits for another suspect
PERMIT_SECONDS_MAX = 86_400.0  # of a lease that never ends (tests)
# The search path comes as arguments: nothing of ours may be imported before it is set.
_BEGIN = (
    "import sys; pollux_child = True; sys.path[:] = sys.argv[2:]; del sys.argv[2:]; "
    "from pollux.runtime.child import main; main()"
)


class Crashed(PolluxError):
    """A child exited without a result: by a signal, or by leaving."""


class RelayedError(PolluxError):
    """The error that a handler raised in its child, with its texts."""

    def __init__(self, failure: FailureFrame) -> None:
        self.fault: Fault = failure.fault
        self.text, self.place, self.retry_after = failure.error, failure.place, failure.retry_after
        self.traceback = failure.traceback
        super().__init__(failure.error)


def in_child() -> bool:
    """Whether this process is a child that runs a handler."""
    return bool(getattr(sys.modules.get("__main__"), "pollux_child", False))


def isolates(handler: Handler, job: Job, run: Run) -> bool:
    """Whether this run is to be tried in a child: its job asks for it, or it is a suspect."""
    return job.isolate is Isolate.PROCESS or is_suspect(handler, job, run)


def is_suspect(handler: Handler, job: Job, run: Run) -> bool:
    """Whether workers died with this run more than once, and a child can try it.

    One lost lease may happen to every run that shares a node with the cause.
    """
    may_be = job.isolate is Isolate.SUSPECT and run.lease_losses >= SUSPECT_LOSSES
    return may_be and place_in(handler) is not None


# the function's place


def place_in(handler: Handler) -> FunctionRef | None:
    """Return where a child finds the handler's function; None if it cannot (closures, lambdas, methods of objects)."""
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
    """Return the names of the function: `module:function` of a file, then its own module and qualified name."""
    module, path = getattr(handler.call, "__module__", None), getattr(handler.call, "__qualname__", None)
    by_file = handler.name.partition(":")
    return [
        *([(by_file[0], by_file[2])] if by_file[2] and by_file[0] in sys.modules else []),
        *([(module, path)] if isinstance(module, str) and isinstance(path, str) and not _is_ours(module) else []),
    ]


def _is_ours(module: str) -> bool:
    """Whether the handler comes with Pollux; those hold connections and processes of the node."""
    return module.partition(".")[0] == "pollux"


def _place(module: str, path: str) -> FunctionRef | None:
    if module != "__main__":
        return FunctionRef(module, "", path)
    program = sys.modules["__main__"]
    spec, file = getattr(program, "__spec__", None), getattr(program, "__file__", None)
    if spec is not None and spec.name != "__main__":
        return FunctionRef(spec.name, "", path)  # python -m monitor
    return FunctionRef("", os.path.abspath(file), path) if file and os.path.isfile(file) else None  # noqa: PTH100, PTH113


async def call_in_child(
    handler: Handler,
    ctx: Context,
    kwargs: Mapping[str, Any],
    *,
    memory: int,
    stop_seconds: Callable[[], float],
    permit: Callable[[], float | None],
    idle: IdleChildren | None = None,
) -> Any:
    """Call the handler in a child: return its value, raise its error, or `Crashed` if the child exits without a result.

    Cancelled, it asks the handler to stop, gives it `stop_seconds`, and kills it; cancelled again, at once.
    `permit`: for how many seconds from now the handler may begin; None: it may not.  `idle`: the run is a suspect, and
    may reuse a child.  One that has crashed before gets a fresh child, so that only its own crash is counted.
    """
    place = place_in(handler)
    assert place is not None, "the caller has called `check_place`"
    call = _call(place, handler, ctx, kwargs, stays=idle is not None)
    child = Child(memory) if idle is None or ctx.run.crashes else idle.take(memory)
    while True:
        try:
            return await _call_one(child, call, ctx, stop_seconds, permit, idle)
        except Crashed:
            if child.calls == 1 or child.has_begun:
                raise
            child = Child(memory)  # it had died while it was idle


async def _call_one(
    child: Child,
    call: CallFrame,
    ctx: Context,
    stop_seconds: Callable[[], float],
    permit: Callable[[], float | None],
    idle: IdleChildren | None,
) -> Any:
    try:
        talk = asyncio.get_running_loop().create_task(child.talk(call, ctx, permit))
        # Retrieves an error that is not awaited.
        talk.add_done_callback(lambda over: over.cancelled() or over.exception())
        try:
            value = await asyncio.shield(talk)
        except asyncio.CancelledError:
            if talk.cancelled():
                raise  # it stopped by itself
            child.ask_to_stop(ctx.cancel_reason)
            await asyncio.wait({talk}, timeout=stop_seconds())
            if not talk.done():
                talk.cancel()
                raise
            value = talk.result()
    except BaseException:
        await _dismiss(child, idle)
        raise
    with contextlib.suppress(asyncio.CancelledError):  # asked to stop after it had answered: the answer counts
        await _dismiss(child, idle)
    return value


async def _dismiss(child: Child, idle: IdleChildren | None) -> None:
    if idle is None or not idle.keep(child):
        await child.end()


def _call(place: FunctionRef, handler: Handler, ctx: Context, kwargs: Mapping[str, Any], *, stays: bool) -> CallFrame:
    root = logging.getLogger()
    level = root.level if root.handlers else None
    kind = kind_written() or "text"
    hidden, traceparent = _secrets_in(kwargs), ctx.traceparent
    rest = ctx.run, ctx.job, dict(kwargs), ctx.deadline_ms, level, kind, hidden, traceparent, stays, handler.package
    return CallFrame(place, handler.name, *rest)


def _secrets_in(kwargs: Mapping[str, Any]) -> list[str]:
    """Return the secrets that a child can see: those of its params, and those of the environment it inherits."""
    texts = ["\0".join(os.environ.values()), *(text for _, text in texts_of(dict(kwargs)))]  # a part may be secret
    return [value for value in HIDDEN.values() if any(value in text for text in texts)]


class Child:
    """A fresh interpreter and the socket to it."""

    def __init__(self, memory: int) -> None:
        self.memory = memory
        self.calls = 0
        self.has_begun = False  # the handler of the current call
        self.is_free = False  # it can take another call
        self._was_asked = False  # to stop: the frame may arrive in its next call
        self._socket, theirs = socket.socketpair()
        try:
            self.process = Process(
                [sys.executable, "-P", "-c", _BEGIN, str(theirs.fileno()), *sys.path],
                env=os.environ,
                limits=ProcessLimits(memory=memory),
                keep=(theirs.fileno(),),
            )
        except BaseException:
            self._socket.close()
            raise
        finally:
            theirs.close()
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._unsent: list[ToChild] = []  # frames from before the connection was open

    async def talk(self, call: CallFrame, ctx: Context, permit: Callable[[], float | None]) -> Any:
        """Send the call and serve the child until its result."""
        self.calls += 1
        self.has_begun = self.is_free = False
        reader = await self._connected(call)
        while True:
            match await self._receive(reader):
                case ReadyFrame():
                    self._send_permit(permit())
                case FreeFrame():
                    self.is_free = not self._was_asked
                case ProgressFrame(words):
                    ctx.progress(words)
                case FollowUpFrame() as asked:
                    self.send(_follow_up(asked, ctx))
                case ResultFrame() as answer:
                    return _value(answer)
                case FailureFrame() as failure:
                    raise RelayedError(failure)
                case StoppedFrame():
                    raise asyncio.CancelledError

    async def _connected(self, call: CallFrame) -> asyncio.StreamReader:
        """Open the connection, and send the call as the first frame."""
        if self._reader is None:
            self._reader, self._writer = await asyncio.open_unix_connection(sock=self._socket)
        unsent, self._unsent = self._unsent, []
        for first in (call, *unsent):
            self.send(first)
        return self._reader

    async def _receive(self, reader: asyncio.StreamReader) -> ToNode:
        try:
            length = length_of(await reader.readexactly(HEADER_BYTES))
            return read_by_node(await reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError):
            raise Crashed(_crash(await self.process.ended())) from None
        except BadFrame as error:
            raise Crashed(f"its child sent an unreadable frame: {error}") from error

    def send(self, frame: ToChild) -> None:
        if self._writer is None:
            self._unsent.append(frame)
        elif not self._writer.is_closing():
            self._writer.write(framed(frame))

    def ask_to_stop(self, reason: str) -> None:
        self._was_asked = True
        self.send(CancelFrame(reason))

    def _send_permit(self, seconds: float | None) -> None:
        """Send the permit.  Without one nothing is sent: the attempt has asked for the end."""
        if seconds is not None:
            self.has_begun = True
            self.send(BeginFrame(time.monotonic() + min(seconds, PERMIT_SECONDS_MAX)))

    async def end(self) -> None:
        """Kill it, with all that it started, and wait until nothing of it is left."""
        self.process.stop()
        if self._writer is not None:
            self._writer.close()
        else:
            self._socket.close()
        await self.process.ended()


class IdleChildren:
    """Children whose handler ended well, kept for a while for the next suspect."""

    def __init__(self) -> None:
        self._idle: dict[Child, asyncio.TimerHandle] = {}
        self._ends: set[asyncio.Task[None]] = set()  # of those that are being killed
        self._is_closed = False

    def take(self, memory: int) -> Child:
        """Return an idle child, else a fresh one."""
        while self._idle:
            child, timer = self._idle.popitem()
            timer.cancel()
            if child.memory == memory and not child.process.has_ended:
                return child
            self._end(child)
        return Child(memory)

    def keep(self, child: Child) -> bool:
        """Keep a child for later; false if it cannot be used again, or there are enough."""
        if self._is_closed or not child.is_free or len(self._idle) >= SUSPECTS_MAX:
            return False
        self._idle[child] = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._expire, child)
        return True

    def stop(self) -> None:
        """Kill the idle children, and keep none from here on."""
        self._is_closed = True
        for child in list(self._idle):
            self._idle.pop(child).cancel()
            self._end(child)

    async def close(self) -> None:
        """Kill them, and wait until nothing of them is left."""
        self.stop()
        await asyncio.gather(*self._ends)

    def _expire(self, child: Child) -> None:
        del self._idle[child]
        self._end(child)

    def _end(self, child: Child) -> None:
        end = asyncio.get_running_loop().create_task(child.end())
        self._ends.add(end)
        end.add_done_callback(self._ends.discard)


def _value(answer: ResultFrame) -> Any:
    match answer.wrap:
        case "changed":
            return Changed(answer.value)
        case "unchanged":
            return Unchanged()
        case "observed":
            return Observed(answer.value, answer.fingerprint, answer.changed)
        case _:
            return answer.value


def _follow_up(asked: FollowUpFrame, ctx: Context) -> FollowUpAccepted | FollowUpRefused:
    try:
        run_id = ctx.enqueue(asked.job, asked.params, key=asked.key, delay=asked.delay, priority=asked.priority)
    except InvalidInput as error:
        return FollowUpRefused("InvalidInput", [error.what, error.where, error.cure])
    except NotFound as error:
        return FollowUpRefused("NotFound", [error.kind, error.name, error.cure])
    except Exception as error:  # noqa: BLE001  what came from the child may be anything
        return FollowUpRefused("", [str(error)])
    return FollowUpAccepted(run_id)


def _crash(ended: ProcessEnd) -> str:
    if ended.signal is not None or ended.errno is not None:
        return f"its child {ended.words}"
    return f"its child {ended.words} before its handler did"
