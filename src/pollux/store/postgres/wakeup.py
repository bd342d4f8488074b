"""Wake-ups of waiting calls: directly in this process, from others by NOTIFY.

LISTEN has a connection of its own, opened when the first call waits and again when it is lost.  Where there must be
none (a pooler drops it) the handle polls now and then for writes.  Both are hints: a waiting call also polls now and
then, and all return after the connection was opened anew.

A commit that notifies waits for every other one in the database that does; a busy process would make all of them
queue. The first notification goes with its write.  Those of the next moment are collected, and sent after it as one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from typing import Any

from asyncpg import Connection
from msgspec.structs import replace

from pollux.clock import Clock
from pollux.errors import PolluxError
from pollux.store.backend import Look
from pollux.store.postgres.errors import THEIRS
from pollux.store.relational.wakeup import ASKED, EVERY, FEED, RUNS, WAKE, Waiter

MOMENT_S = 0.01
CLOSE_S = 1.0


class PostgresNotifier:
    """Notifications of one handle to other processes."""

    def __init__(self, send: Callable[[int, frozenset[int]], Awaitable[None]], moment_s: float = MOMENT_S) -> None:
        self._send, self._moment_s = send, moment_s
        self._free_at = 0.0
        self._kinds, self._versions = 0, frozenset[int]()
        self._sender: asyncio.Task[None] | None = None

    def may_notify_now(self) -> bool:
        """Whether a write may notify with its commit; else `notify_later` is called after it."""
        now = asyncio.get_running_loop().time()
        if self._kinds or now < self._free_at:
            return False
        self._free_at = now + self._moment_s
        return True

    def notify_later(self, kinds: int, versions: frozenset[int]) -> None:
        self._kinds |= kinds
        self._versions |= versions
        if self._sender is None or self._sender.done():
            self._sender = asyncio.ensure_future(self._send_collected())

    async def _send_collected(self) -> None:
        while self._kinds:
            loop = asyncio.get_running_loop()
            await asyncio.sleep(max(0.0, self._free_at - loop.time()))
            self._free_at = loop.time() + self._moment_s
            kinds, self._kinds = self._kinds, 0
            versions, self._versions = self._versions, frozenset()
            await self._send(kinds, versions)

    async def close(self) -> None:
        """Send what was collected before the connections close, if possible."""
        if self._sender is not None:
            await asyncio.wait([self._sender], timeout=CLOSE_S)
            self._sender.cancel()


LOOK_AGAIN_MS = 15_000  # a wait looks again at least so often: notifications are hints
POLLED_AGAIN_MS = 30_000  # where a pulse shows every write before it
POLL_MS = 1_500  # and so often while it does not listen
LISTEN_WAIT_S = 2.0
LISTEN_S = 10.0
BACKOFF_S = 0.1
BACKOFF_MAX_S = 3.0
Pulse = tuple[str, int]  # the last writer of each counter, and how often all waits were called back


class PostgresListener:
    """The waiters of one handle; they are woken by a connection that listens, or by a pulse where none may."""

    def __init__(self, sender: str, clock: Clock) -> None:
        self._sender, self.clock = sender, clock
        self._run: Callable[[], Coroutine[Any, Any, None]] | None = None
        self._waiters: set[Waiter] = set()
        self._runner: asyncio.Task[None] | None = None
        self._listening = asyncio.Event()
        self._pulse: Pulse | None = None
        self._pulse_ms = 0.0
        self._again_ms = LOOK_AGAIN_MS

    def listen_by(self, connect: Callable[[], Awaitable[Connection]], channel: str) -> None:
        """By NOTIFY, on a connection of its own."""
        self._run = partial(self._listen, connect, channel)

    def poll_by(self, pulse: Callable[[], Awaitable[Pulse]]) -> None:
        """By polling the counters now and then: one statement, however many calls wait."""
        self._run, self._again_ms = partial(self._poll, pulse), POLLED_AGAIN_MS

    @property
    def is_listening(self) -> bool:
        return self._listening.is_set()

    @contextmanager
    def listen(self, kinds: int, version: int) -> Iterator[Waiter]:
        waiter = Waiter(kinds, version)
        self._waiters.add(waiter)
        try:
            yield waiter
        finally:
            self._waiters.discard(waiter)

    async def start(self) -> bool:
        """Begin to listen, before a rest; true if it listens only from now on, so that one more look is needed."""
        if self._run is None or self._listening.is_set():
            return False
        is_new = self._runner is None or self._runner.done()
        if is_new:
            self._runner = asyncio.ensure_future(self._run())
        with suppress(TimeoutError):
            async with asyncio.timeout(LISTEN_WAIT_S if is_new else 0):
                await self._listening.wait()
        return self._listening.is_set()

    def wake_waiters(self, kinds: int, versions: frozenset[int] = EVERY) -> None:
        """Wake the calls that wait in these versions; none named: all."""
        for waiter in self._waiters:
            waiter.hear(kinds, versions)

    async def close(self) -> None:
        runner, self._runner = self._runner, None
        self.wake_waiters(WAKE)
        if runner is not None:
            runner.cancel()
            await asyncio.wait([runner])

    async def _listen(self, connect: Callable[[], Awaitable[Connection]], channel: str) -> None:
        """For ever; after a loss try again, less and less often."""
        pause_s, has_listened = BACKOFF_S, False
        while True:
            try:
                connection = await connect()
            except (PolluxError, *THEIRS):
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, BACKOFF_MAX_S)
                continue
            try:
                lost = asyncio.Event()
                connection.add_termination_listener(lambda _, lost=lost: lost.set())
                with suppress(*THEIRS):
                    async with asyncio.timeout(LISTEN_S):
                        await connection.add_listener(channel, self._hear)
                    pause_s = BACKOFF_S
                    self._listening.set()
                    # Notifications since the loss were missed, perhaps the end of all waits.
                    self.wake_waiters(RUNS | FEED | (WAKE if has_listened else 0))
                    has_listened = True
                    await lost.wait()
            finally:
                self._listening.clear()
                connection.terminate()
            await asyncio.sleep(pause_s)

    async def _poll(self, pulse: Callable[[], Awaitable[Pulse]]) -> None:
        """As long as calls wait, unless an election has brought the pulse.  After an error it counts as changed."""
        self._pulse = None
        try:
            while self._waiters:
                try:
                    self._compare(await pulse())
                except PolluxError:
                    self._compare(None)
                self._listening.set()
                while (rest_ms := self._pulse_ms + POLL_MS - self.clock.mono_ms()) > 0:
                    await self.clock.wait(asyncio.Event(), rest_ms)
        finally:
            self._listening.clear()

    def take_pulse(self, pulse: Pulse) -> None:
        """A pulse that came with another answer: the next poll is put off."""
        if self._pulse is not None and self.is_listening:
            self._compare(pulse)

    def _compare(self, felt: Pulse | None) -> None:
        last, self._pulse_ms = self._pulse, self.clock.mono_ms()
        if felt is None or felt != last:
            self.wake_waiters(RUNS | FEED)
        if felt is not None and last is not None and felt[1] != last[1]:
            self.wake_waiters(WAKE)
        self._pulse = felt or last

    def _hear(self, _connection: Any, _pid: int, _channel: str, payload: str) -> None:
        sender, kinds, versions = _read_payload(payload)
        if sender != self._sender and kinds:
            self.wake_waiters(kinds, versions)

    @property
    def look_again_ms(self) -> int:
        """How long a call rests at most between two looks."""
        return self._again_ms if self.is_listening else POLL_MS


class PostgresRest:
    """A waiting call between its looks."""

    def __init__(self, listener: PostgresListener, waiter: Waiter) -> None:
        self._listener, self._waiter = listener, waiter

    def begin(self) -> None:
        self._waiter.event.clear()

    @property
    def is_over(self) -> bool:
        return bool(self._waiter.heard & (WAKE | ASKED))

    async def rest(self, look: Look[Any], left_ms: float) -> Any | None:
        listener = self._listener
        if await listener.start():
            return None  # look once more: what came before it listened was not heard
        most_ms = listener.look_again_ms
        is_last = left_ms <= most_ms and (look.again_ms is None or left_ms < look.again_ms)
        nap_ms = max(1.0, min(left_ms, most_ms, most_ms if look.again_ms is None else look.again_ms))
        is_woken = await listener.clock.wait(self._waiter.event, nap_ms)
        if is_last and not is_woken and listener.is_listening:  # the time is up, and nothing happened in it
            return replace(look.found, now_ms=look.found.now_ms + int(nap_ms))
        return None


@lru_cache(maxsize=64)
def _read_payload(payload: str) -> tuple[str, int, frozenset[int]]:
    """Sender, kinds and versions of a payload; the same few come again and again."""
    kinds, _, rest = payload.partition(":")
    sender, _, versions = rest.partition(":")
    what = int(kinds) if kinds.isdecimal() else 0
    return sender, what, frozenset(int(each) for each in versions.split(",") if each.isdecimal())
