"""Consistency check of the keys: a run's hash is the truth; every queue, index and count is compared with it.

It runs beside working processes: one function checks each page, so that no write comes between a run and its indexes.
All keys under our prefix are seen once (SCAN), and all members of queues and indexes (ZSCAN).  What can be repaired
without guessing (places, members without a run, counts) is, if asked, page by page in the same way.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from redis import exceptions

from pollux.errors import StoreError, StoreRefused
from pollux.model import SCHEDULER_VERSION, Note
from pollux.store.check_report import (
    ENTRIES_ASIDE,
    FOUND_MAX,
    NOTED,
    AuditChainCheck,
    CheckFinding,
    CheckReport,
    Report,
    check_ends,
    finding,
    noted_findings,
)
from pollux.store.decoding import UNREADABLE
from pollux.store.job_cache import JobCache
from pollux.store.redis import codec, listing
from pollux.store.redis.address import RedisAddress, read_address
from pollux.store.redis.calls import RedisCalls
from pollux.store.redis.connection import BlockingConnection, RedisConnections
from pollux.store.redis.errors import in_our_words
from pollux.store.redis.inspect import format_at
from pollux.store.redis.library import KEYS, LOADED, library, name_of
from pollux.store.redis.server import FORMAT, check_format

ASK_S = 10.0
DEADLINE_MS = 30_000
PAGE = 500
NAMESPACES_MAX = 1_000  # that are remembered
# Indexes of runs, and where the id begins in their members: one each, one a version, one a job.
INDEXES = {"live": 16, "finished:plain": 30, "finished:unchanged": 30, "finished:dead": 30}
OF_VERSIONS = {"queue:1": 15, "queue:2": 15, "queue:3": 15, "leases": 1, "held": 16}
OF_JOBS = {"live": 16, "history": 30, "failed": 30, "dead": 30}
TYPES = {
    **dict.fromkeys(("meta", "keys", "tombs", "notes", "nodes", "home", "unfinished", "versions"), "hash"),
    **dict.fromkeys(("jobs:high", "jobs:normal", "jobs:low", "feed", "bell:runs", "bell:feed", "log"), "stream"),
}
_VERSION = re.compile(r"v[0-9]+:")
_RULES = {
    "library": "the functions of the server cannot be loaded",
    "foreign": "a key under our prefix is not ours",
    "records": "a record cannot be read",
    "places": "a run is not in the index of its state",
    "members": "a queue or index names a run that is not in it",
    "leases": "a leased run has no token",
    "orphans": "a run waits for a job that is deleted",
    "versions": "a run is in another version than its job",
    "jobs": "a job is not in its list, or among the due times",
    "counts": "a count differs from what is there",
    "feed": "an entry of the feed cannot be read",
}
_CAN_REPAIR = frozenset({"places", "members", "jobs", "counts"})


async def check(url: str, report: Report) -> CheckReport:
    """Look at everything.  Raises if there is no store of ours, or it cannot be read."""
    async with _connected(url) as walk:
        return await walk.look(report)


async def repair(url: str) -> None:
    """Put runs and jobs into the indexes of their state, remove members without a run, and count again."""
    async with _connected(url) as walk:
        walk.mends = True
        await walk.look(lambda *_: None)


@asynccontextmanager
async def _connected(url: str) -> AsyncIterator[_Walk]:
    address = read_address(url)
    listener, link = BlockingConnection(address), RedisConnections(address, DEADLINE_MS)
    try:
        with in_our_words(address.name):
            found = await format_at(listener, address)
            if found is None:
                raise StoreRefused(
                    f"{address.name} has no store under {address.prefix}:; name the right one with ?namespace="
                )
            check_format(found.decode(), address.name)
            yield _Walk(address, listener, link)
    finally:
        await listener.close()
        await link.close()


class _Walk:
    """One walk over all keys."""

    def __init__(self, address: RedisAddress, listener: BlockingConnection, link: RedisConnections) -> None:
        self._address, self._listener, self._link = address, listener, link
        self.mends = False
        self._wrong: dict[str, list[str]] = {rule: [] for rule in _RULES}
        self._runs = self._listed = self._seen = 0
        self._jobs = JobCache()
        self._with_history: set[str] = set()  # jobs with finished runs
        self._noted: list[Note] = []
        self._versions: list[int] = []
        self._namespaces: dict[str, bool] = {}  # beginnings of keys that are not ours: are they another store's?

    async def look(self, report: Report) -> CheckReport:
        report("the functions", 0, 0)
        await self._load_library()
        if not await self._are_ours():
            return self._checked(notes=0, log=0, findings=self._findings())
        total = int(await self._ask("DBSIZE"))
        async for keys in self._scan():
            await self._sort_out(keys)
            self._seen += len(keys)
            report("the keys", min(self._seen, total), total)
        self._versions = await self._all_versions()
        for name, begins in self._indexes():
            report(f"the index {name}", 0, 0)
            if await self._check_type(name, "zset"):
                await self._look_at_members(name, begins)
        report("jobs, counts and feed", 0, 0)
        await self._look_at_jobs()
        await self._look_at_counts()
        for version in self._versions:
            await self._look_at_feed(version)
        notes = await self._look_at_notes()
        log, audit = await self._look_at_log()
        return self._checked(notes, log, [*self._findings(), *noted_findings(self._noted), *audit])

    def _checked(self, notes: int, log: int, findings: list[CheckFinding]) -> CheckReport:
        what = f"{self._address.name}, keys {self._address.prefix}:*"
        return CheckReport(what, FORMAT, self._runs, self._listed, notes, log, tuple(findings))

    def _findings(self) -> list[CheckFinding]:
        return [
            each
            for rule, what in _RULES.items()
            for each in finding(rule, what, self._wrong[rule], can_repair=rule in _CAN_REPAIR)
        ]

    def _add(self, rule: str, words: str) -> None:
        if len(self._wrong[rule]) < FOUND_MAX and words not in self._wrong[rule]:  # SCAN may answer a key twice
            self._wrong[rule].append(words)

    async def _ask(self, *command: Any) -> Any:
        return await self._listener.ask(*command, within_s=ASK_S)

    # keys

    async def _load_library(self) -> None:
        try:
            await self._ask("FUNCTION", "LOAD", library().text)
        except exceptions.ResponseError as error:
            if LOADED not in str(error):
                self._add("library", str(error))

    async def _are_ours(self) -> bool:
        """The keys that every store has.  As long as one is of another type, nothing behind it can be looked at."""
        return all([await self._check_type(key, TYPES.get(key, "zset")) for key in KEYS])

    async def _scan(self) -> AsyncIterator[list[str]]:
        """Pages of all our keys, without the prefix; each is there at least once."""
        cursor, beginning = "0", f"{self._address.prefix}:"
        while True:
            answer = await self._ask("SCAN", cursor, "MATCH", f"{beginning}*", "COUNT", PAGE)
            cursor = answer[0].decode()
            yield [key.decode(errors="replace").removeprefix(beginning) for key in answer[1]]
            if cursor == "0":
                return

    async def _sort_out(self, keys: Sequence[str]) -> None:
        runs: list[str] = []
        for key in keys:
            kind, has_name, name = key.partition(":")
            bare = _VERSION.sub("", key, count=1) if _VERSION.match(key) else key
            if bare in KEYS:
                await self._check_type(key, TYPES.get(bare, "zset"))
            elif has_name and kind == "run":
                runs.append(name)
            elif has_name and kind in OF_JOBS and await self._check_type(key, "zset"):
                await self._look_at_members(key, OF_JOBS[kind])
                self._with_history |= {name} if kind in {"history", "failed"} else set()
            elif not has_name and self._is_of_the_store_around(key):
                continue
            elif not has_name or not (kind in {"job", "claim", *OF_JOBS} or await self._is_namespace(kind)):
                self._add("foreign", f"{self._address.prefix}:{key}")
        for start in range(0, len(runs), PAGE):
            await self._look_at_runs(runs[start : start + PAGE])

    def _is_of_the_store_around(self, key: str) -> bool:
        """With `?namespace=jobs` the lines `jobs:high` of the store beside it begin as our own keys do."""
        own = self._address.prefix.rpartition(":")[2]
        return own == "claim" or f"{own}:{key}" in KEYS

    async def _is_namespace(self, name: str) -> bool:
        """Does another store stand beside this one, under `?namespace=`?"""
        if name not in self._namespaces:
            found = await self._ask("TYPE", f"{self._address.prefix}:{name}:meta")
            is_ours = found == b"hash" and await self._ask("HEXISTS", f"{self._address.prefix}:{name}:meta", "format")
            if len(self._namespaces) >= NAMESPACES_MAX:
                self._namespaces.clear()
            self._namespaces[name] = bool(is_ours)
        return self._namespaces[name]

    async def _check_type(self, key: str, kind: str) -> bool:
        found = (await self._ask("TYPE", f"{self._address.prefix}:{key}")).decode()
        if found in (kind, "none"):
            return True
        self._add("foreign", f"{self._address.prefix}:{key} is a {found}, and should be a {kind}")
        return False

    async def _all_versions(self) -> list[int]:
        """Those that were ever used; what is left of one that was dropped is looked at, too."""
        known = await self._ask("HKEYS", f"{self._address.prefix}:versions")
        return sorted({SCHEDULER_VERSION, *(int(number) for number in known)})

    def _indexes(self) -> Iterator[tuple[str, int]]:
        yield from INDEXES.items()
        for version in self._versions:
            yield from ((name_of(version, name), begins) for name, begins in OF_VERSIONS.items())

    # runs

    async def _look_at_runs(self, ids: Sequence[str]) -> None:
        self._runs += len(ids)
        wrong = await self._link.run("check_runs", ids=ids)
        unreadable = {run_id for run_id, rule, _ in wrong if rule == "records"}
        for run_id, rule, words in wrong:
            self._add(rule, f"{run_id}: {words}")
        found = await self._link.run_raw("get_runs", ids=[run_id for run_id in ids if run_id not in unreadable])
        for row in codec.run_parts(found):
            if error := _unreadable(lambda row=row: row[1] and codec.run(row)):  # type: ignore[misc]
                self._add("records", f"{row[0].decode(errors='replace')}: {error}")
        misplaced = sorted({run_id for run_id, rule, _ in wrong if rule == "places"})
        if self.mends and misplaced:
            await self._link.run("mend_runs", ids=misplaced)

    async def _look_at_members(self, name: str, begins: int) -> None:
        key = f"{self._address.prefix}:{name}"
        async for members in self._members(key):
            wrong = await self._link.run("check_members", key=key, members=members, begins=begins)
            for member, words in wrong:
                self._add("members", f"{name}: {member}: {words}")
            if self.mends and wrong:
                strangers = [member for member, _ in wrong]
                await self._link.run("mend_members", key=key, members=strangers, begins=begins)

    async def _members(self, key: str) -> AsyncIterator[list[str]]:
        cursor = "0"
        while True:
            answer = await self._ask("ZSCAN", key, cursor, "COUNT", PAGE)
            cursor = answer[0].decode()
            if members := [member.decode(errors="replace") for member in answer[1][::2]]:
                yield members
            if cursor == "0":
                return

    # jobs and counts

    async def _look_at_jobs(self) -> None:
        prefix = self._address.prefix
        listed: set[str] = set()
        async for ids in self._members(f"{prefix}:jobs"):
            listed |= set(ids)
            await self._look_at_some_jobs(ids)
        for version in self._versions:
            async for dues in self._members(f"{prefix}:{name_of(version, 'due')}"):
                await self._look_at_dues(version, dues)
        async for keys in self._scan():
            missing = [key.removeprefix("job:") for key in keys if key.startswith("job:")]
            await self._look_at_some_jobs([job_id for job_id in missing if job_id not in listed])
        self._listed = len(listed)

    async def _look_at_some_jobs(self, ids: Sequence[str]) -> None:
        if not ids:
            return
        wrong, _ = await self._link.run("check_jobs", ids=ids, dues=[], version=SCHEDULER_VERSION)
        for job_id, words in wrong:
            self._add("jobs", f"{job_id}: {words}")
        strange = {job_id for job_id, _ in wrong}
        for row in await self._job_rows([job_id for job_id in ids if job_id not in strange]):
            if row and (error := _unreadable(lambda row=row: self._jobs.job(codec.stored_job(row)))):  # type: ignore[misc]
                self._add("records", f"job {row[0]}: {error}")
        if self.mends and wrong:
            await self._link.run("mend_jobs", ids=sorted(strange), dues=[], version=SCHEDULER_VERSION)

    async def _job_rows(self, ids: Sequence[str]) -> list[codec.Row]:
        """All at once, or one by one if one of them is no text at all."""
        try:
            found: list[codec.Row] = await self._link.run("get_jobs", ids=ids)
        except StoreError as error:
            if not isinstance(error.__cause__, UNREADABLE):
                raise
            if len(ids) == 1:
                self._add("records", f"job {ids[0]}: {error.__cause__}")
                return []
            found = [row for job_id in ids for row in await self._job_rows([job_id])]
        return found

    async def _look_at_dues(self, version: int, dues: Sequence[str]) -> None:
        _, nobodys = await self._link.run("check_jobs", ids=[], dues=dues, version=version)
        for member in nobodys:
            self._add("jobs", f"{member[15:]}: a due time that is not its own")
        if self.mends and nobodys:
            await self._link.run("mend_jobs", ids=[], dues=nobodys, version=version)

    async def _look_at_counts(self) -> None:
        names = {name async for page in self._members(f"{self._address.prefix}:counters") for name in page}
        counted = {name.removeprefix("failed ") for name in names}
        jobs = sorted(counted | self._with_history)
        for start in range(0, len(jobs) or 1, PAGE):
            batch = jobs[start : start + PAGE]
            wrong = await self._link.run("check_counts", jobs=batch, versions=self._versions)
            for name, stored, found in wrong:
                self._add("counts", f"{name}: {stored} are counted, {found} are there")
            if self.mends and wrong:
                await self._link.run("mend_counts", jobs=batch, versions=self._versions)

    # records

    async def _look_at_feed(self, version: int) -> None:
        place, key = "-", f"{self._address.prefix}:{name_of(version, 'feed')}"
        while page := await self._ask("XRANGE", key, place, "+", "COUNT", PAGE):
            place = f"({page[-1][0].decode()}"
            for number, fields in page:
                given = dict(zip(fields[::2], fields[1::2], strict=False))
                if error := _unreadable(lambda given=given: _check_entry(given)):  # type: ignore[misc]
                    self._add("feed", f"{number.decode()}: {error}")

    async def _look_at_notes(self) -> int:
        count = 0
        calls = RedisCalls(self._link, self._jobs, SCHEDULER_VERSION)
        async for row in listing.note_rows(calls, "", expired=True):
            count += 1
            if error := _unreadable(lambda row=row: codec.note(row)):  # type: ignore[misc]
                self._add("records", f"note {row[0]}: {error}")
            elif row[0].startswith(NOTED):
                self._noted.append(codec.note(row))
        seen = [[note.key, False, False, False] for note in self._noted if note.key.startswith(ENTRIES_ASIDE)]
        if self.mends and seen:
            await self._link.run("put_notes", puts=seen, v=SCHEDULER_VERSION)
        return count

    async def _look_at_log(self) -> tuple[int, list[CheckFinding]]:
        chain, after, count = AuditChainCheck(), 0, 0
        while page := await self._link.run("read_log", after=after, limit=PAGE, newest=False):
            for line in page:
                read = listing.decode_line(line)
                chain.follow(read)
                after = read.seq
            count += len(page)
        return count, chain.findings()


def _check_entry(given: dict[bytes, bytes]) -> None:
    for name in (b"entry", b"ends"):
        if name not in given:
            raise ValueError(f"it has no field {name.decode()!r}")
    check_ends(codec.decode_entry(given[b"entry"]), int(given[b"ends"]))


def _unreadable(read: Callable[[], Any]) -> str | None:
    try:
        read()
    except UNREADABLE as error:
        return str(error) or type(error).__name__
    return None
