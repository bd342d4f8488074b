"""Outcome rules: pure functions that classify failures, decide retries and update the job's memory."""

from pollux.outcome.fault import (
    TRACEBACK_CHARS_MAX,
    classify,
    describe,
    one_line,
    place_of,
    retry_after_s,
    trace_lines,
    traceback_of,
)
from pollux.outcome.freshness import (
    RECENT_MAX,
    Freshness,
    RecentResult,
    count_skips,
    freshness,
    learn,
    marks,
    within_ms,
)
from pollux.outcome.verdict import CRASHES_MAX, RETRY_AFTER_MAX_MS, decide, delay_ms, validate_retry

__all__ = [
    "CRASHES_MAX", "RECENT_MAX", "RETRY_AFTER_MAX_MS", "TRACEBACK_CHARS_MAX", "Freshness", "RecentResult", "classify",
    "count_skips", "decide", "delay_ms", "describe", "freshness", "learn", "marks", "one_line", "place_of",
    "retry_after_s", "trace_lines", "traceback_of", "validate_retry", "within_ms",
]  # fmt: skip
