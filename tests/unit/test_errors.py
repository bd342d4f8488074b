"""Error texts of servers that cannot be reached: the operating system's words, without those of Python."""

import errno
import os
import socket
import ssl

import pytest

from pollux.errors import system_words

REFUSED = os.strerror(errno.ECONNREFUSED)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed ('127.0.0.1', 26901)"), REFUSED),
        (OSError("Multiple exceptions: [Errno 111] Connect call failed ('::1', 1), [Errno 111] x"), REFUSED),
        (
            OSError(f"Multiple exceptions: [Errno 111] a, [Errno {errno.EHOSTUNREACH}] b"),
            f"{REFUSED}, {os.strerror(errno.EHOSTUNREACH)}",
        ),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "Name or service not known"),
        (TimeoutError(), "no answer in time"),
        (TimeoutError("no node answered within 2 s"), "no node answered within 2 s"),
        (TimeoutError(errno.ETIMEDOUT, "Connect call failed"), os.strerror(errno.ETIMEDOUT)),
        (EOFError(), "the connection was lost"),
        (ValueError("one\ntwo"), "one"),
    ],
    ids=repr,
)
def test_a_server_that_cannot_be_reached_is_told_in_the_words_of_the_system(error, words):
    assert system_words(error) == words


def test_an_error_of_tls_is_told_without_its_place_in_a_library():
    given, taken = ssl.MemoryBIO(), ssl.MemoryBIO()
    line = ssl.create_default_context().wrap_bio(given, taken, server_hostname="host")
    given.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    with pytest.raises(ssl.SSLError) as caught:
        line.do_handshake()
    assert system_words(caught.value) == "wrong version number"
