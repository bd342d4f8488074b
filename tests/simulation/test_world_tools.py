"""Tools of worlds: their loop, scripts, shrinker and command line."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from msgspec.structs import replace

from pollux.errors import InvalidInput, PolluxError
from pollux.testing.world import Script, ScriptShrinker, WorldResult, draw_script, run_world, story_of
from pollux.testing.world.campaign import main
from pollux.testing.world.ledger import BrokenPromise, WorldLedger
from pollux.testing.world.loop import RunawayWorld, VirtualProcess, WorldLoop


@pytest.fixture
def loop():
    loop = WorldLoop()
    yield loop
    loop.close()


# the loop


def test_time_passes_only_where_nothing_else_is_left_to_do(loop):
    seen = []

    async def sleep(seconds: float) -> None:
        await asyncio.sleep(seconds)
        seen.append(loop.time())

    async def live() -> None:
        await asyncio.gather(sleep(3_600), sleep(0.5), sleep(0.5))

    loop.run_until_complete(live())
    assert seen == [0.5, 0.5, 3_600]


def test_a_world_that_runs_away_is_ended_and_names_what_turns(loop):
    async def spin_for_ever() -> None:
        while True:  # noqa: ASYNC110  that is the fault
            await asyncio.sleep(0)

    with pytest.raises(RunawayWorld, match="steps at one instant"):
        loop.run_until_complete(spin_for_ever())


def test_a_world_in_which_nothing_can_happen_any_more_is_ended(loop):
    with pytest.raises(RunawayWorld, match="nothing is left that could happen"):
        loop.run_until_complete(asyncio.Event().wait())


def test_a_frozen_process_goes_on_where_it_was_and_a_dead_one_never(loop):
    seen = []
    frozen, dead = VirtualProcess("frozen"), VirtualProcess("dead")

    async def count(name: str) -> None:
        try:
            for number in range(4):
                seen.append((name, number, loop.time()))
                await asyncio.sleep(1)
        finally:
            seen.append((name, "cleaned up"))

    async def live() -> None:
        works = [loop.create_task(count(each.name), context=each.context) for each in (frozen, dead)]
        await asyncio.sleep(1.5)
        frozen.freeze()
        dead.die()
        await asyncio.sleep(10)
        frozen.thaw(loop)
        await works[0]

    loop.run_until_complete(live())
    of_frozen = [each[1:] for each in seen if each[0] == "frozen"]
    assert of_frozen == [(0, 0), (1, 1), (2, 11.5), (3, 12.5), ("cleaned up",)]
    assert [each[1:] for each in seen if each[0] == "dead"] == [(0, 0), (1, 1)]


def test_a_thread_in_a_world_is_named(loop):
    def read_a_file() -> None: ...

    async def live() -> None:
        await asyncio.to_thread(read_a_file)

    with pytest.raises(PolluxError, match="asks for a thread, and a world has none"):
        loop.run_until_complete(live())


# scripts and the ledger


def test_a_script_survives_its_file():
    import msgspec

    script = draw_script(3)
    assert msgspec.json.decode(msgspec.json.encode(script), type=Script) == script


@pytest.mark.parametrize(
    "wrong", [{"seed": -1}, {"seed": 2**63}, {"seed": 1, "profile": "storms"}, {"seed": 1, "nodes": 0}]
)
def test_a_script_that_cannot_be_drawn_is_refused(wrong):
    with pytest.raises(InvalidInput, match=r"is no seed|there is no profile 'storms'|0 nodes"):
        draw_script(**wrong)


def test_a_delivery_that_begins_twice_breaks_a_promise():
    ledger = WorldLedger()
    ledger.begin("run", "job", 1, "a", 0)
    ledger.begin("run", "job", 2, "b", 5)
    assert not ledger.broken
    ledger.begin("run", "job", 2, "a", 9)
    assert [each.kind for each in ledger.broken] == ["begun twice"]


def test_a_calm_world_fires_and_runs_and_is_sound():
    result = run_world(draw_script(5, profile="calm", minutes=1))
    assert result.is_sound, story_of(result)
    assert result.reached["answer firing ok"] > 20
    assert result.reached["transition leased -> Done (settle)"] > 20


# shrinking


def test_a_broken_world_shrinks_to_the_fault_and_the_job_that_break_it():
    script = draw_script(1, profile="kills")
    bad, job = script.faults[3], script.jobs[2]

    def run(tried: Script) -> WorldResult:
        is_broken = bad in tried.faults and job in tried.jobs
        broken = (BrokenPromise("broken", "as planned"),) if is_broken else ()
        return WorldResult(tried, broken, "", Counter(), [], [], 0, 0)

    small = ScriptShrinker(run(script), run=run).shrink()
    assert (small.script.faults, small.script.jobs, small.script.operations) == ((bad,), (job,), ())
    assert "BROKEN broken: as planned" in story_of(small)


# the command line


def test_the_command_runs_worlds_and_prints_what_was_reached(capsys):
    assert main(["--seeds", "2", "--minutes", "0.5", "--profile", "kills", "--nodes", "2"]) == 0
    printed = capsys.readouterr().out
    assert "2 worlds in" in printed
    assert "all sound" in printed
    assert "never reached:" in printed


@pytest.mark.parametrize("wrong", [["--profile", "storms"], ["--first", "-3"], ["--seeds", "0"], ["--nodes", "99"]])
def test_the_command_says_what_it_cannot_run(capsys, wrong):
    assert main(wrong) == 2
    assert capsys.readouterr().err.startswith("worlds: ")


def test_a_world_with_other_faults_has_another_trace():
    script = draw_script(2, minutes=0.5)
    assert run_world(script).digest != run_world(replace(script, faults=())).digest
