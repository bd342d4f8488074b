"""The planner, the pure part of the leader: timers, gate and plan; and the explanations of why a job or run waits."""

from pollux.plan.gate import GateState, Held, gate, stop_of, stop_words
from pollux.plan.leader_notes import UnreportedCounts
from pollux.plan.plan_builder import PlanReport
from pollux.plan.planner import Planner, ReadRequest
from pollux.plan.reconcile import Diff, conflicting, is_backed, orphaned, reconcile, with_other_jobs
from pollux.plan.timers import Timers, TimerWindow
from pollux.plan.why import (
    Why,
    unreadable_words,
    why_job,
    why_run,
    why_unreadable,
    why_unreadable_run,
    why_unwritten,
    with_unreadable_runs,
)

__all__ = [
    "Diff", "GateState", "Held", "PlanReport", "Planner", "ReadRequest", "TimerWindow", "Timers",
    "UnreportedCounts", "Why", "conflicting", "gate", "is_backed", "orphaned", "reconcile", "stop_of", "stop_words",
    "unreadable_words", "why_job", "why_run", "why_unreadable", "why_unreadable_run", "why_unwritten",
    "with_other_jobs", "with_unreadable_runs",
]  # fmt: skip
