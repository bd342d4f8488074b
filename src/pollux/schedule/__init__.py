"""When?  The pure arithmetic of schedules: same arguments, same answer, on every node and for ever.

    validate(schedule, job_id)                      can it be used at all?
    first_due(schedule, job_id, now_ms=, crowd=)    the due of a job that is new
    next_due(schedule, job_id, after_ms)            the due that follows a due: always later; None: nothing follows
    catch_up(schedule, job_id, due_ms=, ...)        what to do about dues that passed while nobody planned
    late_after_of(schedule, job_id, due_ms)         how late a due may fire without being missed

The clock is an argument and there are no dice: what looks random (phase, `H`, the spreading of a crowd) is a stable
hash of the job's id.
"""

from pollux.schedule.cron import CompiledCron, compile_cron
from pollux.schedule.due_times import first_due, next_due, validate
from pollux.schedule.misfire import Catchup, catch_up, late_after_of

__all__ = ["Catchup", "CompiledCron", "catch_up", "compile_cron", "first_due", "late_after_of", "next_due", "validate"]
