"""Handlers that a child process can find: of all kinds, good and bad."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
import threading
import time
from pathlib import Path

from pollux import Changed, Observed, Permanent, Transient, Unchanged
from pollux.errors import InvalidInput, NotFound
from pollux.model import Job

HERE = os.getpid()


def about(ctx, word="none"):
    """What a handler can see of itself."""
    return {
        "pid": os.getpid(),
        "word": word,
        "run": ctx.run.id,
        "job": ctx.job.id,
        "handler": ctx.handler.name,
        "attempt": ctx.attempt,
        "delivery": ctx.delivery,
        "deadline_ms": ctx.deadline_ms,
        "deadline": ctx.deadline.timestamp(),
        "cancelled": ctx.cancelled,
        "is_main_thread": threading.current_thread() is threading.main_thread(),
    }


async def about_later(ctx, word="none"):
    await asyncio.sleep(0)
    return about(ctx, word)


def plain(a, b=2):
    """It takes no context."""
    return a + b


def changed(ctx):
    return Changed([1])


def unchanged(ctx):
    return Unchanged()


def observed(ctx):
    return Observed({"n": 1}, "mark")


def observed_odd():
    return Observed({"n": 1}, "mark", changed="yes")


def observed_unmarked():
    return Observed({"n": 1}, complex(1, 2))


class Greedy(Exception):
    """It asks for more than a number holds."""

    retry_after = 10**400


class Silent(Exception):
    @property
    def retry_after(self):
        raise RuntimeError("it does not say")


class Endless(Exception):
    retry_after = float("inf")


def greedy():
    raise Greedy("slow down")


def silent():
    raise Silent("slow down")


def endless():
    raise Endless("slow down")


def follows_oddly(ctx):
    """What the node would refuse: each is an error of the handler's, which it may catch."""
    said = []
    asked = ({"key": 5}, {"key": ["k"]}, {"delay": [1]}, {"delay": True}, {"priority": {"a": 1}}, {"priority": 2.5})
    for job, options in (*(("after", each) for each in asked), (Job(id="after", handler="h", group=5), {})):
        try:
            ctx.enqueue(job, **options)
        except InvalidInput as error:
            said.append(str(error) if job == "after" else "refused")
    return said


def nothing(ctx):
    return None


def fails(ctx):
    raise ValueError("no\x1b such\nthing")


async def fails_later(ctx):
    await asyncio.sleep(0)
    raise KeyError("k") from OSError("the disk")


def permanent(ctx):
    raise Permanent("never")


def wait_a_minute(ctx):
    raise Transient("busy", retry_after=60)


def leaves(ctx):
    sys.exit(4)


async def leaves_later(ctx):
    sys.exit(4)


def not_json(ctx):
    return {"x": object()}


def too_much(ctx):
    return "x" * 100_000


def hungry(ctx):
    return len(bytes(2 << 30))


def segfault(ctx):
    ctypes.string_at(0)


def abort(ctx):
    os.abort()


def vanish(ctx):
    os._exit(3)


def vanish_well(ctx):
    os._exit(0)


def babble(ctx):
    """Somebody writes to the line to the node."""
    os.write(line_of_this_child(), b"\xff\xff\xff\xffnonsense")
    time.sleep(60)


def babble_json(ctx):
    os.write(line_of_this_child(), b"\0\0\0\x02{}")
    time.sleep(60)


def line_of_this_child():
    """The one socket that a child has."""
    [fd] = [int(fd.name) for fd in Path("/proc/self/fd").iterdir() if "socket:" in _target(fd)]
    return fd


def _target(fd):
    try:
        return os.readlink(fd)  # noqa: PTH115  it may be gone meanwhile
    except OSError:
        return ""


def progressing(ctx, go):
    ctx.progress(3, "of the rows", of=10)
    until(go)
    for number in range(1000):
        ctx.progress(f"row {number}")


async def following(ctx):
    first = ctx.enqueue("after", {"n": 1}, key="k", delay="5s", priority="high")
    try:
        ctx.enqueue("unknown")
    except NotFound as error:
        return [first, ctx.enqueue(after), str(error)]


def after(ctx, n=0):
    return n


after.pollux_job_id = "after"


def sleepy(ctx, pids):
    """Deaf, and it has a child of its own, and one in another session."""
    tell(pids)
    for leave in (False, True):
        if os.fork() == 0:
            if leave:
                os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            tell(pids)
            time.sleep(600)
            os._exit(0)
    time.sleep(600)


def obedient(ctx, pids):
    tell(pids)
    ctx.wait_cancelled(600)
    return f"heard: {ctx.cancel_reason}"


async def tidy(ctx, pids, left):
    tell(pids)
    try:
        await asyncio.sleep(600)
    finally:
        Path(left).write_text(ctx.cancel_reason)  # noqa: ASYNC240  nothing else runs here


def brood(ctx, pids):
    """It answers and leaves a child behind, in a session of its own."""
    tell(pids)
    if os.fork() == 0:
        os.setsid()
        tell(pids)
        time.sleep(600)
        os._exit(0)
    while Path(pids).read_text().count("\n") < 2:
        time.sleep(0.01)
    return "done"


def threaded(ctx):
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()


def marks(ctx, mark):
    Path(mark).touch()


def where(ctx):
    return os.getpid()


def tell(pids):
    with Path(pids).open("a") as file:
        file.write(f"{os.getpid()}\n")


def until(path):
    while not Path(path).exists():
        time.sleep(0.01)


class SlowStream:
    """What is written to it arrives when it is flushed, and that takes a while."""

    def __init__(self, path):
        self.path, self.waiting = path, ""

    def write(self, text):
        self.waiting += text

    def flush(self):
        time.sleep(0.3)
        Path(self.path).write_text(self.waiting)


def prints_late(ctx, path):
    sys.stdout = SlowStream(path)
    print("its last words")
    return 1


async def stops_at_once(ctx):
    await asyncio.sleep(60)
