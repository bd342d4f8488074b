"""Simulation: the real core in virtual time, for forecasts of a fleet and for users' tests."""

from pollux.simulate.forecast import (
    Forecast,
    JobForecast,
    LatenessQuantiles,
    Unbalanced,
    fine_enough_ms,
    firings_expected,
    scaled,
    simulate,
)
from pollux.simulate.results import ClockChange
from pollux.simulate.scenario import HandlerBehaviour, Scenario, habit_of
from pollux.simulate.virtual_loop import VirtualClock, VirtualTime

__all__ = [
    "ClockChange",
    "Forecast",
    "HandlerBehaviour",
    "JobForecast",
    "LatenessQuantiles",
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
