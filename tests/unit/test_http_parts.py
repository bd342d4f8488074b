"""Parts of the http handler: reading, decompression, fingerprints and the limit per target."""

import asyncio
import contextlib
import gzip
import os
import zlib
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollux.errors import InvalidInput, Permanent, Postponed, Transient
from pollux.handlers.http import extract as matchers
from pollux.handlers.http import target_limit as places_module
from pollux.handlers.http.client import KEPT_BODY_MAX, kept_of, text_of
from pollux.handlers.http.errors import (
    BadEncoding,
    BadStatus,
    Interrupted,
    NothingExtracted,
    RefusedStatus,
    SlowPattern,
    TooBig,
    retry_after_s,
    status_fault,
)
from pollux.handlers.http.extract import RegexWorker, dig, path_of, take_of
from pollux.handlers.http.options import read_options
from pollux.handlers.http.request import PreparedPoll
from pollux.handlers.http.response import Fingerprint, Unpacker, digest_of, parse_fingerprint, read_body, validator_of
from pollux.handlers.http.target_limit import TARGETS_MAX, TargetLimit
from pollux.registry import FINGERPRINT_CHARS_MAX
from pollux.secrets import HIDDEN

# taking a value out of JSON


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("a", {"b": [1, {"c d": "x", "e.f": None}]}),
        ("a.b[0]", 1),
        ("$.a.b[-1]['c d']", "x"),
        ('a.b[1]["e.f"]', None),
        ('["a"].b[-2]', 1),
        ("$", {"a": {"b": [1, {"c d": "x", "e.f": None}]}}),
    ],
)
def test_a_path_leads_to_its_value(path, value):
    body = b'{"a": {"b": [1, {"c d": "x", "e.f": null}]}}'
    assert dig(body, take_of({"json": path}), "t") == value


@pytest.mark.parametrize("path", ["b", "a[0]", "a.b.c", "a.b[2]", "a.b[-3]", 'a.b["0"]'])
def test_a_path_that_leads_nowhere_says_at_which_step(path):
    with pytest.raises(NothingExtracted, match=r"step [123] is not there"):
        dig(b'{"a": {"b": [1, 2]}}', take_of({"json": path}), "t")


@pytest.mark.parametrize("body", [b"", b"<html>", b'{"a": 1', b"\xff\xfe", b"[" * 500_000])
def test_a_body_that_is_no_json_is_a_fault_that_may_pass(body):
    with pytest.raises(NothingExtracted, match="no JSON"):
        dig(body, take_of({"json": "a"}), "t")


@given(st.text(max_size=40))
def test_any_text_is_a_path_or_refused(text):
    with contextlib.suppress(InvalidInput):
        assert isinstance(path_of(text), tuple)


# taking a value out by a regex


@pytest.fixture
async def matcher():
    matcher = RegexWorker()
    yield matcher
    await matcher.close()


async def test_a_regex_gives_its_first_group_or_all_that_it_matched(matcher):
    assert await matcher.search(r"price: ([0-9.]+)", "the price: 12.50 EUR", "t") == "12.50"
    assert await matcher.search(r"\d+", "a 42 b", "t") == "42"
    assert await matcher.search(r"(ü+)", "xüü\u2028\U0001f600", "t") == "üü"
    with pytest.raises(NothingExtracted):
        await matcher.search("z", "abc", "t")
    with pytest.raises(NothingExtracted):
        await matcher.search("a(z)?", "abc", "t")


async def test_a_regex_that_would_take_years_is_ended_and_refused_from_then_on(matcher, monkeypatch):
    """The event loop goes on meanwhile, other patterns work afterwards, and the child is started once for them."""
    monkeypatch.setattr(matchers, "BUDGET_S", 1.0)
    monkeypatch.setattr(matchers, "CHILD_SECONDS_MAX", 60.0)  # it is the child's own alarm that ends it
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0.01)

    counting = asyncio.create_task(count())
    with pytest.raises(SlowPattern, match="repeats inside repeats"):
        await asyncio.wait_for(matcher.search("(a+)+$", "a" * 64 + "b", "t"), 60)
    assert turns > 5
    counting.cancel()
    assert await matcher.search("b", "abc", "t") == "b"
    child = matcher._child
    with pytest.raises(SlowPattern):
        await matcher.search("(a+)+$", "harmless", "t")
    assert await matcher.search("c", "abc", "t") == "c"
    assert matcher._child is child


async def test_a_search_that_is_cancelled_leaves_no_half_answer_behind(matcher):
    await matcher.search("a", "a", "t")
    slow = asyncio.create_task(matcher.search("(a+)+$", "a" * 64 + "b", "t"))
    await asyncio.sleep(0)
    slow.cancel()
    with pytest.raises(asyncio.CancelledError):
        await slow
    assert await matcher.search("b", "abc", "t") == "b"


