"""Retry delays: `base * factor ** attempt` up to a maximum, with jitter against simultaneous retries."""

from __future__ import annotations

from math import isfinite, log

from pollux.errors import InvalidInput
from pollux.model import Retry
from pollux.units import DAY_MS

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
