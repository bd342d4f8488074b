"""What is due, may it run?  The pure side of the leader: timers, gate, plan; and the words for why something waits."""

from pollux.plan.accept import Report
from pollux.plan.counting import Untold
from pollux.plan.gate import GateState, Held, Ready, drain_of, gate, stop_of, stop_words
from pollux.plan.planner import Looked, Planner, Wants
from pollux.plan.reconcile import Diff, reconcile, strangers, with_other_jobs
from pollux.plan.sources import forsaken, is_backed
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
    "Diff",
    "GateState",
    "Held",
    "Looked",
    "Planner",
    "Ready",
    "Report",
    "TimerWindow",
    "Timers",
    "Untold",
    "Wants",
    "Why",
    "beside_unreadable",
    "drain_of",
    "forsaken",
    "gate",
    "is_backed",
    "reconcile",
    "stop_of",
    "stop_words",
    "strangers",
    "unreadable_words",
    "why_job",
    "why_run",
    "why_unreadable",
    "why_unreadable_run",
    "why_unwritten",
    "with_other_jobs",
]
