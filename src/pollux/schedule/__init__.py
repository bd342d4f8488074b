"""Schedule arithmetic: pure functions, the same result for the same arguments on every node.

    validate(schedule, job_id)                      refuse an unusable schedule
    first_due(schedule, job_id, now_ms=, batch_size=)    the first due time of a new job
    next_due(schedule, job_id, after_ms)            the due time after a due time, strictly later; None: there is none
    catch_up(schedule, job_id, due_ms=, ...)        the due times to fire or skip after a downtime
    late_after_of(schedule, job_id, due_ms)         how late a due time may fire without being missed

The clock is an argument and there is no randomness: what looks random (phase, `H`, the spreading of many new jobs) is a
stable hash of the job's id.
"""

from pollux.schedule.cron import CompiledCron, compile_cron
from pollux.schedule.due_times import Catchup, catch_up, first_due, late_after_of, next_due, validate

__all__ = ["Catchup", "CompiledCron", "catch_up", "compile_cron", "first_due", "late_after_of", "next_due", "validate"]
