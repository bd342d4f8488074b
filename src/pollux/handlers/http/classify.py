"""Mapping of aiohttp's exceptions to faults of a poll."""

from __future__ import annotations

import asyncio
import errno
import ssl

import aiohttp

from pollux.errors import Permanent, PolluxError, Transient, system_words
from pollux.handlers.http.errors import (
    AnswerTimeout,
    BadAnswer,
    BodyTimeout,
    ConnectTimeout,
    Interrupted,
    NoSuchHost,
    Refused,
    TlsFailed,
    TooBig,
    Untrusted,
)
from pollux.handlers.http.request import HttpRequest, PreparedPoll
from pollux.units import format_ms

_CERTIFICATE = {  # numbers of OpenSSL
    9: "it is not valid yet",
    10: "it has expired",
    18: "it is self-signed",
    19: "its chain ends in a certificate that is not trusted",
    20: "its issuer is not trusted",
    21: "its issuer is not trusted",
    62: "it is of another name",
    64: "it is of another address",
}


def fault_of(error: Exception, prepared: PreparedPoll, hop: HttpRequest, *, is_begun: bool) -> Exception | None:
    """Return the fault for an exception of a poll; None for an exception that is not about the poll."""
    if isinstance(error, PolluxError):
        return error
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return ConnectTimeout(f"no connection to {hop.target} within {format_ms(prepared.options.connect_ms)}")
    if isinstance(error, asyncio.TimeoutError):
        within = format_ms(prepared.total_ms)
        if is_begun:
            return BodyTimeout(f"the answer of {hop.target} did not end within {within}")
        return AnswerTimeout(f"{hop.target} did not answer within {within}")
    return _connecting(error, hop.target) or _answering(error, hop.target)


def _connecting(error: Exception, target: str) -> Exception | None:
    match error:
        case aiohttp.ClientConnectorCertificateError():
            return Untrusted(f"the certificate of {target} is not trusted: {_certificate_words(error)}")
        case aiohttp.ClientConnectorSSLError() | ssl.SSLError():
            return TlsFailed(f"no secure connection to {target}: {_tls_words(error)}")
        case aiohttp.ClientConnectorDNSError():
            words = error.os_error.strerror or error.os_error
            return NoSuchHost(f"the name of {target} could not be resolved: {words}")
        case aiohttp.ClientConnectorError():
            return Refused(f"no connection to {target}: {_system_words(error.os_error)}")
    return None


def _answering(error: Exception, target: str) -> Exception | None:
    match error:
        case aiohttp.ClientResponseError():
            return _bad_answer(error, target)
        case aiohttp.ClientPayloadError():
            return Interrupted(f"the answer of {target} is broken: {_payload_words(error)}")
        case aiohttp.ClientConnectionError() | ConnectionError():
            return Interrupted(f"{target} ended the connection before its answer was complete")
        case aiohttp.InvalidURL():
            return Permanent(f"{target} cannot be asked: the URL is no good")
        case aiohttp.ClientError() | OSError():
            return Transient(f"{target}: {type(error).__name__}")
    return None


def _bad_answer(error: aiohttp.ClientResponseError, target: str) -> Exception:
    words = error.message.lower()
    if "got more than" in words or "too long" in words or "too large" in words or "too many" in words:
        return TooBig(f"{target} sent headers that are too big or too many")
    return BadAnswer(f"{target} answered something that is not HTTP")


def _payload_words(error: aiohttp.ClientPayloadError) -> str:
    words = str(error)
    if "TransferEncoding" in words or "chunk" in words.lower():
        return "its chunks are invalid or end too early"
    return "it is shorter than announced" if "ContentLength" in words else "it ended too early"


def _certificate_words(error: aiohttp.ClientConnectorCertificateError) -> str:
    reason = error.certificate_error
    if isinstance(reason, ssl.SSLCertVerificationError):
        return _CERTIFICATE.get(reason.verify_code, reason.verify_message)
    return type(reason).__name__


def _tls_words(error: BaseException) -> str:
    inner = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    reason = getattr(inner, "reason", None)
    if reason == "WRONG_VERSION_NUMBER":
        return "it does not speak TLS on this port"
    return str(reason).replace("_", " ").lower() if reason else "the handshake did not end well"


def _system_words(error: OSError) -> str:
    """Return the error of the last address that was tried."""
    if isinstance(error, ConnectionRefusedError):
        return "refused"
    if error.errno in {errno.EMFILE, errno.ENFILE}:
        return "this process has too many open files; raise `ulimit -n`"
    return system_words(error)
