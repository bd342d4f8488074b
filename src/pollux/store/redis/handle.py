"""How does a verb get to its script, and how is it waited for?  What all verbs of a handle share.

One handle is one client with a few connections, and two more for waiting; a twin is another one.  Handles of other
versions that were made from it share its connections.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar
from weakref import WeakSet

from pollux.clock import Clock, SystemClock
from pollux.model import ALL_VERSIONS, SCHEDULER_VERSION, AuditLine, FeedItem, Job
from pollux.store.contract import Answer, Claimed, JobPut
from pollux.store.doors import shut
from pollux.store.parts import Turns, handle_version
from pollux.store.records import next_lines
from pollux.store.redis import calls, listing, rows
from pollux.store.redis.address import read_address
from pollux.store.redis.ear import OFFER_MS, Ear, Offer, Place, place_of
from pollux.store.redis.leaps import ServerTime
from pollux.store.redis.link import Link
from pollux.store.redis.plain import Leases
from pollux.store.redis.scripts import BELL_FEED, BELL_RUNS
from pollux.store.shelf import JobShelf

DEADLINE_MS = 10_000
LOOK_AGAIN_MS = 30_000  # a wait looks up at least so often: no ring is lost, but the server's clock may leap
PIECE = 250  # items that one call of a script works on where there may be any number of them
JOB_GONE = "its job was deleted"
T = TypeVar("T")
Looked = tuple[T, bool, int | None, Place]  # seen, is it enough, in how many ms there may be more, where the bell stood


_log = logging.getLogger("pollux.store.redis")


def _say(strays: list[str], healed: list[str]) -> None:
    """What somebody did to our keys by hand, and what became of it; each is found once."""
    for key in strays:
        _log.warning("the key %s stood in line and is no run of ours: somebody wrote there; it was taken out", key)
    for key in healed:
        _log.warning("the stream %s or its group was gone: somebody deleted it; it was made anew, no run is lost", key)


class Door:
    """What is opened and closed, for a handle and those of other versions that were made from it."""

    time: ServerTime

    def __init__(self) -> None:
        self.link: Link | None = None
        self.pid = 0
        self.handles: WeakSet[Handle] = WeakSet()
        self.versions: dict[int, Handle] = {}  # those of other versions: their connections are closed with the door

    def at_new_home(self) -> None:
        for handle in self.handles:
            handle.at_new_home()


class Handle:
    """One handle, of one version or of all."""

    def __init__(
        self,
        url: str,
        *,
        clock: Clock | None = None,
        deadline_ms: int = DEADLINE_MS,
        scheduler_version: int = SCHEDULER_VERSION,
    ) -> None:
        self._version = handle_version(scheduler_version)
        self._url, self._address = url, read_address(url)
        self._clock = clock or SystemClock()
        self._deadline_ms = deadline_ms
        self._jobs = JobShelf()
        self._entries: dict[int, FeedItem] = {}  # of the feed as last read: many stay for some turns
        self._leases = Leases()
        self._term_seen = 0  # the highest number that we were told: no store that lost it gives it away again
        self._runs_ear, self._feed_ear = self._ears()
        self._turns = Turns()
        self._door = Door()
        self._door.handles.add(self)

    @property
    def _link(self) -> Link | None:
        return self._door.link

    async def hush(self) -> None:
        """Nobody waits here any more, until it is opened again."""
        ears = self._runs_ear, self._feed_ear
        self._runs_ear, self._feed_ear = self._ears()
        for ear in ears:
            await ear.close()

    def _ears(self) -> tuple[Ear, Ear]:
        return Ear(self._address, BELL_RUNS, self._version), Ear(self._address, BELL_FEED, self._version)

    def _open(self) -> Link:
        door = self._door
        if door.link is None or os.getpid() != door.pid:
            raise shut(self._address.name, door.pid, is_open=door.link is not None)
        return door.link

    def at_new_home(self) -> None:
        """Another server has our keys, or they were replaced: what we remember may be of writes that are lost."""
        self._jobs, self._entries, self._leases = JobShelf(), {}, Leases()
        self._runs_ear.move()
        self._feed_ear.move()

    def _is_closed(self) -> bool:
        return self._link is None

    async def _run(self, verb: str, now_ms: int | None = None, **arguments: Any) -> Any:
        return await self._open().run(verb, now=now_ms, v=self._version, **arguments)

    def _job(self, row: rows.Row) -> Job:
        return self._jobs.job((*[None if value is False else value for value in row], SCHEDULER_VERSION))

    async def _take(self, asking: dict[str, Any], at_ms: int | None) -> tuple[Claimed, Place]:
        if self._version != ALL_VERSIONS:
            return await self._claim(asking | {"v": self._version}, at_ms)
        found, place = await self._run("versions", at_ms)

        async def one(version: int, token: str, limit: int) -> Claimed:
            asked = asking | {"token": token, "limit": limit, "v": version}
            return (await self._claim(asked, at_ms))[0]

        there = [row[0] for row in found] or [SCHEDULER_VERSION]
        claimed = await self._turns.claim(there, asking["token"], asking["limit"], one)
        assert claimed is not None
        return claimed, place_of(place)  # as it stood before we looked: also a version that came since has rung

    async def _claim(self, asking: dict[str, Any], at_ms: int | None) -> tuple[Claimed, Place]:
        lease_ms = asking["lease_ms"]
        asked_ms = self._clock.mono_ms()
        guarded: dict[str, Any] = {"hold_ms": 0, "expected": False}
        if at_ms is None:
            guarded = self._door.time.before(lease_ms)
        found = await self._open().run_raw("claim", **asking, **guarded, now=at_ms)
        claimed, place = self._claimed(found)
        if at_ms is None:
            self._door.time.learn(claimed.now_ms, asked_ms, lease_ms)
        return claimed, place

    def _claimed(self, found: list[bytes]) -> tuple[Claimed, Place]:
        answer, jobs, stops, look_again, now_ms, place, strays, healed = calls.decode(found[0])
        if strays or healed:
            _say(strays, healed)
        runs = self._leases.take(found)
        by_id = {row[0]: self._job(row) for row in jobs}
        look_again_ms = None if look_again is False else look_again
        return Claimed(Answer(answer), runs, by_id, stops, look_again_ms, now_ms), place_of(place)

    async def _cancel_job(
        self, job_id: str, reason: str, now_ms: int | None, *, waiting: bool = False
    ) -> list[tuple[str, str, int]]:
        """Its live runs of now, a part at a time; in the order of their coming."""
        after: str | bool = False
        upto: int | bool = False
        found: list[tuple[str, str, int]] = []
        while True:
            asked: dict[str, Any] = {
                "ids": [],
                "job": job_id,
                "after": after,
                "upto": upto,
                "limit": PIECE,
                "waiting": waiting,
            }
            part, after, upto = await self._run("cancel", now_ms, **asked, reason=reason)
            found += part
            if after is False:
                return sorted(found, key=lambda each: each[2])

    async def _delete_big(self, job_id: str, reason: str, now_ms: int | None) -> str:
        """Most of its waiting runs end before the job goes, and those that came meanwhile right after it."""
        await self._cancel_job(job_id, reason, now_ms, waiting=True)
        asked = {"ids": [job_id], "reason": reason, "limit": PIECE, "anyway": True}
        [answer] = await self._run("delete_jobs", now_ms, **asked)
        await self._cancel_job(job_id, reason, now_ms, waiting=True)
        return str(answer)

    async def _move_big(self, job_id: str, to: int, now_ms: int | None) -> str:
        """The job with the first of its live runs, then the others, a part at a time."""
        asked: dict[str, Any] = {"ids": [job_id], "to": to, "limit": PIECE, "anyway": True}
        [answer], after = await self._run("move_jobs", now_ms, **asked, after=False)
        while after:
            _, after = await self._run("move_jobs", now_ms, **asked, after=after)
        return str(answer)

    def _offer_of(self, asking: dict[str, Any]) -> Callable[[Claimed], Offer] | None:
        """The claim as it goes with a wait, after a look; none of more than one version or for the replicas' word."""
        if self._version == ALL_VERSIONS or self._address.wait:
            return None
        link = self._open()

        def offer(looked: Claimed) -> Offer:
            asked = asking | {"v": self._version, "hold_ms": 0, "expected": False, "until": looked.now_ms + OFFER_MS}
            return lambda is_known: link.packed("claim_plain", asked, is_known=is_known)

        return offer

    async def _wait(
        self,
        look: Callable[[float], Awaitable[Looked[T]]],
        wait_ms: int,
        *,
        node: str | None = None,
        offers: Callable[[T], Offer] | None = None,
        accept: Callable[[Any], T] | None = None,
    ) -> T:
        """Look until something is found, the time is over, or somebody asks us to come back.

        With `offers`, what is not found is asked for again with the wait; `accept` reads the answer to that.
        """
        if wait_ms <= 0:
            return (await look(0.0))[0]
        self._open()
        began = self._clock.mono_ms()
        ear = self._feed_ear if node is None else self._runs_ear
        with ear.listen(node or "") as waiter:
            while True:
                waiter.look()
                waited_ms = self._clock.mono_ms() - began
                found, is_enough, left_ms, place = await look(waited_ms)
                if is_enough or waited_ms >= wait_ms or self._is_closed():
                    return found
                nap_ms = min(wait_ms - waited_ms, LOOK_AGAIN_MS, LOOK_AGAIN_MS if left_ms is None else left_ms)
                # Nobody who has an offer under way leaves with nothing by himself: then it would be taken for nobody.
                offer = offers(found) if offers is not None and nap_ms > OFFER_MS else None
                ear.follow(waiter, place, offer)
                if waiter.is_asked_back:
                    return found
                await self._clock.wait(waiter.event, max(1.0, nap_ms))
                if waiter.gift is not None and accept is not None:
                    return accept(waiter.gift)
                if self._is_closed():
                    return found

    async def _log(self, lines: Sequence[AuditLine]) -> bool:
        """The hashes are ours to make, so the last line is read first; false if another came meanwhile."""
        before, written = await self._chained(lines)
        return bool(await self._run("log", before=before, lines=written))

    async def _chained(self, lines: Sequence[AuditLine]) -> tuple[int, list[str]]:
        """The number of the last line, and these as they may follow it."""
        last = await self._run("read_log", after=0, limit=1, newest=True)
        before = listing.decode_line(last[0]) if last else AuditLine(0, "", "", "")
        return before.seq, [rows.encode(line).decode() for line in next_lines(lines, before.seq, before.chain)]

    async def _put_and_log(
        self, puts: Sequence[JobPut], items: list[dict[str, Any]], is_ok: Sequence[bool], now_ms: int | None
    ) -> tuple[bool, list[rows.Row]]:
        """Which puts are ok must be known before their lines are chained, so it is a guess: if it is wrong, or another
        line came meanwhile, nothing is written (false), and the answers are a better guess.
        """
        told = [put.audit for put, ok in zip(puts, is_ok, strict=True) if ok and put.audit is not None]
        before, written = await self._chained(told)
        left = iter(written)
        for put, item, ok in zip(puts, items, is_ok, strict=True):
            if put.audit is not None:
                item["line"] = next(left) if ok else False
        is_done, answers = await self._run("put_jobs", now_ms, puts=items, before=before)
        return is_done, answers
