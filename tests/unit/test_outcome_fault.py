"""Classification and description of exceptions."""

import asyncio
import json
import linecache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollux.errors import Permanent, Transient
from pollux.model import ERROR_CHARS_MAX, Fault
from pollux.outcome import TRACEBACK_CHARS_MAX, classify, describe, place_of, traceback_of


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


@pytest.mark.parametrize(
    ("errors", "fault"),
    [
        ([Permanent("a")], Fault.PERMANENT),
        ([Permanent("a"), Permanent("b")], Fault.PERMANENT),
        ([Permanent("a"), ValueError("b")], Fault.TRANSIENT),
        ([ValueError("a")], Fault.TRANSIENT),
        ([Permanent("a"), ExceptionGroup("inner", [Permanent("b"), Permanent("c")])], Fault.PERMANENT),
        ([Permanent("a"), ExceptionGroup("inner", [Permanent("b"), OSError("c")])], Fault.TRANSIENT),
    ],
)
def test_a_group_is_permanent_if_all_in_it_are(errors, fault):
    assert classify(ExceptionGroup("outer", errors)) is fault


def test_a_group_that_is_itself_called_permanent_is_permanent():
    class NothingLeft(ExceptionGroup, Permanent):
        pass

    assert classify(NothingLeft("all hosts", [OSError("refused")])) is Fault.PERMANENT


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


GROUP = "ExceptionGroup: unhandled errors in a TaskGroup"


def group(*errors, text="unhandled errors in a TaskGroup"):
    return ExceptionGroup(text, list(errors))


def test_a_group_is_told_with_what_is_in_it():
    assert (
        describe(group(ZeroDivisionError("by zero"))) == f"{GROUP} (1 sub-exception), from ZeroDivisionError: by zero"
    )
    two = group(TimeoutError(), raised(OSError("no answer"), KeyError("host")))
    assert (
        describe(two)
        == f"{GROUP} (2 sub-exceptions), from TimeoutError, from OSError: no answer, from KeyError: 'host'"
    )
    assert describe(group(ValueError("no"), text="no")) == "ExceptionGroup: no (1 sub-exception), from ValueError: no"
    assert describe(group(ValueError("a"), ValueError("a"))).count("from ValueError: a") == 1
    hidden = describe(group(OSError("secret")), lambda text: text.replace("secret", "***"))
    assert hidden.endswith("from OSError: ***")


def test_a_group_in_a_group_is_told_by_what_is_in_it_and_a_group_may_be_a_cause():
    nested = group(group(group(ValueError("a")), KeyError("b")), OSError("c"))
    assert describe(nested) == f"{GROUP} (2 sub-exceptions), from ValueError: a, from KeyError: 'b', from OSError: c"
    wrapped = raised(RuntimeError("sync"), group(ValueError("a")))
    assert describe(wrapped) == f"RuntimeError: sync, from {GROUP} (1 sub-exception), from ValueError: a"


def test_a_group_is_told_as_far_as_anybody_reads():
    assert describe(group(*[ValueError(str(n)) for n in range(100, 5_000)])).count("from") == 3
    assert len(describe(group(ValueError("x" * 9_999), ValueError("y" * 9_999)))) == ERROR_CHARS_MAX
    deep = ValueError("no")
    for _ in range(2_000):
        deep = group(deep)
    assert describe(deep).endswith("from ValueError: no")
    assert describe(group(Unspeakable())).endswith("from Unspeakable: (its message cannot be read)")


def test_a_group_that_tells_its_parts_wrongly_is_told_by_what_is_in_it():
    class Ring(ExceptionGroup):
        @property
        def exceptions(self):
            return (self,)

    ring = Ring("ring", [Permanent("a")])
    assert describe(ring) == "Ring: ring (1 sub-exception), from Permanent: a"
    assert classify(ring) is Fault.PERMANENT


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


# tracebacks

HERE = __file__


def trace_of(call, hide=str, **options):
    try:
        call()
    except Exception as error:  # noqa: BLE001  whatever it raises
        return traceback_of(error, hide, line_of=linecache.getline, **options).splitlines()
    raise AssertionError("it did not fail")


