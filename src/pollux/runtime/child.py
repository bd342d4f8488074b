"""Child process of a handler: finds a function, calls it with a context, sends the result, and usually exits.

A handler begins only with a permit of the node, which ends with the lease (`NodeConnection.may_begin`).  A child
started for a suspect takes further calls as long as handlers return and leave nothing behind.

The context is like any other: `progress` is relayed, `enqueue` asks the node, a request to stop arrives as in the node.
Importing the user's code starts nothing: an app that is imported here does not run (`in_child`).
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
from pollux.model.job import check_params
from pollux.outcome import classify, describe, place_of, retry_after_s, traceback_of
from pollux.registry import Changed, Context, Handler, Observed, Unchanged, as_json, checked, job_id_of
from pollux.runtime.child_protocol import (
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
    check_follow_up,
    framed,
    length_of,
    read_by_child,
)
from pollux.runtime.handler_threads import end_copy
from pollux.secrets import HIDDEN, hide

SCRIPT = "__pollux_main__"  # module name of the node's own script, so that its `__main__` block does not run again
PROGRESS_SECONDS = 0.1  # least time between two progress frames


def main() -> None:
    """Run the child; `sys.argv[1]` is the descriptor of its socket to the node."""
    connection = NodeConnection(socket.socket(fileno=int(sys.argv.pop(1))))
    faulthandler.enable()  # a crash leaves its traceback in the node's log
    pid = os.getpid()
    is_first = is_free = True
    while is_free and (call := connection.next_call()) is not None:
        for secret in call.hidden:
            HIDDEN.add(secret)
        if is_first and call.log_level is not None:
            write_lines(logging.StreamHandler(), call.log_kind, call.log_level)
        is_first = False
        result, error = _run(call, connection)
        if os.getpid() != pid:
            end_copy(error)
        is_free = call.stays and _is_harmless(error) and connection.is_alone()
        _flush(is_last=not is_free)  # first: the node kills the child after its last frame
        with contextlib.suppress(OSError):  # the node has exited
            connection.end_call(result, is_free=is_free)
    os._exit(0)  # ignores threads that the handler left behind, and its exit handlers


def _is_harmless(error: BaseException | None) -> bool:
    """Whether the process can go on after this end of a handler."""
    return error is None or (isinstance(error, Exception) and not isinstance(error, MemoryError))


def _flush(*, is_last: bool) -> None:
    if is_last:
        logging.shutdown()
    else:
        for known in logging._handlerList:  # type: ignore[attr-defined]  # noqa: SLF001  the list that `shutdown` uses
            if (handler := known()) is not None:
                with contextlib.suppress(Exception):  # the handler's own, perhaps closed
                    handler.flush()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # the handler's own, perhaps closed
            stream.flush()


class NodeConnection:
    """The child's end of the socket: any thread sends, one thread receives."""

    def __init__(self, connection: socket.socket) -> None:
        connection.set_inheritable(False)
        self._socket, self._lock, self._asking = connection, threading.Lock(), threading.Lock()
        self._replies: SimpleQueue[FollowUpAccepted | FollowUpRefused] = SimpleQueue()
        self._orders: SimpleQueue[CallFrame | BeginFrame | CancelFrame | None] = SimpleQueue()  # None: no node
        self._cancelling = threading.Lock()
        self._on_cancel: Callable[[str], None] | None = None
        self._cancel_reason: str | None = None
        self._reader = threading.Thread(target=self._receive_frames, name="pollux-child-connection", daemon=True)
        self._reader.start()

    def send(self, frame: ToNode) -> None:
        with self._lock:
            self._socket.sendall(framed(frame))

    def ask(self, follow_up: FollowUpFrame) -> FollowUpAccepted | FollowUpRefused:
        with self._asking:
            self.send(follow_up)
            return self._replies.get()

    def next_call(self) -> CallFrame | None:
        order = self._orders.get()
        return order if isinstance(order, CallFrame) else None

    def may_begin(self) -> bool:
        """Ask the node for a permit to begin; false if it wants the end instead, or has exited.

        A permit may expire while this process is suspended: then it asks again.
        """
        while True:
            self.send(ReadyFrame())
            order = self._orders.get()
            if not isinstance(order, BeginFrame):
                return False
            if time.monotonic() < order.by:
                return True

    def listen(self, on_cancel: Callable[[str], None]) -> None:
        """Set the callback for a request to stop; called at once if there was one already."""
        with self._cancelling:
            self._on_cancel = on_cancel
            if self._cancel_reason is not None:
                on_cancel(self._cancel_reason)

    def end_call(self, last: ResultFrame | FailureFrame | StoppedFrame, *, is_free: bool) -> None:
        with self._cancelling:
            self._on_cancel = None
        if is_free:
            self.send(FreeFrame())
        self.send(last)

    def is_alone(self) -> bool:
        """Whether the handler has left no thread and no process behind."""
        if len(threading.enumerate()) > len({threading.current_thread(), self._reader}):
            return False
        try:
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return True
        return False

    def _receive_frames(self) -> None:
        while True:
            try:
                frame = self._read()
            except (EOFError, OSError):
                self._orders.put(None)  # the node has exited; the guard process ends this one
                return
            match frame:
                case FollowUpAccepted() | FollowUpRefused():
                    self._replies.put(frame)
                case CancelFrame():
                    self._on_cancel_frame(frame)
                case _:
                    self._orders.put(frame)

    def _on_cancel_frame(self, frame: CancelFrame) -> None:
        with self._cancelling:
            self._cancel_reason = frame.reason
            if self._on_cancel is not None:
                self._on_cancel(frame.reason)
            else:
                self._orders.put(frame)

    def _read(self) -> ToChild:
        return read_by_child(self._receive(length_of(self._receive(HEADER_BYTES))))

    def _receive(self, size: int) -> bytes:
        taken = bytearray()
        while len(taken) < size:
            chunk = self._socket.recv(size - len(taken))
            if not chunk:
                raise EOFError
            taken += chunk
        return bytes(taken)


