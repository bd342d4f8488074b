"""Handle on a Redis store: the way of a verb to its script, and its waits.

One handle is one client with a few connections, and two more for waiting; a twin is another one.  Handles of other
versions that were made from it share its connections.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import count
from random import Random
from typing import Any, NamedTuple, TypeVar
from weakref import WeakSet

from pollux.clock import Clock, SystemClock
from pollux.errors import StoreBusy, StoreError
from pollux.model import AT_THE_GATE, SCHEDULER_VERSION, AuditLine, FeedItem, Job, check_version
from pollux.store.contract import Answer, Audit, Claimed, JobPut, RunAnswer
from pollux.store.decoding import HandedBack, LeasedRow, legible
from pollux.store.dump_format import next_lines
from pollux.store.job_cache import JobCache
from pollux.store.redis import codec, listing, script_calls
from pollux.store.redis.address import read_address
from pollux.store.redis.connection import RedisConnections
from pollux.store.redis.errors import DeleteUnfinished
from pollux.store.redis.fast_path import FastPathLeases
from pollux.store.redis.scripts import BELL_FEED, BELL_RUNS
from pollux.store.redis.server_clock import RedisClock
from pollux.store.redis.wakeup import OFFER_MS, Offer, Place, RedisListener, place_of
from pollux.store.versions import shut

DEADLINE_MS = 10_000
LOOK_AGAIN_MS = 30_000  # a wait looks up at least so often: no ring is lost, but the server's clock may leap
PIECE = 250  # items that one call of a script works on where there may be any number of them
EXACT_TRIES = 3  # to guess what a change will be answered, and the end of the log; then we rest before each
REST_MAX_S = 0.032
NOT_YET = {
    "said": "?",
    "last": "",
    "lines": (),
    "is_late": False,
}  # what no script says: it only tells what it would do
T = TypeVar("T")
Looked = tuple[T, bool, int | None, Place]  # seen, is it enough, in how many ms there may be more, where the bell stood


_log = logging.getLogger("pollux.store")  # what it says is said also where nobody has set up a log


def _say(strays: list[str], healed: list[str]) -> None:
    """What somebody did to our keys by hand, and what became of it; each is found once."""
    for key in strays:
        _log.warning("the key %s stood in line and is no run of ours: somebody wrote there; it was taken out", key)
    for key in healed:
        _log.warning("the stream %s or its group was gone: somebody deleted it; it was made anew, no run is lost", key)


class UnreadableClaim(NamedTuple):
    """Of what was claimed: the runs that cannot be read, those whose job cannot be, and why, by run and by job."""

    broken: dict[str, str]
    aside: list[LeasedRow]
    reasons: dict[str, str]

    @property
    def is_any(self) -> bool:
        return bool(self.broken or self.aside)


class RedisOpenState:
    """What is opened and closed, for a handle and those of other versions that were made from it."""

    time: RedisClock
    log_turn: asyncio.Lock  # made when it is opened, as the connections are: both belong to one loop

    def __init__(self) -> None:
        self.link: RedisConnections | None = None
        self.pid = 0
        self.last_line = ""  # of the audit log, as far as we know
        self.handles: WeakSet[RedisHandle] = WeakSet()
        self.versions: dict[
            int, RedisHandle
        ] = {}  # those of other versions: their connections are closed with the door

    def at_new_home(self) -> None:
        for handle in self.handles:
            handle.at_new_home()


class RedisHandle:
    """One handle, of one version."""

    def __init__(
        self,
        url: str,
        *,
        clock: Clock | None = None,
        deadline_ms: int = DEADLINE_MS,
        scheduler_version: int = SCHEDULER_VERSION,
    ) -> None:
        self._version = check_version(scheduler_version)
        self._url, self._address = url, read_address(url)
        self._clock = clock or SystemClock()
        self._deadline_ms = deadline_ms
        self._jobs = JobCache()
        self._entries: dict[int, FeedItem] = {}  # of the feed as last read: many stay for some turns
        self._leases, self._aside = FastPathLeases(), HandedBack(self._clock)
        self._term_seen = 0  # the highest number that we were told: no store that lost it gives it away again
        self._runs_ear, self._feed_ear = self._ears()
        self._dice = Random()  # noqa: S311
        self._door = RedisOpenState()
        self._door.handles.add(self)

    @property
    def _link(self) -> RedisConnections | None:
        return self._door.link

    async def hush(self) -> None:
        """Nobody waits here any more, until it is opened again."""
        ears = self._runs_ear, self._feed_ear
        self._runs_ear, self._feed_ear = self._ears()
        for ear in ears:
            await ear.close()

    def _ears(self) -> tuple[RedisListener, RedisListener]:
        return RedisListener(self._address, BELL_RUNS, self._version), RedisListener(
            self._address, BELL_FEED, self._version
        )

    def _open(self) -> RedisConnections:
        door = self._door
        if door.link is None or os.getpid() != door.pid:
            raise shut(self._address.name, door.pid, is_open=door.link is not None)
        return door.link

    def at_new_home(self) -> None:
        """Another server has our keys, or they were replaced: what we remember may be of writes that are lost."""
        self._jobs, self._entries, self._leases = JobCache(), {}, FastPathLeases()
        self._runs_ear.move()
        self._feed_ear.move()

    def _is_closed(self) -> bool:
        return self._link is None

    async def _run(self, verb: str, now_ms: int | None = None, **arguments: Any) -> Any:
        return await self._open().run(verb, now=now_ms, v=self._version, **arguments)

    async def _job_rows(self, verb: str, **arguments: Any) -> list[codec.Row]:
        return script_calls.job_rows(await self._open().run_raw(verb, now=None, v=self._version, **arguments))

    def _job(self, row: codec.Row) -> Job:
        return codec.legible_job(self._jobs, row)

    def _revision_before(self, put: JobPut) -> int:
        """As it is expected, or was when the job was last read."""
        return (self._jobs.revision(put.job.id) if put.revision is None else put.revision) or 0

    async def _take(self, asking: dict[str, Any], at_ms: int | None) -> tuple[Claimed, Place]:
        """What cannot be read stands in nobody's way; if that was all, the next ones are taken."""
        asking |= {"v": self._version}
        while True:
            claimed, place, unread = await self._claim_once(asking, at_ms)
            if unread.is_any:
                await self._clear(unread, asking, claimed.now_ms, at_ms)
            if claimed.runs or not unread.is_any:
                return claimed, place

    async def _clear(self, unread: UnreadableClaim, asking: dict[str, Any], now_ms: int, at_ms: int | None) -> None:
        """A run that cannot be read is dead; one whose job cannot be is for others."""
        link, where = self._open(), {"v": asking["v"], "now": at_ms}
        if unread.broken:
            await link.run("bury", token=asking["token"], items=[*unread.broken.items()], **where)
        if unread.aside:
            for leased in unread.aside:
                self._leases.forget(leased.run_id)
            back = self._aside.settlements(unread.aside, unread.reasons, asking["node"], now_ms)
            items = [codec.settlement_row(each) for each in back]
            await link.run("settle", items=items, at_the_gate=AT_THE_GATE, **where)

    async def _claim_once(self, asking: dict[str, Any], at_ms: int | None) -> tuple[Claimed, Place, UnreadableClaim]:
        lease_ms = asking["lease_ms"]
        asked_ms = self._clock.mono_ms()
        guarded: dict[str, Any] = {"hold_ms": 0, "expected": False}
        if at_ms is None:
            guarded = self._door.time.before(lease_ms)
        found = await self._open().run_raw("claim", **asking, **guarded, now=at_ms)
        claimed, place, unread = self._claimed(found)
        if at_ms is None:
            self._door.time.learn(claimed.now_ms, asked_ms, lease_ms)
        return claimed, place, unread

    def _claimed(self, found: list[bytes]) -> tuple[Claimed, Place, UnreadableClaim]:
        """Also what cannot be read."""
        answer, jobs, stops, look_again, now_ms, place, strays, healed = script_calls.claim_head(found[0])
        if strays or healed:
            _say(strays, healed)
        runs, broken = self._leases.take(found)
        by_id: dict[str, Job] = {}
        reasons: dict[str, str] = {}
        for row in jobs:
            try:
                by_id[row[0]] = self._job(row)
            except StoreError as error:
                reasons[row[0]] = str(error.__cause__)
        aside: list[LeasedRow] = []
        if reasons:
            aside = [LeasedRow(run.id, run.token, run.job_id, run.fence) for run in runs if run.job_id in reasons]
            runs = [run for run in runs if run.job_id not in reasons]
        look_again_ms = None if look_again is False else look_again
        claimed = Claimed(Answer(answer), tuple(runs), by_id, stops, look_again_ms, now_ms)
        return claimed, place_of(place), UnreadableClaim(broken, aside, reasons)

    def _gift(self, gift: Any) -> Claimed | None:
        """What came with a ring; nothing if some of it cannot be read: the same claim, asked again, sees to that."""
        claimed, _, unread = self._claimed(gift[0])
        return None if unread.is_any else claimed

    async def _cancel(
        self, asked: dict[str, Any], audit: Audit[list[RunAnswer]] | None, now_ms: int | None
    ) -> list[RunAnswer]:
        """A part at a time; the first that does anything has the lines, and how many there may be behind it."""
        do, named = partial(self._cancel_part, now_ms), len(asked["ids"])
        if audit is None:
            return script_calls.run_answers(await to_the_end(await do(asked), asked, do), named)
        before, seen = (
            list[script_calls.CancelledRun](),
            script_calls.CancelledPart([("ok", run_id, 0) for run_id in asked["ids"]]),
        )
        while True:
            if asked["job"] is not False:
                seen, asked = await self._first_to_do(asked, before, now_ms)
            lines = partial(lines_of_part, audit, before, seen, named)
            part = await self._recorded(lines, "cancel", script_calls.part, (seen, seen.said), now_ms, **asked)
            if part.does_any or part.after is False:
                return script_calls.run_answers([*before, *await to_the_end(part, asked, do)], named)
            before += part.found  # somebody else was quicker
            asked = behind(part, asked)

    async def _first_to_do(
        self, asked: dict[str, Any], before: list[script_calls.CancelledRun], now_ms: int | None
    ) -> tuple[script_calls.CancelledPart, dict[str, Any]]:
        """The first part of a job in which anything is to be done, as it looks; what is found before it is added there.

        And how to ask for it: whatever comes or ends meanwhile, it will have no others than these.
        """
        part = await self._look_at_part(now_ms, asked)
        while part.after is not False and not part.does_any:
            before += part.found
            asked = behind(part, asked)
            part = await self._look_at_part(now_ms, asked)
        return part, asked | {"upto": part.upto, "to": part.after}

    async def _cancel_part(self, now_ms: int | None, asked: dict[str, Any]) -> script_calls.CancelledPart:
        return script_calls.part(await self._run("cancel", now_ms, **asked))

    async def _look_at_part(self, now_ms: int | None, asked: dict[str, Any]) -> script_calls.CancelledPart:
        """What a part would be; nothing is done."""
        _, found, _, self._door.last_line = await self._run("cancel", now_ms, **asked, told=NOT_YET)
        return script_calls.part(found)

    async def _finish(self, ids: Sequence[str] = (), now_ms: int | None = None, limit: int | None = None) -> int:
        """Do what deletes and moves have left of these jobs, or of all: how many runs were looked at, up to `limit`."""
        looked, is_more = 0, True
        while is_more and (limit is None or looked < limit):
            piece = PIECE if limit is None else min(PIECE, limit - looked)
            count, is_more, move = await self._run("finish", now_ms, ids=ids, limit=piece)
            looked += count
            if move:
                job_id, after, to = move
                await self._run("move_jobs", now_ms, ids=[job_id], after=after, to=to, limit=piece)
                looked += piece
        return looked

    async def _finished_before(
        self, add: Callable[[], Awaitable[T]], ids: Sequence[str], now_ms: int | None = None
    ) -> T:
        """Add jobs, of which some may have been deleted by somebody who was cut off: what he left ends first."""
        while True:
            try:
                return await add()
            except DeleteUnfinished:
                await self._finish(ids, now_ms)

    def _offer_of(self, asking: dict[str, Any]) -> Callable[[Claimed], Offer] | None:
        """The claim as it goes with a wait, after a look; none where each write waits for the replicas."""
        if self._address.wait:
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
        accept: Callable[[Any], T | None] | None = None,
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
                gift, waiter.gift = waiter.gift, None
                if gift is not None and accept is not None and (accepted := accept(gift)) is not None:
                    return accepted
                if self._is_closed():
                    return found

    async def _recorded(
        self,
        audit: Audit[T] | None,
        verb: str,
        read: Callable[[Any], T],
        guess: tuple[Any, Iterable[str]],
        now_ms: int | None = None,
        **asked: Any,
    ) -> T:
        """What a verb answers, with the lines that tell of it in the same write.

        Their hashes are ours to make, so what will be answered (and in which words the script says so) is guessed, and
        which line is the last.  If either is wrong nothing is written, and we are told how it is: the next guess.  From
        the second one on those of this handle go one by one: the log has one end.  Others write there as well: after
        some tries we rest a thrown while before each, until the deadline.
        """
        if audit is None:
            return read(await self._run(verb, now_ms, **asked))
        believed, said = read(guess[0]), "\n".join(guess[1])
        door, until = self._door, time.monotonic() + self._deadline_ms / 1000
        for nth in count():
            async with door.log_turn if nth else nullcontext():
                is_late = nth >= EXACT_TRIES
                if is_late:
                    await asyncio.sleep(self._dice.random() * REST_MAX_S)
                lines = chained_after(door.last_line, audit(believed))
                told = {"said": said, "last": door.last_line, "lines": lines, "is_late": is_late}
                is_done, found, *others = await self._run(verb, now_ms, **asked, told=told)
                believed = read(found)
                if is_done:
                    door.last_line = lines[-1] if lines else door.last_line
                    return believed
                was_right = others[0] == said
                said, door.last_line = others
            if time.monotonic() > until:
                raise self._outrun(verb, nth + 1, "wrote to the audit log" if was_right else "changed the same things")
        raise AssertionError("it counts for ever")

    def _outrun(self, verb: str, tries: int, did: str) -> StoreBusy:
        return StoreBusy(
            f"{verb} changed nothing on {self._address.name}: others {did} before each of {tries} tries within "
            f"{self._deadline_ms} ms; try again"
        )


