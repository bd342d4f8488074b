"""Faults of a poll, by whether trying again may help.  The class name begins the error that people read.

    transient   ConnectTimeout, AnswerTimeout, BodyTimeout, Refused, NoSuchHost, TlsFailed, Interrupted, BadAnswer,
                NothingExtracted, BadStatus (408, 425, 429, 5xx and odd ones)
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
    """Connected, but the response did not begin in time."""


class BodyTimeout(Transient):
    """The response began, but did not end in time."""


class Refused(Transient):
    """Connection refused, or no route."""


class NoSuchHost(Transient):
    """The name could not be resolved."""


class TlsFailed(Transient):
    """The TLS handshake failed."""


class Untrusted(Permanent):
    """The certificate is not valid: expired, self-signed, of another name."""


class Interrupted(Transient):
    """The connection ended before the response did."""


class BadAnswer(Transient):
    """The response is not HTTP."""


class BadStatus(Transient):
    """An unexpected status that may pass."""


class RefusedStatus(Permanent):
    """An unexpected status that will come again: 3xx, 4xx."""


class TooBig(Permanent):
    """The response is bigger than allowed."""


class BadEncoding(Permanent):
    """The body cannot be unpacked within the limits."""


class TooManyRedirects(Permanent):
    """More redirects than allowed."""


class DeniedAddress(Permanent):
    """The job may not connect to that address."""


class NothingExtracted(Transient):
    """The response does not hold the value that `take` names."""


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
    """Return the seconds to wait, of a number or a date; None if the header is missing or invalid."""
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
