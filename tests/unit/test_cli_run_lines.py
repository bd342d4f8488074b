"""Run lines of `pollux runs`: which value each one shows."""

import re

from msgspec.structs import replace

from pollux.cli.output import full
from pollux.cli.runs import changed, detail_of, print_run, took
from pollux.model import AT_THE_GATE, Run, RunState, Tried
from pollux.server.schemas.runs import run_view

NOW = 1_790_000_000_000
WAITS = Run(id="r", job_id="j", due_ms=NOW, state=RunState.HELD, gated=True, held_reason=AT_THE_GATE, visible_ms=NOW)


def test_a_run_that_failed_says_when_it_is_tried_again_wherever_it_waits():
    failed = replace(WAITS, attempt=2, visible_ms=NOW + 5_000, error="Refused: nobody listens")
    for state in (RunState.HELD, RunState.READY):
        assert detail_of(replace(failed, state=state), now=NOW) == "tried again in 5s: Refused: nobody listens"
    assert detail_of(failed, now=NOW + 5_000) == AT_THE_GATE, "its time has come: now the gate is what it waits for"
    assert detail_of(WAITS, now=NOW) == AT_THE_GATE


def test_only_a_dead_letter_has_deaths():
    assert full(WAITS)["deaths"] == 0
    assert full(replace(WAITS, state=RunState.DEAD, deaths=3))["deaths"] == 3


def test_the_command_line_and_the_api_tell_the_same_of_a_dead_letter_that_was_replaced(capsys):
    letter = replace(WAITS, state=RunState.DEAD, failed=True, deaths=4)
    replaced = replace(letter, state=RunState.DONE)
    print_run(letter)
    assert re.search(r"^deaths +4$", capsys.readouterr().out, re.MULTILINE)
    print_run(replaced)
    assert "deaths" not in capsys.readouterr().out
    assert [run_view(run, 0).deaths for run in (letter, replaced)] == [4, 0]
    assert [full(run)["deaths"] for run in (letter, replaced)] == [4, 0]


FIRST = Tried(1, NOW - 20_000, NOW - 19_900, "ValueError: no", "app.py:3 in f")
SECOND = Run(
    id="r",
    job_id="j",
    due_ms=NOW - 20_000,
    state=RunState.LEASED,
    visible_ms=NOW - 15_000,
    attempt=1,
    fence=2,
    owner="n1",
    lease_until_ms=NOW + 9_000,
    started_ms=FIRST.started_ms,
    finished_ms=FIRST.ended_ms,
    failed=True,
    changed=True,
    error=FIRST.error,
    traceback=FIRST.traceback,
    tried=(FIRST,),
)


def test_a_run_in_its_second_attempt_does_not_show_the_figures_of_the_first(capsys):
    """When the present attempt began no store knows: nothing is told rather than something false."""
    print_run(SECOND)
    shown = capsys.readouterr().out
    names = {line.split("  ")[0] for line in shown.splitlines()}
    assert not {"started", "finished", "took", "changed", "error", "traceback"} & names, shown
    assert "delivery 1, ended" in shown
    assert "ValueError: no" in shown.partition("earlier attempts")[2]
    assert "app.py:3 in f" in shown.partition("earlier attempts")[2]
    assert (took(SECOND), changed(SECOND)) == ("", "")
    assert detail_of(SECOND, now=NOW) == "failed before: ValueError: no"
    assert detail_of(replace(SECOND, progress="page 3"), now=NOW) == "page 3"


def test_the_json_of_a_run_in_its_second_attempt_tells_the_first_among_what_was_tried():
    told, view = full(SECOND), run_view(SECOND, 0)
    assert [told[name] for name in ("started_ms", "finished_ms", "failed", "changed", "error", "traceback")] == [
        None,
        None,
        False,
        None,
        "",
        "",
    ]
    assert [each["error"] for each in told["tried"]] == ["ValueError: no"]
    assert (view.started_at, view.finished_at, view.duration_ms) == (None, None, None)
    assert (view.failed, view.changed, view.error, view.traceback) == (False, None, "", [])
    assert [(each.delivery, each.error, each.traceback) for each in view.tried] == [
        (1, "ValueError: no", ["app.py:3 in f"])
    ]


def test_what_a_revived_run_died_of_is_among_what_was_tried_while_it_runs_again(capsys):
    """A dead letter's last error stands in it alone; which delivery it was nobody knows any more."""
    revived = replace(
        SECOND, attempt=0, fence=3, error="KeyError: gone", traceback="app.py:9 in g", finished_ms=NOW - 9
    )
    print_run(revived)
    earlier = capsys.readouterr().out.partition("earlier attempts")[2]
    assert "ValueError: no" in earlier
    assert "before it was revived" in earlier
    assert "KeyError: gone" in earlier
    assert "app.py:9 in g" in earlier
    assert [(each.delivery, each.error) for each in run_view(revived, 0).tried] == [
        (1, "ValueError: no"),
        (0, "KeyError: gone"),
    ]


def test_a_run_that_ended_while_it_waited_did_not_take_since_its_first_attempt(capsys):
    """Cancelled between two attempts, or given up on because its lease was lost."""
    cancelled = replace(SECOND, state=RunState.CANCELLED, cancel="enough", finished_ms=NOW, owner="")
    print_run(cancelled)
    shown = capsys.readouterr().out
    assert "started" not in shown
    assert "took" not in shown
    assert "finished" in shown
    assert took(cancelled) == ""
    assert detail_of(cancelled, now=NOW) == "enough"
    assert (run_view(cancelled, 0).started_at, run_view(cancelled, 0).duration_ms) == (None, None)


def test_a_run_that_waits_for_its_next_attempt_shows_how_the_last_one_went(capsys):
    waits = replace(SECOND, state=RunState.READY, owner="", lease_until_ms=0)
    print_run(waits)
    shown = capsys.readouterr().out
    assert "took" in shown
    assert run_view(waits, 0).duration_ms == 100
