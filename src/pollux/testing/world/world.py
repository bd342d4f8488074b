"""One world: real nodes, users and faults on one virtual event loop, run from a script to its end.

script ─▶ nodes start ─▶ faults and users, judged at every step ─▶ all is mended ─▶ calm ─▶ judged as a whole
"""

from __future__ import annotations

import asyncio
import gc
import logging
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from random import Random

from msgspec import Struct

from pollux.app import Operations
from pollux.app.declarations import NewestReleases
from pollux.app.operations import OperationContext
from pollux.errors import NotFound, PolluxError
from pollux.registry import Registry
from pollux.store.contract import JobPut
from pollux.testing.world.audit import StoreAuditor
from pollux.testing.world.handlers import WorldHandlers
from pollux.testing.world.judge import WorldJudge
from pollux.testing.world.ledger import BrokenPromise, WorldLedger
from pollux.testing.world.loop import ProcessState, RunawayWorld, WorldLoop
from pollux.testing.world.node import WorldNode
from pollux.testing.world.script import CALL_FAULTS, WAKEUP_FAULTS, Operation, Script, WorldFault
from pollux.testing.world.store import SharedStore
from pollux.testing.world.trace import WorldTrace
from pollux.testing.world.users import WorldUser, job_of

LOOK_S = 10.0
STEPS_MAX = 20_000_000


class WorldResult(Struct, frozen=True):
    """How a world ended."""

    script: Script
    broken: tuple[BrokenPromise, ...]
    digest: str
    reached: Counter[str]
    notable: list[str]
    lines: list[str]
    virtual_ms: int
    steps: int

    @property
    def is_sound(self) -> bool:
        return not self.broken

    @property
    def kinds(self) -> frozenset[str]:
        return frozenset(each.kind for each in self.broken)