async def test_only_the_beginning_of_a_long_text_is_searched(matcher):
    text = "x" * 64 * 1024 + "needle"
    with pytest.raises(NothingExtracted):
        await matcher.search("needle", text, "t")


async def test_no_child_outlives_its_matcher():
    matcher = RegexWorker()
    await matcher.search("a", "a", "t")
    pid = matcher._child.pid
    await matcher.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


# bodies


class Pieces:
    def __init__(self, *pieces: bytes) -> None:
        self._pieces = list(pieces)

    async def readany(self) -> bytes:
        return self._pieces.pop(0) if self._pieces else b""


async def read(*pieces: bytes, encoding: str = "", announced: str | None = None, size_max: int = 1_000_000) -> bytes:
    return await read_body(Pieces(*pieces), encoding=encoding, announced=announced, size_max=size_max, target="t")


TEXT = b"".join(b"line %d\n" % n for n in range(5_000))


@pytest.mark.parametrize(
    ("encoding", "packed"),
    [
        ("", TEXT),
        ("identity", TEXT),
        ("gzip", gzip.compress(TEXT)),
        ("X-GZIP", gzip.compress(TEXT)),
        ("gzip", gzip.compress(TEXT[:100]) + gzip.compress(TEXT[100:])),
        ("deflate", zlib.compress(TEXT)),
        ("deflate", zlib.compress(TEXT)[2:-4]),
    ],
)
@pytest.mark.parametrize("step", [1_000_000, 97])
async def test_a_body_is_unpacked_in_whatever_pieces_it_comes(encoding, packed, step):
    pieces = [packed[start : start + step] for start in range(0, len(packed), step)]
    assert await read(*pieces, encoding=encoding) == TEXT


async def test_a_body_may_be_as_big_as_allowed_and_not_a_byte_more():
    assert len(await read(b"x" * 600, b"y" * 400, size_max=1_000)) == 1_000
    with pytest.raises(TooBig, match="more than 1 kB"):
        await read(b"x" * 600, b"y" * 401, size_max=1_000)
    with pytest.raises(TooBig, match="announced 2 kB"):
        await read(b"", announced="2000", size_max=1_000)
    with pytest.raises(TooBig, match="unpacked"):
        await read(gzip.compress(TEXT), encoding="gzip", size_max=len(TEXT) - 1)
    assert await read(gzip.compress(TEXT), encoding="gzip", size_max=len(TEXT)) == TEXT


async def test_a_bomb_is_found_out_by_how_well_it_was_packed():
    with pytest.raises(BadEncoding, match="100 to 1"):
        await read(gzip.compress(bytes(900_000)), encoding="gzip")


@pytest.mark.parametrize(
    ("encoding", "packed", "fault"),
    [
        ("br", b"x", BadEncoding),
        ("gzip, gzip", b"x", BadEncoding),
        ("zstd", b"x", BadEncoding),
        ("gzip", b"no gzip at all", BadEncoding),
        ("deflate", b"\x78\x9c no deflate", BadEncoding),
        ("gzip", gzip.compress(TEXT)[:-9], Interrupted),
        ("gzip", gzip.compress(TEXT) + b"\x1f\x8b", Interrupted),
    ],
)
async def test_a_body_that_cannot_be_unpacked_is_a_fault(encoding, packed, fault):
    with pytest.raises(fault):
        await read(packed, encoding=encoding)


async def test_an_empty_body_needs_no_unpacking():
    assert await read(encoding="gzip") == b""


@pytest.mark.parametrize(
    ("body", "charset", "text"),
    [
        (b"gr\xfc\xdfe", "iso-8859-1", "grüße"),
        ("grüße".encode(), None, "grüße"),
        (b"gr\xfc", "utf-8", "gr\N{REPLACEMENT CHARACTER}"),
        (b"abc", "zip", "abc"),
        (b"abc", "utf-99", "abc"),
        (b"abc", "idna", "abc"),
    ],
)
def test_only_charsets_of_texts_are_believed(body, charset, text):
    assert text_of(body, charset) == text


# marks


@given(
    st.text("0123456789abcdef", min_size=24, max_size=24),
    st.sampled_from(["", 'E"a b"', "MTue, 01 Jan 2030 00:00:00 GMT"]),
)
def test_a_mark_is_read_back_as_it_was_written(digest, validator):
    mark = Fingerprint("01234567", digest, validator)
    assert parse_fingerprint(mark.text) == mark


