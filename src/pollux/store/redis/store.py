"""Backend on a Redis server: calls of the library's functions, claims that cannot be decoded, and waits.

One backend is one client with a few connections, and two more for waiting; a twin is another one.  Backends of other
versions that were made from it share its connections.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec
from msgspec import structs

from pollux.clock import Clock, SystemClock
from pollux.errors import StoreError
from pollux.model import AT_THE_GATE, SCHEDULER_VERSION, FeedItem, Job, Note, NotePut, Plan, Run, check_version
from pollux.store.backend import Look
from pollux.store.clock_jumps import SLACK_MS, JumpGuard
from pollux.store.contract import Advanced, Answer, Audit, Capabilities, Claimed, Feed, Pruning, RunAnswer, Settlement
from pollux.store.decoding import UNREADABLE, HandedBack, LeasedRow, decode_or_raise
from pollux.store.handle import StoreHandle, has_answer
from pollux.store.job_cache import JobCache
from pollux.store.redis import codec, verbs
from pollux.store.redis.address import read_address
from pollux.store.redis.calls import RedisCalls
from pollux.store.redis.connection import RedisConnections
from pollux.store.redis.library import BELL_FEED, BELL_RUNS
from pollux.store.redis.server import problems_of
from pollux.store.redis.wakeup import OFFER_MS, RedisListener, RedisWaiter, place_of
from pollux.store.server_clock import ServerClock
from pollux.store.values import ClaimRequest
from pollux.store.versions import shut

DEADLINE_MS = 10_000
HANDLE_SLACK_MS = 2_000  # of the handle after it: our refusal gives its reason
LOOK_AGAIN_MS = 30_000  # a wait looks again at least so often: no wake-up is lost, but the server's clock may jump

_encode = msgspec.msgpack.Encoder().encode
_log = logging.getLogger("pollux.store")  # its lines are seen also where no log is set up


class RedisClock:
    """The server's clock as far as its last answer tells, carried on by our monotonic one, and its jumps."""

    def __init__(self, clock: Clock, now_ms: int) -> None:
        self._clock = clock
        self._now_ms, self._at_ms = now_ms, clock.mono_ms()
        self._guard = JumpGuard(self)

    def now_ms(self) -> int:
        return int(self._now_ms + self._clock.mono_ms() - self._at_ms)

    def mono_ms(self) -> float:
        return self._clock.mono_ms()

    def before(self, lease_ms: int) -> dict[str, int]:
        """What goes with a claim: for how long no lease may be taken back, and what time it should find."""
        grace_ms = lease_ms // 3 + SLACK_MS
        return {"hold_ms": self._guard.hold_ms(lease_ms), "expected": self.now_ms(), "grace_ms": grace_ms}

    def learn(self, now_ms: int, asked_ms: float, lease_ms: int) -> None:
        """What it showed when it was asked at that monotonic time; a jump begins a grace."""
        self._now_ms, self._at_ms = now_ms, asked_ms
        self._guard.hold_ms(lease_ms)


class DecodedClaim(NamedTuple):
    """What was claimed; the runs that cannot be decoded, those whose job cannot be, and why, by run and by job."""

    claimed: Claimed
    bell: str
    broken: dict[str, str]
    without_job: list[LeasedRow]
    reasons: dict[str, str]

    @property
    def is_whole(self) -> bool:
        return not self.broken and not self.without_job


class RedisOpenState:
    """What is opened and closed, for a backend and those of other versions that were made from it."""

    clock: RedisClock

    def __init__(self) -> None:
        self.link: RedisConnections | None = None
        self.pid = 0
        self.backends: dict[int, RedisBackend] = {}  # by version

    def forget(self) -> None:
        for backend in self.backends.values():
            backend.forget()


