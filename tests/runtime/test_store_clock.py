"""The store's clock as a node estimates it, whatever the answers and the event loop do."""

import pytest

from pollux.clock import FakeClock, StoreClock
from pollux.events import ClockJumped, Events


class Asked:
    """A store on our own clock, whose answers may be slow."""

    def __init__(self):
        self.clock, events = FakeClock(), Events()
        self.leaps = []
        events.listen(ClockJumped, lambda leap: self.leaps.append(leap.by_ms))
        self.time = StoreClock(self.clock, events)

    async def ask(self, *, there_ms=0, back_ms=0):
        asked = self.clock.mono_ms()
        await self.clock.advance(there_ms)
        said = self.clock.now_ms()
        await self.clock.advance(back_ms)
        self.time.learn(said, asked=asked)

    @property
    def off_ms(self):
        return self.time.now_ms() - self.clock.now_ms()


@pytest.mark.parametrize("slow", [{"there_ms": 5_000}, {"back_ms": 5_000}, {"there_ms": 40_000, "back_ms": 90_000}])
async def test_an_answer_that_is_heard_late_is_no_leap_of_the_clock(slow):
    asked = Asked()
    await asked.ask()
    await asked.ask(**slow)
    assert asked.leaps == []
    assert -101 <= asked.off_ms <= 0
    await asked.ask()
    assert (asked.leaps, asked.off_ms) == ([], 0)


@pytest.mark.parametrize("by_ms", [-3_600_000, -5_000, 5_000, 3_600_000])
async def test_a_leap_of_the_clock_is_heard_of_at_the_next_quick_answer(by_ms):
    asked = Asked()
    await asked.ask()
    asked.clock.jump(by_ms)
    await asked.ask(there_ms=100, back_ms=100)
    assert len(asked.leaps) == 1
    assert abs(asked.off_ms) <= 100


async def test_a_clock_that_came_back_is_believed_in_the_end_by_slow_answers_too():
    asked = Asked()
    await asked.ask()
    asked.clock.jump(-5_000)
    for _ in range(100):
        await asked.ask(there_ms=30_000)
    assert abs(asked.off_ms) <= 200


@pytest.mark.parametrize("how", ["asked", "sent"])
async def test_an_answer_from_before_a_leap_that_is_heard_after_it_is_not_believed(how):
    """Else a retry that is decided just then would wait for as long as the clock came back."""
    asked = Asked()
    await asked.ask()
    sent, early_ms = asked.clock.mono_ms(), asked.clock.now_ms()
    await asked.clock.advance(5)
    asked.clock.jump(-3_600_000)
    await asked.ask(there_ms=5)
    asked.time.learn(early_ms, **{how: sent})
    assert asked.off_ms == 0
    assert len(asked.leaps) == 1

    asked.clock.jump(3_600_000)
    await asked.ask(there_ms=5)
    assert (len(asked.leaps), asked.off_ms) == (2, 0), "the next leap is seen as ever"