@pytest.mark.parametrize("text", ["", "abc", "x" * 33, "x" * 32 + " Zfoo", "deadbeef"])
def test_what_somebody_else_remembered_is_no_mark(text):
    assert parse_fingerprint(text) is None


def test_the_etag_goes_before_the_date_and_what_cannot_be_sent_back_is_left_out():
    date = "Tue, 01 Jan 2030 00:00:00 GMT"
    assert validator_of({"ETag": '"a"', "Last-Modified": date}) == 'E"a"'
    assert validator_of({"Last-Modified": date}) == f"M{date}"
    assert validator_of({"ETag": "x" * 1_000}) == ""
    assert validator_of({"ETag": 'a\r\nX: "b"'}) == ""
    assert len(Fingerprint("0" * 8, digest_of(b""), validator_of({"ETag": "x" * 366})).text) <= FINGERPRINT_CHARS_MAX


# statuses


@pytest.mark.parametrize(
    ("status", "kind"),
    [(404, Permanent), (401, Permanent), (302, Permanent), (408, Transient), (425, Transient), (429, Transient),
     (500, Transient), (503, Transient), (204, Transient), (599, Transient)],
)  # fmt: skip
def test_a_status_that_was_not_expected_is_permanent_only_if_it_will_come_again(status, kind):
    fault = status_fault(status, "t:80", "2xx", None)
    assert isinstance(fault, kind)
    assert isinstance(fault, RefusedStatus if kind is Permanent else BadStatus)
    assert f"t:80 answered {status}" in str(fault)


def test_retry_after_is_read_as_seconds_or_a_date():
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=90), usegmt=True)
    assert retry_after_s("120") == 120.0
    assert 80 < retry_after_s(soon) <= 90
    assert retry_after_s("Tue, 01 Jan 2019 00:00:00 GMT") == 0.0
    for nonsense in (None, "", "soon", "-5", "1e9", "٣", "x" * 100):
        assert retry_after_s(nonsense) is None
    assert status_fault(503, "t", "2xx", "7").retry_after == 7.0


# places of targets


async def entered(places: TargetLimit, target, patience_s: float = 30) -> None:
    await places.enter(target, "t", timeout_s=patience_s)


async def test_a_target_lets_so_many_in_and_the_others_in_their_order():
    places = TargetLimit(per_target=2)
    target, order = places.of("h:80"), []
    target.hold_s = 0.01

    async def go(number: int) -> None:
        await entered(places, target)
        order.append(number)

    await go(0)
    await go(1)
    waiting = [asyncio.create_task(go(number)) for number in (2, 3, 4)]
    await asyncio.sleep(0)
    assert (order, target.active) == ([0, 1], 2)
    for expected in (2, 3, 4):
        places.leave(target, 0.01)
        await waiting[expected - 2]
        assert (order[-1], target.active) == (expected, 2)
    places.leave(target, 0.01)
    places.leave(target, 0.01)
    assert target.is_empty


async def test_one_target_does_not_wait_for_another():
    places = TargetLimit(per_target=1)
    assert places.try_enter(places.of("a"))
    assert places.try_enter(places.of("b"))
    assert not places.try_enter(places.of("a"))


async def test_in_a_line_that_stands_still_one_waits_and_whoever_comes_then_is_sent_away_at_once():
    places = TargetLimit(per_target=1)
    target = places.of("t")
    places.try_enter(target)
    target.moved_at -= 60
    first = asyncio.create_task(entered(places, target, 0.01))
    await asyncio.sleep(0)
    with pytest.raises(Postponed, match=r"waits for a place: 1 poll of target t under way \(http.per_target\)"):
        entered(places, target, 0.01).send(None)  # at its first step
    with pytest.raises(Postponed):
        await asyncio.wait_for(first, 60)
    assert (len(target.queue), target.active) == (0, 1)