class RedisBackend:
    capabilities = Capabilities(name="redis", durable=False)

    def __init__(
        self, url: str, clock: Clock, deadline_ms: int, version: int, opened: RedisOpenState | None = None
    ) -> None:
        self.url, self.address, self.version = url, read_address(url), version
        self.clock, self.deadline_ms = clock, deadline_ms
        self.opened = opened or RedisOpenState()
        self.opened.backends[version] = self
        self._jobs, self._handed_back = JobCache(), HandedBack(clock)
        self._entries: dict[int, FeedItem] = {}  # of the feed as last read: many stay for some turns
        self._term_seen = 0  # the highest number that was answered: no store that lost it gives it away again
        self._server_clock = ServerClock(clock, self._server_now)
        self.runs_listener, self.feed_listener = self._listeners()

    @property
    def is_open(self) -> bool:
        return self.opened.link is not None

    async def open(self) -> None:
        opened = self.opened
        if opened.link is not None:
            return
        link = RedisConnections(self.address, self.deadline_ms)
        try:
            now_ms = await link.open()
        except BaseException:
            await link.close()
            raise
        link.on_new_home = opened.forget
        opened.clock = RedisClock(self.clock, now_ms)
        opened.link, opened.pid = link, os.getpid()

    async def close(self) -> None:
        opened = self.opened
        if opened.link is None:
            return
        link, opened.link = opened.link, None
        if os.getpid() == opened.pid:
            for backend in list(opened.backends.values()):
                await backend.end_waits()
            await link.close()

    async def end_waits(self) -> None:
        listeners = self.runs_listener, self.feed_listener
        self.runs_listener, self.feed_listener = self._listeners()
        for listener in listeners:
            await listener.close()

    def _listeners(self) -> tuple[RedisListener, RedisListener]:
        runs, feed = (RedisListener(self.address, bell, self.version) for bell in (BELL_RUNS, BELL_FEED))
        return runs, feed

    def twin(self) -> RedisBackend:
        return RedisBackend(self.url, self.clock, self.deadline_ms, self.version)

    def of_version(self, number: int) -> RedisBackend:
        known = self.opened.backends.get(number)
        return known or RedisBackend(self.url, self.clock, self.deadline_ms, number, self.opened)

    def forget(self) -> None:
        """Another server has our keys, or they were replaced: what we remember may be of writes that are lost."""
        self._jobs, self._entries = JobCache(), {}
        self.runs_listener.move()
        self.feed_listener.move()

    # verbs

    async def read(self, verb: str, *args: Any, now_ms: int | None = None) -> Any:
        return await verbs.VERBS[verb](self.calls(now_ms), *args)

    async def write(
        self, verb: str, *args: Any, audit: Audit | None = None, now_ms: int | None = None, unless_moved: bool = False
    ) -> Any:
        calls = self.calls(now_ms, audit, unless_moved=unless_moved)
        if verb != "elect":
            return await verbs.VERBS[verb](calls, *args)
        node_id, ttl_ms = args
        term = await verbs.elect(calls, node_id, ttl_ms, self._term_seen)
        self._term_seen = max(self._term_seen, term.number)
        return term

    async def feed(self, limit: int, *, now_ms: int | None) -> Look[Feed]:
        while True:
            known = self._entries
            exact = [entry_id for entry_id in known if entry_id < codec.COUNTED_MAX]
            found = await self.calls(now_ms).raw("feed", limit=limit, known=exact)
            if self._entries is known:
                break  # else forgotten meanwhile: at another server the same ids may be other entries
        items = codec.feed_items(found[2], known)
        self._entries = {item.id: item for item in items}
        return Look(Feed(items, int(found[0])), mark=place_of(found[1].decode()))

    async def advance(self, term: int, planned: Plan, *, now_ms: int | None) -> Advanced:
        found = await self.calls(now_ms)("advance", **codec.plan_of(term, planned))
        answer, at_ms, firings, updates, ready, seats, waiting = found
        made, learnt = ([Answer(each) for each in answers] for answers in (firings, updates))
        return Advanced(Answer(answer), at_ms, tuple(made), tuple(learnt), ready, seats, tuple(waiting))

    async def enqueue(
        self,
        made: Sequence[Run],
        puts: Sequence[NotePut],
        *,
        ready_max: int,
        unless_live: bool,
        audit: Audit | None,
        now_ms: int | None,
        unless_moved: bool,
    ) -> list[RunAnswer]:
        rows, calls = codec.checked_rows(made), self.calls(now_ms, audit, unless_moved=unless_moved)
        asked = {"notes": codec.note_rows(puts), "ready_max": ready_max, "unless_live": unless_live}
        found = await calls("enqueue", rows=rows, **asked)
        ids = [row[0] for row in rows]
        if found is True:
            return [RunAnswer(Answer.OK, run_id) for run_id in ids]
        return verbs.run_answers(ids, found)

    async def settle(self, settlements: Sequence[Settlement], *, now_ms: int | None) -> list[Answer]:
        await asyncio.sleep(0)  # a claim of the same moment goes first: the server works on it while we encode this
        items = [codec.settlement_row(settlement) for settlement in settlements]
        answers = await self.calls(now_ms)("settle", items=items, at_the_gate=AT_THE_GATE)
        return [Answer.OK] * len(items) if answers is True else [Answer(each) for each in answers]

    async def prune(self, what: Pruning, *, audit: Audit | None, now_ms: int | None, unless_moved: bool) -> int:
        return await verbs.prune(self.calls(now_ms, audit, unless_moved=unless_moved), what)

    async def now(self) -> int:
        return await self._server_clock.now_ms()

    async def _server_now(self) -> int:
        return await self.link().time_ms()

    async def problems(self) -> tuple[str, ...]:
        return problems_of(await self.link().info(), self.address)

    def calls(self, now_ms: int | None = None, audit: Audit | None = None, *, unless_moved: bool = False) -> RedisCalls:
        return RedisCalls(self.link(), self._jobs, self.version, now_ms, audit, unless_moved)

    def link(self) -> RedisConnections:
        """The connections, if this process may use them now."""
        opened = self.opened
        if opened.link is None or os.getpid() != opened.pid:
            raise shut(self.address.name, opened.pid, is_open=opened.link is not None)
        return opened.link

    # claims

    async def claim(self, request: ClaimRequest, *, now_ms: int | None) -> Look[Claimed]:
        """What cannot be decoded is handed back or ends; if that was all, the next ones are taken."""
        while True:
            found = await self._claim_once(request, now_ms)
            claimed = found.claimed
            if not found.is_whole:
                await self._clear(found, request, now_ms)
            if claimed.runs or found.is_whole:
                again_ms = None if claimed.look_again_ms is None else claimed.look_again_ms - claimed.now_ms
                return Look(claimed, again_ms, place_of(found.bell))

    async def _claim_once(self, request: ClaimRequest, now_ms: int | None) -> DecodedClaim:
        clock, asked_ms = self.opened.clock, self.clock.mono_ms()
        guarded = {"hold_ms": 0, "expected": False} if now_ms is not None else clock.before(request.lease_ms)
        found = self.decoded(await self.calls(now_ms).raw("claim", **structs.asdict(request), **guarded))
        if now_ms is None:
            clock.learn(found.claimed.now_ms, asked_ms, request.lease_ms)
        return found

    def decoded(self, parts: list[bytes]) -> DecodedClaim:
        answer, rows, stops, again_ms, now_ms, bell, strays, healed = codec.claim_head(parts[0])
        _warn(strays, healed)
        jobs: dict[str, Job] = {}
        reasons: dict[str, str] = {}
        for row in rows:
            try:
                jobs[row[0]] = decode_or_raise(self.job, codec.stored_job(row), f"job {row[0]!r}")
            except StoreError as error:
                reasons[row[0]] = str(error.__cause__)
        runs: list[Run] = []
        broken: dict[str, str] = {}
        for run_id, state, body in codec.run_parts(parts, first=1):
            try:
                if not state:  # the function could not read all of it, and names the fields
                    raise ValueError(f"another client wrote its {body.decode()}")
                runs.append(codec.run((run_id, state, body)))
            except UNREADABLE as error:
                broken[run_id.decode()] = f"it cannot be read ({error})"
        without_job: list[LeasedRow] = []
        if reasons:
            without_job = [LeasedRow(run.id, run.token, run.job_id, run.fence) for run in runs if run.job_id in reasons]
            runs = [run for run in runs if run.job_id not in reasons]
        look_again_ms = None if again_ms is False else again_ms
        claimed = Claimed(Answer(answer), tuple(runs), jobs, stops, look_again_ms, now_ms)
        return DecodedClaim(claimed, bell, broken, without_job, reasons)

    async def _clear(self, found: DecodedClaim, request: ClaimRequest, now_ms: int | None) -> None:
        """A run that cannot be decoded is dead; one whose job cannot be is for others."""
        calls = self.calls(now_ms)
        if found.broken:
            await calls("bury", token=request.token, items=[*found.broken.items()])
        if found.without_job:
            at_ms = found.claimed.now_ms
            back = self._handed_back.settlements(found.without_job, found.reasons, request.node, at_ms)
            items = [codec.settlement_row(each) for each in back]
            await calls("settle", items=items, at_the_gate=AT_THE_GATE)

    def offer(self, request: ClaimRequest, looked: Claimed) -> bytes | None:
        """The claim as it goes with a wait, after a look; none where each write waits for the replicas.

        It takes no lease back: the clock may have jumped since the look.
        """
        if self.address.wait:
            return None
        limits = {"hold_ms": request.lease_ms, "expected": False, "until": looked.now_ms + OFFER_MS}
        return self.link().packed("claim", _encode(self.calls().packed(structs.asdict(request) | limits)))

    @contextmanager
    def listen(self, request: ClaimRequest | None, *, is_live: bool) -> Iterator[RedisRest]:
        self.link()
        listener = self.feed_listener if request is None else self.runs_listener
        with listener.listen("" if request is None else request.node) as waiter:
            yield RedisRest(self, listener, waiter, request if is_live else None)

    # rows

    def job(self, row: Any) -> Job:
        return self._jobs.job(row)

    def run(self, row: Any) -> Run:
        """One of `get_runs`, or one that `list_runs` has decoded."""
        if len(row) == 3:
            return codec.run(row)
        if isinstance(row[1], Exception):
            raise row[1]
        run: Run = row[1]
        return run

    def note(self, row: Any) -> Note:
        return codec.note(row)


