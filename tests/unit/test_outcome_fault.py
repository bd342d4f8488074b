"""What kind of failure was that, and how is it told?"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollux.errors import Permanent, Transient
from pollux.model import ERROR_CHARS_MAX, Fault
from pollux.outcome import classify, describe, place_of


@pytest.mark.parametrize(
    "error",
    [
        Transient("again"),
        TimeoutError(),
        ConnectionError("refused"),
        OSError(5, "io"),
        ValueError("who knows"),
        KeyError("x"),
    ],
)
def test_what_may_pass_by_itself_is_transient(error):
    assert classify(error) is Fault.TRANSIENT


def test_only_what_the_handler_calls_permanent_is_permanent():
    class NoSuchHost(Permanent):
        pass

    assert classify(Permanent("gone")) is Fault.PERMANENT
    assert classify(NoSuchHost("gone")) is Fault.PERMANENT


def test_an_error_is_told_by_its_kind_and_message():
    assert describe(ConnectionError("refused")) == "ConnectionError: refused"
    assert describe(TimeoutError()) == "TimeoutError"


def raised(error, *causes):
    """The error as it looks after `raise error from cause from ...`."""
    now = error
    for cause in causes:
        now.__cause__ = cause
        now = cause
    return error


def test_an_error_is_told_with_what_it_was_raised_from():
    login = raised(RuntimeError("no session"), ConnectionError("refused"))
    assert describe(login) == "RuntimeError: no session, from ConnectionError: refused"
    hidden = describe(raised(RuntimeError("a"), OSError("secret")), lambda text: text.replace("secret", "***"))
    assert hidden == "RuntimeError: a, from OSError: ***"


def test_a_cause_that_says_nothing_new_is_left_out():
    assert (
        describe(raised(RuntimeError("login: refused"), ConnectionError("refused"))) == "RuntimeError: login: refused"
    )
    assert describe(raised(TimeoutError(), KeyboardInterrupt())) == "TimeoutError"


def test_a_chain_of_causes_is_told_as_far_as_anybody_reads_and_may_be_a_ring():
    chain = [ValueError(str(n)) for n in range(100, 150)]
    assert describe(raised(*chain)).count("from") == 3
    ring = ValueError("round")
    ring.__cause__ = ring
    assert describe(ring) == "ValueError: round"
    assert describe(raised(ValueError("x"), Unspeakable())).endswith("from Unspeakable: (its message cannot be read)")
    assert len(describe(raised(ValueError("x" * 9_999), ValueError("y" * 9_999)))) == ERROR_CHARS_MAX


class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError("no words")

    __repr__ = __str__


def test_an_error_that_cannot_be_told_is_told_by_its_kind():
    assert describe(Unspeakable()) == "Unspeakable: (its message cannot be read)"


def test_an_error_whose_message_is_no_text_is_told_all_the_same():
    class Odd(Exception):
        def __str__(self):
            return 7  # noqa: PLE0307  that is the point

    assert describe(Odd()).startswith("Odd: ")


def test_a_huge_message_is_cut_where_errors_end():
    told = describe(ValueError("x" * 10_000_000))

    assert len(told) == ERROR_CHARS_MAX
    assert told.startswith("ValueError: xxx")
    assert told.endswith("...")


def test_a_message_that_just_fits_is_whole():
    message = "x" * (ERROR_CHARS_MAX - len("ValueError: "))

    assert describe(ValueError(message)) == "ValueError: " + message


def test_an_error_is_one_line_without_control_characters():
    told = describe(ValueError("one\r\ntwo\x00\x1b[31mred\x7f\u2028three\u202eeerht"))

    assert told == "ValueError: one  two[31mred threeeerht"


@given(st.text(st.characters()))
def test_whatever_the_message_is_the_words_can_be_stored_and_shown(message):
    told = describe(ValueError(message))

    assert told.encode("utf-8").decode() == told
    assert len(told) <= ERROR_CHARS_MAX
    assert not any(ord(letter) < 32 or 127 <= ord(letter) < 160 for letter in told)


def test_surrogates_do_not_reach_a_store():
    assert describe(ValueError("a\ud800b")) == "ValueError: a?b"


def fetch():
    raise ValueError("no")


def test_the_place_of_an_error_is_the_last_line_of_the_users_own_code():
    with pytest.raises(ValueError, match="no") as caught:
        fetch()
    line = fetch.__code__.co_firstlineno + 1
    assert place_of(caught.value) == f"test_outcome_fault.py:{line} in fetch"
    assert place_of(ValueError("never raised")) == ""