async def test_nobody_waits_in_a_line_that_is_too_long_to_be_through_in_time():
    places = TargetLimit(per_target=2)
    target = places.of("t")
    target.hold_s = 0.1  # so a place becomes free every 50 ms: two are through within 100
    for _ in range(2):
        places.try_enter(target)
    waiting = [asyncio.create_task(entered(places, target, 0.1)) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(Postponed):
        entered(places, target, 0.1).send(None)
    assert len(target.queue) == 2
    for task in waiting:
        places.leave(target, 0.1)
        await asyncio.wait_for(task, 60)


async def test_those_who_are_sent_away_come_again_one_after_another_as_fast_as_places_become_free():
    places = TargetLimit(per_target=4)
    target = places.of("t")
    target.hold_s = 2.0
    for _ in range(4):
        places.try_enter(target)
    target.moved_at -= 60
    target.queue.append(asyncio.get_running_loop().create_future())

    async def sent_away() -> tuple[float, float]:
        """How much later it is to come again, and which time that is left for the next."""
        with pytest.raises(Postponed) as postponed:
            await places.enter(target, "t")
        return postponed.value.after_s, target.again_at

    assert (await sent_away())[0] == pytest.approx(0.2)
    target.again_at = asyncio.get_running_loop().time() + 5.0
    times = [await sent_away() for _ in range(40)]
    steps = [later - sooner for (_, sooner), (_, later) in pairwise(times[:5])]
    assert steps == pytest.approx([0.5] * 4), "four places that are each held for 2 s"
    assert max(after_s for after_s, _ in times) <= 10.0 + 1e-6
    target.hold_s, target.again_at = 0.0, asyncio.get_running_loop().time() + 5.0
    [(_, sooner), (_, later)] = [await sent_away() for _ in range(2)]
    assert later - sooner == pytest.approx(0.005), "however quick its polls are, they do not come back all at once"


async def test_fewer_places_are_there_once_those_have_left_who_are_too_many():
    places = TargetLimit(per_target=2)
    target = places.of("t")
    places.try_enter(target)
    places.try_enter(target)
    waiting = asyncio.create_task(entered(places, target))
    await asyncio.sleep(0)
    places.per_target = 1
    places.leave(target, 0.1)
    assert (target.active, waiting.done()) == (1, False)
    places.leave(target, 0.1)
    await asyncio.wait_for(waiting, 60)
    assert target.active == 1


async def test_who_gives_up_as_its_turn_comes_passes_it_on():
    places = TargetLimit(per_target=1)
    target = places.of("t")
    target.hold_s = 0.01
    places.try_enter(target)
    first, second = (asyncio.create_task(entered(places, target)) for _ in range(2))
    await asyncio.sleep(0)
    places.leave(target, 0.01)
    first.cancel()
    await asyncio.wait_for(second, 60)
    assert target.active == 1
    places.leave(target, 0.01)
    assert target.is_empty


async def test_who_is_cancelled_in_line_is_gone():
    places = TargetLimit(per_target=1)
    target = places.of("t")
    places.try_enter(target)
    waiting = asyncio.create_task(entered(places, target))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    places.leave(target, 0.1)
    assert target.is_empty


async def test_targets_nobody_uses_are_forgotten_and_those_in_use_are_not(monkeypatch):
    monkeypatch.setattr(places_module, "TARGETS_MAX", 100)
    assert TARGETS_MAX == 20_000
    places = TargetLimit(per_target=1)
    busy = places.of("busy")
    places.try_enter(busy)
    for number in range(1_000):
        places.of(str(number))
    assert len(places._targets) <= 100
    assert places.of("busy") is busy


@pytest.mark.parametrize(
    ("job_ms", "patience_s", "total_ms"), [(60_000, 0.1, 30_000), (5_000, 0.1, 4_800), (200, 0.02, 160)]
)
def test_what_a_poll_waits_for_its_place_is_not_taken_from_the_time_of_the_server(job_ms, patience_s, total_ms):
    """Waiting, the request and the word about what took so long each have a share of the job's timeout."""
    options = read_options({"url": "http://h/"})
    prepared = PreparedPoll({}, options, recipe="", source="file:p.yaml", is_trusted=True, job_ms=job_ms)
    assert (prepared.wait_s, prepared.total_ms) == (patience_s, total_ms)
    assert prepared.timeout.total == total_ms / 1000


async def test_a_child_that_somebody_killed_does_not_make_its_pattern_a_slow_one(matcher, monkeypatch):
    monkeypatch.setattr(matchers, "BUDGET_S", 60.0)  # it is not its own alarm that ends it
    await matcher.search("a", "a", "t")
    slow = asyncio.create_task(matcher.search("(a+)+$", "a" * 64 + "b", "t"))
    await asyncio.sleep(0.05)
    matcher._child.kill()
    with pytest.raises(Interrupted):
        await slow
    assert await matcher.search("(a+)+$", "aaa", "t") == "aaa"


def test_thousands_of_empty_members_are_no_body():
    bomb = gzip.compress(b"") * 1_000
    with pytest.raises(BadEncoding, match="members"):
        Unpacker("gzip", 1_000_000, "t").feed(bomb)


def test_half_a_secret_is_not_kept_where_a_body_is_cut():
    HIDDEN.add("swordfish-9000")
    try:
        body = b"x" * (KEPT_BODY_MAX - 9) + b"swordfish-9000"
        assert "sword" not in kept_of(body, None)
        assert len(kept_of(body * 9, None)) == KEPT_BODY_MAX
    finally:
        HIDDEN.clear()
