"""Hostile servers fail their own job alone, in bounded time and memory, with the right fault."""

import time
import tracemalloc

import pytest

from pollux import Pollux
from pollux.model import Run, RunState
from tests.acceptance import hostile
from tests.acceptance.hostile import CERTIFICATES, says, serving, tls
from tests.http_world import until

BOUND_S = 15.0  # for what is cut off after 0.4 s: the machine may be busy
LONG = "20s"  # where it is not time that ends it
MEMORY_MAX = 12_000_000
HEALTHY = says(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
FAULTS = {"TooBig", "BodyTimeout", "AnswerTimeout", "BadAnswer", "BadEncoding", "Interrupted"}
HEAD = b"HTTP/1.1 200 OK\r\n"


async def finished(app: Pollux, job: str) -> Run:
    run = await app.run_now(job)

    async def ended() -> Run | None:
        seen = await app.get_run(run.id)
        return seen if seen.is_finished else None

    return await until(ended)


async def suffered(port: int, *, scheme: str = "http", **params: object) -> Run:
    """The run against the hostile server, in an app with a single seat, which a healthy job then gets."""
    url = f"{scheme}://127.0.0.1:{port}/"
    async with serving(HEALTHY) as healthy:
        app = Pollux("memory://", seats=1)
        app.add("http", id="bad", retry=False, params={"url": url, "timeout": "400ms", **params})
        app.add("http", id="good", params={"url": f"http://127.0.0.1:{healthy}/"})
        async with app:
            assert (await finished(app, "good")).state is RunState.DONE  # everything is imported and open
            tracemalloc.start()
            begun = time.monotonic()
            run = await finished(app, "bad")
            took, (_, most) = time.monotonic() - begun, tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert app.runtime.pool.busy == 0
            assert (await finished(app, "good")).result["status"] == 200
    assert took < BOUND_S
    assert most < MEMORY_MAX, most
    assert run.state is RunState.DEAD
    return run


@pytest.mark.parametrize(
    ("malice", "fault"),
    [
        (hostile.endless_body, "TooBig: 127.0.0.1:{port} sent more than 1 MB"),
        (hostile.slow_drip, "BodyTimeout: the answer of 127.0.0.1:{port} did not end within 400ms"),
        (hostile.slow_head, "AnswerTimeout: 127.0.0.1:{port} did not answer within 400ms"),
        (hostile.silence, "AnswerTimeout: 127.0.0.1:{port} did not answer within 400ms"),
        (says(hostile.bomb()), "TooBig: 127.0.0.1:{port} sent more than 1 MB, unpacked"),
        (says(HEAD + b"Content-Length: 99999999999\r\n\r\n"), "TooBig: 127.0.0.1:{port} announced 100 GB"),
        (says(HEAD + b"X: " + b"x" * 1_000_000 + b"\r\n\r\n"), "TooBig: 127.0.0.1:{port} sent headers"),
        (says(HEAD + b"X: y\r\n" * 100_000 + b"\r\n"), "TooBig: 127.0.0.1:{port} sent headers"),
        (says(HEAD + b"".join(b"X%d: %b\r\n" % (n, b"x" * 8_000) for n in range(20)) + b"\r\n"), "TooBig"),
        (says(HEAD + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\nno chunk\r\n"), "127.0.0.1:{port}"),
        (says(HEAD + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\nx"), "Interrupted: the answer of"),
        (says(HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhalf"), "Interrupted: the answer of"),
        (says(HEAD + b"Content-Length: 1000\r\n\r\nshort"), "is broken: it is shorter than announced"),
        (says(HEAD + b"Content-Length: -5\r\n\r\n"), "BadAnswer: 127.0.0.1:{port} answered something that is not HTTP"),
        (says(HEAD + b"Content-Encoding: br\r\nContent-Length: 1\r\n\r\nx"), "BadEncoding"),
        (says(HEAD + b"Content-Encoding: gzip, gzip\r\nContent-Length: 1\r\n\r\nx"), "sent several encodings"),
        (says(b"\x00\x01\x02 what is this \xff\xfe\r\n\r\n"), "BadAnswer: 127.0.0.1:{port} answered something"),
        (says(b"SSH-2.0-OpenSSH_9.9\r\n\r\n"), "BadAnswer"),
        (says(b""), "Interrupted: 127.0.0.1:{port} ended the connection"),
        (hostile.reset_in_body, "Interrupted"),
        (hostile.reset_at_once, "Interrupted: 127.0.0.1:{port} ended the connection"),
    ],
    ids=["endless body", "slow drip", "slow head", "silence", "bomb", "announced", "long header", "many headers",
         "64 KB of headers", "bad chunk", "huge chunk", "cut chunk", "wrong length", "negative length", "brotli",
         "two encodings", "bytes", "ssh", "nothing", "reset in body", "reset"],
)  # fmt: skip
async def test_malice_ends_in_time_with_its_fault_and_frees_the_seat(malice, fault):
    timeout = "400ms" if "400ms" in fault else LONG
    async with serving(malice) as port:
        run = await suffered(port, timeout=timeout)
    assert fault.format(port=port) in run.error
    assert run.error.partition(":")[0] in FAULTS


async def test_a_server_that_redirects_for_ever_is_asked_four_times():
    redirects = hostile.Redirects()
    async with serving(redirects) as port:
        run = await suffered(port, timeout="5s")
    assert f"TooManyRedirects: 127.0.0.1:{port} redirects more than 3 times" in run.error
    assert redirects.count == 4


@pytest.mark.parametrize(
    ("location", "fault"),
    [
        ("http://169.254.169.254/latest/meta-data/", "DeniedAddress: 169.254.169.254 is never reached"),
        ("http://[::ffff:169.254.169.254]/", "DeniedAddress: ::ffff:a9fe:a9fe is never reached"),
        ("http://2852039166/", "DeniedAddress: 169.254.169.254 is never reached"),
        ("http://metadata.google.internal/", "DeniedAddress: metadata.google.internal serves"),
        ("file:///etc/passwd", "redirects to what cannot be used: it is of file"),
        ("http://u:p@127.0.0.1/", "redirects to what cannot be used: it holds a user"),
        ("http://[::1", "redirects to what is no URL"),
        ("", "redirects to what cannot be used: it names no host"),
    ],
)
async def test_a_redirect_leads_nowhere_that_the_job_itself_may_not_go(location, fault):
    answer = f"HTTP/1.1 302 Found\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode()
    async with serving(says(answer)) as port:
        run = await suffered(port, timeout="5s")
    assert fault in run.error


async def test_a_tls_handshake_that_never_ends_is_a_connection_that_never_came():
    async with serving(hostile.silence) as port:
        url = f"https://127.0.0.1:{port}/?key=S3CRET"
        run = await suffered(port, url=url, timeout="5s", connect="300ms")
    assert run.error == f"ConnectTimeout: no connection to 127.0.0.1:{port} within 300ms"  # and not what aiohttp said


@pytest.mark.parametrize(
    ("certificate", "params", "fault"),
    [
        ("good", {}, "Untrusted: the certificate of 127.0.0.1:{port} is not trusted: its issuer is not trusted"),
        ("expired", {"ca": str(CERTIFICATES / "ca.pem")}, "it has expired"),
        ("other", {"ca": str(CERTIFICATES / "ca.pem")}, "it is of another"),
        ("good", {"ca": "/nowhere/ca.pem"}, "UnfitParams: ca: the file cannot be used"),
    ],
)
async def test_a_certificate_that_is_not_good_is_told_with_its_reason(certificate, params, fault):
    async with serving(HEALTHY, context=tls(certificate)) as port:
        run = await suffered(port, scheme="https", timeout="5s", **params)
    assert fault.format(port=port) in run.error


async def test_a_server_without_tls_is_told_as_such():
    async with serving(hostile.plain_words) as port:
        run = await suffered(port, scheme="https", timeout="5s")
    assert f"TlsFailed: no secure connection to 127.0.0.1:{port}: it does not speak TLS on this port" in run.error


async def test_nobody_listening_is_refused():
    async with serving(hostile.silence) as port:
        pass
    run = await suffered(port)
    assert f"Refused: no connection to 127.0.0.1:{port}: refused" in run.error


async def test_a_name_that_nobody_knows_is_told_as_such():
    async with serving(HEALTHY) as port:
        run = await suffered(port, url="http://nobody.invalid/", timeout="9s", connect="9s")
    assert run.error.startswith(("NoSuchHost: the name of nobody.invalid:80 could not be resolved", "ConnectTimeout"))
