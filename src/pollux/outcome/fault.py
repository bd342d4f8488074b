"""What kind of failure was that?  May trying again help, and how is it told in one line?

The exceptions come from strangers' code: their messages may be of any size, may hold anything, and may raise when they
are asked for.  Nothing of that gets past here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePath

from pollux.errors import Permanent
from pollux.model import ERROR_CHARS_MAX, Fault
from pollux.outcome.verdict import RETRY_AFTER_MAX_MS

CAUSES_MAX = 3
_CUT = "..."
# Line breaks and tabs become blanks, other control characters vanish; an error is one line wherever it is shown.
_VANISH = (*range(32), *range(127, 160), 0x200E, 0x200F, *range(0x202A, 0x202F))
_BLANK = (9, 10, 11, 12, 13, 0x85, 0x2028, 0x2029)
_CONTROLS: dict[int, str | None] = {**dict.fromkeys(_VANISH), **dict.fromkeys(_BLANK, " ")}


def classify(error: BaseException) -> Fault:
    """Permanent if the handler said so; everything else, and everything unknown, may pass by itself."""
    return Fault.PERMANENT if isinstance(error, Permanent) else Fault.TRANSIENT


def describe(error: BaseException, hide: Callable[[str], str] = str) -> str:
    """The exception and what it was raised from in one bounded line: "LoginError: no session, from OSError: refused".

    `hide` takes out what must not be seen.
    """
    told = _told(error, hide)
    cause = error.__cause__
    for _ in range(CAUSES_MAX):
        if cause is None:
            break
        words = _told(cause, hide)
        message = words.partition(": ")[2]
        if message and message not in told:  # what is said already is not said again
            told = one_line(f"{told}, from {words}")
        cause = cause.__cause__
    return told


def _told(error: BaseException, hide: Callable[[str], str]) -> str:
    name = type(error).__name__
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  a message that cannot be had must not hide the failure itself
        text = "(its message cannot be read)"
    words = one_line(hide(text))  # before it is cut: half a secret is one, too
    return one_line(f"{name}: {words}" if words else name)


def place_of(error: BaseException) -> str:
    """Where it was raised, if that was in the user's code: "shop.py:31 in fetch"; else nothing."""
    trace, found = error.__traceback__, ""
    while trace is not None:
        code = trace.tb_frame.f_code
        if trace.tb_frame.f_globals.get("__name__", "").partition(".")[0] != "pollux":
            found = f"{PurePath(code.co_filename).name}:{trace.tb_lineno} in {code.co_name}"
        trace = trace.tb_next
    return one_line(found)


def retry_after_s(error: BaseException) -> float | None:
    """How many seconds the source asked for, in whatever exception carries it; a number that is none is no wish."""
    try:
        seconds = getattr(error, "retry_after", None)
        if not isinstance(seconds, int | float) or not seconds >= 0:
            return None
        return float(min(seconds, RETRY_AFTER_MAX_MS / 1000))
    except Exception:  # noqa: BLE001  strangers' code: the failure itself is told all the same
        return None


def one_line(text: str) -> str:
    """One line of at most ERROR_CHARS_MAX characters that any store and terminal can take."""
    clean = text[: ERROR_CHARS_MAX + 1].translate(_CONTROLS).encode("utf-8", "replace").decode().strip()
    return clean if len(text) <= ERROR_CHARS_MAX else clean[: ERROR_CHARS_MAX - len(_CUT)] + _CUT
