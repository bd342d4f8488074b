"""Metrics of spans: of real traces, exported to a real collector or dropped."""

from pollux import Pollux
from pollux.observe.metrics import exposition
from pollux.observe.traces import Export
from tests.collector import collecting
from tests.runtime.scrape import Scrape
from tests.runtime.test_app import until

SPANS = "traces_spans_total"
RESULTS = ("exported", "dropped", "failed")
EACH_RUN = 4  # wait, attempt, settle, run; nobody fired it


def counted(seen: Scrape) -> dict[str, float]:
    return {result: seen(SPANS, result=result) for result in RESULTS}


def traced(url: str) -> Pollux:
    app = Pollux("memory://", traces_endpoint=url)

    @app.job
    async def look(ctx): ...

    return app


async def scrape(app: Pollux) -> Scrape:
    return Scrape((await exposition(app)).decode())


async def test_spans_that_arrive_are_counted_as_exported():
    with collecting() as collector:
        async with traced(collector.url) as app:
            await app.enqueue("look")

            async def arrived():
                return (await scrape(app))(SPANS, result="exported") >= EACH_RUN

            await until(arrived, "the spans of the run are counted")
            seen = await scrape(app)
        assert counted(seen) == {"exported": EACH_RUN, "dropped": 0, "failed": 0}
        assert len(collector.spans) == EACH_RUN
        assert seen("traces_spans_waiting") == 0


async def test_spans_that_the_collector_refuses_are_counted_as_failed():
    with collecting() as collector:
        collector.status = 400
        async with traced(collector.url) as app:
            await app.enqueue("look")

            async def refused():
                return (await scrape(app))(SPANS, result="failed") >= EACH_RUN

            await until(refused, "the spans of the run are counted")
            seen = await scrape(app)
        assert counted(seen) == {"exported": 0, "dropped": 0, "failed": EACH_RUN}


def test_spans_for_which_there_is_no_room_are_counted_as_dropped():
    export = Export(None, list, lambda *_: None, waiting_max=3)
    for number in range(5):
        export.put(number)
    assert (export.counts(), export.waiting) == ({"exported": 0, "dropped": 2, "failed": 0}, 3)


async def test_where_there_are_no_traces_nothing_is_told_of_them():
    app = Pollux("memory://")
    async with app:
        seen = await scrape(app)
    assert (seen.all(SPANS), seen.all("traces_spans_waiting")) == ({}, {})
