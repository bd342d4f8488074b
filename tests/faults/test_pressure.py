"""The throughput measure itself: a burst is not a rate."""

import asyncio
from itertools import chain, repeat
from types import SimpleNamespace

import pytest

from tests.chaos.ledger import Ledger
from tests.faults import pressure as measures
from tests.faults.pressure import WAITING_MAX, Pressure

USUAL = 20.0  # ends a window


@pytest.fixture
def pressure(tmp_path, monkeypatch):
    monkeypatch.setattr(measures, "WINDOW_S", 0.1)
    monkeypatch.setattr(measures, "FULL_S", 3.0)
    ledger = Ledger(tmp_path / "ledger")
    pressure = Pressure(SimpleNamespace(ledger=ledger))
    pressure.asked = WAITING_MAX
    yield pressure
    ledger.close()


async def judged(pressure, *first, then):
    """What is said of nodes that end one run, so many in the windows after that, and then so many in each."""

    def end(count):
        for _ in range(count):
            pressure.yard.ledger.write("end", f"p{next(numbers)}", 1, 1, 1, 0, 0)

    async def work():
        end(1)
        for count in chain(first, repeat(then)):
            await asyncio.sleep(measures.WINDOW_S)
            end(count)

    numbers = pressure._batches
    worker = asyncio.ensure_future(work())
    try:
        return await pressure.works_again(USUAL)
    finally:
        worker.cancel()


async def test_as_much_as_before_is_enough(pressure):
    assert "works after" in await judged(pressure, WAITING_MAX, then=20)


@pytest.mark.parametrize("burst", [[WAITING_MAX, 0, WAITING_MAX], [WAITING_MAX // 8] * 8], ids=["at once", "at length"])
async def test_a_burst_of_what_had_waited_is_no_rate(pressure, burst):
    with pytest.raises(AssertionError, match="14 are wanted"):
        await judged(pressure, *burst, then=7)


async def test_who_does_nothing_does_not_work_again(pressure, monkeypatch):
    monkeypatch.setattr(measures, "WORKS_AGAIN_S", 0.3)
    with pytest.raises(AssertionError, match="the end of any handler"):
        await pressure.works_again(USUAL)
