"""`Observed` results: the value, and the fingerprint that is compared."""

import pytest

from pollux import Observed
from pollux.errors import InvalidInput
from pollux.model import Job, Memory, Outcome
from pollux.registry import FINGERPRINT_CHARS_MAX, outcome_of
from pollux.secrets import HIDDEN


def outcome(value: Observed, before: str = "") -> Outcome:
    job = Job(id="j", handler="h", memory=Memory(fingerprint=before))
    return outcome_of(value, job=job, started_ms=1, ended_ms=2)


@pytest.mark.parametrize(("before", "changed"), [("", True), ("a", False), ("b", True)])
def test_it_changed_if_the_fingerprint_differs_from_the_last(before, changed):
    seen = outcome(Observed({"ms": 5}, "a"), before)
    assert (seen.changed, seen.fingerprint, seen.result) == (changed, "a", {"ms": 5})


def test_a_handler_that_compares_by_itself_has_the_last_word():
    assert outcome(Observed(1, "a", changed=False), "b").changed is False
    assert outcome(Observed(1, "a", changed=True), "a").changed is True


class Word(str):
    """Text of a kind of its own, as libraries have it."""

    __slots__ = ()

    def __len__(self):
        raise TypeError


class Unspeakable:
    def __repr__(self):
        raise RuntimeError


@pytest.mark.parametrize("changed", [0, 1, 3, "yes", "", [], b"x", 1.0, Unspeakable()])
def test_changed_is_yes_no_or_nothing(changed):
    """What else is true in Python would be recorded as it is, and nobody could read it."""
    with pytest.raises(InvalidInput, match=r"returned Observed\(changed=.*give True or False, as in changed=bool\("):
        outcome(Observed(1, "a", changed=changed))


def test_what_is_wrong_with_it_shows_no_secret():
    HIDDEN.add("s3cret-of-mine")
    try:
        with pytest.raises(InvalidInput) as wrong:
            outcome(Observed(1, "a", changed="x" * 50 + "s3cret-of-mine"))
    finally:
        HIDDEN.clear()
    assert "s3cret" not in str(wrong.value)


def test_a_fingerprint_is_kept_as_plain_text():
    assert type(outcome(Observed(1, Word("a"))).fingerprint) is str


@pytest.mark.parametrize("mark", ["", "x" * (FINGERPRINT_CHARS_MAX + 1), "a\nb", None, 7, b"a", ["a"], Unspeakable()])
def test_a_fingerprint_is_short_and_printable(mark):
    with pytest.raises(InvalidInput, match="as a fingerprint"):
        outcome(Observed(1, mark))
