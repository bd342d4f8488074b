"""Test bed of the chaos tests: a folder with a store and a ledger, and the processes that were started in it.

Every process is ended in `close`, by its own pid.  Waiting is polling a predicate until a generous deadline.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import importlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TypeVar

import apsw

from pollux import Pollux
from pollux.model import LIVE, Cause, Job, Run, RunState
from pollux.store.contract import PAGE_MAX, RunFilter
from tests.chaos import checker
from tests.chaos.checker import Snapshot
from tests.chaos.ledger import Ledger, Told, read
from tests.chaos.node import INTERVALS

REPOSITORY = Path(__file__).parents[2]
LOOK_SECONDS = 0.02
PATIENCE_SECONDS = 120.0  # with a process that hangs, not with one that is slow
FREEZES_MAX = 20
FEED_MAX = 100_000  # entries: more than any test leaves
T = TypeVar("T")


async def wait_until(look: Callable[[], Awaitable[T]], what: str, *, seconds: float = PATIENCE_SECONDS) -> T:
    """The first true answer of `look`, or a failure that says what never came."""
    deadline, begin = time.monotonic() + seconds, time.monotonic()
    while not (found := await look()):
        took = time.monotonic() - begin
        assert begin + took < deadline, f"{what}: not within {seconds:g} s"
        await asyncio.sleep(max(LOOK_SECONDS, took))  # the process that is waited for needs the machine, too
        begin = time.monotonic()
    return found


class Process:
    """One real process, with what it said."""

    def __init__(self, popen: subprocess.Popen[bytes] | BaseProcess, log: Path) -> None:
        self._popen, self.log = popen, log
        assert popen.pid is not None
        self.pid: int = popen.pid

    @property
    def returncode(self) -> int | None:
        return self._popen.poll() if isinstance(self._popen, subprocess.Popen) else self._popen.exitcode

    @property
    def is_alive(self) -> bool:
        return self.returncode is None

    def signal(self, number: signal.Signals) -> None:
        """To this very process: no other one gets its pid until its end is read."""
        if self.is_alive:
            os.kill(self.pid, number)

    async def is_stopped(self) -> bool:
        """A signal takes its time until it has stopped every thread."""
        stats = Path(f"/proc/{self.pid}/task").glob("*/stat")  # noqa: ASYNC240  no disk behind it
        return all(stat.read_text().rpartition(")")[2].split()[0] == "T" for stat in stats)

    async def exit_code(self, *, seconds: float = PATIENCE_SECONDS) -> int:
        async def ended() -> bool:
            return not self.is_alive

        await wait_until(ended, f"the end of pid {self.pid}\n{self.said()}", seconds=seconds)
        assert self.returncode is not None
        return self.returncode

    def end(self) -> None:
        """Now, whatever it does; also if it is stopped."""
        if self.is_alive:
            self._popen.kill()
        if isinstance(self._popen, subprocess.Popen):
            self._popen.wait()
        else:
            self._popen.join()
            self._popen.close()

    def said(self) -> str:
        return self.log.read_text(errors="replace")[-4_000:] if self.log.exists() else ""


def started(
    words: list[str], log: Path, variables: Mapping[str, str] | None = None, before: Sequence[str] = ()
) -> Process:
    """A Python of its own, from the very beginning; `before`: what puts it in its place and becomes it."""
    with log.open("ab") as out:
        popen = subprocess.Popen(
            [*before, sys.executable, *words],
            cwd=REPOSITORY,
            env={**os.environ, **(variables or {})},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )
    return Process(popen, log)


def forked(module: str, words: list[str], log: Path) -> Process:
    """The same, forked from a server that has everything imported: a node is up in a tenth of the time."""
    process = _FORKS.Process(target=_live, args=(module, words, str(log)))
    process.start()
    return Process(process, log)


_FORKS = get_context("forkserver")
_FORKS.set_forkserver_preload(
    ["tests.chaos.node", "tests.chaos.client", "pollux.store.redis.store", "pollux.store.postgres.store"]
)


def _live(module: str, words: list[str], log: str) -> None:
    out = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(out, 1)
    os.dup2(out, 2)
    sys.argv = [module, *words]
    importlib.import_module(f"tests.chaos.{module}").main()


class Yard:
    """A store, a ledger, and everything that was started on them.  The store is a SQLite file, unless one is given."""

    def __init__(self, folder: Path, store: str = "") -> None:
        self.folder = folder
        self.file = folder / "pollux.db"
        self.store = store or f"sqlite:///{self.file}"
        self.ledger = Ledger(folder / "ledger")
        self.processes: list[Process] = []
        self._eye: Pollux | None = None

    # processes

    def node(
        self, *options: str, store: str = "", variables: Mapping[str, str] | None = None, before: Sequence[str] = ()
    ) -> Process:
        """`store`: another way to the same one."""
        return self._start("node", *options, store=store, variables=variables, before=before)

    def serve(self, *options: str, store: str = "") -> Process:
        """It plans and runs."""
        return self.node(*options, store=store)

    def worker(self, *options: str, store: str = "") -> Process:
        """It only runs."""
        return self.node("plans=0", *options, store=store)

    def client(self, *, seed: int, count: int, seconds: float) -> Process:
        return self._start("client", str(seed), str(count), str(seconds))

    def _start(
        self,
        module: str,
        *words: str,
        store: str = "",
        variables: Mapping[str, str] | None = None,
        before: Sequence[str] = (),
    ) -> Process:
        log = self.folder / f"{module}-{len(self.processes)}.log"
        given = [store or self.store, str(self.ledger.path), *words]
        if variables or before:
            process = started(["-m", f"tests.chaos.{module}", *given], log, variables, before)
        else:
            process = forked(module, given, log)
        self.processes.append(process)
        return process

    async def is_up(self, *processes: Process) -> None:
        """All of them plan or run."""

        async def look() -> bool:
            for process in processes:
                assert process.is_alive, f"pid {process.pid} ended by itself:\n{process.said()}"
            return {process.pid for process in processes} <= self.told().up

        await wait_until(look, "the start of a node")

    async def kill(self, *processes: Process) -> int:
        """SIGKILL, and write down how many leases they held; answers how many."""
        for process in processes:
            process.signal(signal.SIGKILL)
        return await self.died(*processes)

    async def died(self, *processes: Process) -> int:
        """They end by SIGKILL, ours or their own; write down how many leases they held."""
        for process in processes:
            assert await process.exit_code() == -signal.SIGKILL, process.said()
        at_ns = time.monotonic_ns()
        leased = await self.runs(RunState.LEASED)
        held = [sum(f":{process.pid}:" in run.owner for run in leased) for process in processes]
        for process, count in zip(processes, held, strict=True):
            self.ledger.write("kill", process.pid, count, at_ns)
        return sum(held)

    async def freeze(self, process: Process) -> None:
        """SIGSTOP, but not in the middle of a commit: who is stopped with the write lock in hand stops everybody."""
        for _ in range(FREEZES_MAX):
            process.signal(signal.SIGSTOP)
            await wait_until(process.is_stopped, "a stopped process")
            if await self.is_unlocked():
                return
            process.signal(signal.SIGCONT)
            await asyncio.sleep(LOOK_SECONDS)
        raise AssertionError(f"pid {process.pid} always holds the write lock")

    async def is_unlocked(self) -> bool:
        """The write lock can be had within a second; a living holder lets go after one commit."""
        deadline = time.monotonic() + 1.0
        with Path(f"{self.file}.lock").open("rb") as file:  # noqa: ASYNC230  a lock, and never read
            while time.monotonic() < deadline:
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return True
                await asyncio.sleep(LOOK_SECONDS)
        return False

    async def stop(self, *processes: Process) -> None:
        """SIGTERM, and they must leave in order."""
        for process in processes:
            process.signal(signal.SIGTERM)
        for process in processes:
            assert await process.exit_code() == 0, process.said()

    # looking

    def told(self) -> Told:
        return read(self.ledger.path)

    async def eye(self) -> Pollux:
        """A handle of our own, which asks and enqueues and runs nothing."""
        if self._eye is None:
            self._eye = Pollux(self.store, name="chaos-eye")
            await self._eye.open()
        return self._eye

    async def runs(self, *states: RunState) -> list[Run]:
        eye, found, after = await self.eye(), [], None
        while True:
            page = await eye.operations.runs.list_runs(RunFilter(states=states), after=after, limit=PAGE_MAX)
            found += page.runs
            after = page.next
            if after is None:
                return found

    async def jobs(self) -> list[Job]:
        eye, found, after = await self.eye(), [], None
        while True:
            page = await eye.operations.jobs.list_jobs(after=after, limit=PAGE_MAX)
            found += page.jobs
            after = page.next
            if after is None:
                return found

    async def first_dues(self) -> dict[str, int]:
        """When each interval job fired first; waits until all have."""

        async def look() -> dict[str, int]:
            firsts: dict[str, int] = {}
            for run in await self.runs():
                if run.cause is Cause.SCHEDULE:
                    firsts[run.job_id] = min(run.due_ms, firsts.get(run.job_id, run.due_ms))
            return firsts if firsts.keys() == INTERVALS.keys() else {}

        return await wait_until(look, "the first firing of every interval job")

    async def ask(self, job: str, run_id: str, **params: object) -> None:
        """Enqueue one run through our own handle, and write down what we heard."""
        app = await self.eye()
        self.ledger.write("ask", run_id)
        await app.enqueue(job, params, id=run_id)
        self.ledger.write("enq", run_id, "ok")

    async def started(self, process: Process, *run_ids: str, seconds: float = PATIENCE_SECONDS) -> None:
        """The handlers of these runs have been started by that process."""

        async def look() -> bool:
            return set(run_ids) <= {step.run_id for step in self.told().runs if step.pid == process.pid}

        await wait_until(look, f"the start of {run_ids} by pid {process.pid}", seconds=seconds)

    async def leader(self, *among: Process, seconds: float = PATIENCE_SECONDS) -> Process:
        """The one of them that won the last term."""

        async def look() -> list[Process]:
            last = max(self.told().terms, default=None)
            return [process for process in among if last is not None and process.pid == last.pid]

        [found] = await wait_until(look, "a leader among those that live", seconds=seconds)
        return found

    async def fires_on(self, *, seconds: float = PATIENCE_SECONDS) -> None:
        """Every interval job fires once more."""
        before = {job.id: job.last_due_ms for job in await self.jobs()}

        async def look() -> bool:
            now = {job.id: job.last_due_ms for job in await self.jobs()}
            return all(now[job_id] != before[job_id] for job_id in INTERVALS)

        await wait_until(look, "another firing of every interval job", seconds=seconds)

    async def quiet(self, *, seconds: float = PATIENCE_SECONDS) -> None:
        """Everything that was asked for or followed up has ended; interval jobs go on."""

        async def look() -> bool:
            live = await self.runs(*sorted(LIVE))
            return all(run.job_id in INTERVALS for run in live)

        await wait_until(look, "the end of all runs", seconds=seconds)

    async def finish(self) -> None:
        """After the last node that plans has left: what its interval jobs followed up meanwhile ends, too."""
        worker = self.worker()
        await self.is_up(worker)

        async def look() -> bool:
            return not await self.runs(RunState.LEASED, RunState.READY)

        await wait_until(look, "the end of what was left")
        await self.stop(worker)

    # judging

    async def judge(self, *, first_due: Mapping[str, int] | None = None) -> Snapshot:
        """Everybody has left: the promises held, and the file is sound."""
        store = await self.snapshot()
        broken = checker.judge(self.told(), store, first_due=first_due)
        assert not broken, "\n".join(map(str, broken))
        await self._leave()
        assert await self.integrity() == "ok"
        return store

    async def snapshot(self) -> Snapshot:
        """All that is there, as a fresh handle sees it, not as this one remembers."""
        await self._leave()
        store = (await self.eye())._store
        feed = await store.feed(limit=FEED_MAX)
        return Snapshot(runs=tuple(await self.runs()), jobs=tuple(await self.jobs()), feed=feed.items)

    async def integrity(self) -> str:
        with contextlib.closing(apsw.Connection(str(self.file))) as connection:
            return "\n".join(str(row[0]) for row in connection.execute("PRAGMA integrity_check"))

    async def _leave(self) -> None:
        if self._eye is not None:
            await self._eye.close()
            self._eye = None

    async def close(self) -> None:
        for process in self.processes:
            process.end()
        await self._leave()
        self.ledger.close()
