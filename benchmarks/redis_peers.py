"""The peers on Redis: Dramatiq, Taskiq (stream with acks, and list), SAQ and Huey, each as quick as it can be set.

No results are kept, nothing is logged, the serializer is the quickest each offers, and asyncio systems run on uvloop.
Dramatiq and Huey run the synchronous twin of the no-op: threads are their native form.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple

from benchmarks.child import Progress, run_async
from benchmarks.ours import PAYLOAD

BODY = PAYLOAD["body"]
AT_ONCE = 100  # enqueue calls in flight, where there is no call for many


class Peer(NamedTuple):
    fill: Callable[..., dict[str, float]]
    drain: Callable[..., dict[str, float]]
    slots: tuple[int, ...]  # threads or coroutines, of which the best is taken
    told: str


def arguments(n: int, *, has_body: bool) -> Sequence[Any]:
    return [BODY] * n if has_body else range(n)


def rate_of(n: int, begun: float) -> dict[str, float]:
    return {"rate": n / (time.monotonic() - begun)}


# dramatiq


def dramatiq_actor(url: str, step: Callable[[], None]) -> tuple[Any, Any]:
    import dramatiq
    import orjson
    from dramatiq.brokers.redis import RedisBroker
    from dramatiq.middleware import Retries

    class Orjson(dramatiq.Encoder):
        def encode(self, data: Any) -> bytes:
            return orjson.dumps(data)

        def decode(self, data: bytes) -> Any:
            return orjson.loads(data)

    logging.getLogger("dramatiq").setLevel(logging.ERROR)
    dramatiq.set_encoder(Orjson())
    broker = RedisBroker(url=url, middleware=[Retries()])
    dramatiq.set_broker(broker)

    @dramatiq.actor(actor_name="noop", broker=broker)
    def noop(i: Any) -> None:  # noqa: ARG001  the same call as ours
        step()

    return broker, noop


def fill_dramatiq(url: str, n: int, has_body: bool = False) -> dict[str, float]:  # noqa: FBT001, FBT002  JSON arguments
    _, noop = dramatiq_actor(url, lambda: None)
    begun = time.monotonic()
    for each in arguments(n, has_body=has_body):
        noop.send(each)
    return rate_of(n, begun)


def drain_dramatiq(url: str, n: int, slots: int) -> dict[str, float]:
    import dramatiq

    progress = Progress(n)
    broker, _ = dramatiq_actor(url, progress.step)
    worker = dramatiq.Worker(broker, worker_threads=slots)
    worker.start()
    figures = thread_figures(progress)
    worker.stop()
    return figures


# huey


def huey_call(url: str, step: Callable[[], None]) -> tuple[Any, Any]:
    from huey import RedisHuey

    logging.getLogger("huey").setLevel(logging.ERROR)
    huey = RedisHuey("bench", url=url, results=False)

    @huey.task(name="noop")
    def noop(i: Any) -> None:  # noqa: ARG001  the same call as ours
        step()

    return huey, noop


def fill_huey(url: str, n: int, has_body: bool = False) -> dict[str, float]:  # noqa: FBT001, FBT002  JSON arguments
    _, noop = huey_call(url, lambda: None)
    begun = time.monotonic()
    for each in arguments(n, has_body=has_body):
        noop(each)
    return rate_of(n, begun)


def drain_huey(url: str, n: int, slots: int) -> dict[str, float]:
    progress = Progress(n)
    huey, _ = huey_call(url, progress.step)
    consumer = huey.create_consumer(workers=slots, periodic=False)
    consumer.start()
    figures = thread_figures(progress)
    consumer.stop(graceful=True)
    return figures


def thread_figures(progress: Progress) -> dict[str, float]:
    while progress.ended == 0.0:
        time.sleep(0.005)
    return progress.figures(progress.ended)


# taskiq


def taskiq_broker(kind: str, url: str, step: Callable[[], None]) -> tuple[Any, Any]:
    from taskiq.serializers import ORJSONSerializer
    from taskiq_redis import ListQueueBroker, RedisStreamBroker

    broker = (RedisStreamBroker if kind == "stream" else ListQueueBroker)(url).with_serializer(ORJSONSerializer())

    @broker.task(task_name="noop")
    async def noop(i: Any) -> None:  # noqa: ARG001  the same call as ours
        step()

    return broker, noop


def fill_taskiq(kind: str, url: str, n: int, *, has_body: bool) -> dict[str, float]:
    async def fill() -> dict[str, float]:
        broker, noop = taskiq_broker(kind, url, lambda: None)
        await broker.startup()
        begun = time.monotonic()
        await in_groups(noop.kiq, n, has_body=has_body)
        figures = rate_of(n, begun)
        await broker.shutdown()
        return figures

    return run_async(fill())


def drain_taskiq(kind: str, url: str, n: int, slots: int) -> dict[str, float]:
    async def drain() -> dict[str, float]:
        from taskiq.receiver import Receiver

        progress = Progress(n)
        broker, _ = taskiq_broker(kind, url, progress.step)
        broker.is_worker_process = True
        await broker.startup()
        receiver = Receiver(broker, validate_params=False, max_async_tasks=slots, max_prefetch=slots, run_startup=False)
        finish = asyncio.Event()
        listening = asyncio.create_task(receiver.listen(finish))
        await progress.all_seen.wait()
        figures = progress.figures(progress.ended)
        finish.set()
        await asyncio.gather(listening, return_exceptions=True)
        await broker.shutdown()
        return figures

    return run_async(drain())


def fill_taskiq_stream(url: str, n: int, has_body: bool = False) -> dict[str, float]:  # noqa: FBT001, FBT002  JSON
    return fill_taskiq("stream", url, n, has_body=has_body)


def fill_taskiq_list(url: str, n: int, has_body: bool = False) -> dict[str, float]:  # noqa: FBT001, FBT002  JSON
    return fill_taskiq("list", url, n, has_body=has_body)


def drain_taskiq_stream(url: str, n: int, slots: int) -> dict[str, float]:
    return drain_taskiq("stream", url, n, slots)


def drain_taskiq_list(url: str, n: int, slots: int) -> dict[str, float]:
    return drain_taskiq("list", url, n, slots)


# saq


def saq_queue(url: str, ops: int) -> Any:
    import orjson
    from redis.asyncio import Redis
    from saq.queue.redis import RedisQueue

    logging.getLogger("saq").setLevel(logging.CRITICAL)
    return RedisQueue(Redis.from_url(url), dump=orjson.dumps, load=orjson.loads, max_concurrent_ops=ops)


def fill_saq(url: str, n: int, has_body: bool = False) -> dict[str, float]:  # noqa: FBT001, FBT002  JSON arguments
    async def fill() -> dict[str, float]:
        queue = saq_queue(url, ops=20)
        await queue.connect()

        async def send(i: Any) -> None:
            await queue.enqueue("noop", i=i, ttl=-1)

        begun = time.monotonic()
        await in_groups(send, n, has_body=has_body)
        figures = rate_of(n, begun)
        await queue.disconnect()
        return figures

    return run_async(fill())


def drain_saq(url: str, n: int, slots: int) -> dict[str, float]:
    async def drain() -> dict[str, float]:
        from saq import Worker

        progress = Progress(n)

        async def noop(ctx: Any, *, i: Any) -> None:  # noqa: ARG001  the same call as ours
            progress.step()

        queue = saq_queue(url, ops=max(20, slots))
        worker = Worker(queue, functions=[("noop", noop)], concurrency=slots, timers={"sweep": 3_600})
        working = asyncio.create_task(worker.start())
        await progress.all_seen.wait()
        figures = progress.figures(progress.ended)
        await worker.stop()
        await ended(working)
        return figures

    return run_async(drain())


async def in_groups(send: Callable[[Any], Coroutine[Any, Any, Any]], n: int, *, has_body: bool) -> None:
    """There is no call for many: so many at once."""
    each = arguments(n, has_body=has_body)
    for start in range(0, n, AT_ONCE):
        await asyncio.gather(*[send(one) for one in each[start : start + AT_ONCE]])


async def ended(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


PEERS = {
    "dramatiq": Peer(fill_dramatiq, drain_dramatiq, (8, 16, 32), "threads, orjson, only its Retries middleware"),
    "taskiq, stream": Peer(
        fill_taskiq_stream,
        drain_taskiq_stream,
        (50, 100, 200),
        "async, acks, as many prefetched, orjson, no validation",
    ),
    "taskiq, list": Peer(
        fill_taskiq_list, drain_taskiq_list, (50, 100, 200), "async, as many prefetched, orjson, no validation"
    ),
    "saq": Peer(fill_saq, drain_saq, (20, 50, 100), "async, orjson, no results"),
    "huey": Peer(fill_huey, drain_huey, (1, 4, 8), "threads, blocking pop, no results"),
}
