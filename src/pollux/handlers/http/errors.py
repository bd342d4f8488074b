"""What can go wrong with a poll, and may trying again help?  One class each; its name begins the error people read.

    transient   ConnectTimeout, AnswerTimeout, BodyTimeout, Refused, NoSuchHost, TlsFailed, Interrupted, BadAnswer,
                NothingTaken, BadStatus (408, 425, 429, 5xx and odd ones)
    permanent   DeniedAddress, TooBig, BadEncoding, TooManyRedirects, Untrusted, SlowPattern, UnfitParams,
                RefusedStatus (other 3xx and 4xx)

Messages name the target (host and port), never the URL, a header or a body: those may hold secrets.
"""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus

from pollux.errors import Permanent, Transient

_TRANSIENT_4XX = frozenset({408, 425, 429})


class ConnectTimeout(Transient):
    """No connection (name, TCP or TLS) within the time for it."""


class AnswerTimeout(Transient):
    """Connected, but the answer did not begin in time."""


class BodyTimeout(Transient):
    """The answer began, but did not end in time."""


class Refused(Transient):
    """Nobody listens there, or there is no way to it."""


class NoSuchHost(Transient):
    """The name could not be resolved."""


class TlsFailed(Transient):
    """No secure connection came about."""


class Untrusted(Permanent):
    """The certificate is not good: expired, self-signed, of another name."""


class Interrupted(Transient):
    """The connection ended before the answer did."""


class BadAnswer(Transient):
    """What came is not HTTP."""


class BadStatus(Transient):
    """A status that was not expected, and that may pass."""


class RefusedStatus(Permanent):
    """A status that was not expected, and that will come again: 3xx, 4xx."""


class TooBig(Permanent):
    """The answer is bigger than allowed."""


class BadEncoding(Permanent):
    """The body cannot be unpacked within the limits."""


class TooManyRedirects(Permanent):
    """It is sent from place to place."""


class DeniedAddress(Permanent):
    """The job may not talk to that address."""


class NothingTaken(Transient):
    """The answer does not hold what was to be taken out of it."""


class SlowPattern(Permanent):
    """The regex takes too long."""


class UnfitParams(Permanent):
    """The params of this run cannot be used."""


def status_fault(status: int, target: str, expected: str, retry_after: str | None) -> Exception:
    text = f"{target} answered {status}{_phrase(status)}; expected {expected}"
    if 300 <= status < 500 and status not in _TRANSIENT_4XX:
        return RefusedStatus(text)
    return BadStatus(text, retry_after=retry_after_s(retry_after))


def retry_after_s(value: str | None) -> float | None:
    """Seconds to wait, of a number or a date; None if nothing sensible was said."""
    if not value or len(value) > 64:
        return None
    text = value.strip()
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        moment = parsedate_to_datetime(text)
        return max(0.0, (moment.replace(tzinfo=moment.tzinfo or UTC) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError, OverflowError, IndexError):
        return None


def _phrase(status: int) -> str:
    try:
        return f" {HTTPStatus(status).phrase}"
    except ValueError:
        return ""
