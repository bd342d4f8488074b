"""Backoff and log rate of a node that hands back runs it cannot decode."""

from pollux.clock import FakeClock
from pollux.model import Back
from pollux.store.decoding import HandedBack, LeasedRow, rest_ms

REASONS = {"a": "what", "b": "what"}


def said(caplog):
    found = [record.args[0] for record in caplog.records]
    caplog.clear()
    return found


async def test_of_each_job_at_once_and_then_once_a_minute(caplog):
    clock = FakeClock()
    handed_back, two = HandedBack(clock), [LeasedRow("1", "t:1", "a", 1), LeasedRow("2", "t:1", "a", 1)]

    handed_back.settlements(two, REASONS, "n", 5)
    assert said(caplog) == ["a"]
    await clock.advance(59_999)
    handed_back.settlements([*two, LeasedRow("3", "t:1", "b", 1)], REASONS, "n", 5)
    assert said(caplog) == ["b"]
    await clock.advance(1)
    handed_back.settlements(two, REASONS, "n", 5)
    assert said(caplog) == ["a"]


async def test_each_run_rests_twice_as_long_each_time_it_came_back():
    leased = [LeasedRow("1", "t:1", "a", 1), LeasedRow("2", "t:1", "a", 1), LeasedRow("3", "t:4", "a", 4)]

    backs = [each.verdict for each in HandedBack(FakeClock()).settlements(leased, REASONS, "n", 5)]

    assert backs == [Back(1_005), Back(1_005), Back(8_005)]


def test_a_rest_is_doubled_and_at_most_a_minute():
    rests = [rest_ms(fence) for fence in (1, 2, 3, 4, 5, 6, 7, 1_000)]
    assert rests == [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]
