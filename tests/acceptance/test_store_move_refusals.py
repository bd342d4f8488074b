"""A move that would lose, mix or double something is refused before anything is changed."""

import pytest

from pollux import Pollux
from pollux.app.move import Move, MoveEnd
from pollux.clock import SystemClock
from pollux.errors import Conflict, StoreRefused
from pollux.model import DRAIN, AuditLine, Job, Node, NotePut
from pollux.store.contract import JobPut
from pollux.store.move_marks import marks_of, unseal
from pollux.testing.conformance.builders import T0, a_run
from tests.acceptance.move_world import Around, cut_off, fresh, moved


async def test_nodes_that_live_are_named():
    """Who leads is told by the term: `node-1` was killed, and its last beat says otherwise."""
    one, two = await fresh(filled=True), await fresh()
    term = await one.elect("node-0", ttl_ms=60_000, now_ms=T0 + 10)
    for number in range(7):
        leads = {0: term.number, 1: term.number - 1}.get(number, 0)
        await one.beat(Node(f"node-{number}", leads=leads), ttl_ms=60_000)

    with pytest.raises(
        Conflict, match=r"7 nodes live \(node-0 \(leads\), node-1, node-2, .* and 2 more\) on one; .*--live"
    ):
        await moved(one, two)
    assert (await marks_of(one)).to is None
    assert await one.notes(DRAIN) == []


async def test_a_target_that_is_not_empty_is_refused():
    one = await fresh(filled=True)
    for spoil in (
        lambda store: store.put_jobs([JobPut(Job(id="theirs", handler="h"))]),
        lambda store: store.put_notes([NotePut("theirs", 1)]),
        lambda store: store.log([AuditLine(1, "a", "b", "c")]),
    ):
        two = await fresh()
        await spoil(two)
        with pytest.raises(Conflict, match="two is not empty: there is a"):
            await moved(one, two)
    assert (await marks_of(one)).to is None, "nothing was begun"


async def test_a_target_on_which_nodes_live_is_refused():
    one, two = await fresh(filled=True), await fresh()
    await two.beat(Node("early"), ttl_ms=60_000)
    with pytest.raises(Conflict, match=r"1 node lives \(early\) on two; start nodes there when the move is over"):
        await moved(one, two)


async def test_nobody_is_told_to_throw_away_a_store_that_is_in_use():
    one, two = await fresh(filled=True), await fresh(filled=True)
    await two.beat(Node("works"), ttl_ms=60_000)
    with pytest.raises(Conflict, match=r"^two is in use: 1 node lives \(works\) on it.*; name an empty store$"):
        await moved(one, two)


async def test_a_part_of_another_move_is_refused():
    one, two, three = await fresh(filled=True), await fresh(), await fresh(filled=True)
    assert await cut_off(three, two, 15, after=True)
    with pytest.raises(Conflict, match="a part of another move, from one"):
        await moved(one, two)


async def test_a_second_goal_is_refused_until_the_first_move_is_given_up():
    one, two, three = await fresh(filled=True), await fresh(), await fresh()
    assert await cut_off(one, two, 14, after=True)
    with pytest.raises(Conflict, match=r"a move of one to two was begun on .*unseal"):
        await Move(MoveEnd(one, "one"), MoveEnd(three, "three"), clock=SystemClock(), report=print).run(
            "x", actor="", live=False, wait_ms=0
        )
    await unseal(one)
    answer = await Move(MoveEnd(one, "one"), MoveEnd(three, "three"), clock=SystemClock(), report=lambda _: None).run(
        "x", actor="", live=False, wait_ms=0
    )
    assert answer.counts["jobs"] == 3


async def test_what_was_moved_is_not_moved_to_another_place():
    one, two, three = await fresh(filled=True), await fresh(), await fresh()
    await moved(one, two)
    with pytest.raises(Conflict, match=r"one was moved to two on .*; move from there"):
        await moved(one, three)
    with pytest.raises(Conflict, match="was moved to two, so it is not in use"):
        await Move(MoveEnd(three, "three"), MoveEnd(one, "one"), clock=SystemClock(), report=print).run(
            "x", actor="", live=False, wait_ms=0
        )
    await moved(two, three)
    assert (await three.counts()).jobs == 3, "on from there it goes"


async def test_the_same_store_under_two_names_is_found_and_left_as_it_was():
    one = await fresh()
    with pytest.raises(Conflict, match="are the same store"):
        await moved(one, one)
    assert (await marks_of(one)).to is None


async def test_what_comes_meanwhile_is_carried_too():
    """An app that still enqueues: seen by the counts, and fetched in another pass."""
    one, two = await fresh(filled=True), await fresh()
    late = [a_run(f"late{n}", "job0") for n in range(3)]

    class Busy(Around):
        async def dump(self, **options):
            page = await self.store.dump(**options)
            if late and page.next is None:
                await self.store.enqueue([late.pop()])
            return page

    with pytest.raises(Conflict, match="something still writes to one"):
        await moved(Busy(one), two)
    answer = await moved(Busy(one), two)
    assert late == []
    assert answer.counts["live runs"] == 9
    assert (await two.counts()).ready == (await one.counts()).ready + (await one.counts()).leased


async def test_a_copy_that_is_not_what_was_carried_is_said():
    one, two = await fresh(filled=True), await fresh()

    class Forgetful(Around):
        """It spoils what it is given."""

        async def load(self, records):
            spoilt = [(k, d | {"detail": "never mind"} if k == "log" and d["seq"] == 2 else d) for k, d in records]
            return await self.store.load(spoilt)

    with pytest.raises(Conflict, match="two differs from one: other audit lines"):
        await moved(one, Forgetful(two))
    assert not (await marks_of(two)).origin.is_over
    with pytest.raises(StoreRefused, match=r"is being moved to two, since .*complete the move"):
        await Pollux(one).open()
    with pytest.raises(StoreRefused, match="is being filled from one"):
        await Pollux(two).open()