class World:
    """A world, which runs once."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.loop = loop = WorldLoop()
        self.trace, self.ledger = WorldTrace(), WorldLedger()
        self.auditor = StoreAuditor(loop, self.trace, self.ledger, script.start_ms)
        self.store = SharedStore(loop, script, self.trace, self.auditor)
        self.auditor.clock = self.store.clock
        work = WorldHandlers(loop, script.seed, script.jobs, self.ledger, self.trace)
        self.nodes = [WorldNode(n, loop, self.store, script, self.trace, work) for n in range(script.nodes)]
        self.judge = WorldJudge(loop, self.ledger, self.auditor)
        self.user = WorldUser(loop, self.ledger, self.trace, script.jobs)
        self._calls: list[asyncio.Task[None]] = []

    def run(self) -> WorldResult:
        """Run it to its end, or to where it runs away."""
        was_collecting, logged = gc.isenabled(), logging.root.manager.disable
        gc.disable()  # the clean-up of coroutines of dead processes must not depend on when garbage is collected
        logging.disable()
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_until_complete(self._live())
        except RunawayWorld as error:
            self.ledger.breaks("runaway", str(error), self.loop.us)
        except PolluxError as error:
            self.ledger.breaks("unexpected refusal", f"{type(error).__name__}: {error}", self.loop.us)
        finally:
            result = self._result()
            self._end()
            asyncio.set_event_loop(None)
            logging.disable(logged)
            if was_collecting:
                gc.enable()
        return result

    def _result(self) -> WorldResult:
        for error in self.loop.errors:
            self.ledger.breaks("unhandled error", error, self.loop.us)
        return WorldResult(
            script=self.script,
            broken=tuple(self.ledger.broken),
            digest=self.trace.digest,
            reached=self.trace.reached,
            notable=self.trace.notable,
            lines=list(self.trace.lines),
            virtual_ms=self.loop.us // 1_000,
            steps=self.loop.steps,
        )

    def _end(self) -> None:
        for node in self.nodes:
            if node.process is not None:
                node.process.on_death = None
                node.process.die()
            node.forget()
        with warnings.catch_warnings(action="ignore"):  # what they await in their clean-up never comes
            for each in asyncio.all_tasks(self.loop):
                each._log_destroy_pending = False  # type: ignore[attr-defined]
                with suppress(RuntimeError):
                    each.get_coro().close()
            self.loop.close()
            self.nodes.clear()
            self._calls.clear()
            gc.collect(0)  # all that was made since the world began

    # the course of a world

    async def _live(self) -> None:
        script, loop = self.script, self.loop
        operations = self._outside()
        await self._put_jobs()
        for node in self.nodes:
            loop.call_later(Random(f"{script.seed} {node.name}").random() * 3, node.start)  # noqa: S311
        for fault in script.faults:
            loop.call_later(fault.at_ms / 1_000, self._strike, fault)
        for operation in script.operations:
            loop.call_later(operation.at_ms / 1_000, self._use, operation)
        await self._look_until(script.faults_ms, operations)
        await self._mend(operations)
        await self._look_until(script.faults_ms + script.calm_ms, operations)
        await self.judge.conclude(operations, self.store.clock.now_ms())

    def _outside(self) -> Operations:
        """Operations of the judge and of a user at the machine of the store: no network is between."""
        clock, dice = self.store.clock, Random(f"outside {self.script.seed}")  # noqa: S311
        context = OperationContext(self.store.direct(), Registry(), clock, dice, "judge", NewestReleases(clock))
        return Operations(context)

    async def _put_jobs(self) -> None:
        puts = [JobPut(job_of(each)) for each in self.script.jobs]
        if puts:
            await self.store.direct().put_jobs(puts)

    async def _look_until(self, at_ms: int, operations: Operations) -> None:
        """Let time pass, and look at the schedules and at health on the way."""
        while (left_s := at_ms / 1_000 - self.loop.time()) > 0:
            await asyncio.sleep(min(LOOK_S, left_s))
            page = await operations.jobs.list_jobs(limit=1_000)
            self.judge.look(list(page.jobs))
            still = self.judge.standing_still(list(page.jobs))
            if still:
                for node in self.nodes:
                    if node.is_ready and node.process is not None and node.process.is_running:
                        self._spawn(node, self._ask_health(node, still))
            if self.loop.steps > STEPS_MAX:
                raise RunawayWorld(f"{self.loop.steps:,} steps in {self.loop.time():.0f} virtual seconds")

    async def _ask_health(self, node: WorldNode, still: str) -> None:
        assert node.app is not None
        try:
            health = await node.app.watch.health()
        except PolluxError:
            return
        if node.process is not None and node.process.is_running:
            self.judge.hear(node.name, health, still)

    async def _mend(self, operations: Operations) -> None:
        """End all faults, start all nodes, set all clocks right, and end all pauses."""
        self.trace.note(self.loop.us, "world", "all faults end")
        self.store.heal()
        self.store.clock.set_right()
        for node in self.nodes:
            node.thaw()
            node.clock.set_right()
            node.start()
        await operations.workers.resume_workers()
        for note in await operations.pauses.stops():
            kind, _, name = note.key.partition(":")[2].partition(":")
            if kind == "job":
                with suppress(NotFound):  # it was deleted; its pause stays
                    await operations.pauses.resume(name)
            elif kind == "target":
                await operations.pauses.resume(target=name)

    # what comes from outside

    def _use(self, operation: Operation) -> None:
        """A user calls through a node that is there, the given one first."""
        order = self.nodes[operation.by :] + self.nodes[: operation.by]
        for node in order:
            if node.is_ready and node.process is not None and node.process.is_running and node.app is not None:
                self._spawn(node, self.user.do(operation, node.app.operations, node.name))
                return
        self.trace.note(self.loop.us, "user", f"{operation.verb} {operation.job}: no node answers")

    def _spawn(self, node: WorldNode, call: object) -> None:
        assert node.process is not None
        self._calls.append(self.loop.create_task(call, context=node.process.context.copy()))  # type: ignore[arg-type]

    def _strike(self, fault: WorldFault) -> None:
        node = self.nodes[fault.node % len(self.nodes)]
        words = f"{fault.kind}{f' {fault.verb}' if fault.verb else ''}{f' {fault.ms} ms' if fault.ms else ''}"
        self.trace.note(self.loop.us, f"fault at {node.name}", words)
        self.trace.reach(f"fault {fault.kind}")
        if fault.kind in CALL_FAULTS:
            if node.link is not None:
                node.link.order(fault)
        elif fault.kind in WAKEUP_FAULTS:
            if node.link is not None:
                node.link.wakeup_fault = fault.kind
                self._later(fault.ms, self._end_wakeup_fault, node)
        else:
            getattr(self, f"_{fault.kind}")(fault, node)

    def _later(self, ms: int, call: Callable[..., None], *args: object) -> None:
        self.loop.call_later(ms / 1_000, call, *args, context=Context())

    @staticmethod
    def _end_wakeup_fault(node: WorldNode) -> None:
        if node.link is not None:
            node.link.wakeup_fault = ""

    def _kill(self, fault: WorldFault, node: WorldNode) -> None:
        node.die(steps=fault.count)
        self._later(fault.ms, self._start_dead, node)

    def _start_dead(self, node: WorldNode) -> None:
        if node.process is None or node.process.state is ProcessState.DEAD:
            node.start()
        elif node.process.dies_in is not None:  # it had no more steps to do: it dies now
            node.process.die()
            node.start()

    def _freeze(self, fault: WorldFault, node: WorldNode) -> None:
        node.freeze()
        self._later(fault.ms, node.thaw)

    def _restart(self, fault: WorldFault, node: WorldNode) -> None:
        node.restart(seats=2 + fault.ms % 7)

    def _partition(self, fault: WorldFault, node: WorldNode) -> None:
        self._cut(fault, node, requests=True, answers=True)

    def _partition_out(self, fault: WorldFault, node: WorldNode) -> None:
        self._cut(fault, node, requests=True, answers=False)

    def _partition_in(self, fault: WorldFault, node: WorldNode) -> None:
        self._cut(fault, node, requests=False, answers=True)

    def _cut(self, fault: WorldFault, node: WorldNode, *, requests: bool, answers: bool) -> None:
        link = node.link
        if link is not None:
            link.requests_lost, link.answers_lost = requests, answers
            self._later(fault.ms, _join, link)

    def _store_away(self, fault: WorldFault, node: WorldNode) -> None:
        self.store.is_away = True
        self._later(fault.ms, self._store_back)

    def _store_back(self) -> None:
        self.store.is_away = False

    def _clock_jump(self, fault: WorldFault, node: WorldNode) -> None:
        node.clock.jump(fault.ms)

    def _clock_drift(self, fault: WorldFault, node: WorldNode) -> None:
        node.clock.drift_ppm = fault.ms

    def _store_clock_jump(self, fault: WorldFault, node: WorldNode) -> None:
        self.auditor.clock_was_wrong = True
        if fault.ms < 0:
            self.auditor.clock_went_back_us = self.loop.us
        self.store.clock.jump(fault.ms)

    def _clock_right(self, fault: WorldFault, node: WorldNode) -> None:
        node.clock.set_right()
        if self.store.clock.skew_ms:
            self.auditor.clock_went_back_us = self.loop.us
            self.store.clock.set_right()


def _join(link: object) -> None:
    link.requests_lost = link.answers_lost = False  # type: ignore[attr-defined]


def run_world(script: Script) -> WorldResult:
    """Run a script."""
    return World(script).run()