class ChildContext(Context):
    """A context whose node is at the other end of the socket."""

    def __init__(self, call: CallFrame, handler: Handler, connection: NodeConnection) -> None:
        super().__init__(call.run, call.job, handler, SystemClock(), call.deadline_ms)
        self.traceparent = call.traceparent
        self._connection = connection
        self._sent, self._sent_at = "", 0.0

    def progress(self, value: float | str, words: str = "", *, of: float | None = None) -> None:
        super().progress(value, words, of=of)
        if time.monotonic() - self._sent_at >= PROGRESS_SECONDS:
            self.send_progress()

    def send_progress(self) -> None:
        """Relay the latest progress, unless the node has it."""
        if self.last_progress != self._sent:
            self._sent, self._sent_at = self.last_progress, time.monotonic()
            self._connection.send(ProgressFrame(self._sent))

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
        check_follow_up(asked)
        reply = self._connection.ask(asked)
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
    call: CallFrame, connection: NodeConnection
) -> tuple[ResultFrame | FailureFrame | StoppedFrame, BaseException | None]:
    """Find the function, call it, and return the frame of its result; the error itself, if there was one."""
    try:
        handler = Handler(call.handler, find(call.place))
        if not connection.may_begin():
            return StoppedFrame(), None
        ctx = ChildContext(call, handler, connection)
        invoke = _awaited if handler.is_async else _called
        value = invoke(handler, ctx, call, connection)
    except BaseException as error:  # noqa: BLE001  whatever it raises is its outcome
        return _failure(error, call.package), error
    ctx.send_progress()
    if isinstance(value, StoppedFrame):
        return value, None
    try:
        return _answer(value), None
    except Exception as unfit:  # noqa: BLE001  a result is the handler's own: anything may be in it
        return _failure(unfit, call.package, Fault.PERMANENT), unfit


def _called(handler: Handler, ctx: ChildContext, call: CallFrame, connection: NodeConnection) -> Any:
    connection.listen(ctx.cancel)
    return handler.invoke(ctx, call.kwargs)


def _awaited(handler: Handler, ctx: ChildContext, call: CallFrame, connection: NodeConnection) -> Any:
    import asyncio  # a sync handler does without

    async def live() -> Any:
        loop = asyncio.get_running_loop()
        going = loop.create_task(invoked())

        def on_cancel(reason: str) -> None:
            ctx.cancel(reason)
            loop.call_soon_threadsafe(going.cancel)

        connection.listen(on_cancel)
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
    """Import the function; the node's own script is loaded under another name."""
    found: Any = importlib.import_module(place.module) if place.module else _script(place.script)
    for name in place.path.split("."):
        found = getattr(found, name)
    call: Callable[..., Any] = found
    return call


def _script(path: str) -> Any:
    """Return the script as a module, run once a child: its globals may register themselves, as an import's do."""
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
