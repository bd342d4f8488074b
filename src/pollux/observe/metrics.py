"""Prometheus exposition of an app: one snapshot as text.

The numbers are plain integers that the engine counts anyway; they become series only here, when somebody asks.  What is
read from the store is read at most once a second, however many ask.  The text is written in a thread, so that a large
one does not hold up the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from pollux.observe.metrics_table import COUNTER, FAMILIES, GAUGE, HISTOGRAM, INFO, Family, Readings
from pollux.observe.snapshot import Histogram

if TYPE_CHECKING:
    from prometheus_client.core import Metric

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_ONE_WRITES = threading.Lock()


class MeasuredMetrics(Protocol):
    async def readings(self) -> Readings: ...


async def exposition(app: MeasuredMetrics, *, openmetrics: bool = False) -> bytes:
    """All metrics of this process, as text in the format that `content_type` names."""
    readings = await app.readings()
    return await _aside(lambda: render(readings, openmetrics=openmetrics))


def wants_openmetrics(accept: str) -> bool:
    """Does whoever sent this Accept header know the newer format?"""
    return any(part.partition(";")[0].strip().lower() == "application/openmetrics-text" for part in accept.split(","))


def content_type(*, openmetrics: bool) -> str:
    return OPENMETRICS if openmetrics else TEXT


def render(readings: Readings, *, openmetrics: bool = False) -> bytes:
    from prometheus_client import exposition as text
    from prometheus_client.openmetrics import exposition as newer

    collector = _Collector(readings)
    if openmetrics:
        return newer.generate_latest(collector)  # type: ignore[no-any-return, no-untyped-call]
    return text.generate_latest(collector)


async def _aside(write: Callable[[], bytes]) -> bytes:
    """In a thread of its own, one after the other: those that asyncio keeps may all be held by handlers."""
    loop = asyncio.get_running_loop()
    written: asyncio.Future[bytes] = loop.create_future()

    def tell(answer: bytes | Exception) -> None:
        if written.done():  # whoever asked is gone
            return
        if isinstance(answer, Exception):
            written.set_exception(answer)
        else:
            written.set_result(answer)

    def work() -> None:
        answer: bytes | Exception
        try:
            with _ONE_WRITES:
                answer = write()
        except Exception as error:  # noqa: BLE001  told to whoever asked
            answer = error
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(tell, answer)

    threading.Thread(target=work, name="pollux-metrics", daemon=True).start()
    return await written


def names(prefix: str = "pollux") -> frozenset[str]:
    """Every name under which there are samples, for those who write dashboards and alerts."""
    found: set[str] = set()
    for family in FAMILIES:
        name = family.full_name(prefix)
        match family.kind:
            case "histogram":
                found |= {f"{name}_bucket", f"{name}_sum", f"{name}_count"}
            case "info":
                found.add(f"{name}_info")
            case _:
                found.add(name)
    process = ("cpu_seconds_total", "resident_memory_bytes", "virtual_memory_bytes", "open_fds", "max_fds")
    return frozenset(found | {f"process_{each}" for each in (*process, "start_time_seconds")})


class _Collector:
    """The families of one look, as prometheus_client wants them; and those of the process."""

    def __init__(self, readings: Readings) -> None:
        self._readings = readings

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.process_collector import ProcessCollector

        for family in FAMILIES:
            yield _metric(family, self._readings)
        yield from ProcessCollector(registry=None).collect()


def _metric(family: Family, readings: Readings) -> Metric:
    from prometheus_client.core import Metric

    name = family.full_name(readings.prefix)
    bare = name.removesuffix("_total") if family.kind == COUNTER else name
    metric = Metric(bare, family.help, family.kind)
    sample_name = {COUNTER: f"{bare}_total", GAUGE: bare, INFO: f"{bare}_info", HISTOGRAM: bare}[family.kind]
    for values, value in family.read(readings):
        labels = dict(zip(family.labels, values, strict=True))
        if isinstance(value, Histogram):
            _add_histogram(metric, bare, labels, value)
        else:
            metric.add_sample(sample_name, labels, float(value))
    return metric


def _add_histogram(metric: Metric, name: str, labels: dict[str, str], seen: Histogram) -> None:
    count = 0
    for bound_ms, here in zip(seen.bounds_ms, seen.counts, strict=False):
        count += here
        metric.add_sample(f"{name}_bucket", {**labels, "le": str(bound_ms / 1_000)}, count)
    count += sum(seen.counts[len(seen.bounds_ms) :])
    metric.add_sample(f"{name}_bucket", {**labels, "le": "+Inf"}, count)
    metric.add_sample(f"{name}_count", labels, count)
    metric.add_sample(f"{name}_sum", labels, seen.sum_ms / 1_000)
