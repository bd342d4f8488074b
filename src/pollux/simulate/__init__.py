"""What will happen?  The real core in virtual time: forecasts of a fleet, and the time that users' tests run on."""

from pollux.simulate.changes import ClockChange
from pollux.simulate.forecast import (
    Forecast,
    JobForecast,
    Lateness,
    Unbalanced,
    fine_enough_ms,
    firings_expected,
    scaled,
    simulate,
)
from pollux.simulate.scenario import Habit, Scenario, habit_of
from pollux.simulate.virtual import VirtualClock, VirtualTime

__all__ = [
    "ClockChange",
    "Forecast",
    "Habit",
    "JobForecast",
    "Lateness",
    "Scenario",
    "Unbalanced",
    "VirtualClock",
    "VirtualTime",
    "fine_enough_ms",
    "firings_expected",
    "habit_of",
    "scaled",
    "simulate",
]