async def to_the_end(
    first: script_calls.CancelledPart,
    asked: dict[str, Any],
    ask: Callable[[dict[str, Any]], Awaitable[script_calls.CancelledPart]],
) -> list[script_calls.CancelledRun]:
    """What a part and all that follow it have found."""
    part, found = first, list(first.found)
    while part.after is not False:
        part = await ask(behind(part, asked))
        found += part.found
    return found


def behind(part: script_calls.CancelledPart, asked: dict[str, Any]) -> dict[str, Any]:
    """How to ask for what follows a part."""
    return asked | {"ids": [], "after": part.after, "upto": part.upto, "to": False}


def lines_of_part(
    audit: Audit[list[RunAnswer]],
    before: Sequence[script_calls.CancelledRun],
    seen: script_calls.CancelledPart,
    named: int,
    part: script_calls.CancelledPart,
) -> Sequence[AuditLine]:
    """What tells of a part, which looked like `seen`; nothing if it does nothing and there is more behind it.

    Those behind it nobody has looked at: so many answers without an id.
    """
    if not part.does_any and part.after is not False:
        return ()
    # those that came since count for nothing, unless so many stand in between that it ends before its time
    unseen = (seen if part.after == seen.after else part).behind
    answers = script_calls.run_answers([*before, *part.found], named)
    return audit([*answers, *[RunAnswer(Answer.OK, "")] * unseen])


def chained_after(last: str, lines: Sequence[AuditLine]) -> list[str]:
    """Lines as they may follow the last one of the log, which is empty if there is none."""
    before = legible(listing.decode_line, last, "the last line of the audit log") if last else AuditLine(0, "", "", "")
    return [codec.encode(line).decode() for line in next_lines(lines, before.seq, before.chain)]
