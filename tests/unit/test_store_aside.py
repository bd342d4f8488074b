"""How often does a node say that it cannot read a job?"""

from pollux.clock import FakeClock
from pollux.model import Back
from pollux.store.aside import Aside, Leased

REASONS = {"a": "what", "b": "what"}


def said(caplog):
    found = [record.args[0] for record in caplog.records]
    caplog.clear()
    return found


async def test_of_each_job_at_once_and_then_once_a_minute(caplog):
    clock = FakeClock()
    aside, two = Aside(clock), [Leased("1", "t:1", "a"), Leased("2", "t:1", "a")]

    settlements = aside.settlements(two, REASONS, "n", 5)
    assert [(each.run_id, each.token, each.verdict) for each in settlements] == [
        ("1", "t:1", Back(60_005)),
        ("2", "t:1", Back(60_005)),
    ]
    assert said(caplog) == ["a"]
    await clock.advance(59_999)
    aside.settlements([*two, Leased("3", "t:1", "b")], REASONS, "n", 5)
    assert said(caplog) == ["b"]
    await clock.advance(1)
    aside.settlements(two, REASONS, "n", 5)
    assert said(caplog) == ["a"]
