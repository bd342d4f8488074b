"""Leadership by the term in the store, not by heartbeats, and the nodes that could take over."""

import pytest
from msgspec.structs import replace

from pollux.model import Counts, Node, Version, by_term, leader_of, leadership, role_of

NOW = 1_800_000_000_000
LEADER = Node(id="a", leads=3, leads_ms=NOW - 60_000, beat_ms=NOW - 5_000)
STANDBY = Node(id="b", beat_ms=NOW)
WORKER = Node(id="w", plans=False, beat_ms=NOW)


def a_version(leader, term=3, number=2):
    return Version(number, Counts(held=0, ready=0, leased=0, dead=0, feed=0, ends=0, jobs=1), term, leader)


def test_who_believed_to_lead_does_not_once_the_term_is_over():
    [node, other] = by_term([LEADER, WORKER], [a_version("")])
    assert (node.leads, role_of(node)) == (0, "silent")
    assert other is WORKER
    assert leader_of([node, other]) is None


def test_who_was_killed_is_not_counted_on_to_take_over_from_itself():
    """Its last beat is young, and said that it leads: had it lost its term and lived, it would have said so."""
    found = leadership(by_term([LEADER, WORKER], [a_version("")]), now_ms=NOW)
    assert (found.is_led, found.seen) == (False, "no leader, and no node can lead: nothing is planned")
    found = leadership(by_term([LEADER, STANDBY], [a_version("b", term=4)]), now_ms=NOW)
    assert found.seen == "b leads, term 4; no standby: no other node could take over"


def test_who_holds_the_term_leads_though_its_beat_does_not_say_so_yet():
    found = by_term([LEADER, STANDBY], [a_version("b", term=4)])
    assert [role_of(node) for node in found] == ["silent", "leader"]
    assert (found[1].leads, found[1].leads_ms) == (4, NOW)


def test_a_term_that_stands_leaves_its_node_as_it_is():
    assert by_term([LEADER, STANDBY], [a_version("a"), a_version("", number=5)]) == [LEADER, STANDBY]


def test_each_version_has_its_own():
    other = replace(STANDBY, scheduler_version=5)
    found = by_term([LEADER, other], [a_version("a"), a_version("b", term=1, number=5)])
    assert [node.leads for node in found] == [3, 1]


def test_a_version_is_judged_by_its_own_nodes_and_started_by_its_number():
    other = replace(STANDBY, scheduler_version=5)
    found = leadership([LEADER, replace(WORKER, scheduler_version=5)], now_ms=NOW, version=5)
    assert (found.is_led, found.can_be) == (False, False)
    assert found.cure.startswith("start one that can: pollux serve --scheduler-version 5 (")
    assert found.cure.endswith("; or move what is there: pollux jobs move --from-version 5 --to-version 2")
    found = leadership([LEADER, other], now_ms=NOW, version=5)
    assert (found.is_led, found.can_be) == (False, True)
    assert leadership([LEADER, other], now_ms=NOW, version=2).seen.startswith("a leads, term 3; no standby")
    silent = replace(LEADER, scheduler_version=5, beat_ms=NOW - 31_500)
    assert leadership([silent], now_ms=NOW, version=5).cure.endswith("start pollux serve --scheduler-version 5")


@pytest.mark.parametrize(
    ("nodes", "is_led", "seen", "cure"),
    [
        ([LEADER, STANDBY, WORKER], True, "a leads, term 3; 1 on standby", ""),
        ([LEADER, WORKER], True, "a leads, term 3; no standby: no other node could take over", ""),
        ([LEADER, replace(STANDBY, beat_ms=NOW - 31_000)], True, "a leads, term 3; no standby: no other node", ""),
        ([STANDBY, WORKER], False, "no leader: nothing is planned", "b can lead and does so within seconds"),
        ([WORKER], False, "no leader, and no node can lead: nothing is planned", "start one that can: pollux serve"),
        (
            [replace(STANDBY, beat_ms=NOW - 31_000), WORKER],
            False,
            "no leader, and no node can lead",
            "start one that can: pollux serve",
        ),
        (
            [replace(LEADER, beat_ms=NOW - 31_500), STANDBY],
            True,
            "a leads, no heartbeat for 31s",
            "look at that machine; b takes over once its term ends",
        ),
        (
            [replace(LEADER, beat_ms=NOW - 31_500), WORKER],
            True,
            "a leads, no heartbeat for 31s",
            "look at that machine; no other node can lead: start pollux serve",
        ),
    ],
)
def test_how_it_is_led_is_said_with_who_could_take_over(nodes, is_led, seen, cure):
    found = leadership(nodes, now_ms=NOW)
    assert found.is_led == is_led
    assert found.seen.startswith(seen)
    assert found.cure.startswith(cure)
    assert bool(found.cure) == bool(cure)