def line(function, offset):
    return function.__code__.co_firstlineno + offset


def wraps():
    try:
        fetch()
    except ValueError as error:
        raise RuntimeError("wrapped") from error


def wraps_silently():
    try:
        fetch()
    except ValueError:
        raise RuntimeError("wrapped")  # noqa: B904  as people write it


def raises_again():
    try:
        fetch()
    except ValueError as error:
        error.is_known = True
        raise error  # noqa: TRY201  as people write it


def reads():
    json.loads("{")


def groups():
    async def main():
        async with asyncio.TaskGroup() as group:
            group.create_task(later())

    async def later():
        fetch()

    asyncio.run(main())


BROKE = [f'File "{HERE}", line {line(fetch, 1)}, in fetch', '    raise ValueError("no")']


def test_a_traceback_shows_frames_of_the_users_code_with_their_source():
    frames = trace_of(raises_again)
    assert frames[-2:] == BROKE
    assert f'File "{HERE}", line {line(raises_again, 2)}, in raises_again' in frames
    assert frames[frames.index(f'File "{HERE}", line {line(raises_again, 2)}, in raises_again') + 1] == "    fetch()"


@pytest.mark.parametrize("call", [wraps, wraps_silently])
def test_a_traceback_ends_where_it_broke_and_names_where_it_was_raised_again(call):
    frames = trace_of(call)
    assert frames[-3:-1] == BROKE
    assert frames[-1] == f'raised again as RuntimeError: File "{HERE}", line {line(call, 4)}, in {call.__name__}'


def test_a_traceback_leaves_out_what_is_not_the_users_own():
    frames = trace_of(reads)
    assert frames[-2:] == [f'File "{HERE}", line {line(reads, 1)}, in reads', '    json.loads("{")']
    assert not any("decoder.py" in frame for frame in frames)
    assert trace_of(reads, own="json")[-2].startswith('File "'), "an installed package may be the user's own"
    assert "decoder.py" in trace_of(reads, own="json")[-2]


def test_the_first_of_a_group_tells_where_it_broke():
    assert BROKE[0] in trace_of(groups)


def groups_of_groups():
    try:
        groups()
    except ExceptionGroup as error:
        for text in "abcd":
            error = ExceptionGroup(text, [error])
        raise error from None


def test_however_many_groups_are_around_it_the_first_tells_where_it_broke():
    assert BROKE[0] in trace_of(groups_of_groups)


def test_the_place_of_an_error_that_was_raised_again_is_where_it_broke():
    for call in (wraps, wraps_silently, raises_again):
        with pytest.raises((ValueError, RuntimeError)) as caught:
            call()
        assert place_of(caught.value) == f"test_outcome_fault.py:{line(fetch, 1)} in fetch"


def deep(left):
    if left:
        deep(left - 1)
    else:
        raise ValueError("no")


def test_a_traceback_is_bounded_and_hides_what_must_not_be_seen():
    frames = trace_of(lambda: deep(50))
    assert sum(frame.startswith("File") for frame in frames) == 5
    assert len("\n".join(frames)) <= TRACEBACK_CHARS_MAX
    assert not any("deep" in each for each in trace_of(lambda: deep(2), lambda text: text.replace("deep", "***")))
    assert traceback_of(ValueError("never raised"), str, line_of=linecache.getline) == ""


def test_causes_that_go_in_a_circle_end():
    first, second = ValueError("a"), KeyError("b")
    first.__cause__, second.__cause__ = second, first
    assert traceback_of(first, str, line_of=linecache.getline) == ""


class Odd(Exception):
    """One whose comparison breaks, as that of a dataclass with an array does."""

    def __eq__(self, other):
        raise ValueError("ambiguous")

    __hash__ = Exception.__hash__


def test_an_exception_that_cannot_be_compared_has_a_traceback_all_the_same():
    def fail():
        try:
            raise Odd("first")
        except Odd as error:
            raise Odd("second") from error

    with pytest.raises(Odd) as caught:
        fail()
    assert "in fail" in traceback_of(caught.value, str, line_of=linecache.getline, own=__file__)
