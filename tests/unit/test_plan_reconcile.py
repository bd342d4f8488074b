"""Reload: the difference between stored and wanted jobs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pollux.errors import Conflict
from pollux.model import Cron, Interval, Job, Memory, declares
from pollux.plan import Diff, conflicting, reconcile

FILE, CODE = "file:pollux.yaml", "code:app"


def a_job(id, schedule=None, source=FILE, **options):
    return Job(id=id, handler="h", schedule=schedule or Interval(30_000), source=source, **options)


def stored(job, **columns):
    return replace(job, revision=3, next_due_ms=5, last_due_ms=4, memory=Memory(ended=7), **columns)


def test_what_is_new_is_added_what_is_gone_removed_and_what_is_the_same_left_alone():
    same, gone, new = a_job("same"), a_job("gone"), a_job("new")
    diff = reconcile([stored(same), stored(gone)], [same, new], FILE)

    assert diff == Diff(FILE, add=(new,), remove=(stored(gone),), same=1)
    assert not diff.is_empty


def test_a_changed_definition_is_a_change_with_both_sides():
    old, new = a_job("a"), a_job("a", Interval(60_000))

    assert reconcile([stored(old)], [new], FILE).change == ((stored(old), new),)


def test_what_the_store_and_the_leader_keep_is_no_change():
    assert reconcile([stored(a_job("a"))], [a_job("a")], FILE).is_empty


def test_jobs_of_other_sources_are_not_touched():
    others = [stored(a_job("x", source="api")), stored(a_job("y", source="file:other.yaml"))]

    assert reconcile(others, [], FILE) == Diff(FILE)


def test_a_job_that_code_no_longer_declares_is_undeclared_once_and_never_removed():
    job = a_job("a", source=CODE)
    diff = reconcile([stored(job)], [], CODE)
    assert (diff.remove, diff.undeclare) == ((), (stored(job),))

    assert reconcile([stored(job, declared=False)], [], CODE).is_empty


def test_a_job_that_code_declares_again_is_a_change():
    job = a_job("a", source=CODE)

    assert len(reconcile([stored(job, declared=False)], [job], CODE).change) == 1


def test_one_id_in_two_sources_is_refused_and_both_are_named():
    with pytest.raises(Conflict, match=r"job 'a' is in api and in file:pollux.yaml"):
        reconcile([], [a_job("a"), a_job("b")], FILE, owners={"a": "api"})
    with pytest.raises(Conflict, match=r"job 'a' is in api and in file:pollux.yaml"):
        reconcile([stored(a_job("a", source="api"))], [a_job("a")], FILE)


def test_one_id_twice_in_a_source_is_refused():
    with pytest.raises(Conflict, match=r"job 'a' is in file:pollux.yaml twice"):
        reconcile([], [a_job("a"), a_job("a")], FILE)


def test_a_thousand_conflicts_are_told_in_a_bounded_message():
    with pytest.raises(Conflict, match="and 980 more") as refusal:
        reconcile([], [a_job(f"j{n}") for n in range(1_000)], FILE, owners={f"j{n}": "api" for n in range(1_000)})
    assert len(str(refusal.value)) < 2_000


def test_an_owner_of_the_same_source_is_no_conflict():
    assert reconcile([], [a_job("a")], FILE, owners={"a": FILE}).add


def test_the_difference_reads_like_a_plan():
    before = [
        stored(a_job("dump", Cron("0 5 * * *"))),
        stored(a_job("old")),
        stored(a_job("rare", priority=2, params={"a": 1})),
        stored(a_job("turn", Interval(30_000))),
    ]
    after = [
        a_job("dump", Cron("0 6 * * *")),
        a_job("home"),
        a_job("rare", priority=1, params={"a": 2}),
        a_job("turn", Cron("0 6 * * *", tz="Europe/Berlin")),
    ]

    assert reconcile(before, after, FILE).lines() == [
        "+ job home  every 30s",
        "~ job dump  cron 0 5 * * * -> 0 6 * * *",
        "~ job rare  params changed, priority 2 -> 1",
        "~ job turn  every 30s -> cron 0 6 * * * Europe/Berlin",
        "- job old",
    ]


def test_an_undeclared_job_reads_as_what_it_is():
    diff = reconcile([stored(a_job("a", source=CODE))], [], CODE)

    assert diff.lines() == ["- job a  no longer declared; its due times are skipped"]


# releases


def test_a_newer_release_that_is_stored_lets_an_older_one_change_nothing():
    newer = stored(a_job("a", source=CODE, release=3))
    diff = reconcile([newer], [a_job("a", Interval(60_000), CODE), a_job("b", source=CODE)], CODE, release=2)

    assert diff == Diff(CODE, release=2, newer=3)
    assert diff.lines() == ["! release 3 of code:app is known: release 2 changes nothing"]


def test_a_newer_release_that_lives_counts_as_much():
    peers = [declares(CODE, 3, ["x"]), declares("code:other", 9, ["y"])]

    assert reconcile([], [a_job("b", source=CODE)], CODE, peers=peers).newer == 3
    assert reconcile([], [a_job("b", source=CODE, release=3)], CODE, peers=peers).newer is None


def test_a_file_of_an_older_release_removes_nothing():
    newer = stored(a_job("a", release=3))

    assert reconcile([newer], [], FILE, release=2).remove == ()
    assert reconcile([newer], [], FILE, release=3).remove == (newer,)


def test_the_release_is_that_of_the_jobs_if_nobody_says_it():
    assert reconcile([stored(a_job("a", release=3))], [a_job("a", release=4)], FILE).release == 4


def test_a_job_that_other_code_may_still_declare_is_left():
    gone, mine = stored(a_job("gone", source=CODE)), a_job("mine", source=CODE)
    other = declares(CODE, 0, ["gone", "mine"])
    diff = reconcile([gone, stored(mine)], [mine], CODE, peers=[other])

    assert (diff.left, diff.undeclare) == ((gone,), ())
    assert diff.is_empty
    assert diff.lines() == ["  job gone  no longer declared here; it is left while older nodes live"]


def test_nodes_that_declare_the_same_jobs_or_those_of_another_source_hold_nothing_up():
    gone, mine = stored(a_job("gone", source=CODE)), a_job("mine", source=CODE, release=2)
    same = [declares(CODE, 1, ["mine"]), declares(CODE, 2, ["mine"]), declares("code:other", 2, ["gone"])]

    assert reconcile([gone], [mine], CODE, peers=same).undeclare == (gone,)


IDS = st.sets(st.sampled_from([f"j{n}" for n in range(12)]))


@given(IDS, IDS, st.sampled_from([FILE, CODE]))
def test_applying_a_difference_leaves_none(before, after, source):
    have = {job_id: stored(a_job(job_id, source=source)) for job_id in before}
    want = [a_job(job_id, Interval(60_000), source=source) for job_id in after]
    diff = reconcile(list(have.values()), want, source)
    for job in [*diff.add, *(new for _, new in diff.change)]:
        have[job.id] = job
    for job in diff.remove:
        del have[job.id]
    for job in diff.undeclare:
        have[job.id] = replace(job, declared=False)

    assert reconcile(list(have.values()), want, source).is_empty
    assert diff.same + len(diff.change) + len(diff.add) == len(after)


def test_a_job_that_is_in_another_version_is_left_there_and_told():
    diff = reconcile([], [a_job("a"), a_job("b")], FILE, elsewhere={"a": 1, "stranger": 1})

    assert [job.id for job in diff.add] == ["b"]
    assert diff.elsewhere == (("a", 1),)
    assert diff.lines()[-1] == "  job a  is in version 1: pollux jobs move"
    assert reconcile([], [a_job("a")], FILE, elsewhere={"a": 1}).is_empty


# one name for two


def some(count, prefix="j", source=FILE, **options):
    return [a_job(f"{prefix}{n}", source=source, **options) for n in range(count)]


def compared(before, after, source=FILE, *, had=(), peers=(), behind=(), release=0, is_again=False):
    """As a node compares that starts, or moves on from texts of these marks."""
    there = [stored(job) for job in before]
    found = conflicting(declares(source, release, [job.id for job in after]), peers, behind=behind)
    return reconcile(there, after, source, release=release, peers=peers, had=had, conflicting=found, is_again=is_again)


def mark_of(jobs, source=FILE, release=0):
    return declares(source, release, [job.id for job in jobs])


@pytest.mark.parametrize(
    ("has", "goes", "is_refused"),
    [
        (4, 4, False),
        (5, 5, True),
        (8, 4, False),
        (8, 5, True),
        (9, 5, True),
        (10, 5, False),
        (10, 6, True),
        (7, 4, False),
    ],
)
@pytest.mark.parametrize("source", [FILE, CODE])
def test_more_than_half_and_at_least_five_are_not_taken_away_unasked(has, goes, is_refused, source):
    before = some(has, source=source)
    diff = compared(before, before[goes:], source)
    assert (diff.refused is not None) is is_refused
    if is_refused:
        assert diff.refused.words == (
            f"{goes} jobs (j0, j1, j2, j3, j4{', ...' if goes > 5 else ''}) would go, of the {has} that {source} has"
        )
        assert diff.refused.because_of == ()
        assert diff.lines()[-1] == f"! refused without --replace: {diff.refused.words}"


def test_a_set_that_the_source_had_may_come_back_unless_a_living_node_has_another_one():
    before, after = some(9), some(2, "k")
    assert compared(before, after, had=("x",)).refused is not None
    had = ("x", mark_of(after).mark)
    assert compared(before, after, had=had).refused is None
    refused = compared(before, after, had=had, peers=[mark_of(before)]).refused
    assert refused.because_of == (mark_of(before).mark,)
    assert "would go that a living node may still declare" in refused.words


def test_a_greater_release_decides_as_before_whatever_lives():
    before, after = some(9), some(1, "k", release=1)
    diff = compared(before, after, peers=[mark_of(before)], release=1)
    assert (diff.refused, len(diff.remove)) == (None, 9)


def test_one_job_of_a_file_that_a_living_node_declares_is_not_taken_away():
    before = some(9)
    diff = compared(before, before[1:], peers=[mark_of(before)], had=(mark_of(before).mark,))
    assert diff.refused.words == "1 job (j0) would go that a living node may still declare"
    assert diff.refused.because_of == (mark_of(before).mark,)
    others = [declares("file:other.yaml", 0, ["j0"]), mark_of(before[1:]), mark_of(before, release=-1)]
    assert compared(before, before[1:], peers=others).refused is None, (
        "of another source, the same jobs, another release"
    )
    assert compared(before, [*before, a_job("new")], peers=[mark_of(before)]).refused is None, "nothing goes"


def test_of_code_fewer_are_left_to_the_living_node_and_most_are_refused():
    before = some(4, source=CODE)
    for goes, is_refused in ((1, False), (2, False), (3, True), (4, True)):
        diff = compared(before, before[goes:], CODE, peers=[mark_of(before, CODE)])
        assert (diff.refused is not None) is is_refused
        assert (len(diff.left), diff.undeclare) == (goes, ())


def test_nodes_that_still_have_the_text_that_is_moved_on_from_do_not_count():
    first, second = some(9), some(8)
    one = mark_of(first)
    assert compared(first, second, had=(one.mark,), peers=[one], behind=(one.mark,)).refused is None
    assert compared(first, second, had=(one.mark,), peers=[one]).refused, "whoever starts moves on from nothing"
    stranger = declares(FILE, 0, ["x"])
    refused = compared(first, second, had=(one.mark,), peers=[one, stranger], behind=(one.mark,)).refused
    assert refused.because_of == (stranger.mark,)


def test_a_text_that_holds_takes_nothing_from_a_living_node_and_is_never_refused():
    before, mine = some(9), some(1, "k")
    diff = compared([*before, *mine], mine, peers=[mark_of(before)], is_again=True)
    assert (diff.refused, diff.remove, len(diff.left)) == (None, (), 9)
    alone = compared([*before, *mine], mine, is_again=True)
    assert (alone.refused, len(alone.remove), alone.left) == (None, 9, ())


def test_retired_jobs_do_not_count():
    before = [*some(3, source=CODE), *some(9, "old", source=CODE, declared=False)]
    assert compared(before, some(1, "k", source=CODE), CODE).refused is None
    assert compared(before, some(1, "k", source=CODE), CODE, peers=[mark_of(before[:3], CODE)]).refused
