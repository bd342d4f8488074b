"""What does a handler say that returns `Observed`?  A result, and a fingerprint to compare by."""

import pytest

from pollux import Observed
from pollux.errors import InvalidInput
from pollux.model import Job, Memory, Outcome
from pollux.registry import FINGERPRINT_CHARS_MAX, outcome_of


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


@pytest.mark.parametrize("mark", ["", "x" * (FINGERPRINT_CHARS_MAX + 1), "a\nb"])
def test_a_fingerprint_is_short_and_printable(mark):
    with pytest.raises(InvalidInput, match="as a fingerprint"):
        outcome(Observed(1, mark))
