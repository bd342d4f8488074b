"""Verdict on the end of an attempt (done, retry, or dead), and the delay of a retry.

A failure of a run that has no next firing (once, forced, enqueued, also of a recurring job):

    fault       failures of this run        verdict
    ---------   -------------------------   ---------------------------------------------------
    permanent   any                         Dead
    transient   attempts_max reached        Dead
    transient   fewer                       RetryAt, not before the target's `retry_after`

A failure of a scheduled run of a recurring job, whose next firing serves as a retry:

    fault       failures in a row           retry before next due?   verdict
    ---------   -------------------------   ----------------------   --------------------------
    permanent   any                         -                        Dead, sole
    transient   attempts_max reached        -                        Dead, sole
    transient   fewer                       yes, or there is none    RetryAt
    transient   fewer                       no                       Done, failed

A crash (death of the child process) is a transient failure; a run's third crash is Dead, whatever attempts are left.

*Failures in a row* are the failed firings before this one (`memory.failures`) plus the failed attempts of this one.
A success is Done; it clears a dead letter of its recurring job.

A retry comes after `base * factor ** attempt`, up to a maximum, with jitter against simultaneous retries.
"""

from __future__ import annotations

from math import isfinite, log

from pollux.errors import InvalidInput
from pollux.model import Cause, Dead, Done, Fault, Job, Outcome, Retry, RetryAt, Run, Verdict
from pollux.units import DAY_MS

CRASHES_MAX = 3  # child processes that one run may crash
RETRY_AFTER_MAX_MS = DAY_MS  # a target cannot delay a retry for longer


def decide(
    outcome: Outcome, run: Run, job: Job, *, now_ms: int, roll: float, crashes_max: int = CRASHES_MAX
) -> Verdict:
    """The verdict on one attempt of a run.

    `job` is its state at the claim; `roll` is a random number in [0, 1) from the caller.
    """
    if outcome.fault is None:
        return Done(clears=job.memory.dead > 0 and job.is_recurring)
    fires_again = job.is_recurring and run.cause is Cause.SCHEDULE
    if outcome.fault is Fault.PERMANENT:
        return Dead(f"permanent fault: {outcome.error or 'trying again cannot help'}", sole=fires_again)
    if outcome.crashed and run.crashes + 1 >= crashes_max:
        return Dead(f"crashed {run.crashes + 1} times: {outcome.error}", sole=fires_again)
    failures = run.attempt + 1 + (job.memory.failures if fires_again else 0)
    if failures >= job.retry.attempts_max:
        return Dead(f"gave up after {_times(failures)}: {outcome.error or 'no error message'}", sole=fires_again)
    at_ms = _again_at_ms(outcome, run, job, now_ms=now_ms, roll=roll)
    if fires_again and job.next_due_ms is not None and at_ms >= job.next_due_ms:
        return Done(failed=True)
    return RetryAt(at_ms)


def _again_at_ms(outcome: Outcome, run: Run, job: Job, *, now_ms: int, roll: float) -> int:
    at_ms = now_ms + delay_ms(job.retry, run.attempt, roll=roll)
    if outcome.retry_after_ms is None:
        return at_ms
    return max(at_ms, outcome.ended_ms + min(max(0, outcome.retry_after_ms), RETRY_AFTER_MAX_MS))


def _times(failures: int) -> str:
    return "1 failure" if failures == 1 else f"{failures} failures in a row"


ATTEMPTS_LIMIT = 100
FACTOR_LIMIT = 100.0
DELAY_LIMIT_MS = 7 * DAY_MS


def delay_ms(retry: Retry, attempt: int, *, roll: float) -> int:
    """The delay after failure number `attempt` (from 0).  `roll` is a random number in [0, 1) from the caller."""
    middle = min(_backoff(retry, attempt), float(retry.max_ms))
    return max(0, round(middle * (1.0 + retry.jitter * (2.0 * roll - 1.0))))


def _backoff(retry: Retry, attempt: int) -> float:
    """The delay without limit and jitter; `max_ms` where the power would overflow a float."""
    if retry.base_ms <= 0:
        return 0.0
    if retry.factor > 1.0 and attempt * log(retry.factor) > 60.0:
        return float(retry.max_ms)
    return retry.base_ms * float(retry.factor) ** attempt


def validate_retry(retry: Retry) -> Retry:
    """The policy itself; an invalid one raises `InvalidInput` with the field and its range."""
    _check("attempts", retry.attempts_max, 1, ATTEMPTS_LIMIT, whole=True)
    _check("base", retry.base_ms, 0, DELAY_LIMIT_MS, whole=True)
    _check("factor", retry.factor, 1.0, FACTOR_LIMIT)
    _check("max", retry.max_ms, 0, DELAY_LIMIT_MS, whole=True)
    _check("jitter", retry.jitter, 0.0, 1.0)
    if retry.max_ms < retry.base_ms:
        what = f"the longest delay ({retry.max_ms} ms) is shorter than the first ({retry.base_ms} ms)"
        raise InvalidInput(what, where="max", cure="raise max or lower base")
    return retry


def _check(field: str, value: object, least: float, most: float, *, whole: bool = False) -> None:
    kinds = int if whole else (int, float)
    fits = isinstance(value, kinds) and not isinstance(value, bool) and isfinite(value) and least <= value <= most
    if not fits:
        kind = "a whole number" if whole else "a number"
        unit = " of milliseconds" if field in {"base", "max"} else ""
        raise InvalidInput(
            f"{value!r} cannot be used", where=field, cure=f"give {kind}{unit} from {least:g} to {most:.12g}"
        )
