"""Fakes of the runtime tests: a store that records and fails on request, and sets of small parts."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from random import Random
from typing import Any

from pollux.clock import FakeClock
from pollux.errors import StoreTimeout
from pollux.events import Event, Events
from pollux.model import Cause, Job, Run, run_of
from pollux.registry import Registry
from pollux.runtime import NodeRuntime, RuntimeOptions
from pollux.runtime.attempt import Pool, TimeoutWatch, WorkerState
from pollux.runtime.dispatcher import Dispatcher
from pollux.runtime.settler import Settler
from pollux.store.contract import JobPut
from pollux.store.memory import MemoryStore

LOST = "lost"  # the call takes effect, the answer is lost


class Spy:
    """A store that writes every call down, and fails the next ones as told: `spy.faults["settle"] = [LOST, error]`."""

    def __init__(self, inner: Any, *, shared: Spy | None = None) -> None:
        self.inner = inner
        self.capabilities, self.scheduler_version = inner.capabilities, inner.scheduler_version
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = shared.calls if shared else []
        self.faults: dict[str, list[Any]] = shared.faults if shared else defaultdict(list)

    def twin(self) -> Spy:
        return Spy(self.inner.twin(), shared=self)

    def count(self, verb: str) -> int:
        return Counter(name for name, _, _ in self.calls)[verb]

    def sent(self, verb: str) -> list[Any]:
        """The arguments of every call of a verb."""
        return [(args, kwargs) for name, args, kwargs in self.calls if name == verb]

    def __getattr__(self, verb: str) -> Any:
        call = getattr(self.inner, verb)

        async def watched(*args: Any, **kwargs: Any) -> Any:
            self.calls.append((verb, args, kwargs))
            fault = self.faults[verb].pop(0) if self.faults[verb] else None
            if isinstance(fault, BaseException):
                raise fault
            if isinstance(fault, asyncio.Event):
                await fault.wait()
            answer = await call(*args, **kwargs)
            if fault is LOST:
                raise StoreTimeout(f"no answer to {verb}")
            return answer

        return watched


class Heard:
    """Every event of the kinds asked for, in order."""

    def __init__(self, events: Events, *kinds: type[Event]) -> None:
        self.all: list[Any] = []
        for kind in kinds:
            events.listen(kind, self.all.append)

    def of(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.all if type(event) is kind]


class Shop:
    """The workers' side of a node on a memory store with a fake clock; nothing turns unless it is told to."""

    def __init__(self, *, seats: int = 2, options: RuntimeOptions | None = None, wrap: Any = None) -> None:
        self.clock = FakeClock()
        self.events = Events()
        self.registry = Registry()
        memory = MemoryStore(self.clock)
        self.store = Spy(wrap(memory) if wrap else memory)
        self.pool = Pool(seats)
        self.worker = WorkerState(self.registry, self.pool, clock=self.clock, events=self.events, dice=Random(7))
        settler = Settler(self.store, clock=self.clock, events=self.events, backlog_max=4 * seats)
        self.settler = self.worker.settler = settler
        self.timeouts = self.worker.timeouts = TimeoutWatch(self.worker.running, clock=self.clock, events=self.events)
        self.dispatcher = Dispatcher(self.store, self.worker, "node-1", options=options)
        self.pool.on_free = self.settler.on_room = self.dispatcher.nudge

    async def open(self) -> Shop:
        await self.store.open()
        return self

    async def job(self, id: str, call: Any = None, **options: Any) -> Job:
        """Put a job whose handler is `call`, under the job's name."""
        if call is not None:
            self.registry.add(id, call)
        job = Job(id=id, handler=id, **options)
        await self.store.put_jobs([JobPut(job)])
        return job

    async def enqueue(self, job: Job, *ids: str, cause: Cause = Cause.ENQUEUED, **options: Any) -> list[Run]:
        runs = [run_of(job, self.clock.now_ms(), cause, id=id, **options) for id in ids]
        await self.store.enqueue(runs)
        return runs

    async def run(self, id: str) -> Run:
        [run] = await self.store.inner.get_runs([id])
        assert run is not None, f"there is no run {id}"
        return run


async def settle_down() -> None:
    """Let everything that is runnable run."""
    for _ in range(50):
        await asyncio.sleep(0)


async def emptied(pool: Pool) -> None:
    """Wait until nobody sits any more; a generous deadline ends a wait in vain."""
    is_empty = asyncio.Event()
    pool.on_empty = is_empty.set
    if pool.busy:
        async with asyncio.timeout(60):
            await is_empty.wait()


def a_crew(
    store: Any, registry: Registry, clock: FakeClock, events: Events | None = None, **options: Any
) -> NodeRuntime:
    """A runtime whose leases are renewed on the main loop, so that a fake clock owns all of it."""
    node_id = options.pop("node_id", "node-1")
    return NodeRuntime(
        store,
        registry,
        options=RuntimeOptions(renews_apart=False, **options),
        clock=clock,
        events=events or Events(),
        dice=Random(3),
        node_id=node_id,
    )
