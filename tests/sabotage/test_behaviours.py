"""Table of the behaviours is whole: each has a mutant, each mutant fits, red and green are told apart."""

import asyncio

import pytest

from pollux.store import limits
from pollux.testing.conformance import builders, waits
from tests.sabotage import table
from tests.sabotage.behaviours import BEHAVIOURS, CLAIM, CRASH, REFUSAL, killed_by, told
from tests.sabotage.by_hand import SUBTLE
from tests.sabotage.mutants import Mutant, broken, files, mutants

LATE = "test_the_token_of_an_earlier_delivery_renews_nothing"
CURE = "; cure: python -m tests.sabotage --behaviours"


def found(function, change):
    return next(each for file in files() for each in mutants(file) if each.mutant[1:] == (function, change))


def test_every_behaviour_has_a_mutant_and_every_mutant_fits():
    faults = table.wrong(table.read())
    assert not faults, "\n".join(faults) + CURE


def test_the_table_is_written_as_it_is_read():
    assert table.written(table.read()) == table.TABLE.read_text()


def test_a_behaviour_that_is_not_in_the_table_is_told():
    rows = table.read()
    before = table.wrong(rows)
    del rows[LATE]
    rows["test_that_nobody_wrote"] = Mutant("store/memory/store.py", "claim", "1 -> 2")

    new = [fault.split(":")[0] for fault in table.wrong(rows) if fault not in before]
    assert new == [LATE, "test_that_nobody_wrote", "test_that_nobody_wrote"]


def test_a_behaviour_goes_red_under_the_mutant_it_watches_and_stays_green_under_another():
    watched = found("renew", "or run.token != renewal.token -> left out")
    other = found("_load_note", "if note.key in state.notes: -> if False:")

    assert killed_by(watched, [LATE], frozenset()) == {LATE: CLAIM}
    assert killed_by(other, [LATE], frozenset()) == {}
    assert killed_by(watched, [LATE], frozenset([LATE])) == {LATE: CLAIM}
    assert table.standing({LATE: watched.mutant}) == {LATE: watched.mutant}
    assert table.standing({LATE: other.mutant}) == {}


def test_every_mutant_leaves_a_program():
    for file in files():
        there = mutants(file)
        assert len({each.mutant for each in there}) == len(there)
        by_hand = [each for each in there if not each.path]
        for each in (*by_hand, *there[::50]):
            compile(broken(file, each), file, "exec")


def test_a_change_by_hand_is_of_one_file():
    assert [name for name, patches in SUBTLE.items() if len({patch.file for patch in patches}) != 1] == []


def test_how_it_went_red_is_told_from_where_the_error_came():
    """A claim of the suite, a refusal of the store, or a crash: in the suite's builders, in the store, or elsewhere."""

    async def late():
        raise TimeoutError

    for spoil, how in (
        (lambda: asyncio.run(waits.soon(late())), CLAIM),
        (lambda: builders.T0 / 0, CRASH),
        (lambda: limits.check_page(0), REFUSAL),
        (lambda: limits.check_batch(None, "x"), CRASH),
    ):
        with pytest.raises(Exception) as seen:  # noqa: PT011  whatever it is
            spoil()
        assert told(seen.value) == how


def test_a_narrow_claim_is_chosen_before_a_wide_one_and_before_a_refusal():
    wide, narrow, refusal = (Mutant("f", "g", name) for name in ("wide", "narrow", "refusal"))
    rows = {wide: {"a": CLAIM, "b": CLAIM}, narrow: {"a": CLAIM}, refusal: {"a": REFUSAL}}
    width = {wide: (100, 1), narrow: (2, 1), refusal: (1, 1)}

    assert table.cover(rows, width) == {"a": narrow, "b": wide}


def test_a_narrow_refusal_is_chosen_before_a_claim_against_a_store_where_nothing_works():
    ruin, refusal = Mutant("f", "g", "ruin"), Mutant("f", "g", "refusal")

    assert table.cover({ruin: {"a": CLAIM}, refusal: {"a": REFUSAL}}, {ruin: (284, 1), refusal: (1, 1)}) == {
        "a": refusal
    }


def test_there_are_behaviours():
    assert len(BEHAVIOURS) > 300
