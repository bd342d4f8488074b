"""What follows?  The pure judgement of ends: which fault, again when, dead or not, and what the job learns from it."""

from pollux.outcome.fault import classify, describe, place_of
from pollux.outcome.freshness import Freshness, count_skips, freshness, learn
from pollux.outcome.retry import delay_ms, validate_retry
from pollux.outcome.verdict import RETRY_AFTER_MAX_MS, decide

__all__ = [
    "RETRY_AFTER_MAX_MS",
    "Freshness",
    "classify",
    "count_skips",
    "decide",
    "delay_ms",
    "describe",
    "freshness",
    "learn",
    "place_of",
    "validate_retry",
]
