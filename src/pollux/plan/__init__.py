"""The planner, the pure part of the leader: timers, gate and plan; and the explanations of why a job or run waits."""

from pollux.plan.gate import GateState, Held, MayRun, gate, stop_of, stop_words
from pollux.plan.plan_builder import PlanReport
from pollux.plan.planner import Planner, ReadRequest
from pollux.plan.reconcile import Diff, forsaken, is_backed, reconcile, strangers, with_other_jobs
from pollux.plan.run_counts import UnreportedCounts
from pollux.plan.timers import Timers, TimerWindow
from pollux.plan.why import (
    Why,
    beside_unreadable,
    unreadable_words,
    why_job,
    why_run,
    why_unreadable,
    why_unreadable_run,
    why_unwritten,
)

__all__ = [
    "Diff", "GateState", "Held", "MayRun", "PlanReport", "Planner", "ReadRequest", "TimerWindow", "Timers",
    "UnreportedCounts", "Why", "beside_unreadable", "forsaken", "gate", "is_backed", "reconcile", "stop_of",
    "stop_words", "strangers", "unreadable_words", "why_job", "why_run", "why_unreadable", "why_unreadable_run",
    "why_unwritten", "with_other_jobs",
]  # fmt: skip
