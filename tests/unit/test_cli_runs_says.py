"""What does a line of `pollux runs` say of a run?  That which tells most."""

from msgspec.structs import replace

from pollux.cli.runs import print_run, says
from pollux.cli.show import full
from pollux.model import AT_THE_GATE, Run, RunState
from pollux.server.wire_runs import run_view

NOW = 1_790_000_000_000
WAITS = Run(id="r", job_id="j", due_ms=NOW, state=RunState.HELD, gated=True, held_reason=AT_THE_GATE, visible_ms=NOW)


def test_a_run_that_failed_says_when_it_is_tried_again_wherever_it_waits():
    failed = replace(WAITS, attempt=2, visible_ms=NOW + 5_000, error="Refused: nobody listens")
    for state in (RunState.HELD, RunState.READY):
        assert says(replace(failed, state=state), now=NOW) == "tried again in 5s: Refused: nobody listens"
    assert says(failed, now=NOW + 5_000) == AT_THE_GATE, "its time has come: now the gate is what it waits for"
    assert says(WAITS, now=NOW) == AT_THE_GATE


def test_only_a_dead_letter_has_deaths():
    assert full(WAITS)["deaths"] == 0
    assert full(replace(WAITS, state=RunState.DEAD, deaths=3))["deaths"] == 3


def test_the_command_line_and_the_api_tell_the_same_of_a_dead_letter_that_was_replaced(capsys):
    letter = replace(WAITS, state=RunState.DEAD, failed=True, deaths=4)
    replaced = replace(letter, state=RunState.DONE)
    print_run(letter)
    assert "4 dead letters" in capsys.readouterr().out
    print_run(replaced)
    assert "dead letters" not in capsys.readouterr().out
    assert [run_view(run).deaths for run in (letter, replaced)] == [4, 0]
    assert [full(run)["deaths"] for run in (letter, replaced)] == [4, 0]
