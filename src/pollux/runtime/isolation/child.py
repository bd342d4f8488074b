"""The inside of a child process: it finds a function, calls it with a context, says how that went, and mostly is gone.

A handler begins only with the node's leave, which ends with the lease (`NodeConnection.may_begin`).  A child that was
started for a suspect takes further calls as long as handlers return and leave nothing behind.

The context is like any other: `progress` is relayed, `enqueue` asks the node, a request to stop arrives as in the node.
Importing the user's code starts nothing: an app that meets itself here does not run (`in_child`).
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import importlib.util
import linecache
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from queue import SimpleQueue
from typing import Any

from pollux.clock import SystemClock
from pollux.errors import InvalidInput, NotFound, PolluxError
from pollux.log_format import write_lines
from pollux.model import Fault, Job
from pollux.model.params import check_params
from pollux.outcome import classify, describe, place_of, retry_after_s, traceback_of
from pollux.registry import Changed, Context, Handler, Observed, Unchanged, as_json, checked, job_id_of
from pollux.runtime.fork_guard import end_copy
from pollux.runtime.isolation.protocol import (
    HEADER_BYTES,
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
    check_word,
    framed,
    length_of,
    read_by_child,
)
from pollux.secrets import HIDDEN, hide

SCRIPT = "__pollux_main__"  # the name that the node's own script is loaded under, so that it does not start again
PROGRESS_SECONDS = 0.1  # between two words of progress


def main() -> None:
    """The whole life of a child; `sys.argv[1]` is the descriptor of its line to the node."""
    line = NodeConnection(socket.socket(fileno=int(sys.argv.pop(1))))
    faulthandler.enable()  # a crash leaves its traceback in the node's log
    pid = os.getpid()
    is_first = is_free = True
    while is_free and (call := line.next_call()) is not None:
        for secret in call.hidden:
            HIDDEN.add(secret)
        if is_first and call.log_level is not None:
            write_lines(logging.StreamHandler(), call.log_kind, call.log_level)
        is_first = False
        said, error = _run(call, line)
        if os.getpid() != pid:
            end_copy(error)
        is_free = call.stays and _is_harmless(error) and line.is_alone()
        _flush(is_last=not is_free)  # first: who has said its last word is killed
        with contextlib.suppress(OSError):  # the node is gone
            line.end_call(said, is_free=is_free)
    os._exit(0)  # threads that the handler left behind, and what it registered for the end, count no more


def _is_harmless(error: BaseException | None) -> bool:
    """Can the process go on after this end of a handler?"""
    return error is None or (isinstance(error, Exception) and not isinstance(error, MemoryError))


def _flush(*, is_last: bool) -> None:
    if is_last:
        logging.shutdown()
    else:
        for known in logging._handlerList:  # type: ignore[attr-defined]  # noqa: SLF001  what `shutdown` goes through
            if (handler := known()) is not None:
                with contextlib.suppress(Exception):  # the handler's own, perhaps closed
                    handler.flush()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # the handler's own, perhaps closed
            stream.flush()


class NodeConnection:
    """The child's end of the socket: words go out from any thread, and come in by one thread."""

    def __init__(self, connection: socket.socket) -> None:
        connection.set_inheritable(False)
        self._socket, self._lock, self._asking = connection, threading.Lock(), threading.Lock()
        self._replies: SimpleQueue[FollowUpAccepted | FollowUpRefused] = SimpleQueue()
        self._orders: SimpleQueue[CallFrame | BeginFrame | CancelFrame | None] = SimpleQueue()  # None: the node is gone
        self._cancelling = threading.Lock()
        self._on_cancel: Callable[[str], None] | None = None
        self._cancel_reason: str | None = None
        self._reader = threading.Thread(target=self._hear, name="pollux-line", daemon=True)
        self._reader.start()

    def say(self, word: ToNode) -> None:
        with self._lock:
            self._socket.sendall(framed(word))

    def ask(self, follow_up: FollowUpFrame) -> FollowUpAccepted | FollowUpRefused:
        with self._asking:
            self.say(follow_up)
            return self._replies.get()

    def next_call(self) -> CallFrame | None:
        order = self._orders.get()
        return order if isinstance(order, CallFrame) else None

    def may_begin(self) -> bool:
        """Ask the node for leave to begin; false if it wants the end instead, or is gone.

        A leave that was given before this process stood still may be over: it is asked for again.
        """
        while True:
            self.say(ReadyFrame())
            order = self._orders.get()
            if not isinstance(order, BeginFrame):
                return False
            if time.monotonic() < order.by:
                return True

    def listen(self, on_cancel: Callable[[str], None]) -> None:
        """Call this when the node asks the handler to stop, also if it has asked already."""
        with self._cancelling:
            self._on_cancel = on_cancel
            if self._cancel_reason is not None:
                on_cancel(self._cancel_reason)

    def end_call(self, last: ResultFrame | FailureFrame | StoppedFrame, *, is_free: bool) -> None:
        with self._cancelling:
            self._on_cancel = None
        if is_free:
            self.say(FreeFrame())
        self.say(last)

    def is_alone(self) -> bool:
        """Has the handler left no thread and no process behind?"""
        if len(threading.enumerate()) > len({threading.current_thread(), self._reader}):
            return False
        try:
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return True
        return False

    def _hear(self) -> None:
        while True:
            try:
                word = self._read()
            except (EOFError, OSError):
                self._orders.put(None)  # the node is gone; the warden ends us
                return
            match word:
                case FollowUpAccepted() | FollowUpRefused():
                    self._replies.put(word)
                case CancelFrame():
                    self._heard_cancel(word)
                case _:
                    self._orders.put(word)

    def _heard_cancel(self, word: CancelFrame) -> None:
        with self._cancelling:
            self._cancel_reason = word.reason
            if self._on_cancel is not None:
                self._on_cancel(word.reason)
            else:
                self._orders.put(word)

    def _read(self) -> ToChild:
        return read_by_child(self._take(length_of(self._take(HEADER_BYTES))))

    def _take(self, size: int) -> bytes:
        taken = bytearray()
        while len(taken) < size:
            chunk = self._socket.recv(size - len(taken))
            if not chunk:
                raise EOFError
            taken += chunk
        return bytes(taken)


