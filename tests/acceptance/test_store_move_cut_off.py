"""A move that is cut off anywhere is completed by running it again."""

import json

import pytest

from pollux.model import Job
from pollux.store.contract import JobPut
from pollux.store.memory import MemoryStore
from pollux.store.seal import marks_of
from pollux.testing.conformance.builders import a_run
from pollux.testing.conformance.records import whole_dump
from tests.acceptance.move_world import carried, cut_off, moved, opened, populate, url_of
from tests.acceptance.terminal import Terminal


@pytest.mark.parametrize("after", [False, True], ids=["before the call", "after the call"])
async def test_killed_at_any_call_it_is_completed_by_running_it_again(after):
    cuts = 0
    for at in range(1, 1_000):
        one, two = MemoryStore(), MemoryStore()
        await one.open()
        await two.open()
        await populate(one)
        before = carried(await whole_dump(one))
        if not await cut_off(one, two, at, after=after):
            break
        cuts += 1
        is_sealed = (await marks_of(one)).to is not None
        halfway = carried(await whole_dump(two))
        assert not halfway or is_sealed, "nothing leaves a store that somebody may work on"

        answer = await moved(one, two, page=4)

        assert carried(await whole_dump(two)) == before, f"killed at call {at}"
        assert sum(answer.counts.values()) == len(before) - 2, "all but the note that ends, and the deleted job"
        assert [line.seq for line in (await two.read_log()).lines][:4] == [1, 2, 3, 4]
        assert (await marks_of(two)).origin.is_over
    assert cuts > 20


@pytest.mark.parametrize(("source", "target"), [("sqlite", "redis"), ("redis", "postgres"), ("postgres", "sqlite")])
async def test_killed_three_times_on_real_stores(source, target, tmp_path):
    one, two = await opened(url_of(source, tmp_path, "one")), await opened(url_of(target, tmp_path, "two"))
    try:
        await populate(one)
        before = carried(await whole_dump(one))
        assert [await cut_off(one, two, at, after=True) for at in (14, 12, 18)] == [True, True, True]
        await moved(one, two, page=4)
        assert carried(await whole_dump(two)) == before
    finally:
        await one.close()
        await two.close()


async def test_a_program_that_is_killed_goes_on_where_it_was(tmp_path):
    """The real program, SIGKILL between two pages, the same words again."""
    here = Terminal(tmp_path)
    store = await opened(f"sqlite:///{tmp_path}/one.db")
    await store.put_jobs([JobPut(Job(id="job", handler="h"))])
    for start in range(0, 8_000, 1_000):
        await store.enqueue([a_run(f"r{n}") for n in range(start, start + 1_000)])
    await store.close()
    command = ("store", "move", "sqlite:///one.db", "sqlite:///two.db", "--json")
    with here.started(*command) as process:
        for line in process.stdout:
            if json.loads(line)["phase"] == "copying":
                process.kill()
                break
        process.wait()

    lines = [json.loads(line) for line in here.ok(*command).out.splitlines()]

    assert lines[0]["phase"] == "copying"
    assert lines[0]["done"] > 1_000, "it did not begin anew"
    assert lines[-1]["phase"] == "moved"
    assert lines[-1]["counts"]["live runs"] == 8_000
    again = here.ok(*command).out.splitlines()
    assert json.loads(again[-1])["counts"] == lines[-1]["counts"], "once more: all is there already"
