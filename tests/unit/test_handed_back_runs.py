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
    aside, two = HandedBack(clock), [LeasedRow("1", "t:1", "a", 1), LeasedRow("2", "t:1", "a", 1)]

    aside.settlements(two, REASONS, "n", 5)
    assert said(caplog) == ["a"]
    await clock.advance(59_999)
    aside.settlements([*two, LeasedRow("3", "t:1", "b", 1)], REASONS, "n", 5)
    assert said(caplog) == ["b"]
    await clock.advance(1)
    aside.settlements(two, REASONS, "n", 5)
    assert said(caplog) == ["a"]


async def test_each_run_rests_longer_the_more_often_it_came_back_and_those_of_one_claim_together():
    leased = [LeasedRow("1", "t:1", "a", 1), LeasedRow("2", "t:1", "a", 1), LeasedRow("3", "t:4", "a", 4)]

    backs = [each.verdict for each in HandedBack(FakeClock()).settlements(leased, REASONS, "n", 5)]

    assert all(type(each) is Back for each in backs)
    first, second, fourth = [each.at_ms - 5 for each in backs]
    assert first == second
    assert 1_000 <= first < 2_000
    assert 8 * first <= fourth < 8 * (first + 1)


async def test_a_rest_is_thrown_doubled_and_at_most_a_minute():
    assert [rest_ms(fence, 1, roll=0.0) for fence in (1, 2, 3, 4, 5, 6, 7, 1_000)] == [
        *(1_000, 2_000, 4_000, 8_000, 16_000),
        *(30_000, 30_000, 30_000),
    ]
    assert (rest_ms(1, 1, roll=0.5), rest_ms(1_000, 1, roll=0.999)) == (1_500, 59_970)
    thrown = {
        HandedBack(FakeClock()).settlements([LeasedRow("1", "t", "a", 1)], REASONS, "n", 0)[0].verdict for _ in range(9)
    }
    assert len(thrown) > 1, "not all nodes come back at the same moment"


async def test_where_thousands_wait_they_rest_longer_until_it_is_said_again():
    clock = FakeClock()
    aside, page = HandedBack(clock), [LeasedRow(str(n), "t:1", "a", 1) for n in range(1_000)]

    def rests(leased):
        return {each.verdict.at_ms for each in aside.settlements(leased, REASONS, "n", 0)}

    for met in (1_000, 2_000, 3_000):
        [rest] = rests(page)
        assert 2 * met <= rest < 4 * met
    [rest] = rests([LeasedRow("x", "t:1", "b", 1)])
    assert rest < 2_000, "another job has nothing to do with it"
    await clock.advance(60_000)
    [rest] = rests(page[:1])
    assert rest < 2_000