class ChildContext(Context):
    """A context whose node is at the other end of the line."""

    def __init__(self, call: CallFrame, handler: Handler, line: NodeConnection) -> None:
        super().__init__(call.run, call.job, handler, SystemClock(), call.deadline_ms)
        self.traceparent = call.traceparent
        self._line = line
        self._said, self._said_at = "", 0.0

    def progress(self, value: float | str, words: str = "", *, of: float | None = None) -> None:
        super().progress(value, words, of=of)
        if time.monotonic() - self._said_at >= PROGRESS_SECONDS:
            self.tell_progress()

    def tell_progress(self) -> None:
        """Relay what was said last, unless the node knows it."""
        if self.last_progress != self._said:
            self._said, self._said_at = self.last_progress, time.monotonic()
            self._line.say(ProgressFrame(self._said))

    def enqueue(
        self,
        job: object,
        params: dict[str, Any] | None = None,
        *,
        key: str | None = None,
        delay: str | float = 0,
        priority: int | str | None = None,
    ) -> str:
        ref = job if isinstance(job, Job) else job_id_of(job)
        asked = FollowUpFrame(ref, check_params(params) if params else None, key, delay, priority)
        check_word(asked)
        reply = self._line.ask(asked)
        if isinstance(reply, FollowUpAccepted):
            return reply.run_id
        raise _error_of(reply)


def _error_of(refused: FollowUpRefused) -> PolluxError:
    match refused:
        case FollowUpRefused("InvalidInput", [what, where, cure]):
            return InvalidInput(what, where=where, cure=cure)
        case FollowUpRefused("NotFound", [kind, name, cure]):
            return NotFound(kind, name, cure=cure)
        case _:
            return PolluxError(*refused.args)


def _run(
    call: CallFrame, line: NodeConnection
) -> tuple[ResultFrame | FailureFrame | StoppedFrame, BaseException | None]:
    """Find the function, call it, and put into words how that went; the error itself, if there was one."""
    try:
        handler = Handler(call.handler, find(call.place))
        if not line.may_begin():
            return StoppedFrame(), None
        ctx = ChildContext(call, handler, line)
        value = _awaited(handler, ctx, call, line) if handler.is_async else _called(handler, ctx, call, line)
    except BaseException as error:  # noqa: BLE001  whatever it raises is its outcome
        return _failure(error, call.package), error
    ctx.tell_progress()
    if isinstance(value, StoppedFrame):
        return value, None
    try:
        return _answer(value), None
    except Exception as unfit:  # noqa: BLE001  a result is the handler's own: anything may be in it
        return _failure(unfit, call.package, Fault.PERMANENT), unfit


def _called(handler: Handler, ctx: ChildContext, call: CallFrame, line: NodeConnection) -> Any:
    line.listen(ctx.cancel)
    return handler.invoke(ctx, call.kwargs)


def _awaited(handler: Handler, ctx: ChildContext, call: CallFrame, line: NodeConnection) -> Any:
    import asyncio  # a sync handler does without

    async def live() -> Any:
        loop = asyncio.get_running_loop()
        going = loop.create_task(invoked())

        def on_cancel(reason: str) -> None:
            ctx.cancel(reason)
            loop.call_soon_threadsafe(going.cancel)

        line.listen(on_cancel)
        return await going

    async def invoked() -> Any:
        try:
            return None, await handler.invoke(ctx, call.kwargs)
        except asyncio.CancelledError as error:
            return (None, StoppedFrame()) if ctx.cancelled else (error, None)
        except BaseException as error:  # noqa: BLE001  also SystemExit, which the loop would not give back
            return error, None

    error, value = asyncio.run(live())
    if error is not None:
        raise error
    return value


def _answer(value: Any) -> ResultFrame:
    match value:
        case None:
            return ResultFrame()
        case Unchanged():
            return ResultFrame(wrap="unchanged")
        case Changed():
            return ResultFrame(as_json(value.value)[0], "changed")
        case Observed():
            seen = checked(value)
            return ResultFrame(as_json(seen.value)[0], "observed", seen.fingerprint, seen.changed)
        case _:
            return ResultFrame(as_json(value)[0])


def _failure(error: BaseException, own: str, fault: Fault | None = None) -> FailureFrame:
    trace = traceback_of(error, hide, line_of=linecache.getline, own=own)
    return FailureFrame(
        fault or classify(error), describe(error, hide), place_of(error, own), retry_after_s(error), trace
    )


def find(place: FunctionRef) -> Callable[..., Any]:
    """Import what the place names; the node's own script is loaded under another name."""
    found: Any = importlib.import_module(place.module) if place.module else _script(place.script)
    for name in place.path.split("."):
        found = getattr(found, name)
    call: Callable[..., Any] = found
    return call


def _script(path: str) -> Any:
    """The script as a module, run once a child: its globals may register themselves somewhere, as an import's do."""
    if (known := sys.modules.get(SCRIPT)) is not None:
        return known
    spec = importlib.util.spec_from_file_location(SCRIPT, path, loader=SourceFileLoader(SCRIPT, path))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[SCRIPT] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[SCRIPT]
        raise
    return module