class RedisRest:
    """A waiting call.

    One that claims leaves its claim with the server while it rests: the write that makes a run ready is followed by
    that claim, and no other round trip is needed.
    """

    is_over = False  # `rest` tells: it is the first to compare the wake-ups with the place of the look

    def __init__(
        self, backend: RedisBackend, listener: RedisListener, waiter: RedisWaiter, request: ClaimRequest | None
    ) -> None:
        self._backend, self._listener, self._waiter, self._request = backend, listener, waiter, request

    def begin(self) -> None:
        self._waiter.look()

    async def rest(self, look: Look[Any], left_ms: float) -> Any | None:
        waiter = self._waiter
        nap_ms = min(left_ms, LOOK_AGAIN_MS, LOOK_AGAIN_MS if look.again_ms is None else look.again_ms)
        # A call does not leave while its offer is under way: what the server claims for it would be lost.
        offer = None
        if self._request is not None and nap_ms > OFFER_MS:
            offer = self._backend.offer(self._request, look.found)
        self._listener.follow(waiter, look.mark, offer)
        if waiter.is_asked_back:
            return look.found
        await self._backend.clock.wait(waiter.event, max(1.0, nap_ms))
        answer, waiter.offer_answer = waiter.offer_answer, None
        if answer is None:
            return None
        found = self._backend.decoded(answer[0])
        # Of what cannot be decoded nothing is answered: the same claim, asked again, sees to that.
        return found.claimed if found.is_whole and has_answer(found.claimed) else None


class RedisStore(StoreHandle):
    backend: RedisBackend

    def __init__(
        self,
        url: str,
        *,
        clock: Clock | None = None,
        deadline_ms: int = DEADLINE_MS,
        scheduler_version: int = SCHEDULER_VERSION,
    ) -> None:
        clock = clock or SystemClock()
        backend = RedisBackend(url, clock, deadline_ms, check_version(scheduler_version))
        super().__init__(backend, clock=clock, deadline_ms=deadline_ms + HANDLE_SLACK_MS)


def _warn(strays: list[str], healed: list[str]) -> None:
    """What another client did to our keys, and what became of it; each is found once."""
    for key in strays:
        _log.warning("the key %s was in a queue and is no run of ours: another client wrote it; it was taken out", key)
    for key in healed:
        _log.warning("the stream %s or its group was deleted by another client; it was made anew, no run is lost", key)
